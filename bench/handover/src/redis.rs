//! Redis as it is usually done: SET with NX, asked again every 50 ms, and a script that deletes only what is one's own.

use crate::{Error, relay};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;
use tokio::time::sleep;

const ASK_AGAIN: Duration = Duration::from_millis(50);

const DELETE_OWN: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

pub struct Lock {
    stream: BufStream<TcpStream>,
    holder: String,
}

impl Lock {
    pub async fn connect(server: &str, number: usize) -> Result<Self, Error> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufStream::new(stream), holder: format!("client-{number}") })
    }

    /// The first line of the answer, which is all that these commands have.
    async fn call(&mut self, words: &[&str]) -> Result<String, Error> {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.stream.write_all(command.as_bytes()).await?;
        self.stream.flush().await?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).await?;
        Ok(answer.trim_end().into())
    }
}

impl relay::Lock for Lock {
    async fn acquire(&mut self) -> Result<(), Error> {
        loop {
            let holder = self.holder.clone();
            match self.call(&["SET", "handover", &holder, "NX", "PX", "30000"]).await?.as_str() {
                "+OK" => return Ok(()),
                "$-1" => sleep(ASK_AGAIN).await,
                other => return Err(format!("Redis answers {other}").into()),
            }
        }
    }

    async fn release(&mut self) -> Result<(), Error> {
        let holder = self.holder.clone();
        match self.call(&["EVAL", DELETE_OWN, "1", "handover", &holder]).await?.as_str() {
            ":1" => Ok(()),
            other => Err(format!("Redis answers {other}").into()),
        }
    }
}
