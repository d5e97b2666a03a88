mod slot_model;

use std::{collections::HashMap, sync::LazyLock, time::Instant};

use super::*;
use crate::{
    contract::inspection::tests::build_component,
    contract::limits::PluginLimits,
    kube::well_known::plugin_reason,
    plugin::{
        CallResult, CallSubject, LoadState, PluginKind,
        canary_selector::CanarySelector,
        health,
        spec::{CanaryObjects, RolledBack},
    },
    policy::{components::ComponentPolicy, grants::Grants, plugin_policy::PluginPolicy},
    sandbox::engine::{Compiled, Engine},
};

static COMPILED: LazyLock<Arc<Compiled>> = LazyLock::new(|| {
    let engine = Engine::new(1, 1 << 20, None, None).expect("an engine");
    engine
        .compile(&build_component("package", "package"), false)
        .expect("compiles")
});

fn kind(name: &str) -> PluginKind {
    PluginKind {
        gvk: Gvk::new("g", "v1", name),
        finalizer: None,
        selector: None,
        phase: false,
        namespaces: None,
        cluster: "".into(),
    }
}

fn plugin(name: &str, digest: &str, of: &str) -> Plugin {
    plugin_with_config(name, digest, of, b"{}")
}

fn plugin_with_config(name: &str, digest: &str, of: &str, config: &[u8]) -> Plugin {
    Plugin {
        policy: Arc::new(PluginPolicy {
            plugin: name.into(),
            grants: Grants::default().grants_for(name),
            config: config.to_vec(),
            limits: PluginLimits::default(),
        }),
        version: "1".into(),
        digest: digest.repeat(64),
        kinds: vec![kind(of)],
        max_concurrent: 0,
        lifecycle: false,
        messages: false,
        compiled: COMPILED.clone(),
        manifest: None,
        source: String::new(),
        notes: Vec::new(),
        preflight: None,
        suspended: false,
        health: Arc::default(),
    }
}

