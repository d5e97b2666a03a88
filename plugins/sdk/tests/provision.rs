//! The composition of steps: order, precedence of failures, idempotence, interruption at any effect.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
};

use ostler_sdk::{
    ConditionStatus, Next, ObjectMeta, ObjectRef, Resolution,
    mock::Host,
    prelude::*,
    provision::{
        Dependency, HelmApplication, HelmDriver, OWNER_LABEL, Provision, Resource, StepTree, concurrent,
        read_argo_health, read_flux_health, serial, step, wait_for_foreground_deletion, when,
    },
    serde_json::Value,
};
use proptest::prelude::*;

/// A thing that is composed of steps.
#[ostler_sdk::resource(group = "g", version = "v1", kind = "Thing", namespaced)]
struct ThingSpec {}

/// A reconciler that calls a function, once for each test.
struct Call<F>(F);

impl<F: Fn(&Context, &Thing) -> Result<Outcome, Failure>> Reconciler for Call<F> {
    type Spec = ThingSpec;

    fn reconcile(&self, ctx: &Context, thing: &Thing) -> Result<Outcome, Failure> {
        (self.0)(ctx, thing)
    }
}

fn thing() -> Value {
    json!({ "metadata": { "name": "a", "namespace": "n", "uid": "u-1" }, "spec": {} })
}

fn call(host: &Host, run: impl Fn(&Context, &Thing) -> Result<Outcome, Failure>) -> Result<Outcome, Failure> {
    host.reconcile(&Call(run), &thing())
}

/// Result of a part.
#[derive(Clone, Debug, PartialEq)]
enum End {
    Done,
    Fails(Resolution),
}

impl End {
    fn rank(&self) -> u8 {
        match self {
            End::Done => 0,
            End::Fails(Resolution::Wait) => 1,
            End::Fails(Resolution::Retry) => 2,
            End::Fails(Resolution::Throttled(_)) => 3,
            End::Fails(Resolution::Denied(_)) => 4,
            End::Fails(Resolution::Terminal) => 5,
        }
    }
}

/// A part that records its calls and ends as it is told to.
struct Part<'a> {
    name: String,
    end: End,
    calls: &'a RefCell<Vec<String>>,
}

impl Part<'_> {
    fn record(&self, sign: &str) -> Result<(), Failure> {
        self.calls.borrow_mut().push(format!("{sign}{}", self.name));
        match &self.end {
            End::Done => Ok(()),
            End::Fails(resolution) => Err(Failure {
                resolution: resolution.clone(),
                ..Failure::wait("Because", format!("{} fails.", self.name))
            }),
        }
    }
}

impl Provision for Part<'_> {
    fn provision(&self, _: &Context) -> Result<(), Failure> {
        self.record("+")
    }

    fn deprovision(&self, _: &Context) -> Result<(), Failure> {
        self.record("-")
    }
}

/// Shape of a tree; a step has the index of its name.
#[derive(Clone, Debug)]
enum Shape {
    Step(usize, End),
    Serial(Vec<Shape>),
    Concurrent(Vec<Shape>),
    When(bool, Box<Shape>),
}

use Shape::{Concurrent, Serial, Step, When};

