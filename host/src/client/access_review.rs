//! RBAC for what the host answers from memory: the shared cache holds more than a plugin may see, so the API server is asked by
//! SubjectAccessReview if the plugin's service account may read an object, and so it is for users of the admin server. Writes and
//! uncached reads of plugins are sent as their account and authorized by the API server itself.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::{
    client::api::{ApiClient, ApiError, parse_response},
    kube::key::{Gvk, ObjectRef},
    policy::grants::ServiceAccount,
};

/// Lifetime of a cached permission.
const ALLOWED_TTL: Duration = Duration::from_secs(60);
/// Lifetime of a cached denial: short, so that a corrected role takes effect soon.
const DENIED_TTL: Duration = Duration::from_secs(5);
/// Maximum number of cached decisions.
const MAX_DECISIONS: usize = 10_000;

/// A user as the API server knows it, from a TokenReview.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct ReviewedUser {
    /// Its name.
    pub username: String,
    /// Its identity over time; empty if the authenticator has none.
    pub uid: String,
    /// Its groups.
    pub groups: Vec<String>,
    /// What else the authenticator says of it.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The user whose access is reviewed.
#[derive(Clone, Copy, Debug)]
pub enum ReviewSubject<'a> {
    /// The service account of a plugin.
    Account(&'a ServiceAccount),
    /// A user of the admin server.
    User(&'a Arc<ReviewedUser>),
}

impl fmt::Display for ReviewSubject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account(account) => write!(f, "service account {account}"),
            Self::User(user) => write!(f, "user {:?}", user.username),
        }
    }
}

/// An access to objects that is to be authorized.
#[derive(Clone, Copy, Debug)]
pub struct ObjectAccess<'a> {
    /// The verb, such as `get`, `list` or `watch`.
    pub verb: &'static str,
    /// The kind.
    pub gvk: &'a Gvk,
    /// The namespace; empty for all, or for a cluster-scoped kind.
    pub namespace: &'a str,
    /// The name; empty for any.
    pub name: &'a str,
}

impl<'a> ObjectAccess<'a> {
    /// An access to one object.
    pub fn to_object(verb: &'static str, key: &'a ObjectRef) -> Self {
        Self {
            verb,
            gvk: &key.gvk,
            namespace: &key.namespace,
            name: &key.name,
        }
    }
}

/// The error of an access that is not known to be allowed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AccessError {
    /// RBAC does not allow it.
    #[error("{0}")]
    Forbidden(String),
    /// The review failed.
    #[error(transparent)]
    Unavailable(#[from] ApiError),
}

/// The parameters of a SubjectAccessReview, the key of cached decisions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ReviewKey {
    subject: OwnedSubject,
    verb: &'static str,
    target: ReviewTarget,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum OwnedSubject {
    Account(ServiceAccount),
    User(Arc<ReviewedUser>),
}

impl From<ReviewSubject<'_>> for OwnedSubject {
    fn from(subject: ReviewSubject<'_>) -> Self {
        match subject {
            ReviewSubject::Account(account) => Self::Account(account.clone()),
            ReviewSubject::User(user) => Self::User(user.clone()),
        }
    }
}

/// What is accessed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ReviewTarget {
    Object {
        gvk: Gvk,
        namespace: Box<str>,
        name: Box<str>,
    },
    /// A `nonResourceURL` of RBAC.
    Path(&'static str),
}

#[derive(Clone, Copy)]
struct Decision {
    allowed: bool,
    expires_at: Instant,
}

/// Reviews access at the API server and caches the decisions.
pub struct AccessReviewer {
    client: ApiClient,
    decisions: Mutex<Decisions>,
    own_user: OnceCell<Arc<str>>,
}

/// The last review of one access; locked while one is under way.
#[derive(Default)]
struct LastReview {
    decision: Option<Decision>,
    /// The error of the last review, and when it failed.
    failure: Option<(Instant, ApiError)>,
}

type DecisionEntry = Arc<tokio::sync::Mutex<LastReview>>;

/// The cached decisions.
#[derive(Default)]
struct Decisions(HashMap<ReviewKey, DecisionEntry>);

impl Decisions {
    fn entry(&mut self, key: &ReviewKey, now: Instant) -> DecisionEntry {
        if let Some(entry) = self.0.get(key) {
            return entry.clone();
        }
        if self.0.len() >= MAX_DECISIONS {
            self.evict(now);
        }
        self.0.entry(key.clone()).or_default().clone()
    }

