//! A client of PostgreSQL whose call is one or several statements.

use crate::Error;
use crate::growth::Share;
use crate::session::{Answer, Prepared, Session};
use crate::slot::Client;

/// Statements that are sent in one go, with their arguments, and what the last answer must be.
pub struct Step(pub &'static [(&'static str, &'static [Arg])], pub Wanted);

#[derive(Clone, Copy)]
pub enum Arg {
    /// A name of the client's, another one for each call.
    Name,
    /// The token of that name.
    Token,
    /// The first value of the answer before.
    Answer,
    /// All names and tokens of the client, as arrays.
    Names,
    Tokens,
    /// The token of the lease `held`.
    HeldToken,
}

#[derive(Clone, Copy)]
pub enum Wanted {
    Anything,
    Value,
    Null,
    True,
    Tag(&'static str),
}

/// Which names a client calls for.
#[derive(Clone, Copy)]
pub enum Names {
    /// Free ones.
    Jobs,
    /// The leases that it holds, with their tokens.
    Tenures,
    /// The same, where every token is 1.
    Ones,
    /// Of the table that grows.
    Growing(Share),
}

pub struct Sql {
    session: Session,
    steps: Vec<(Vec<Prepared>, &'static Step)>,
    names: Vec<String>,
    tokens: Vec<String>,
    /// Both as arrays.
    arrays: [String; 2],
    held_token: String,
}

const JOBS: usize = 16;

impl Sql {
    pub async fn connect(
        options: &str,
        steps: &'static [Step],
        names: Names,
        number: usize,
    ) -> Result<Self, Error> {
        let mut session = Session::connect(options).await?;
        let mut prepared = Vec::new();
        for step in steps {
            let mut statements = Vec::new();
            for (statement, _) in step.0 {
                statements.push(session.prepare(statement).await?);
            }
            prepared.push((statements, step));
        }
        let held = "SELECT token FROM lock_ext.lease WHERE name = 'held'";
        let held_token = session.run(held).await?.value().unwrap_or_default().into();
        let (names, tokens) = match names {
            Names::Jobs => {
                let names = (0..JOBS).map(|i| format!("job-{number}-{i}")).collect();
                (names, vec![String::new(); JOBS])
            }
            Names::Growing(share) => share.of(number),
            Names::Tenures => tenures(&mut session, number).await?,
            Names::Ones => {
                let (names, _) = tenures(&mut session, number).await?;
                let ones = vec!["1".into(); names.len()];
                (names, ones)
            }
        };
        let arrays = [&names, &tokens].map(|list| format!("{{{}}}", list.join(",")));
        Ok(Self { session, steps: prepared, names, tokens, arrays, held_token })
    }
}

async fn tenures(
    session: &mut Session,
    number: usize,
) -> Result<(Vec<String>, Vec<String>), Error> {
    let tenure = format!("SELECT names, tokens FROM tenure WHERE client = {number}");
    let answer = session.run(&tenure).await?;
    let list = |column: usize| -> Option<Vec<String>> {
        Some(answer.row.get(column)?.as_ref()?.split(',').map(String::from).collect())
    };
    Ok(list(0).zip(list(1)).ok_or("the client holds nothing")?)
}

impl Client for Sql {
    async fn call(&mut self, number: usize) -> Result<(), Error> {
        let place = number % self.names.len();
        let mut answer = Answer::default();
        for (prepared, step) in &self.steps {
            for (prepared, (_, args)) in prepared.iter().zip(step.0) {
                let values: Vec<&str> = args
                    .iter()
                    .map(|arg| match arg {
                        Arg::Name => &self.names[place],
                        Arg::Token => &self.tokens[place],
                        Arg::Answer => answer.value().unwrap_or_default(),
                        Arg::Names => &self.arrays[0],
                        Arg::Tokens => &self.arrays[1],
                        Arg::HeldToken => &self.held_token,
                    })
                    .collect();
                self.session.add(*prepared, &values)?;
            }
            answer = self.session.send().await?;
            let is_right = match step.1 {
                Wanted::Anything => true,
                Wanted::Value => answer.value().is_some(),
                Wanted::Null => answer.value().is_none(),
                Wanted::True => answer.value() == Some("t"),
                Wanted::Tag(tag) => answer.tag == tag,
            };
            if !is_right {
                let statement = step.0.last().map(|(text, _)| *text).unwrap_or_default();
                return Err(format!("{statement}: {:?}, {}", answer.value(), answer.tag).into());
            }
        }
        Ok(())
    }
}