impl Shape {
    fn build<'a>(&self, calls: &'a RefCell<Vec<String>>) -> StepTree<'a> {
        match self {
            Step(index, end) => {
                let name = format!("S{index}");
                let part = Part {
                    name: name.clone(),
                    end: end.clone(),
                    calls,
                };
                step(name, part)
            }
            Serial(shapes) => serial(shapes.iter().map(|shape| shape.build(calls)).collect()),
            Concurrent(shapes) => concurrent(shapes.iter().map(|shape| shape.build(calls)).collect()),
            When(condition, shape) => when(*condition, shape.build(calls)),
        }
    }

    fn number(&mut self, next: &mut usize) {
        match self {
            Step(index, _) => {
                *index = *next;
                *next += 1;
            }
            Serial(shapes) | Concurrent(shapes) => shapes.iter_mut().for_each(|shape| shape.number(next)),
            When(_, shape) => shape.number(next),
        }
    }

    fn steps(&self) -> Vec<(usize, End)> {
        match self {
            Step(index, end) => vec![(*index, end.clone())],
            Serial(shapes) | Concurrent(shapes) => shapes.iter().flat_map(Shape::steps).collect(),
            When(_, shape) => shape.steps(),
        }
    }

    fn has_run(&self, calls: &[String]) -> bool {
        let ran = |index: usize| calls.iter().any(|call| call[1..] == format!("S{index}"));
        self.steps().iter().any(|(index, _)| ran(*index))
    }

    /// Returns whether all of its steps have run, and have succeeded.
    fn has_succeeded(&self, calls: &[String]) -> bool {
        let steps = self.steps();
        let ran = |index: usize| calls.iter().any(|call| call[1..] == format!("S{index}"));
        steps.iter().all(|(index, end)| *end == End::Done && ran(*index))
    }

    /// Checks the order within each composition, and the direction of each step.
    fn check(&self, calls: &[String], provisions: bool) {
        match self {
            Step(index, _) => {
                let wrong = format!("{}S{index}", if provisions { "-" } else { "+" });
                assert!(!calls.contains(&wrong), "{calls:?} has {wrong}");
            }
            When(condition, shape) => shape.check(calls, provisions && *condition),
            Concurrent(shapes) => {
                if self.has_run(calls) {
                    let left_out = shapes.iter().find(|s| !s.steps().is_empty() && !s.has_run(calls));
                    assert!(left_out.is_none(), "{calls:?} is without {left_out:?}");
                }
                shapes.iter().for_each(|shape| shape.check(calls, provisions));
            }
            Serial(shapes) => {
                let mut ordered: Vec<&Shape> = shapes.iter().filter(|s| !s.steps().is_empty()).collect();
                if !provisions {
                    ordered.reverse();
                }
                for pair in ordered.windows(2) {
                    assert!(
                        !pair[1].has_run(calls) || pair[0].has_succeeded(calls),
                        "{calls:?}"
                    );
                    assert!(
                        !pair[0].has_succeeded(calls) || pair[1].has_run(calls),
                        "{calls:?}"
                    );
                }
                shapes.iter().for_each(|shape| shape.check(calls, provisions));
            }
        }
    }
}

fn run(shape: &Shape, provisions: bool) -> (Vec<String>, Result<Outcome, Failure>) {
    let calls = RefCell::new(Vec::new());
    let result = call(&Host::new(), |ctx, _| {
        let tree = shape.build(&calls);
        if provisions {
            tree.provision(ctx)
        } else {
            tree.deprovision(ctx)
        }
    });
    (calls.into_inner(), result)
}

fn ends() -> impl Strategy<Value = End> {
    prop_oneof![
        4 => Just(End::Done),
        1 => Just(End::Fails(Resolution::Wait)),
        1 => Just(End::Fails(Resolution::Retry)),
        1 => (1_u64..9).prop_map(|ms| End::Fails(Resolution::Throttled(ms))),
        1 => Just(End::Fails(Resolution::Denied("a grant".into()))),
        1 => Just(End::Fails(Resolution::Terminal)),
    ]
}

fn shapes(end: impl Strategy<Value = End> + 'static) -> impl Strategy<Value = Shape> {
    let leaf = end.prop_map(|end| Step(0, end));
    let tree = leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Serial),
            prop::collection::vec(inner.clone(), 0..4).prop_map(Concurrent),
            (any::<bool>(), inner).prop_map(|(condition, shape)| When(condition, Box::new(shape))),
        ]
    });
    tree.prop_map(|mut shape| {
        shape.number(&mut 0);
        shape
    })
}

