//! Checks of the CEL rules of a definition: they must compile, have the types that they need, and cost no more than a
//! kube-apiserver lets them.

use kube_cel::cel::Program;
use serde_json::Value;

use super::cost::estimate_cost;
use super::declaration::DeclaredValue;
use super::types::{ExpressionTypes, RuleType};
use super::{RuleCost, RuleFindings, Rules, TypeMeta, rules};
use crate::FieldError;

/// Largest cost of an expression in all values of an object together.
const MAX_EXPRESSION_COST: u64 = 10_000_000;
/// Largest cost of all expressions of a schema.
const MAX_SCHEMA_COST: u64 = 100_000_000;
/// Expressions that are named when all together cost too much.
const MAX_NAMED_COSTS: usize = 4;

/// A compiled expression.
struct CheckedExpression {
    /// The largest cost of one evaluation.
    cost: u64,
    /// The expression names the old value.
    uses_old: bool,
}

/// Compiles an expression. `old_is_optional` says that the old value may be missing.
///
/// # Errors
///
/// The text of a compiler: a name that is not declared, types that do not fit, another result than `result`.
fn check_expression(
    expression: &str,
    declared: &DeclaredValue,
    old_is_optional: bool,
    result: &RuleType<'_>,
) -> Result<CheckedExpression, String> {
    let program = Program::compile(expression).map_err(|error| format!("compilation failed: {error}"))?;
    let expression = program.expression();
    let types = ExpressionTypes::infer(expression, declared, old_is_optional)
        .map_err(|why| format!("compilation failed: ERROR: {why}"))?;
    if types.type_of(expression) != result {
        return Err(format!("must evaluate to a {result}"));
    }
    Ok(CheckedExpression {
        cost: estimate_cost(expression, &types, declared),
        uses_old: types.uses_old,
    })
}

/// Checks the CEL rules of a schema. `is_object` says that its values are objects of the API, `uncorrelatable` names the list
/// or map around them whose items have no counterpart in the old object, and `cardinality` is how many such values an object
/// has at most.
pub(crate) fn check_rules(
    declared: &Value,
    path: &str,
    is_object: bool,
    uncorrelatable: Option<&str>,
    cardinality: Option<u64>,
) -> RuleFindings {
    let mut found = RuleFindings::default();
    if rules(declared).next().is_none() {
        return found;
    }
    let Some(value) = DeclaredValue::from_schema(declared, is_object) else {
        found.errors.push(FieldError::new(
            &format!("{path}.x-kubernetes-validations"),
            "InternalError",
            "Internal error: failed to construct type information for x-kubernetes-validations rules: the schema has no type".into(),
        ));
        return found;
    };
    let cardinality = cardinality.unwrap_or_else(|| value.count_per_request());
    for (index, rule) in rules(declared).enumerate() {
        let at = format!("{path}.x-kubernetes-validations[{index}]");
        let check = RuleCheck {
            rule,
            value: &value,
            cardinality,
        };
        let uses_old = check.check(&at, &mut found);
        check_old_value(rule, &at, uses_old, uncorrelatable, &mut found.errors);
    }
    found
}

/// One rule of a schema.
struct RuleCheck<'a> {
    rule: &'a Value,
    value: &'a DeclaredValue,
    cardinality: u64,
}

impl RuleCheck<'_> {
    /// Checks the expressions of the rule, and returns true if the rule names the old value.
    fn check(&self, at: &str, found: &mut RuleFindings) -> bool {
        let old_is_optional = self.rule["optionalOldSelf"] == true;
        let mut uses_old = false;
        let text = RuleType::TEXT;
        for (keyword, result) in [("rule", &RuleType::BOOL), ("messageExpression", &text)] {
            let Some(expression) = self.rule[keyword].as_str().filter(|text| !text.trim().is_empty()) else {
                continue;
            };
            let field = format!("{at}.{keyword}");
            match check_expression(expression, self.value, old_is_optional, result) {
                Ok(checked) => {
                    let is_rule = keyword == "rule";
                    uses_old |= is_rule && checked.uses_old;
                    // A message is made once, a rule is evaluated on each value.
                    let count = if is_rule { self.cardinality } else { 1 };
                    let cost = checked.cost.saturating_mul(count);
                    if cost > MAX_EXPRESSION_COST {
                        let name = format!("estimated {keyword} cost");
                        found.errors.push(FieldError::forbidden(
                            &field,
                            describe_cost(&name, cost, MAX_EXPRESSION_COST),
                        ));
                    }
                    found.costs.push(RuleCost { field, cost });
                }
                Err(why) => {
                    found.errors.push(FieldError::invalid(&field, self.rule, why));
                    break;
                }
            }
        }
        uses_old
    }
}

