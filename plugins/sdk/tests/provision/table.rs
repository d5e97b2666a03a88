//! The table of cases that the SDKs of all languages have in common.

use std::cell::RefCell;

use ostler_sdk::{
    ConditionStatus, Error, Next, Resolution,
    mock::MockHost,
    prelude::*,
    provision::{Provision, StepTree, concurrent, serial, step, when},
    serde_json::{self, Value},
};

use super::call;

/// A part that records its calls, and returns the result of the table.
struct Part<'a> {
    name: &'a str,
    result: &'a Value,
    calls: &'a RefCell<Vec<String>>,
}

impl Part<'_> {
    fn record(&self, sign: &str) -> Result<(), Failure> {
        self.calls.borrow_mut().push([sign, self.name].concat());
        if self.result.is_null() {
            return Ok(());
        }
        Err(parse_failure(self.result))
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

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A failure, or that which an error of the host becomes.
fn parse_failure(result: &Value) -> Failure {
    let value = &result["value"];
    if let Some(error) = result["error"].as_str() {
        let error = match error {
            "denied" => Error::Denied(text(value)),
            "not-found" => Error::NotFound(text(value)),
            "conflict" => Error::Conflict(text(value)),
            "invalid" => Error::Invalid(text(value)),
            "throttled" => Error::Throttled(value.as_u64().expect("milliseconds")),
            "unavailable" => Error::Unavailable(text(value)),
            "limit-exceeded" => Error::LimitExceeded(text(value)),
            "unsupported" => Error::Unsupported(text(value)),
            other => panic!("unknown error {other}"),
        };
        return error.into();
    }
    let resolution = match result["resolution"].as_str().expect("a resolution") {
        "wait" => Resolution::Wait,
        "retry" => Resolution::Retry,
        "throttled" => Resolution::Throttled(result["milliseconds"].as_u64().expect("milliseconds")),
        "denied" => Resolution::Denied(text(&result["grant"])),
        "terminal" => Resolution::Terminal,
        other => panic!("unknown resolution {other}"),
    };
    let status = &result["status"];
    Failure {
        resolution,
        reason: text(&result["reason"]),
        message: text(&result["message"]),
        conditions: parse_conditions(&result["conditions"]),
        status: status.is_object().then(|| status.to_string().into_bytes()),
    }
}

fn parse_conditions(rows: &Value) -> Vec<Condition> {
    let rows = rows.as_array().into_iter().flatten();
    rows.map(|row| {
        let status = match row[1].as_str() {
            Some("True") => ConditionStatus::True,
            Some("False") => ConditionStatus::False,
            Some("Unknown") => ConditionStatus::Unknown,
            other => panic!("unknown status {other:?}"),
        };
        Condition::new(&text(&row[0]), status, &text(&row[2]), text(&row[3]))
    })
    .collect()
}

fn build<'a>(case: &'a Value, tree: &'a Value, calls: &'a RefCell<Vec<String>>) -> StepTree<'a> {
    let build_all = |trees: &'a Value| {
        let trees = trees.as_array().expect("a list of trees");
        trees.iter().map(|tree| build(case, tree, calls)).collect()
    };
    let fields = tree.as_object().expect("a tree");
    if let Some(name) = tree["step"].as_str() {
        let result = &case["results"][name];
        step(name, Part { name, result, calls })
    } else if fields.contains_key("serial") {
        serial(build_all(&tree["serial"]))
    } else if fields.contains_key("concurrent") {
        concurrent(build_all(&tree["concurrent"]))
    } else {
        let condition = tree["when"].as_bool().expect("a condition");
        when(condition, build(case, &tree["tree"], calls))
    }
}

#[test]
fn steps_run_as_in_the_table_of_all_languages() {
    let table: Value = serde_json::from_str(include_str!("table.json")).expect("JSON");
    let cases = table["cases"].as_array().expect("cases");
    assert!(!cases.is_empty());
    for case in cases {
        let name = &case["name"];
        let calls = RefCell::new(Vec::new());
        let result = call(&MockHost::new(), |ctx, _| {
            let tree = build(case, &case["tree"], &calls);
            if case["direction"] == "provision" {
                tree.provision(ctx)
            } else {
                tree.deprovision(ctx)
            }
        });
        assert_eq!(json!(calls.into_inner()), case["calls"], "{name}");
        let conditions = parse_conditions(&case["conditions"]);
        let expected = if case["failure"].is_null() {
            Ok(Outcome {
                conditions,
                status: None,
                next: Next::AwaitChange,
            })
        } else {
            Err(Failure {
                conditions,
                ..parse_failure(&case["failure"])
            })
        };
        assert_eq!(result, expected, "{name}");
    }
}