proptest! {
    #[test]
    fn steps_run_in_the_order_of_their_composition(shape in shapes(ends()), provisions: bool) {
        let (calls, _) = run(&shape, provisions);
        let mut once = calls.clone();
        once.sort();
        once.dedup();
        prop_assert_eq!(once.len(), calls.len(), "a step runs once");
        shape.check(&calls, provisions);
    }

    #[test]
    fn failures_are_merged_by_precedence(shape in shapes(ends()), provisions: bool) {
        let (calls, result) = run(&shape, provisions);
        let ran = |index: usize| calls.iter().find(|call| call[1..] == format!("S{index}"));
        let steps = shape.steps();
        let ended: Vec<_> = steps.iter().filter(|(index, _)| ran(*index).is_some()).collect();
        let highest = ended.iter().map(|(_, end)| end.rank()).max().unwrap_or(0);
        let (conditions, resolution) = match &result {
            Ok(outcome) => (&outcome.conditions, End::Done),
            Err(failure) => (&failure.conditions, End::Fails(failure.resolution.clone())),
        };
        prop_assert_eq!(resolution.rank(), highest);
        prop_assert_eq!(result.is_ok(), shape.has_succeeded(&calls));
        let longest = ended.iter().filter_map(|(_, end)| match end {
            End::Fails(Resolution::Throttled(ms)) => Some(*ms),
            _ => None,
        });
        if let End::Fails(Resolution::Throttled(ms)) = resolution {
            prop_assert_eq!(Some(ms), longest.max());
        }
        if let Err(failure) = &result {
            for (index, end) in &ended {
                let named = failure.message.contains(&format!("S{index}: S{index} fails."));
                prop_assert_eq!(named, end.rank() == highest, "{}", failure.message);
            }
        }
        // One condition per step, in the order of the tree.
        prop_assert_eq!(conditions.len(), steps.len());
        for ((index, end), condition) in steps.iter().zip(conditions) {
            prop_assert_eq!(&condition.type_, &format!("S{index}"));
            let expected = match (ran(*index), end) {
                (None, _) => (ConditionStatus::Unknown, "Pending"),
                (Some(call), End::Done) if call.starts_with('+') => (ConditionStatus::True, "Provisioned"),
                (Some(_), End::Done) => (ConditionStatus::False, "Deprovisioned"),
                (Some(_), End::Fails(_)) => (ConditionStatus::False, "Because"),
            };
            prop_assert_eq!((condition.status, &*condition.reason), expected);
        }
    }

    #[test]
    fn deprovision_is_the_reverse_of_provision(shape in shapes(Just(End::Done))) {
        let (up, _) = run(&shape, true);
        let (down, result) = run(&shape, false);
        prop_assert_eq!(result.expect("succeeds").next, Next::AwaitChange);
        let name = |call: &String| call[1..].to_owned();
        // Without the steps that are off: those are deprovisioned in both directions.
        let on: Vec<String> = up.iter().filter(|call| call.starts_with('+')).map(name).collect();
        let reversed: Vec<String> = down.iter().rev().map(name).filter(|name| on.contains(name)).collect();
        prop_assert_eq!(on, reversed);
        prop_assert!(down.iter().all(|call| call.starts_with('-')));
    }
}

#[test]
fn failure_of_a_step_is_shown_beside_a_wait() {
    let wait = || End::Fails(Resolution::Wait);
    let terminal = || End::Fails(Resolution::Terminal);
    let retry = || End::Fails(Resolution::Retry);
    // The ends of concurrent steps, and which of them takes precedence.
    let table = [
        (vec![End::Done, wait()], Resolution::Wait, "S1: S1 fails."),
        (vec![wait(), terminal()], Resolution::Terminal, "S1: S1 fails."),
        (vec![terminal(), wait()], Resolution::Terminal, "S0: S0 fails."),
        (vec![retry(), wait()], Resolution::Retry, "S0: S0 fails."),
        (
            vec![wait(), retry(), terminal()],
            Resolution::Terminal,
            "S2: S2 fails.",
        ),
        (
            vec![wait(), wait()],
            Resolution::Wait,
            "S0: S0 fails. S1: S1 fails.",
        ),
    ];
    for (ends, resolution, message) in table {
        let steps = ends
            .iter()
            .cloned()
            .enumerate()
            .map(|(index, end)| Step(index, end));
        let (calls, result) = run(&Concurrent(steps.collect()), true);
        let failure = result.expect_err("fails");
        assert_eq!((failure.resolution, &*failure.message), (resolution, message));
        assert_eq!(calls.len(), ends.len(), "all run");
    }
}

