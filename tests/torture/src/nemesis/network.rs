//! The network between clients and server: a proxy of ours. A connection can stand still, come to life again, be reset, or lose what the
//! server says from some moment on while the server still hears the client.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

use super::Diary;
use crate::dice::Dice;
use crate::history::now;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Flows,
    /// Nothing gets through, and nobody is told.
    Still,
    /// The server's answers are lost.
    Deaf,
    Cut,
}

pub struct Proxy {
    port: u16,
    /// The socket of the server, if there is one.
    target: Mutex<Option<PathBuf>>,
    wires: Mutex<BTreeMap<u64, watch::Sender<State>>>,
}

impl Proxy {
    pub async fn new() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let proxy = Arc::new(Self { port, target: Mutex::default(), wires: Mutex::default() });
        let accepting = proxy.clone();
        tokio::spawn(async move {
            for number in 0.. {
                let Ok((client, _)) = listener.accept().await else { continue };
                tokio::spawn(accepting.clone().carry(number, client));
            }
        });
        proxy
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn open(&self, directory: &Path) {
        *self.target.lock().expect("nobody panics here") = Some(directory.join(".s.PGSQL.5432"));
    }

    /// Of the server that clients come to.
    pub fn directory(&self) -> Option<PathBuf> {
        let target = self.target.lock().expect("nobody panics here").clone()?;
        target.parent().map(Path::to_owned)
    }

    /// Ends all connections, and takes none.
    pub fn close(&self) {
        *self.target.lock().expect("nobody panics here") = None;
        for wire in self.wires.lock().expect("nobody panics here").values() {
            wire.send_replace(State::Cut);
        }
    }

    async fn carry(self: Arc<Self>, number: u64, client: TcpStream) {
        let target = self.target.lock().expect("nobody panics here").clone();
        let Some(target) = target else { return };
        let Ok(server) = UnixStream::connect(target).await else { return };
        let _ = client.set_nodelay(true);
        let (tell, state) = watch::channel(State::Flows);
        self.wires.lock().expect("nobody panics here").insert(number, tell);
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        // When one side ends, so does the other: both halves are dropped.
        tokio::select! {
            () = pass(&mut from_client, &mut to_server, state.clone(), false) => {}
            () = pass(&mut from_server, &mut to_client, state.clone(), true) => {}
            () = until_cut(state) => {}
        }
        self.wires.lock().expect("nobody panics here").remove(&number);
    }

    fn set(&self, numbers: &[u64], state: State) {
        let wires = self.wires.lock().expect("nobody panics here");
        for wire in numbers.iter().filter_map(|number| wires.get(number)) {
            // Who is cut stays so.
            wire.send_if_modified(|now| {
                let changes = *now != State::Cut && *now != state;
                if changes {
                    *now = state;
                }
                changes
            });
        }
    }
}

async fn until_cut(mut state: watch::Receiver<State>) {
    let _ = state.wait_for(|state| *state == State::Cut).await;
}

async fn pass(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut state: watch::Receiver<State>,
    is_answer: bool,
) {
    let mut bytes = vec![0; 16_384];
    loop {
        let Ok(count @ 1..) = from.read(&mut bytes).await else { return };
        // What was on its way when the wire went still arrives when it comes to life.
        if state.wait_for(|state| *state != State::Still).await.is_err() {
            return;
        }
        let lost = is_answer && *state.borrow() == State::Deaf;
        if !lost && to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// Some connections, for a while.
pub async fn cut(dice: &mut Dice, proxy: &Proxy, diary: &Diary) {
    let all: Vec<u64> = proxy.wires.lock().expect("nobody panics here").keys().copied().collect();
    let share = 2 + dice.below(6);
    let some: Vec<u64> = all.into_iter().filter(|_| dice.one_in(share)).collect();
    if some.is_empty() {
        return;
    }
    let start = now();
    let (state, after) = *dice
        .pick(&[
            (State::Still, State::Flows),
            (State::Still, State::Cut),
            (State::Deaf, State::Cut),
            (State::Deaf, State::Cut),
            (State::Cut, State::Cut),
        ])
        .expect("ways");
    proxy.set(&some, state);
    if state != State::Cut {
        tokio::time::sleep(dice.millis(200, 4_000)).await;
    }
    proxy.set(&some, after);
    diary.note(
        start,
        "network",
        format!("{} connections: {state:?}, then {after:?}", some.len()),
        None,
    );
}
