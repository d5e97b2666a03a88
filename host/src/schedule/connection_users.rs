//! Index of the users of Upstreams and Clusters: the objects whose annotation lists one, and calls that are about to write
//! that annotation.
//!
//! It answers in the time that the answer takes, however many objects there are. Objects of a kind whose watch has ended stay in
//! it, so that a reader looks each of them up.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::{
    cache::store::ObjectChange,
    kube::{
        key::{Gvk, ObjectRef},
        protection::{list_needed, may_need_any},
    },
    schedule::small_set::SmallSet,
};

/// The users of all Upstreams and Clusters.
#[derive(Default)]
pub struct ConnectionUsers {
    /// The kinds that are indexed.
    kinds: Vec<Gvk>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// By user, what its annotation lists.
    used: HashMap<ObjectRef, SmallSet<ObjectRef>>,
    /// By Upstream or Cluster, the objects that list it.
    users: HashMap<ObjectRef, SmallSet<ObjectRef>>,
    /// By Upstream or Cluster, the objects whose calls are about to use it.
    claims: HashMap<ObjectRef, Vec<ObjectRef>>,
}

/// A use that is about to be recorded. It ends on drop.
pub struct UseClaim {
    users: Arc<ConnectionUsers>,
    connection: ObjectRef,
    user: ObjectRef,
}

impl ConnectionUsers {
    /// Creates an empty index of the users of objects of these kinds.
    pub fn new(kinds: impl IntoIterator<Item = Gvk>) -> Self {
        Self {
            kinds: kinds.into_iter().collect(),
            inner: Mutex::default(),
        }
    }

    /// Updates the index for a change of an object. Returns the Upstreams and Clusters that have no user any more.
    pub fn on_change(&self, change: &ObjectChange) -> Vec<ObjectRef> {
        let mut versions = change.old.iter().chain(&change.new);
        if !versions.any(|object| may_need_any(object)) {
            return Vec::new();
        }
        let listed = change.new.as_deref().map(list_needed).unwrap_or_default();
        let used: SmallSet<ObjectRef> = listed
            .into_iter()
            .filter(|key| self.kinds.contains(&key.gvk))
            .collect();
        let mut inner = self.inner.lock();
        let before = inner.used.remove(&change.key).unwrap_or_default();
        let mut unused = Vec::new();
        for connection in before.iter().filter(|key| !used.contains(key)) {
            if inner.remove_user(connection, &change.key) {
                unused.push(connection.clone());
            }
        }
        for connection in &used {
            let users = inner.users.entry(connection.clone()).or_default();
            users.insert(change.key.clone());
        }
        if !used.is_empty() {
            inner.used.insert(change.key.clone(), used);
        }
        unused
    }

    /// Makes an object count as a user until the claim is dropped, by when its annotation lists what it uses.
    pub fn claim_use(self: &Arc<Self>, user: &ObjectRef, connection: &ObjectRef) -> UseClaim {
        let mut inner = self.inner.lock();
        let claims = inner.claims.entry(connection.clone()).or_default();
        claims.push(user.clone());
        UseClaim {
            users: self.clone(),
            connection: connection.clone(),
            user: user.clone(),
        }
    }

