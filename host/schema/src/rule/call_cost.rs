//! Costs of the functions of CEL, and the sizes of what they return.

use kube_cel::cel::common::ast::{Expr, IdedExpr, LiteralValue};

use super::function::FunctionOverload;
use super::size::{EntrySizes, SizeRange, scale_cost};
use super::types::RuleType;

/// Cost of a call beside what its operands take.
pub(super) const CALL_COST: u64 = 1;
/// Cost of a new list.
pub(super) const LIST_COST: u64 = 10;
/// Cost of a character that is read.
const CHARACTER_COST: f64 = 0.1;
/// Cost of a character of a regular expression, for each unit that reading the text costs.
const PATTERN_CHARACTER_COST: f64 = 0.25;
/// Characters of the regular expression behind the longest named format.
const MAX_FORMAT_PATTERN: f64 = 128.0;
/// Characters of the longest name of a format.
const MAX_FORMAT_NAME: u64 = 64;

/// An operand of a call.
pub(super) struct Operand<'e> {
    pub(super) expression: &'e IdedExpr,
    pub(super) operand_type: &'e RuleType<'e>,
    pub(super) size: Option<SizeRange>,
    pub(super) entries: Option<EntrySizes>,
    /// The size of each item of a list.
    pub(super) item_size: SizeRange,
}

impl Operand<'_> {
    fn size(&self) -> SizeRange {
        self.size.unwrap_or(SizeRange::UNKNOWN)
    }

    /// The type of the items of a list.
    fn item_type(&self) -> Option<&RuleType<'_>> {
        list_item(self.operand_type)
    }

    /// A literal number, or another one for an expression.
    fn number_or(&self, default: u64) -> u64 {
        match &self.expression.expr {
            Expr::Literal(LiteralValue::Int(number)) => u64::try_from(*number.inner()).unwrap_or(0),
            _ => default,
        }
    }

    fn join_entries(&self, other: &Self) -> Option<EntrySizes> {
        Some(self.entries?.join(other.entries?))
    }
}

/// Cost of a call beside its operands, and the size of its result.
pub(super) struct CallCost {
    pub(super) cost: u64,
    pub(super) size: Option<SizeRange>,
    /// Sizes of the parts of the result.
    pub(super) entries: Option<EntrySizes>,
}

impl CallCost {
    fn of(cost: u64) -> Self {
        Self {
            cost,
            size: None,
            entries: None,
        }
    }

    fn with_size(cost: u64, size: SizeRange) -> Self {
        Self {
            size: Some(size),
            ..Self::of(cost)
        }
    }

    /// The cost of a new list, with a factor for each item.
    fn of_list(factor: f64, size: SizeRange) -> Self {
        let cost = size.cost(factor).saturating_add(CALL_COST + LIST_COST);
        Self::with_size(cost, size)
    }
}

