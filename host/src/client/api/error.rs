//! Errors of requests to the API server.

use serde::Deserialize;

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
        /// `Retry-After` in milliseconds, if the server sent one.
        retry_after: Option<u64>,
    },
    /// The kind is not served.
    #[error("the API server does not serve {0}: is its CRD installed?")]
    UnknownKind(Gvk),
    /// The server did not answer.
    #[error("the API server can't be reached: {0}")]
    Unreachable(String),
    /// The response could not be parsed.
    #[error("unexpected response of the API server: {0}")]
    InvalidResponse(String),
    /// The write was not sent because this host does not lead.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
}

impl ApiError {
    /// The HTTP status code; 0 without a response.
    pub fn code(&self) -> u16 {
        match self {
            Self::Status { code, .. } => *code,
            Self::UnknownKind(_) => 404,
            _ => 0,
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
