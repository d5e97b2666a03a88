//! Types of CEL expressions: a rule that names an undeclared field, or compares values of different types, is refused when
//! its definition comes, not when an object does.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, SelectExpr,
};

use super::declaration::{DeclaredFields, DeclaredShape, DeclaredValue};
use super::function::{FunctionOverload, is_function, match_function};
use crate::format::{is_go_duration, matches_format};

/// Names that stand for types.
const TYPE_NAMES: [&str; 11] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "timestamp",
    "uint",
];
/// Names before a dot that belong to the name of a function.
const FUNCTION_SPACES: [&str; 7] = [
    "format",
    "ip",
    "jsonpatch",
    "lists",
    "optional",
    "sets",
    "strings",
];

/// The type of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RuleType<'a> {
    /// A type that is known when the rule is evaluated, which fits everywhere.
    Dynamic,
    /// The type of the items of an empty list, which the first use decides.
    Open,
    /// A type of a signature that agrees with all others of its name.
    Parameter(char),
    Null,
    List(Arc<RuleType<'a>>),
    Map(Arc<RuleType<'a>>, Arc<RuleType<'a>>),
    Optional(Arc<RuleType<'a>>),
    /// An object with declared fields.
    Object(&'a DeclaredFields),
    /// A type without parts, by the name that CEL gives it.
    Named(&'static str),
}

impl<'a> RuleType<'a> {
    pub(super) const BOOL: Self = Self::Named("bool");
    pub(super) const TEXT: Self = Self::Named("string");
    pub(super) const BYTES: Self = Self::Named("bytes");
    const INT: Self = Self::Named("int");

    pub(super) fn list_of(item: Self) -> Self {
        Self::List(Arc::new(item))
    }

    pub(super) fn map_of(key: Self, value: Self) -> Self {
        Self::Map(Arc::new(key), Arc::new(value))
    }

    pub(super) fn optional_of(value: Self) -> Self {
        Self::Optional(Arc::new(value))
    }

    pub(super) fn of_value(declared: &'a DeclaredValue) -> Self {
        match &declared.shape {
            DeclaredShape::Dynamic => Self::Dynamic,
            DeclaredShape::Bool => Self::BOOL,
            DeclaredShape::Int => Self::INT,
            DeclaredShape::Double => Self::Named("double"),
            DeclaredShape::Text => Self::TEXT,
            DeclaredShape::Bytes => Self::BYTES,
            DeclaredShape::Timestamp => Self::Named("timestamp"),
            DeclaredShape::Duration => Self::Named("duration"),
            DeclaredShape::List(item) => Self::list_of(Self::of_value(item)),
            DeclaredShape::Map(entry) => Self::map_of(Self::TEXT, Self::of_value(entry)),
            DeclaredShape::Object(fields) => Self::Object(fields),
        }
    }

    fn of_literal(literal: &LiteralValue) -> Self {
        match literal {
            LiteralValue::Boolean(_) => Self::BOOL,
            LiteralValue::Bytes(_) => Self::BYTES,
            LiteralValue::Double(_) => Self::Named("double"),
            LiteralValue::Int(_) => Self::INT,
            LiteralValue::String(_) => Self::TEXT,
            LiteralValue::UInt(_) => Self::Named("uint"),
            LiteralValue::Null => Self::Null,
        }
    }

    /// Returns true if the type is decided elsewhere.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Open => true,
            Self::List(item) | Self::Optional(item) => item.is_open(),
            Self::Map(key, value) => key.is_open() || value.is_open(),
            _ => false,
        }
    }

    /// Returns true if all values of the type have the same size.
    pub(super) fn is_scalar(&self) -> bool {
        match self {
            Self::Named(name) => ["bool", "double", "duration", "int", "timestamp", "uint"].contains(name),
            Self::Optional(value) => value.is_scalar(),
            _ => false,
        }
    }

    /// Returns true for texts and bytes.
    pub(super) fn is_text(&self) -> bool {
        *self == Self::TEXT || *self == Self::BYTES
    }

    /// Returns true if a value of the type may be used where one of the other type is expected.
    pub(super) fn fits(&self, expected: &Self) -> bool {
        match (self, expected) {
            (Self::Dynamic | Self::Open, _) | (_, Self::Dynamic | Self::Open) => true,
            (Self::List(one), Self::List(other)) | (Self::Optional(one), Self::Optional(other)) => {
                one.fits(other)
            }
            (Self::Map(key, value), Self::Map(other_key, other_value)) => {
                key.fits(other_key) && value.fits(other_value)
            }
            (Self::Null, nullable) | (nullable, Self::Null) => nullable.is_nullable(),
            (one, other) => one == other,
        }
    }

    fn is_nullable(&self) -> bool {
        match self {
            Self::Null | Self::Object(_) | Self::Optional(_) => true,
            Self::Named(name) => !["bool", "bytes", "double", "int", "string", "uint"].contains(name),
            _ => false,
        }
    }

    /// Returns the type of a signature or of an identifier.
    pub(super) fn from_name(name: &str) -> Self {
        const NAMES: [&str; 15] = [
            "bool",
            "bytes",
            "cidr",
            "double",
            "duration",
            "format",
            "int",
            "ip",
            "quantity",
            "semver",
            "string",
            "timestamp",
            "type",
            "uint",
            "url",
        ];
        let is_parameter = |c: &char| c.is_ascii_uppercase();
        match NAMES.into_iter().find(|known| *known == name) {
            Some(known) => Self::Named(known),
            None => name
                .chars()
                .next()
                .filter(is_parameter)
                .map_or(Self::Dynamic, Self::Parameter),
        }
    }
}

impl fmt::Display for RuleType<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dynamic | Self::Open | Self::Parameter(_) => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::List(item) => write!(f, "list({item})"),
            Self::Map(key, value) => write!(f, "map({key}, {value})"),
            Self::Optional(value) => write!(f, "optional_type({value})"),
            Self::Object(_) => f.write_str("object"),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// The types of all parts of an expression, by the identifier of the part.
#[derive(Debug, Default)]
pub(super) struct ExpressionTypes<'a> {
    types: HashMap<u64, RuleType<'a>>,
    calls: HashMap<u64, Vec<&'static FunctionOverload>>,
    /// The expression names the old value.
    pub(super) uses_old: bool,
}

