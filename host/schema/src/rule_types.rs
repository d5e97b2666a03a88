//! Types of CEL rules: a rule that names an undeclared field, or compares values of different types, is refused when its
//! definition comes, not when an object does.
//!
//! Where the type of an expression cannot be told (values without a schema, functions with several results), it is
//! [`RuleType::Dynamic`], which fits everywhere.

use std::collections::HashMap;

use kube_cel::cel::Program;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, SelectExpr};
use serde_json::{Value, json};

/// Functions that a text has, and that return whether it fits another one.
const TEXT_TESTS: [&str; 4] = ["contains", "endsWith", "matches", "startsWith"];
/// Names that stand for types.
const TYPE_NAMES: [&str; 13] = [
    "bool",
    "bytes",
    "double",
    "dyn",
    "duration",
    "google",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "timestamp",
    "type",
];

/// The type of an expression.
#[derive(Debug, Clone, PartialEq)]
enum RuleType<'a> {
    Dynamic,
    Bool,
    Int,
    Double,
    Text,
    Bytes,
    Timestamp,
    Duration,
    List(Box<RuleType<'a>>),
    Map(Box<RuleType<'a>>),
    /// An object with declared fields.
    Object(&'a Value),
}

impl<'a> RuleType<'a> {
    fn of_schema(declared: &'a Value) -> Self {
        if declared["x-kubernetes-int-or-string"] == true
            || declared["x-kubernetes-embedded-resource"] == true
        {
            return Self::Dynamic;
        }
        match (declared["type"].as_str(), declared["format"].as_str()) {
            (Some("string"), Some("date" | "date-time")) => Self::Timestamp,
            (Some("string"), Some("duration")) => Self::Duration,
            (Some("string"), Some("byte")) => Self::Bytes,
            (Some("string"), _) => Self::Text,
            (Some("integer"), _) => Self::Int,
            (Some("number"), _) => Self::Double,
            (Some("boolean"), _) => Self::Bool,
            (Some("array"), _) => Self::List(Box::new(Self::of_schema(&declared["items"]))),
            (Some("object"), _) if declared["additionalProperties"].is_object() => {
                Self::Map(Box::new(Self::of_schema(&declared["additionalProperties"])))
            }
            // Unknown fields cannot be named, even where they are kept.
            (Some("object"), _) => Self::Object(declared),
            _ => Self::Dynamic,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Dynamic => "dyn",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Double => "double",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Object(_) => "object",
        }
    }

    fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Double)
    }

    /// Returns true if a value of the type may be used where one of the other type is expected.
    fn fits(&self, expected: &Self) -> bool {
        match (self, expected) {
            (Self::Dynamic, _) | (_, Self::Dynamic) => true,
            (Self::List(item), Self::List(other)) | (Self::Map(item), Self::Map(other)) => item.fits(other),
            // Literals of maps and objects are compared field by field.
            (Self::Object(_) | Self::Map(_), Self::Object(_) | Self::Map(_)) => true,
            (one, other) => one.name() == other.name(),
        }
    }
}

/// The result that an expression must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedResult {
    /// A rule holds or not.
    Bool,
    /// A message is a text.
    Text,
}

/// Returns what is wrong with an expression on values of a schema, if anything is. `is_root` says that the values are whole
/// objects.
pub(crate) fn check_expression(
    expression: &str,
    declared: &Value,
    is_root: bool,
    expected: ExpectedResult,
) -> Result<(), String> {
    let program = Program::compile(expression).map_err(|error| error.to_string())?;
    let root = is_root.then(|| add_object_fields(declared));
    let this = RuleType::of_schema(root.as_ref().unwrap_or(declared));
    let mut scope = RuleScope {
        // An old value that is optional has functions of its own.
        variables: HashMap::from([("self".to_owned(), this.clone()), ("oldSelf".to_owned(), this)]),
    };
    let found = scope.infer(program.expression())?;
    let wanted = match expected {
        ExpectedResult::Bool => RuleType::Bool,
        ExpectedResult::Text => RuleType::Text,
    };
    if found.fits(&wanted) {
        Ok(())
    } else {
        Err(format!("must evaluate to a {}", wanted.name()))
    }
}

