//! What Concourse's API has in common everywhere.

use ostler_sdk::{Failure, Response, serde_json::Value};
use std::fmt::Write;

/// A name as one segment of a path.
#[must_use]
pub fn escape(name: &str) -> String {
    let mut escaped = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(char::from(byte));
            }
            // Writing into a String cannot fail.
            _ => drop(write!(escaped, "%{byte:02X}")),
        }
    }
    escaped
}

/// What an answer that is not the hoped-for one means. Bad input parks (400,
/// 415), a server's fault and a rejected login are tried again.
#[must_use]
pub fn refused(response: &Response, what: &str, reason: &str) -> Failure {
    let status = response.status();
    let body = response.json::<Value>().unwrap_or_default();
    let errors = texts(&body["errors"], |e| e.as_str());
    let detail = match (errors.as_str(), status) {
        ("", 401) => "Concourse does not accept the credentials.".to_owned(),
        ("", 403) => "the account may not do this.".to_owned(),
        ("", 400) => "Concourse finds the request malformed.".to_owned(),
        ("", _) => first_line(&response.text()),
        (errors, _) => errors.to_owned(),
    };
    let message = format!("Could not {what} (HTTP {status}): {detail}");
    match status {
        400 | 413 | 415 | 422 => Failure::parked(reason, message),
        _ => Failure::retry(reason, message),
    }
}

/// The warnings of an answer to a save, as one sentence; empty without any.
#[must_use]
pub fn warnings(body: &Value) -> String {
    texts(&body["warnings"], |w| w["message"].as_str())
}

fn texts(list: &Value, text: impl Fn(&Value) -> Option<&str>) -> String {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(text).collect::<Vec<_>>().join("; ")
}

/// Enough of a page of HTML or a stack trace to recognise it.
fn first_line(text: &str) -> String {
    text.lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(200)
        .collect()
}
