//! Regression tests: interleavings in which a wake-up was lost once, step by step.

use proptest::test_runner::TestCaseError;
use serde_json::json;

use super::{OWNER_NAMES, Reading, Step, Test, block_on};

/// A test in which everything is reconciled.
async fn settled_test(reading: Reading) -> Test {
    let mut test = Test::new(reading);
    test.run_until_idle(0).await;
    test
}

impl Test {
    /// Edits an owner and runs until its reconcile has sent a request to this path.
    async fn edit_until_request(&mut self, path: &str) {
        self.server.edit("Owner", "a", |o| o["spec"]["v"] = 51.into());
        self.catch_up(0);
        self.run_until_request(path).await;
    }

    fn edit(&mut self, kind: &str, field: &str) {
        self.server.edit(kind, "a", |o| o["spec"][field] = 100.into());
    }

    async fn settle_and_check(mut self) -> Result<(), TestCaseError> {
        self.settle().await;
        self.run_until_idle(0).await;
        self.check_final_state()
    }
}

fn scripted(script: impl Future<Output = Result<(), TestCaseError>>) {
    let tested = block_on(script);
    assert!(tested.is_ok(), "{tested:?}");
}

#[test]
fn foreign_edit_in_a_relist_with_own_status_write_wakes_the_owner() {
    scripted(async {
        let mut test = settled_test(Reading::None).await;
        test.edit_until_request("owners/a/status").await;
        test.edit("Owner", "v");
        test.serve(0);
        test.relist_watch(0);
        test.respond(0, false);
        test.settle_and_check().await
    });
}

#[test]
fn foreign_edit_seen_before_the_response_of_an_unchanged_status_write_wakes_the_owner() {
    scripted(async {
        let mut test = settled_test(Reading::None).await;
        test.edit_until_request("owners/a/status").await;
        // The response of the first write is lost, so the status is written again.
        test.respond(0, true);
        test.settle().await;
        test.run_until_request("owners/a/status").await;
        test.edit("Owner", "v");
        test.catch_up(0);
        test.respond(0, false);
        test.settle_and_check().await
    });
}

#[test]
fn foreign_edit_returned_by_a_hold_write_wakes_the_owner() {
    scripted(async {
        let mut test = settled_test(Reading::None).await;
        test.edit_until_request("owners/a").await;
        test.edit("Owner", "v");
        test.respond(0, false);
        test.settle().await;
        // The holds are written on top of the version that was read.
        test.respond(0, false);
        test.settle().await;
        test.run_until_request("owners/a/status").await;
        test.settle_and_check().await
    });
}

#[test]
fn foreign_write_hidden_by_an_own_write_in_a_relist_wakes_the_reader() {
    for answered_first in [true, false] {
        scripted(async {
            let mut test = settled_test(Reading::Full).await;
            test.edit_until_request("children/a").await;
            test.edit("Child", "others");
            test.serve(0);
            if answered_first {
                test.respond(0, false);
                test.settle().await;
            }
            test.relist_watch(1);
            test.respond(0, false);
            test.settle_and_check().await
        });
    }
}

#[test]
fn foreign_write_seen_before_the_response_of_an_unchanged_apply_wakes_the_reader() {
    scripted(async {
        let mut test = settled_test(Reading::Full).await;
        test.edit_until_request("children/a").await;
        test.respond(0, true);
        test.settle().await;
        test.catch_up(1);
        test.run_until_request("children/a").await;
        test.edit("Child", "others");
        test.catch_up(1);
        test.respond(0, false);
        test.settle_and_check().await
    });
}

#[test]
fn foreign_deletion_before_a_recreating_apply_wakes_the_reader() {
    scripted(async {
        let mut test = settled_test(Reading::Full).await;
        test.edit("Child", "others");
        test.run_until_idle(0).await;
        test.edit_until_request("children/a").await;
        test.server.delete("Child", "a");
        test.respond(0, false);
        test.settle_and_check().await
    });
}

#[test]
fn undelivered_deletion_of_a_stopped_watch_wakes_the_reader() {
    scripted(async {
        let mut test = Test::new(Reading::Metadata);
        for name in OWNER_NAMES {
            test.server.create("Child", name, json!({}));
        }
        test.run_until_idle(0).await;
        // The watch of full objects has not delivered the deletion yet when it is stopped.
        test.server.delete("Child", "b");
        test.catch_up(2);
        test.step(Step::Close, 0).await;
        test.settle_and_check().await
    });
}