#[test]
fn step_with_a_used_or_reserved_name_is_refused_before_any_runs() {
    for names in [
        ["A", "A"],
        ["A", "Ready"],
        ["", "A"],
        ["A", "Stalled"],
        ["Reconciling", "A"],
    ] {
        let calls = RefCell::new(Vec::new());
        let result = call(&Host::new(), |ctx, _| {
            let part = |name: &str| Part {
                name: name.into(),
                end: End::Done,
                calls: &calls,
            };
            serial(names.map(|name| step(name, part(name))).into()).provision(ctx)
        });
        let failure = result.expect_err("is refused");
        assert_eq!(
            (failure.resolution, &*failure.reason),
            (Resolution::Terminal, "InvalidStep")
        );
        assert!(calls.borrow().is_empty(), "{names:?}");
    }
}

#[test]
fn conditions_and_status_of_a_failed_part_are_kept() {
    struct Probe(Resolution, &'static str);
    impl Provision for Probe {
        fn provision(&self, _: &Context) -> Result<(), Failure> {
            let failure = Failure::wait("Because", "Fails.").with(Condition::new_false(self.1, "Seen", ""));
            let failure = failure.status(&json!({ "by": self.1 }));
            Err(Failure {
                resolution: self.0.clone(),
                ..failure
            })
        }
        fn deprovision(&self, _: &Context) -> Result<(), Failure> {
            Ok(())
        }
    }
    let result = call(&Host::new(), |ctx, _| {
        let steps = vec![
            step("A", Probe(Resolution::Wait, "FromA")),
            step("B", Probe(Resolution::Terminal, "FromB")),
        ];
        concurrent(steps).provision(ctx)
    });
    let failure = result.expect_err("fails");
    let types: Vec<&str> = failure.conditions.iter().map(|c| &*c.type_).collect();
    assert_eq!(types, ["A", "B", "FromB", "FromA"]);
    assert_eq!(failure.status.as_deref(), Some(&br#"{"by":"FromB"}"#[..]));
}

/// The interval of the original's `ErrYield` is the author's, and a change of what was read still comes first.
#[test]
fn yield_is_a_wait_with_an_interval_of_the_plugin() {
    let failure = |resolution| Failure {
        resolution,
        ..Failure::wait("Because", "")
    };
    let interval = |resolution, ms: Option<u64>| failure(resolution).wait_interval(ms).resolution;
    assert_eq!(
        interval(Resolution::Wait, Some(10_000)),
        Resolution::Throttled(10_000)
    );
    assert_eq!(interval(Resolution::Wait, None), Resolution::Wait);
    assert_eq!(interval(Resolution::Terminal, Some(1)), Resolution::Terminal);
    assert_eq!(interval(Resolution::Retry, Some(1)), Resolution::Retry);
}

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

fn existing(host: &Host, count: usize) -> Vec<bool> {
    (0..count)
        .map(|index| host.object(&config_map(&format!("m{index}"))).is_some())
        .collect()
}

proptest! {
    #[test]
    fn objects_are_those_that_are_on_after_any_history(history in prop::collection::vec(prop::collection::vec(any::<bool>(), 4), 1..5)) {
        let host = Host::new();
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
        let host = Host::new();
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
    let host = Host::new();
    let result = call(&host, |ctx, thing| {
        switched(&thing.metadata, &[true; 3]).deprovision(ctx)
    });
    let outcome = result.expect("there is nothing to wait for");
    assert!(outcome.conditions.iter().all(|c| c.reason == "Deprovisioned"));
    assert!(host.writes().is_empty());
}

#[test]
fn object_of_another_owner_is_neither_changed_nor_deleted() {
    let host = Host::new();
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
    let host = Host::new();
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
    let host = Host::new();
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
    let host = Host::new();
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
    let host = Host::new();
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

fn chart<'a>(owner: &'a ObjectMeta, driver: HelmDriver<'a>, repository: &'a str) -> HelmApplication<'a> {
    HelmApplication {
        owner,
        name: "cache",
        namespace: "argocd",
        target_namespace: "n",
        repository,
        chart: "redis",
        version: "1.2.3",
        values: json!({ "replicas": 2 }),
        driver,
    }
}

#[test]
fn chart_becomes_an_application_of_argo_cd() {
    let owner = ObjectMeta::default();
    let built = chart(
        &owner,
        HelmDriver::ArgoCd { project: "shop" },
        "oci://example.com/charts",
    )
    .build();
    assert_eq!(
        built,
        [json!({
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Application",
            "metadata": { "name": "cache", "namespace": "argocd",
                "finalizers": ["resources-finalizer.argocd.argoproj.io"] },
            "spec": {
                "project": "shop",
                "source": { "repoURL": "example.com/charts", "chart": "redis", "targetRevision": "1.2.3",
                    "helm": { "releaseName": "cache", "valuesObject": { "replicas": 2 } } },
                "destination": { "server": "https://kubernetes.default.svc", "namespace": "n" },
                "syncPolicy": { "automated": { "prune": true, "selfHeal": true },
                    "syncOptions": ["CreateNamespace=true"] },
            },
        })]
    );
}

#[test]
fn chart_becomes_a_repository_and_a_release_of_flux() {
    let owner = ObjectMeta::default();
    let built = chart(&owner, HelmDriver::Flux, "oci://example.com/charts").build();
    let kinds: Vec<_> = built.iter().map(|object| &object["kind"]).collect();
    assert_eq!(kinds, ["HelmRepository", "HelmRelease"]);
    assert_eq!(
        built[0]["spec"],
        json!({ "url": "oci://example.com/charts", "interval": "1h", "type": "oci" })
    );
    let spec = &built[1]["spec"];
    assert_eq!(
        spec["chart"]["spec"]["sourceRef"],
        json!({ "kind": "HelmRepository", "name": "cache" })
    );
    assert_eq!(
        (&spec["targetNamespace"], &spec["releaseName"]),
        (&json!("n"), &json!("cache"))
    );
    assert_eq!(spec["values"], json!({ "replicas": 2 }));

    let mut plain = chart(&owner, HelmDriver::Flux, "https://example.com/charts");
    plain.values = json!({});
    let built = plain.build();
    assert_eq!(built[0]["spec"].get("type"), None);
    assert_eq!(built[1]["spec"].get("values"), None);
}

#[test]
fn application_of_argo_cd_is_ready_when_synced_and_healthy_for_its_spec() {
    let source = json!({ "repoURL": "r", "chart": "c", "targetRevision": "2", "helm": {} });
    let state = |status: Value| {
        let application = json!({ "spec": { "source": source }, "status": status });
        read_argo_health(&application).map_err(|failure| (failure.resolution, failure.reason))
    };
    let wait = |reason: &str| Err((Resolution::Wait, reason.to_owned()));
    let synced = |health: &str| json!({ "sync": { "status": "Synced" }, "health": { "status": health } });
    assert_eq!(state(Value::Null), wait("Provisioning"));
    assert_eq!(state(synced("Healthy")), Ok(()));
    assert_eq!(state(synced("Progressing")), wait("Provisioning"));
    assert_eq!(state(synced("Degraded")), wait("Degraded"));
    let mut of_spec = synced("Healthy");
    of_spec["sync"]["comparedTo"] = json!({ "source": source });
    assert_eq!(state(of_spec.clone()), Ok(()));
    of_spec["sync"]["comparedTo"]["source"]["targetRevision"] = "1".into();
    assert_eq!(state(of_spec), wait("Provisioning"));
    let mut failed = json!({ "sync": { "status": "OutOfSync" }, "operationState": { "phase": "Failed", "message": "no" } });
    assert_eq!(state(failed.clone()), wait("SyncFailed"));
    // Argo CD shows an Application with such a condition as Healthy.
    failed = synced("Healthy");
    failed["conditions"] = json!([{ "type": "ComparisonError", "message": "no such chart" }]);
    assert_eq!(state(failed.clone()), wait("ComparisonError"));
    failed["conditions"] = json!([{ "type": "InvalidSpecError", "message": "no such project" }]);
    assert_eq!(
        state(failed),
        Err((Resolution::Terminal, "InvalidSpecError".into()))
    );
}

#[test]
fn release_of_flux_is_ready_when_it_is_for_its_generation() {
    let state = |conditions: Value| {
        let release = json!({ "metadata": { "generation": 2 }, "status": { "conditions": conditions } });
        read_flux_health(&release).map_err(|failure| (failure.resolution, failure.reason))
    };
    let condition = |kind: &str, status: &str, reason: &str, generation: i64| json!({ "type": kind, "status": status, "reason": reason, "observedGeneration": generation });
    let wait = |reason: &str| Err((Resolution::Wait, reason.to_owned()));
    assert_eq!(state(Value::Null), wait("Provisioning"));
    assert_eq!(
        state(json!([condition("Ready", "True", "InstallSucceeded", 2)])),
        Ok(())
    );
    assert_eq!(
        state(json!([condition("Ready", "True", "InstallSucceeded", 1)])),
        wait("Provisioning")
    );
    assert_eq!(
        state(json!([condition("Ready", "Unknown", "Progressing", 2)])),
        wait("Provisioning")
    );
    let failed = condition("Ready", "False", "InstallFailed", 2);
    assert_eq!(state(json!([failed])), wait("InstallFailed"));
    let stalled = condition("Stalled", "True", "RetriesExceeded", 2);
    let expected = Err((Resolution::Terminal, "RetriesExceeded".into()));
    assert_eq!(state(json!([failed, stalled])), expected);
}

#[test]
fn release_of_flux_is_uninstalled_before_its_repository_goes() {
    let host = Host::new();
    let run = |provisions| {
        call(&host, |ctx, thing| {
            let tree = step(
                "Chart",
                chart(&thing.metadata, HelmDriver::Flux, "https://example.com"),
            );
            if provisions {
                tree.provision(ctx)
            } else {
                tree.deprovision(ctx)
            }
        })
    };
    let release = gvk("helm.toolkit.fluxcd.io", "v2", "HelmRelease").named("argocd", "cache");
    assert_eq!(run(true).expect_err("is not deployed").reason, "Provisioning");
    let mut live = host.object(&release).expect("applied");
    live["metadata"]["finalizers"] = json!(["finalizers.fluxcd.io"]);
    live["metadata"]["generation"] = 1.into();
    live["status"]["conditions"] = json!([{ "type": "Ready", "status": "True", "observedGeneration": 1 }]);
    host.put(live);
    run(true).expect("is deployed");
    host.forget();
    assert_eq!(
        run(false).expect_err("is being uninstalled").reason,
        "Deprovisioning"
    );
    assert_eq!(host.writes(), ["delete HelmRelease cache"]);
    host.remove(&release);
    run(false).expect("is gone");
    assert_eq!(
        host.writes(),
        ["delete HelmRelease cache", "delete HelmRepository cache"]
    );
}
