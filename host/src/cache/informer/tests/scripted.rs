//! What was lost once, step by step.

use proptest::test_runner::TestCaseError;
use serde_json::json;

use super::{NAMES, Reading, Test, What, block_on};

/// A world where all is well.
async fn well(reading: Reading) -> Test {
    let mut test = Test::new(reading);
    test.end(0).await;
    test
}

impl Test {
    /// Somebody has edited an owner, and its reconcile has sent a request to this path.
    async fn asking(&mut self, path: &str) {
        self.server.edit("Owner", "a", |o| o["spec"]["v"] = 51.into());
        self.catch_up(0);
        self.until(path).await;
    }

    fn edit(&mut self, kind: &str, field: &str) {
        self.server.edit(kind, "a", |o| o["spec"][field] = 100.into());
    }

    async fn ends_well(mut self) -> Result<(), TestCaseError> {
        self.settle().await;
        self.end(0).await;
        self.check()
    }
}

fn scripted(script: impl Future<Output = Result<(), TestCaseError>>) {
    let tested = block_on(script);
    assert!(tested.is_ok(), "{tested:?}");
}

#[test]
fn an_edit_that_a_list_shows_together_with_an_own_status_is_not_taken_for_an_echo() {
    scripted(async {
        let mut test = well(Reading::None).await;
        test.asking("owners/a/status").await;
        test.edit("Owner", "v");
        test.serve(0);
        test.list(0);
        test.answer(0, false);
        test.ends_well().await
    });
}

#[test]
fn nor_is_one_that_the_watch_told_before_the_answer_to_a_status_write_that_changed_nothing() {
    scripted(async {
        let mut test = well(Reading::None).await;
        test.asking("owners/a/status").await;
        // It is written, and nobody knows: it is written again.
        test.answer(0, true);
        test.settle().await;
        test.until("owners/a/status").await;
        test.edit("Owner", "v");
        test.catch_up(0);
        test.answer(0, false);
        test.ends_well().await
    });
}

#[test]
fn an_edit_that_is_read_while_the_holds_are_written_is_news() {
    scripted(async {
        let mut test = well(Reading::None).await;
        test.asking("owners/a").await;
        test.edit("Owner", "v");
        test.answer(0, false);
        test.settle().await;
        // What is held is written over what was read.
        test.answer(0, false);
        test.settle().await;
        test.until("owners/a/status").await;
        test.ends_well().await
    });
}

#[test]
fn what_others_wrote_before_an_own_write_is_told_though_a_list_shows_the_last_version_alone() {
    for answered_first in [true, false] {
        scripted(async {
            let mut test = well(Reading::Full).await;
            test.asking("children/a").await;
            test.edit("Child", "others");
            test.serve(0);
            if answered_first {
                test.answer(0, false);
                test.settle().await;
            }
            test.list(1);
            test.answer(0, false);
            test.ends_well().await
        });
    }
}

#[test]
fn what_others_wrote_is_told_where_an_apply_changed_nothing() {
    scripted(async {
        let mut test = well(Reading::Full).await;
        test.asking("children/a").await;
        test.answer(0, true);
        test.settle().await;
        test.catch_up(1);
        test.until("children/a").await;
        test.edit("Child", "others");
        test.catch_up(1);
        test.answer(0, false);
        test.ends_well().await
    });
}

#[test]
fn what_an_own_write_made_anew_was_deleted_by_somebody() {
    scripted(async {
        let mut test = well(Reading::Full).await;
        test.edit("Child", "others");
        test.end(0).await;
        test.asking("children/a").await;
        test.server.delete("Child", "a");
        test.answer(0, false);
        test.ends_well().await
    });
}

#[test]
fn what_a_watch_that_is_let_go_was_to_tell_is_told() {
    scripted(async {
        let mut test = Test::new(Reading::Metadata);
        for name in NAMES {
            test.server.make("Child", name, json!({}));
        }
        test.end(0).await;
        // It is one of those that are watched whole, and that watch is behind.
        test.server.delete("Child", "b");
        test.catch_up(2);
        test.step(What::Close, 0).await;
        test.ends_well().await
    });
}
