//! Functions of CEL as a kube-apiserver offers them to rules, with the types that they take and return.
//!
//! A signature is written as in the documentation of CEL: `string.split(string, int) list(string)` is called on a text, and
//! capital letters are types that must agree.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::types::RuleType;

/// Names of functions, and the signatures that all of them have.
const FUNCTIONS: &[(&str, &[&str])] = &[
    ("_==_ _!=_", &["(A, A) bool"]),
    ("_&&_ _||_", &["(bool, bool) bool"]),
    ("!_ @not_strictly_false", &["(bool) bool"]),
    ("_?_:_", &["(bool, A, A) A"]),
    (
        "_<_ _<=_ _>_ _>=_",
        &[
            "(bool, bool) bool",
            "(int, int) bool",
            "(int, double) bool",
            "(int, uint) bool",
            "(uint, uint) bool",
            "(uint, double) bool",
            "(uint, int) bool",
            "(double, double) bool",
            "(double, int) bool",
            "(double, uint) bool",
            "(string, string) bool",
            "(bytes, bytes) bool",
            "(timestamp, timestamp) bool",
            "(duration, duration) bool",
        ],
    ),
    (
        "_+_",
        &[
            "(bytes, bytes) bytes",
            "(double, double) double",
            "(duration, duration) duration",
            "(duration, timestamp) timestamp",
            "(timestamp, duration) timestamp",
            "(int, int) int",
            "(list(A), list(A)) list(A)",
            "(string, string) string",
            "(uint, uint) uint",
        ],
    ),
    (
        "_-_",
        &[
            "(double, double) double",
            "(duration, duration) duration",
            "(int, int) int",
            "(timestamp, duration) timestamp",
            "(timestamp, timestamp) duration",
            "(uint, uint) uint",
        ],
    ),
    (
        "_*_ _/_",
        &["(double, double) double", "(int, int) int", "(uint, uint) uint"],
    ),
    ("_%_", &["(int, int) int", "(uint, uint) uint"]),
    ("-_", &["(double) double", "(int) int"]),
    (
        "_[_]",
        &[
            "(list(A), int) A",
            "(map(A, B), A) B",
            "(optional(list(A)), int) optional(A)",
            "(optional(map(A, B)), A) optional(B)",
        ],
    ),
    ("@in", &["(A, list(A)) bool", "(A, map(A, B)) bool"]),
    (
        "size",
        &[
            "(bytes) int",
            "bytes.() int",
            "(list(A)) int",
            "list(A).() int",
            "(map(A, B)) int",
            "map(A, B).() int",
            "(string) int",
            "string.() int",
        ],
    ),
    ("type", &["(A) type"]),
    ("dyn", &["(A) dyn"]),
    ("bool", &["(bool) bool", "(string) bool"]),
    ("bytes", &["(bytes) bytes", "(string) bytes"]),
    (
        "double",
        &[
            "(double) double",
            "(int) double",
            "(string) double",
            "(uint) double",
        ],
    ),
    (
        "duration",
        &["(duration) duration", "(int) duration", "(string) duration"],
    ),
    (
        "int",
        &[
            "(int) int",
            "(double) int",
            "(duration) int",
            "(string) int",
            "(timestamp) int",
            "(uint) int",
        ],
    ),
    (
        "string",
        &[
            "(string) string",
            "(bool) string",
            "(bytes) string",
            "(double) string",
            "(duration) string",
            "(int) string",
            "(timestamp) string",
            "(uint) string",
            "(ip) string",
            "(cidr) string",
        ],
    ),
    (
        "timestamp",
        &["(timestamp) timestamp", "(int) timestamp", "(string) timestamp"],
    ),
    (
        "uint",
        &["(uint) uint", "(double) uint", "(int) uint", "(string) uint"],
    ),
    ("contains endsWith startsWith", &["string.(string) bool"]),
    ("matches", &["(string, string) bool", "string.(string) bool"]),
    (
        "getFullYear getMonth getDayOfYear getDayOfMonth getDate getDayOfWeek",
        &["timestamp.() int", "timestamp.(string) int"],
    ),
    (
        "getHours getMinutes getSeconds getMilliseconds",
        &["timestamp.() int", "timestamp.(string) int", "duration.() int"],
    ),
    // Texts.
    ("charAt", &["string.(int) string"]),
    (
        "indexOf lastIndexOf",
        &[
            "string.(string) int",
            "string.(string, int) int",
            "list(A).(A) int",
        ],
    ),
    ("lowerAscii upperAscii trim", &["string.() string"]),
    (
        "replace",
        &[
            "string.(string, string) string",
            "string.(string, string, int) string",
        ],
    ),
    (
        "split",
        &[
            "string.(string) list(string)",
            "string.(string, int) list(string)",
        ],
    ),
    ("substring", &["string.(int) string", "string.(int, int) string"]),
    ("format", &["string.(list(dyn)) string"]),
    ("strings.quote", &["(string) string"]),
    (
        "join",
        &["list(string).() string", "list(string).(string) string"],
    ),
    ("find", &["string.(string) string"]),
    (
        "findAll",
        &[
            "string.(string) list(string)",
            "string.(string, int) list(string)",
        ],
    ),
    ("jsonpatch.escapeKey", &["(string) string"]),
    // Lists.
    (
        "isSorted",
        &[
            "list(int).() bool",
            "list(uint).() bool",
            "list(double).() bool",
            "list(bool).() bool",
            "list(duration).() bool",
            "list(timestamp).() bool",
            "list(string).() bool",
            "list(bytes).() bool",
        ],
    ),
    (
        "min max",
        &[
            "list(int).() int",
            "list(uint).() uint",
            "list(double).() double",
            "list(bool).() bool",
            "list(duration).() duration",
            "list(timestamp).() timestamp",
            "list(string).() string",
            "list(bytes).() bytes",
        ],
    ),
    (
        "sum",
        &[
            "list(int).() int",
            "list(uint).() uint",
            "list(double).() double",
            "list(duration).() duration",
        ],
    ),
    ("slice", &["list(A).(int, int) list(A)"]),
    (
        "flatten",
        &["list(list(A)).() list(A)", "list(dyn).(int) list(dyn)"],
    ),
    (
        "sort",
        &[
            "list(int).() list(int)",
            "list(uint).() list(uint)",
            "list(double).() list(double)",
            "list(bool).() list(bool)",
            "list(duration).() list(duration)",
            "list(timestamp).() list(timestamp)",
            "list(string).() list(string)",
            "list(bytes).() list(bytes)",
        ],
    ),
    ("lists.range", &["(int) list(int)"]),
    ("reverse distinct", &["list(A).() list(A)"]),
    ("first last", &["list(A).() optional(A)"]),
    (
        "sets.contains sets.equivalent sets.intersects",
        &["(list(A), list(A)) bool"],
    ),
    // Optional values.
    ("optional.of optional.ofNonZeroValue", &["(A) optional(A)"]),
    ("optional.none", &["() optional(A)"]),
    ("value", &["optional(A).() A"]),
    ("hasValue", &["optional(A).() bool"]),
    ("or", &["optional(A).(optional(A)) optional(A)"]),
    ("orValue", &["optional(A).(A) A"]),
    ("optional.unwrap", &["(list(optional(A))) list(A)"]),
    ("unwrapOpt", &["list(optional(A)).() list(A)"]),
    // Quantities, versions, addresses and named formats.
    ("quantity", &["(string) quantity"]),
    ("isQuantity isURL isIP isCIDR ip.isCanonical", &["(string) bool"]),
    ("sign", &["(quantity) int"]),
    (
        "isGreaterThan isLessThan",
        &["quantity.(quantity) bool", "semver.(semver) bool"],
    ),
    ("compareTo", &["quantity.(quantity) int", "semver.(semver) int"]),
    ("asApproximateFloat", &["quantity.() double"]),
    ("asInteger", &["quantity.() int"]),
    ("isInteger", &["quantity.() bool"]),
    (
        "add sub",
        &["quantity.(quantity) quantity", "quantity.(int) quantity"],
    ),
    ("semver", &["(string) semver", "(string, bool) semver"]),
    ("isSemver", &["(string) bool", "(string, bool) bool"]),
    ("major minor patch", &["semver.() int"]),
    ("url", &["(string) url"]),
    (
        "getScheme getHost getHostname getPort getEscapedPath",
        &["url.() string"],
    ),
    ("getQuery", &["url.() map(string, list(string))"]),
    ("ip", &["(string) ip", "cidr.() ip"]),
    ("family", &["ip.() int"]),
    (
        "isUnspecified isLoopback isLinkLocalMulticast isLinkLocalUnicast isGlobalUnicast",
        &["ip.() bool"],
    ),
    ("cidr", &["(string) cidr"]),
    ("containsIP", &["cidr.(string) bool", "cidr.(ip) bool"]),
    ("containsCIDR", &["cidr.(string) bool", "cidr.(cidr) bool"]),
    ("prefixLength", &["cidr.() int"]),
    ("masked", &["cidr.() cidr"]),
    (
        "format.dns1123Label format.dns1123LabelPrefix format.dns1123Subdomain format.dns1123SubdomainPrefix \
         format.dns1035Label format.dns1035LabelPrefix format.qualifiedName format.labelValue \
         format.uri format.uuid format.byte format.date format.datetime",
        &["() format"],
    ),
    ("format.named", &["(string) optional(format)"]),
    ("validate", &["format.(string) optional(list(string))"]),
];

