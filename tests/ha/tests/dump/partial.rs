//! Dumps of a part, with the extension and without.

use super::{Dump, Source, TOKENS, create, goes_on_above, is_a_good_copy, write};
use lock_ext_ha::{Asked, Refused, STALE, Server};

/// The extension is not in it, and the restore says so: the tables are there, with no fence.
#[tokio::test]
async fn h27_a_dump_of_a_schema_leaves_the_extension_out_and_fails() {
    let server = Server::new("here", &[]).await;
    let source = Source::new(&server, "source").await;
    let dump = Dump::of(&server, "source", &["--schema", "public"]).await;
    create(&server, "copy", "").await;
    let complaint = dump.restore(&server, "copy", &[]).await.expect_err("no extension");
    for what in ["fence_check", "errors ignored"] {
        assert!(complaint.contains(what), "{complaint}");
    }
    let copy = server.connect_to("copy").await;
    let rows: i64 = copy.one("SELECT count(*) FROM stamped", &[]).await.unwrap();
    assert!(rows >= TOKENS);
    // What a monitor asks for finds that out, once there is an extension.
    copy.sql("CREATE EXTENSION lock_ext").await.unwrap();
    let open: i64 = copy
        .one(
            "SELECT count(*) FROM unnest('{plain, stamped}'::regclass[]) AS t WHERE t NOT IN (SELECT table_name FROM fence_status)",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(open, 2);

    // The fence is put on again by hand: the column tells it what was granted.
    copy.sql("SELECT fence_attach('plain', 'j'), fence_attach('stamped', 'j', 'token')")
        .await
        .unwrap();
    let token = copy.acq("j", "C", "1 h").await.granted();
    assert!(token > source.last, "{token} after {}", source.last);
    for table in ["plain", "stamped"] {
        write(&copy, token, &format!("UPDATE {table} SET v = 0")).await.unwrap();
    }
}

/// With an extension that was made before there is no error, and the fences are there; but it has not heard of any token.
#[tokio::test]
async fn h27_a_dump_of_a_schema_into_a_database_with_an_extension_of_its_own() {
    let server = Server::new("here", &[]).await;
    let source = Source::new(&server, "source").await;
    let dump = Dump::of(&server, "source", &["--schema", "public"]).await;
    create(&server, "copy", "").await;
    let copy = server.connect_to("copy").await;
    copy.sql("CREATE EXTENSION lock_ext").await.unwrap();
    // The schema public is there as well.
    let complaint = dump.restore(&server, "copy", &[]).await;
    if let Err(complaint) = complaint {
        assert!(
            complaint.contains("schema \"public\" already exists")
                && complaint.contains("ignored on restore: 1"),
            "{complaint}"
        );
    }
    let fences: i64 = copy.one("SELECT count(*) FROM fence_status", &[]).await.unwrap();
    assert_eq!(fences, 2);
    let low = copy.acq("j", "C", "1 h").await.granted();
    assert!(low < source.last, "a fresh number line");
    // The rows themselves refuse to go back.
    write(&copy, low, "UPDATE stamped SET v = 0").await.refused(STALE);
    copy.sql("SELECT lease_raise_token_floor((SELECT max(token) FROM stamped))").await.unwrap();
    copy.sql("SELECT lease_force_release('j')").await.unwrap();
    let token = copy.acq("j", "C", "1 h").await.granted();
    assert!(token > source.last);
    write(&copy, token, "UPDATE stamped SET v = 0").await.unwrap();
}

/// As the manual says it: the extension, and the schema that it was made in.
#[tokio::test]
async fn h27_a_dump_of_a_schema_with_the_extension() {
    let server = Server::new("here", &[]).await;
    let mut source = Source::new(&server, "source").await;
    let dump =
        Dump::of(&server, "source", &["--schema", "public", "--extension", "lock_ext"]).await;
    source.goes_on().await;
    create(&server, "copy", "").await;
    server.connect_to("copy").await.sql("DROP SCHEMA public").await.unwrap();
    dump.restore(&server, "copy", &["--exit-on-error"]).await.unwrap();
    let copy = server.connect_to("copy").await;
    is_a_good_copy(&copy, &mut source, "with the extension").await;
}

/// Somebody who may not read the extension's tables gets no dump that lacks them.
#[tokio::test]
async fn h27_who_may_not_read_all_of_it_gets_no_dump() {
    let server = Server::new("here", &[]).await;
    let mut source = Source::new(&server, "source").await;
    source
        .session
        .sql(
            "CREATE ROLE poor LOGIN; CREATE ROLE reader LOGIN; GRANT pg_read_all_data TO reader;
             GRANT SELECT ON plain, stamped TO poor",
        )
        .await
        .unwrap();
    let mut command = server.program("pg_dump");
    command.args(["--username", "poor", "--dbname", "source"]);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("permission denied"), "{said}");

    let dump = Dump::of(&server, "source", &["--username", "reader"]).await;
    source.goes_on().await;
    create(&server, "copy", "").await;
    dump.restore(&server, "copy", &["--exit-on-error"]).await.unwrap();
    let copy = server.connect_to("copy").await;
    goes_on_above(&copy, &mut source, "by a reader").await;
}