/// Returns a schema with the fields that every object has.
fn add_object_fields(declared: &Value) -> Value {
    let mut declared = declared.clone();
    for (name, schema) in [
        ("apiVersion", json!({"type": "string"})),
        ("kind", json!({"type": "string"})),
        (
            "metadata",
            json!({"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}}),
        ),
    ] {
        declared["properties"][name] = schema;
    }
    declared
}

/// The variables that an expression can name.
struct RuleScope<'a> {
    variables: HashMap<String, RuleType<'a>>,
}

impl<'a> RuleScope<'a> {
    fn infer(&mut self, expression: &IdedExpr) -> Result<RuleType<'a>, String> {
        match &expression.expr {
            Expr::Literal(literal) => Ok(infer_literal(literal)),
            Expr::Ident(name) => self.infer_variable(name),
            Expr::Select(select) => self.infer_select(select),
            Expr::Call(call) => self.infer_call(call),
            Expr::Comprehension(comprehension) => self.infer_comprehension(comprehension),
            Expr::List(list) => {
                let items = list.elements.iter().map(|item| self.infer(item));
                let items = items.collect::<Result<Vec<_>, _>>()?;
                let first = items.first().cloned().unwrap_or(RuleType::Dynamic);
                let is_uniform = items.iter().all(|item| *item == first);
                let item = if is_uniform { first } else { RuleType::Dynamic };
                Ok(RuleType::List(Box::new(item)))
            }
            Expr::Map(_) => Ok(RuleType::Map(Box::new(RuleType::Dynamic))),
            Expr::Struct(_) | Expr::Unspecified => Ok(RuleType::Dynamic),
        }
    }

    fn infer_variable(&self, name: &str) -> Result<RuleType<'a>, String> {
        match self.variables.get(name) {
            Some(known) => Ok(known.clone()),
            // Accumulators of macros begin with characters that no name can have.
            None if TYPE_NAMES.contains(&name) || name.starts_with(['@', '_']) => Ok(RuleType::Dynamic),
            None => Err(format!("undeclared reference to '{name}' (in container '')")),
        }
    }

    fn infer_select(&mut self, select: &SelectExpr) -> Result<RuleType<'a>, String> {
        let operand = self.infer(&select.operand)?;
        let field = match operand {
            RuleType::Object(declared) => {
                // Names that are reserved words are escaped.
                let is_escaped = select.field.starts_with("__");
                // Fields of any type cannot be named.
                let has_type = |schema: &&Value| {
                    !schema["type"].is_null() || schema["x-kubernetes-int-or-string"] == true
                };
                match declared["properties"].get(&select.field).filter(has_type) {
                    Some(schema) => RuleType::of_schema(schema),
                    None if is_escaped => RuleType::Dynamic,
                    None => return Err(format!("undefined field '{}'", select.field)),
                }
            }
            RuleType::Map(value) => *value,
            RuleType::Dynamic => RuleType::Dynamic,
            other => {
                let name = other.name();
                return Err(format!("type '{name}' does not support field selection"));
            }
        };
        Ok(if select.test { RuleType::Bool } else { field })
    }

    fn infer_call(&mut self, call: &CallExpr) -> Result<RuleType<'a>, String> {
        let operands = call.target.as_deref().into_iter().chain(&call.args);
        let operands = operands.map(|operand| self.infer(operand));
        let operands = operands.collect::<Result<Vec<_>, _>>()?;
        let name = call.func_name.as_str();
        let mismatch = || {
            let names: Vec<&str> = operands.iter().map(RuleType::name).collect();
            format!(
                "found no matching overload for '{name}' applied to '({})'",
                names.join(", ")
            )
        };
        let check =
            |is_valid: bool, result: RuleType<'a>| if is_valid { Ok(result) } else { Err(mismatch()) };
        match (name, operands.as_slice()) {
            ("_==_" | "_!=_", [left, right]) => check(left.fits(right), RuleType::Bool),
            ("_<_" | "_<=_" | "_>_" | "_>=_", [left, right]) => {
                let is_valid = left.fits(right) || (left.is_number() && right.is_number());
                check(is_valid, RuleType::Bool)
            }
            ("_&&_" | "_||_", [left, right]) => check(
                left.fits(&RuleType::Bool) && right.fits(&RuleType::Bool),
                RuleType::Bool,
            ),
            ("!_", [operand]) => check(operand.fits(&RuleType::Bool), RuleType::Bool),
            ("_?_:_", [condition, left, right]) => {
                let result = if left == right {
                    left.clone()
                } else {
                    RuleType::Dynamic
                };
                check(condition.fits(&RuleType::Bool) && left.fits(right), result)
            }
            ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [left, right])
                if left.is_number() && right.is_number() =>
            {
                check(left == right, left.clone())
            }
            ("_+_", [RuleType::Text, right]) => check(right.fits(&RuleType::Text), RuleType::Text),
            ("size", [operand]) => {
                let has_no_size = operand.is_number() || matches!(operand, RuleType::Bool);
                check(!has_no_size, RuleType::Int)
            }
            ("_[_]", [RuleType::List(item), _]) => Ok((**item).clone()),
            ("_[_]", [RuleType::Map(value), _]) => Ok((**value).clone()),
            (function, [text, rest @ ..]) if call.target.is_some() && TEXT_TESTS.contains(&function) => {
                let is_valid = text.fits(&RuleType::Text) && rest.iter().all(|one| one.fits(&RuleType::Text));
                check(is_valid, RuleType::Bool)
            }
            _ => Ok(RuleType::Dynamic),
        }
    }

    fn infer_comprehension(&mut self, comprehension: &ComprehensionExpr) -> Result<RuleType<'a>, String> {
        let range = self.infer(&comprehension.iter_range)?;
        let (first, second) = match range {
            RuleType::List(item) => match comprehension.iter_var2 {
                Some(_) => (RuleType::Int, *item),
                None => (*item, RuleType::Dynamic),
            },
            RuleType::Map(value) => (RuleType::Text, *value),
            RuleType::Object(_) | RuleType::Dynamic => (RuleType::Dynamic, RuleType::Dynamic),
            other => {
                let name = other.name();
                return Err(format!(
                    "expression of type '{name}' cannot be range of a comprehension"
                ));
            }
        };
        let outer = self.variables.clone();
        self.variables.insert(comprehension.iter_var.clone(), first);
        if let Some(name) = &comprehension.iter_var2 {
            self.variables.insert(name.clone(), second);
        }
        let initial = match self.infer(&comprehension.accu_init)? {
            // What a list collects is not known before its items are.
            RuleType::List(_) => RuleType::List(Box::new(RuleType::Dynamic)),
            known => known,
        };
        self.variables.insert(comprehension.accu_var.clone(), initial);
        let checked = self
            .infer(&comprehension.loop_cond)
            .and_then(|_| self.infer(&comprehension.loop_step));
        let result = checked.and_then(|_| self.infer(&comprehension.result));
        self.variables = outer;
        result
    }
}

