//! Two fences behind one interface, so that what catches the naive one is what ours is tested with.

use lock_ext_sessions::{Answer, Asked, Db, Session};

/// The lease of all tables here.
pub const LEASE: &str = "j";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    Ours,
    /// What people write by hand: a PL/pgSQL row trigger on the table, which reads the current token as any query
    /// reads, without a lock and without a second look at the commit.
    Naive,
}

impl Guard {
    /// What the guard needs in the database before it is attached to tables.
    pub async fn prepare(self, db: &Db) {
        if self == Self::Naive {
            db.watch.sql(NAIVE).await.expect("the naive fence");
        }
    }

    /// Puts the fence on the table.
    pub async fn attach(self, owner: &Session, table: &str, column: Option<&str>) {
        match self {
            Self::Ours => owner
                .exec("SELECT fence_attach($1::text::regclass, $2, $3)", &[&table, &LEASE, &column])
                .await
                .map(drop),
            Self::Naive => {
                let column = column.map(|column| format!(", '{column}'")).unwrap_or_default();
                owner
                    .sql(&format!(
                        "CREATE TRIGGER zzz_naive BEFORE INSERT OR UPDATE OR DELETE ON {table}
                         FOR EACH ROW EXECUTE FUNCTION naive_check('{LEASE}'{column})"
                    ))
                    .await
            }
        }
        .expect("attached");
    }

    /// A new grant, after whatever there was has ended.
    pub async fn grant(self, holder: &Session) -> i64 {
        match self {
            Self::Ours => holder.acq(LEASE, "holder", "60 s").await.granted(),
            Self::Naive => holder
                .one(
                    "INSERT INTO naive_lease VALUES ($1, nextval('naive_tokens'))
                     ON CONFLICT (name) DO UPDATE SET token = excluded.token RETURNING token",
                    &[&LEASE],
                )
                .await
                .expect("granted"),
        }
    }

    /// Ends the grant, whoever has it.
    pub async fn end(self, admin: &Session) {
        match self {
            Self::Ours => admin.force(LEASE).await.map(drop),
            Self::Naive => admin
                .exec("UPDATE naive_lease SET token = NULL WHERE name = $1", &[&LEASE])
                .await
                .map(drop),
        }
        .expect("ended");
    }

    /// The rest of the transaction writes under the token.
    pub async fn carry(self, writer: &Session, token: i64) -> Answer<()> {
        match self {
            Self::Ours => writer.fence(LEASE, token).await,
            Self::Naive => writer
                .exec("SELECT set_config('naive.token', $1, true)", &[&token.to_string()])
                .await
                .map(drop),
        }
    }
}

const NAIVE: &str = "
CREATE TABLE naive_lease (name text PRIMARY KEY, token bigint);
CREATE SEQUENCE naive_tokens;
GRANT ALL ON naive_lease, naive_tokens TO PUBLIC;
CREATE FUNCTION naive_check() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    given bigint := nullif(current_setting('naive.token', true), '')::bigint;
    latest bigint;
BEGIN
    IF TG_NARGS > 1 AND TG_OP <> 'DELETE' THEN
        IF given IS NULL THEN
            given := NEW.token;
        ELSE
            NEW.token := given;
        END IF;
    END IF;
    IF given IS NULL THEN
        RAISE EXCEPTION 'no token' USING ERRCODE = 'LX003';
    END IF;
    SELECT token INTO latest FROM naive_lease WHERE name = TG_ARGV[0];
    IF given IS DISTINCT FROM latest THEN
        RAISE EXCEPTION 'stale token' USING ERRCODE = 'LX001';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
";
