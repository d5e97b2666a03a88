//! Answers of the API, whose status codes alone mean little: 400 is also a conflict, 403 also what is missing, 500 also an error of
//! the user, and 200 also the page of a proxy that asks for a login.

use ostler_sdk::{Failure, RequestBuilder, Response, ResultExt, serde_json::Value};

use crate::SyncStart;

/// Time in milliseconds that a request may take. With the interval of looks at a deployment it is the interval of heartbeats, so
/// that a server that hangs delays none.
const REQUEST_TIMEOUT_MS: u64 = 20_000;
/// gRPC code `InvalidArgument`.
const INVALID_ARGUMENT: i64 = 3;
/// gRPC code `FailedPrecondition`.
const FAILED_PRECONDITION: i64 = 9;
/// Message for what is missing where no project is named, and for what may not be seen.
const HIDDEN_MESSAGE: &str = "permission denied";

/// An answer of the API.
pub struct ArgoResponse {
    response: Response,
    body: Value,
}

/// Sends a request.
pub fn send(request: RequestBuilder) -> Result<ArgoResponse, Failure> {
    let response = request.timeout(REQUEST_TIMEOUT_MS).send().reason("ArgoFailed")?;
    // 404, 405 and 415 of the router are plain text.
    let body = response.value().unwrap_or_default();
    Ok(ArgoResponse { response, body })
}

impl ArgoResponse {
    /// The message of an error.
    pub fn message(&self) -> String {
        match self.body["message"].as_str() {
            Some(message) => message.to_owned(),
            None => self.response.excerpt(),
        }
    }

    /// The code of an error; 0 if the answer is not of the API.
    fn code(&self) -> i64 {
        self.body["code"].as_i64().unwrap_or_default()
    }

    /// Returns whether the request was refused with this text.
    pub fn is_refused_with(&self, text: &str) -> bool {
        self.response.status() == 400 && self.message().contains(text)
    }

    /// Returns whether the object is missing or may not be seen.
    pub fn is_hidden(&self) -> bool {
        self.response.status() == 403 && self.message() == HIDDEN_MESSAGE
    }

    /// Returns whether the project has no such repository, which is an internal error if another project has it.
    pub fn is_missing_repository(&self) -> bool {
        self.response.status() == 500 && self.message().starts_with("repository not found for url")
    }

    /// The object of the answer; none if it is missing.
    pub fn found(self) -> Result<Option<Value>, Failure> {
        match self.response.status() {
            200 if self.body.is_object() => Ok(Some(self.body)),
            404 if self.is_of_api() => Ok(None),
            _ => Err(self.failure()),
        }
    }

    /// Nothing of an answer but its success.
    pub fn done(self) -> Result<(), Failure> {
        match self.response.status() {
            200 if self.body.is_object() => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// The success of a create.
    pub fn created(self) -> Result<(), Failure> {
        if self.is_refused_with("use upsert flag") {
            let message = "Argo CD has an object of this name that belongs to another user.";
            return Err(Failure::terminal("NotClaimed", message));
        }
        self.done()
    }

    /// The success of a deletion, also of what is gone already.
    pub fn gone(self) -> Result<(), Failure> {
        match self.response.status() {
            404 if self.is_of_api() => Ok(()),
            _ => self.done(),
        }
    }

    /// The result of a request for a sync.
    pub fn sync_start(self) -> Result<SyncStart, Failure> {
        let message = self.message();
        // By their texts: the code is the same for what passes and for what does not.
        let may_pass = [
            "another operation is already in progress",
            "application is deleting",
            "blocked by sync window",
        ];
        let is_temporary = may_pass.iter().any(|text| message.contains(text));
        match self.response.status() {
            200 if self.body.is_object() => Ok(SyncStart::Started),
            404 if self.is_of_api() => Ok(SyncStart::Missing),
            400 | 403 if is_temporary => Ok(SyncStart::Waiting(message)),
            400 if matches!(self.code(), INVALID_ARGUMENT | FAILED_PRECONDITION) => {
                Ok(SyncStart::Refused(message))
            }
            _ => Err(self.failure()),
        }
    }

    /// Returns whether an error is that of the API, and not of a proxy or another server at the URL.
    fn is_of_api(&self) -> bool {
        self.body["code"].is_i64()
    }

    fn failure(&self) -> Failure {
        let (status, message) = (self.response.status(), self.message());
        match status {
            401 => {
                let text =
                    "Argo CD refuses the token, which may be wrong or expired, or its account is disabled.";
                Failure::retry("AuthenticationFailed", text)
            }
            403 => Failure::retry("ArgoDenied", format!("Argo CD: {message}.")),
            409 => Failure::retry("ArgoConflict", format!("Argo CD: {message}.")),
            _ => Failure::retry("ArgoFailed", format!("Argo CD answers {status}: {message}")),
        }
    }
}
