//! The record of the use of an Upstream or a Cluster, before the first request of an object that changes something there.
//!
//! What the object makes there is deleted by its cleanup, which needs the Upstream or Cluster, and its Secrets. So these have
//! the finalizer that keeps them, and the object lists them, before anything is sent: a namespace that is deleted at any time
//! leaks nothing.

use std::sync::Arc;

use serde_json::json;
use tracing::warn;

use super::PluginCall;
use crate::{
    cluster::{ClusterObject, cluster_gvk},
    contract::bindings::types::Error,
    kube::{
        key::{Gvk, ObjectRef},
        object::KubeObject,
        protection::{
            MAX_USED_CONNECTIONS, Protection, format_used, is_user_of, list_used, protection_finalizer,
        },
        scope::Projection,
        well_known::bookkeeping::USED_CONNECTIONS,
    },
    sandbox::services::Services,
    upstream::UpstreamObject,
};

/// An Upstream or a Cluster that a call is about to use, with its Secrets.
pub(super) struct UsedConnection {
    pub(super) key: ObjectRef,
    secrets: Vec<ObjectRef>,
}

impl UsedConnection {
    pub(super) fn upstream(key: &ObjectRef, upstream: &UpstreamObject) -> Self {
        let names = upstream.secret_names().into_iter();
        let secret = |name: String| ObjectRef::new(Gvk::secret(), &key.namespace, &name);
        Self {
            key: key.clone(),
            secrets: names.map(secret).collect(),
        }
    }

    fn finalizer(&self) -> &'static str {
        protection_finalizer(&self.key.gvk)
    }

    pub(super) fn cluster(cluster: &ClusterObject) -> Self {
        Self {
            key: ObjectRef::new(cluster_gvk(), &cluster.namespace, &cluster.name),
            secrets: vec![cluster.kubeconfig_secret()],
        }
    }
}

/// The use of an Upstream or a Cluster by a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionUsage {
    /// It changes nothing, or takes something away.
    Reads,
    /// It may change something.
    Changes,
    /// It makes an object on another cluster, which the inventory of owned objects lists.
    Owns,
}

impl ConnectionUsage {
    /// That of a write of an object, which the reconciled object may own on another cluster.
    pub(super) fn of_write(is_owned_elsewhere: bool) -> Self {
        if is_owned_elsewhere {
            Self::Owns
        } else {
            Self::Changes
        }
    }
}

/// The facts that decide about the record of a use.
#[derive(Clone, Copy, Debug, Default)]
struct UseFacts {
    /// The reconciled object is being deleted.
    is_cleanup: bool,
    /// It lists the Upstream or Cluster already.
    is_listed: bool,
    /// The Upstream or Cluster is being deleted.
    is_deleting: bool,
    /// It has the finalizer.
    is_protected: bool,
    /// A former version of the host has protected it, so that its users do not list it yet.
    has_former_users: bool,
}

/// What is done before a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UseDecision {
    /// Nothing: it needs no record.
    Ignore,
    /// It is recorded.
    Record,
    /// It is not sent.
    Refuse,
}

/// Decides what is done before a request to an Upstream or a Cluster.
fn decide_use(usage: ConnectionUsage, facts: UseFacts) -> UseDecision {
    let is_known = facts.is_listed || facts.has_former_users;
    let is_needed = match usage {
        // A cleanup makes nothing. One that is being deleted may be about to be released by now.
        _ if facts.is_cleanup => facts.is_protected && (is_known || !facts.is_deleting),
        ConnectionUsage::Reads => facts.has_former_users,
        ConnectionUsage::Changes | ConnectionUsage::Owns => true,
    };
    match is_needed {
        false => UseDecision::Ignore,
        true if facts.is_deleting && !is_known => UseDecision::Refuse,
        true => UseDecision::Record,
    }
}

