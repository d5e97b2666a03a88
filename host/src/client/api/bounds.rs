//! Bounds of responses. The server of another cluster need not be trusted, and must not fill the memory of the host.

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::client::Body;

use super::ApiError;

/// Bytes of memory that a cached object takes beside its JSON.
const OBJECT_OVERHEAD_BYTES: usize = 512;

/// Maximum sizes of responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseBounds {
    /// Bytes of a response that is no page of a list, and of an event of a watch.
    pub response_bytes: usize,
    /// Bytes of a page of a list.
    pub page_bytes: usize,
    /// Bytes of the objects of a list, or of a watch.
    pub list_bytes: usize,
    /// Number of pages of a list.
    pub list_pages: usize,
}

impl ResponseBounds {
    /// No bounds: the host's own cluster has the host in its power anyway.
    pub const NONE: Self = Self {
        response_bytes: usize::MAX,
        page_bytes: usize::MAX,
        list_bytes: usize::MAX,
        list_pages: usize::MAX,
    };

    /// The bounds of another cluster. An API server accepts objects of 1.5 MiB at most unless etcd is configured otherwise.
    pub const OTHER_CLUSTER: Self = Self {
        response_bytes: 8 << 20,
        page_bytes: 32 << 20,
        list_bytes: 128 << 20,
        list_pages: 10_000,
    };

    /// Checks the objects of a list, or of a watch.
    ///
    /// # Errors
    /// They take more memory than a list may have.
    pub fn check_objects(&self, objects: usize, bytes: usize) -> Result<(), ApiError> {
        let taken = objects
            .saturating_mul(OBJECT_OVERHEAD_BYTES)
            .saturating_add(bytes);
        if taken <= self.list_bytes {
            return Ok(());
        }
        Err(ApiError::TooLarge(format!(
            "{objects} objects take more than the {} MiB of a list",
            self.list_bytes >> 20
        )))
    }

    /// Checks the number of pages of a list.
    ///
    /// # Errors
    /// There are more than a list may have.
    pub fn check_pages(&self, pages: usize) -> Result<(), ApiError> {
        if pages <= self.list_pages {
            return Ok(());
        }
        Err(ApiError::TooLarge(format!(
            "a list of more than {} pages",
            self.list_pages
        )))
    }

    /// Checks the bytes of an event of a watch that have arrived.
    ///
    /// # Errors
    /// There are more than a response may have.
    pub fn check_event(&self, bytes: usize) -> Result<(), ApiError> {
        if bytes <= self.response_bytes {
            return Ok(());
        }
        Err(response_too_large(self.response_bytes))
    }
}

fn response_too_large(max_bytes: usize) -> ApiError {
    ApiError::TooLarge(format!("more than {} MiB", max_bytes >> 20))
}

/// Reads a whole body.
///
/// # Errors
/// It is larger than `max_bytes`, or the connection broke.
pub(super) async fn collect_body(body: Body, max_bytes: usize) -> Result<Bytes, ApiError> {
    match Limited::new(body, max_bytes).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(response_too_large(max_bytes)),
        Err(e) => Err(ApiError::Unreachable(e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;
    use crate::client::api::{ApiClient, PatchType};

    #[tokio::test]
    async fn endless_responses_are_refused() {
        for code in [200, 500] {
            let service = tower::service_fn(move |_: http::Request<Body>| {
                let chunks =
                    stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 1 << 16])));
                let response = http::Response::builder().status(code);
                let response = response.body(axum::body::Body::from_stream(chunks));
                std::future::ready(Ok::<_, std::io::Error>(response.expect("a response")))
            });
            let client = kube::Client::new(service, "default");
            let client = ApiClient::new(client).with_bounds(ResponseBounds::OTHER_CLUSTER);
            let read = client.get("/x").await.expect_err("refused");
            let page = client.list_page("/x?", 500, "", None, |_| {}).await;
            let written = client.patch("/x", PatchType::Merge, Vec::new()).await;
            let errors = [
                read,
                page.expect_err("refused"),
                written.map(drop).expect_err("refused"),
            ];
            for error in errors {
                let is_refused = match code {
                    200 => matches!(error, ApiError::TooLarge(_)),
                    _ => error.code() == code,
                };
                assert!(is_refused, "{error}");
            }
        }
    }

    #[test]
    fn many_small_objects_are_as_large_as_few_large_ones() {
        let bounds = ResponseBounds::OTHER_CLUSTER;
        assert!(bounds.check_objects(10_000, 10_000 * 8192).is_ok());
        assert!(bounds.check_objects(300_000, 300_000 * 10).is_err());
        assert!(bounds.check_objects(100, 200 << 20).is_err());
        assert!(ResponseBounds::NONE.check_objects(usize::MAX, usize::MAX).is_ok());
    }
}
