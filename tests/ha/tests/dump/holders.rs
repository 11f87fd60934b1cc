//! Who held what when the dump was made.

use super::{Dump, create};
use crate::clock::{Clock, HOURS, connect};
use lock_ext_ha::{Answer, Asked, Server, Session};

/// A database with everything that a lease can be.
async fn source(
    server: &Server,
) -> (Session, Session, tokio::task::JoinHandle<Answer<Option<i64>>>) {
    create(server, "source", "").await;
    let a = server.connect_to("source").await;
    a.sql("CREATE EXTENSION lock_ext; CREATE ROLE app LOGIN").await.unwrap();
    a.sql("SET ROLE app").await.unwrap();
    a.acq("m", "A", "1 h").await.granted();
    a.sql("RESET ROLE").await.unwrap();
    for (lease, arguments, end) in [
        ("done", "", "SELECT lease_complete('done', $1)"),
        ("today", "", "SELECT lease_complete('today', $1, now() + '12 h')"),
        ("hourly", ", min_hold => '1 h'", "SELECT lease_release('hourly', $1)"),
        ("paused", ", pause => '1 h'", "SELECT lease_force_release('paused')"),
        ("free", "", "SELECT lease_release('free', $1)"),
    ] {
        let sql = format!("SELECT lease_acquire($1, 'A', '10 min'{arguments})");
        let token = a.one::<Option<i64>>(&sql, &[&lease]).await.granted();
        a.sql(&end.replace("$1", &token.to_string())).await.unwrap();
    }
    // Expired, and still held back.
    a.sql("SELECT lease_acquire('late', 'A', '1 ms', pause => '1 h')").await.unwrap();
    a.sql("SELECT lease_acquire('later', 'A', '1 ms', min_hold => '1 h')").await.unwrap();
    let b = server.connect_to("source").await;
    b.sacq("n", "B").await.granted();
    let waiter = server.connect_to("source").await;
    let waiting = waiter.beside(async |me| me.acq_wait("m", "W", "1 h").await);
    a.until("EXISTS (SELECT FROM lease_waiter WHERE name = 'm')", &[]).await;
    a.until("EXISTS (SELECT FROM lease_session WHERE name = 'n')", &[]).await;
    (a, b, waiting)
}

async fn states(session: &Session) -> Vec<String> {
    let sql =
        "SELECT concat_ws(' ', name, state, holder) FROM lease_status ORDER BY name COLLATE \"C\"";
    session.list(sql, &[]).await.unwrap()
}

const NAMES: [&str; 9] = ["done", "free", "hourly", "late", "later", "m", "n", "paused", "today"];

/// Who is granted it if he asks now.
async fn granted(session: &Session) -> Vec<&'static str> {
    let mut granted = Vec::new();
    for name in NAMES {
        if session.acq(name, "C", "1 h").await.unwrap().is_some() {
            granted.push(name);
        }
    }
    granted
}

#[tokio::test]
async fn h28_a_copy_knows_the_holders_and_no_session() {
    let server = Server::new("here", &[]).await;
    let (there, clock) = Clock::server("there").await;
    let watch = connect(&there).await;
    let (a, b, waiting) = source(&server).await;
    let dump = Dump::of(&server, "source", &[]).await;
    let all_held = [
        "done completed",
        "free free",
        "hourly completed",
        "late expired A",
        "later expired A",
        "m held A",
    ];

    // At once, in the same cluster, whose sessions are there, and in another one, which knows neither them nor the role.
    for (to, database) in [(&server, "copy"), (&there, "at_once")] {
        create(to, database, "").await;
        let options = ["--exit-on-error", "--no-owner", "--no-privileges"];
        dump.restore(to, database, &options).await.unwrap();
        let copy = to.connect_to(database).await;
        let shown = states(&copy).await;
        assert_eq!(shown[..6], all_held, "{database}");
        assert_eq!(shown[6..], ["n free", "paused completed", "today completed"], "{database}");
        for view in ["lease_waiter", "lease_session", "lease_writer"] {
            let rows: i64 = copy.one(&format!("SELECT count(*) FROM {view}"), &[]).await.unwrap();
            assert_eq!(rows, 0, "{view} in {database}");
        }
        let held = copy.info("m").await.unwrap();
        assert_eq!((held.holder.as_deref(), held.waiters), (Some("A"), 0));
        assert_eq!(held.expires_at, a.info("m").await.unwrap().expires_at);
        // Bound to a session that does not exist here.
        let bound = copy.sacq("n", "C").await.granted();
        assert_eq!(copy.rel("n", bound).await, Ok(true));
        assert_eq!(granted(&copy).await, ["free", "n"], "{database}");
        copy.acq("m", "C", "1 min").await.busy();
        assert_eq!(copy.one("SELECT lease_force_release('m')", &[]).await, Ok(true));
        let token = copy.acq("m", "C", "1 min").await.granted();
        assert!(token > held.token.unwrap());
        // And of what was held back as well, if an administrator says so: twice where there is a pause.
        for (name, times) in
            [("done", 1), ("today", 1), ("hourly", 1), ("later", 1), ("late", 2), ("paused", 1)]
        {
            for _ in 0..times {
                assert_eq!(
                    copy.one("SELECT lease_force_release($1)", &[&name]).await,
                    Ok(true),
                    "{name}"
                );
            }
            copy.acq(name, "C", "1 min").await.granted();
        }
    }
    // Nobody has noticed.
    assert_eq!(a.info("n").await.unwrap().session_pid, Some(b.pid()));
    assert_eq!(a.info("m").await.unwrap().waiters, 1);
    waiting.abort();

    // The next day.
    clock.set(24 * HOURS, &watch).await;
    create(&there, "next_day", "").await;
    dump.restore(&there, "next_day", &["--exit-on-error", "--no-owner", "--no-privileges"])
        .await
        .unwrap();
    let copy = there.connect_to("next_day").await;
    assert_eq!(copy.info("m").await.unwrap().state, "expired");
    let expected: Vec<_> = NAMES.into_iter().filter(|name| *name != "done").collect();
    assert_eq!(granted(&copy).await, expected);
}
