//! Kubernetes objects and dependencies.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ostler_sdk::{
    ObjectMeta, ObjectRef, Resolution,
    mock::MockHost,
    prelude::*,
    provision::{
        Dependency, OWNER_LABEL, Resource, StepTree, serial, step, wait_for_foreground_deletion, when,
    },
    serde_json::Value,
};
use proptest::prelude::*;

use super::{Thing, call};

fn map(index: usize) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("m{index}"), "namespace": "n" } })
}

fn config_map(name: &str) -> ObjectRef {
    gvk("", "v1", "ConfigMap").named("n", name)
}

/// Objects of which some are on.
fn switched<'a>(owner: &'a ObjectMeta, on: &[bool]) -> StepTree<'a> {
    let steps = on.iter().enumerate();
    serial(
        steps
            .map(|(index, on)| when(*on, step(format!("M{index}"), Resource::new(owner, map(index)))))
            .collect(),
    )
}

fn existing(host: &MockHost, count: usize) -> Vec<bool> {
    (0..count)
        .map(|index| host.object(&config_map(&format!("m{index}"))).is_some())
        .collect()
}

proptest! {
    #[test]
    fn objects_are_those_that_are_on_after_any_history(history in prop::collection::vec(prop::collection::vec(any::<bool>(), 4), 1..5)) {
        let host = MockHost::new();
        for on in &history {
            call(&host, |ctx, thing| switched(&thing.metadata, on).provision(ctx)).expect("succeeds");
            prop_assert_eq!(&existing(&host, 4), on);
            host.forget();
            call(&host, |ctx, thing| switched(&thing.metadata, on).provision(ctx)).expect("succeeds");
            prop_assert!(host.writes().is_empty(), "the second run writes {:?}", host.writes());
        }
        for _ in 0..2 {
            call(&host, |ctx, thing| switched(&thing.metadata, &[true; 4]).deprovision(ctx)).expect("succeeds");
            prop_assert_eq!(existing(&host, 4), [false; 4]);
            let left = host.writes().len();
            host.forget();
            prop_assert!(left <= 4);
        }
        prop_assert!(host.writes().is_empty());
    }

    /// The host stops after any effect, and the next call continues.
    #[test]
    fn interrupted_run_is_continued_by_the_next(before in prop::collection::vec(any::<bool>(), 4), on in prop::collection::vec(any::<bool>(), 4), effects in 1_usize..5) {
        let host = MockHost::new();
        call(&host, |ctx, thing| switched(&thing.metadata, &before).provision(ctx)).expect("succeeds");
        host.stop_after(effects);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let provision = || call(&host, |ctx, thing| switched(&thing.metadata, &on).provision(ctx));
        let stopped = catch_unwind(AssertUnwindSafe(provision)).is_err();
        std::panic::set_hook(hook);
        let changes = before.iter().zip(&on).filter(|(before, on)| before != on).count();
        prop_assert_eq!(stopped, effects <= changes);
        host.stop_after(None);
        provision().expect("succeeds");
        prop_assert_eq!(existing(&host, 4), on);
    }
}

#[test]
fn object_that_was_never_provisioned_is_deprovisioned_without_a_write() {
    let host = MockHost::new();
    let result = call(&host, |ctx, thing| {
        switched(&thing.metadata, &[true; 3]).deprovision(ctx)
    });
    let outcome = result.expect("there is nothing to wait for");
    assert!(outcome.conditions.iter().all(|c| c.reason == "Deprovisioned"));
    assert!(host.writes().is_empty());
}

