//! What an answer says besides its status: when to come back, and a body of no more than so many bytes.

use std::time::{Duration, SystemTime};

use futures::StreamExt;
use http::header;

use super::{
    SendError,
    rate_limit::{LONGEST, retry_after},
    transport_error::Fault,
};

/// How long a server asks to be left alone, within reason.
pub fn asked_to_wait(response: &reqwest::Response) -> Option<Duration> {
    if !matches!(response.status().as_u16(), 429 | 503) {
        return None;
    }
    let value = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    Some(retry_after(value, SystemTime::now())?.min(LONGEST))
}

/// Why a body could not be read.
pub enum Unread {
    /// It has more bytes than allowed.
    TooLarge(SendError),
    /// The connection broke.
    Broken(Fault),
}

/// The body of an answer, or why it could not be read.
pub async fn collected(response: reqwest::Response, limit: usize) -> Result<Vec<u8>, Unread> {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        body.extend_from_slice(&chunk.map_err(|e| Unread::Broken(Fault::of(&e)))?);
        if body.len() > limit {
            return Err(Unread::TooLarge(SendError::TooLarge(format!(
                "the answer has more than {limit} bytes"
            ))));
        }
    }
    Ok(body)
}

/// The body of an answer, if it has no more than so many bytes.
pub async fn limited(response: reqwest::Response, limit: usize) -> Result<Vec<u8>, SendError> {
    collected(response, limit).await.map_err(|unread| match unread {
        Unread::TooLarge(e) => e,
        Unread::Broken(fault) => fault.error(""),
    })
}

/// What a person can act on: the innermost cause, never the URL (its query may be anything).
pub fn cause(error: &reqwest::Error) -> String {
    Fault::of(error).text
}
