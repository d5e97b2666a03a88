//! Estimated costs of CEL rules: what the evaluation of an expression takes in the worst case, in the units of CEL.
//!
//! A kube-apiserver refuses a definition whose rules may cost too much. The estimate follows the cost model of CEL (1 for a
//! field, a variable or a call, a tenth for each character that is read, the body of a loop for each item) and the sizes of
//! [`DeclaredValue`], so that a rule is refused here when it is refused there.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr,
};

use super::call_cost::{CALL_COST, LIST_COST, Operand, cost_of_overload};
use super::declaration::{DeclaredShape, DeclaredValue};
use super::size::{EntrySizes, SizeRange};
use super::types::{ExpressionTypes, RuleType, called_function};

/// Cost of a variable or a field.
const ACCESS_COST: u64 = 1;
/// Cost of a new map.
const MAP_COST: u64 = 30;
/// Cost of a new object.
const OBJECT_COST: u64 = 40;
/// Returns the largest cost of an expression on a declared value.
pub(super) fn estimate_cost(
    expression: &IdedExpr,
    types: &ExpressionTypes<'_>,
    declared: &DeclaredValue,
) -> u64 {
    let mut estimate = CostEstimate {
        types,
        declared,
        paths: HashMap::new(),
        variables: HashMap::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
    };
    estimate.cost(expression)
}

/// One step from a variable to a part of its value.
#[derive(Debug, Clone, PartialEq)]
enum PathStep {
    Name(String),
    Items,
    Values,
    Keys,
}

/// The place of a value: a variable, and the steps from it. Empty for values that the expression makes.
///
/// The steps stand in memory that longer paths share while they fit, so that of two paths with the same start the one that
/// is made later may overwrite the end of the other. This is what the Go slices of cel-go 0.26 do, and it decides which
/// rules a kube-apiserver accepts: in `self.items.all(i, i.tags.all(t, t != i.name))`, the length of the loop over `i.tags` is
/// taken from `i.name`.
#[derive(Debug, Clone, Default)]
struct ValuePath {
    steps: Rc<RefCell<Vec<PathStep>>>,
    length: usize,
    capacity: usize,
}

impl ValuePath {
    fn of_variable(name: &str) -> Self {
        Self::default().append(PathStep::Name(name.to_owned()))
    }

    fn append(&self, step: PathStep) -> Self {
        let mut path = self.clone();
        if self.length == self.capacity {
            path.steps = Rc::new(RefCell::new(self.to_steps()));
            path.capacity = (2 * self.capacity).max(1);
        }
        path.length += 1;
        let mut steps = path.steps.borrow_mut();
        match steps.get_mut(self.length) {
            Some(shared) => *shared = step,
            None => steps.push(step),
        }
        drop(steps);
        path
    }

    fn to_steps(&self) -> Vec<PathStep> {
        self.steps.borrow()[..self.length].to_vec()
    }
}

/// A variable of a loop.
#[derive(Debug, Clone)]
struct LoopVariable {
    path: ValuePath,
    size: Option<SizeRange>,
    entries: Option<EntrySizes>,
}

struct CostEstimate<'a> {
    types: &'a ExpressionTypes<'a>,
    declared: &'a DeclaredValue,
    paths: HashMap<u64, ValuePath>,
    variables: HashMap<String, Vec<LoopVariable>>,
    sizes: HashMap<u64, SizeRange>,
    entries: HashMap<u64, EntrySizes>,
}

impl<'a> CostEstimate<'a> {
    fn cost(&mut self, expression: &IdedExpr) -> u64 {
        match &expression.expr {
            Expr::Literal(_) | Expr::Unspecified => 0,
            Expr::Ident(name) => {
                let path = match self.variable(name) {
                    Some(variable) => variable.path.clone(),
                    None => ValuePath::of_variable(name),
                };
                self.paths.insert(expression.id, path);
                ACCESS_COST
            }
            Expr::Select(select) => {
                let cost = self.cost(&select.operand);
                if select.test {
                    return cost;
                }
                let path = self
                    .path(&select.operand)
                    .append(PathStep::Name(select.field.clone()));
                self.paths.insert(expression.id, path);
                match self.types.type_of(&select.operand) {
                    RuleType::Map(..) | RuleType::Object(_) | RuleType::Open => {
                        cost.saturating_add(ACCESS_COST)
                    }
                    _ => cost,
                }
            }
            Expr::Call(call) => self.cost_of_call(call, expression),
            Expr::List(list) => self.cost_of_list(list, expression.id),
            Expr::Map(map) => self.cost_of_map(map, expression.id),
            Expr::Struct(object) => {
                let fields = object.entries.iter().map(|entry| match &entry.expr {
                    EntryExpr::StructField(field) => self.cost(&field.value),
                    EntryExpr::MapEntry(entry) => self.cost(&entry.value),
                });
                fields.fold(OBJECT_COST, u64::saturating_add)
            }
            Expr::Comprehension(comprehension) => self.cost_of_loop(comprehension, expression.id),
        }
    }

