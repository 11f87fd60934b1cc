//! Functions that are called by the protocol's own message, without a statement (PQfn of libpq, the fast path of JDBC). There is no portal then.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use lock_ext_sessions::{Asked, Db, STALE};

/// As little of a client as it takes.
struct Raw(UnixStream);

impl Raw {
    fn connect(db: &Db) -> Self {
        let env = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name}"));
        let socket = format!("{}/.s.PGSQL.{}", env("PGHOST"), env("PGPORT"));
        let mut raw = Self(UnixStream::connect(socket).expect("the server"));
        let options = format!("user\0{}\0database\0{}\0\0", env("PGUSER"), db.name());
        let mut startup = 196_608_i32.to_be_bytes().to_vec();
        startup.extend(options.as_bytes());
        raw.write(&[], &startup);
        raw.until_ready().expect("trusted");
        raw
    }

    fn write(&mut self, kind: &[u8], body: &[u8]) {
        let length = i32::try_from(body.len() + 4).expect("short").to_be_bytes();
        self.0.write_all(&[kind, &length, body].concat()).expect("the server is there");
    }

    /// The SQLSTATE of an error, if there was one.
    fn until_ready(&mut self) -> Result<(), String> {
        let mut outcome = Ok(());
        loop {
            let mut head = [0; 5];
            self.0.read_exact(&mut head).expect("the server is there");
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let mut body = vec![0; length - 4];
            self.0.read_exact(&mut body).expect("the server is there");
            match head[0] {
                b'Z' => return outcome,
                b'E' => {
                    let fields = body.split(|byte| *byte == 0);
                    let code = fields.filter_map(|field| field.strip_prefix(b"C")).next();
                    outcome = Err(String::from_utf8_lossy(code.expect("a code")).into_owned());
                }
                _ => {}
            }
        }
    }

    fn sql(&mut self, sql: &str) -> Result<(), String> {
        self.write(b"Q", format!("{sql}\0").as_bytes());
        self.until_ready()
    }

    fn call(&mut self, function: u32, name: &str, token: i64) -> Result<(), String> {
        let mut body = function.to_be_bytes().to_vec();
        // All arguments, two of them, and the result are binary.
        body.extend([0, 1, 0, 1, 0, 2]);
        body.extend(u32::try_from(name.len()).expect("short").to_be_bytes());
        body.extend(name.as_bytes());
        body.extend(8_u32.to_be_bytes());
        body.extend(token.to_be_bytes());
        body.extend([0, 1]);
        self.write(b"F", &body);
        self.until_ready()
    }
}

#[tokio::test]
async fn what_a_function_writes_that_is_called_without_a_statement_is_refused() {
    let db = Db::fresh().await;
    let [a, b, gate] = db.sessions().await;
    db.watch
        .sql(
            "CREATE TABLE plain (i int);
             CREATE FUNCTION job(name text, token bigint) RETURNS int LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM lease_fence(name, token);
                 BEGIN PERFORM 1 / 0; EXCEPTION WHEN OTHERS THEN NULL; END;
                 INSERT INTO plain VALUES (777);
                 PERFORM pg_advisory_xact_lock_shared(1);
                 BEGIN PERFORM 1; EXCEPTION WHEN OTHERS THEN NULL; END;
                 RETURN 1;
             END $$",
        )
        .await
        .unwrap();
    let job: u32 =
        a.one("SELECT 'job'::regproc::oid", &[]).await.expect("the function that was made");
    for (is_in_block, is_superseded) in [(false, true), (true, true), (false, false)] {
        let token = a.acq("j", "A", "60 s").await.granted();
        gate.sql("SELECT pg_advisory_lock(1)").await.unwrap();
        let mut raw = Raw::connect(&db);
        let calling = tokio::task::spawn_blocking(move || {
            if is_in_block {
                raw.sql("BEGIN")?;
            }
            raw.call(job, "j", token)?;
            if is_in_block { raw.sql("SAVEPOINT y; COMMIT") } else { Ok(()) }
        });
        db.until("EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)", &[])
            .await;
        if is_superseded {
            db.watch.force("j").await.unwrap();
            b.acq("j", "B", "60 s").await.granted();
        }
        gate.sql("SELECT pg_advisory_unlock(1)").await.unwrap();
        let outcome = calling.await.unwrap();
        let expected = if is_superseded { Err(STALE.to_owned()) } else { Ok(()) };
        assert_eq!(outcome, expected, "in a block: {is_in_block}");
        db.watch.force("j").await.unwrap();
    }
    assert_eq!(db.watch.one::<i64>("SELECT count(*) FROM plain", &[]).await, Ok(1));
}
