//! HTTP requests to named upstreams, and the secrets that the host inserts into them.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::bindings::ostler::plugin::http::{self, Header};
use crate::outcome::to_json_bytes;
use crate::{
    BasicCredentials, Context, DataMatch, Encoding, Error, EventMatch, EventTail, Method, SecretKeyRef,
    SecretSource, Substitution, UpstreamRef, Username,
};

/// An `Upstream` object. Its URL and credentials stay with the host.
#[derive(Clone)]
pub struct Upstream<'a> {
    ctx: &'a Context<'a>,
    upstream: UpstreamRef,
}

impl<'a> Upstream<'a> {
    pub(crate) fn new(ctx: &'a Context<'a>, upstream: UpstreamRef) -> Self {
        Self { ctx, upstream }
    }

    /// Builds a request with any method; the path starts with `/`.
    #[must_use]
    pub fn request(&self, method: Method, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        RequestBuilder {
            ctx: self.ctx,
            request: http::Request {
                upstream: self.upstream.clone(),
                method,
                path_and_query: path_and_query.into(),
                headers: Vec::new(),
                body: None,
                substitutions: Vec::new(),
                timeout: None,
            },
        }
    }

    /// Builds a GET request.
    #[must_use]
    pub fn get(&self, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        self.request(Method::Get, path_and_query)
    }

    /// Builds a PUT request.
    #[must_use]
    pub fn put(&self, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        self.request(Method::Put, path_and_query)
    }

    /// Builds a POST request.
    #[must_use]
    pub fn post(&self, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        self.request(Method::Post, path_and_query)
    }

    /// Builds a PATCH request.
    #[must_use]
    pub fn patch(&self, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        self.request(Method::Patch, path_and_query)
    }

    /// Builds a DELETE request.
    #[must_use]
    pub fn delete(&self, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        self.request(Method::Delete, path_and_query)
    }

    /// Sends requests concurrently and returns their results in the same order.
    pub fn send_all<const N: usize>(
        &self,
        requests: [RequestBuilder<'a>; N],
    ) -> [Result<Response, Error>; N] {
        let mut answers = self.send_each(requests.into()).into_iter();
        std::array::from_fn(|_| answers.next().unwrap_or_else(|| missing_response().map(Response)))
    }

    /// Sends any number of requests concurrently and returns their results in the same order.
    pub fn send_each(&self, requests: Vec<RequestBuilder<'a>>) -> Vec<Result<Response, Error>> {
        let requests: Vec<_> = requests.into_iter().map(|builder| builder.request).collect();
        let mut answers = self.ctx.http_send_all(&requests);
        answers.resize_with(requests.len(), missing_response);
        answers.into_iter().map(|answer| answer.map(Response)).collect()
    }

    /// Reconciles the object on events of a stream (server-sent events) that match `wake`, and closes the stream after an
    /// event that matches `until`. Subscribe first, then read: a change in between then causes a reconcile.
    ///
    /// # Errors
    /// As `http.subscribe`.
    pub fn subscribe(
        &self,
        path_and_query: impl Into<String>,
        wake: &[EventMatch],
        until: &[EventMatch],
    ) -> Result<(), Error> {
        self.ctx.http_subscribe(&http::Subscription {
            upstream: self.upstream.clone(),
            path_and_query: path_and_query.into(),
            wake: wake.to_vec(),
            until: until.to_vec(),
        })
    }

    /// Reads a stream up to an event that matches `until` and returns the last of the selected events: at most
    /// `max_events`, with at most `max_bytes` of data.
    ///
    /// # Errors
    /// As `http.read-events`.
    pub fn read_events(
        &self,
        path_and_query: impl Into<String>,
        select: &[EventMatch],
        until: &[EventMatch],
        max_events: u32,
        max_bytes: u32,
    ) -> Result<EventTail, Error> {
        self.ctx.http_read_events(&http::EventQuery {
            upstream: self.upstream.clone(),
            path_and_query: path_and_query.into(),
            select: select.to_vec(),
            until: until.to_vec(),
            max_events: Some(max_events),
            max_bytes: Some(max_bytes),
            timeout: None,
        })
    }
}

impl EventMatch {
    /// Matches events of this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: Some(name.into()),
            data: None,
        }
    }

    /// Matches only events with this value at a JSON pointer into their data.
    #[must_use]
    pub fn with(mut self, pointer: &str, value: &str) -> Self {
        self.data = Some(DataMatch {
            pointer: pointer.into(),
            value: value.into(),
        });
        self
    }
}

impl Method {
    /// Returns the method as it is sent, for example `GET`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Options => "OPTIONS",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

impl SecretKeyRef {
    /// A key of a `Secret` in the namespace of the reconciled object.
    #[must_use]
    pub fn new(name: &str, key: &str) -> Self {
        Self {
            cluster: None,
            namespace: None,
            name: name.into(),
            key: key.into(),
        }
    }

    /// The key of the `Secret` of this name in another namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }
}

impl Substitution {
    /// Replaces a placeholder of at least 16 bytes by the value of a secret.
    #[must_use]
    pub fn key(placeholder: &str, secret: SecretKeyRef, encoding: Encoding) -> Self {
        Self {
            placeholder: placeholder.into(),
            source: SecretSource::Key(secret),
            encoding,
        }
    }

