//! A session of PostgreSQL that sends prepared statements and waits for their answers, and does nothing else: the client runs on the same
//! processors as the server, so what it costs hides what the server costs.

use crate::Error;
use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::IsNull;
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use std::env;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

pub struct Session {
    stream: UnixStream,
    output: BytesMut,
    input: BytesMut,
    prepared: usize,
}

/// A statement that the session has prepared.
#[derive(Clone, Copy)]
pub struct Prepared(usize);

/// What came back for what was sent together: of the last row of all, and of the last statement.
#[derive(Default)]
pub struct Answer {
    pub row: Vec<Option<String>>,
    pub tag: String,
}

impl Answer {
    pub fn value(&self) -> Option<&str> {
        self.row.first()?.as_deref()
    }
}

impl Session {
    /// With settings as in `PGOPTIONS`, by the socket in the directory that `PGHOST` names.
    pub async fn connect(options: &str) -> Result<Self, Error> {
        let setting = |name, default: &str| env::var(name).unwrap_or_else(|_| default.into());
        let (host, port) = (setting("PGHOST", "/var/run/postgresql"), setting("PGPORT", "5432"));
        let stream = UnixStream::connect(format!("{host}/.s.PGSQL.{port}")).await?;
        let (output, input) = (BytesMut::new(), BytesMut::with_capacity(1 << 16));
        let mut session = Self { stream, output, input, prepared: 0 };
        let user = setting("PGUSER", "postgres");
        let database = setting("PGDATABASE", "postgres");
        let parameters = [
            ("user", user.as_str()),
            ("database", &database),
            ("options", options),
            ("application_name", "peers"),
            ("client_encoding", "UTF8"),
        ];
        frontend::startup_message(parameters, &mut session.output)?;
        session.answer().await?;
        Ok(session)
    }

    /// Any statements, one after the other.
    pub async fn run(&mut self, statements: &str) -> Result<Answer, Error> {
        frontend::query(statements, &mut self.output)?;
        self.answer().await
    }

    pub async fn prepare(&mut self, statement: &str) -> Result<Prepared, Error> {
        let prepared = Prepared(self.prepared);
        self.prepared += 1;
        frontend::parse(&prepared.name(), statement, [], &mut self.output)?;
        frontend::sync(&mut self.output);
        self.answer().await.map_err(|error| format!("{statement}: {error}"))?;
        Ok(prepared)
    }

    /// For the next [`Session::send`]. Values are sent as texts.
    pub fn add(&mut self, statement: Prepared, values: &[&str]) -> Result<(), Error> {
        let put = |value: &str, output: &mut BytesMut| {
            output.extend_from_slice(value.as_bytes());
            Ok(IsNull::No)
        };
        frontend::bind(
            "",
            &statement.name(),
            [],
            values.iter().copied(),
            put,
            [],
            &mut self.output,
        )
        .map_err(|_| "the values cannot be sent")?;
        frontend::execute("", 0, &mut self.output)?;
        Ok(())
    }

    /// What was added, in one go, and waits for all of the answers.
    pub async fn send(&mut self) -> Result<Answer, Error> {
        frontend::sync(&mut self.output);
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Answer, Error> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        let (mut answer, mut refusal) = (Answer::default(), None);
        loop {
            let Some(message) = Message::parse(&mut self.input)? else {
                if self.stream.read_buf(&mut self.input).await? == 0 {
                    return Err("the server has closed the connection".into());
                }
                continue;
            };
            match message {
                Message::AuthenticationCleartextPassword
                | Message::AuthenticationMd5Password(_)
                | Message::AuthenticationSasl(_) => {
                    return Err("only trusted connections are made here".into());
                }
                Message::DataRow(row) => {
                    let bytes = row.buffer();
                    let text = |range: std::ops::Range<usize>| {
                        String::from_utf8_lossy(&bytes[range]).into_owned()
                    };
                    answer.row = row.ranges().map(|range| Ok(range.map(text))).collect()?;
                }
                Message::CommandComplete(body) => answer.tag = body.tag()?.into(),
                Message::ErrorResponse(body) => {
                    let fields: Vec<String> = body
                        .fields()
                        .filter(|field| Ok(matches!(field.type_(), b'C' | b'M')))
                        .map(|field| Ok(String::from_utf8_lossy(field.value_bytes()).into_owned()))
                        .collect()?;
                    refusal = Some(fields.join(": "));
                }
                Message::ReadyForQuery(_) => {
                    return refusal.map_or(Ok(answer), |refusal| Err(refusal.into()));
                }
                _ => {}
            }
        }
    }
}

impl Prepared {
    fn name(self) -> String {
        format!("s{}", self.0)
    }
}