fn infer_literal<'a>(literal: &LiteralValue) -> RuleType<'a> {
    match literal {
        LiteralValue::Boolean(_) => RuleType::Bool,
        LiteralValue::Bytes(_) => RuleType::Bytes,
        LiteralValue::Double(_) => RuleType::Double,
        LiteralValue::Int(_) => RuleType::Int,
        LiteralValue::String(_) => RuleType::Text,
        LiteralValue::UInt(_) | LiteralValue::Null => RuleType::Dynamic,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expression: &str) -> Result<(), String> {
        let declared = json!({"type": "object", "properties": {
            "mode": {"type": "string"},
            "size": {"type": "integer"},
            "ratio": {"type": "number"},
            "when": {"type": "string", "format": "date-time"},
            "port": {"x-kubernetes-int-or-string": true},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "items": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        }});
        check_expression(expression, &declared, false, ExpectedResult::Bool)
    }

    #[test]
    fn usual_rules_are_accepted() {
        for rule in [
            "self.mode == 'a' || has(self.size) && self.size > 1",
            "self.size < self.ratio",
            "self.mode.size() <= 3 && size(self.items) < 5",
            "self.items.all(i, i.name.startsWith('a'))",
            "self.items.exists(i, i.name == self.mode)",
            "self.items.map(i, i.name).filter(n, n != '').size() == 1",
            "self.labels.all(key, self.labels[key] != '')",
            "!has(self.mode) || self.mode in ['a', 'b']",
            "self.port == 80 || self.port == 'http'",
            "self.when > timestamp('2026-01-01T00:00:00Z')",
            "oldSelf.mode == self.mode",
            "(has(self.size) ? self.size : 1) == 1",
            "quantity(self.mode).isLessThan(quantity('1Gi'))",
        ] {
            assert_eq!(check(rule), Ok(()), "{rule}");
        }
    }

    #[test]
    fn undeclared_names_and_other_types_are_refused() {
        for (rule, why) in [
            ("has(self.modus)", "undefined field 'modus'"),
            ("self.items.all(i, i.nam == 'a')", "undefined field 'nam'"),
            ("spec.mode == 'a'", "undeclared reference to 'spec'"),
            (
                "self.mode.size() > 'x'",
                "no matching overload for '_>_' applied to '(int, string)'",
            ),
            (
                "self.mode == 1",
                "no matching overload for '_==_' applied to '(string, int)'",
            ),
            (
                "self.size.startsWith('a')",
                "no matching overload for 'startsWith'",
            ),
            ("self.mode.all(c, c != '')", "cannot be range of a comprehension"),
            ("self.mode", "must evaluate to a bool"),
            ("self.size.a == 1", "does not support field selection"),
        ] {
            let error = check(rule).unwrap_err();
            assert!(error.contains(why), "{rule}: {error}");
        }
    }
}
