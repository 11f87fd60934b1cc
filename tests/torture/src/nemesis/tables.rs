//! VACUUM FULL and REINDEX of the extension's own tables, while they are in use.

use tokio_postgres::NoTls;

use super::{Diary, in_time};
use crate::dice::Dice;
use crate::history::now;
use crate::world::World;

/// How the event of one ends that came to its end.
pub const DONE: &str = "done";

const TABLES: [&str; 3] = ["lease", "lease_checkpoint", "once_key"];

/// Whether it came to its end.
pub async fn rewrite(dice: &mut Dice, world: &World, diary: &Diary) -> bool {
    let table = *dice.pick(&TABLES).expect("tables");
    let how = *dice
        .pick(&["VACUUM (FULL)", "REINDEX TABLE", "REINDEX TABLE CONCURRENTLY"])
        .expect("statements");
    let Some(server) = world.connect().await else { return false };
    // What one leaves that did not come to its end.
    let rest =
        format!("DROP INDEX IF EXISTS lock_ext.{table}_pkey_ccnew, lock_ext.{table}_pkey_ccold");
    let start = now();
    let sql = format!("{how} lock_ext.{table}");
    let cancel = server.cancel_token();
    let cleared = in_time(5, server.batch_execute(&rest)).await;
    // They wait for transactions of clients that stand still, and others wait for them: no longer than an administrator would let them.
    let done = match cleared {
        Some(_) => in_time(6, server.batch_execute(&sql)).await,
        None => None,
    };
    let end = match done {
        Some(Ok(())) => DONE.to_owned(),
        Some(Err(error)) => format!("failed: {error}"),
        None => {
            let _ = in_time(5, cancel.cancel_query(NoTls)).await;
            "cancelled".to_owned()
        }
    };
    let is_done = end == DONE;
    diary.note(start, "tables", format!("{sql}: {end}"), None);
    is_done
}
