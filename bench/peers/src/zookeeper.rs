//! ZooKeeper's lock recipe: each one makes an ephemeral sequential node, and waits for the end of the one before its own. By
//! the protocol itself (jute), without the thread in between that client libraries have.

use crate::slot::Client;
use crate::{Error, relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// In milliseconds. Everybody has something to say more often, so nothing else has to keep the session alive.
const SESSION_TIMEOUT: i32 = 40_000;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_CHILDREN: i32 = 8;
const PING: i32 = 11;
const PING_NUMBER: i32 = -2;

const PERSISTENT: i32 = 0;
const EPHEMERAL_SEQUENTIAL: i32 = 3;

const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
/// The number of a message that is not an answer but an event of a watch.
const EVENT: i32 = -1;

pub struct ZooKeeper {
    directory: String,
    stream: TcpStream,
    last: i32,
    /// Events that came before the answer we waited for.
    events: usize,
    node: String,
}

impl ZooKeeper {
    pub async fn connect(server: &str, directory: &str) -> Result<Self, Error> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let directory = directory.to_string();
        let mut lock = Self { directory, stream, last: 0, events: 0, node: String::new() };
        // Protocol version, last transaction seen, timeout, session and its password: a new one.
        let mut hello = Message::default().int(0).long(0).int(SESSION_TIMEOUT).long(0);
        hello = hello.bytes(&[0; 16]);
        lock.send(&hello).await?;
        lock.receive().await?;
        match lock.create(&lock.directory.clone(), PERSISTENT).await {
            Ok(_) | Err(Refusal::Code(NODE_EXISTS)) => Ok(lock),
            Err(error) => Err(error.into()),
        }
    }

    async fn send(&mut self, message: &Message) -> Result<(), std::io::Error> {
        let length = message.0.len() as u32;
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend(&message.0);
        self.stream.write_all(&framed).await
    }

    async fn receive(&mut self) -> Result<Answer, std::io::Error> {
        let length = self.stream.read_u32().await?;
        let mut bytes = vec![0; length as usize];
        self.stream.read_exact(&mut bytes).await?;
        Ok(Answer { bytes, read: 0 })
    }

    /// The answer to a request, without its head.
    async fn ask(&mut self, operation: i32, body: Message) -> Result<Answer, Refusal> {
        self.last += 1;
        let mut request = Message::default().int(self.last).int(operation);
        request.0.extend(body.0);
        self.send(&request).await?;
        loop {
            let mut answer = self.receive().await?;
            let number = answer.int()?;
            answer.long()?;
            let code = answer.int()?;
            match (number, code) {
                (EVENT, _) => self.events += 1,
                (number, 0) if number == self.last => return Ok(answer),
                (number, code) if number == self.last => return Err(Refusal::Code(code)),
                _ => return Err(Refusal::Nonsense),
            }
        }
    }

    async fn create(&mut self, path: &str, flags: i32) -> Result<String, Refusal> {
        // One entry: all rights to everybody.
        let body = Message::default().text(path).bytes(b"").int(1).int(31);
        let body = body.text("world").text("anyone").int(flags);
        self.ask(CREATE, body).await?.text()
    }

    async fn children(&mut self) -> Result<Vec<String>, Refusal> {
        let body = Message::default().text(&self.directory).byte(0);
        let mut answer = self.ask(GET_CHILDREN, body).await?;
        let count = answer.int()?;
        (0..count).map(|_| answer.text()).collect()
    }

    async fn stand_in_line(&mut self) -> Result<(), Refusal> {
        let path = format!("{}/lock-", self.directory);
        self.node = self.create(&path, EPHEMERAL_SEQUENTIAL).await?;
        Ok(())
    }

    /// The one before ours; None if we are the first.
    async fn before(&mut self) -> Result<Option<String>, Refusal> {
        let children = self.children().await?;
        let mine = self.node.rsplit('/').next().unwrap_or_default();
        // The numbers have leading zeros.
        Ok(children.into_iter().filter(|child| child.as_str() < mine).max())
    }

    async fn delete(&mut self) -> Result<(), Refusal> {
        let delete = Message::default().text(&self.node).int(-1);
        self.ask(DELETE, delete).await.map(drop)
    }

    async fn ping(&mut self) -> Result<(), Refusal> {
        self.send(&Message::default().int(PING_NUMBER).int(PING)).await?;
        match self.receive().await?.int()? {
            PING_NUMBER => Ok(()),
            _ => Err(Refusal::Nonsense),
        }
    }

    /// Is it there? Then its end is an event.
    async fn watch(&mut self, path: &str) -> Result<bool, Refusal> {
        match self.ask(EXISTS, Message::default().text(path).byte(1)).await {
            Ok(_) => Ok(true),
            Err(Refusal::Code(NO_NODE)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn event(&mut self) -> Result<(), Refusal> {
        while self.events == 0 {
            match self.receive().await?.int()? {
                EVENT => self.events += 1,
                _ => return Err(Refusal::Nonsense),
            }
        }
        self.events -= 1;
        Ok(())
    }
}

impl relay::Lock for ZooKeeper {
    async fn acquire(&mut self) -> Result<(), Error> {
        self.stand_in_line().await?;
        while let Some(before) = self.before().await? {
            if self.watch(&format!("{}/{before}", self.directory)).await? {
                self.event().await?;
            }
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<(), Error> {
        Ok(self.delete().await?)
    }
}

/// Each client has a directory of its own.
pub struct Pair(pub ZooKeeper);

impl Client for Pair {
    async fn call(&mut self, _number: usize) -> Result<(), Error> {
        self.0.stand_in_line().await?;
        if self.0.before().await?.is_some() {
            return Err("somebody else has it".into());
        }
        Ok(self.0.delete().await?)
    }
}

/// Behind somebody, who stays.
pub struct Refused {
    asking: ZooKeeper,
    _holding: ZooKeeper,
}

impl Refused {
    pub async fn start(asking: ZooKeeper, mut holding: ZooKeeper) -> Result<Self, Error> {
        holding.stand_in_line().await?;
        Ok(Self { asking, _holding: holding })
    }
}

impl Client for Refused {
    async fn call(&mut self, _number: usize) -> Result<(), Error> {
        self.asking.stand_in_line().await?;
        if self.asking.before().await?.is_none() {
            return Err("it was free".into());
        }
        Ok(self.asking.delete().await?)
    }
}

/// Keeps the session, and all its nodes with it.
pub struct Heartbeat(pub ZooKeeper);

impl Client for Heartbeat {
    async fn call(&mut self, _number: usize) -> Result<(), Error> {
        Ok(self.0.ping().await?)
    }
}

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("ZooKeeper answers with code {0}")]
    Code(i32),
    #[error("ZooKeeper answers with something else")]
    Nonsense,
    #[error(transparent)]
    Connection(#[from] std::io::Error),
}

/// Numbers are big-endian, texts and bytes have their length before them.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn byte(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    fn int(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn long(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn bytes(self, value: &[u8]) -> Self {
        let mut message = self.int(value.len() as i32);
        message.0.extend(value);
        message
    }

    fn text(self, value: &str) -> Self {
        self.bytes(value.as_bytes())
    }
}

struct Answer {
    bytes: Vec<u8>,
    read: usize,
}

impl Answer {
    fn take(&mut self, length: usize) -> Result<&[u8], Refusal> {
        let taken = self.bytes.get(self.read..self.read + length).ok_or(Refusal::Nonsense)?;
        self.read += length;
        Ok(taken)
    }

    fn int(&mut self) -> Result<i32, Refusal> {
        let bytes = self.take(4)?.try_into().map_err(|_| Refusal::Nonsense)?;
        Ok(i32::from_be_bytes(bytes))
    }

    fn long(&mut self) -> Result<i64, Refusal> {
        let bytes = self.take(8)?.try_into().map_err(|_| Refusal::Nonsense)?;
        Ok(i64::from_be_bytes(bytes))
    }

    fn text(&mut self) -> Result<String, Refusal> {
        let length = usize::try_from(self.int()?).map_err(|_| Refusal::Nonsense)?;
        String::from_utf8(self.take(length)?.to_vec()).map_err(|_| Refusal::Nonsense)
    }
}