    /// Removes the expired decisions, and at least a quarter of all: those that expire first. Without the rest all plugins
    /// would ask again at once.
    fn evict(&mut self, now: Instant) {
        let expiry = |entry: &DecisionEntry| match entry.try_lock() {
            Ok(last) => last.decision.map_or(now, |d| d.expires_at),
            // Its review is under way.
            Err(_) => now + ALLOWED_TTL,
        };
        let mut expiries: Vec<Instant> = self.0.values().map(expiry).collect();
        let (_, cut, _) = expiries.select_nth_unstable(MAX_DECISIONS / 4);
        let cut = (*cut).max(now);
        self.0.retain(|_, entry| expiry(entry) > cut);
    }
}

impl AccessReviewer {
    /// Creates a reviewer that asks this API server.
    pub fn new(client: ApiClient) -> Self {
        Self {
            client,
            decisions: Mutex::default(),
            own_user: OnceCell::default(),
        }
    }

    /// Returns the name of the user that this host is to the API server, by a SelfSubjectReview; empty where the API server has
    /// none, before Kubernetes 1.28.
    pub async fn own_user(&self) -> Result<Arc<str>, ApiError> {
        #[derive(Deserialize)]
        struct Review {
            status: Status,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Status {
            user_info: User,
        }
        #[derive(Deserialize)]
        struct User {
            username: String,
        }
        let asking = async || {
            let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
            let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
            match self.client.create(path, review.to_string().into_bytes()).await {
                Ok(response) => Ok(parse_response::<Review>(&response)?
                    .status
                    .user_info
                    .username
                    .into()),
                Err(e) if e.code() == 404 => Ok("".into()),
                Err(e) => Err(e),
            }
        };
        self.own_user.get_or_try_init(asking).await.cloned()
    }

    /// Succeeds if a subject has access to all objects of a kind in a namespace, or at least to this one.
    pub async fn check_access(
        &self,
        subject: ReviewSubject<'_>,
        access: ObjectAccess<'_>,
    ) -> Result<(), AccessError> {
        // Most roles name no objects, so one cached decision without a name serves all objects.
        for name in ["", access.name] {
            if self.may_access(subject, ObjectAccess { name, ..access }).await? {
                return Ok(());
            }
            if access.name.is_empty() {
                break;
            }
        }
        let ObjectAccess {
            verb,
            gvk,
            namespace,
            name,
        } = access;
        let place = match namespace {
            "" => String::new(),
            namespace => format!(" in namespace {namespace}"),
        };
        Err(AccessError::Forbidden(format!(
            "RBAC: {subject} may not {verb} {}{}{name}{place}: bind a role to it that allows it",
            gvk.kind,
            if name.is_empty() { "" } else { " " },
        )))
    }

    /// Returns true if a subject has this access.
    pub async fn may_access(
        &self,
        subject: ReviewSubject<'_>,
        access: ObjectAccess<'_>,
    ) -> Result<bool, ApiError> {
        let target = ReviewTarget::Object {
            gvk: access.gvk.clone(),
            namespace: access.namespace.into(),
            name: access.name.into(),
        };
        self.is_allowed(subject, access.verb, target).await
    }

    /// Succeeds if a subject may send requests with this verb to a path that stands for no object.
    pub async fn check_path(
        &self,
        subject: ReviewSubject<'_>,
        verb: &'static str,
        path: &'static str,
    ) -> Result<(), AccessError> {
        if self.is_allowed(subject, verb, ReviewTarget::Path(path)).await? {
            return Ok(());
        }
        Err(AccessError::Forbidden(format!(
            "RBAC: {subject} may not {verb} {path}: bind a ClusterRole to it with this verb of the nonResourceURL {path}"
        )))
    }

    /// Returns the cached decision, or reviews the access and caches the result.
    async fn is_allowed(
        &self,
        subject: ReviewSubject<'_>,
        verb: &'static str,
        target: ReviewTarget,
    ) -> Result<bool, ApiError> {
        let subject = subject.into();
        let key = ReviewKey {
            subject,
            verb,
            target,
        };
        let entry = self.decisions.lock().entry(&key, Instant::now());
        let waiting_since = Instant::now();
        // Readers that need the same decision meanwhile wait for this review instead of sending their own, and share its
        // error: where the API server does not respond, each would otherwise wait for all timeouts before its own.
        let mut last = entry.lock().await;
        if let Some(decision) = last.decision.filter(|d| d.expires_at > Instant::now()) {
            return Ok(decision.allowed);
        }
        if let Some((_, error)) = last.failure.as_ref().filter(|(at, _)| *at >= waiting_since) {
            return Err(error.clone());
        }
        let reviewed = Box::pin(self.create_review(&key)).await;
        let now = Instant::now();
        match &reviewed {
            Ok(allowed) => {
                let expires_at = now + if *allowed { ALLOWED_TTL } else { DENIED_TTL };
                last.decision = Some(Decision {
                    allowed: *allowed,
                    expires_at,
                });
            }
            Err(error) => last.failure = Some((now, error.clone())),
        }
        reviewed
    }

    async fn create_review(&self, key: &ReviewKey) -> Result<bool, ApiError> {
        #[derive(Deserialize)]
        struct Review {
            #[serde(default)]
            status: Status,
        }
        #[derive(Default, Deserialize)]
        struct Status {
            #[serde(default)]
            allowed: bool,
        }
        let mut spec = match &key.subject {
            OwnedSubject::Account(account) => json!({
                "user": account.user_name(),
                // The groups that the API server itself adds to an impersonated service account.
                "groups": [
                    "system:serviceaccounts",
                    format!("system:serviceaccounts:{}", account.namespace),
                    "system:authenticated",
                ],
            }),
            OwnedSubject::User(user) => json!({
                "user": user.username,
                "uid": user.uid,
                "groups": user.groups,
                "extra": user.extra,
            }),
        };
        let verb = key.verb;
        match &key.target {
            ReviewTarget::Object { gvk, namespace, name } => {
                let resource = self.client.discover_resource(gvk).await?;
                spec["resourceAttributes"] = json!({
                    "verb": verb,
                    "group": &*gvk.group,
                    "version": &*gvk.version,
                    "resource": &*resource.plural,
                    "namespace": if resource.namespaced { namespace } else { "" },
                    "name": name,
                });
            }
            ReviewTarget::Path(path) => {
                spec["nonResourceAttributes"] = json!({ "verb": verb, "path": path });
            }
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        });
        let response = self
            .client
            .create(
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                review.to_string().into_bytes(),
            )
            .await?;
        Ok(parse_response::<Review>(&response)?.status.allowed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn account() -> ServiceAccount {
        ServiceAccount {
            namespace: "n".into(),
            name: "plugin".into(),
        }
    }

    fn review_key(name: &str) -> ReviewKey {
        ReviewKey {
            subject: OwnedSubject::Account(account()),
            verb: "get",
            target: ReviewTarget::Object {
                gvk: Gvk::new("", "v1", "Pod"),
                namespace: "n".into(),
                name: name.into(),
            },
        }
    }

    /// A reviewer of a server that answers reviews with this status code, and the number of reviews.
    fn reviewer_of_server(code: u16) -> (AccessReviewer, Arc<AtomicUsize>) {
        let reviews = Arc::new(AtomicUsize::new(0));
        let counted = reviews.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let counted = counted.clone();
            async move {
                let (code, body) = if request.method() == "POST" {
                    counted.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    (code, json!({"status": {"allowed": true}}))
                } else {
                    let pods = json!({"name": "pods", "kind": "Pod", "namespaced": true});
                    (200, json!({"resources": [pods]}))
                };
                let body = axum::body::Body::from(body.to_string());
                http::Response::builder().status(code).body(body)
            }
        });
        let client = ApiClient::new(kube::Client::new(service, "default"));
        (AccessReviewer::new(client), reviews)
    }

