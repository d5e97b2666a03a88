//! Anything may happen between two calls and within one: nothing is left on the cluster at the end, and the access is not
//! revoked before that.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::world::{ProviderWorld, access_request, cluster_request};

/// An event of a provider.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The object is reconciled, or cleaned up after its deletion.
    Call,
    /// The host stops after a number of effects of the call.
    InterruptedCall(usize),
    /// openmcp grants each request.
    Grant,
    RemoveAccessRequest,
    RemoveClusterRequest,
    RemoveConfig,
    PutConfig,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Call),
        3 => (1_usize..6).prop_map(Step::InterruptedCall),
        3 => Just(Step::Grant),
        1 => Just(Step::RemoveAccessRequest),
        1 => Just(Step::RemoveClusterRequest),
        1 => Just(Step::RemoveConfig),
        1 => Just(Step::PutConfig),
    ];
    prop::collection::vec(step, 0..12)
}

fn run(world: &ProviderWorld, step: Step, is_deleted: bool) {
    let call = || {
        if is_deleted {
            world.delete().is_ok()
        } else {
            world.reconcile().is_ok()
        }
    };
    let names: Vec<_> = ["ClusterRequest", "AccessRequest"]
        .iter()
        .flat_map(|kind| world.requests(kind))
        .filter_map(|request| Some(request["metadata"]["name"].as_str()?.to_owned()))
        .collect();
    match step {
        Step::Call => {
            call();
        }
        Step::InterruptedCall(effects) => {
            world.host.stop_after(effects);
            let _ = catch_unwind(AssertUnwindSafe(call));
            world.host.stop_after(None);
            world.store_status(None);
        }
        Step::Grant => world.grant_all(),
        Step::RemoveAccessRequest => names.iter().for_each(|name| {
            world.host.remove(&access_request(name));
        }),
        Step::RemoveClusterRequest => names.iter().for_each(|name| {
            world.host.remove(&cluster_request(name));
        }),
        Step::RemoveConfig => world.remove_config(),
        Step::PutConfig => world.put_config(ostler_sdk::serde_json::json!({})),
    }
}

/// Nothing is installed where the plugin itself has revoked the access.
fn check_order(world: &ProviderWorld) -> Result<(), TestCaseError> {
    let writes = world.host.writes();
    let is_revoked = writes.iter().any(|write| {
        ["delete Cluster", "delete AccessRequest", "delete ClusterRequest"]
            .iter()
            .any(|line| write.starts_with(line))
    });
    prop_assert!(
        !is_revoked || world.copy().is_none(),
        "revoked too early: {writes:?}"
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn provider_interrupted_anywhere_leaves_nothing_behind(before in steps(), after in steps()) {
        let world = ProviderWorld::new();
        for step in before {
            run(&world, step, false);
        }
        prop_assert!(!world.host.writes().iter().any(|write| write.starts_with("delete ")), "nothing is deleted yet");
        for step in after {
            run(&world, step, true);
            check_order(&world)?;
        }
        let mut is_released = false;
        for _ in 0..8 {
            is_released = world.delete().is_ok();
            check_order(&world)?;
            if is_released {
                break;
            }
            world.grant_all();
        }
        prop_assert!(is_released, "the deletion is blocked");
        prop_assert!(world.copy().is_none(), "the copy is left");
        prop_assert!(world.is_clean(), "requests are left");
        prop_assert!(world.delete().is_ok(), "again");
    }
}
