use std::sync::LazyLock;

use super::*;
use crate::{
    contract::inspection::tests::component,
    contract::limits::Limits,
    plugin::{Kind, health, spec::CanaryObjects},
    policy::{grants::Grants, plugin_policy::Terms},
    sandbox::engine::{Compiled, Engine},
};

static COMPILED: LazyLock<Arc<Compiled>> = LazyLock::new(|| {
    let engine = Engine::new(1, 1 << 20, None, None).expect("an engine");
    Arc::new(
        engine
            .compile(&component("package", "package"), false)
            .expect("compiles"),
    )
});

fn kind(name: &str) -> Kind {
    Kind {
        gvk: Gvk::new("g", "v1", name),
        finalizer: None,
        selector: None,
        phase: false,
    }
}

fn plugin(name: &str, digest: &str, of: &str) -> Plugin {
    Plugin {
        terms: Arc::new(Terms {
            plugin: name.into(),
            grants: Grants::default().of(name),
            config: b"{}".to_vec(),
            limits: Limits::default(),
        }),
        version: "1".into(),
        digest: digest.repeat(64),
        kinds: vec![kind(of)],
        max_concurrent: 0,
        lifecycle: false,
        compiled: COMPILED.clone(),
        manifest: None,
        source: String::new(),
        notes: Vec::new(),
        probe: None,
        suspended: false,
        record: Arc::default(),
    }
}

