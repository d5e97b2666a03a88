//! Servers on loopback that the tests of the DevOps pack run against: one module per server.

pub mod argo;
pub mod git;
mod http_text;
pub mod jenkins;
mod server;
pub mod tokens;

pub use concourse_simulator::{FaultAction, FaultHandle};
pub use server::{Exchange, RequestObserver};

/// Decodes an `Authorization: Basic` header into user name and password.
pub(crate) fn parse_basic(headers: &http::HeaderMap) -> Option<(String, String)> {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let value = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    let pair = BASE64_STANDARD.decode(value.strip_prefix("Basic ")?).ok()?;
    let (user, password) = String::from_utf8(pair)
        .ok()?
        .split_once(':')
        .map(|(user, password)| (user.to_owned(), password.to_owned()))?;
    Some((user, password))
}
