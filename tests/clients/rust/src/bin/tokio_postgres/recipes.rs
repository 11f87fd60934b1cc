//! The programs of the recipe page, frozen, superseded and cut off.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_ext_clients::{LEASE, Outcome, Stack, check, same};
use tokio::time::timeout;

use crate::cron::pay_rewards;
use crate::leader::{campaign, lead, prices};
use crate::lease::{Failure, acquire, connect};
use crate::once::give_once;
use crate::{PAY, config, fenced};

const BERLIN: &str = "(now() AT TIME ZONE 'Europe/Berlin')::date";
const EACH: &str = "SELECT string_agg(coins::text, ' ') FROM player";

/// Nobody has the job, and it was done until so many days ago.
fn days_ago(stack: &Stack, days: i32) -> Outcome {
    stack.reset()?;
    stack
        .admin(&format!(
            "SELECT lease_checkpoint(name, token, jsonb_build_object('paid', {BERLIN} - {days})), lease_release(name, token)
             FROM (SELECT 'daily-reward' AS name, lease_acquire('daily-reward', 'yesterday', '1 s') AS token) AS lease"
        ))
        .map(drop)
}

async fn paid(node: &str) -> Result<String, Failure> {
    timeout(Duration::from_secs(15), pay_rewards(&config(), node)).await?
}

/// Two days were missed, and the job dies in the third payment. Another node pays what is left, once.
pub async fn job(stack: &Stack) -> Outcome {
    days_ago(stack, 3)?;
    stack.admin(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN IF OLD.coins = 200 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END';
         CREATE TRIGGER die BEFORE UPDATE ON player FOR EACH ROW EXECUTE FUNCTION die()",
    )?;
    let lost = paid("node-1").await?;
    stack.admin("DROP FUNCTION die CASCADE")?;
    check(lost.starts_with("lost: token "), lost)?;
    same("before the expiry", paid("node-2").await?, "somebody else has it")?;
    stack.admin("SELECT lease_force_release('daily-reward')")?;
    // The session's time zone, where it is another day, does not move it.
    let elsewhere = stack.admin(&format!(
        "SELECT name FROM (VALUES ('Pacific/Kiritimati'), ('Pacific/Pago_Pago')) AS zone (name)
         WHERE (now() AT TIME ZONE name)::date <> {BERLIN} LIMIT 1"
    ))?;
    let mut far = config();
    far.options(format!("-c timezone={elsewhere}"));
    same("after it", pay_rewards(&far, "node-2").await?, "done")?;
    same("once more", paid("node-2").await?, "done already for today")?;
    same("coins", stack.admin(EACH)?, "300 300 300")?;
    let until = stack.admin(&format!(
        "SELECT completed_until = ({BERLIN} + 1)::timestamp AT TIME ZONE 'Europe/Berlin'
         FROM lease_status WHERE name = 'daily-reward'"
    ))?;
    same("until midnight there", until, "t")
}

/// It has written, has not committed, and does nothing any more: its locks do not stop the next one.
pub async fn frozen_predecessor(stack: &Stack) -> Outcome {
    days_ago(stack, 1)?;
    let mut frozen = connect(&config()).await?;
    let token = acquire(&frozen, LEASE, "frozen", Duration::from_secs(60)).await?;
    let tx = fenced(&mut frozen, token.ok_or("not granted")?).await?;
    tx.execute(PAY, &[]).await?;
    stack.admin("SELECT lease_force_release('daily-reward')")?;
    same("the successor", paid("node-2").await?, "done")?;
    check(tx.commit().await.is_err(), "the predecessor's COMMIT")?;
    same("coins", stack.admin(EACH)?, "100 100 100")
}

/// The lease goes to another node in the middle: that is an answer, and no error.
pub async fn lost_job(stack: &Stack) -> Outcome {
    days_ago(stack, 1)?;
    let mut blocker = connect(&config()).await?;
    let tx = blocker.transaction().await?;
    tx.batch_execute("LOCK TABLE player").await?;
    let paying = tokio::spawn(async { paid("node-1").await });
    stack.until(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE player%'",
        "1",
    )?;
    stack.take_over()?;
    tx.rollback().await?;
    let lost = paying.await??;
    let detail = lost.contains("was granted later");
    check(lost.starts_with("lost: token ") && detail, lost)?;
    same("coins", stack.admin(EACH)?, "0 0 0")?;
    same("a third one", paid("node-3").await?, "somebody else has it")
}

pub async fn once(stack: &Stack) -> Outcome {
    stack.admin("INSERT INTO gift VALUES (1, 0); SELECT once_forget('0 s')")?;
    for first in [true, false] {
        same("the first one", give_once(&mut connect(&config()).await?).await?, first)?;
    }
    same("coins", stack.admin("SELECT coins FROM gift")?, "100")
}

pub async fn leader(stack: &Stack) -> Outcome {
    let ttl = Duration::from_millis(1500);
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&tokens);
    let leading = tokio::spawn(campaign(config(), "node-1", ttl, move |token| {
        seen.lock().unwrap().push(token);
        let round = seen.lock().unwrap().len() as i32;
        async move {
            let source = async { if round % 2 == 0 { Ok(round) } else { Err("503".into()) } };
            prices(&config(), ttl, token, source).await
        }
    }));
    let terms = || {
        let mut terms: Vec<i64> = tokens.lock().unwrap().clone();
        terms.dedup();
        terms
    };
    let eventually = async |otherwise: &str, holds: &dyn Fn() -> bool| {
        for _ in 0..400 {
            if holds() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        check(false, otherwise)
    };
    // It leads for longer than the time to live, whatever its source says.
    eventually("it does not work", &|| tokens.lock().unwrap().len() > 15).await?;
    same("terms", terms().len(), 1)?;
    same("price", stack.admin("SELECT count(*) FROM price")?, "1")?;

    // The lease is taken away, and it comes back under a token of its own.
    stack.admin("SELECT lease_force_release('scheduler')")?;
    eventually("it has not come back", &|| terms().len() > 1).await?;

    // No answer comes any more on the connection of its work alone. The heartbeat does not keep the lease for it.
    let mut blocker = connect(&config()).await?;
    let tx = blocker.transaction().await?;
    tx.batch_execute("LOCK TABLE price").await?;
    let take_over = "SELECT lease_acquire('scheduler', 'node-2', '30 s') IS NOT NULL";
    eventually("a leader that does nothing keeps the lease", &|| {
        stack.admin(take_over).is_ok_and(|taken| taken == "t")
    })
    .await?;
    tx.rollback().await?;
    let late = "SELECT max(token) = (SELECT max(token) FROM lease_status) FROM price";
    same("a price under the token of node-2", stack.admin(late)?, "f")?;
    leading.abort();

    // A term that ends with an error of its work is released at once.
    stack.admin("SELECT lease_force_release('scheduler')")?;
    let mut enough = async |_| Err("enough".into());
    let ended = lead(&config(), "node-1", Duration::from_secs(30), &mut enough).await;
    check(ended.is_err(), "the term went on")?;
    same(
        "after the term",
        stack.admin("SELECT state FROM lease_status WHERE name = 'scheduler'")?,
        "free",
    )
}
