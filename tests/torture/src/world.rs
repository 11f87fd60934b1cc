//! The servers of a run: the one that clients come to, and its standby.

use std::sync::Arc;
use std::time::Duration;

use lock_ext_ha::{PATIENCE, Place, Recipe, Server, until};
use tokio_postgres::{Client, Config, NoTls};

use crate::commits;
use crate::history::Commit;
use crate::nemesis::clock::Clock;
use crate::nemesis::network::Proxy;

const SETTINGS: [(&str, &str); 10] = [
    ("wal_level", "logical"),
    ("max_connections", "120"),
    ("autovacuum", "on"),
    ("autovacuum_naptime", "5s"),
    ("client_connection_check_interval", "2s"),
    // By a clock that is stepped they would end what is alive.
    ("wal_sender_timeout", "0"),
    ("wal_receiver_timeout", "0"),
    ("max_slot_wal_keep_size", "-1"),
    ("log_min_messages", "warning"),
    ("superuser_reserved_connections", "10"),
];

pub struct World {
    server: Server,
    standby: Option<Server>,
    pub proxy: Arc<Proxy>,
    pub clock: Option<Clock>,
    number: u32,
    commits: Vec<Commit>,
    // The last, as the clock's file is in it.
    _place: Place,
}

impl World {
    /// A server, and where one is wanted its standby.
    pub async fn new(with_clock: bool, with_standby: bool) -> Self {
        let place = Place::new();
        let clock = if with_clock { Clock::new(place.path()) } else { None };
        let recipe = Recipe {
            settings: SETTINGS.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            env: clock.as_ref().map(Clock::environment).unwrap_or_default(),
            ..Recipe::default()
        };
        let server = Server::with("node-0", recipe).await;
        let proxy = Proxy::new().await;
        let mut world = Self {
            server,
            standby: None,
            proxy,
            clock,
            number: 0,
            commits: Vec::new(),
            _place: place,
        };
        if with_standby {
            world.add_standby().await;
        }
        world
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    async fn add_standby(&mut self) {
        let name = format!("node-{}", self.number + 1);
        self.standby = Some(self.server.standby(&name).await);
        let server = self.connect_surely().await;
        let sql = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE application_name = $1 AND state = 'streaming')";
        until("the standby streams", async || {
            server.query_one(sql, &[&name]).await.expect("replication").get(0)
        })
        .await;
        self.quorum(Some(&name)).await;
    }

    /// Who has to have a commit before it is acknowledged.
    pub async fn quorum(&self, standby: Option<&str>) {
        let names = standby.map(|name| format!("ANY 1 (\"{name}\")")).unwrap_or_default();
        set(&self.server, "synchronous_standby_names", &names).await;
    }

    pub async fn cut_standby_off(&self) {
        let Some(standby) = &self.standby else { return };
        set(standby, "primary_conninfo", "host=/nonexistent").await;
        let client = connect(standby).await.expect("the standby");
        let sql = "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)";
        until("nothing is received", async || {
            client.query_one(sql, &[]).await.expect("the standby").get(0)
        })
        .await;
    }

    /// The standby takes over; where it went its own way.
    pub async fn promote(&mut self) -> i64 {
        let standby = self.standby.as_ref().expect("a standby");
        // Its predecessor's setting came with its data.
        standby.configure("synchronous_standby_names", "");
        standby.promote().await;
        set(standby, "synchronous_standby_names", "").await;
        let client = connect(standby).await.expect("the new primary");
        // The last line of the youngest timeline's history says where the one before it ended.
        let sql = "SELECT (split_part(regexp_replace(rtrim(pg_read_file(name), E'\\n'), '^.*\\n(?=[^\\n]+$)', ''), E'\\t', 2)::pg_lsn - '0/0')::int8
                   FROM (SELECT max('pg_wal/' || f) AS name FROM pg_ls_dir('pg_wal') AS f WHERE f LIKE '%.history') AS h";
        let fork = client.query_one(sql, &[]).await.expect("the timeline's history").get(0);
        let old = std::mem::replace(&mut self.server, self.standby.take().expect("a standby"));
        self.standby = Some(old);
        self.number += 1;
        fork
    }

    /// A new standby for the new primary; gives the old one, which is down.
    pub async fn replace(&mut self) -> Server {
        let old = self.standby.take().expect("the old primary");
        self.add_standby().await;
        old
    }

    /// Starts the old primary once more, where no client comes, for its log of commits; then it is removed. Gives how many of them were lost.
    pub async fn bury(&mut self, old: Server, fork: i64) -> usize {
        old.start().await;
        let client = connect(&old).await.expect("the old primary");
        let number = self.number - 1;
        let commits = commits::read(&client, number, Some(fork)).await;
        let lost = commits.iter().filter(|commit| !commit.kept).count();
        self.commits.extend(commits);
        lost
    }

    /// All commits, at the end.
    pub async fn commits(&mut self) -> Vec<Commit> {
        let client = self.connect_surely().await;
        self.commits.extend(commits::read(&client, self.number, None).await);
        std::mem::take(&mut self.commits)
    }

    /// The superuser, past the proxy; none if the server does not answer.
    pub async fn connect(&self) -> Option<Client> {
        tokio::time::timeout(Duration::from_secs(5), connect(&self.server)).await.ok()?
    }

    pub async fn connect_surely(&self) -> Client {
        let start = std::time::Instant::now();
        loop {
            if let Some(client) = self.connect().await {
                return client;
            }
            assert!(start.elapsed() < PATIENCE, "{} takes no connections", self.server.name());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Without a timeout: by a clock that is stepped it would end what has just begun.
pub async fn connect_to(directory: &std::path::Path) -> Option<Client> {
    let mut config = Config::new();
    config.host_path(directory).port(5432).user("postgres").dbname("postgres");
    let (client, connection) = config.connect(NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

async fn connect(server: &Server) -> Option<Client> {
    connect_to(server.dir()).await
}

/// A setting that is in force when this returns, but for sessions that run already.
async fn set(server: &Server, name: &str, value: &str) {
    let client = connect(server).await.expect("a server");
    client.batch_execute(&format!("ALTER SYSTEM SET {name} = '{value}'")).await.expect("a setting");
    client.batch_execute("SELECT pg_reload_conf()").await.expect("a reload");
    until("the setting is in force", async || {
        let seen = connect(server).await.expect("a server");
        let row = seen.query_one("SELECT current_setting($1)", &[&name]).await.expect("a setting");
        row.get::<_, &str>(0) == value
    })
    .await;
}
