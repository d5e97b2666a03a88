//! Responses of Concourse, and the failures and conditions that follow from them.

use ostler_sdk::{
    Condition, Error, Failure, Response, ResultExt, serde::de::DeserializeOwned, serde_json::Value,
};

/// The part of a message about a response of a proxy.
pub const NOT_OF_CONCOURSE: &str = "the response is not of Concourse, as it has no header X-Concourse-Version. Check \
                                    spec.url of the Instance and the proxies in front of Concourse.";

/// The status of a response of Concourse, which sets this header in all of them. None for the response of a proxy in
/// between, such as the HTTP 404 or 200 of an ingress without a backend: it shows nothing about what Concourse has. The
/// response that `ostler plan` assumes for a request that it does not send counts as one of Concourse.
#[must_use]
pub fn concourse_status(response: &Response) -> Option<u16> {
    let version = response.header("x-concourse-version");
    let marker = version.or_else(|| response.header("x-ostler-plan"));
    marker.map(|_| response.status())
}

/// A request to Concourse: its purpose and the reason of the failure when it does not succeed.
#[derive(Clone, Copy, Debug)]
pub struct ConcourseOperation {
    action: &'static str,
    reason: &'static str,
    in_pipeline: bool,
}

impl ConcourseOperation {
    /// An operation. The action completes the sentence "Could not …".
    #[must_use]
    pub const fn new(action: &'static str, reason: &'static str) -> Self {
        Self {
            action,
            reason,
            in_pipeline: false,
        }
    }

    /// Treats HTTP 409 as the answer of an archived pipeline, in which nothing can be changed: the object waits for
    /// the pipeline instead of retrying.
    #[must_use]
    pub const fn in_pipeline(mut self) -> Self {
        self.in_pipeline = true;
        self
    }

    /// The reason of a failure of this operation.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// The failure for a response with an unexpected status.
    #[must_use]
    pub fn failure(&self, response: &Response) -> Failure {
        if self.in_pipeline && response.status() == 409 {
            return pipeline_archived();
        }
        unexpected_status(response, self.action, self.reason)
    }

    /// The response, if it is of Concourse and its status is 2xx.
    ///
    /// # Errors
    /// The request failed, or there is another response.
    pub fn check(&self, answer: Result<Response, Error>) -> Result<Response, Failure> {
        let response = answer.reason(self.reason)?;
        match concourse_status(&response) {
            Some(200..=299) => Ok(response),
            _ => Err(self.failure(&response)),
        }
    }

    /// The body of a response of Concourse with status 200.
    ///
    /// # Errors
    /// The request failed, there is another response, or its body is of another type.
    pub fn read<T: DeserializeOwned>(&self, answer: Result<Response, Error>) -> Result<T, Failure> {
        let response = answer.reason(self.reason)?;
        match concourse_status(&response) {
            Some(200) => response.json().reason(self.reason),
            _ => Err(self.failure(&response)),
        }
    }

    /// As [`ConcourseOperation::read`]; none for a response with status 404.
    ///
    /// # Errors
    /// As [`ConcourseOperation::read`].
    pub fn read_optional<T: DeserializeOwned>(
        &self,
        answer: Result<Response, Error>,
    ) -> Result<Option<T>, Failure> {
        match answer {
            Ok(response) if concourse_status(&response) == Some(404) => Ok(None),
            answer => self.read(answer).map(Some),
        }
    }

    /// As [`ConcourseOperation::read`] for a list, which Concourse writes as `null` when it is empty.
    ///
    /// # Errors
    /// As [`ConcourseOperation::read`].
    pub fn read_list<T: DeserializeOwned>(&self, answer: Result<Response, Error>) -> Result<Vec<T>, Failure> {
        let list: Option<Vec<T>> = self.read(answer)?;
        Ok(list.unwrap_or_default())
    }
}

/// The failure for an unexpected response. Input that Concourse calls invalid (HTTP 400, 415, 422), or that is too large
/// for it or a proxy (413), is terminal; server errors, a refused login and all else of a proxy are retried.
#[must_use]
pub fn unexpected_status(response: &Response, action: &str, reason: &str) -> Failure {
    let status = response.status();
    let is_foreign = concourse_status(response).is_none();
    let body = response.value().unwrap_or_default();
    let errors = read_messages(&body["errors"]).join("; ");
    let line = || response.excerpt();
    let detail = match (errors.as_str(), status) {
        ("", 401) => format!("Concourse does not accept the credentials: {}", line()),
        _ if is_foreign => format!("{NOT_OF_CONCOURSE} {}", line()),
        ("", 403) => "the account has no permission for this".to_owned(),
        ("", 400) => "Concourse reports a malformed request".to_owned(),
        ("", _) => line(),
        _ => errors,
    };
    let message = format!("Could not {action} (HTTP {status}): {detail}");
    match status {
        413 => Failure::terminal(reason, message),
        400 | 415 | 422 if !is_foreign => Failure::terminal(reason, message),
        _ => Failure::retry(reason, message),
    }
}

/// The failure for an object in an archived pipeline: it waits until the pipeline is active again.
pub(crate) fn pipeline_archived() -> Failure {
    Failure::wait(
        "PipelineArchived",
        "The pipeline is archived: nothing in it can be changed.",
    )
}

/// The warnings in the response to a save: texts, or objects with a `message`.
#[must_use]
pub fn read_warnings(body: &Value) -> Vec<String> {
    let mut warnings = read_messages(&body["warnings"]);
    warnings.append(&mut read_messages(&body["errors"]));
    warnings
}

fn read_messages(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items
        .filter_map(|item| item.as_str().or(item["message"].as_str()))
        .map(|text| text.trim().to_owned())
        .collect()
}

/// The condition `ConfigWarning`.
#[must_use]
pub fn config_warning_condition(warnings: &[String]) -> Condition {
    const CONDITION_TYPE: &str = "ConfigWarning";
    if warnings.is_empty() {
        Condition::new_false(CONDITION_TYPE, "NoWarnings", "Concourse reports no warnings.")
    } else {
        Condition::new_true(CONDITION_TYPE, "HasWarnings", warnings.join("; "))
    }
}

/// Returns whether a build in this state has finished.
#[must_use]
pub fn is_finished(state: Option<&str>) -> bool {
    matches!(state, Some("succeeded" | "failed" | "errored" | "aborted"))
}
