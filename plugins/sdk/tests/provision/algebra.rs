//! Order, precedence and conditions.

use std::cell::RefCell;

use ostler_sdk::{
    ConditionStatus, Next, Resolution,
    mock::MockHost,
    prelude::*,
    provision::{Provision, StepTree, concurrent, serial, step, when, with_public_message},
};
use proptest::prelude::*;

use super::call;

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
    let result = call(&MockHost::new(), |ctx, _| {
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
        let result = call(&MockHost::new(), |ctx, _| {
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
    let result = call(&MockHost::new(), |ctx, _| {
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

#[test]
fn detail_of_a_public_message_is_logged_only() {
    let calls = RefCell::default();
    let host = MockHost::new();
    let failure = call(&host, |ctx, _| {
        let part = Part {
            name: "A".into(),
            end: End::Fails(Resolution::Terminal),
            calls: &calls,
        };
        step("A", with_public_message("The database is not there.", part)).provision(ctx)
    })
    .expect_err("a failure");
    assert_eq!(failure.resolution, Resolution::Terminal);
    assert_eq!(
        (&*failure.reason, &*failure.message),
        ("Because", "A: The database is not there.")
    );
    let [condition] = &failure.conditions[..] else {
        panic!("{failure:?}")
    };
    assert_eq!(
        (&*condition.reason, &*condition.message),
        ("Because", "The database is not there.")
    );
    assert_eq!(host.logs(), ["A fails."]);
}
