//! The naive trigger through the same test. Where it fails is what the second check, its lock, the latest snapshot, and
//! the triggers on statements, partitions and children are for; elsewhere it is as good, or the test would be unfair.

use std::collections::BTreeSet;

use lock_ext_sessions::LEVELS;

use super::guard::Guard;
use super::scene::{Carrier, Fate, Scene};
use super::statements::{Rule, SEED, Verdict, rules};
use super::tables::Shape;

/// The statements that a naive fence can be asked for: this one is ours.
fn ordinary(shape: Shape) -> Vec<Rule> {
    rules(shape).into_iter().filter(|rule| rule.statement.name != "fenced_update").collect()
}

/// The statements that changed rows although the table says that they must not.
async fn got_through(
    shape: Shape,
    level: &'static str,
    carrier: Carrier,
    fate: Fate,
) -> BTreeSet<&'static str> {
    let scene = Scene::set(Guard::Naive, shape, carrier.has_column(), level).await;
    let wrong = scene.play(&ordinary(shape), &[fate]).await;
    wrong.iter().filter(|w| w.wrote && w.carrier == carrier).map(|w| w.statement).collect()
}

fn names(shape: Shape, which: impl Fn(&Rule) -> bool) -> BTreeSet<&'static str> {
    let all = ordinary(shape);
    let names: BTreeSet<_> =
        all.iter().filter(|rule| which(rule)).map(|rule| rule.statement.name).collect();
    assert!(!names.is_empty());
    names
}

fn changes_rows(rule: &Rule) -> bool {
    rule.statement.after != SEED
}

fn truncates(rule: &Rule) -> bool {
    rule.statement.name.starts_with("TRUNCATE")
}

/// A statement that names a child, or reaches one through its parent.
fn is_for_a_child(rule: &Rule) -> bool {
    let name = rule.statement.name;
    ["child", "levels down", "below it", "through the parent"].iter().any(|part| name.contains(part))
        // The rows that these reach are in a child.
        || name.starts_with("foreign key")
}

/// Between the statement and the commit nobody looks again.
#[tokio::test]
async fn the_naive_fence_commits_after_a_take_over() {
    for level in LEVELS {
        let fate = Fate::SupersededBeforeCommit;
        let all = names(Shape::Plain, changes_rows);
        assert_eq!(
            got_through(Shape::Plain, level, Carrier::Transaction, fate).await,
            all,
            "{level}"
        );
        let by_column =
            names(Shape::Plain, |rule| changes_rows(rule) && rule.by_column == Verdict::Yes);
        let through = got_through(Shape::Plain, level, Carrier::Column, fate).await;
        assert!(by_column.is_subset(&through), "{level}: {through:?}");
    }
}

/// An old snapshot shows the old token.
#[tokio::test]
async fn the_naive_fence_believes_an_old_snapshot() {
    for fate in [Fate::Superseded, Fate::Released] {
        for level in &LEVELS[1..] {
            let through = got_through(Shape::Plain, level, Carrier::Transaction, fate).await;
            assert_eq!(through, names(Shape::Plain, changes_rows), "{fate:?}, {level}");
        }
        // Where each query has a new one it is right, but for what row triggers are not called for.
        let through = got_through(Shape::Plain, LEVELS[0], Carrier::Transaction, fate).await;
        assert_eq!(through, names(Shape::Plain, truncates), "{fate:?}");
    }
}

/// No row trigger is called for TRUNCATE, with or without a token.
#[tokio::test]
async fn the_naive_fence_does_not_see_truncate() {
    for shape in Shape::ALL {
        for (carrier, fate) in [
            (Carrier::Nothing, Fate::Current),
            (Carrier::Transaction, Fate::Superseded),
            (Carrier::Transaction, Fate::NeverGranted),
        ] {
            let through = got_through(shape, LEVELS[0], carrier, fate).await;
            let missing: Vec<_> = names(shape, truncates).difference(&through).copied().collect();
            assert!(missing.is_empty(), "{missing:?} refused, {shape:?}, {carrier:?}, {fate:?}");
            // A partitioned table hands row triggers down, so there it is all.
            if shape != Shape::Inheritance {
                assert_eq!(through, names(shape, truncates), "{shape:?}, {carrier:?}, {fate:?}");
            }
        }
    }
}

/// Triggers are not inherited.
#[tokio::test]
async fn the_naive_fence_does_not_see_what_children_get() {
    for (carrier, fate) in
        [(Carrier::Nothing, Fate::Current), (Carrier::Transaction, Fate::Superseded)]
    {
        let through = got_through(Shape::Inheritance, LEVELS[0], carrier, fate).await;
        let children = names(Shape::Inheritance, |rule| is_for_a_child(rule) || truncates(rule));
        assert_eq!(through, children, "{carrier:?}, {fate:?}");
    }
}
