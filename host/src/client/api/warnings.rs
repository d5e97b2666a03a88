//! Warnings of an API server: the `Warning` headers of its responses (RFC 7234, section 5.5), as kubectl prints them.

use std::collections::HashSet;

use http::HeaderMap;
use parking_lot::Mutex;
use tracing::warn;

/// Maximum number of distinct warnings that are remembered: the texts name fields, of which there are few.
const MAX_WARNINGS: usize = 1000;

/// The warnings that have been logged. Each is logged once: a reconcile may cause the same one for each object, again and again.
#[derive(Default)]
pub(super) struct LoggedWarnings(Mutex<HashSet<String>>);

impl LoggedWarnings {
    /// Logs the warnings of a response that have not been logged, with the path of the request.
    pub(super) fn log_new(&self, path: &str, headers: &HeaderMap) {
        for warning in headers.get_all("warning") {
            let Some(text) = warning.to_str().ok().and_then(parse_warning) else {
                continue;
            };
            if self.record(&text) {
                let object = path.split('?').next().unwrap_or_default();
                warn!(object, "the API server warns: {text}");
            }
        }
    }

    /// Returns true for a warning that has not been recorded.
    fn record(&self, text: &str) -> bool {
        let mut logged = self.0.lock();
        if logged.len() >= MAX_WARNINGS {
            logged.clear();
        }
        logged.insert(text.to_owned())
    }
}

/// The text of a warning with the code 299, the only one that API servers send: `299 - "text"`, perhaps with a date after it.
fn parse_warning(header: &str) -> Option<String> {
    let (_, quoted) = header.strip_prefix("299 ")?.split_once('"')?;
    let mut text = String::new();
    let mut characters = quoted.chars();
    loop {
        match characters.next()? {
            '"' => return Some(text),
            '\\' => text.push(characters.next()?),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_header_is_parsed_to_its_text() {
        for (header, text) in [
            (
                r#"299 - "unknown field \"spec.b\"""#,
                Some(r#"unknown field "spec.b""#),
            ),
            (r#"299 kube "old" "Wed, 21 Oct 2015 07:28:00 GMT""#, Some("old")),
            (r#"199 - "other code""#, None),
            (r#"299 - "without an end"#, None),
            ("299 - text", None),
        ] {
            assert_eq!(parse_warning(header).as_deref(), text, "{header}");
        }
    }

    #[test]
    fn warning_is_new_once_and_the_memory_is_bounded() {
        let logged = LoggedWarnings::default();
        assert!(logged.record("a") && !logged.record("a"));
        for number in 0..2 * MAX_WARNINGS {
            logged.record(&number.to_string());
        }
        assert!(logged.0.lock().len() <= MAX_WARNINGS);
    }
}