    fn cost_of_list(&mut self, list: &ListExpr, id: u64) -> u64 {
        let mut cost = LIST_COST;
        let mut items: Option<SizeRange> = None;
        for item in &list.elements {
            cost = cost.saturating_add(self.cost(item));
            let size = self.size_or_unknown(item);
            items = Some(items.map_or(size, |items| items.join(size)));
        }
        let entries = EntrySizes {
            is_list: true,
            key: SizeRange::exactly(1),
            value: items.unwrap_or(SizeRange::exactly(0)),
        };
        self.entries.insert(id, entries);
        cost
    }

    fn cost_of_map(&mut self, map: &MapExpr, id: u64) -> u64 {
        let mut cost = MAP_COST;
        let mut sizes: Option<(SizeRange, SizeRange)> = None;
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                continue;
            };
            cost = cost
                .saturating_add(self.cost(&entry.key))
                .saturating_add(self.cost(&entry.value));
            let found = (
                self.size_or_unknown(&entry.key),
                self.size_or_unknown(&entry.value),
            );
            sizes = Some(sizes.map_or(found, |(key, value)| (key.join(found.0), value.join(found.1))));
        }
        let (key, value) = sizes.unwrap_or((SizeRange::exactly(0), SizeRange::exactly(0)));
        self.entries.insert(
            id,
            EntrySizes {
                is_list: false,
                key,
                value,
            },
        );
        cost
    }

    fn cost_of_loop(&mut self, comprehension: &ComprehensionExpr, id: u64) -> u64 {
        let range = &comprehension.iter_range;
        let initial = &comprehension.accu_init;
        let mut cost = self.cost(range).saturating_add(self.cost(initial));
        let result = LoopVariable {
            path: self.path(initial),
            size: self.size(initial),
            entries: self.entries_of(initial),
        };
        self.declare(&comprehension.accu_var, result);
        let variable = self.loop_variable(range);
        self.declare(&comprehension.iter_var, variable);
        let condition = self.cost(&comprehension.loop_cond);
        let step = self.cost(&comprehension.loop_step);
        self.forget(&comprehension.iter_var);
        cost = cost.saturating_add(self.cost(&comprehension.result));
        self.forget(&comprehension.accu_var);
        let count = self.size_or_unknown(range);
        cost = cost.saturating_add(count.max.saturating_mul(step.saturating_add(condition)));
        match &initial.expr {
            Expr::Literal(_) => {
                let size = self.size(initial);
                self.set_size(id, size);
            }
            Expr::List(_) | Expr::Map(_) => {
                self.set_size(id, Some(count));
                if let Some(entries) = self.entries_of(&comprehension.loop_step) {
                    self.entries.insert(id, entries);
                }
            }
            _ => {}
        }
        cost
    }

    /// Returns the variable of a loop over the items of a list, or the keys of a map.
    fn loop_variable(&self, range: &IdedExpr) -> LoopVariable {
        let entries = self.entries_of(range);
        let is_list = match &entries {
            Some(entries) => entries.is_list,
            None => matches!(self.types.type_of(range), RuleType::List(_)),
        };
        let (step, size) = if is_list {
            (PathStep::Items, entries.map(|entries| entries.value))
        } else {
            (PathStep::Keys, entries.map(|entries| entries.key))
        };
        LoopVariable {
            path: self.path(range).append(step),
            size,
            entries: None,
        }
    }

    fn cost_of_call(&mut self, call: &CallExpr, expression: &IdedExpr) -> u64 {
        let (function, target) = called_function(call);
        if let ("dyn", [operand]) = (function.as_str(), call.args.as_slice()) {
            let cost = self.cost(operand).saturating_add(CALL_COST);
            let (size, entries) = (self.size(operand), self.entries_of(operand));
            self.set_size(expression.id, size);
            self.entries
                .extend(entries.map(|entries| (expression.id, entries)));
            return cost;
        }
        let mut costs = Vec::with_capacity(call.args.len());
        let mut operands = Vec::with_capacity(call.args.len());
        for operand in &call.args {
            costs.push(self.cost(operand));
            operands.push(self.operand(operand));
        }
        let cost_of_target = target.map_or(0, |target| self.cost(target));
        let target = target.map(|target| self.operand(target));
        let types = self.types;
        let mut most = 0;
        let mut result: Option<SizeRange> = None;
        for overload in types.overloads_of(expression) {
            let found = cost_of_overload(&function, overload, target.as_ref(), &operands);
            self.entries
                .extend(found.entries.map(|entries| (expression.id, entries)));
            let operand_costs = match (function.as_str(), costs.as_slice()) {
                ("_?_:_", [condition, one, other]) => condition.saturating_add(*one.max(other)),
                _ => costs.iter().copied().fold(0, u64::saturating_add),
            };
            most = most.max(found.cost.saturating_add(operand_costs));
            result = match (result, found.size) {
                (Some(one), Some(other)) => Some(one.join(other)),
                (one, other) => one.or(other),
            };
            let step = match overload.operands.first() {
                Some(RuleType::List(_)) => Some(PathStep::Items),
                Some(RuleType::Map(..)) => Some(PathStep::Values),
                _ => None,
            };
            if let (Some(step), "_[_]", [container, ..]) = (step, function.as_str(), call.args.as_slice()) {
                result = self.entries_of(container).map(|entries| entries.value);
                let path = self.path(container).append(step);
                self.paths.insert(expression.id, path);
            }
            if result.is_none() {
                result = self.size(expression);
            }
        }
        self.set_size(expression.id, result);
        cost_of_target.saturating_add(most)
    }

    fn operand<'e>(&mut self, expression: &'e IdedExpr) -> Operand<'e>
    where
        'a: 'e,
    {
        let mut steps = self.path(expression).to_steps();
        let item_size = if steps.is_empty() {
            None
        } else {
            steps.push(PathStep::Items);
            self.declared_size(&steps)
        };
        Operand {
            expression,
            operand_type: self.types.type_of(expression),
            size: self.size(expression),
            entries: self.entries_of(expression),
            item_size: item_size.unwrap_or(SizeRange::UNKNOWN),
        }
    }

    fn variable(&self, name: &str) -> Option<&LoopVariable> {
        self.variables.get(name)?.last()
    }

    fn declare(&mut self, name: &str, variable: LoopVariable) {
        self.variables.entry(name.to_owned()).or_default().push(variable);
    }

    fn forget(&mut self, name: &str) {
        self.variables.entry(name.to_owned()).or_default().pop();
    }

    fn path(&self, expression: &IdedExpr) -> ValuePath {
        if let Expr::Ident(name) = &expression.expr
            && let Some(variable) = self.variable(name)
        {
            return variable.path.clone();
        }
        self.paths.get(&expression.id).cloned().unwrap_or_default()
    }

    fn set_size(&mut self, id: u64, size: Option<SizeRange>) {
        self.sizes.extend(size.map(|size| (id, size)));
    }

    fn entries_of(&self, expression: &IdedExpr) -> Option<EntrySizes> {
        let of_variable = || match &expression.expr {
            Expr::Ident(name) => self.variable(name)?.entries,
            _ => None,
        };
        self.entries.get(&expression.id).copied().or_else(of_variable)
    }

    fn size_or_unknown(&mut self, expression: &IdedExpr) -> SizeRange {
        self.size(expression).unwrap_or(SizeRange::UNKNOWN)
    }

    fn size(&mut self, expression: &IdedExpr) -> Option<SizeRange> {
        if let Some(known) = self.sizes.get(&expression.id) {
            return Some(*known);
        }
        let literal = match &expression.expr {
            Expr::Literal(LiteralValue::String(text)) => Some(text.inner().chars().count()),
            Expr::Literal(LiteralValue::Bytes(bytes)) => Some(bytes.inner().len()),
            Expr::Literal(_) => Some(1),
            Expr::List(list) => Some(list.elements.len()),
            Expr::Map(map) => Some(map.entries.len()),
            _ => None,
        };
        if let Some(size) = literal {
            return Some(SizeRange::exactly(size as u64));
        }
        if let Some(declared) = self.declared_size(&self.path(expression).to_steps()) {
            self.sizes.insert(expression.id, declared);
            return Some(declared);
        }
        if self.types.type_of(expression).is_scalar() {
            return Some(SizeRange::exactly(1));
        }
        match &expression.expr {
            Expr::Ident(name) => self.variable(name)?.size,
            _ => None,
        }
    }

    /// Returns the size of the value at a path, of which the first step is the variable.
    fn declared_size(&self, path: &[PathStep]) -> Option<SizeRange> {
        let (_, steps) = path.split_first()?;
        let mut value = self.declared;
        for (index, step) in steps.iter().enumerate() {
            value = match (step, &value.shape) {
                (
                    PathStep::Items | PathStep::Values,
                    DeclaredShape::List(inner) | DeclaredShape::Map(inner),
                ) => inner,
                // Nothing bounds the keys of a map, and a kube-apiserver counts them as empty.
                (PathStep::Keys, DeclaredShape::Map(_)) if index + 1 == steps.len() => {
                    return Some(SizeRange::exactly(0));
                }
                (PathStep::Name(name), DeclaredShape::Object(fields)) => fields.get(name)?,
                _ => return None,
            };
        }
        Some(SizeRange {
            min: 0,
            max: value.max_elements,
        })
    }
}

