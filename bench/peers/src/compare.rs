//! How systems are compared: each one beside the floor, in turn.

use crate::handover::on_one_thread;
use crate::report::{Line, Spread, ratios};
use crate::session::Session;
use crate::slot::{Client, Crew};
use crate::sql::{Names, Sql, Step};
use crate::{Error, Plan};
use std::sync::Arc;

pub struct Measure {
    /// The name that `only` takes, and the CSV has.
    pub name: &'static str,
    pub unit: &'static str,
    pub clients: &'static [usize],
    /// The first one is the floor of the others.
    pub systems: Vec<System>,
}

type Start = Box<dyn Fn(usize) -> Result<Crew, Error>>;

pub struct System {
    name: &'static str,
    not_promised: &'static str,
    /// Units that one call does.
    each: f64,
    /// Statements that are run before each round.
    before: &'static str,
    start: Start,
}

impl System {
    pub fn new<C: Client, F: Future<Output = Result<C, Error>>>(
        name: &'static str,
        not_promised: &'static str,
        connect: impl Fn(usize) -> F + Send + Sync + 'static,
    ) -> Self {
        let connect = Arc::new(connect);
        let start = Box::new(move |clients| Crew::start(clients, connect.clone()));
        Self { name, not_promised, each: 1.0, before: "", start }
    }

    pub fn sql(
        name: &'static str,
        not_promised: &'static str,
        names: Names,
        steps: &'static [Step],
    ) -> Self {
        Self::new(name, not_promised, move |client| Sql::connect("", steps, names, client))
    }

    /// The same where a commit does not wait for the disk.
    pub fn sql_in_memory(
        name: &'static str,
        not_promised: &'static str,
        names: Names,
        steps: &'static [Step],
    ) -> Self {
        let options = "-c synchronous_commit=off";
        Self::new(name, not_promised, move |client| Sql::connect(options, steps, names, client))
    }

    fn start(&self, clients: usize) -> Result<Crew, Error> {
        (self.start)(clients).map_err(|error| format!("{}: {error}", self.name).into())
    }

    fn prepare(&self) -> Result<(), Error> {
        if self.before.is_empty() {
            return Ok(());
        }
        on_one_thread(async { Session::connect("").await?.run(self.before).await.map(drop) })
    }

    /// Units per second.
    fn measure(&self, crew: &Crew, plan: &Plan) -> Result<f64, Error> {
        let rate = crew.measure(plan.slot);
        Ok(rate.map_err(|error| format!("{}: {error}", self.name))? * self.each)
    }

    pub fn each(self, units: f64) -> Self {
        Self { each: units, ..self }
    }

    pub fn before(self, statements: &'static str) -> Self {
        Self { before: statements, ..self }
    }
}

/// Then new connections are made: how well a client and its server sit on the processors is a matter of luck that lasts.
const ROUNDS_OF_A_CREW: usize = 2;

impl Measure {
    /// Each system beside the floor, one right after the other, and all of them in turn; for each number of clients. The first round is for caches and the
    /// compiler of a Java server, and not counted.
    pub fn run(&self, plan: &Plan, size: &str) -> Result<(), Error> {
        let Some((floor, others)) = self.systems.split_first() else {
            return Ok(());
        };
        for clients in self.clients.iter().copied() {
            let mut rates = vec![Pairs::default(); others.len()];
            let mut crews = Vec::new();
            for round in 0..=plan.rounds {
                if round % ROUNDS_OF_A_CREW == 0 {
                    crews.clear();
                    for system in &self.systems {
                        crews.push(system.start(clients)?);
                    }
                }
                self.systems.iter().try_for_each(System::prepare)?;
                let Some((floor_crew, crews)) = crews.split_first() else {
                    return Ok(());
                };
                for ((system, crew), rates) in others.iter().zip(crews).zip(&mut rates) {
                    // What changes steadily meanwhile is to nobody's favour.
                    let (own, beside) = if round % 2 == 0 {
                        let own = system.measure(crew, plan)?;
                        (own, floor.measure(floor_crew, plan)?)
                    } else {
                        let beside = floor.measure(floor_crew, plan)?;
                        (system.measure(crew, plan)?, beside)
                    };
                    if round > 0 {
                        rates.own.push(own);
                        rates.floor.push(beside);
                    }
                }
            }
            let all: Vec<f64> = rates.iter().flat_map(|rates| rates.floor.clone()).collect();
            let line = |system: &System, own: &[f64], beside: &[f64]| Line {
                measure: self.name.into(),
                size: size.into(),
                clients,
                system: system.name.into(),
                unit: self.unit.into(),
                value: Spread::of(own.into()),
                ratio: Spread::of(ratios(own, beside, false)),
                rounds: own.len(),
                beside: floor.name.into(),
                not_promised: system.not_promised.into(),
            };
            line(floor, &all, &all).print();
            for (system, rates) in others.iter().zip(&rates) {
                line(system, &rates.own, &rates.floor).print();
            }
        }
        Ok(())
    }
}

#[derive(Clone, Default)]
struct Pairs {
    own: Vec<f64>,
    floor: Vec<f64>,
}