    /// Lists the objects that list an Upstream or a Cluster.
    pub fn list_users(&self, connection: &ObjectRef) -> Vec<ObjectRef> {
        let inner = self.inner.lock();
        let users = inner.users.get(connection);
        users
            .map(|users| users.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// Lists the objects whose calls are about to use an Upstream or a Cluster.
    pub fn list_claims(&self, connection: &ObjectRef) -> Vec<ObjectRef> {
        self.inner
            .lock()
            .claims
            .get(connection)
            .cloned()
            .unwrap_or_default()
    }
}

impl Inner {
    /// Removes a user of an Upstream or a Cluster. Returns true if it was the last one.
    fn remove_user(&mut self, connection: &ObjectRef, user: &ObjectRef) -> bool {
        let Some(users) = self.users.get_mut(connection) else {
            return false;
        };
        users.remove(user);
        let is_unused = users.is_empty();
        if is_unused {
            self.users.remove(connection);
        }
        is_unused
    }
}

impl Drop for UseClaim {
    fn drop(&mut self) {
        let mut inner = self.users.inner.lock();
        let Some(claims) = inner.claims.get_mut(&self.connection) else {
            return;
        };
        if let Some(at) = claims.iter().position(|user| *user == self.user) {
            claims.swap_remove(at);
        }
        if claims.is_empty() {
            inner.claims.remove(&self.connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::kube::{
        object::KubeObject, protection::format_used, well_known::bookkeeping::USED_CONNECTIONS,
    };

    fn upstream_gvk() -> Gvk {
        Gvk::new("ostler.dev", "v1alpha1", "Upstream")
    }

    fn upstream(number: u8) -> ObjectRef {
        ObjectRef::new(upstream_gvk(), "n", &format!("u{number}"))
    }

    fn user(number: u32) -> ObjectRef {
        ObjectRef::new(Gvk::new("g.io", "v1", "Thing"), "n", &format!("o{number}"))
    }

    fn object(used: &BTreeSet<ObjectRef>) -> Arc<KubeObject> {
        let annotations = match used.is_empty() {
            true => json!({}),
            false => json!({USED_CONNECTIONS: format_used(used)}),
        };
        let json = json!({"metadata": {"name": "x", "annotations": annotations}}).to_string();
        let parsed = KubeObject::parse(&Gvk::new("g.io", "v1", "Thing"), json.as_bytes());
        Arc::new(parsed.expect("an object").1)
    }

    fn set(
        index: &ConnectionUsers,
        user: &ObjectRef,
        old: Option<Arc<KubeObject>>,
        new: Option<Arc<KubeObject>>,
    ) -> Vec<ObjectRef> {
        let key = user.clone();
        index.on_change(&ObjectChange { key, old, new })
    }

    proptest! {
        #[test]
        fn any_sequence_of_changes_lists_the_users_of_the_current_objects(
            changes in prop::collection::vec((0u32..6, prop::option::of(prop::collection::btree_set(0u8..4, 0..4))), 0..60)
        ) {
            let index = ConnectionUsers::new([upstream_gvk()]);
            let mut objects: HashMap<u32, BTreeSet<ObjectRef>> = HashMap::new();
            for (number, used) in changes {
                let before: BTreeSet<ObjectRef> = objects.values().flatten().cloned().collect();
                let old = objects.get(&number).map(object);
                let used: Option<BTreeSet<ObjectRef>> = used.map(|used| used.into_iter().map(upstream).collect());
                let unused = set(&index, &user(number), old, used.as_ref().map(object));
                match used {
                    Some(used) => objects.insert(number, used),
                    None => objects.remove(&number),
                };
                let after: BTreeSet<ObjectRef> = objects.values().flatten().cloned().collect();
                let lost: BTreeSet<ObjectRef> = before.difference(&after).cloned().collect();
                prop_assert_eq!(BTreeSet::from_iter(unused), lost);
                for number in 0..4 {
                    let expected: BTreeSet<ObjectRef> = objects
                        .iter()
                        .filter(|(_, used)| used.contains(&upstream(number)))
                        .map(|(number, _)| user(*number))
                        .collect();
                    prop_assert_eq!(BTreeSet::from_iter(index.list_users(&upstream(number))), expected);
                }
            }
        }
    }

    #[test]
    fn object_of_another_kind_is_not_indexed() {
        let index = ConnectionUsers::new([upstream_gvk()]);
        let other = ObjectRef::new(Gvk::new("", "v1", "ConfigMap"), "n", "c");
        set(
            &index,
            &user(1),
            None,
            Some(object(&BTreeSet::from([other.clone()]))),
        );
        assert_eq!(index.list_users(&other), []);
        assert!(index.inner.lock().used.is_empty(), "it takes no memory");
    }

    #[test]
    fn claim_counts_until_it_is_dropped() {
        let index = Arc::new(ConnectionUsers::new([upstream_gvk()]));
        let first = index.claim_use(&user(1), &upstream(1));
        let second = index.claim_use(&user(1), &upstream(1));
        drop(first);
        assert_eq!(index.list_claims(&upstream(1)), [user(1)]);
        drop(second);
        assert_eq!(index.list_claims(&upstream(1)), []);
        assert!(index.inner.lock().claims.is_empty());
    }
}
