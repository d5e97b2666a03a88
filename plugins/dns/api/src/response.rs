//! Responses of providers, and the failures that follow from them.

use ostler_sdk::{Error, Failure, Response, ResultExt, serde_json::Value};

/// Wait after HTTP 429 without `Retry-After`.
const DEFAULT_THROTTLE_MS: u64 = 60_000;
/// Wait after a used-up quota, which is refilled by the month.
const QUOTA_WAIT_MS: u64 = 3_600_000;
/// Wait for what no change in the cluster brings: zones, permissions, records out of the way.
const ABSENT_WAIT_MS: u64 = 300_000;

/// Reason of the failure for a zone that the provider does not have.
pub(crate) const ZONE_NOT_FOUND: &str = "ZoneNotFound";

/// Cloudflare's code for "Invalid request headers".
const CLOUDFLARE_INVALID_HEADERS: u32 = 6003;

/// Reason of the failure for a write that the provider refuses.
pub(crate) const REFUSED: &str = "Refused";

/// A request to a provider: its purpose and the reason of the failure when it does not succeed.
#[derive(Clone, Copy, Debug)]
pub struct ProviderOperation {
    action: &'static str,
    reason: &'static str,
}

impl ProviderOperation {
    /// An operation. The action completes the sentence "Could not …".
    #[must_use]
    pub const fn new(action: &'static str, reason: &'static str) -> Self {
        Self { action, reason }
    }

    /// The response, if its status is 2xx.
    ///
    /// # Errors
    /// The request failed, or its response has another status.
    pub fn check(&self, answer: Result<Response, Error>) -> Result<Response, Failure> {
        let response = self.receive(answer)?;
        if response.is_success() {
            Ok(response)
        } else {
            Err(self.failure(&response))
        }
    }

    /// The response with any status.
    ///
    /// # Errors
    /// The request failed.
    pub fn receive(&self, answer: Result<Response, Error>) -> Result<Response, Failure> {
        match answer {
            Err(error @ Error::Throttled(_)) => Err(error).reason("Throttled"),
            answer => answer.reason(self.reason),
        }
    }

    /// The failure for a response with an unexpected status.
    #[must_use]
    pub fn failure(&self, response: &Response) -> Failure {
        let status = response.status();
        let body = response.value().unwrap_or_default();
        let detail = describe_error(&body).unwrap_or_else(|| response.excerpt());
        let message = format!("Could not {} (HTTP {status}): {detail}", self.action);
        match status {
            401 => Failure::throttled(ABSENT_WAIT_MS, "AuthenticationFailed", message),
            400 if is_token_malformed(response) => {
                Failure::throttled(ABSENT_WAIT_MS, "AuthenticationFailed", message)
            }
            403 => Failure::throttled(ABSENT_WAIT_MS, "AccessDenied", message),
            404 if is_provider_error(&body) => Failure::throttled(ABSENT_WAIT_MS, ZONE_NOT_FOUND, message),
            404 => Failure::retry(
                self.reason,
                format!(
                    "{message}. It is not the provider's: its API is not at the URL, or a proxy does not reach it."
                ),
            ),
            429 if body["code"] == "QUOTA_EXCEEDED" => {
                Failure::throttled(QUOTA_WAIT_MS, "QuotaExceeded", message)
            }
            429 => Failure::throttled(retry_after(response, &body), "Throttled", message),
            // The spec is valid, so that other records at the provider are in the way.
            400 | 409 | 422 => Failure::throttled(ABSENT_WAIT_MS, REFUSED, message),
            _ => Failure::retry(self.reason, message),
        }
    }
}

/// Returns whether a response says that what it is about is missing, by the provider itself: a proxy in front of it answers 404, too.
#[must_use]
pub fn is_missing(response: &Response) -> bool {
    response.status() == 404 && is_provider_error(&response.value().unwrap_or_default())
}

/// Returns whether a response says that the token has not the form of one, which Cloudflare answers with HTTP 400.
#[must_use]
pub fn is_token_malformed(response: &Response) -> bool {
    let body = response.value().unwrap_or_default();
    let mut errors = body["errors"].as_array().into_iter().flatten();
    response.status() == 400 && errors.any(|error| error["code"] == CLOUDFLARE_INVALID_HEADERS)
}

/// Returns whether a body has the form of an error of a provider: PowerDNS has nothing but `error` and `errors`, Cloudflare
/// `success` and `errors`, GoDaddy `code` and `message`.
fn is_provider_error(body: &Value) -> bool {
    let Some(fields) = body.as_object() else {
        return false;
    };
    let is_powerdns = body["error"].is_string() && fields.keys().all(|key| key == "error" || key == "errors");
    let is_cloudflare = body["success"] == false && body["errors"].is_array();
    is_powerdns || is_cloudflare || body["code"].is_string()
}

/// The wait that the provider asks for, in milliseconds.
fn retry_after(response: &Response, body: &Value) -> u64 {
    let header = response
        .header("retry-after")
        .and_then(|value| value.parse().ok());
    let seconds: Option<u64> = header.or_else(|| body["retryAfterSec"].as_u64());
    seconds.map_or(DEFAULT_THROTTLE_MS, |seconds| seconds.saturating_mul(1000))
}

/// The provider's own words: PowerDNS has `error`, Cloudflare `errors[].message`, GoDaddy `message` with `fields`.
fn describe_error(body: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(first_line);
    if let Some(error) = text(&body["error"]) {
        return Some(error);
    }
    let messages = |list: &Value| -> Vec<String> {
        let items = list.as_array().into_iter().flatten();
        items.filter_map(|item| text(&item["message"])).collect()
    };
    let errors = messages(&body["errors"]);
    if !errors.is_empty() {
        return Some(errors.join("; "));
    }
    let mut details = vec![text(&body["message"])?];
    details.extend(messages(&body["fields"]));
    Some(details.join("; "))
}

/// The beginning of a text: enough to recognise an HTML page or a stack trace.
#[must_use]
pub fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(200).collect()
}