impl<'a> ExpressionTypes<'a> {
    /// Infers the types of an expression on a declared value. `old_is_optional` says that the old value may be missing.
    pub(super) fn infer(
        expression: &IdedExpr,
        declared: &'a DeclaredValue,
        old_is_optional: bool,
    ) -> Result<Self, String> {
        let this = RuleType::of_value(declared);
        let old = if old_is_optional {
            RuleType::optional_of(this.clone())
        } else {
            this.clone()
        };
        let mut inference = TypeInference {
            variables: HashMap::from([("self".to_owned(), this), ("oldSelf".to_owned(), old)]),
            found: Self::default(),
            mixes_types: false,
        };
        inference.infer(expression)?;
        Ok(inference.found)
    }

    pub(super) fn type_of(&self, expression: &IdedExpr) -> &RuleType<'a> {
        self.types.get(&expression.id).unwrap_or(&RuleType::Dynamic)
    }

    /// Returns the forms of the called function that fit its operands.
    pub(super) fn overloads_of(&self, expression: &IdedExpr) -> &[&'static FunctionOverload] {
        self.calls.get(&expression.id).map_or(&[], Vec::as_slice)
    }
}

/// Returns the name of a called function, with the name before the dot that belongs to it, and whether the function is
/// called on a value.
pub(super) fn called_function(call: &CallExpr) -> (String, Option<&IdedExpr>) {
    match call.target.as_deref() {
        Some(IdedExpr {
            expr: Expr::Ident(space),
            ..
        }) if FUNCTION_SPACES.contains(&space.as_str()) => {
            let name = format!("{space}.{}", call.func_name);
            if is_function(&name) {
                return (name, None);
            }
            (call.func_name.clone(), call.target.as_deref())
        }
        target => (call.func_name.clone(), target),
    }
}

/// The variables that an expression can name, and the types found so far.
struct TypeInference<'a> {
    variables: HashMap<String, RuleType<'a>>,
    found: ExpressionTypes<'a>,
    /// The parts of a literal list or map may have different types, as operands of `format`.
    mixes_types: bool,
}

