//! Machines for a cluster: network namespaces with a directory each, joined by a bridge in one more namespace, which the test
//! is joined to as well. The bridge is not in the test's own namespace, where a firewall may have its say in what passes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::{Pid, User};

pub const NODES: usize = 3;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Ends all that runs in the namespaces, and removes them and the directory ($1), as soon as its standard input ends: when
/// the network is dropped, or when the test's process is gone, whatever ended it.
const KEEPER: &str = r#"
read -r _
directory=$1
shift
for space; do
    tries=0
    while pids=$(ip netns pids "$space") && [ -n "$pids" ] && [ $((tries += 1)) -le 100 ]; do
        kill -KILL $pids
        sleep 0.05
    done
    ip netns delete "$space"
done
rm -rf "$directory"
"#;

pub struct Network {
    /// Begins the names of all that is made here.
    name: String,
    /// The first three numbers of the addresses.
    subnet: String,
    directory: PathBuf,
    keeper: Child,
}

impl Network {
    /// Why there can be no such network here.
    pub fn missing() -> Option<&'static str> {
        if !nix::unistd::geteuid().is_root() {
            return Some("network namespaces need root");
        }
        let listed = Command::new("ip").args(["netns", "list"]).output();
        if listed.is_ok_and(|listed| listed.status.success()) {
            None
        } else {
            Some("no network namespaces (iproute2)")
        }
    }

    pub fn new() -> Self {
        let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        // A device's name has 15 characters at most, and two clusters of one run differ in the number.
        let name = format!("lxp{}-{number}", process % 100_000);
        let subnet = format!("10.{}.{}", 200 + number % 50, process % 250);
        let under = std::env::var_os("LOCK_EXT_TMPDIR").unwrap_or_else(|| "/tmp".into());
        let directory = Path::new(&under).join(&name);
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "keeper"]).arg(&directory).arg(format!("{name}-hub"));
        keeper.args((0..NODES).map(|node| format!("{name}-{node}")));
        // A Ctrl-C that ends the tests must not end it.
        keeper.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = keeper.spawn().expect("a shell");
        let network = Self { name, subnet, directory, keeper };

        make_directory(&network.directory);
        let hub = network.hub();
        ip(&format!("netns add {hub}"));
        ip(&format!("-n {hub} link add bridge type bridge"));
        ip(&format!("-n {hub} link set bridge up"));
        let outside = network.outside();
        ip(&format!("link add {outside} type veth peer name test netns {hub}"));
        ip(&format!("-n {hub} link set test master bridge up"));
        ip(&format!("address add {}.254/24 dev {outside}", network.subnet));
        ip(&format!("link set {outside} up"));
        for node in 0..NODES {
            make_directory(&network.home(node));
            let space = network.namespace(node);
            ip(&format!("netns add {space}"));
            ip(&format!("-n {space} link set lo up"));
            ip(&format!("-n {space} link add net type veth peer name n{node} netns {hub}"));
            ip(&format!("-n {hub} link set n{node} master bridge up"));
            ip(&format!("-n {space} address add {}/24 dev net", network.address(node)));
            ip(&format!("-n {space} link set net up"));
        }
        network
    }

    pub fn address(&self, node: usize) -> String {
        format!("{}.{}", self.subnet, node + 1)
    }

    /// The node's directory.
    pub fn home(&self, node: usize) -> PathBuf {
        self.directory.join(format!("n{node}"))
    }

    pub fn subnet(&self) -> String {
        format!("{}.0/24", self.subnet)
    }

    /// Takes the cable of a node out: nothing is told to anybody.
    pub fn cut(&self, node: usize) {
        ip(&format!("-n {} link set n{node} down", self.hub()));
    }

    pub fn mend(&self, node: usize) {
        ip(&format!("-n {} link set n{node} up", self.hub()));
    }

    /// A program in the namespace of a node, as user postgres. It is the very process that is started, so that its id is
    /// the one to kill.
    pub fn command(&self, node: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        let space = self.namespace(node);
        command.args(["netns", "exec", &space, "setpriv", "--reuid=postgres", "--regid=postgres"]);
        command.args(["--init-groups", program]).env("HOME", self.home(node));
        for (name, _) in std::env::vars_os() {
            let said = name.to_string_lossy();
            // Other servers are no business of these.
            if ["PG", "PATRONI", "ETCD", "RUST_"]
                .iter()
                .any(|of_others| said.starts_with(of_others))
            {
                command.env_remove(&name);
            }
        }
        command.current_dir(self.home(node)).stdin(Stdio::null());
        command
    }

    /// The processes of a node, and their command lines.
    pub fn processes(&self, node: usize) -> Vec<(Pid, String)> {
        let listed = Command::new("ip").args(["netns", "pids", &self.namespace(node)]).output();
        let listed = listed.expect("ip is there").stdout;
        String::from_utf8_lossy(&listed)
            .lines()
            .filter_map(|pid| {
                let pid: i32 = pid.parse().ok()?;
                // One that has ended meanwhile is none.
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
                Some((Pid::from_raw(pid), String::from_utf8_lossy(&line).replace('\0', " ")))
            })
            .collect()
    }

    /// Ends all that runs on the machines, and removes them.
    pub fn remove(&mut self) {
        drop(self.keeper.stdin.take());
        // A failure here must not hide why the test failed.
        let _ = self.keeper.wait();
    }

    fn namespace(&self, node: usize) -> String {
        format!("{}-{node}", self.name)
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.name)
    }

    fn outside(&self) -> String {
        self.name.clone()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.remove();
    }
}

fn make_directory(directory: &Path) {
    fs::create_dir(directory).expect("a directory");
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).expect("our directory");
    let postgres = User::from_name("postgres").expect("the users").expect("a user postgres");
    chown(directory, Some(postgres.uid.as_raw()), Some(postgres.gid.as_raw())).expect("root may");
}

#[track_caller]
fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).output().expect("ip is there");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "ip {arguments}: {said}");
}
