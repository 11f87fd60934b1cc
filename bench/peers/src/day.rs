//! A day of heartbeats on one row, one every ten seconds, without the ten seconds; with autovacuum looking every second. Once by itself, and once beside
//! a transaction that is open all day, so that no version of the row may be removed.

use crate::handover::on_one_thread;
use crate::measures::FLOOR;
use crate::report::{Line, Spread, ratios};
use crate::session::Session;
use crate::{Error, Plan};
use std::time::Instant;

const HEARTBEATS: usize = 8_640;
const PARTS: usize = 10;

pub fn run(plan: &Plan) -> Result<(), Error> {
    on_one_thread(async {
        let mut db = Session::connect("").await?;
        db.run("ALTER SYSTEM SET autovacuum_naptime = '1s'").await?;
        db.run("SELECT pg_reload_conf()").await?;
        day(plan, "day", &mut db).await?;
        let mut old = Session::connect("").await?;
        // With a number of its own, it is what keeps old versions, also when it is idle.
        old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()").await?;
        day(plan, "day_old_transaction", &mut db).await?;
        old.run("ROLLBACK").await?;
        Ok(())
    })
}

async fn day(plan: &Plan, measure: &str, db: &mut Session) -> Result<(), Error> {
    db.run("VACUUM FULL lock_ext.lease").await?;
    db.run("VACUUM FULL bare").await?;
    let token = db.run("SELECT token FROM lock_ext.lease WHERE name = 'day'").await?;
    let token: i64 = token.value().ok_or("nobody holds the lease")?.parse()?;
    let extend = db.prepare(&format!("SELECT lease_extend('day', {token})")).await?;
    let update = db
        .prepare("UPDATE bare SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + '1 d' WHERE name = 'day' AND token = 1")
        .await?;
    report_size(measure, "0", db).await?;
    for part in 1..=PARTS {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..plan.rounds {
            for (statement, times) in [update, extend].into_iter().zip(&mut times) {
                let calls = HEARTBEATS / PARTS / plan.rounds;
                let began = Instant::now();
                for _ in 0..calls {
                    db.add(statement, &[])?;
                    db.send().await?;
                }
                times.push(began.elapsed().as_secs_f64() * 1e3 / calls as f64);
            }
        }
        let [floor, ours] = &times;
        for (system, times, not_promised) in
            [("bare UPDATE", floor, FLOOR), ("lease_extend", ours, "")]
        {
            let line = Line {
                measure: measure.into(),
                size: part.to_string(),
                clients: 1,
                system: system.into(),
                unit: "ms".into(),
                value: Spread::of(times.clone()),
                ratio: Spread::of(ratios(times, floor, true)),
                rounds: plan.rounds,
                beside: "bare UPDATE".into(),
                not_promised: not_promised.into(),
            };
            line.print();
        }
    }
    report_size(measure, &PARTS.to_string(), db).await
}

/// Of the table and its index, in pages.
async fn report_size(measure: &str, size: &str, db: &mut Session) -> Result<(), Error> {
    for (system, table) in
        [("lock_ext.lease", "lock_ext.lease"), ("table of the bare UPDATE", "bare")]
    {
        for (unit, relation) in
            [("pages", table.to_string()), ("pages of the index", format!("{table}_pkey"))]
        {
            let pages = format!("SELECT pg_relation_size('{relation}') / 8192");
            let pages: f64 = db.run(&pages).await?.value().unwrap_or_default().parse()?;
            let one = Spread::of(vec![1.0]);
            let line = Line {
                measure: measure.into(),
                size: size.into(),
                clients: 1,
                system: system.into(),
                unit: unit.into(),
                value: Spread::of(vec![pages]),
                ratio: one,
                rounds: 1,
                beside: String::new(),
                not_promised: String::new(),
            };
            line.print();
        }
    }
    Ok(())
}