    async fn check_concurrently(reviewer: &AccessReviewer) -> Vec<Result<(), AccessError>> {
        let (account, gvk) = (account(), Gvk::new("", "v1", "Pod"));
        let read = ObjectAccess {
            verb: "get",
            gvk: &gvk,
            namespace: "n",
            name: "",
        };
        let checks = (0..16).map(|_| reviewer.check_access(ReviewSubject::Account(&account), read));
        futures::future::join_all(checks).await
    }

    #[tokio::test]
    async fn readers_of_one_decision_share_one_review() {
        let (reviewer, reviews) = reviewer_of_server(201);
        let results = check_concurrently(&reviewer).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!(reviews.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn readers_that_wait_for_a_review_share_its_failure_and_later_ones_try_again() {
        let (reviewer, reviews) = reviewer_of_server(503);
        for attempt in 1..=2 {
            let results = check_concurrently(&reviewer).await;
            let is_unavailable = |result: &Result<(), AccessError>| matches!(result, Err(AccessError::Unavailable(e)) if e.code() == 503);
            assert!(results.iter().all(is_unavailable), "{results:?}");
            assert_eq!(reviews.load(Ordering::Relaxed), attempt);
        }
    }

    #[test]
    fn full_cache_forgets_the_decisions_that_expire_first() {
        let (mut decisions, now) = (Decisions::default(), Instant::now());
        for i in 0..MAX_DECISIONS {
            let entry = decisions.entry(&review_key(&i.to_string()), now);
            let expires_at = now + Duration::from_millis(i as u64 + 1);
            entry.try_lock().expect("not under way").decision = Some(Decision {
                allowed: true,
                expires_at,
            });
        }
        decisions.entry(&review_key("next"), now);
        assert_eq!(decisions.0.len(), MAX_DECISIONS - MAX_DECISIONS / 4);
        assert!(!decisions.0.contains_key(&review_key("0")));
        assert!(decisions.0.contains_key(&review_key("9999")));
    }
}
