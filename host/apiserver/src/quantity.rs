//! Quantities of resources (`500m`, `1Gi`) in the form in which the API server writes them.

use std::cmp::Ordering;

use ostler_schema::Schema;
use serde_json::Value;

/// Decimal suffixes with the power of ten that they stand for, largest first.
const DECIMAL_SUFFIXES: [(&str, u32); 10] = [
    ("E", 27),
    ("P", 24),
    ("T", 21),
    ("G", 18),
    ("M", 15),
    ("k", 12),
    ("", 9),
    ("m", 6),
    ("u", 3),
    ("n", 0),
];
/// Binary suffixes, smallest first: each is 1024 times the one before.
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Brings the quantities of an object into their form. A text that is none stays as it is.
pub fn unify_quantities(schema: &Schema, value: &mut Value) {
    schema.change_parts(value, &|schema, value| {
        let text = match value {
            Value::String(text) if schema.is_quantity() => text.clone(),
            Value::Number(number) if schema.is_quantity() => number.to_string(),
            _ => return,
        };
        *value = format_quantity(&text).unwrap_or(text).into();
    });
}

/// Returns what is wrong with the first text of an object that should be a quantity and is none.
pub fn find_invalid_quantity(schema: &Schema, value: &Value) -> Option<&'static str> {
    match value {
        Value::String(text) if schema.is_quantity() => match parse_quantity(text) {
            Some(_) => None,
            None if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+')) => {
                Some("unable to parse quantity's suffix")
            }
            None => Some(
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
        },
        Value::Object(fields) => {
            let mut fields = fields.iter();
            fields.find_map(|(name, value)| find_invalid_quantity(schema.field(name)?, value))
        }
        Value::Array(items) => {
            let item_schema = schema.items.as_deref()?;
            items
                .iter()
                .find_map(|item| find_invalid_quantity(item_schema, item))
        }
        _ => None,
    }
}

/// Compares two quantities; `None` if one of the texts is none.
pub fn compare_quantities(one: &str, other: &str) -> Option<Ordering> {
    Some(parse_quantity(one)?.cmp(&parse_quantity(other)?))
}

/// Parses a quantity as billionths.
fn parse_quantity(text: &str) -> Option<i128> {
    let (number, suffix) = split_suffix(text);
    let (digits, places) = parse_number(number)?;
    let (numerator, power) = match binary_power(suffix) {
        Some(power) => (1024_i128.checked_pow(u32::try_from(power).ok()?)?, 9),
        None => match suffix
            .strip_prefix(['e', 'E'])
            .filter(|exponent| !exponent.is_empty())
        {
            Some(exponent) => (1, exponent.parse::<i32>().ok()?.checked_add(9)?),
            None => {
                let (_, power) = DECIMAL_SUFFIXES.iter().find(|(known, _)| *known == suffix)?;
                (1, i32::try_from(*power).ok()?)
            }
        },
    };
    let power = power - i32::try_from(places).ok()?;
    let factor = 10_i128.saturating_pow(power.unsigned_abs());
    let value = digits.saturating_mul(numerator);
    Some(if power < 0 {
        value / factor
    } else {
        value.saturating_mul(factor)
    })
}

/// Formats a quantity with the largest suffix, or exponent, that needs no fraction; `None` for a text that is none. A text of a
/// number that needs no other suffix stays as it is, such as `+1`, `01k` or `1e+3`.
fn format_quantity(text: &str) -> Option<String> {
    let (number, suffix) = split_suffix(text);
    let (formatted, is_kept) = if let Some(power) = binary_power(suffix) {
        (format_binary(number, power)?, is_whole_binary(number, power))
    } else if let Some((_, power)) = DECIMAL_SUFFIXES.iter().find(|(known, _)| *known == suffix) {
        let exponent = i32::try_from(*power).ok()? - 9;
        (
            format_decimal(number, *power)?,
            is_whole_decimal(number, exponent),
        )
    } else {
        let exponent = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
        (
            format_exponent(number, exponent)?,
            is_whole_decimal(number, exponent),
        )
    };
    Some(if is_kept { text.to_owned() } else { formatted })
}

/// Splits a quantity into its number and its suffix or exponent.
fn split_suffix(text: &str) -> (&str, &str) {
    let is_suffix = |c: char| !c.is_ascii_digit() && !matches!(c, '.' | '-' | '+');
    text.split_at(text.find(is_suffix).unwrap_or(text.len()))
}

/// Returns the power of 1024 that a suffix stands for; `None` for a decimal one.
fn binary_power(suffix: &str) -> Option<usize> {
    let power = BINARY_SUFFIXES.iter().position(|known| *known == suffix);
    power.filter(|power| *power > 0)
}

/// Largest count of digits of a quantity that the API server parses as an integer with an exponent.
const MAX_INTEGER_DIGITS: usize = 18;

