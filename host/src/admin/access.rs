//! Access of requests to what the admin server shows, by RBAC of the API server.
//!
//! A process that reaches the loopback address may see everything: it runs in the host's own pod or on its machine, or came by
//! `kubectl port-forward`, which RBAC allows per namespace. A user of the secure address sees what concerns objects that he may read
//! at the API server: his own objects, their logs and why they wait. Recordings contain what was read and sent, so they need a verb
//! of their own.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{Extension, Request},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::{
    client::{
        access_review::{AccessError, AccessReviewer, ObjectAccess, ReviewSubject, ReviewedUser},
        api::{ApiClient, ApiError},
        token_review::TokenReviewer,
    },
    kube::key::{Gvk, ObjectRef},
};

/// The verb that allows to record the reconciles of objects and to see their recordings.
pub const RECORD: &str = "record";

/// Paths about the host as a whole: `nonResourceURLs` of RBAC, with the verb `get`.
const HOST_PATHS: [&str; 6] = [
    "/logs",
    "/metrics",
    "/plugins",
    "/reconciles",
    "/status",
    "/store",
];

/// Maximum number of namespaces that one request asks the API server about.
const MAX_REVIEWED_NAMESPACES: usize = 200;

/// Ask the API server who a user is and what he may see. Not those of the leader's writes: a standby has users, too.
pub struct Reviewers {
    /// Reads the authority of client certificates.
    pub(super) client: ApiClient,
    pub(super) tokens: TokenReviewer,
    access: AccessReviewer,
}

impl Reviewers {
    /// Creates reviewers that ask this API server.
    pub fn new(client: ApiClient) -> Self {
        Self {
            tokens: TokenReviewer::new(client.clone()),
            access: AccessReviewer::new(client.clone()),
            client,
        }
    }
}

/// The sender of a request.
#[derive(Clone)]
pub enum Requester {
    /// A process that reaches the loopback address.
    Local,
    /// A user of the secure address.
    User {
        /// The authenticated user.
        user: Arc<ReviewedUser>,
        /// Asks the API server for its rights.
        reviewers: Arc<Reviewers>,
    },
}

/// The refusal of a request: its status code and message.
#[derive(Debug, PartialEq, Eq)]
pub struct AccessRefusal(pub StatusCode, pub String);

impl IntoResponse for AccessRefusal {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "message": self.1 }))).into_response()
    }
}

impl From<AccessError> for AccessRefusal {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Forbidden(why) => Self(StatusCode::FORBIDDEN, why),
            AccessError::Unavailable(e) => e.into(),
        }
    }
}

impl From<ApiError> for AccessRefusal {
    fn from(error: ApiError) -> Self {
        Self(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the API server can't be asked for your rights: {error}"),
        )
    }
}

impl Requester {
    /// Succeeds if the requester has a verb on an object.
    pub async fn check_object(&self, verb: &'static str, key: &ObjectRef) -> Result<(), AccessRefusal> {
        let Some((reviewer, subject)) = self.subject() else {
            return Ok(());
        };
        let access = ObjectAccess::to_object(verb, key);
        Ok(reviewer.check_access(subject, access).await?)
    }

    /// Succeeds if the requester may see what concerns the host as a whole.
    pub async fn check_path(&self, path: &'static str) -> Result<(), AccessRefusal> {
        let Some((reviewer, subject)) = self.subject() else {
            return Ok(());
        };
        Ok(reviewer.check_path(subject, "get", path).await?)
    }