fn object(uid: usize) -> Object {
    let json = format!(r#"{{"metadata":{{"name":"a","uid":"{uid}"}}}}"#);
    Object::parse(&Gvk::new("g", "v1", "A"), json.as_bytes())
        .expect("an object")
        .1
}

/// Which build has an object.
fn of(registry: &Registry, uid: usize) -> String {
    let found = registry.of_object(&Gvk::new("g", "v1", "A"), &object(uid));
    found.map(|p| p.digest[..1].to_owned()).unwrap_or_default()
}

/// So many objects trap with the build that has them; gives what was taken back.
fn trap(registry: &Registry, objects: std::ops::Range<usize>) -> Option<Back> {
    let mut back = None;
    for uid in objects {
        let found = registry.of_object(&Gvk::new("g", "v1", "A"), &object(uid));
        let build = found.expect("a build");
        let (taken, _) = registry.ended(
            &build,
            &uid.to_string(),
            Ending::Trapped,
            "trapped: unreachable",
            Instant::now(),
        );
        back = back.or(taken);
    }
    back
}

fn share(share: u8) -> Choice {
    let objects = CanaryObjects {
        share: Some(share),
        selector: None,
    };
    Choice::new(&objects).expect("a choice")
}

#[test]
fn names_and_kinds_are_taken_and_free_again() {
    let registry = Registry::default();
    registry
        .serve("a.wasm", "1", plugin("a", "1", "A"), None)
        .expect("serves");
    let refused = |id: &str, plugin| registry.serve(id, "1", plugin, None).err().map(|r| r.reason);
    assert_eq!(refused("b.wasm", plugin("a", "2", "B")), Some("NameTaken"));
    assert_eq!(refused("b.wasm", plugin("b", "2", "A")), Some("KindTaken"));
    assert_eq!(refused(&of_object("b"), plugin("b", "2", "A")), Some("KindTaken"));
    let kept = registry
        .serve("b.wasm", "1", plugin("b", "2", "A"), None)
        .err()
        .expect("taken");
    registry.refuse("b.wasm", "1", kept);
    assert!(registry.knows("b.wasm", "1"));
    assert_eq!(registry.report("b.wasm").expect("known").state, "failed");
    assert!(registry.remove("a.wasm").is_some());
    assert!(
        !registry.knows("b.wasm", "1"),
        "what stood back is looked at again"
    );
    registry
        .serve("b.wasm", "1", plugin("b", "2", "A"), None)
        .expect("serves");
    assert_eq!(of(&registry, 1), "2");
}

#[test]
fn an_object_takes_the_place_of_a_file_and_keeps_others_out() {
    let registry = Registry::default();
    registry
        .serve("a.wasm", "1", plugin("a", "1", "A"), None)
        .expect("serves");
    registry.govern("a");
    assert_eq!(of(&registry, 1), "1", "until its own is ready");
    let id = of_object("a");
    assert_eq!(registry.report(&id).expect("known").state, "loading");
    let served = registry
        .serve(&id, "1", plugin("a", "2", "A"), None)
        .expect("serves");
    assert_eq!(served.before.expect("a build before").digest, "1".repeat(64));
    assert_eq!(registry.slots(), std::slice::from_ref(&id));
    let other = registry.serve("other.wasm", "1", plugin("a", "3", "A"), None);
    assert_eq!(other.err().map(|r| r.reason), Some("Governed"));
    assert_eq!(of(&registry, 1), "2");
    // What it goes back to is the file's.
    assert!(trap(&registry, 0..health::OBJECTS).is_some());
    assert_eq!(of(&registry, 1), "1");
}

#[test]
fn a_build_goes_back_once_and_under_what_is_agreed_now() {
    let registry = Registry::default();
    registry
        .serve("a.wasm", "1", plugin("a", "1", "A"), None)
        .expect("serves");
    registry
        .serve("a.wasm", "2", plugin("a", "2", "A"), None)
        .expect("serves");
    assert_eq!(
        registry.report("a.wasm").expect("known").last_good,
        "1".repeat(64)
    );
    assert!(trap(&registry, 0..2).is_none());
    let back = trap(&registry, 2..3).expect("taken back");
    assert!(!back.canary && back.bad.digest.starts_with('2') && back.now.digest.starts_with('1'));
    let report = registry.report("a.wasm").expect("known");
    assert_eq!((report.state, report.rolled_back), ("rolled-back", 1));
    assert!(report.message.contains("222222222222 was taken back") && report.message.contains("unreachable"));
    assert!(trap(&registry, 10..30).is_none(), "there is nothing before it");
    // The same again, agreed otherwise: what serves is agreed so, too.
    let mut again = plugin("a", "2", "A");
    again.terms = Arc::new(Terms {
        plugin: "a".into(),
        grants: Grants::default().of("a"),
        config: b"{}".to_vec(),
        limits: Limits {
            host_calls: 7,
            ..Limits::default()
        },
    });
    let served = registry.serve("a.wasm", "3", again, None).expect("dealt with");
    assert_eq!(
        (&served.now.digest[..1], served.now.terms.limits.host_calls),
        ("1", 7)
    );
    assert_eq!(registry.report("a.wasm").expect("known").state, "rolled-back");
    // Another configuration makes another build of it.
    let mut other = plugin("a", "2", "A");
    other.terms = Arc::new(Terms {
        plugin: "a".into(),
        grants: Grants::default().of("a"),
        config: b"{\"a\":1}".to_vec(),
        limits: Limits::default(),
    });
    registry.serve("a.wasm", "4", other, None).expect("serves");
    assert_eq!(of(&registry, 1), "2");
    assert_eq!(registry.report("a.wasm").expect("known").state, "serving");
}

#[test]
fn a_canary_has_its_share_goes_back_and_is_promoted() {
    let registry = Registry::default();
    let id = of_object("a");
    registry.govern("a");
    let beside = registry.serve_canary(&id, "c", plugin("a", "2", "A"), share(50));
    assert_eq!(beside.err().map(|r| r.reason), Some("NothingBeside"));
    registry
        .serve(&id, "1", plugin("a", "1", "A"), None)
        .expect("serves");
    let differs = registry
        .serve_canary(&id, "c", plugin("a", "2", "B"), share(50))
        .err();
    assert!(
        differs
            .expect("another kind")
            .message
            .contains("does not reconcile A.v1.g")
    );
    registry
        .serve_canary(&id, "c", plugin("a", "2", "A"), share(50))
        .expect("serves");
    let builds = |registry: &Registry| (0..100).filter(|uid| of(registry, *uid) == "2").count();
    let half = builds(&registry);
    assert!((25..75).contains(&half), "{half}");
    assert!(registry.choose(&id, &share(100)) && !registry.choose(&id, &share(100)));
    assert_eq!(builds(&registry), 100);
    registry.choose(&id, &share(50));
    let theirs: Vec<usize> = (0..100).filter(|uid| of(&registry, *uid) == "2").collect();
    for uid in &theirs[..2] {
        assert!(trap(&registry, *uid..uid + 1).is_none());
    }
    let back = trap(&registry, theirs[2]..theirs[2] + 1).expect("taken back");
    assert!(back.canary && back.now.digest.starts_with('1'));
    assert_eq!(builds(&registry), 0);
    let canary = registry.report(&id).expect("known").canary.expect("a canary");
    assert_eq!((&*canary.state, canary.failing), ("RolledBack", 3));
    // The same is not tried again, another is.
    registry
        .serve_canary(&id, "d", plugin("a", "2", "A"), share(50))
        .expect("dealt with");
    assert_eq!(builds(&registry), 0);
    registry
        .serve_canary(&id, "e", plugin("a", "3", "A"), share(100))
        .expect("serves");
    assert_eq!(of(&registry, 1), "3");
    registry
        .serve(&id, "2", plugin("a", "3", "A"), None)
        .expect("promoted");
    assert!(registry.drop_canary(&id) && !registry.drop_canary(&id));
    assert_eq!(of(&registry, 1), "3");
    assert!(registry.report(&id).expect("known").canary.is_none());
}

#[test]
fn what_a_build_leaves_to_others_is_theirs_at_once() {
    let registry = Registry::default();
    let both = || Plugin {
        kinds: vec![kind("A"), kind("B")],
        ..plugin("a", "2", "A")
    };
    let stands_back = || {
        let taken = registry.serve("b.wasm", "1", plugin("b", "3", "B"), None);
        registry.refuse("b.wasm", "1", taken.err().expect("it is taken"));
        assert!(registry.knows("b.wasm", "1"));
    };
    // By a newer build.
    registry.serve("a.wasm", "1", both(), None).expect("serves");
    stands_back();
    registry
        .serve("a.wasm", "2", plugin("a", "1", "A"), None)
        .expect("serves");
    assert!(!registry.knows("b.wasm", "1"));
    // By one that is taken back.
    registry.serve("a.wasm", "3", both(), None).expect("serves");
    stands_back();
    assert!(trap(&registry, 0..health::OBJECTS).is_some());
    assert!(!registry.knows("b.wasm", "1"));
}

#[test]
fn nothing_goes_back_to_a_kind_that_another_has_by_now() {
    let registry = Registry::default();
    let both = Plugin {
        kinds: vec![kind("A"), kind("B")],
        ..plugin("a", "1", "A")
    };
    registry.serve("a.wasm", "1", both, None).expect("serves");
    registry
        .serve("a.wasm", "2", plugin("a", "2", "A"), None)
        .expect("serves");
    registry
        .serve("b.wasm", "1", plugin("b", "3", "B"), None)
        .expect("serves");
    assert!(trap(&registry, 0..health::OBJECTS).is_none());
    assert_eq!(of(&registry, 1), "2");
    let of_b = registry.of_kind(&Gvk::new("g", "v1", "B")).expect("a plugin");
    assert_eq!(**of_b.name(), *"b");
}

#[test]
fn a_canary_is_held_against_what_is_beside_it_now() {
    let registry = Registry::default();
    let id = of_object("a");
    registry
        .serve(&id, "1", plugin("a", "1", "A"), None)
        .expect("serves");
    registry
        .serve_canary(&id, "c", plugin("a", "2", "A"), share(100))
        .expect("serves");
    assert_eq!(of(&registry, 1), "2");
    let more = Plugin {
        kinds: vec![kind("A"), kind("B")],
        ..plugin("a", "3", "A")
    };
    registry.serve(&id, "2", more, None).expect("serves");
    assert_eq!(of(&registry, 1), "3");
    let canary = registry.report(&id).expect("known").canary.expect("a canary");
    assert!(canary.message.contains("does not reconcile B.v1.g"), "{canary:?}");
    // It may do beside the next.
    registry.refuse_canary(
        &id,
        "c",
        share(100),
        Some(Refusal::new(CANARY_DIFFERS, String::new())),
    );
    assert!(registry.knows_canary(&id, "c"));
    registry
        .serve(&id, "3", plugin("a", "4", "A"), None)
        .expect("serves");
    assert!(!registry.knows_canary(&id, "c"));
    // And beside one that is gone back to.
    registry.refuse_canary(
        &id,
        "c",
        share(100),
        Some(Refusal::new(CANARY_DIFFERS, String::new())),
    );
    assert!(trap(&registry, 0..health::OBJECTS).is_some());
    assert!(!registry.knows_canary(&id, "c"));
}

#[test]
fn an_object_binds_what_a_file_has_brought() {
    let registry = Registry::default();
    registry
        .serve("a.wasm", "1", plugin("a", "1", "A"), None)
        .expect("serves");
    let most = |host_calls| Limits {
        host_calls,
        ..Limits::default()
    };
    let agree = |id: &str, limits| registry.agree(id, &Grants::default(), &limits, false).is_some();
    let now = || {
        let found = registry.of_object(&Gvk::new("g", "v1", "A"), &object(1));
        found.expect("a build").terms.limits.host_calls
    };
    assert!(agree("a.wasm", most(7)));
    registry.govern("a");
    assert!(agree(&of_object("a"), most(9)));
    assert_eq!(now(), 9);
    assert!(!agree("a.wasm", most(7)), "a file has no say in it any more");
    assert_eq!(now(), 9);
    // Until the object goes.
    assert!(registry.remove(&of_object("a")).is_none());
    assert!(!registry.knows("a.wasm", "1"), "it is agreed anew");
    assert!(agree("a.wasm", most(7)));
    registry.govern("a");
    // The canary, too.
    registry
        .serve(&of_object("a"), "1", plugin("a", "1", "A"), None)
        .expect("serves");
    registry
        .serve_canary(&of_object("a"), "c", plugin("a", "2", "A"), share(100))
        .expect("serves");
    agree(&of_object("a"), most(5));
    assert_eq!(now(), 5);
}
