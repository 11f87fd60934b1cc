//! Dumps and copies of a database, and what becomes of its tokens and leases in them: in the same cluster and in another one, at once and the
//! next day.

mod copies;
mod holders;
mod numbers;
mod origins;
mod partial;

use std::path::PathBuf;

use lock_ext_ha::{Answer, Asked, NO_TOKEN, Refused, STALE, Server, Session};

/// A dump of a database, in a file of the server's directory.
struct Dump {
    file: PathBuf,
}

impl Dump {
    async fn of(server: &Server, database: &str, options: &[&str]) -> Self {
        let file = server.dir().join(format!("{database}.dump"));
        let path = file.to_str().expect("a plain path");
        let arguments =
            [&["--format", "custom", "--file", path, "--dbname", database], options].concat();
        server.run("pg_dump", &arguments).await;
        Self { file }
    }

    /// Restores it; what pg_restore complains about if it does.
    async fn restore(
        &self,
        server: &Server,
        database: &str,
        options: &[&str],
    ) -> Result<(), String> {
        let mut command = server.program("pg_restore");
        command.args(["--dbname", database]).args(options).arg(&self.file);
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}

async fn create(server: &Server, database: &str, options: &str) {
    let session = server.connect().await;
    session.sql(&format!("CREATE DATABASE {database} {options}")).await.unwrap();
}

/// A database with fenced rows under tokens up to this one at least.
const TOKENS: i64 = 57;

/// What was told of a database's tokens, and what its copies must know.
struct Source {
    session: Session,
    told: Vec<i64>,
    /// The last token of the lease "j", under which the rows were written last.
    last: i64,
}

impl Source {
    async fn new(server: &Server, database: &str) -> Self {
        create(server, database, "").await;
        let session = server.connect_to(database).await;
        session
            .sql(
                "CREATE EXTENSION lock_ext;
                 CREATE TABLE plain (id int PRIMARY KEY, v int NOT NULL);
                 CREATE TABLE stamped (id int PRIMARY KEY, v int NOT NULL, token bigint);
                 SELECT fence_attach('plain', 'j'), fence_attach('stamped', 'j', 'token')",
            )
            .await
            .unwrap();
        let mut told = Vec::new();
        loop {
            let token = session.acq("j", "A", "1 h").await.granted();
            let id = token;
            told.push(token);
            write(&session, token, &format!("INSERT INTO plain VALUES ({id}, {id})"))
                .await
                .unwrap();
            write(&session, token, &format!("INSERT INTO stamped VALUES ({id}, {id})"))
                .await
                .unwrap();
            session
                .sql(&format!("SELECT lease_checkpoint('j', {token}, '{{\"at\": {id}}}'), once('key {id}'), fence_observe('etcd', {id})"))
                .await
                .unwrap();
            if token >= TOKENS {
                break;
            }
            session.sql("SELECT lease_force_release('j')").await.unwrap();
        }
        let last = told[told.len() - 1];
        Self { session, told, last }
    }

    /// Tokens of this and that lease, told after the dump; nobody holds them afterwards.
    async fn goes_on(&mut self) {
        for lease in ["j", "another", "a third"] {
            self.session.exec("SELECT lease_force_release($1)", &[&lease]).await.unwrap();
            let token = self.session.acq(lease, "A", "1 h").await.granted();
            self.told.push(token);
            assert_eq!(self.session.rel(lease, token).await, Ok(true));
        }
    }

    fn highest(&self) -> i64 {
        *self.told.iter().max().expect("tokens")
    }
}

/// One statement in a transaction that carries the token.
async fn write(session: &Session, token: i64, statement: &str) -> Answer<()> {
    session.sql("BEGIN").await?;
    let written = async {
        session.fence("j", token).await?;
        session.sql(statement).await?;
        session.sql("COMMIT").await
    }
    .await;
    if written.is_err() {
        session.sql("ROLLBACK").await?;
    }
    written
}

/// All that a copy of a [`Source`] owes: the number line goes on above all tokens that were told, the new holder writes the old rows and the old
/// one does not, what was marked is marked.
async fn is_a_good_copy(copy: &Session, source: &mut Source, case: &str) {
    assert_eq!(copy.info("j").await.unwrap().token, Some(source.last), "{case}");
    for table in ["plain", "stamped"] {
        copy.sql(&format!("UPDATE {table} SET v = 0")).await.refused(NO_TOKEN);
        let rows: i64 = copy.one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap();
        assert!(rows >= TOKENS, "{case}: {rows} rows in {table}");
    }
    let key: bool = copy.one("SELECT once('key 1')", &[]).await.unwrap();
    assert!(!key, "{case}: an old key is done");
    copy.sql("SELECT fence_observe('etcd', 1)").await.refused(STALE);
    let checkpoint = "SELECT (lease_checkpoint('j')->>'at')::int8";
    assert_eq!(copy.one(checkpoint, &[]).await, Ok(source.last), "{case}");

    goes_on_above(copy, source, case).await;
}

/// The first token, of a new name, and the next, of the old one, are above all that were told; and with the latter the old rows are written.
async fn goes_on_above(copy: &Session, source: &mut Source, case: &str) {
    for lease in ["a new name", "j"] {
        copy.exec("SELECT lease_force_release($1)", &[&lease]).await.unwrap();
        let highest = source.highest();
        let token = copy.acq(lease, "C", "1 h").await.granted();
        assert!(token > highest, "{case}: {token} of {lease} after {highest}");
        source.told.push(token);
    }
    let token = source.highest();
    for statement in [
        "UPDATE plain SET v = v + 1".to_owned(),
        "UPDATE stamped SET v = v + 1".to_owned(),
        "INSERT INTO plain VALUES (-1, 0); INSERT INTO stamped VALUES (-1, 0)".to_owned(),
        "DELETE FROM plain WHERE id = -1; DELETE FROM stamped WHERE id = -1".to_owned(),
    ] {
        write(copy, token, &statement)
            .await
            .unwrap_or_else(|error| panic!("{case}: {statement}: {error:?}"));
        write(copy, source.last, &statement).await.refused(STALE);
    }
    copy.sql(&format!("UPDATE stamped SET token = {}", source.last)).await.refused(STALE);
    copy.sql(&format!("UPDATE stamped SET token = {token}")).await.unwrap();
    assert_eq!(copy.rel("j", token).await, Ok(true));
}
