//! RBAC for what plugins read: the shared cache has it already, so the API server is asked whether the plugin's
//! service account may see it. What a plugin writes or reads live is sent as that account, and decided there.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::json;

use crate::{
    client::api::{ApiError, Cluster, parse},
    kube::key::{Gvk, ObjectRef},
    policy::grants::ServiceAccount,
};

/// How long a yes counts.
const ALLOWED: Duration = Duration::from_secs(60);
/// How long a no does: whoever puts it right doesn't wait.
const REFUSED: Duration = Duration::from_secs(5);
/// Answers that are remembered.
const REMEMBERED: usize = 10_000;

/// What somebody wants to read.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// `get`, `list` or `watch`.
    pub verb: &'static str,
    /// Which kind.
    pub gvk: &'a Gvk,
    /// Where; empty for everywhere, or for a cluster-scoped kind.
    pub namespace: &'a str,
    /// Which one; empty for any.
    pub name: &'a str,
}

impl<'a> Read<'a> {
    /// This very object.
    pub fn of(verb: &'static str, key: &'a ObjectRef) -> Self {
        Self {
            verb,
            gvk: &key.gvk,
            namespace: &key.namespace,
            name: &key.name,
        }
    }
}

/// Why something may not be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    /// RBAC does not allow it.
    #[error("{0}")]
    Forbidden(String),
    /// Nobody can say.
    #[error(transparent)]
    Unknown(#[from] ApiError),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    account: ServiceAccount,
    verb: &'static str,
    gvk: Gvk,
    namespace: Box<str>,
    name: Box<str>,
}

#[derive(Clone, Copy)]
struct Known {
    allowed: bool,
    until: Instant,
}

/// Asks the API server, and remembers for a while.
pub struct Reviewer {
    cluster: Cluster,
    known: Mutex<HashMap<Question, Known>>,
}

impl Reviewer {
    /// Asks this cluster.
    pub fn new(cluster: Cluster) -> Self {
        Self {
            cluster,
            known: Mutex::default(),
        }
    }

    /// Whether an account may read something: any of that kind there, or just this one.
    pub async fn may(&self, account: &ServiceAccount, read: Read<'_>) -> Result<(), Refusal> {
        // Most roles name no objects: one answer serves them all.
        for name in ["", read.name] {
            if self.reviewed(account, Read { name, ..read }).await? {
                return Ok(());
            }
            if read.name.is_empty() {
                break;
            }
        }
        let Read {
            verb,
            gvk,
            namespace,
            name,
        } = read;
        let place = match namespace {
            "" => String::new(),
            namespace => format!(" in namespace {namespace}"),
        };
        Err(Refusal::Forbidden(format!(
            "RBAC: service account {account} may not {verb} {}{}{name}{place}: bind a role to it that allows it",
            gvk.kind,
            if name.is_empty() { "" } else { " " },
        )))
    }

    async fn reviewed(&self, account: &ServiceAccount, read: Read<'_>) -> Result<bool, ApiError> {
        let question = Question {
            account: account.clone(),
            verb: read.verb,
            gvk: read.gvk.clone(),
            namespace: read.namespace.into(),
            name: read.name.into(),
        };
        let known = self.known.lock().expect("lock").get(&question).copied();
        if let Some(known) = known.filter(|k| k.until > Instant::now()) {
            return Ok(known.allowed);
        }
        let allowed = self.ask(&question).await?;
        let now = Instant::now();
        let mut known = self.known.lock().expect("lock");
        if known.len() >= REMEMBERED {
            known.retain(|_, k| k.until > now);
        }
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let until = now + if allowed { ALLOWED } else { REFUSED };
        known.insert(question, Known { allowed, until });
        Ok(allowed)
    }

    async fn ask(&self, question: &Question) -> Result<bool, ApiError> {
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
        let Question {
            account,
            verb,
            gvk,
            namespace,
            name,
        } = question;
        let resource = self.cluster.resource(gvk).await?;
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": account.user_name(),
                // What the API server itself gives to one who is impersonated.
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
        let answer = self
            .cluster
            .create(
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                review.to_string().into_bytes(),
            )
            .await?;
        Ok(parse::<Review>(&answer)?.status.allowed)
    }
}
