//! Errors of requests to the API server.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::{client::fence::NotLeader, kube::key::Gvk};

/// The error of a request that the API server refused or did not answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ApiError {
    /// The server answered with a `Status`.
    #[error("{message}")]
    Status {
        /// HTTP status code.
        code: u16,
        /// Machine-readable reason, for example `Conflict`.
        reason: String,
        /// Message of the server.
        message: String,
        /// Fields that the server refused (`details.causes`).
        fields: Vec<String>,
        /// `Retry-After` in milliseconds, if the server sent one.
        retry_after: Option<u64>,
    },
    /// The kind is not served, with one of nearly its name that is.
    #[error("the API server does not serve {0}: {remedy}", remedy = format_remedy(.1.as_deref()))]
    UnknownKind(Gvk, Option<Box<str>>),
    /// The server did not answer.
    #[error("the API server can't be reached: {0}")]
    Unreachable(String),
    /// The response could not be parsed.
    #[error("unexpected response of the API server: {0}")]
    InvalidResponse(String),
    /// The response is larger than one of another cluster may be.
    #[error("the response of the API server is too large: {0}")]
    TooLarge(String),
    /// The write was not sent because this host does not lead.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
}

/// The remedy for a kind that is not served.
fn format_remedy(similar: Option<&str>) -> impl std::fmt::Display + '_ {
    std::fmt::from_fn(move |f| match similar {
        Some(kind) => write!(f, "the kind is {kind}"),
        None => f.write_str("is its CRD installed?"),
    })
}

impl ApiError {
    /// The HTTP status code; 0 without a response.
    pub fn code(&self) -> u16 {
        match self {
            Self::Status { code, .. } => *code,
            Self::UnknownKind(..) => 404,
            _ => 0,
        }
    }

    /// The wait that the server asks for before the next attempt, as its priority and fairness does (HTTP 429, `Retry-After`).
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status {
                retry_after: Some(milliseconds),
                ..
            } => Some(Duration::from_millis(*milliseconds)),
            _ => None,
        }
    }

    /// Returns true if a write was refused because the object has another uid: it was deleted, and another object has its
    /// name. The message cannot show this: it quotes names and values, which may contain `uid`, too.
    pub fn is_uid_mismatch(&self) -> bool {
        match self {
            Self::Status {
                code: 422, fields, ..
            } => fields.iter().any(|field| field == "metadata.uid"),
            _ => false,
        }
    }

    /// Returns true if a request was refused by authorization, that is RBAC. Admission refuses with 403 as well: a quota,
    /// Pod Security, a webhook. Both have the reason `Forbidden`; authorization names the user and what it may not do.
    pub fn is_authorization_refusal(&self) -> bool {
        match self {
            Self::Status {
                code: 403, message, ..
            } => {
                let (_, user) = message.split_once("User \"").unwrap_or_default();
                user.contains("\" cannot ")
            }
            _ => false,
        }
    }

    /// Returns true for `410 Gone`: the resourceVersion or continue token expired, so list again.
    pub fn is_gone(&self) -> bool {
        self.code() == 410
    }
}

/// Logs an API error as a warning. An unreachable server is logged at debug level only, because the client logs an
/// outage once for all requests.
macro_rules! warn_api_error {
    ($error:expr, $($message:tt)*) => {
        match $error {
            $crate::client::api::ApiError::Unreachable(_) => tracing::debug!($($message)*),
            _ => tracing::warn!($($message)*),
        }
    };
}
pub(crate) use warn_api_error;

/// Converts a `Status` object of a response or of an ERROR event in a watch into an error.
pub fn status_error(code: u16, retry_after: Option<u64>, body: &[u8]) -> ApiError {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        code: u16,
        reason: String,
        message: String,
        details: Value,
    }
    let status: Status = serde_json::from_slice(body).unwrap_or_default();
    let fields = status.details["causes"].as_array().into_iter().flatten();
    ApiError::Status {
        code: if code == 0 { status.code } else { code },
        message: if status.message.is_empty() {
            format!(
                "HTTP {code} {}",
                String::from_utf8_lossy(&body[..body.len().min(200)])
            )
        } else {
            status.message
        },
        reason: status.reason,
        fields: fields
            .filter_map(|cause| Some(cause["field"].as_str()?.to_owned()))
            .collect(),
        retry_after,
    }
}

/// Parses a response of the API server.
pub fn parse_response<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|e| ApiError::InvalidResponse(e.to_string()))
}

/// Finds the innermost source of an error: the part that a person can act on, such as "connection refused".
pub(super) fn find_root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn authorization_refusal_is_known_by_the_user_it_names() {
        for (code, message, expected) in [
            (
                403,
                r#"pods is forbidden: User "system:serviceaccount:ci:steps-step" cannot create resource "pods" in API group "" in the namespace "ci""#,
                true,
            ),
            (
                403,
                r#"serviceaccounts "team" is forbidden: User "host" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "ci""#,
                true,
            ),
            (
                403,
                r#"pods "a" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=5, limited: pods=5"#,
                false,
            ),
            (
                403,
                r#"pods "a" is forbidden: violates PodSecurity "restricted:latest": privileged (container "process" must not set securityContext.privileged=true)"#,
                false,
            ),
            (
                403,
                r#"admission webhook "policy.example.com" denied the request: User "x" is not welcome"#,
                false,
            ),
            (404, r#"User "x" cannot get"#, false),
        ] {
            let body = json!({"kind": "Status", "code": code, "reason": "Forbidden", "message": message});
            let error = status_error(code, None, body.to_string().as_bytes());
            assert_eq!(error.is_authorization_refusal(), expected, "{message}");
        }
    }

    #[test]
    fn uid_mismatch_is_known_by_its_cause_and_not_by_the_message() {
        let refusal = |message: &str, field: &str| {
            let cause = json!({"reason": "FieldValueInvalid", "message": message, "field": field});
            let body = json!({"kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422,
                "message": message, "details": {"name": "fluid", "causes": [cause]}});
            status_error(422, None, body.to_string().as_bytes())
        };
        let other =
            "Squid.example.org \"fluid\" is invalid: metadata.uid: Invalid value: \"1\": field is immutable";
        assert!(refusal(other, "metadata.uid").is_uid_mismatch());
        let schema =
            "Squid.example.org \"fluid\" is invalid: status.guid: Invalid value: \"x\": in body must be uid";
        assert!(!refusal(schema, "status.guid").is_uid_mismatch());
        assert!(
            !status_error(422, None, b"uid").is_uid_mismatch(),
            "without a cause"
        );
        assert!(!status_error(409, None, b"{\"message\": \"fluid\"}").is_uid_mismatch());
    }
}