/// Returns the cost of one form of a function beside its operands.
pub(super) fn cost_of_overload(
    function: &str,
    overload: &FunctionOverload,
    target: Option<&Operand<'_>>,
    operands: &[Operand<'_>],
) -> CallCost {
    if let Some(cost) = cost_of_list_function(function, overload, target, operands) {
        return cost;
    }
    if let Some(cost) = cost_of_library_function(function, overload, target, operands) {
        return cost;
    }
    let first = overload.operands.first();
    let takes_text = first.is_some_and(RuleType::is_text);
    let takes_list = matches!(first, Some(RuleType::List(_)));
    match (function, target, operands) {
        ("format", Some(target), _) => CallCost::of(target.size().cost(CHARACTER_COST)),
        ("bytes", None, [text]) if first == Some(&RuleType::TEXT) => {
            let text = text.size();
            let bytes = SizeRange {
                min: text.min,
                max: text.max.wrapping_mul(4),
            };
            CallCost::with_size(text.cost(CHARACTER_COST), bytes)
        }
        ("string", None, [bytes]) if first == Some(&RuleType::BYTES) => {
            let bytes = bytes.size();
            let text = SizeRange {
                min: bytes.min / 4,
                max: bytes.max,
            };
            CallCost::with_size(bytes.cost(CHARACTER_COST), text)
        }
        ("strings.quote", None, [text]) => {
            let text = text.size();
            let quoted = SizeRange {
                min: text.min.wrapping_add(2),
                max: text.max.wrapping_mul(2).wrapping_add(2),
            };
            CallCost::with_size(text.cost(CHARACTER_COST), quoted)
        }
        ("startsWith" | "endsWith", Some(_), [part]) => CallCost::of(part.size().cost(CHARACTER_COST)),
        ("@in", None, [_, list]) if matches!(overload.operands[1], RuleType::List(_)) => {
            CallCost::of(list.size().max)
        }
        ("matches", Some(target), [pattern]) => CallCost::of(cost_of_pattern(target.size(), pattern.size())),
        ("contains", Some(target), [part]) => {
            let (text, part) = (
                target.size().cost(CHARACTER_COST),
                part.size().cost(CHARACTER_COST),
            );
            CallCost::of(text.saturating_mul(part))
        }
        ("_&&_" | "_||_", ..) => CallCost::of(0),
        ("_?_:_", None, [_, one, other]) => CallCost {
            entries: one.join_entries(other),
            ..CallCost::with_size(0, one.size().join(other.size()))
        },
        ("_+_", None, [left, right]) if takes_text || takes_list => {
            let result = left.size().add(right.size());
            let cost = if takes_list {
                CALL_COST
            } else {
                result.cost(CHARACTER_COST)
            };
            CallCost {
                entries: left.join_entries(right),
                ..CallCost::with_size(cost, result)
            }
        }
        ("_==_" | "_!=_", None, [left, right]) => CallCost::of(cost_of_comparison(left.size(), right.size())),
        ("_<_" | "_<=_" | "_>_" | "_>=_", None, [left, right]) if takes_text => {
            CallCost::of(cost_of_comparison(left.size(), right.size()))
        }
        _ => CallCost::of(CALL_COST),
    }
}

/// Returns the cost of functions of lists and sets.
fn cost_of_list_function(
    function: &str,
    overload: &FunctionOverload,
    target: Option<&Operand<'_>>,
    operands: &[Operand<'_>],
) -> Option<CallCost> {
    let cost = match (function, target, operands) {
        ("slice", Some(list), [start, end]) => {
            let (start, end) = (start.number_or(0), end.number_or(list.size().max));
            CallCost::of_list(1.0, SizeRange::exactly(end.wrapping_sub(start)))
        }
        ("lists.range", None, [count]) => {
            CallCost::of_list(1.0, SizeRange::exactly(count.number_or(u64::MAX)))
        }
        ("reverse", Some(list), []) => CallCost::of_list(1.0, list.size()),
        ("flatten", Some(list), depth) => {
            #[expect(clippy::cast_precision_loss, reason = "a factor of the estimate")]
            let depth = depth.first().map_or(1, |depth| depth.number_or(u64::MAX)) as f64;
            CallCost::of_list(depth, list.size())
        }
        ("distinct", Some(list), []) => CallCost::of_list(2.0, list.size().multiply(list.size())),
        ("sort", Some(list), []) => {
            let is_text = overload
                .operands
                .first()
                .and_then(list_item)
                .is_some_and(RuleType::is_text);
            let factor = if is_text { 2.0 + CHARACTER_COST } else { 2.0 };
            CallCost::of_list(factor, list.size().multiply(list.size()))
        }
        ("sets.contains" | "sets.intersects" | "sets.equivalent", None, [left, right]) => {
            let factor = if function == "sets.equivalent" { 2.0 } else { 1.0 };
            let pairs = left.size().multiply(right.size());
            CallCost::of(pairs.cost(factor).saturating_add(CALL_COST))
        }
        _ => return None,
    };
    Some(cost)
}

/// Returns the cost of the functions that Kubernetes adds to CEL.
fn cost_of_library_function(
    function: &str,
    overload: &FunctionOverload,
    target: Option<&Operand<'_>>,
    operands: &[Operand<'_>],
) -> Option<CallCost> {
    let cost = match (function, target, operands) {
        ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(target), _) => {
            let Some(item) = target.item_type() else {
                return Some(CallCost::of(target.size().cost(CHARACTER_COST)));
            };
            let mut cost_per_item = CALL_COST;
            if item.is_text() {
                let length = target.item_size.cost(CHARACTER_COST);
                cost_per_item = cost_per_item.saturating_add(length);
            }
            CallCost::of(target.size().max.saturating_mul(cost_per_item))
        }
        ("url" | "jsonpatch.escapeKey", None, [text]) => {
            CallCost::with_size(text.size().cost(CHARACTER_COST), text.size())
        }
        ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(text), _) => {
            CallCost::with_size(text.size().cost(CHARACTER_COST), text.size())
        }
        ("replace", Some(text), [from, to, ..]) => CallCost::with_size(
            text.size().cost(2.0 * CHARACTER_COST),
            size_of_replaced(text.size(), from.size(), to.size()),
        ),
        ("split", Some(text), parts) => {
            let limit = parts.get(1).map(|limit| limit.number_or(text.size().max));
            let count = SizeRange {
                min: 0,
                max: limit.unwrap_or(text.size().max),
            };
            CallCost::with_size(text.size().cost(2.0 * CHARACTER_COST), count)
        }
        ("join", Some(list), separator) => {
            let count = list.size();
            let mut length = count.multiply(list.item_size);
            if let [separator] = separator {
                let separators = SizeRange {
                    min: count.min.saturating_sub(1),
                    max: count.max.saturating_sub(1),
                };
                length = length.add(separator.size().multiply(separators));
            }
            CallCost::with_size(length.cost(CHARACTER_COST), length)
        }
        ("find" | "findAll", Some(text), [pattern, ..]) => {
            let found = SizeRange {
                min: 0,
                max: text.size().max,
            };
            CallCost::with_size(cost_of_pattern(text.size(), pattern.size()), found)
        }
        ("ip", Some(_), []) => CallCost::of(CALL_COST),
        (
            "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver",
            None,
            [text, ..],
        ) => CallCost::of(text.size().cost(CHARACTER_COST)),
        ("ip.isCanonical", None, [text]) => CallCost::of(text.size().cost(2.0 * CHARACTER_COST)),
        ("containsIP" | "containsCIDR", Some(_), [part]) => {
            // Addresses have 16 bytes at most; two of them are compared, and that of a network is masked before.
            let address = SizeRange::exactly(16);
            let mut cost = address.add(address).cost(CHARACTER_COST);
            if function == "containsCIDR" {
                cost += address.cost(CHARACTER_COST) + CALL_COST;
            }
            if overload.operands.get(1) == Some(&RuleType::TEXT) {
                cost = cost.saturating_add(part.size().cost(CHARACTER_COST));
            }
            CallCost::of(cost)
        }
        ("validate", Some(_), [text]) => {
            let length = text.size().cost(CHARACTER_COST);
            CallCost::of(scale_cost(length, MAX_FORMAT_PATTERN * PATTERN_CHARACTER_COST))
        }
        ("_==_", None, [left, right]) => {
            let left_type = left.operand_type;
            if left_type != right.operand_type {
                return None;
            }
            match left_type {
                RuleType::Named("ip" | "cidr" | "quantity" | "semver") => CallCost::of(CALL_COST),
                RuleType::Named("format") => CallCost::of(scale_cost(MAX_FORMAT_NAME, CHARACTER_COST)),
                RuleType::Named("url") => {
                    CallCost::of(right.size.map_or(1, |size| size.cost(CHARACTER_COST)))
                }
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(cost)
}

fn list_item<'t, 'a>(found: &'t RuleType<'a>) -> Option<&'t RuleType<'a>> {
    match found {
        RuleType::List(item) => Some(item),
        _ => None,
    }
}

/// Returns the cost of a regular expression: of the text, times that of the pattern.
fn cost_of_pattern(text: SizeRange, pattern: SizeRange) -> u64 {
    let text = text.add(SizeRange::exactly(1)).cost(CHARACTER_COST);
    text.saturating_mul(pattern.cost(PATTERN_CHARACTER_COST))
}

/// Returns the cost of a comparison, which ends with the shorter value.
fn cost_of_comparison(left: SizeRange, right: SizeRange) -> u64 {
    scale_cost(left.max.min(right.max), CHARACTER_COST)
}

/// Returns the size of a text in which a part is replaced as often as it can be found.
fn size_of_replaced(text: SizeRange, from: SizeRange, to: SizeRange) -> SizeRange {
    let replaced = |size: u64, from: u64, to: u64, keeps_length: bool| {
        let (count, retained) = match from {
            0 => (size.saturating_add(1), size),
            _ if keeps_length => (0, size),
            from => (size.div_ceil(from), 0),
        };
        count.saturating_mul(to).saturating_add(retained)
    };
    SizeRange {
        min: replaced(text.min, from.max, to.min, from.max <= to.min),
        max: replaced(text.max, from.min, to.max, to.max <= from.min),
    }
}
