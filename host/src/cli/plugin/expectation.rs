//! The condition that a sample is expected to have: `Ready`, or that of its annotation `ostler.dev/expect`.

use std::{fmt, str::FromStr};

use anyhow::Context;
use serde_json::Value;

use super::project::Document;
use crate::kube::well_known::{annotation, condition_type};

/// A condition, as `TYPE[=STATUS][/REASON]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionExpectation {
    condition: String,
    status: String,
    /// None for any reason.
    reason: Option<String>,
}

impl Default for ConditionExpectation {
    fn default() -> Self {
        Self::any_reason(condition_type::READY)
    }
}

impl ConditionExpectation {
    /// The expectation that the object is stalled, for whatever reason.
    pub fn stalled() -> Self {
        Self::any_reason(condition_type::STALLED)
    }

    fn any_reason(condition: &str) -> Self {
        Self {
            condition: condition.into(),
            status: "True".into(),
            reason: None,
        }
    }

    /// Reads the expectation of a sample. The error names its file.
    pub fn of_sample(sample: &Document) -> anyhow::Result<Self> {
        let annotations = &sample.object["metadata"]["annotations"];
        match &annotations[annotation::EXPECT] {
            Value::Null => Ok(Self::default()),
            Value::String(text) => text.parse().map_err(anyhow::Error::msg),
            _ => Err(anyhow::anyhow!("it is not a text")),
        }
        .with_context(|| {
            format!(
                "{}: metadata.annotations of {}: {}",
                sample.file.display(),
                sample.text("/metadata/name"),
                annotation::EXPECT
            )
        })
    }

    /// Returns true if an object has the condition, for its current generation.
    pub fn is_met(&self, object: &Value) -> bool {
        let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        let Some(condition) = conditions.find(|c| c["type"] == *self.condition) else {
            return false;
        };
        let observed = &condition["observedGeneration"];
        let is_current = observed.is_null() || *observed == object["metadata"]["generation"];
        let has_reason = |reason: &String| condition["reason"] == **reason;
        is_current && condition["status"] == *self.status && self.reason.as_ref().is_none_or(has_reason)
    }
}

impl FromStr for ConditionExpectation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (condition, reason) = match text.split_once('/') {
            Some((condition, reason)) => (condition, Some(reason)),
            None => (text, None),
        };
        let (condition, status) = condition.split_once('=').unwrap_or((condition, "True"));
        let is_word =
            |word: &str| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || "=/".contains(c));
        if !is_word(condition) || !reason.is_none_or(is_word) {
            return Err(format!(
                "{text:?} is no condition: write TYPE, TYPE/REASON or TYPE=STATUS/REASON, such as Stalled/InvalidSpec"
            ));
        }
        if !["True", "False", "Unknown"].contains(&status) {
            return Err(format!(
                "the status {status:?} is none of True, False and Unknown"
            ));
        }
        Ok(Self {
            condition: condition.into(),
            status: status.into(),
            reason: reason.map(str::to_owned),
        })
    }
}

impl fmt::Display for ConditionExpectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.condition)?;
        if self.status != "True" {
            write!(f, "={}", self.status)?;
        }
        self.reason
            .as_ref()
            .map_or(Ok(()), |reason| write!(f, "/{reason}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample(annotations: Value) -> Document {
        Document {
            file: "samples/x.yaml".into(),
            object: json!({"metadata": {"name": "x", "annotations": annotations}}),
        }
    }

    #[test]
    fn sample_without_the_annotation_is_expected_to_be_ready() {
        let expected = ConditionExpectation::of_sample(&sample(json!({"other": "a"})));
        assert_eq!(expected.expect("no annotation").to_string(), "Ready");
    }

    #[test]
    fn expectation_is_parsed_or_refused_with_its_file_and_form() {
        let of = |text: Value| ConditionExpectation::of_sample(&sample(json!({ annotation::EXPECT: text })));
        for text in [
            "Ready",
            "Stalled/InvalidSpec",
            "Ready=False/Waiting",
            "Ready=Unknown",
        ] {
            assert_eq!(of(text.into()).expect(text).to_string(), text);
        }
        for (text, words) in [
            (json!(""), "is no condition"),
            (json!("Stalled/"), "such as Stalled/InvalidSpec"),
            (json!("Stalled/a/b"), "is no condition"),
            (json!("Ready=false"), "none of True, False and Unknown"),
            (json!(1), "it is not a text"),
        ] {
            let error = format!("{:#}", of(text).expect_err(words));
            assert!(
                error.contains(words)
                    && error.contains("samples/x.yaml")
                    && error.contains("ostler.dev/expect"),
                "{error}"
            );
        }
    }

    #[test]
    fn condition_counts_with_its_status_reason_and_generation() {
        let object = |status: &str, reason: &str, observed: u8| {
            json!({"metadata": {"generation": 2}, "status": {"conditions": [
                {"type": "Stalled", "status": status, "reason": reason, "observedGeneration": observed}]}})
        };
        let expected: ConditionExpectation = "Stalled/InvalidSpec".parse().expect("a condition");
        assert!(expected.is_met(&object("True", "InvalidSpec", 2)));
        for other in [
            object("False", "InvalidSpec", 2),
            object("True", "Other", 2),
            object("True", "InvalidSpec", 1),
            json!({}),
        ] {
            assert!(!expected.is_met(&other), "{other}");
        }
        assert!(ConditionExpectation::stalled().is_met(&object("True", "Other", 2)));
    }
}
