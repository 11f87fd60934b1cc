//! Every cell of the table of paths with our fence.

use lock_ext_sessions::LEVELS;

use super::guard::Guard;
use super::scene::{Fate, Scene};
use super::statements::rules;
use super::tables::Shape;

async fn as_the_table_says(shape: Shape, level: &'static str) {
    let rules = rules(shape);
    let mut wrong = Vec::new();
    for with_column in [false, true] {
        let scene = Scene::set(Guard::Ours, shape, with_column, level).await;
        wrong.extend(scene.play(&rules, &Fate::ALL).await);
    }
    let list: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "{} cells are wrong:\n{}", list.len(), list.join("\n"));
}

#[tokio::test]
async fn every_path_to_a_plain_table() {
    as_the_table_says(Shape::Plain, LEVELS[0]).await;
}

#[tokio::test]
async fn every_path_to_a_plain_table_under_repeatable_read() {
    as_the_table_says(Shape::Plain, LEVELS[1]).await;
}

#[tokio::test]
async fn every_path_to_a_plain_table_under_serializable() {
    as_the_table_says(Shape::Plain, LEVELS[2]).await;
}

#[tokio::test]
async fn every_path_to_a_partitioned_table() {
    as_the_table_says(Shape::Partitioned, LEVELS[0]).await;
}

#[tokio::test]
async fn every_path_to_a_partitioned_table_under_repeatable_read() {
    as_the_table_says(Shape::Partitioned, LEVELS[1]).await;
}

#[tokio::test]
async fn every_path_to_a_partitioned_table_under_serializable() {
    as_the_table_says(Shape::Partitioned, LEVELS[2]).await;
}

#[tokio::test]
async fn every_path_to_a_parent_and_its_children() {
    as_the_table_says(Shape::Inheritance, LEVELS[0]).await;
}

#[tokio::test]
async fn every_path_to_a_parent_and_its_children_under_repeatable_read() {
    as_the_table_says(Shape::Inheritance, LEVELS[1]).await;
}

#[tokio::test]
async fn every_path_to_a_parent_and_its_children_under_serializable() {
    as_the_table_says(Shape::Inheritance, LEVELS[2]).await;
}
