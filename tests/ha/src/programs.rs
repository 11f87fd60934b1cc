use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::{Uid, User, geteuid};

/// The directory of the server's programs.
pub fn bindir() -> PathBuf {
    if let Some(dir) = std::env::var_os("LOCK_EXT_PGBIN") {
        return dir.into();
    }
    let pg_config = std::env::var_os("PG_CONFIG").filter(|path| !path.is_empty());
    let debian = Path::new("/usr/lib/postgresql/15/bin");
    if pg_config.is_none() && debian.join("postgres").exists() {
        return debian.into();
    }
    let pg_config = pg_config.unwrap_or_else(|| "pg_config".into());
    let said = Command::new(&pg_config).arg("--bindir").output().expect("pg_config runs");
    String::from_utf8(said.stdout).expect("a path in UTF-8").trim_end().into()
}

/// The user that the servers belong to where that is not the caller: they refuse to be root's.
pub(crate) fn owner() -> Option<User> {
    geteuid().is_root().then(|| {
        User::from_name("postgres").expect("the users can be read").expect("a user postgres")
    })
}

/// A program to be run as the owner of the servers, without what the environment says about other servers or
/// about us.
pub fn program(path: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(path);
    if let Some(User { uid, gid, .. }) = owner() {
        command.uid(Uid::as_raw(uid)).gid(gid.as_raw());
        command.env("HOME", "/nonexistent");
    }
    for (name, _) in std::env::vars_os() {
        let said = name.to_string_lossy();
        // A backtrace in every message is not what a server's user sees.
        if said.starts_with("PG") || said.starts_with("RUST_") {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Runs it to its end; what it printed to its standard output. Fails with what it said if it fails.
pub(crate) async fn run(mut command: Command) -> String {
    let shown = format!("{command:?}");
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .expect("it is waited for")
        .unwrap_or_else(|error| panic!("{shown} does not start: {error}"));
    assert!(
        output.status.success(),
        "{shown}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