#[cfg(test)]
mod tests {
    use kube_cel::cel::Program;
    use serde_json::json;

    use super::*;

    fn estimate(expression: &str) -> u64 {
        let item = json!({"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string", "maxLength": 30},
            "tags": {"type": "array", "maxItems": 4, "items": {"type": "string", "maxLength": 7}},
            "other": {"type": "string", "maxLength": 500},
        }});
        let declared = json!({"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 10},
            "text": {"type": "string"},
            "mode": {"type": "string", "enum": ["on", "automatic"]},
            "flag": {"type": "boolean"},
            "when": {"type": "string", "format": "date-time"},
            "data": {"type": "string", "format": "byte", "maxLength": 40},
            "port": {"x-kubernetes-int-or-string": true},
            "labels": {
                "type": "object", "maxProperties": 16,
                "additionalProperties": {"type": "string", "maxLength": 63},
            },
            "anyLabels": {"type": "object", "additionalProperties": {"type": "string"}},
            "names": {"type": "array", "maxItems": 8, "items": {"type": "string", "maxLength": 20}},
            "anyNames": {"type": "array", "items": {"type": "string"}},
            "items": {"type": "array", "maxItems": 12, "items": item},
            "some-dash": {"type": "string", "maxLength": 3},
        }});
        let declared = DeclaredValue::from_schema(&declared, false).expect("the schema has a type");
        let program = Program::compile(expression).expect("the rule can be parsed");
        let types = ExpressionTypes::infer(program.expression(), &declared, false).expect(expression);
        estimate_cost(program.expression(), &types, &declared)
    }

    /// The costs are those that the packages of a kube-apiserver 1.36 estimate for the same schema.
    #[test]
    fn costs_are_those_of_a_kube_apiserver() {
        for (rule, cost) in [
            ("self.text == 'abc'", 3),
            ("self.text == self.name", 8),
            ("self.mode == self.text", 5),
            ("!has(self.text) || self.text.size() > 3", 6),
            ("self.text.matches('^[a-z]+$')", 629_148),
            ("self.name.contains('ab')", 6),
            ("self.names.all(n, n.startsWith('a'))", 43),
            ("self.names.exists_one(n, n == self.name)", 76),
            ("self.anyNames.all(n, n == 'a')", 5_242_878),
            (
                "self.items.all(i, self.items.exists_one(j, j.name == i.name))",
                2_679,
            ),
            ("self.items.all(i, i.tags.all(t, t.size() > 0))", 363),
            ("self.items.all(i, i.tags.all(t, t != i.other))", 216_075),
            ("self.items.map(i, i.name).filter(n, n != '').size() == 1", 362),
            (
                "self.names.map(n, n + 'x').join(',').size() < 10",
                1_844_674_407_370_955_455,
            ),
            ("self.names.isSorted()", 74),
            ("self.names.distinct().size() == self.names.size()", 146),
            ("self.labels.all(k, self.labels[k] != '')", 115),
            ("self.name in ['a', 'b', 'c']", 15),
            ("self.name in self.names", 12),
            ("self.port == 'http'", 3),
            ("self.when > timestamp('2026-01-01T00:00:00Z')", 4),
            ("string(self.data) == 'abc'", 7),
            ("(self.flag ? self.name : self.mode).matches('^a$')", 9),
            ("self.text.replace('', 'bb').contains('x')", 1_572_866),
            ("self.name.split(',', 2).size() == 2", 12),
            ("self.text.find('[0-9]+') == '1'", 629_149),
            ("quantity(self.text) == quantity('1')", 314_577),
            ("cidr(self.name).containsCIDR(self.text)", 314_588),
            ("sets.equivalent(self.names, self.names)", 133),
            (
                "format.named('dns1123Label').value().validate(self.text).hasValue()",
                10_066_341,
            ),
            ("lists.range(10).all(i, i < 11)", 72),
            ("self.items == oldSelf.items", 6),
            ("self.some__dash__dash == 'a'", 3),
            ("{'a': 1, 'b': 2}[self.name] == 1", 34),
            (
                "self.anyLabels.map(k, self.anyLabels[k]).exists(v, v == 'x')",
                8_257_529,
            ),
        ] {
            assert_eq!(estimate(rule), cost, "{rule}");
        }
    }
}
