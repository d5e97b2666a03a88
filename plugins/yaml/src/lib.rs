//! YAML for components: a document becomes JSON, with the plain scalars of YAML 1.1 (`yes` is true), anchors, aliases and
//! merge keys. Concourse reads it like this, and so do the files of the DevOps pack.

use ostler_sdk::serde_json::{Map, Value, from_slice};
use saphyr_parser::{Event, Parser, ScalarStyle};

/// Limit of the nodes of a document with its aliases expanded, which multiply its size. No pipeline is this large.
const MAX_NODES: usize = 500_000;
/// Limit of the nesting: deeper than any pipeline, shallow enough for the stack.
const MAX_DEPTH: usize = 100;

/// A collection whose end has not been reached.
enum Frame {
    Sequence(Vec<Value>),
    Mapping {
        map: Map<String, Value>,
        key: Option<Key>,
        merges: Vec<Value>,
    },
}

/// The key of a mapping whose value comes next.
enum Key {
    Name(String),
    Merge,
}

/// Parses the first document of a text.
///
/// # Errors
/// The problem, with its line if that is known.
pub fn parse(text: &str) -> Result<Value, String> {
    let mut stack: Vec<(Frame, usize)> = Vec::new();
    // The parser numbers anchors from 1.
    let mut anchors: Vec<Value> = Vec::new();
    let mut nodes = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| error.to_string())?;
        let at = |message: String| format!("line {}: {message}", span.start.line());
        let (value, anchor, plain) = match event {
            Event::SequenceStart(anchor, _) => {
                stack.push((Frame::Sequence(Vec::new()), anchor));
                check_depth(&stack).map_err(at)?;
                continue;
            }
            Event::MappingStart(anchor, _) => {
                let frame = Frame::Mapping {
                    map: Map::new(),
                    key: None,
                    merges: Vec::new(),
                };
                stack.push((frame, anchor));
                check_depth(&stack).map_err(at)?;
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match stack.pop() {
                Some((Frame::Sequence(items), anchor)) => (Value::Array(items), anchor, false),
                Some((Frame::Mapping { map, merges, .. }, anchor)) => {
                    (merge_mappings(map, merges).map_err(at)?, anchor, false)
                }
                None => continue,
            },
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                let value = match (plain, &tag) {
                    (true, _) => resolve_scalar(&text),
                    (false, Some(tag)) if style == ScalarStyle::Plain && tag.suffix != "str" => {
                        resolve_scalar(&text)
                    }
                    _ => Value::String(text.into_owned()),
                };
                (value, anchor, plain)
            }
            Event::Alias(anchor) => {
                let value = anchors.get(anchor).cloned();
                let value = value.ok_or_else(|| at("unknown alias".into()))?;
                nodes += count_nodes(&value);
                (value, 0, false)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::StreamEnd => continue,
        };
        nodes += 1;
        if nodes > MAX_NODES {
            return Err(at("the document is too large".into()));
        }
        if anchor != 0 {
            let slots = anchors.len().max(anchor + 1);
            anchors.resize(slots, Value::Null);
            anchors[anchor] = value.clone();
            nodes += count_nodes(&value);
        }
        match stack.last_mut() {
            None => return Ok(value),
            Some((Frame::Sequence(items), _)) => items.push(value),
            Some((Frame::Mapping { map, key, merges }, _)) => match key.take() {
                None if plain && value == "<<" => *key = Some(Key::Merge),
                None => *key = Some(Key::Name(key_name(value).map_err(at)?)),
                Some(Key::Merge) => merges.push(value),
                Some(Key::Name(name)) => {
                    if map.insert(name.clone(), value).is_some() {
                        return Err(at(format!("the key {name} occurs twice")));
                    }
                }
            },
        }
    }
    Ok(Value::Null)
}

fn check_depth(stack: &[(Frame, usize)]) -> Result<(), String> {
    if stack.len() > MAX_DEPTH {
        return Err("nested too deeply".into());
    }
    Ok(())
}

fn count_nodes(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count_nodes).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(count_nodes).sum::<usize>(),
        _ => 1,
    }
}

/// Merges the mappings of merge keys into a mapping, whose own keys take precedence.
fn merge_mappings(mut map: Map<String, Value>, merges: Vec<Value>) -> Result<Value, String> {
    let sources = merges.into_iter().flat_map(|merge| match merge {
        Value::Array(items) => items,
        other => vec![other],
    });
    for source in sources {
        let Value::Object(source) = source else {
            return Err("only mappings can be merged".into());
        };
        for (key, value) in source {
            if !map.contains_key(&key) {
                map.insert(key, value);
            }
        }
    }
    Ok(Value::Object(map))
}

fn key_name(key: Value) -> Result<String, String> {
    match key {
        Value::String(name) => Ok(name),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(value) => Ok(if value { "true" } else { "false" }.into()),
        Value::Null => Ok("null".into()),
        _ => Err("a key must be a scalar".into()),
    }
}

fn resolve_scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
            Value::Bool(true)
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            Value::Bool(false)
        }
        _ => parse_number(text).unwrap_or_else(|| Value::String(text.to_owned())),
    }
}