impl PluginCall {
    /// Records that the reconciled object uses an Upstream or a Cluster, if it is cleaned up later. It costs a look into the
    /// cache once that is recorded. What an object only reads it does not need for its cleanup.
    ///
    /// # Errors
    /// `not-found` if the Upstream or Cluster is deleted or being deleted: no object begins to use it any more. Otherwise the error of the
    /// API server; a host that may not patch Upstreams, Clusters or Secrets works without their protection.
    pub(super) async fn record_use(
        &mut self,
        used: &UsedConnection,
        usage: ConnectionUsage,
    ) -> Result<(), Error> {
        let Some(target) = self.context.target.as_ref().filter(|target| target.is_finalized) else {
            return Ok(());
        };
        let (services, user) = (target.services.clone(), target.key.clone());
        // A plan changes nothing.
        if services.upstreams.clients.is_dry_run() {
            return Ok(());
        }
        let (_, facts) = self.collect_facts(&services, used);
        if decide_use(usage, facts) == UseDecision::Ignore {
            return Ok(());
        }
        let claim = match self.effects.protected.remove(&used.key) {
            Some(claim) if facts.is_listed || usage != ConnectionUsage::Changes => {
                self.effects.protected.insert(used.key.clone(), claim);
                return Ok(());
            }
            Some(claim) => claim,
            None => services.connection_users.claim_use(&user, &used.key),
        };
        // Once more after the claim: whoever releases it looks at its deletion before it looks for claims.
        let (stored, facts) = self.collect_facts(&services, used);
        let Some(stored) = stored else {
            // It was deleted after the call had found it: what is made there now would never be cleaned up.
            return Err(Error::NotFound(format!("{} does not exist", used.key)));
        };
        match decide_use(usage, facts) {
            UseDecision::Ignore => return Ok(()),
            UseDecision::Refuse => {
                return Err(Error::NotFound(format!(
                    "{} is being deleted: no object begins to use it any more",
                    used.key
                )));
            }
            UseDecision::Record => {}
        }
        let is_kept = self
            .protect_used(&services, used, &stored, facts.is_listed)
            .await?;
        if is_kept && !facts.is_listed && usage != ConnectionUsage::Owns {
            self.list_as_used(&services, &used.key).await?;
        }
        self.effects.protected.insert(used.key.clone(), claim);
        Ok(())
    }

    /// Returns an Upstream or a Cluster as the cache has it, and the facts about its use by the reconciled object.
    fn collect_facts(
        &self,
        services: &Services,
        used: &UsedConnection,
    ) -> (Option<Arc<KubeObject>>, UseFacts) {
        let store = &services.cache.store;
        let (Some(target), Some(stored)) = (&self.context.target, store.get(&used.key, Projection::Full))
        else {
            return (None, UseFacts::default());
        };
        let cached = store.get(&target.key, Projection::Metadata);
        let cached = cached.filter(|cached| cached.uid == target.object.uid);
        let is_protected = stored.has_finalizer(used.finalizer());
        let facts = UseFacts {
            is_cleanup: target.object.is_deleting(),
            is_listed: is_user_of(cached.as_ref().unwrap_or(&target.object), &used.key),
            is_deleting: stored.is_deleting(),
            is_protected,
            has_former_users: is_protected && Protection::of(&stored, used.finalizer()).has_former_users,
        };
        (Some(stored), facts)
    }

