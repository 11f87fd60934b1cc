//! Three nodes, each with etcd, Patroni and the PostgreSQL that Patroni runs.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::client::{Db, Hosts};
use super::network::{NODES, Network};

/// How long a condition may take to come true before the test fails: an outer limit, not an expectation.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(200);

/// After which a leader that nobody heard of is taken for dead: the least that Patroni accepts, in seconds.
const LEADER_TTL: u32 = 20;

pub struct Cluster {
    pub synchronous: bool,
    network: Network,
    children: Vec<Child>,
}

impl Cluster {
    /// Why there can be no such cluster here.
    pub fn missing() -> Option<&'static str> {
        let there = |program: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
        };
        if !there("patroni") || !there("patronictl") {
            Some("patroni is not installed")
        } else if !there("etcd") {
            Some("etcd is not installed")
        } else if !there("setpriv") {
            Some("setpriv is not installed (util-linux)")
        } else {
            Network::missing()
        }
    }

    /// All three run, and the standbys stream.
    pub async fn start(synchronous: bool) -> Self {
        let mut cluster = Self { synchronous, network: Network::new(), children: Vec::new() };
        for node in 0..NODES {
            cluster.start_etcd(node);
            fs::write(cluster.home(node).join("patroni.yml"), cluster.settings(node))
                .expect("a file");
            cluster.start_patroni(node);
        }
        let leader = cluster.new_leader(None).await;
        cluster.standbys_stream(leader).await;
        cluster
    }

    /// A client that finds the leader, whoever that is.
    pub fn hosts(&self) -> Hosts {
        Hosts::Leader((0..NODES).map(|node| self.network.address(node)).collect())
    }

    /// A client on the node itself, which no network keeps from its server.
    pub fn hosts_inside(&self, node: usize) -> Hosts {
        Hosts::Inside(self.home(node))
    }

    /// Waits until there is another leader than that one, and gives it.
    pub async fn new_leader(&self, old: Option<usize>) -> usize {
        let start = Instant::now();
        loop {
            if let Some(leader) = self.leader().await
                && Some(leader) != old
            {
                return leader;
            }
            self.patient(start, "a leader");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn leader(&self) -> Option<usize> {
        let db = Db::connect(&self.hosts(), "test").await.ok()?;
        let address: String = db.value("SELECT host(inet_server_addr())", &[]).await.ok()?;
        (0..NODES).find(|node| self.network.address(*node) == address)
    }

    /// Waits until both standbys stream from the leader, and Patroni may promote one of them: with `synchronous_mode` only
    /// one whose name it has written down as synchronous, which it does some time after it is.
    pub async fn standbys_stream(&self, leader: usize) {
        let synchronous = usize::from(self.synchronous);
        let condition = format!(
            "SELECT count(*) FILTER (WHERE state = 'streaming') = {}
                AND count(*) FILTER (WHERE sync_state = 'sync') = {synchronous}
             FROM pg_stat_replication WHERE application_name ~ '^n[0-9]$'",
            NODES - 1
        );
        self.until(leader, &condition).await;
        let start = Instant::now();
        while self.synchronous && !self.listed().contains("Sync Standby") {
            self.patient(start, "a synchronous standby that may be promoted");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The cluster as Patroni sees it.
    fn listed(&self) -> String {
        let mut list = self.patronictl("list");
        let done = list.output().expect("patronictl is there");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    fn patronictl(&self, what: &str) -> Command {
        let mut patronictl = Command::new("patronictl");
        patronictl.arg("--config-file").arg(self.home(0).join("patroni.yml")).arg(what);
        patronictl
    }

    /// Waits until a condition is true on that node, asked from inside.
    pub async fn until(&self, node: usize, condition: &str) {
        let start = Instant::now();
        loop {
            if let Ok(db) = Db::connect(&self.hosts_inside(node), "test").await
                && db.value(condition, &[]).await.unwrap_or(false)
            {
                return;
            }
            self.patient(start, condition);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until a leader is none any more, asked from inside.
    pub async fn demoted(&self, node: usize) {
        let start = Instant::now();
        while let Ok(db) = Db::connect(&self.hosts_inside(node), "test").await {
            if db.value("SELECT pg_is_in_recovery()", &[]).await.unwrap_or(true) {
                return;
            }
            self.patient(start, "the end of a leader without a network");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The standbys receive nothing from now on, until [`Standbys::go_on_without`].
    pub fn hold_up_standbys(&self, leader: usize) -> Standbys {
        let mut receivers = Vec::new();
        for node in (0..NODES).filter(|node| *node != leader) {
            let processes = self.network.processes(node);
            let receiver = processes.iter().find(|(_, line)| line.contains(": walreceiver"));
            let (pid, _) = receiver.expect("a standby that streams");
            kill(*pid, Signal::SIGSTOP).expect("it runs");
            receivers.push(*pid);
        }
        Standbys(receivers)
    }

    /// SIGKILL for Patroni first, so that it starts nothing anew, and for every process of PostgreSQL.
    pub fn kill(&self, node: usize) {
        let (patroni, servers): (Vec<_>, Vec<_>) = self
            .network
            .processes(node)
            .into_iter()
            .filter(|(_, line)| !line.starts_with("etcd "))
            .partition(|(_, line)| line.contains("patroni.yml"));
        assert!(!patroni.is_empty() && !servers.is_empty(), "node {node} runs");
        for (pid, _) in patroni.into_iter().chain(servers) {
            // A session may have ended meanwhile.
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    pub fn cut(&self, node: usize) {
        self.network.cut(node);
    }

    pub fn mend(&self, node: usize) {
        self.network.mend(node);
    }

    /// Asks Patroni for another leader.
    pub fn switch_over(&self) {
        let done =
            self.patronictl("switchover").arg("--force").output().expect("patronictl is there");
        let said = String::from_utf8_lossy(&done.stdout).into_owned()
            + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.contains("Successfully"), "{said}");
    }

    /// Also again after [`Cluster::kill`].
    pub fn start_patroni(&mut self, node: usize) {
        let settings = self.home(node).join("patroni.yml");
        let mut patroni = self.network.command(node, "patroni");
        patroni.arg(settings);
        self.spawn(node, patroni, "patroni.log");
    }

    fn start_etcd(&mut self, node: usize) {
        let peers: Vec<_> = (0..NODES)
            .map(|node| format!("n{node}=http://{}:2380", self.network.address(node)))
            .collect();
        let here = self.network.address(node);
        let mut etcd = self.network.command(node, "etcd");
        etcd.arg(format!("--name=n{node}"))
            .arg(format!("--data-dir={}", self.home(node).join("etcd").display()))
            .arg(format!("--listen-peer-urls=http://{here}:2380"))
            .arg(format!("--initial-advertise-peer-urls=http://{here}:2380"))
            .arg(format!("--listen-client-urls=http://{here}:2379"))
            .arg(format!("--advertise-client-urls=http://{here}:2379"))
            .arg(format!("--initial-cluster={}", peers.join(",")))
            // Two clusters share what may be a slow disk with all their servers, and no etcd is ever killed here.
            .arg("--unsafe-no-fsync")
            // Patroni's way to hold the lock through etcd's first interface compares before it writes. That through the
            // third one does not in Debian's 3.0.2: a leader that comes back can take the lock from its successor.
            .arg("--enable-v2")
            // One that comes back must not make the others elect again.
            .arg("--pre-vote");
        self.spawn(node, etcd, "etcd.log");
    }

    fn spawn(&mut self, node: usize, mut command: Command, log: &str) {
        let log = self.home(node).join(log);
        let log = File::options().create(true).append(true).open(log).expect("a log");
        let child = command
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("ip is there");
        self.children.push(child);
    }

    /// Patroni's settings. Nothing in them is for lock_ext.
    fn settings(&self, node: usize) -> String {
        let here = self.network.address(node);
        let home = self.home(node);
        let home = home.display();
        let bin = lock_ext_ha::bindir();
        let bin = bin.display();
        let (subnet, synchronous) = (self.network.subnet(), self.synchronous);
        let etcd: Vec<_> =
            (0..NODES).map(|node| format!("'{}:2379'", self.network.address(node))).collect();
        let etcd = etcd.join(", ");
        format!(
            "
scope: lock_ext
name: n{node}
restapi: {{listen: '{here}:8008', connect_address: '{here}:8008'}}
etcd: {{hosts: [{etcd}]}}
bootstrap:
  dcs:
    ttl: {LEADER_TTL}
    loop_wait: 2
    retry_timeout: 5
    # A standby that lags may be promoted, in the asynchronous run.
    maximum_lag_on_failover: 1073741824
    synchronous_mode: {synchronous}
    postgresql:
      use_pg_rewind: true
      parameters:
        wal_log_hints: 'on'
        # A leader that is to stop waits for its standbys, for this time if the network is down.
        wal_sender_timeout: 10s
  initdb: [{{encoding: UTF8}}, {{locale: C}}, {{auth: trust}}, no-sync]
postgresql:
  listen: '{here}:5432'
  connect_address: '{here}:5432'
  data_dir: '{home}/data'
  bin_dir: '{bin}'
  pgpass: '{home}/pgpass'
  use_unix_socket: true
  parameters: {{unix_socket_directories: '{home}'}}
  pg_hba:
    - local all all trust
    - host all all {subnet} trust
    - host replication all {subnet} trust
  authentication:
    superuser: {{username: postgres}}
    replication: {{username: replicator}}
"
        )
    }

    fn home(&self, node: usize) -> PathBuf {
        self.network.home(node)
    }

    fn patient(&self, since: Instant, what: &str) {
        assert!(since.elapsed() < PATIENCE, "never came true: {what}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in 0..NODES {
                let log = fs::read_to_string(self.home(node).join("patroni.log"));
                let log = log.unwrap_or_default();
                let lines: Vec<_> = log.lines().collect();
                eprintln!("the last of node {node}'s log:");
                lines.iter().skip(lines.len().saturating_sub(40)).for_each(|l| eprintln!("  {l}"));
            }
        }
        self.network.remove();
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// Standbys that receive nothing.
pub struct Standbys(Vec<Pid>);

impl Standbys {
    /// They go on, and never get what was on the way to them: who receives ends first, with what nobody has read.
    pub fn go_on_without(self) {
        for receiver in &self.0 {
            kill(*receiver, Signal::SIGTERM).expect("it was stopped, not ended");
            kill(*receiver, Signal::SIGCONT).expect("it was stopped, not ended");
        }
    }
}
