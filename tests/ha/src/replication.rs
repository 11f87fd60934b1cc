use std::sync::Mutex;

use crate::programs::run;
use crate::server::append;
use crate::{Place, Server};

impl Server {
    /// A standby of this server, made from a base backup and started. It streams under its name as the application's
    /// name; nothing but `wal_keep_size` keeps WAL for it.
    pub async fn standby(&self, name: &str) -> Self {
        self.copy(name, None).await
    }

    /// The same with a replication slot of its name.
    pub async fn standby_with_slot(&self, name: &str) -> Self {
        self.copy(name, Some(name)).await
    }

    async fn copy(&self, name: &str, slot: Option<&str>) -> Self {
        let standby = Self {
            name: name.to_owned(),
            bindir: self.bindir.clone(),
            env: self.env.clone(),
            postmaster: Mutex::default(),
            place: Place::new(),
        };
        let mut backup = self.program("pg_basebackup");
        backup.args(["--no-sync", "--checkpoint", "fast", "--pgdata"]).arg(standby.data());
        if let Some(slot) = slot {
            backup.args(["--create-slot", "--slot", slot]);
        }
        run(backup).await;
        standby.configure("primary_conninfo", &self.primary_conninfo(name));
        if let Some(slot) = slot {
            standby.configure("primary_slot_name", slot);
        }
        standby.stand_by();
        standby.start().await;
        standby
    }

    /// What a standby of that name has as its `primary_conninfo` to follow this server.
    pub fn primary_conninfo(&self, standby: &str) -> String {
        format!("host={} port=5432 user=postgres application_name={standby}", self.dir().display())
    }

    /// From its next start on it is a standby: of whatever its `primary_conninfo` names.
    pub fn stand_by(&self) {
        append(&self.data().join("standby.signal"), "");
    }

    /// Standby: streams from that server from now on.
    pub async fn follow(&self, primary: &Self) {
        self.set("primary_conninfo", &primary.primary_conninfo(&self.name)).await;
    }

    /// Standby: gets nothing more from its primary. Returns when the connection is gone.
    pub async fn cut_off(&self) {
        self.set("primary_conninfo", "host=/nonexistent").await;
        let session = self.connect().await;
        session.until("NOT EXISTS (SELECT FROM pg_stat_wal_receiver)", &[]).await;
    }

    /// Makes a primary of a standby. Returns when it takes writes.
    pub async fn promote(&self) {
        let data = self.data();
        let data = data.to_str().expect("a plain path");
        self.run("pg_ctl", &["promote", "--pgdata", data, "--wait", "--timeout", "60"]).await;
    }

    /// The end of the WAL that is flushed, which is all that standbys are sent, or on a standby of what it has received.
    pub async fn wal_end(&self) -> u64 {
        let end = "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_flush_lsn() END
                           - '0/0')::int8";
        self.connect().await.one::<i64>(end, &[]).await.expect("a position").unsigned_abs()
    }

    /// Standby: waits until it has applied all that the other one has flushed by now.
    pub async fn caught_up(&self, with: &Self) {
        let end = i64::try_from(with.wal_end().await).expect("a position");
        let session = self.connect().await;
        session.until("pg_last_wal_replay_lsn() - '0/0' >= $1::int8", &[&end]).await;
    }

    /// The timeline that it writes.
    pub async fn timeline(&self) -> i64 {
        let timeline =
            "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8";
        self.connect().await.one(timeline, &[]).await.expect("a timeline")
    }
}
