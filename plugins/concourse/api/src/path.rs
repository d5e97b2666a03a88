//! Paths of Concourse's REST API.

use ostler_sdk::serde_json::{Map, Value, to_string};

/// Percent-encodes a text for one segment of a path or one value of a query: all but the unreserved characters of RFC 3986.
/// The crate `percent-encoding` has a table of 768 bytes for it, which each component would carry.
#[must_use]
pub fn encode_segment(text: &str) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(byte.into());
        } else {
            encoded.push('%');
            encoded.push(DIGITS[usize::from(byte >> 4)].into());
            encoded.push(DIGITS[usize::from(byte & 15)].into());
        }
    }
    encoded
}

/// Path of a team.
#[must_use]
pub fn team_path(team: &str) -> String {
    format!("/api/v1/teams/{}", encode_segment(team))
}

/// Path of a build, or of something below it (`rest`, such as `/events`).
#[must_use]
pub fn build_path(id: i64, rest: &str) -> String {
    format!("/api/v1/builds/{id}{rest}")
}

/// Path of a pipeline, or of something below it (`rest`, such as `/jobs/a`, with each name encoded). The instance
/// vars, which are part of a pipeline's identity, precede the rest of the query (`limit=1`; may be empty).
#[must_use]
pub fn pipeline_path(
    team: &str,
    pipeline: &str,
    instance_vars: &Map<String, Value>,
    rest: &str,
    query: &str,
) -> String {
    let path = format!("{}/pipelines/{}{rest}", team_path(team), encode_segment(pipeline));
    let mut parameters: Vec<_> = instance_vars
        .iter()
        .map(|(name, value)| {
            let value = encode_segment(&to_string(value).unwrap_or_default());
            format!("vars.{}={value}", quote_var_name(name))
        })
        .collect();
    if !query.is_empty() {
        parameters.push(query.to_owned());
    }
    if parameters.is_empty() {
        path
    } else {
        format!("{path}?{}", parameters.join("&"))
    }
}

/// Quotes the name of a var unless it is a plain word: Concourse reads an unquoted dot as a path into the var.
fn quote_var_name(name: &str) -> String {
    let encoded = encode_segment(name);
    let is_word_character = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if name.bytes().all(is_word_character) {
        encoded
    } else {
        format!("%22{encoded}%22")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_sdk::serde_json::json;

    #[test]
    fn every_character_is_encoded_as_the_crate_does() {
        use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
        const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
            .remove(b'-')
            .remove(b'_')
            .remove(b'.')
            .remove(b'~');
        let text: String = ('\0'..='\u{2ff}').chain(['€', '😀']).collect();
        assert_eq!(
            encode_segment(&text),
            utf8_percent_encode(&text, RESERVED).to_string()
        );
    }

    #[test]
    fn pipeline_path_with_instance_vars_encodes_names_and_values() {
        let path = |pipeline: &str, vars: Value, rest, query| {
            let vars = vars.as_object().expect("vars");
            pipeline_path("A b", pipeline, vars, rest, query)
        };
        assert_eq!(
            path("demo", json!({}), "", ""),
            "/api/v1/teams/A%20b/pipelines/demo"
        );
        assert_eq!(
            path("demo", json!({}), "/jobs/x", "limit=1"),
            "/api/v1/teams/A%20b/pipelines/demo/jobs/x?limit=1"
        );
        let vars = json!({ "n": 1, "branch": "a/b", "x.y": {"z": []} });
        assert_eq!(
            path("p", vars, "", "limit=1"),
            "/api/v1/teams/A%20b/pipelines/p?vars.branch=%22a%2Fb%22&vars.n=1&\
             vars.%22x.y%22=%7B%22z%22%3A%5B%5D%7D&limit=1"
        );
    }
}
