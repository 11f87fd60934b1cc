//! The primary is lost with its machine, and its standby is promoted. All clients go to the new one.
//!
//! With quorum commit nothing that was acknowledged may be lost. Without, and with a standby that has been cut off for a while, the last
//! moments are lost with the server; which commits these were is read from the old server, which is started once more for that, alone.

use super::Diary;
use crate::commits;
use crate::dice::Dice;
use crate::history::{Effect, now};
use crate::world::World;

/// Whether it did what it was to do: a tail that is to be lost has something in it.
pub async fn fail_over(dice: &mut Dice, world: &mut World, diary: &Diary, lost_tail: bool) -> bool {
    let mut cut_off = String::new();
    if lost_tail {
        let time = dice.millis(800, 3_000);
        world.quorum(None).await;
        world.cut_standby_off().await;
        tokio::time::sleep(time).await;
        cut_off = format!(", its standby cut off for {} ms", time.as_millis());
    }
    let start = now();
    world.server().crash().await;
    let dead = now();
    // From here on nobody is answered: who comes before the new one is ready is turned away.
    world.proxy.close();
    let fork = world.promote().await;
    let server = world.connect_surely().await;
    commits::begin(&server).await;
    let old = world.replace().await;
    let to = world.number();
    world.proxy.open(world.server().dir());
    let effect = Effect::FailOver { to, dead, lost_tail };
    diary.note(
        start,
        if lost_tail { "lost-tail" } else { "fail-over" },
        format!("to server {to}{cut_off}"),
        Some(effect),
    );
    let lost = world.bury(old, fork).await;
    !lost_tail || lost > 0
}
