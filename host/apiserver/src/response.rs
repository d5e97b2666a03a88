//! Response bodies and headers.

use std::io;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::Value;

use crate::status::StatusError;

/// A response body: complete, or a stream of lines.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The response to a request, or the error that becomes one.
pub type ServerResponse = Result<Response<Body>, StatusError>;

pub fn into_response(answer: ServerResponse) -> Response<Body> {
    answer.unwrap_or_else(|error| {
        let mut response = json_response(error.code, &error.to_value());
        if let Some(seconds) = error.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    })
}

pub fn full_body(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

pub fn build_response(code: u16, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

pub fn json_response(code: u16, value: &Value) -> Response<Body> {
    build_response(code, "application/json", full_body(value.to_string().into()))
}

/// 204 without a body.
pub fn empty_response() -> Response<Body> {
    build_response(204, "text/plain", full_body(Bytes::new()))
}

pub fn text_response(text: &'static str) -> Response<Body> {
    build_response(
        200,
        "text/plain; charset=utf-8",
        full_body(Bytes::from_static(text.as_bytes())),
    )
}
