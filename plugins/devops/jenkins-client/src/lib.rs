//! Requests to Jenkins, and which of its answers are its own.
//!
//! A proxy in front of Jenkins answers 404 as well, while Jenkins starts or its route is missing. An answer on which something is
//! decided, such as that an item is gone, is Jenkins' if it has the header `X-Jenkins`. Not all error pages of all versions have
//! it, so without it the root of the API is asked, which always says what it is, and then the request is repeated.

use ostler_sdk::{Error, RequestBuilder, Response, Upstream};

/// Time in milliseconds that a request may take. With the interval of looks at a deployment it is the interval of heartbeats, so
/// that a server that hangs delays none.
const REQUEST_TIMEOUT_MS: u64 = 20_000;
/// Header of Jenkins with its version.
const VERSION_HEADER: &str = "x-jenkins";
/// Path that every version answers with its class.
const ROOT_PATH: &str = "/api/json?tree=_class";
/// Class of the root of the API.
const ROOT_CLASS: &str = "hudson.model.Hudson";

/// A Jenkins server.
pub struct JenkinsServer<'a> {
    upstream: Upstream<'a>,
}

impl<'a> JenkinsServer<'a> {
    /// The server behind an Upstream.
    #[must_use]
    pub fn new(upstream: Upstream<'a>) -> Self {
        Self { upstream }
    }

    /// Builds a GET request.
    pub fn get(&self, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        self.upstream.get(path_and_query).timeout(REQUEST_TIMEOUT_MS)
    }

    /// Builds a POST request.
    pub fn post(&self, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        self.upstream.post(path_and_query).timeout(REQUEST_TIMEOUT_MS)
    }

    /// Builds a DELETE request.
    pub fn delete(&self, path_and_query: impl Into<String>) -> RequestBuilder<'a> {
        self.upstream.delete(path_and_query).timeout(REQUEST_TIMEOUT_MS)
    }

    /// Sends a request. A refusal is returned only if it is Jenkins' own.
    ///
    /// # Errors
    /// As `RequestBuilder::send`, and `unavailable` for a refusal by something in front of Jenkins.
    pub fn send(&self, request: RequestBuilder<'a>) -> Result<Response, Error> {
        let response = request.clone().send()?;
        if !is_refusal(&response) || is_signed(&response) {
            return Ok(response);
        }
        self.check_root(response.status())?;
        // A refused request has changed nothing, wherever it ended.
        request.send()
    }

    /// Checks that requests reach Jenkins.
    fn check_root(&self, refusal: u16) -> Result<(), Error> {
        let root = self.get(ROOT_PATH).send()?;
        let has_class = || root.value().is_ok_and(|body| body["_class"] == ROOT_CLASS);
        if is_signed(&root) || (root.is_success() && has_class()) {
            return Ok(());
        }
        Err(Error::Unavailable(format!(
            "HTTP {refusal}, and not by Jenkins: its API is not at the URL, or a proxy in front of it does not reach it."
        )))
    }
}

/// Returns whether a response refuses a request for good, rather than for now or for lack of rights.
fn is_refusal(response: &Response) -> bool {
    matches!(response.status(), 400 | 404 | 405 | 409 | 410)
}

/// Returns whether a response says that it is Jenkins'. Not all of its answers do.
#[must_use]
pub fn is_signed(response: &Response) -> bool {
    response.header(VERSION_HEADER).is_some()
}

/// The status of a response, and the message that Jenkins puts into a header, beside a page for people.
#[must_use]
pub fn describe_response(response: &Response) -> String {
    let message = response.header("x-error").unwrap_or_default();
    format!("HTTP {} {message}", response.status())
        .trim_end()
        .to_owned()
}
