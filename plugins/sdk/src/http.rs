//! HTTP to a named upstream.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::bindings::ostler::plugin::http::{self, Header};
use crate::outcome::json;
use crate::{Context, Error, EventMatch, EventTail, Substitution};

/// An `Upstream` object; its URL and credentials stay with the host.
#[derive(Clone)]
pub struct Upstream<'a> {
    ctx: &'a Context<'a>,
    upstream: http::Upstream,
}

impl<'a> Upstream<'a> {
    pub(crate) fn new(ctx: &'a Context<'a>, namespace: Option<&str>, name: &str) -> Self {
        let upstream = http::Upstream {
            namespace: namespace.map(Into::into),
            name: name.into(),
        };
        Self { ctx, upstream }
    }

    /// A request with any method; the path starts with `/`.
    #[must_use]
    pub fn request(&self, method: &str, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        RequestBuilder {
            ctx: self.ctx,
            request: http::Request {
                upstream: self.upstream.clone(),
                method: method.into(),
                path_and_query: path_and_query.into(),
                headers: Vec::new(),
                body: None,
                substitutions: Vec::new(),
                timeout: 0,
            },
        }
    }

    /// A GET.
    #[must_use]
    pub fn get(&self, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        self.request("GET", path_and_query)
    }

    /// A PUT.
    #[must_use]
    pub fn put(&self, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        self.request("PUT", path_and_query)
    }

    /// A POST.
    #[must_use]
    pub fn post(&self, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        self.request("POST", path_and_query)
    }

    /// A DELETE.
    #[must_use]
    pub fn delete(&self, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        self.request("DELETE", path_and_query)
    }

    /// Sends requests side by side; answers in order.
    pub fn send_all<const N: usize>(
        &self,
        requests: [RequestBuilder<'a>; N],
    ) -> [Result<Response, Error>; N] {
        let mut answers = self.send_each(requests.into()).into_iter();
        std::array::from_fn(|_| answers.next().unwrap_or_else(|| too_few().map(Response)))
    }

    /// The same for a number that is not known beforehand.
    pub fn send_each(&self, requests: Vec<RequestBuilder<'a>>) -> Vec<Result<Response, Error>> {
        let requests: Vec<_> = requests.into_iter().map(|builder| builder.request).collect();
        let mut answers = self.ctx.http_send_all(&requests);
        answers.resize_with(requests.len(), too_few);
        answers.into_iter().map(|answer| answer.map(Response)).collect()
    }

    /// Wakes the object on events of a stream (server-sent events), and lets it be closed after one of `until`.
    /// Subscribe first, then read: what changes in between wakes.
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

    /// Reads a stream up to one of `until` and gives the last of the events that are selected: `last` at most, with
    /// `bytes` of data at most.
    ///
    /// # Errors
    /// As `http.read-events`.
    pub fn read_events(
        &self,
        path_and_query: impl Into<String>,
        select: &[EventMatch],
        until: &[EventMatch],
        last: u32,
        bytes: u32,
    ) -> Result<EventTail, Error> {
        self.ctx.http_read_events(&http::EventQuery {
            upstream: self.upstream.clone(),
            path_and_query: path_and_query.into(),
            select: select.to_vec(),
            until: until.to_vec(),
            last,
            bytes,
            timeout: 0,
        })
    }
}

impl EventMatch {
    /// Events of this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: Some(name.into()),
            data: None,
        }
    }

    /// Those of them with this at a JSON pointer into their data.
    #[must_use]
    pub fn with(mut self, pointer: &str, value: &str) -> Self {
        self.data = Some((pointer.into(), value.into()));
        self
    }
}

/// A request being built.
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
        self.body("application/json", json(body))
    }

    /// Sets a body.
    #[must_use]
    pub fn body(mut self, content_type: &str, body: Vec<u8>) -> Self {
        self.request.body = Some(body);
        self.header("Content-Type", content_type)
    }

    /// Secrets that the host puts into the body.
    #[must_use]
    pub fn substitute(mut self, substitutions: &[Substitution]) -> Self {
        self.request.substitutions.extend_from_slice(substitutions);
        self
    }

    /// Gives up after so many milliseconds.
    #[must_use]
    pub fn timeout(mut self, milliseconds: u32) -> Self {
        self.request.timeout = milliseconds;
        self
    }

    /// Sends it. Any HTTP status is an answer.
    ///
    /// # Errors
    /// As `http.send`.
    pub fn send(self) -> Result<Response, Error> {
        // As one of many: a second import would bring its own reader of the same answer.
        let answer = self.ctx.http_send_all(std::slice::from_ref(&self.request)).pop();
        answer.unwrap_or_else(too_few).map(Response)
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Response(pub(crate) http::Response);

impl Response {
    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// 200 to 299.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.0.status)
    }

    /// A header by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self.0.headers.iter().find(|h| h.name == name);
        header.map(|h| h.value.as_str())
    }

    /// The body.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0.body
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// `unavailable` when it is not of the type: the other side is not what it should be.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        crate::slim::from_slice(&self.0.body).map_err(unexpected)
    }

    /// The body as any JSON: smaller where few fields matter.
    ///
    /// # Errors
    /// `unavailable` when it is not JSON.
    pub fn value(&self) -> Result<Value, Error> {
        crate::slim::value(&self.0.body).map_err(unexpected)
    }
}

fn too_few() -> Result<http::Response, Error> {
    Err(Error::Unavailable("The host gave too few answers.".into()))
}

fn unexpected(error: crate::slim::Error) -> Error {
    let error = error.within("The answer is not what was expected");
    Error::Unavailable(error.to_string() + ".")
}
