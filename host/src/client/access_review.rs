//! RBAC for cached reads: the shared cache holds more than a plugin may see, so the API server is asked by
//! SubjectAccessReview if the plugin's service account may read an object. Writes and uncached reads are sent as that
//! account and authorized by the API server itself.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;

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

/// A read to be authorized.
#[derive(Clone, Copy, Debug)]
pub struct ReadAccess<'a> {
    /// `get`, `list` or `watch`.
    pub verb: &'static str,
    /// The kind.
    pub gvk: &'a Gvk,
    /// The namespace; empty for all, or for a cluster-scoped kind.
    pub namespace: &'a str,
    /// The name; empty for any.
    pub name: &'a str,
}

impl<'a> ReadAccess<'a> {
    /// A read of one object.
    pub fn for_object(verb: &'static str, key: &'a ObjectRef) -> Self {
        Self {
            verb,
            gvk: &key.gvk,
            namespace: &key.namespace,
            name: &key.name,
        }
    }
}

/// The error of a read that is not known to be allowed.
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
    account: ServiceAccount,
    verb: &'static str,
    gvk: Gvk,
    namespace: Box<str>,
    name: Box<str>,
}

#[derive(Clone, Copy)]
struct Decision {
    allowed: bool,
    expires_at: Instant,
}

/// Reviews access at the API server and caches the decisions.
pub struct AccessReviewer {
    client: ApiClient,
    decisions: Mutex<HashMap<ReviewKey, Decision>>,
}

impl AccessReviewer {
    /// Creates a reviewer that asks this API server.
    pub fn new(client: ApiClient) -> Self {
        Self {
            client,
            decisions: Mutex::default(),
        }
    }

    /// Succeeds if an account may read all objects of a kind in a namespace, or at least this one.
    pub async fn check_access(
        &self,
        account: &ServiceAccount,
        read: ReadAccess<'_>,
    ) -> Result<(), AccessError> {
        // Most roles name no objects, so one cached decision without a name serves all objects.
        for name in ["", read.name] {
            if self.is_allowed(account, ReadAccess { name, ..read }).await? {
                return Ok(());
            }
            if read.name.is_empty() {
                break;
            }
        }
        let ReadAccess {
            verb,
            gvk,
            namespace,
            name,
        } = read;
        let place = match namespace {
            "" => String::new(),
            namespace => format!(" in namespace {namespace}"),
        };
        Err(AccessError::Forbidden(format!(
            "RBAC: service account {account} may not {verb} {}{}{name}{place}: bind a role to it that allows it",
            gvk.kind,
            if name.is_empty() { "" } else { " " },
        )))
    }

    /// Returns the cached decision, or reviews the access and caches the result.
    async fn is_allowed(&self, account: &ServiceAccount, read: ReadAccess<'_>) -> Result<bool, ApiError> {
        let key = ReviewKey {
            account: account.clone(),
            verb: read.verb,
            gvk: read.gvk.clone(),
            namespace: read.namespace.into(),
            name: read.name.into(),
        };
        let cached = self.decisions.lock().get(&key).copied();
        if let Some(decision) = cached.filter(|d| d.expires_at > Instant::now()) {
            return Ok(decision.allowed);
        }
        let allowed = self.create_review(&key).await?;
        let now = Instant::now();
        let mut decisions = self.decisions.lock();
        if decisions.len() >= MAX_DECISIONS {
            decisions.retain(|_, d| d.expires_at > now);
        }
        if decisions.len() >= MAX_DECISIONS {
            decisions.clear();
        }
        let expires_at = now + if allowed { ALLOWED_TTL } else { DENIED_TTL };
        decisions.insert(key, Decision { allowed, expires_at });
        Ok(allowed)
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
        let ReviewKey {
            account,
            verb,
            gvk,
            namespace,
            name,
        } = key;
        let resource = self.client.discover_resource(gvk).await?;
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": account.user_name(),
                // The groups that the API server itself adds to an impersonated service account.
                "groups": [
                    "system:serviceaccounts",
                    format!("system:serviceaccounts:{}", account.namespace),
                    "system:authenticated",
                ],
                "resourceAttributes": {
                    "verb": verb,
                    "group": &*gvk.group,
                    "version": &*gvk.version,
                    "resource": resource.plural,
                    "namespace": if resource.namespaced { namespace } else { "" },
                    "name": name,
                },
            },
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
