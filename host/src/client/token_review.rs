//! Authentication of bearer tokens by the API server: service account tokens, OIDC, whatever it accepts itself.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::client::{
    access_review::ReviewedUser,
    api::{ApiClient, ApiError, parse_response},
};

/// Lifetime of a cached result, as in API servers that delegate their authentication.
const RESULT_TTL: Duration = Duration::from_secs(10);
/// Maximum number of cached results.
const MAX_RESULTS: usize = 1_000;
/// Maximum number of concurrent reviews: whoever reaches the port may send tokens that are none.
const MAX_REVIEWS: usize = 4;

/// Digest of a token. The token itself is not kept.
type TokenDigest = [u8; 32];

/// Authenticates tokens at the API server by TokenReview, and caches the results.
pub struct TokenReviewer {
    client: ApiClient,
    results: Mutex<HashMap<TokenDigest, ReviewResult>>,
    reviews: Semaphore,
}

#[derive(Clone)]
struct ReviewResult {
    expires_at: Instant,
    /// The user of the token; none if it is not valid.
    user: Option<Arc<ReviewedUser>>,
}

impl TokenReviewer {
    /// Creates a reviewer that asks this API server.
    pub fn new(client: ApiClient) -> Self {
        Self {
            client,
            results: Mutex::default(),
            reviews: Semaphore::new(MAX_REVIEWS),
        }
    }

    /// Returns the user of a token; none if the API server does not accept it.
    ///
    /// # Errors
    /// The review failed.
    pub async fn authenticate(&self, token: &str) -> Result<Option<Arc<ReviewedUser>>, ApiError> {
        let digest: TokenDigest = Sha256::digest(token).into();
        if let Some(user) = self.find_result(&digest) {
            return Ok(user);
        }
        // Never closed.
        let _permit = self.reviews.acquire().await;
        // A request with the same token may have been answered meanwhile.
        if let Some(user) = self.find_result(&digest) {
            return Ok(user);
        }
        let user = self.create_review(token).await?;
        let now = Instant::now();
        let mut results = self.results.lock();
        if results.len() >= MAX_RESULTS {
            results.retain(|_, result| result.expires_at > now);
        }
        if results.len() < MAX_RESULTS {
            let (user, expires_at) = (user.clone(), now + RESULT_TTL);
            results.insert(digest, ReviewResult { expires_at, user });
        }
        Ok(user)
    }

    fn find_result(&self, digest: &TokenDigest) -> Option<Option<Arc<ReviewedUser>>> {
        let results = self.results.lock();
        let result = results
            .get(digest)
            .filter(|result| result.expires_at > Instant::now());
        result.map(|result| result.user.clone())
    }

    async fn create_review(&self, token: &str) -> Result<Option<Arc<ReviewedUser>>, ApiError> {
        #[derive(Deserialize)]
        struct Review {
            #[serde(default)]
            status: Status,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Status {
            authenticated: bool,
            user: ReviewedUser,
        }
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": { "token": token },
        });
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let response = self.client.create(path, review.to_string().into_bytes()).await?;
        let Status { authenticated, user } = parse_response::<Review>(&response)?.status;
        Ok(authenticated.then(|| Arc::new(user)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A reviewer of a server that knows one token, and the number of reviews.
    fn reviewer_of_server(code: u16) -> (TokenReviewer, Arc<AtomicUsize>) {
        let reviews = Arc::new(AtomicUsize::new(0));
        let counted = reviews.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let counted = counted.clone();
            async move {
                counted.fetch_add(1, Ordering::Relaxed);
                let review = request.into_body().collect_bytes().await.expect("a body");
                let review: serde_json::Value = serde_json::from_slice(&review).expect("JSON");
                let status = match review["spec"]["token"].as_str() {
                    Some("good") => json!({"authenticated": true,
                        "user": {"username": "ada", "groups": ["devs"], "extra": {"scopes": ["a"]}}}),
                    _ => json!({"user": {}, "error": "invalid bearer token"}),
                };
                let body = axum::body::Body::from(json!({ "status": status }).to_string());
                http::Response::builder().status(code).body(body)
            }
        });
        let client = ApiClient::new(kube::Client::new(service, "default"));
        (TokenReviewer::new(client), reviews)
    }

    #[tokio::test]
    async fn token_is_reviewed_once_for_concurrent_and_later_requests() {
        let (reviewer, reviews) = reviewer_of_server(201);
        let users = futures::future::join_all((0..8).map(|_| reviewer.authenticate("good"))).await;
        for user in users {
            let user = user.expect("a review").expect("a user");
            assert_eq!(
                (&*user.username, &user.groups[..]),
                ("ada", &["devs".to_owned()][..])
            );
            assert_eq!(user.extra["scopes"], ["a"]);
        }
        assert!(reviews.load(Ordering::Relaxed) <= MAX_REVIEWS);
        let before = reviews.load(Ordering::Relaxed);
        assert!(reviewer.authenticate("bad").await.expect("a review").is_none());
        assert!(reviewer.authenticate("bad").await.expect("a review").is_none());
        assert!(reviewer.authenticate("good").await.expect("a review").is_some());
        assert_eq!(reviews.load(Ordering::Relaxed), before + 1);
    }

    #[tokio::test]
    async fn failed_review_is_an_error_and_not_kept() {
        let (reviewer, reviews) = reviewer_of_server(500);
        for attempt in 1..=2 {
            assert_eq!(
                reviewer.authenticate("good").await.expect_err("fails").code(),
                500
            );
            assert_eq!(reviews.load(Ordering::Relaxed), attempt);
        }
    }

    #[tokio::test]
    async fn results_of_many_tokens_are_bounded() {
        let (reviewer, _) = reviewer_of_server(201);
        for number in 0..MAX_RESULTS + 50 {
            let user = reviewer.authenticate(&format!("bad-{number}")).await;
            assert!(user.expect("a review").is_none());
        }
        assert_eq!(reviewer.results.lock().len(), MAX_RESULTS);
    }
}