/// One form of a function.
#[derive(Debug)]
pub(super) struct FunctionOverload {
    /// The function is called on its first operand.
    pub(super) is_member: bool,
    pub(super) operands: Vec<RuleType<'static>>,
    result: RuleType<'static>,
}

static OVERLOADS: LazyLock<HashMap<&'static str, Vec<FunctionOverload>>> = LazyLock::new(|| {
    let mut overloads: HashMap<_, Vec<_>> = HashMap::new();
    for (names, signatures) in FUNCTIONS {
        for name in names.split_whitespace() {
            let parsed = signatures.iter().map(|signature| parse_signature(signature));
            overloads.entry(name).or_default().extend(parsed);
        }
    }
    overloads
});

/// The forms of a function that fit its operands.
#[derive(Debug)]
pub(super) struct FunctionMatch<'a> {
    pub(super) overloads: Vec<&'static FunctionOverload>,
    pub(super) result: RuleType<'a>,
}

/// Returns true if there is a function of the name.
pub(super) fn is_function(name: &str) -> bool {
    OVERLOADS.contains_key(name)
}

/// Returns the forms of a function that fit operands of some types; `None` if none does.
pub(super) fn match_function<'a>(
    name: &str,
    is_member: bool,
    operands: &[RuleType<'a>],
) -> Option<FunctionMatch<'a>> {
    let mut found: Option<FunctionMatch<'a>> = None;
    for overload in OVERLOADS.get(name)? {
        if overload.is_member != is_member || overload.operands.len() != operands.len() {
            continue;
        }
        let mut bound = HashMap::new();
        let mut pairs = overload.operands.iter().zip(operands);
        if !pairs.all(|(expected, operand)| bind_type(expected, operand, &mut bound)) {
            continue;
        }
        let result = substitute_type(&overload.result, &bound);
        match &mut found {
            None => {
                found = Some(FunctionMatch {
                    overloads: vec![overload],
                    result,
                });
            }
            Some(found) => {
                found.overloads.push(overload);
                if found.result != result {
                    found.result = RuleType::Dynamic;
                }
            }
        }
    }
    found
}

