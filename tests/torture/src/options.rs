use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::nemesis::Fault;
use crate::workload::Workload;

pub const USAGE: &str = "\
usage: torture [--duration 5m] [--seed N] [--out DIRECTORY] [--workloads mutex,set,...] [--faults clock,...]
               [--without-controls | --only-controls] [--careless]
       torture --check FILE

Runs clients, faults and a checker against servers of its own, then the same without the fence and with the fence that most people
write, which the checker has to find out. Writes the history of each run to a file, which --check checks again.
--careless: clients of the batch go on from what they remember, also on a server that has lost it, so that with the fault
lost-tail players can be left out.
";

pub struct Options {
    pub check: Option<PathBuf>,
    pub seconds: u64,
    pub seed: u64,
    pub out: PathBuf,
    pub workloads: Vec<Workload>,
    pub faults: Vec<Fault>,
    pub main: bool,
    pub controls: bool,
    pub careless: bool,
}

impl Options {
    pub fn of(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let mut options = Self {
            check: None,
            seconds: 300,
            seed: clock.as_nanos() as u64 % 1_000_000_000,
            out: "target/torture".into(),
            workloads: Workload::ALL.into(),
            faults: Fault::ALL.into(),
            main: true,
            controls: true,
            careless: false,
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--check" => options.check = Some(value()?.into()),
                "--duration" => options.seconds = seconds(&value()?)?,
                "--seed" => {
                    options.seed = value()?.parse().map_err(|error| format!("--seed: {error}"))?;
                }
                "--out" => options.out = value()?.into(),
                "--workloads" => {
                    options.workloads = several(&value()?, &Workload::ALL, |one| one.name())?;
                }
                "--faults" => options.faults = several(&value()?, &Fault::ALL, |one| one.name())?,
                "--without-controls" => options.controls = false,
                "--careless" => options.careless = true,
                "--only-controls" => options.main = false,
                _ => return Err(format!("{arg:?} is no option")),
            }
        }
        Ok(options)
    }
}

fn seconds(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let number: u64 = number.parse().map_err(|error| format!("{text}: {error}"))?;
    match unit {
        "" | "s" => Ok(number),
        "m" => Ok(number * 60),
        "h" => Ok(number * 3_600),
        _ => Err(format!("{text:?} is no time: 90s, 5m, 1h")),
    }
}

fn several<T: Copy>(text: &str, all: &[T], name: fn(T) -> &'static str) -> Result<Vec<T>, String> {
    let find = |wanted: &str| {
        let one = all.iter().copied().find(|&one| name(one) == wanted);
        one.ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|&one| name(one)).collect();
            format!("{wanted:?} is none of {}", names.join(", "))
        })
    };
    text.split(',').filter(|part| !part.is_empty()).map(find).collect()
}