fn object(uid: usize) -> KubeObject {
    let json = format!(r#"{{"metadata":{{"name":"a","uid":"{uid}"}}}}"#);
    KubeObject::parse(&Gvk::new("g", "v1", "A"), json.as_bytes())
        .expect("an object")
        .1
}

/// First digit of the digest of the build that reconciles an object.
fn build_of(registry: &PluginRegistry, uid: usize) -> String {
    let found = registry.find_for_object(&Gvk::new("g", "v1", "A"), &object(uid));
    found.map(|p| p.digest[..1].to_owned()).unwrap_or_default()
}

/// So many objects trap with the build that has them; gives what was rolled back.
fn trap_objects(registry: &PluginRegistry, objects: std::ops::Range<usize>) -> Option<Rollback> {
    let mut back = None;
    for uid in objects {
        let found = registry.find_for_object(&Gvk::new("g", "v1", "A"), &object(uid));
        let build = found.expect("a build");
        let (taken, _) = registry.record_call(
            &build,
            CallSubject::Object(&Uid::from(&*uid.to_string())),
            CallResult::Trapped,
            "trapped: unreachable",
            Instant::now(),
        );
        back = back.or(taken);
    }
    back
}

/// First digits of the digests of the builds before and after a change.
fn digits_of(change: &SlotChange) -> (Option<char>, Option<char>) {
    let digit = |build: &Option<Arc<Plugin>>| build.as_ref().and_then(|build| build.digest.chars().next());
    (digit(&change.before), digit(&change.now))
}

fn weight(weight: u8) -> CanarySelector {
    let objects = CanaryObjects {
        weight: Some(weight),
        label_selector: None,
    };
    CanarySelector::new(&objects).expect("a choice")
}

#[test]
fn serve_with_taken_name_or_kind_is_refused_until_it_is_free() {
    let registry = PluginRegistry::default();
    registry
        .serve(&SlotId::file("a.wasm"), "1", plugin("a", "1", "A"), None)
        .expect("serves");
    let refused = |id: &SlotId, plugin| registry.serve(id, "1", plugin, None).err().map(|r| r.reason);
    assert_eq!(
        refused(&SlotId::file("b.wasm"), plugin("a", "2", "B")),
        Some("NameConflict")
    );
    assert_eq!(
        refused(&SlotId::file("b.wasm"), plugin("b", "2", "A")),
        Some("KindConflict")
    );
    assert_eq!(
        refused(&SlotId::object("b"), plugin("b", "2", "A")),
        Some("KindConflict")
    );
    let kept = registry
        .serve(&SlotId::file("b.wasm"), "1", plugin("b", "2", "A"), None)
        .err()
        .expect("taken");
    registry.record_refusal(&SlotId::file("b.wasm"), "1", kept);
    assert!(registry.is_current(&SlotId::file("b.wasm"), "1"));
    assert_eq!(
        registry.report(&SlotId::file("b.wasm")).expect("known").state,
        LoadState::Failed
    );
    assert!(registry.remove(&SlotId::file("a.wasm")).is_some());
    assert!(
        !registry.is_current(&SlotId::file("b.wasm"), "1"),
        "what stood back is looked at again"
    );
    registry
        .serve(&SlotId::file("b.wasm"), "1", plugin("b", "2", "A"), None)
        .expect("serves");
    assert_eq!(build_of(&registry, 1), "2");
}

#[test]
fn serve_from_object_replaces_the_file_and_refuses_others() {
    let registry = PluginRegistry::default();
    registry
        .serve(&SlotId::file("a.wasm"), "1", plugin("a", "1", "A"), None)
        .expect("serves");
    registry.reserve_name("a");
    assert_eq!(build_of(&registry, 1), "1", "until its own is ready");
    let id = SlotId::object("a");
    assert_eq!(registry.report(&id).expect("known").state, LoadState::Loading);
    let served = registry
        .serve(&id, "1", plugin("a", "2", "A"), None)
        .expect("serves");
    assert_eq!(served.before.expect("a build before").digest, "1".repeat(64));
    assert_eq!(registry.slot_ids(), std::slice::from_ref(&id));
    let other = registry.serve(&SlotId::file("other.wasm"), "1", plugin("a", "3", "A"), None);
    assert_eq!(other.err().map(|r| r.reason), Some("ManagedByPluginObject"));
    assert_eq!(build_of(&registry, 1), "2");
    // What it goes back to is the file's.
    assert!(trap_objects(&registry, 0..health::MIN_AFFECTED_OBJECTS).is_some());
    assert_eq!(build_of(&registry, 1), "1");
}

#[test]
fn trapping_build_is_rolled_back_once_with_current_policy() {
    let registry = PluginRegistry::default();
    registry
        .serve(&SlotId::file("a.wasm"), "1", plugin("a", "1", "A"), None)
        .expect("serves");
    registry
        .serve(&SlotId::file("a.wasm"), "2", plugin("a", "2", "A"), None)
        .expect("serves");
    assert_eq!(
        registry.report(&SlotId::file("a.wasm")).expect("known").last_good,
        "1".repeat(64)
    );
    assert!(trap_objects(&registry, 0..2).is_none());
    let back = trap_objects(&registry, 2..3).expect("rolled back");
    assert!(!back.canary && back.bad.digest.starts_with('2') && back.now.digest.starts_with('1'));
    let report = registry.report(&SlotId::file("a.wasm")).expect("known");
    assert_eq!((report.state, report.rolled_back), (LoadState::RolledBack, 1));
    assert!(
        report.message.contains("222222222222 was rolled back") && report.message.contains("unreachable")
    );
    assert!(
        trap_objects(&registry, 10..30).is_none(),
        "there is nothing before it"
    );
    // The same again, agreed otherwise: what serves is agreed so, too.
    let mut again = plugin("a", "2", "A");
    again.policy = Arc::new(PluginPolicy {
        plugin: "a".into(),
        grants: Grants::default().grants_for("a"),
        config: b"{}".to_vec(),
        limits: PluginLimits {
            host_calls: 7,
            ..PluginLimits::default()
        },
    });
    let served = registry
        .serve(&SlotId::file("a.wasm"), "3", again, None)
        .expect("dealt with");
    let now = served.now.expect("a build serves");
    assert_eq!((&now.digest[..1], now.policy.limits.host_calls), ("1", 7));
    assert_eq!(
        registry.report(&SlotId::file("a.wasm")).expect("known").state,
        LoadState::RolledBack
    );
    // Another configuration makes another build of it.
    let other = plugin_with_config("a", "2", "A", b"{\"a\":1}");
    registry
        .serve(&SlotId::file("a.wasm"), "4", other, None)
        .expect("serves");
    assert_eq!(build_of(&registry, 1), "2");
    assert_eq!(
        registry.report(&SlotId::file("a.wasm")).expect("known").state,
        LoadState::Serving
    );
}

/// The rollback of build 2 to build 1, as the status of a `Plugin` object records it.
fn record_rollback() -> RolledBack {
    let (registry, id) = (PluginRegistry::default(), SlotId::object("a"));
    for digest in ["1", "2"] {
        let served = registry.serve(&id, digest, plugin("a", digest, "A"), None);
        served.expect("serves");
    }
    trap_objects(&registry, 0..3).expect("rolled back");
    let record = registry.report(&id).expect("known").rollback.expect("a record");
    assert!(record.digest.starts_with('2') && record.message.contains("unreachable"));
    assert!(
        !registry
            .update_rollback_record(&id, Some(record.clone()))
            .requires_reconcile(),
        "its own record changes nothing"
    );
    assert_eq!(build_of(&registry, 1), "1");
    record
}

/// A reconcile of the object may have read it right before its deletion.
#[test]
fn record_of_a_removed_slot_reserves_no_name() {
    let (registry, id, record) = (PluginRegistry::default(), SlotId::object("a"), record_rollback());
    registry.reserve_name("a");
    registry.remove(&id);
    let change = registry.refresh_rollback_record(&id, Some(record));
    assert!(!change.requires_reconcile());
    assert!(!registry.is_reserved("a") && registry.reports().is_empty());
}

#[test]
fn build_that_another_process_has_rolled_back_is_refused() {
    let (registry, id, record) = (PluginRegistry::default(), SlotId::object("a"), record_rollback());
    let serve = |revision: &str, digest: &str| {
        let served = registry.serve(&id, revision, plugin("a", digest, "A"), None);
        let refusal = served.map(drop).inspect_err(|refusal| {
            registry.record_refusal(&id, revision, refusal.clone());
        });
        refusal.map_err(|refusal| refusal.reason)
    };
    registry.update_rollback_record(&id, Some(record.clone()));
    assert_eq!(serve("1", "2"), Err("RolledBack"));
    let report = registry.report(&id).expect("known");
    assert_eq!(
        (report.state, report.rollback),
        (LoadState::Failed, Some(record.clone()))
    );
    assert_eq!(serve("2", "2"), Err("RolledBack"), "with another policy");
    // Another build serves, and the record is over.
    assert_eq!(serve("3", "3"), Ok(()));
    assert_eq!(registry.report(&id).expect("known").rollback, None);
    registry.update_rollback_record(&id, None);
    assert_eq!(serve("4", "2"), Ok(()));
    assert_eq!(build_of(&registry, 1), "2");
}

#[test]
fn rolled_back_build_is_tried_again_without_its_record_or_with_another_config() {
    let (id, record) = (SlotId::object("a"), record_rollback());
    let registry = PluginRegistry::default();
    registry.update_rollback_record(&id, Some(record.clone()));
    let refusal = registry.serve(&id, "1", plugin("a", "2", "A"), None).err();
    registry.record_refusal(&id, "1", refusal.expect("refused"));
    assert!(registry.is_current(&id, "1"));
    registry.update_rollback_record(&id, None);
    assert!(!registry.is_current(&id, "1"), "it is loaded again");
    let served = registry.serve(&id, "1", plugin("a", "2", "A"), None);
    served.expect("serves");
    assert_eq!(build_of(&registry, 1), "2");

    let registry = PluginRegistry::default();
    registry.update_rollback_record(&id, Some(record));
    let other = plugin_with_config("a", "2", "A", b"{\"a\":1}");
    assert!(registry.serve(&id, "1", other, None).is_ok());
}

#[test]
fn previous_build_serves_in_place_of_a_recorded_one() {
    let (registry, id, mut record) = (PluginRegistry::default(), SlotId::object("a"), record_rollback());
    let source = "registry.example.org/a@sha256:1";
    record.previous_source = Some(source.into());
    registry.update_rollback_record(&id, Some(record.clone()));
    let previous_of = |digest: &str| registry.previous_source(&id, &plugin("a", digest, "A"));
    assert_eq!(
        (previous_of("2").as_deref(), previous_of("3")),
        (Some(source), None)
    );
    let refused = registry.restore_previous(&id, plugin("a", "2", "A")).err();
    assert_eq!(refused.map(|refusal| refusal.reason), Some("RolledBack"));

    let mut previous = plugin("a", "1", "A");
    previous.source = source.into();
    assert!(registry.restore_previous(&id, previous).is_ok());
    assert_eq!(previous_of("2"), None, "a build serves");
    let served = registry
        .serve(&id, "2", plugin("a", "2", "A"), None)
        .expect("kept");
    assert!(served.now.is_some_and(|now| now.digest.starts_with('1')) && registry.is_current(&id, "2"));
    let report = registry.report(&id).expect("known");
    assert_eq!(
        (report.state, report.rollback),
        (LoadState::RolledBack, Some(record))
    );
}

#[test]
fn standby_follows_the_rollback_of_the_leader() {
    let (id, record) = (SlotId::object("a"), record_rollback());
    // It has both builds.
    let registry = PluginRegistry::default();
    for digest in ["1", "2"] {
        let served = registry.serve(&id, digest, plugin("a", digest, "A"), None);
        served.expect("serves");
    }
    let change = registry.update_rollback_record(&id, Some(record.clone()));
    assert_eq!(digits_of(&change), (Some('2'), Some('1')));
    let report = registry.report(&id).expect("known");
    assert_eq!(
        (report.state, report.rollback.map(|r| r.message)),
        (LoadState::RolledBack, Some(record.message.clone()))
    );
    // It has the new build only.
    let registry = PluginRegistry::default();
    let served = registry.serve(&id, "1", plugin("a", "2", "A"), None);
    served.expect("serves");
    let change = registry.update_rollback_record(&id, Some(record));
    assert!(change.now.is_some_and(|now| now.suspended) && registry.report(&id).expect("known").stopped);
    let again = registry.serve(&id, "2", plugin("a", "2", "A"), None);
    assert_eq!(again.err().map(|refusal| refusal.reason), Some("RolledBack"));
    let other = registry.serve(&id, "3", plugin("a", "3", "A"), None);
    let now = other.ok().and_then(|served| served.now);
    assert!(now.is_some_and(|now| !now.suspended));
}

#[test]
fn undone_build_serves_after_a_rollback_and_the_bad_one_is_tried_again() {
    let (registry, id) = (PluginRegistry::default(), SlotId::file("a.wasm"));
    let serve = |revision: &str, digest: &str| {
        registry
            .serve(&id, revision, plugin("a", digest, "A"), None)
            .expect("dealt with");
        registry.report(&id).expect("known")
    };
    serve("1", "1");
    serve("2", "2");
    trap_objects(&registry, 0..3).expect("rolled back");
    let undone = serve("3", "1");
    assert_eq!(
        (undone.state, &undone.digest[..1], &*undone.message),
        (LoadState::Serving, "1", "")
    );
    let again = serve("4", "2");
    assert_eq!((again.state, &again.digest[..1]), (LoadState::Serving, "2"));
    trap_objects(&registry, 10..13).expect("rolled back again");
    let report = registry.report(&id).expect("known");
    assert_eq!((report.state, report.rolled_back), (LoadState::RolledBack, 2));
}

#[test]
fn canary_reconciles_its_share_until_rollback_or_promotion() {
    let registry = PluginRegistry::default();
    let id = SlotId::object("a");
    registry.reserve_name("a");
    let beside = registry.serve_canary(&id, "c", plugin("a", "2", "A"), weight(50));
    assert_eq!(beside.err().map(|r| r.reason), Some("PrimaryNotLoaded"));
    registry
        .serve(&id, "1", plugin("a", "1", "A"), None)
        .expect("serves");
    let differs = registry
        .serve_canary(&id, "c", plugin("a", "2", "B"), weight(50))
        .err();
    assert!(
        differs
            .expect("another kind")
            .message
            .contains("does not reconcile A.v1.g")
    );
    registry
        .serve_canary(&id, "c", plugin("a", "2", "A"), weight(50))
        .expect("serves");
    let builds = |registry: &PluginRegistry| (0..100).filter(|uid| build_of(registry, *uid) == "2").count();
    let half = builds(&registry);
    assert!((25..75).contains(&half), "{half}");
    assert!(
        registry.select_canary_objects(&id, &weight(100))
            && !registry.select_canary_objects(&id, &weight(100))
    );
    assert_eq!(builds(&registry), 100);
    registry.select_canary_objects(&id, &weight(50));
    let theirs: Vec<usize> = (0..100).filter(|uid| build_of(&registry, *uid) == "2").collect();
    for uid in &theirs[..2] {
        assert!(trap_objects(&registry, *uid..uid + 1).is_none());
    }
    let back = trap_objects(&registry, theirs[2]..theirs[2] + 1).expect("rolled back");
    assert!(back.canary && back.now.digest.starts_with('1'));
    assert_eq!(builds(&registry), 0);
    let canary = registry.report(&id).expect("known").canary.expect("a canary");
    assert_eq!((canary.state, canary.failing), (LoadState::RolledBack, 3));
    // The same is not tried again, another is.
    registry
        .serve_canary(&id, "d", plugin("a", "2", "A"), weight(50))
        .expect("dealt with");
    assert_eq!(builds(&registry), 0);
    registry
        .serve_canary(&id, "e", plugin("a", "3", "A"), weight(100))
        .expect("serves");
    assert_eq!(build_of(&registry, 1), "3");
    registry
        .serve(&id, "2", plugin("a", "3", "A"), None)
        .expect("promoted");
    assert!(registry.remove_canary(&id) && !registry.remove_canary(&id));
    assert_eq!(build_of(&registry, 1), "3");
    assert!(registry.report(&id).expect("known").canary.is_none());
}

#[test]
fn kind_that_a_build_gives_up_is_retried_for_others() {
    let registry = PluginRegistry::default();
    let both = |digest| Plugin {
        kinds: vec![kind("A"), kind("B")],
        ..plugin("a", digest, "A")
    };
    let stands_back = || {
        let taken = registry.serve(&SlotId::file("b.wasm"), "1", plugin("b", "3", "B"), None);
        registry.record_refusal(&SlotId::file("b.wasm"), "1", taken.err().expect("it is taken"));
        assert!(registry.is_current(&SlotId::file("b.wasm"), "1"));
    };
    // By a newer build.
    registry
        .serve(&SlotId::file("a.wasm"), "1", both("2"), None)
        .expect("serves");
    stands_back();
    registry
        .serve(&SlotId::file("a.wasm"), "2", plugin("a", "1", "A"), None)
        .expect("serves");
    assert!(!registry.is_current(&SlotId::file("b.wasm"), "1"));
    // By one that is taken back.
    registry
        .serve(&SlotId::file("a.wasm"), "3", both("4"), None)
        .expect("serves");
    stands_back();
    assert!(trap_objects(&registry, 0..health::MIN_AFFECTED_OBJECTS).is_some());
    assert!(!registry.is_current(&SlotId::file("b.wasm"), "1"));
}

#[test]
fn rollback_to_a_kind_taken_meanwhile_does_not_happen() {
    let registry = PluginRegistry::default();
    let both = Plugin {
        kinds: vec![kind("A"), kind("B")],
        ..plugin("a", "1", "A")
    };
    registry
        .serve(&SlotId::file("a.wasm"), "1", both, None)
        .expect("serves");
    registry
        .serve(&SlotId::file("a.wasm"), "2", plugin("a", "2", "A"), None)
        .expect("serves");
    registry
        .serve(&SlotId::file("b.wasm"), "1", plugin("b", "3", "B"), None)
        .expect("serves");
    assert!(trap_objects(&registry, 0..health::MIN_AFFECTED_OBJECTS).is_none());
    assert_eq!(build_of(&registry, 1), "2");
    let of_b = registry
        .find_by_kind(&Gvk::new("g", "v1", "B"))
        .expect("a plugin");
    assert_eq!(**of_b.name(), *"b");
}

#[test]
fn canary_is_compared_again_when_the_stable_build_changes() {
    let registry = PluginRegistry::default();
    let id = SlotId::object("a");
    registry
        .serve(&id, "1", plugin("a", "1", "A"), None)
        .expect("serves");
    registry
        .serve_canary(&id, "c", plugin("a", "2", "A"), weight(100))
        .expect("serves");
    assert_eq!(build_of(&registry, 1), "2");
    let more = Plugin {
        kinds: vec![kind("A"), kind("B")],
        ..plugin("a", "3", "A")
    };
    registry.serve(&id, "2", more, None).expect("serves");
    assert_eq!(build_of(&registry, 1), "3");
    let canary = registry.report(&id).expect("known").canary.expect("a canary");
    assert!(canary.message.contains("does not reconcile B.v1.g"), "{canary:?}");
    // It serves beside the next, and not beside one that is rolled back to.
    let change = registry.serve(&id, "3", plugin("a", "4", "A"), None);
    assert!(change.expect("serves").is_canary_changed);
    assert_eq!(build_of(&registry, 1), "2");
    registry.select_canary_objects(&id, &weight(0));
    let back = trap_objects(&registry, 0..health::MIN_AFFECTED_OBJECTS).expect("rolled back");
    assert!(back.now.digest.starts_with('3') && !back.canary);
    let canary = registry.report(&id).expect("known").canary.expect("a canary");
    assert_eq!(canary.state, LoadState::Refused);
}

#[test]
fn policy_of_an_object_binds_the_build_of_a_file() {
    let registry = PluginRegistry::default();
    registry
        .serve(&SlotId::file("a.wasm"), "1", plugin("a", "1", "A"), None)
        .expect("serves");
    let most = |host_calls| PluginLimits {
        host_calls,
        ..PluginLimits::default()
    };
    let agree = |id: &SlotId, limits| {
        let change = registry.rebind(id, &Grants::default(), &limits, false);
        change.requires_reconcile()
    };
    let now = || {
        let found = registry.find_for_object(&Gvk::new("g", "v1", "A"), &object(1));
        found.expect("a build").policy.limits.host_calls
    };
    assert!(agree(&SlotId::file("a.wasm"), most(7)));
    registry.reserve_name("a");
    assert!(agree(&SlotId::object("a"), most(9)));
    assert_eq!(now(), 9);
    assert!(
        !agree(&SlotId::file("a.wasm"), most(7)),
        "the policy of a file does not apply to a plugin with an object"
    );
    assert_eq!(now(), 9);
    // Until the object goes.
    assert!(registry.remove(&SlotId::object("a")).is_none());
    assert!(
        !registry.is_current(&SlotId::file("a.wasm"), "1"),
        "its policy must be applied again"
    );
    assert!(agree(&SlotId::file("a.wasm"), most(7)));
    registry.reserve_name("a");
    // The canary, too.
    registry
        .serve(&SlotId::object("a"), "1", plugin("a", "1", "A"), None)
        .expect("serves");
    registry
        .serve_canary(&SlotId::object("a"), "c", plugin("a", "2", "A"), weight(100))
        .expect("serves");
    agree(&SlotId::object("a"), most(5));
    assert_eq!(now(), 5);
}

/// Sets a policy of the host that revokes the builds with this digit. Returns the change of a slot.
fn revoke(registry: &PluginRegistry, id: &SlotId, digits: &[&str]) -> SlotChange {
    let policy = ComponentPolicy {
        revoked_digests: digits.iter().map(|digit| digit.repeat(64)).collect(),
        ..ComponentPolicy::default()
    };
    let changes = registry.set_component_policy(&policy);
    let change = changes.into_iter().find(|(changed, _)| changed == id);
    change.expect("a slot").1
}

#[test]
fn revoked_build_stays_suspended_until_another_is_accepted() {
    let (registry, id) = (PluginRegistry::default(), SlotId::object("a"));
    registry
        .serve(&id, "1", plugin("a", "1", "A"), None)
        .expect("serves");
    assert!(!revoke(&registry, &id, &["2"]).requires_reconcile());
    let change = revoke(&registry, &id, &["1"]);
    assert!(change.requires_reconcile() && change.stopped.len() == 1);
    assert!(change.now.expect("it is kept").suspended);
    assert!(revoke(&registry, &id, &["1"]).stopped.is_empty(), "reported once");
    // Neither a change of the grants, nor a refused build, nor the same one lets it serve again.
    registry.rebind(&id, &Grants::default(), &PluginLimits::default(), false);
    registry.record_refusal(&id, "2", LoadError::new(plugin_reason::NOT_FOUND, "none".into()));
    let again = registry.serve(&id, "3", plugin("a", "1", "A"), None);
    assert_eq!(again.err().map(|refusal| refusal.reason), Some("Revoked"));
    let report = registry.report(&id).expect("a report");
    assert_eq!(
        (report.state, &*report.reason, report.stopped),
        (LoadState::Refused, "Revoked", true)
    );
    assert!(registry.serving_in(&id).expect("it is kept").suspended);
    // It is allowed again, or there is another one.
    revoke(&registry, &id, &[]);
    assert!(!registry.serving_in(&id).expect("a build").suspended);
    revoke(&registry, &id, &["1"]);
    registry
        .serve(&id, "4", plugin("a", "2", "A"), None)
        .expect("serves");
    let report = registry.report(&id).expect("a report");
    assert_eq!((report.state, report.stopped), (LoadState::Serving, false));
    assert_eq!(
        report.last_good,
        "2".repeat(64),
        "nothing rolls back to a stopped build"
    );
    assert!(trap_objects(&registry, 0..10).is_none());
    assert_eq!(build_of(&registry, 1), "2");
}

#[test]
fn build_without_a_signature_of_now_stays_suspended_until_it_has_one() {
    let (registry, id) = (PluginRegistry::default(), SlotId::object("a"));
    registry
        .serve(&id, "1", plugin("a", "1", "A"), None)
        .expect("serves");
    let unsigned = LoadError::new(plugin_reason::INVALID_SIGNATURE, "by another key".into());
    let violations = HashMap::from([(String::new(), unsigned.clone())]);
    let is_stopped = || registry.report(&id).expect("a report").stopped;
    assert_eq!(registry.judge_signatures(&id, &violations, None).stopped.len(), 1);
    assert!(is_stopped());
    // What can't be checked stays as it was judged.
    registry.judge_signatures(&id, &HashMap::new(), Some(unsigned));
    assert!(is_stopped());
    registry.judge_signatures(&id, &HashMap::new(), None);
    assert!(!is_stopped() && !registry.serving_in(&id).expect("a build").suspended);
}

#[test]
fn rollback_never_returns_to_revoked_build_and_revoked_canary_ends() {
    let (registry, id) = (PluginRegistry::default(), SlotId::object("a"));
    for (revision, digest) in [("1", "1"), ("2", "2")] {
        registry
            .serve(&id, revision, plugin("a", digest, "A"), None)
            .expect("serves");
    }
    assert_eq!(registry.report(&id).expect("a report").last_good, "1".repeat(64));
    let change = revoke(&registry, &id, &["1"]);
    assert!(!change.requires_reconcile() && change.stopped.len() == 1);
    assert!(
        trap_objects(&registry, 0..10).is_none(),
        "there is nothing to roll back to"
    );
    assert_eq!(build_of(&registry, 1), "2");

    let (registry, id) = (PluginRegistry::default(), SlotId::object("a"));
    registry
        .serve(&id, "1", plugin("a", "1", "A"), None)
        .expect("serves");
    registry
        .serve_canary(&id, "1", plugin("a", "3", "A"), weight(100))
        .expect("serves");
    assert_eq!(build_of(&registry, 1), "3");
    assert!(revoke(&registry, &id, &["3"]).is_canary_changed);
    assert_eq!(build_of(&registry, 1), "1");
    let canary = registry.report(&id).and_then(|r| r.canary).expect("a canary");
    assert_eq!(canary.state, LoadState::Refused);
    assert!(
        canary.message.contains("is in components.revokedDigests"),
        "{}",
        canary.message
    );
}