#[test]
fn object_of_another_owner_is_neither_changed_nor_deleted() {
    let host = MockHost::new();
    let mut foreign = map(0);
    foreign["data"] = json!({ "by": "another" });
    host.put(foreign.clone());
    let provision = || {
        call(&host, |ctx, thing| {
            switched(&thing.metadata, &[true, true]).provision(ctx)
        })
    };
    let failure = provision().expect_err("is refused");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Terminal, "NotOwned")
    );
    call(&host, |ctx, thing| {
        switched(&thing.metadata, &[false, false]).provision(ctx)
    })
    .expect("leaves it");
    call(&host, |ctx, thing| {
        switched(&thing.metadata, &[true, true]).deprovision(ctx)
    })
    .expect("leaves it");
    assert_eq!(host.object(&config_map("m0")), Some(foreign));
    assert!(host.writes().is_empty());

    // An object of a former Thing of the same name is foreign, too.
    let mut former = map(0);
    former["metadata"]["ownerReferences"] = json!([{ "kind": "Thing", "name": "a", "uid": "u-0" }]);
    host.put(former);
    assert_eq!(provision().expect_err("is refused").reason, "NotOwned");

    let adopt = |ctx: &Context, thing: &Thing| {
        step("M0", Resource::new(&thing.metadata, map(0)).adopt()).provision(ctx)
    };
    call(&host, adopt).expect("takes it over");
    assert_eq!(host.writes(), ["apply ConfigMap m0 owned"]);
}

#[test]
fn object_in_another_namespace_belongs_to_its_owner_by_label() {
    let host = MockHost::new();
    let mut elsewhere = map(0);
    elsewhere["metadata"]["namespace"] = "other".into();
    let reference = gvk("", "v1", "ConfigMap").named("other", "m0");
    let provision = |on: bool| {
        call(&host, |ctx, thing| {
            when(on, step("M0", Resource::new(&thing.metadata, elsewhere.clone()))).provision(ctx)
        })
    };
    provision(true).expect("succeeds");
    let applied = host.object(&reference).expect("applied");
    assert_eq!(applied["metadata"]["labels"][OWNER_LABEL], "u-1");
    assert_eq!(applied["metadata"]["ownerReferences"], Value::Null);
    provision(false).expect("succeeds");
    assert_eq!(host.writes(), ["apply ConfigMap m0", "delete ConfigMap m0"]);
}

#[test]
fn deletion_is_waited_for_until_the_object_is_gone() {
    let host = MockHost::new();
    let provision = |on| {
        call(&host, |ctx, thing| {
            switched(&thing.metadata, &[on]).provision(ctx)
        })
    };
    provision(true).expect("succeeds");
    let mut live = host.object(&config_map("m0")).expect("applied");
    live["metadata"]["uid"] = "m-uid".into();
    host.put(live);
    host.put(
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "namespace": "n",
        "ownerReferences": [{ "uid": "m-uid" }] } }),
    );
    host.forget();
    for _ in 0..2 {
        let failure = provision(false).expect_err("its dependents are there");
        assert_eq!(
            (failure.resolution, &*failure.reason),
            (Resolution::Wait, "Deprovisioning")
        );
        assert_eq!(host.writes(), ["delete ConfigMap m0"], "it is deleted once");
    }
    // Turned on again, it is made anew after it is gone, not applied to what goes.
    let failure = provision(true).expect_err("it still goes");
    assert_eq!(failure.reason, "Deprovisioning");
    assert_eq!(host.writes().len(), 1);
    host.remove(&config_map("m0"));
    provision(true).expect("succeeds");
    assert_eq!(host.writes().len(), 2);
}

#[test]
fn object_is_ready_by_its_condition_or_by_a_function() {
    let host = MockHost::new();
    let by_condition = |ctx: &Context, thing: &Thing| {
        step(
            "M0",
            Resource::new(&thing.metadata, map(0)).ready_when("Available"),
        )
        .provision(ctx)
    };
    let failure = call(&host, by_condition).expect_err("is not Available");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Wait, "Provisioning")
    );
    assert_eq!(failure.message, "M0: ConfigMap m0 is not Available yet.");
    let mut live = host.object(&config_map("m0")).expect("applied");
    live["status"] = json!({ "conditions": [{ "type": "Available", "status": "True" }], "phase": "Bound" });
    host.put(live);
    call(&host, by_condition).expect("is Available");

    let by_function = |phase: fn(&Value) -> Result<(), Failure>| {
        call(&host, move |ctx, thing| {
            step("M0", Resource::new(&thing.metadata, map(0)).ready_if(phase)).provision(ctx)
        })
    };
    by_function(|live| match live["status"]["phase"].as_str() {
        Some("Bound") => Ok(()),
        _ => Err(Failure::wait("NotBound", "")),
    })
    .expect("is Bound");
    let failure = by_function(|_| Err(Failure::terminal("Lost", ""))).expect_err("is Lost");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Terminal, "Lost")
    );
}

