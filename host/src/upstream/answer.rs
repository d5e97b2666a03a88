//! The parts of a response besides its status: `Retry-After`, and a body of bounded size.

use std::time::{Duration, SystemTime};

use futures::StreamExt;
use http::{HeaderValue, header};

use super::{
    ResponseCharge, SendError,
    rate_limit::{MAX_RETRY_AFTER, parse_retry_after},
    transport_error::TransportError,
};

/// The wait that the server asks for by `Retry-After` (HTTP 429 or 503), capped at [`MAX_RETRY_AFTER`].
pub fn retry_after(response: &reqwest::Response) -> Option<Duration> {
    if !matches!(response.status().as_u16(), 429 | 503) {
        return None;
    }
    let value = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    Some(parse_retry_after(value, SystemTime::now())?.min(MAX_RETRY_AFTER))
}

/// The value of `accept-encoding` in each request.
pub const IDENTITY_ENCODING: HeaderValue = HeaderValue::from_static("identity");

/// The encoding of a response's body (`content-encoding`); `None` if it can be read as it is.
pub fn content_encoding(response: &reqwest::Response) -> Option<String> {
    let values = response.headers().get_all(header::CONTENT_ENCODING).iter();
    let names: Vec<_> = values.map(|v| String::from_utf8_lossy(v.as_bytes())).collect();
    let encoding = names.join(", ");
    let is_identity = |name: &str| name.trim().is_empty() || name.trim().eq_ignore_ascii_case("identity");
    (!encoding.split(',').all(is_identity)).then_some(encoding)
}

/// The error of a response that cannot be searched for secrets, because the server has encoded it unasked.
pub fn explain_encoded(encoding: &str) -> SendError {
    SendError::Invalid(format!(
        "the answer has `content-encoding: {encoding}` although the host asked for `identity`: secrets in it could not \
         be redacted; turn off compression at the server for requests that do not accept it"
    ))
}

/// The reason for an unreadable body.
pub enum BodyError {
    /// The body exceeds a limit.
    TooLarge(SendError),
    /// The connection broke.
    Broken(TransportError),
}

/// Reads a body of at most `limit` bytes, which are charged before they are kept.
pub async fn read_body(
    response: reqwest::Response,
    limit: usize,
    mut charge: Option<&mut ResponseCharge>,
) -> Result<Vec<u8>, BodyError> {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|e| BodyError::Broken(TransportError::from_request(&e)))?;
        if body.len() + chunk.len() > limit {
            return Err(BodyError::TooLarge(SendError::TooLarge(format!(
                "the answer has more than {limit} bytes"
            ))));
        }
        if let Some(charge) = &mut charge {
            charge.add(chunk.len()).await.map_err(BodyError::TooLarge)?;
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Reads a body of at most `limit` bytes, with the error as callers report it.
pub async fn limited(response: reqwest::Response, limit: usize) -> Result<Vec<u8>, SendError> {
    read_body(response, limit, None)
        .await
        .map_err(|unread| match unread {
            BodyError::TooLarge(e) => e,
            BodyError::Broken(error) => error.into_send_error(""),
        })
}

/// The innermost cause of a request's error. It never contains the URL, whose query may be anything.
pub fn root_cause(error: &reqwest::Error) -> String {
    TransportError::from_request(error).text
}