impl<'a> TypeInference<'a> {
    fn infer(&mut self, expression: &IdedExpr) -> Result<RuleType<'a>, String> {
        let found = match &expression.expr {
            Expr::Literal(literal) => RuleType::of_literal(literal),
            Expr::Ident(name) => self.infer_variable(name)?,
            Expr::Select(select) => self.infer_select(select)?,
            Expr::Call(call) => self.infer_call(call, expression.id)?,
            Expr::Comprehension(comprehension) => self.infer_comprehension(comprehension)?,
            Expr::List(list) => RuleType::list_of(self.infer_items(list)?),
            Expr::Map(map) => {
                let (mut keys, mut values) = (RuleType::Open, RuleType::Open);
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        keys = self.join_types(keys, &entry.key)?;
                        values = self.join_types(values, &entry.value)?;
                    }
                }
                RuleType::map_of(keys, values)
            }
            Expr::Struct(_) | Expr::Unspecified => RuleType::Dynamic,
        };
        self.found.types.insert(expression.id, found.clone());
        Ok(found)
    }

    fn infer_items(&mut self, list: &ListExpr) -> Result<RuleType<'a>, String> {
        let mut items = RuleType::Open;
        for item in &list.elements {
            items = self.join_types(items, item)?;
        }
        Ok(items)
    }

    /// Returns the type of the parts of a literal list or map with one more part, which must agree.
    fn join_types(&mut self, known: RuleType<'a>, part: &IdedExpr) -> Result<RuleType<'a>, String> {
        let found = self.infer(part)?;
        if known.is_open() && found.fits(&known) {
            Ok(found)
        } else if known == RuleType::Dynamic || found == RuleType::Dynamic {
            Ok(RuleType::Dynamic)
        } else if found.fits(&known) {
            Ok(known)
        } else if self.mixes_types {
            Ok(RuleType::Dynamic)
        } else {
            Err(format!("expected type '{known}' but found '{found}'"))
        }
    }

    fn infer_variable(&mut self, name: &str) -> Result<RuleType<'a>, String> {
        self.found.uses_old |= name == "oldSelf";
        match self.variables.get(name) {
            Some(known) => Ok(known.clone()),
            None if TYPE_NAMES.contains(&name) => Ok(RuleType::Named("type")),
            None => Err(format!("undeclared reference to '{name}' (in container '')")),
        }
    }

    fn infer_select(&mut self, select: &SelectExpr) -> Result<RuleType<'a>, String> {
        let operand = self.infer(&select.operand)?;
        let field = select_field(&operand, &select.field)?;
        Ok(if select.test { RuleType::BOOL } else { field })
    }

    fn infer_call(&mut self, call: &CallExpr, id: u64) -> Result<RuleType<'a>, String> {
        let (name, target) = called_function(call);
        if !is_function(&name) {
            return Err(format!("undeclared reference to '{name}' (in container '')"));
        }
        let mixes_types = self.mixes_types;
        self.mixes_types |= name == "format";
        let operands = target.into_iter().chain(&call.args);
        let operands: Result<Vec<_>, _> = operands.map(|operand| self.infer(operand)).collect();
        self.mixes_types = mixes_types;
        let operands = operands?;
        if let Some(found) = match_function(&name, target.is_some(), &operands) {
            if let Some(text) = call.args.last().and_then(literal_text) {
                check_literal(&name, text)?;
            }
            self.found.calls.insert(id, found.overloads);
            return Ok(found.result);
        }
        let mut names = operands.iter().map(ToString::to_string);
        let applied = match target.and_then(|_| names.next()) {
            Some(target) => format!("{target}.({})", names.collect::<Vec<_>>().join(", ")),
            None => format!("({})", names.collect::<Vec<_>>().join(", ")),
        };
        Err(format!(
            "found no matching overload for '{name}' applied to '{applied}'"
        ))
    }

    fn infer_comprehension(&mut self, comprehension: &ComprehensionExpr) -> Result<RuleType<'a>, String> {
        let range = self.infer(&comprehension.iter_range)?;
        let item = match range {
            RuleType::List(item) => (*item).clone(),
            RuleType::Map(key, _) => (*key).clone(),
            RuleType::Dynamic | RuleType::Open => RuleType::Dynamic,
            other => {
                return Err(format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                ));
            }
        };
        let outer = self.variables.clone();
        self.variables.insert(comprehension.iter_var.clone(), item);
        let initial = self.infer(&comprehension.accu_init)?;
        self.variables.insert(comprehension.accu_var.clone(), initial);
        let result = self.infer_loop(comprehension);
        self.variables = outer;
        result
    }

    fn infer_loop(&mut self, comprehension: &ComprehensionExpr) -> Result<RuleType<'a>, String> {
        self.infer(&comprehension.loop_cond)?;
        let step = self.infer(&comprehension.loop_step)?;
        // An empty list has items of the type that the loop adds.
        self.variables.insert(comprehension.accu_var.clone(), step);
        self.infer(&comprehension.result)
    }
}