/// Compares an operand with what is expected, and remembers which types parameters stand for.
fn bind_type<'a>(
    expected: &RuleType<'static>,
    operand: &RuleType<'a>,
    bound: &mut HashMap<char, RuleType<'a>>,
) -> bool {
    match (expected, operand) {
        (RuleType::Parameter(name), operand) => match bound.get(name) {
            Some(known) if !operand.fits(known) => false,
            // The more exact of two types is kept.
            Some(known) if !known.is_open() || operand.is_open() => true,
            _ => {
                bound.insert(*name, operand.clone());
                true
            }
        },
        (RuleType::List(expected), RuleType::List(operand))
        | (RuleType::Optional(expected), RuleType::Optional(operand)) => bind_type(expected, operand, bound),
        (RuleType::Map(key, value), RuleType::Map(found_key, found_value)) => {
            bind_type(key, found_key, bound) && bind_type(value, found_value, bound)
        }
        (expected, operand) => operand.fits(expected),
    }
}

fn substitute_type<'a>(declared: &RuleType<'static>, bound: &HashMap<char, RuleType<'a>>) -> RuleType<'a> {
    match declared {
        RuleType::Parameter(name) => bound.get(name).cloned().unwrap_or(RuleType::Dynamic),
        RuleType::List(item) => RuleType::list_of(substitute_type(item, bound)),
        RuleType::Optional(value) => RuleType::optional_of(substitute_type(value, bound)),
        RuleType::Map(key, value) => {
            RuleType::map_of(substitute_type(key, bound), substitute_type(value, bound))
        }
        other => other.clone(),
    }
}

