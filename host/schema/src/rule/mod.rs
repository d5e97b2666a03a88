//! CEL rules (`x-kubernetes-validations`), in the order of their use: a definition's rules are checked, with the types of
//! their expressions and what they cost, and then evaluated on objects.

#[cfg(feature = "cel")]
mod call_cost;
#[cfg(feature = "cel")]
mod check;
#[cfg(feature = "cel")]
mod conversion;
#[cfg(feature = "cel")]
mod cost;
#[cfg(feature = "cel")]
mod declaration;
#[cfg(feature = "cel")]
mod evaluation;
mod fields;
#[cfg(feature = "cel")]
mod function;
#[cfg(feature = "cel")]
mod size;
#[cfg(feature = "cel")]
mod types;
#[cfg(feature = "cel")]
mod value;

#[cfg(feature = "cel")]
pub(crate) use check::{check_rules, check_rules_of_value, check_total_cost};
#[cfg(feature = "cel")]
pub use evaluation::{Rules, TypeMeta};
pub(crate) use fields::check_rule_fields;
#[cfg(not(feature = "cel"))]
pub(crate) use unchecked::{check_rules, check_rules_of_value, check_total_cost};

use serde_json::Value;

use crate::FieldError;

/// Errors of rules, and what the rules cost.
#[derive(Debug, Default)]
pub(crate) struct RuleFindings {
    pub(crate) errors: Vec<FieldError>,
    pub(crate) costs: Vec<RuleCost>,
}

/// The largest cost of an expression in all values of an object together.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "cel"),
    expect(dead_code, reason = "only rules that are compiled have a cost")
)]
pub(crate) struct RuleCost {
    /// Path of the expression.
    pub(crate) field: String,
    pub(crate) cost: u64,
}

/// Keyword of the rules of a schema.
const RULES: &str = "x-kubernetes-validations";

fn rules(declared: &Value) -> impl Iterator<Item = &Value> {
    declared[RULES].as_array().into_iter().flatten()
}

/// The checks of a build that does not evaluate rules.
#[cfg(not(feature = "cel"))]
mod unchecked {
    use serde_json::Value;

    use super::{RuleCost, RuleFindings};
    use crate::FieldError;

    pub(crate) fn check_rules(
        _declared: &Value,
        _path: &str,
        _is_object: bool,
        _uncorrelatable: Option<&str>,
        _cardinality: Option<u64>,
    ) -> RuleFindings {
        RuleFindings::default()
    }

    pub(crate) fn check_rules_of_value(_declared: &Value, _value: &Value, _path: &str) -> Vec<FieldError> {
        Vec::new()
    }

    pub(crate) fn check_total_cost(_costs: Vec<RuleCost>, _path: &str) -> Vec<FieldError> {
        Vec::new()
    }
}