/// Checks that the old value can be found where a rule asks for it.
fn check_old_value(
    rule: &Value,
    at: &str,
    uses_old: bool,
    uncorrelatable: Option<&str>,
    errors: &mut Vec<FieldError>,
) {
    if let Some(list) = uncorrelatable.filter(|_| uses_old) {
        let why = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
        errors.push(FieldError::invalid(&format!("{at}.rule"), &rule["rule"], why));
    }
    if !uses_old && !rule["optionalOldSelf"].is_null() {
        let why = "may not be set if oldSelf is not used in rule";
        errors.push(FieldError::invalid(
            &format!("{at}.optionalOldSelf"),
            &rule["optionalOldSelf"],
            why,
        ));
    }
}

/// Checks what all rules of a schema cost together, and names the most expensive ones if that is too much.
pub(crate) fn check_total_cost(mut costs: Vec<RuleCost>, path: &str) -> Vec<FieldError> {
    let total = costs
        .iter()
        .fold(0, |total: u64, rule| total.saturating_add(rule.cost));
    if total <= MAX_SCHEMA_COST {
        return Vec::new();
    }
    costs.retain(|rule| rule.cost >= MAX_SCHEMA_COST / 100);
    costs.sort_by_key(|rule| std::cmp::Reverse(rule.cost));
    let why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
    let named = costs.iter().take(MAX_NAMED_COSTS);
    let mut errors: Vec<_> = named
        .map(|rule| FieldError::forbidden(&rule.field, why))
        .collect();
    let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
    errors.push(FieldError::forbidden(
        path,
        describe_cost(name, total, MAX_SCHEMA_COST),
    ));
    errors
}

fn describe_cost(name: &str, cost: u64, limit: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a ratio for a message")]
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        // So that it is never 1.0.
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// Checks the CEL rules that apply to a default: they must compile, and hold.
pub(crate) fn check_rules_of_value(declared: &Value, value: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    collect_rule_errors(declared, value, path, &mut errors);
    if !errors.is_empty() {
        return errors;
    }
    let rules = Rules::compile(declared);
    let meta = TypeMeta {
        group: String::new(),
        api_version: String::new(),
        kind: String::new(),
    };
    let broken = rules.map_or_else(Vec::new, |rules| rules.validate(value, Some(value), meta));
    broken.into_iter().map(|error| error.below(path)).collect()
}

fn collect_rule_errors(declared: &Value, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if value.is_null() {
        // Rules are not evaluated for it.
        return;
    }
    let first = rules(declared).next();
    if let Some(typed) = first.and_then(|_| DeclaredValue::from_schema(declared, false)) {
        for rule in rules(declared) {
            let expression = rule["rule"].as_str().unwrap_or_default();
            let old_is_optional = rule["optionalOldSelf"] == true;
            let checked = check_expression(expression, &typed, old_is_optional, &RuleType::BOOL);
            if let Err(why) = checked.map_err(|why| format!("rule compile error: {why}"))
                && !expression.trim().is_empty()
            {
                errors.push(FieldError::invalid(path, value, why));
            }
        }
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let (schema, field) = match declared["properties"].get(name) {
                    Some(property) => (property, format!("{path}.{name}")),
                    None => (&declared["additionalProperties"], format!("{path}[{name}]")),
                };
                collect_rule_errors(schema, value, &field, errors);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect_rule_errors(&declared["items"], item, &format!("{path}[{index}]"), errors);
            }
        }
        _ => {}
    }
}
