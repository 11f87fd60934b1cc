use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::programs::owner;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Ends the servers whose data directories are in the place ($1), and removes it, as soon as its standard input
/// ends: when the place is dropped, or when the test's process is gone, whatever ended it.
const KEEPER: &str = r#"
read -r _
for file in "$1"/*/postmaster.pid; do
    [ -f "$file" ] || continue
    pid=$(head -n 1 "$file")
    # The number may be somebody else's by now.
    mine() { tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "$1/"; }
    mine "$1" && kill -QUIT "$pid"
    tries=0
    while mine "$1" && [ $((tries += 1)) -le 100 ]; do sleep 0.1; done
    mine "$1" && kill -KILL "$pid"
done
rm -rf "$1"
"#;

/// A directory of a test's own that belongs to the owner of the servers. Its path is short, as a unix socket's path may
/// have no more than 107 bytes. It is removed, and the servers in its subdirectories ended, when this is dropped
/// and when the test's process ends in any way.
pub struct Place {
    path: PathBuf,
    keeper: Child,
}

impl Place {
    pub fn new() -> Self {
        let under = std::env::var_os("LOCK_EXT_TMPDIR").unwrap_or_else(|| "/tmp".into());
        let path = loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = Path::new(&under).join(format!("lx.{}.{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => break path,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{} cannot be made: {error}", path.display()),
            }
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("our directory");
        if let Some(owner) = owner() {
            chown(&path, Some(owner.uid.as_raw()), Some(owner.gid.as_raw()))
                .expect("our directory");
        }
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C that ends the tests must not end it.
            .process_group(0)
            .spawn()
            .expect("a shell");
        Self { path, keeper }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // A failure here must not hide why the test failed.
        let _ = self.keeper.wait();
    }
}