    /// Adds the finalizer to an Upstream or a Cluster and to its Secrets, and the kind of the reconciled object to the users.
    /// Returns false if RBAC refuses that.
    async fn protect_used(
        &mut self,
        services: &Services,
        used: &UsedConnection,
        stored: &KubeObject,
        is_listed: bool,
    ) -> Result<bool, Error> {
        let Some(user) = self.context.target_key().cloned() else {
            return Ok(false);
        };
        let writer = &services.api.writer;
        let record = Protection::of(stored, used.finalizer());
        let is_recorded = stored.has_finalizer(used.finalizer())
            && used
                .secrets
                .iter()
                .all(|secret| record.secrets.contains(&*secret.name))
            && (is_listed || record.users.iter().any(|kind| kind.contains(&user)));
        // The Secrets come after what lists them: one that nothing lists would never be released.
        let mut added = Vec::new();
        if !is_recorded {
            let change = |record: &mut Protection| {
                record.insert_user(&user);
                let names = used.secrets.iter().map(|secret| secret.name.to_string());
                record.secrets.extend(names);
            };
            let sent = writer
                .change_protection(&used.key, &user, used.finalizer(), change)
                .await;
            added.push((&used.key, sent));
        }
        for secret in &used.secrets {
            if !added.iter().all(|(_, sent)| matches!(sent, Ok(Some(_)))) {
                break;
            }
            let stored = services.cache.store.get(secret, Projection::Full);
            if stored.is_some_and(|object| !object.has_finalizer(used.finalizer())) {
                added.push((
                    secret,
                    writer.add_finalizer(secret, &user, used.finalizer()).await,
                ));
            }
        }
        for (key, sent) in added {
            match sent {
                Ok(Some(sent)) => self.effects.counts.api_writes += u64::from(sent),
                // A cleanup goes on with what there is.
                Ok(None) if is_listed => {}
                Ok(None) => {
                    return Err(Error::NotFound(format!(
                        "{key} is being deleted: no object begins to use it any more"
                    )));
                }
                Err(e) if e.code() == 403 => {
                    warn!(object = %key, by = %user, error = %e, "setting the protection finalizer failed");
                    return Ok(false);
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }

    /// Lists an Upstream or a Cluster in the annotation of the reconciled object.
    async fn list_as_used(&mut self, services: &Services, connection: &ObjectRef) -> Result<(), Error> {
        let Some(target) = &self.context.target else {
            return Ok(());
        };
        let (user, given) = (target.key.clone(), target.object.clone());
        let seen = self.effects.written.clone().unwrap_or(given);
        let mut listed = list_used(&seen);
        listed.insert(connection.clone());
        if listed.len() > MAX_USED_CONNECTIONS {
            return Err(Error::LimitExceeded(format!(
                "more than {MAX_USED_CONNECTIONS} Upstreams and Clusters used by one object"
            )));
        }
        let api = self.target_api(services)?;
        let patch = json!({"annotations": {USED_CONNECTIONS: format_used(&listed)}});
        match api.writer.patch_metadata(None, &user, &seen, patch).await {
            Ok(written) => self.effects.written = Some(written),
            // Another writer was faster: the newest version gets the entry, and the call goes on with the older one.
            Err(e) if e.code() == 409 => {
                let is_same = api.writer.add_used(&user, &seen.uid, connection).await?;
                if !is_same {
                    return Err(Error::Conflict(format!(
                        "{user} was replaced by another object of its name"
                    )));
                }
            }
            Err(e) => return Err(e.into()),
        }
        self.effects.counts.api_writes += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_recorded_by_who_uses_what() {
        use UseDecision::{Ignore, Record, Refuse};
        let live = UseFacts::default();
        let listed = UseFacts {
            is_listed: true,
            is_protected: true,
            ..live
        };
        let former = UseFacts {
            is_protected: true,
            has_former_users: true,
            ..live
        };
        let deleting = |facts| UseFacts {
            is_deleting: true,
            ..facts
        };
        let cleanup = |facts| UseFacts {
            is_cleanup: true,
            ..facts
        };
        let protected = UseFacts {
            is_protected: true,
            ..live
        };
        // The decisions for reads, changes, and objects that are owned.
        for (case, facts, expected) in [
            ("first use", live, [Ignore, Record, Record]),
            ("listed", listed, [Ignore, Record, Record]),
            ("of a former version", former, [Record; 3]),
            (
                "deleting, first use",
                deleting(protected),
                [Ignore, Refuse, Refuse],
            ),
            ("deleting, unprotected", deleting(live), [Ignore, Refuse, Refuse]),
            ("deleting, listed", deleting(listed), [Ignore, Record, Record]),
            ("deleting, of a former version", deleting(former), [Record; 3]),
            ("cleanup, unprotected", cleanup(live), [Ignore; 3]),
            ("cleanup, protected", cleanup(protected), [Record; 3]),
            ("cleanup, listed", cleanup(listed), [Record; 3]),
            ("cleanup, deleting", cleanup(deleting(protected)), [Ignore; 3]),
            (
                "cleanup, deleting, listed",
                cleanup(deleting(listed)),
                [Record; 3],
            ),
            (
                "cleanup, deleting, former",
                cleanup(deleting(former)),
                [Record; 3],
            ),
        ] {
            let decided = [
                ConnectionUsage::Reads,
                ConnectionUsage::Changes,
                ConnectionUsage::Owns,
            ]
            .map(|usage| decide_use(usage, facts));
            assert_eq!(decided, expected, "{case}");
        }
    }
}