fn parse_signature(text: &str) -> FunctionOverload {
    let (operands, result) = text.rsplit_once(") ").unwrap_or((text, ""));
    // Lists and maps have brackets, too: the operands begin at the bracket that follows a dot, or at the first.
    let (target, operands) = match operands.split_once(".(") {
        Some((target, operands)) => (Some(target), operands),
        None => (None, &operands[1..]),
    };
    FunctionOverload {
        is_member: target.is_some(),
        operands: target
            .into_iter()
            .chain(split_types(operands))
            .map(parse_type)
            .collect(),
        result: parse_type(result),
    }
}

/// Splits at the commas that are in no bracket.
fn split_types(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let is_comma = |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(is_comma)
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

fn parse_type(text: &str) -> RuleType<'static> {
    let inner = text
        .split_once('(')
        .map(|(_, inner)| inner.strip_suffix(')').unwrap_or(inner));
    let mut parts = inner
        .map(split_types)
        .unwrap_or_default()
        .into_iter()
        .map(parse_type);
    let mut part = || parts.next().unwrap_or(RuleType::Dynamic);
    match text.split('(').next().unwrap_or_default() {
        "list" => RuleType::list_of(part()),
        "optional" => RuleType::optional_of(part()),
        "map" => {
            let key = part();
            RuleType::map_of(key, part())
        }
        name => RuleType::from_name(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_name_known_types() {
        for (names, signatures) in FUNCTIONS {
            for signature in *signatures {
                let words = signature
                    .split(|c: char| !c.is_ascii_alphanumeric())
                    .filter(|word| !word.is_empty());
                for word in words.filter(|word| !["dyn", "list", "map", "optional"].contains(word)) {
                    assert_ne!(
                        RuleType::from_name(word),
                        RuleType::Dynamic,
                        "{names} {signature}"
                    );
                }
            }
        }
    }

    #[test]
    fn overload_of_lists_binds_the_type_of_their_items() {
        let texts = RuleType::list_of(RuleType::TEXT);
        let found = match_function("_+_", false, &[RuleType::list_of(RuleType::Open), texts.clone()]);
        let found = found.expect("lists can be joined");
        assert_eq!((found.overloads.len(), found.result), (1, texts.clone()));
        let numbers = RuleType::list_of(RuleType::Named("int"));
        assert!(match_function("_+_", false, &[texts, numbers]).is_none());
        let found = match_function("_+_", false, &[RuleType::Dynamic, RuleType::Dynamic]);
        assert_eq!(found.expect("values of any type fit").result, RuleType::Dynamic);
    }
}