    /// Replaces a placeholder of at least 16 bytes by `user:password`.
    #[must_use]
    pub fn basic(placeholder: &str, username: Username, password: SecretKeyRef, encoding: Encoding) -> Self {
        Self {
            placeholder: placeholder.into(),
            source: SecretSource::Basic(BasicCredentials { username, password }),
            encoding,
        }
    }
}

/// A request being built.
#[derive(Clone)]
pub struct RequestBuilder<'a> {
    ctx: &'a Context<'a>,
    request: http::Request,
}

impl RequestBuilder<'_> {
    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.request.headers.push(Header {
            name: name.into(),
            value: value.into(),
        });
        self
    }

    /// Sets a JSON body.
    #[must_use]
    pub fn json(self, body: &impl Serialize) -> Self {
        self.body("application/json", to_json_bytes(body))
    }

    /// Sets a body.
    #[must_use]
    pub fn body(mut self, content_type: &str, body: Vec<u8>) -> Self {
        self.request.body = Some(body);
        self.header("Content-Type", content_type)
    }

    /// Adds secrets that the host inserts into the body.
    #[must_use]
    pub fn substitute(mut self, substitutions: &[Substitution]) -> Self {
        self.request.substitutions.extend_from_slice(substitutions);
        self
    }

    /// Sets the timeout in milliseconds.
    #[must_use]
    pub fn timeout(mut self, milliseconds: u64) -> Self {
        self.request.timeout = Some(milliseconds);
        self
    }

    /// Sends the request. A response with any HTTP status is a success.
    ///
    /// # Errors
    /// As `http.send`.
    pub fn send(self) -> Result<Response, Error> {
        // `http.send` would be a second import with its own code to lift a response, so `http.send-all` serves both.
        let answer = self.ctx.http_send_all(std::slice::from_ref(&self.request)).pop();
        answer.unwrap_or_else(missing_response).map(Response)
    }
}

/// Maximum number of characters of an excerpt.
const MAX_EXCERPT_CHARS: usize = 200;
/// The excerpt of a page of HTML.
const PAGE: &str = "a page of HTML, of a proxy or of another server";

/// A response.
#[derive(Clone, Debug)]
pub struct Response(pub(crate) http::Response);

impl Response {
    /// Returns the HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// Returns whether the status is between 200 and 299.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.0.status)
    }

    /// Returns a header by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self.0.headers.iter().find(|h| h.name == name);
        header.map(|h| h.value.as_str())
    }

    /// Returns the body.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0.body
    }

    /// Returns the body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.body).into_owned()
    }

    /// Returns the beginning of the body for a message: its first line, 200 characters at most. In place of a page of HTML it says
    /// that there is one.
    #[must_use]
    pub fn excerpt(&self) -> String {
        if self.is_page() {
            return PAGE.to_owned();
        }
        let text = String::from_utf8_lossy(&self.0.body);
        let line = text.trim_start().lines().next().unwrap_or_default();
        line.chars().take(MAX_EXCERPT_CHARS).collect()
    }

    /// Returns true if the body is a page of HTML, which is not for programs: a proxy has answered, or another server.
    #[must_use]
    pub fn is_page(&self) -> bool {
        let body = self.0.body.trim_ascii_start();
        let is_html =
            |start: &[u8]| body.len() >= start.len() && body[..start.len()].eq_ignore_ascii_case(start);
        is_html(b"<!doctype html") || is_html(b"<html")
    }

    /// Parses the body as JSON.
    ///
    /// # Errors
    /// `unavailable` if the body is not of the type, since the server is not what it should be.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        crate::slim::from_slice(&self.0.body).map_err(|error| self.unexpected(&error))
    }

    /// Parses the body as any JSON, which needs less code than a type.
    ///
    /// # Errors
    /// `unavailable` if the body is not JSON.
    pub fn value(&self) -> Result<Value, Error> {
        crate::slim::value(&self.0.body).map_err(|error| self.unexpected(&error))
    }

    fn unexpected(&self, error: &crate::slim::Error) -> Error {
        let form = if self.is_page() {
            format!("is {PAGE}: check the URL")
        } else {
            format!("has an unexpected form: {error}")
        };
        Error::Unavailable(format!("The response {form}."))
    }
}

fn missing_response() -> Result<http::Response, Error> {
    Err(Error::Unavailable("The host returned too few responses.".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn respond(body: &str) -> Response {
        Response(http::Response {
            status: 502,
            headers: Vec::new(),
            body: body.into(),
        })
    }

    #[test]
    fn excerpt_is_the_first_line_and_never_a_page() {
        for (body, excerpt) in [
            ("", ""),
            ("\n no route\nat line 7", "no route"),
            ("{\"error\": \"<html>\"}", "{\"error\": \"<html>\"}"),
            (" <!DocType HTML><body>secrets", PAGE),
            ("<html lang=en>", PAGE),
            ("<htm", "<htm"),
        ] {
            assert_eq!(respond(body).excerpt(), excerpt);
        }
        assert_eq!(
            respond(&"é".repeat(500)).excerpt().chars().count(),
            MAX_EXCERPT_CHARS
        );
    }

    #[test]
    fn json_of_a_page_is_an_error_about_the_url() {
        let error = respond("<html>").value().expect_err("no JSON").text();
        assert!(error.contains("check the URL"), "{error}");
    }
}
