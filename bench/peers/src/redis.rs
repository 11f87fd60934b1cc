//! Redis as it is usually done: SET with NX and a time to live, and scripts that delete or renew only what is one's own. By its
//! unix socket, as PostgreSQL.

use crate::slot::Client;
use crate::{Error, relay};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
use tokio::net::UnixStream;
use tokio::time::sleep;

const ASK_AGAIN: Duration = Duration::from_millis(50);

const DELETE_OWN: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const RENEW_OWN: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

/// In milliseconds.
const SHORT: &str = "30000";
const LONG: &str = "86400000";

pub struct Redis {
    stream: BufStream<UnixStream>,
    holder: String,
    renew_own: String,
    delete_own: String,
}

impl Redis {
    pub async fn connect(socket: &str, number: usize) -> Result<Self, Error> {
        let stream = BufStream::new(UnixStream::connect(socket).await?);
        let holder = format!("client-{number}");
        let mut redis =
            Self { stream, holder, renew_own: String::new(), delete_own: String::new() };
        redis.renew_own = redis.load(RENEW_OWN).await?;
        redis.delete_own = redis.load(DELETE_OWN).await?;
        Ok(redis)
    }

    /// The number of a script.
    async fn load(&mut self, script: &str) -> Result<String, Error> {
        self.put(&["SCRIPT", "LOAD", script]).await?;
        self.stream.flush().await?;
        self.line().await?;
        self.line().await
    }

    async fn put(&mut self, words: &[&str]) -> Result<(), Error> {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        Ok(self.stream.write_all(command.as_bytes()).await?)
    }

    async fn line(&mut self) -> Result<String, Error> {
        let mut answer = String::new();
        if self.stream.read_line(&mut answer).await? == 0 {
            return Err("Redis has closed the connection".into());
        }
        Ok(answer.trim_end().into())
    }

    /// The first line of the answer, which is all that these commands have.
    async fn ask(&mut self, words: &[&str]) -> Result<String, Error> {
        self.put(words).await?;
        self.stream.flush().await?;
        self.line().await
    }

    async fn set(&mut self, name: &str, time_to_live: &str) -> Result<bool, Error> {
        let holder = self.holder.clone();
        match self.ask(&["SET", name, &holder, "NX", "PX", time_to_live]).await?.as_str() {
            "+OK" => Ok(true),
            "$-1" => Ok(false),
            other => Err(format!("Redis answers {other}").into()),
        }
    }

    async fn delete(&mut self, name: &str) -> Result<(), Error> {
        let (script, holder) = (self.delete_own.clone(), self.holder.clone());
        match self.ask(&["EVALSHA", &script, "1", name, &holder]).await?.as_str() {
            ":1" => Ok(()),
            other => Err(format!("Redis answers {other}").into()),
        }
    }

    /// All in one go.
    async fn renew(&mut self, names: &[String]) -> Result<(), Error> {
        let (script, holder) = (self.renew_own.clone(), self.holder.clone());
        for name in names {
            self.put(&["EVALSHA", &script, "1", name, &holder, LONG]).await?;
        }
        self.stream.flush().await?;
        for _ in names {
            match self.line().await?.as_str() {
                ":1" => {}
                other => return Err(format!("Redis answers {other}").into()),
            }
        }
        Ok(())
    }
}

impl relay::Lock for Redis {
    async fn acquire(&mut self) -> Result<(), Error> {
        while !self.set("handover", SHORT).await? {
            sleep(ASK_AGAIN).await;
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.delete("handover").await
    }
}

pub struct Pair(pub Redis);

impl Client for Pair {
    async fn call(&mut self, _number: usize) -> Result<(), Error> {
        let name = format!("job-{}", self.0.holder);
        if !self.0.set(&name, SHORT).await? {
            return Err("somebody else has it".into());
        }
        self.0.delete(&name).await
    }
}

/// A thousand keys, renewed one by one or all in one go.
pub struct Heartbeat {
    redis: Redis,
    names: Vec<String>,
    at_once: usize,
}

impl Heartbeat {
    pub async fn start(mut redis: Redis, at_once: usize) -> Result<Self, Error> {
        let names: Vec<String> = (0..1000).map(|i| format!("beat-{}-{i}", redis.holder)).collect();
        for name in &names {
            let holder = redis.holder.clone();
            redis.put(&["SET", name, &holder, "PX", LONG]).await?;
        }
        redis.stream.flush().await?;
        for _ in &names {
            redis.line().await?;
        }
        Ok(Self { redis, names, at_once })
    }
}

impl Client for Heartbeat {
    async fn call(&mut self, number: usize) -> Result<(), Error> {
        let from = number * self.at_once % self.names.len();
        self.redis.renew(&self.names[from..from + self.at_once]).await
    }
}

pub struct Refused(Redis);

impl Refused {
    pub async fn start(mut redis: Redis) -> Result<Self, Error> {
        redis.set("held", LONG).await?;
        Ok(Self(redis))
    }
}

impl Client for Refused {
    async fn call(&mut self, _number: usize) -> Result<(), Error> {
        if self.0.set("held", LONG).await? { Err("it was free".into()) } else { Ok(()) }
    }
}