fn select_field<'a>(operand: &RuleType<'a>, field: &str) -> Result<RuleType<'a>, String> {
    match operand {
        RuleType::Object(fields) => {
            let declared = fields
                .get(field)
                .ok_or_else(|| format!("undefined field '{field}'"))?;
            Ok(RuleType::of_value(declared))
        }
        RuleType::Map(_, value) => Ok((**value).clone()),
        RuleType::Dynamic | RuleType::Open => Ok(RuleType::Dynamic),
        RuleType::Optional(value) => select_field(value, field).map(RuleType::optional_of),
        other => Err(format!("type '{other}' does not support field selection")),
    }
}

fn literal_text(expression: &IdedExpr) -> Option<&str> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// Checks a literal that is parsed by the function that takes it.
fn check_literal(function: &str, text: &str) -> Result<(), String> {
    let is_valid = match function {
        "matches" => regex::Regex::new(text).is_ok(),
        "timestamp" => matches_format("date-time", text),
        "duration" => is_go_duration(text),
        _ => true,
    };
    if is_valid {
        Ok(())
    } else {
        Err(format!("invalid {function} argument"))
    }
}

#[cfg(test)]
mod tests {
    use kube_cel::cel::Program;
    use serde_json::json;

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
            "inner": {"type": "object"},
            "template": {"type": "object", "x-kubernetes-embedded-resource": true},
        }});
        let declared = DeclaredValue::from_schema(&declared, false).expect("the schema has a type");
        let program = Program::compile(expression).map_err(|error| error.to_string())?;
        let types = ExpressionTypes::infer(program.expression(), &declared, false)?;
        match types.type_of(program.expression()) {
            found if *found == RuleType::BOOL => Ok(()),
            other => Err(format!("evaluates to {other}")),
        }
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
            "self.inner == null",
            "self.template.metadata.name != ''",
            "'%s-%d'.format([self.mode, self.size]) != ''",
            "sets.contains([self.mode], self.items.map(i, i.name))",
            "!format.dns1123Label().validate(self.mode).hasValue()",
            "self.items.map(i, i.name).sort()[0].startsWith('a')",
            "optional.of(self.mode).orValue('') == ''",
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
                "found no matching overload for '_>_' applied to '(int, string)'",
            ),
            (
                "self.mode == 1",
                "found no matching overload for '_==_' applied to '(string, int)'",
            ),
            (
                "self.size.startsWith('a')",
                "no matching overload for 'startsWith'",
            ),
            ("self.mode.all(c, c != '')", "cannot be range of a comprehension"),
            ("self.mode", "evaluates to string"),
            ("self.port", "evaluates to dyn"),
            ("self.mode == null", "applied to '(string, null)'"),
            ("self.ratio == 1", "applied to '(double, int)'"),
            ("[1, 'a'].size() == 2", "expected type 'int' but found 'string'"),
            (
                "self.inner == {'a': 1}",
                "applied to '(object, map(string, int))'",
            ),
            ("self.template.metadata.labels == {}", "undefined field 'labels'"),
            ("exist(self.mode)", "undeclared reference to 'exist'"),
            ("self.mode.matches('[')", "invalid matches argument"),
            ("self.when > timestamp('2026')", "invalid timestamp argument"),
            ("duration('1 day') > duration('1h')", "invalid duration argument"),
            ("self.size.a == 1", "does not support field selection"),
        ] {
            let error = check(rule).unwrap_err();
            assert!(error.contains(why), "{rule}: {error}");
        }
    }
}