    /// Keeps the objects that the requester has a verb on: all of a kind, or those of some namespaces.
    ///
    /// # Errors
    /// The API server can't be asked, or would have to be asked about too many namespaces.
    pub async fn retain_visible(
        &self,
        verb: &'static str,
        mut keys: Vec<ObjectRef>,
    ) -> Result<Vec<ObjectRef>, AccessRefusal> {
        let Some((reviewer, subject)) = self.subject() else {
            return Ok(keys);
        };
        // Whether all objects of the kind are visible, and those of each namespace.
        let mut kinds: BTreeMap<Gvk, (bool, BTreeMap<Arc<str>, bool>)> = BTreeMap::new();
        let mut reviewed = 0;
        for key in &keys {
            let access = |namespace| ObjectAccess {
                verb,
                gvk: &key.gvk,
                namespace,
                name: "",
            };
            if !kinds.contains_key(&key.gvk) {
                let everywhere = reviewer.may_access(subject, access("")).await?;
                kinds.insert(key.gvk.clone(), (everywhere, BTreeMap::new()));
            }
            let Some((false, namespaces)) = kinds.get_mut(&key.gvk) else {
                continue;
            };
            if !key.namespace.is_empty() && !namespaces.contains_key(&key.namespace) {
                reviewed += 1;
                if reviewed > MAX_REVIEWED_NAMESPACES {
                    let message = format!(
                        "RBAC: {subject} may not {verb} {} in all namespaces, and there are too many to ask for each: name one by \
                         the parameter `namespace`",
                        key.gvk.kind
                    );
                    return Err(AccessRefusal(StatusCode::FORBIDDEN, message));
                }
                let here = reviewer.may_access(subject, access(&key.namespace)).await?;
                namespaces.insert(key.namespace.clone(), here);
            }
        }
        keys.retain(|key| {
            let Some((everywhere, namespaces)) = kinds.get(&key.gvk) else {
                return false;
            };
            *everywhere || namespaces.get(&key.namespace) == Some(&true)
        });
        Ok(keys)
    }

    fn subject(&self) -> Option<(&AccessReviewer, ReviewSubject<'_>)> {
        match self {
            Self::Local => None,
            Self::User { user, reviewers } => Some((&reviewers.access, ReviewSubject::User(user))),
        }
    }
}

/// Lets requests for what concerns the host as a whole pass if the requester may see that.
pub async fn check_host_path(
    Extension(requester): Extension<Requester>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let Some(path) = HOST_PATHS.iter().find(|known| **known == path) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    match requester.check_path(path).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A user who may read greetings in the namespace `n-0`, and the number of reviews.
    fn user() -> (Requester, Arc<AtomicUsize>) {
        let reviews = Arc::new(AtomicUsize::new(0));
        let counted = reviews.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let counted = counted.clone();
            async move {
                let answer = if request.method() == "POST" {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let review = request.into_body().collect_bytes().await.expect("a body");
                    let review: serde_json::Value = serde_json::from_slice(&review).expect("JSON");
                    let is_own = review["spec"]["resourceAttributes"]["namespace"] == "n-0";
                    json!({"status": {"allowed": is_own}})
                } else {
                    let pods = json!({"name": "greetings", "kind": "Greeting", "namespaced": true});
                    json!({ "resources": [pods] })
                };
                http::Response::builder().body(axum::body::Body::from(answer.to_string()))
            }
        });
        let client = ApiClient::new(kube::Client::new(service, "default"));
        let requester = Requester::User {
            user: Arc::default(),
            reviewers: Arc::new(Reviewers::new(client)),
        };
        (requester, reviews)
    }

    fn greetings(namespaces: usize) -> Vec<ObjectRef> {
        let gvk = Gvk::new("examples.ostler.dev", "v1alpha1", "Greeting");
        let names = (0..namespaces).flat_map(|n| ["a", "b"].map(|name| (format!("n-{n}"), name)));
        names
            .map(|(namespace, name)| ObjectRef::new(gvk.clone(), &namespace, name))
            .collect()
    }

    #[tokio::test]
    async fn objects_of_other_namespaces_are_left_out_by_one_review_each() {
        let (user, reviews) = user();
        let visible = user.retain_visible("get", greetings(3)).await.expect("reviewed");
        assert_eq!(visible, greetings(1));
        assert_eq!(
            reviews.load(Ordering::Relaxed),
            4,
            "all namespaces, and each of three"
        );
    }

    #[tokio::test]
    async fn request_about_too_many_namespaces_is_refused_with_the_remedy() {
        let (user, reviews) = user();
        let refused = user
            .retain_visible("get", greetings(MAX_REVIEWED_NAMESPACES + 50))
            .await
            .expect_err("refused");
        assert_eq!(refused.0, StatusCode::FORBIDDEN);
        assert!(refused.1.contains("the parameter `namespace`"), "{}", refused.1);
        assert_eq!(reviews.load(Ordering::Relaxed), MAX_REVIEWED_NAMESPACES + 1);
    }
}
