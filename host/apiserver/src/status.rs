//! API errors: the `Status` object with the codes, reasons and messages of kube-apiserver.

use ostler_schema::FieldError;
use serde_json::{Value, json};

/// The error response to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason, such as `NotFound`.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// `Status.details`.
    pub details: Option<Value>,
    /// Seconds for the `Retry-After` header.
    pub retry_after: Option<u32>,
}

/// The subject of an error: a kind in a group, and the object's name.
#[derive(Debug, Clone, Copy)]
pub struct ErrorSubject<'a> {
    /// API group, empty for core.
    pub group: &'a str,
    /// Plural resource name.
    pub resource: &'a str,
    /// Kind.
    pub kind: &'a str,
    /// Object name.
    pub name: &'a str,
}

impl ErrorSubject<'_> {
    fn qualified_name(&self, word: &str) -> String {
        match self.group {
            "" => word.to_owned(),
            group => format!("{word}.{group}"),
        }
    }

    fn to_details(self, kind: &str) -> Value {
        let mut details = json!({"name": self.name, "kind": kind});
        if !self.group.is_empty() {
            details["group"] = self.group.into();
        }
        details
    }
}

impl StatusError {
    /// An error with neither details nor retry hint.
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
            message: message.into(),
            details: None,
            retry_after: None,
        }
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 500 for what the server cannot do.
    pub fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            details: Some(json!({"causes": [{"message": message}]})),
            ..Self::new(
                500,
                "InternalError",
                format!("Internal error occurred: {message}"),
            )
        }
    }

    /// 404 for an object.
    pub fn not_found(subject: ErrorSubject<'_>) -> Self {
        let message = format!(
            "{} \"{}\" not found",
            subject.qualified_name(subject.resource),
            subject.name
        );
        Self {
            details: Some(subject.to_details(subject.resource)),
            ..Self::new(404, "NotFound", message)
        }
    }

    /// 404 for a path without a resource.
    pub fn no_such_path() -> Self {
        Self {
            details: Some(json!({})),
            ..Self::new(
                404,
                "NotFound",
                "the server could not find the requested resource",
            )
        }
    }

    /// 409: an object of this name exists.
    pub fn already_exists(subject: ErrorSubject<'_>) -> Self {
        let message = format!(
            "{} \"{}\" already exists",
            subject.qualified_name(subject.resource),
            subject.name
        );
        Self {
            details: Some(subject.to_details(subject.resource)),
            ..Self::new(409, "AlreadyExists", message)
        }
    }

    /// 409: the operation cannot be fulfilled.
    pub fn conflict(subject: ErrorSubject<'_>, why: impl std::fmt::Display) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{}\": {why}",
            subject.qualified_name(subject.resource),
            subject.name
        );
        Self {
            details: Some(subject.to_details(subject.resource)),
            ..Self::new(409, "Conflict", message)
        }
    }

    /// 409: the object has been modified since it was read.
    pub fn modified(subject: ErrorSubject<'_>) -> Self {
        Self::conflict(
            subject,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 403.
    pub fn forbidden(subject: ErrorSubject<'_>, why: impl std::fmt::Display) -> Self {
        let message = format!(
            "{} \"{}\" is forbidden: {why}",
            subject.qualified_name(subject.resource),
            subject.name
        );
        Self {
            details: Some(subject.to_details(subject.resource)),
            ..Self::new(403, "Forbidden", message)
        }
    }

    /// 422 with its causes.
    pub fn invalid(subject: ErrorSubject<'_>, causes: Vec<FieldError>) -> Self {
        let said: Vec<String> = causes.iter().map(ToString::to_string).collect();
        let said = if said.len() == 1 {
            said.concat()
        } else {
            format!("[{}]", said.join(", "))
        };
        let message = format!(
            "{} \"{}\" is invalid: {said}",
            subject.qualified_name(subject.kind),
            subject.name
        );
        let mut details = subject.to_details(subject.kind);
        details["causes"] = causes
            .iter()
            .map(|cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field}))
            .collect();
        Self {
            details: Some(details),
            ..Self::new(422, "Invalid", message)
        }
    }

    /// 422 for the options of a request.
    pub fn invalid_options(kind: &str, cause: FieldError) -> Self {
        let subject = ErrorSubject {
            group: "meta.k8s.io",
            resource: "",
            kind,
            name: "",
        };
        Self::invalid(subject, vec![cause])
    }

    /// 422 for a patch whose result cannot be decoded.
    pub fn invalid_patch(patched: &Value, why: &str) -> Self {
        let subject = ErrorSubject {
            group: "",
            resource: "",
            kind: "",
            name: "",
        };
        let cause = FieldError::invalid("patch", &patched.to_string().into(), why);
        Self::invalid(subject, vec![cause])
    }

    /// 410: the requested revision is no longer in the history.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 405.
    pub fn method_not_allowed() -> Self {
        Self {
            details: Some(json!({})),
            ..Self::new(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )
        }
    }

    /// 415.
    pub fn unsupported_media_type(supported: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {supported}"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 504: the requested revision is in the future.
    pub fn too_large_revision(asked: u64, current: u64) -> Self {
        let details = json!({"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}], "retryAfterSeconds": 1});
        Self {
            details: Some(details),
            retry_after: Some(1),
            ..Self::new(
                504,
                "Timeout",
                format!("Too large resource version: {asked}, current: {current}"),
            )
        }
    }

    /// The `Status` object.
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.as_str().into();
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        if let Some(seconds) = self.retry_after {
            status["details"]["retryAfterSeconds"] = seconds.into();
        }
        status
    }
}