#[test]
fn dependency_is_held_before_it_is_ready() {
    let host = MockHost::new();
    let reference = gvk("", "v1", "ConfigMap").named("n", "m0");
    let require = |condition: Option<&'static str>| {
        call(&host, |ctx, _| {
            let dependency = Dependency::new(reference.clone()).held();
            let dependency = match condition {
                Some(condition) => dependency.ready_when(condition),
                None => dependency,
            };
            step("Dependency", dependency).provision(ctx)
        })
    };
    let wait = |condition| {
        let failure = require(condition).expect_err("waits");
        assert_eq!(failure.resolution, Resolution::Wait);
        failure.reason
    };
    assert_eq!(wait(None), "NotFound");
    assert_eq!(wait(Some("Ready")), "NotFound");
    host.put(map(0));
    assert_eq!(wait(Some("Ready")), "DependencyNotReady");
    assert_eq!(host.held(), ["ConfigMap n/m0"]);
    require(None).expect("exists");
    assert!(host.writes().is_empty(), "it is not changed");
    call(&host, |ctx, _| {
        step("D", Dependency::new(reference.clone()).held()).deprovision(ctx)
    })
    .expect("succeeds");
    assert!(host.object(&reference).is_some(), "it is not deleted");
}

#[test]
fn foreground_deletion_is_waited_for() {
    let mut metadata = ObjectMeta {
        finalizers: vec!["g/thing".into()],
        ..ObjectMeta::default()
    };
    assert_eq!(wait_for_foreground_deletion(&metadata), Ok(()));
    metadata.finalizers.push("foregroundDeletion".into());
    let failure = wait_for_foreground_deletion(&metadata).expect_err("waits");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Wait, "ForegroundDeletion")
    );
}

#[test]
fn resource_on_another_cluster_belongs_to_its_owner_by_the_mark_of_the_host() {
    let host = MockHost::new();
    let run = |host: &MockHost, is_up: bool| {
        call(host, |ctx, thing| {
            let tree = step(
                "Copied",
                Resource::new(&thing.metadata, map(0)).on_cluster("fleet/east"),
            );
            if is_up {
                tree.provision(ctx)
            } else {
                tree.deprovision(ctx)
            }
        })
    };
    run(&host, true).expect("succeeds");
    assert_eq!(host.writes(), ["apply ConfigMap m0 owned on fleet/east"]);
    let copy = config_map("m0").on_cluster("fleet/east");
    let mut live = host.object(&copy).expect("applied");
    assert_eq!(
        live["metadata"]["labels"],
        json!({ "ostler.dev/owner-uid": "u-1" })
    );
    run(&host, false).expect("succeeds");
    assert_eq!(host.object(&copy), None);

    // One without the mark belongs to somebody there, one with another mark to another owner, which the host refuses.
    for (labels, reason) in [
        (json!({}), "NotOwned"),
        (json!({ "ostler.dev/owner-uid": "u-2" }), "Conflict"),
    ] {
        live["metadata"]["labels"] = labels;
        host.put_on("fleet/east", live.clone());
        assert_eq!(run(&host, true).expect_err("is refused").reason, reason);
        run(&host, false).expect("has nothing to remove");
        assert_eq!(host.object(&copy), Some(live.clone()));
    }
}
