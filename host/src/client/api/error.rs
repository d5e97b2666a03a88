//! What can come of a request besides an answer.

use serde::Deserialize;

use crate::{client::fence::Deposed, kube::key::Gvk};

/// What the API server said no to, or why it could not be asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ApiError {
    /// The server answered with a `Status`.
    #[error("{message}")]
    Status {
        /// HTTP status code.
        code: u16,
        /// Machine-readable reason, for example `Conflict`.
        reason: String,
        /// The server's own words.
        message: String,
        /// `Retry-After` in milliseconds, where the server gave one.
        retry_after: Option<u64>,
    },
    /// The kind is not served.
    #[error("the API server does not serve {0}: is its CRD installed?")]
    UnknownKind(Gvk),
    /// No answer.
    #[error("the API server can't be reached: {0}")]
    Unreachable(String),
    /// The answer made no sense.
    #[error("the API server's answer is not what was expected: {0}")]
    Garbage(String),
    /// Not sent.
    #[error(transparent)]
    Deposed(#[from] Deposed),
}

impl ApiError {
    /// The HTTP status code, 0 when there was no answer.
    pub fn code(&self) -> u16 {
        match self {
            Self::Status { code, .. } => *code,
            Self::UnknownKind(_) => 404,
            _ => 0,
        }
    }
}

/// Warns, unless it is only that the API server is away, which is said once for all.
macro_rules! complain {
    ($error:expr, $($what:tt)*) => {
        match $error {
            $crate::client::api::ApiError::Unreachable(_) => tracing::debug!($($what)*),
            _ => tracing::warn!($($what)*),
        }
    };
}
pub(crate) use complain;

/// Reads a `Status` object, wherever it came from (an answer, or an ERROR event in a watch).
pub fn status_error(code: u16, retry_after: Option<u64>, body: &[u8]) -> ApiError {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        code: u16,
        reason: String,
        message: String,
    }
    let status: Status = serde_json::from_slice(body).unwrap_or_default();
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
        retry_after,
    }
}

/// Parses an answer of the API server.
pub fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|e| ApiError::Garbage(e.to_string()))
}

/// The cause a person can act on ("connection refused") is at the end of the chain.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