fn parse_number(text: &str) -> Option<Value> {
    let first = text.bytes().next()?;
    if !first.is_ascii_digit() && !matches!(first, b'+' | b'-' | b'.') {
        return None;
    }
    let plain = text.replace('_', "");
    let (negative, digits) = match plain.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, plain.strip_prefix('+').unwrap_or(&plain)),
    };
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', b'b' | b'B', ..] => (&digits[2..], 2),
        [b'0', b'o' | b'O', ..] => (&digits[2..], 8),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    let is_digit = |c: u8| char::from(c).is_digit(radix);
    if !digits.is_empty()
        && digits.bytes().all(is_digit)
        && let Ok(value) = u64::from_str_radix(digits, radix)
    {
        return match (negative, i64::try_from(value)) {
            (false, _) => Some(value.into()),
            (true, Ok(value)) => Some((-value).into()),
            (true, Err(_)) => None,
        };
    }
    let is_decimal_character = |c: u8| c.is_ascii_digit() || matches!(c, b'.' | b'e' | b'E' | b'+' | b'-');
    if !plain.bytes().all(is_decimal_character) || !plain.bytes().any(|c| c.is_ascii_digit()) {
        return None;
    }
    parse_decimal(negative, digits)
}

/// Parses a decimal with point and exponent. A whole one becomes an integer, as in the configs that Concourse shows.
fn parse_decimal(negative: bool, text: &str) -> Option<Value> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    // JSON allows no leading zeros, and requires a digit after the point.
    let whole = Some(whole.trim_start_matches('0')).filter(|whole| !whole.is_empty());
    let whole = whole.unwrap_or("0");
    let exponent = exponent.strip_prefix('+').unwrap_or(exponent);
    let number: Value = from_slice(format!("{whole}.{fraction}0e{exponent}").as_bytes()).ok()?;
    let float = number.as_f64()?;
    let float = if negative { -float } else { float };
    // Beyond 2^53 not every integer has a float of its own.
    let whole = float as i64;
    if whole.unsigned_abs() < 1 << 53 && whole as f64 == float {
        Some(whole.into())
    } else {
        Some(float.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_sdk::serde_json::json;

    #[test]
    fn parse_resolves_plain_scalars_as_yaml_1_1() {
        let text = "{a: yes, b: 'yes', c: 010, d: 0x1F, e: 1.50, f: 1.0, g: ~, h: 1_000, i: -3,\n \
                    j: 2024-01-01, k: 1.2.3, l: !!str 5, m: 24h, name: \"\", o: .5, 1: x, p: 5e3}";
        assert_eq!(
            parse(text),
            Ok(json!({
                "a": true, "b": "yes", "c": 8, "d": 31, "e": 1.5, "f": 1, "g": null, "h": 1000,
                "i": -3, "j": "2024-01-01", "k": "1.2.3", "l": "5", "m": "24h", "name": "", "o": 0.5,
                "1": "x", "p": 5000,
            }))
        );
    }

    #[test]
    fn parse_number_normalizes_decimals() {
        for (text, json) in [
            ("1.10", "1.1"),
            ("-0.50", "-0.5"),
            ("-0.0", "0"),
            ("+1.5e2", "150"),
            ("12.5e1", "125"),
            ("00.05", "0.05"),
            ("1.", "1"),
            ("1e20", "100000000000000000000"),
            ("1.5e21", "1500000000000000000000"),
            ("1e21", "1000000000000000000000"),
            ("2.5e-7", "2.5e-7"),
            ("0.000001", "0.000001"),
            ("-3e300", "-3e+300"),
            ("123456.789", "123456.789"),
        ] {
            let wanted: Value = from_slice(json.as_bytes()).expect("JSON");
            assert_eq!(parse_number(text), Some(wanted), "{text}");
        }
        for text in ["1e999", ".", "-", "1e", "1.2.3", "1-2", "e5", "1e99999999999"] {
            assert_eq!(parse_number(text), None, "{text}");
        }
    }

    #[test]
    fn parse_resolves_anchors_aliases_and_merge_keys() {
        let text = "base: &b {image: x, tag: 1}\nlist: &l [1, 2]\na: {<<: *b, tag: 2}\n\
                    c: {<<: [*b, {z: 9}]}\nd: *l\n'<<': plain\n";
        assert_eq!(
            parse(text),
            Ok(json!({
                "base": {"image": "x", "tag": 1}, "list": [1, 2],
                "a": {"image": "x", "tag": 2}, "c": {"image": "x", "tag": 1, "z": 9},
                "d": [1, 2], "<<": "plain",
            }))
        );
    }

    #[test]
    fn parse_returns_first_document_with_block_scalars() {
        let text = "---\nrun: |\n  echo a\n  echo b\nfold: >-\n  one\n  two\n---\nother: 1\n";
        let expected = json!({"run": "echo a\necho b\n", "fold": "one two"});
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse(""), Ok(Value::Null));
    }

    #[test]
    fn parse_error_has_line_and_cause() {
        assert!(parse("{{{").is_err());
        assert_eq!(parse("a: 1\na: 2"), Err("line 2: the key a occurs twice".into()));
        assert!(parse("a: *nowhere").is_err());
        assert!(parse("<<: 5").is_err());
        assert!(parse(&"[".repeat(5000)).is_err());
        let bomb = (0..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, n| {
            text + &format!("a{}: &a{} [*a{n}, *a{n}]\n", n + 1, n + 1)
        });
        let error = parse(&bomb).expect_err("refused");
        assert!(error.contains("too large"), "{error}");
    }
}