/// Returns true for an integer below 1000 or one that is no multiple of it, with an exponent that is a multiple of three.
fn is_whole_decimal(number: &str, exponent: i32) -> bool {
    let unsigned = number.trim_start_matches(['+', '-']).trim_start_matches('0');
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let value: i64 = match format!("{whole}{fraction}").parse() {
        Ok(value) if whole.len() + fraction.len() <= MAX_INTEGER_DIGITS => value,
        _ => return false,
    };
    let exponent = exponent.saturating_sub(places);
    !whole.is_empty() && value % 1000 != 0 && exponent % 3 == 0
}

/// Returns true for an integer with a binary suffix that is no multiple of 1024, and has few digits.
fn is_whole_binary(number: &str, index: usize) -> bool {
    let digits = number.trim_start_matches(['+', '-']).trim_start_matches('0');
    // The digits of the power of two, and a few for the product.
    let is_short = digits.len() + index * 3 <= 14;
    is_short && digits.parse().is_ok_and(|value: u64| !value.is_multiple_of(1024))
}

/// Formats a number with an exponent, which is a multiple of three.
fn format_exponent(number: &str, exponent: i32) -> Option<String> {
    let (mut digits, places) = parse_number(number)?;
    let mut exponent = exponent.checked_sub(i32::try_from(places).ok()?)?;
    if digits == 0 {
        return Some("0".into());
    }
    while digits % 10 == 0 {
        digits /= 10;
        exponent = exponent.checked_add(1)?;
    }
    while exponent % 3 != 0 {
        digits = digits.checked_mul(10)?;
        exponent = exponent.checked_sub(1)?;
    }
    Some(match exponent {
        0 => digits.to_string(),
        _ => format!("{digits}e{exponent}"),
    })
}

/// Parses a number as its digits and the count of those after the point.
fn parse_number(number: &str) -> Option<(i128, u32)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    Some((digits, u32::try_from(fraction.len()).ok()?))
}

fn format_decimal(number: &str, power: u32) -> Option<String> {
    let (digits, places) = parse_number(number)?;
    // In billionths.
    let value = digits.checked_mul(10_i128.checked_pow(power.checked_sub(places)?)?)?;
    if value == 0 {
        return Some("0".into());
    }
    let fits = |power: &u32| value % 10_i128.pow(*power) == 0;
    let (suffix, power) = DECIMAL_SUFFIXES.iter().find(|(_, power)| fits(power))?;
    Some(format!("{}{suffix}", value / 10_i128.pow(*power)))
}

fn format_binary(number: &str, index: usize) -> Option<String> {
    let (digits, places) = parse_number(number)?;
    let scaled = digits.checked_mul(1024_i128.checked_pow(u32::try_from(index).ok()?)?)?;
    let divisor = 10_i128.checked_pow(places)?;
    if scaled % divisor != 0 {
        return None;
    }
    let mut value = scaled / divisor;
    let mut index = 0;
    while value != 0 && value % 1024 == 0 && index + 1 < BINARY_SUFFIXES.len() {
        value /= 1024;
        index += 1;
    }
    Some(format!("{value}{}", BINARY_SUFFIXES[index]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantity_has_the_largest_suffix_without_a_fraction() {
        for (text, unified) in [
            ("1", "1"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            ("0.100", "100m"),
            ("1000", "1k"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("64Mi", "64Mi"),
            ("0", "0"),
            ("1e3", "1e3"),
            ("1.5E3", "1500"),
            ("1e+3", "1e+3"),
            ("1E3", "1E3"),
            ("1e+20", "100e18"),
            ("1000e+3", "1e6"),
            ("+1", "+1"),
            ("0500m", "0500m"),
            ("1.500", "1.500"),
            ("0.500", "500m"),
            ("1.000", "1"),
            ("00", "0"),
            ("0e3", "0"),
            ("1234567890123456789", "1234567890123456789"),
            ("01234567890123456789", "1234567890123456789"),
            ("01025Ki", "01025Ki"),
            ("1024Ki", "1Mi"),
            ("1.0Ki", "1Ki"),
            ("0123456789012Ki", "123456789012Ki"),
            ("01Ei", "1Ei"),
            ("123e4567", "1230e4566"),
        ] {
            assert_eq!(format_quantity(text).as_deref(), Some(unified), "{text}");
        }
        assert_eq!(format_quantity("many"), None);
    }

    #[test]
    fn quantities_are_compared_across_suffixes() {
        for (one, other, order) in [
            ("1", "1000m", Some(Ordering::Equal)),
            ("1Gi", "1G", Some(Ordering::Greater)),
            ("1e3", "1k", Some(Ordering::Equal)),
            ("-1", "0", Some(Ordering::Less)),
            ("9223372036854775807", "1", Some(Ordering::Greater)),
            ("10ms", "1", None),
            ("many", "1", None),
        ] {
            assert_eq!(compare_quantities(one, other), order, "{one} {other}");
        }
    }
}
