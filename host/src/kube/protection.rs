//! Protection of Upstreams and Clusters: the records of their use, in the metadata of their users and in their own.
//!
//! An object that needs an Upstream or a Cluster for its cleanup lists it in an annotation, which is written before its first
//! request that changes something there and removed with its finalizer. What it owns on other clusters counts, too. The
//! Upstream or Cluster lists the kinds and namespaces of such objects, and the Secrets that were protected with it. So it is
//! known at any time who still needs it: after a restart, on another leader, and while a plugin is not loaded.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use crate::kube::{
    key::{Gvk, ObjectRef, cluster_gvk, cluster_object, display_cluster, is_path_segment, parse_cluster},
    object::KubeObject,
    owned::list_owned,
    references::{format_reference, parse_reference},
    well_known::bookkeeping::{
        CLUSTER_PROTECTION, OWNED_OBJECTS, PROTECTED_SECRETS, UPSTREAM_PROTECTION, USED_BY, USED_CONNECTIONS,
    },
};

/// Maximum number of Upstreams and Clusters that one object lists. All annotations of an object have 256 KiB.
pub const MAX_USED_CONNECTIONS: usize = 256;

/// Maximum number of namespaces of one kind that an Upstream or a Cluster lists. With more, it lists the kind as a whole.
const MAX_USER_NAMESPACES: usize = 100;

/// Maximum number of kinds and namespaces of users that are read from one Upstream or Cluster: the host lists no fewer than it
/// writes for ten kinds, and does not look for users wherever somebody who may edit the annotation sends it.
const MAX_USER_KINDS: usize = 10 * MAX_USER_NAMESPACES;

/// The finalizer of an Upstream or a Cluster, by its kind, and of its Secrets.
pub fn protection_finalizer(gvk: &Gvk) -> &'static str {
    if *gvk == cluster_gvk() {
        CLUSTER_PROTECTION
    } else {
        UPSTREAM_PROTECTION
    }
}

/// Lists the Upstreams and Clusters in the annotation of an object.
pub fn list_used(user: &KubeObject) -> BTreeSet<ObjectRef> {
    parse_used(user.annotation(USED_CONNECTIONS).unwrap_or_default())
}

/// Parses such an annotation.
pub fn parse_used(text: &str) -> BTreeSet<ObjectRef> {
    let entries = text.split(", ").take(MAX_USED_CONNECTIONS);
    entries.filter_map(parse_reference).collect()
}

/// Lists the Upstreams and Clusters that an object needs for its cleanup: those in its annotation, and the Clusters where it
/// owns objects.
pub fn list_needed(user: &KubeObject) -> BTreeSet<ObjectRef> {
    let mut needed = list_used(user);
    let owned = list_owned(user).into_iter();
    needed.extend(owned.filter_map(|owned| cluster_object(&owned.cluster)));
    needed
}

/// Returns true if an object may need an Upstream or a Cluster for its cleanup. It costs no more than two lookups.
pub fn may_need_any(user: &KubeObject) -> bool {
    [USED_CONNECTIONS, OWNED_OBJECTS]
        .iter()
        .any(|name| user.annotation(name).is_some())
}

/// Returns true if an object needs this Upstream or Cluster for its cleanup.
pub fn is_user_of(user: &KubeObject, connection: &ObjectRef) -> bool {
    let entry = format_reference(connection);
    let text = user.annotation(USED_CONNECTIONS).unwrap_or_default();
    text.split(", ").any(|listed| listed == entry)
        || list_owned(user)
            .iter()
            .any(|owned| cluster_object(&owned.cluster).as_ref() == Some(connection))
}

/// Formats the annotation of an object that needs these Upstreams and Clusters.
pub fn format_used(connections: &BTreeSet<ObjectRef>) -> String {
    let entries: Vec<String> = connections.iter().map(format_reference).collect();
    entries.join(", ")
}

/// Returns true if a version of an object differs from the one before by the records of its protection only. It concerns
/// nobody who reads the object.
pub fn differs_by_record_only(before: &KubeObject, after: &KubeObject) -> bool {
    const RECORDS: [&str; 3] = [USED_CONNECTIONS, USED_BY, PROTECTED_SECRETS];
    const FINALIZERS: [&str; 2] = [UPSTREAM_PROTECTION, CLUSTER_PROTECTION];
    let is_same_record = RECORDS
        .iter()
        .all(|name| before.annotation(name) == after.annotation(name))
        && FINALIZERS
            .iter()
            .all(|name| before.has_finalizer(name) == after.has_finalizer(name));
    // The other fields are parsed only where that can make a difference.
    if is_same_record {
        return false;
    }
    let without_record = |object: &KubeObject| {
        let mut value = object.to_value();
        let Some(fields) = value.as_object_mut() else {
            return value;
        };
        let metadata = &mut fields["metadata"];
        if let Some(annotations) = metadata["annotations"].as_object_mut() {
            annotations.retain(|name, _| !RECORDS.contains(&&**name));
        }
        if let Some(finalizers) = metadata["finalizers"].as_array_mut() {
            finalizers.retain(|name| !name.as_str().is_some_and(|name| FINALIZERS.contains(&name)));
        }
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.remove("resourceVersion");
            let is_empty = |value: &Value| [Value::Null, json!({}), json!([])].contains(value);
            metadata.retain(|_, value| !is_empty(value));
        }
        value
    };
    without_record(before) == without_record(after)
}

/// Kind and namespace of objects that use an Upstream or a Cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserKind {
    /// The kind.
    pub gvk: Gvk,
    /// The cluster that the objects live in; empty for the host's own.
    pub cluster: Arc<str>,
    /// Their namespace; empty for all of them, and for a cluster-scoped kind.
    pub namespace: Arc<str>,
}

impl UserKind {
    /// The kind and namespace of an object.
    pub fn of(user: &ObjectRef) -> Self {
        Self {
            gvk: user.gvk.clone(),
            cluster: user.cluster.clone(),
            namespace: user.namespace.clone(),
        }
    }

    /// Returns true if the object is of this kind, in whichever version, and in this namespace.
    pub fn contains(&self, user: &ObjectRef) -> bool {
        self.gvk.is_same_kind(&user.gvk)
            && self.cluster == user.cluster
            && (self.namespace.is_empty() || self.namespace == user.namespace)
    }

    /// Formats an entry, for example `Team.v1alpha1.concourse-ci.org in-cluster ci`.
    fn format(&self) -> String {
        let cluster = display_cluster(&self.cluster);
        match &*self.namespace {
            "" => format!("{} {cluster}", self.gvk),
            namespace => format!("{} {cluster} {namespace}", self.gvk),
        }
    }

    fn parse(entry: &str) -> Option<Self> {
        let mut words = entry.split(' ');
        let (kind, cluster, namespace) = (words.next()?, words.next()?, words.next().unwrap_or_default());
        // It becomes part of a path at the API server.
        let is_valid = words.next().is_none() && is_path_segment(namespace);
        Some(Self {
            gvk: is_valid.then(|| Gvk::parse(kind)).flatten()?,
            cluster: parse_cluster(cluster)?,
            namespace: namespace.into(),
        })
    }
}

/// The entry that stands for objects of former versions.
const FORMER_VERSION: &str = "*";

/// The record that an Upstream or a Cluster has of its protection, in its annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Kinds and namespaces of its users.
    pub users: BTreeSet<UserKind>,
    /// A former version of the host has protected it, so that it may have users that do not list it yet.
    pub has_former_users: bool,
    /// Names of the Secrets that are protected with it.
    pub secrets: BTreeSet<String>,
}

impl Protection {
    /// Reads the record of an Upstream or a Cluster that has this finalizer if it is protected.
    pub fn of(connection: &KubeObject, finalizer: &str) -> Self {
        let list = |name: &str| -> Option<Vec<&str>> {
            let text = connection.annotation(name)?;
            Some(text.split(", ").filter(|entry| !entry.is_empty()).collect())
        };
        let users = list(USED_BY);
        let secrets = list(PROTECTED_SECRETS).unwrap_or_default().into_iter();
        let is_former = |users: &Vec<&str>| users.contains(&FORMER_VERSION);
        Self {
            has_former_users: users
                .as_ref()
                .map_or_else(|| connection.has_finalizer(finalizer), is_former),
            users: users
                .unwrap_or_default()
                .into_iter()
                .filter_map(UserKind::parse)
                .take(MAX_USER_KINDS)
                .collect(),
            secrets: secrets
                .filter(|name| is_path_segment(name))
                .map(str::to_owned)
                .collect(),
        }
    }

    /// Adds the kind and namespace of a user, or the whole kind if it has too many namespaces.
    pub fn insert_user(&mut self, user: &ObjectRef) {
        if self.users.iter().any(|kind| kind.contains(user)) {
            return;
        }
        let kind = UserKind::of(user);
        let is_same = |other: &UserKind| other.gvk == kind.gvk && other.cluster == kind.cluster;
        if self.users.iter().filter(|other| is_same(other)).count() < MAX_USER_NAMESPACES {
            self.users.insert(kind);
        } else {
            self.users.retain(|other| !is_same(other));
            let namespace = "".into();
            self.users.insert(UserKind { namespace, ..kind });
        }
    }

    /// Returns the annotations that hold this record.
    pub fn to_annotations(&self) -> Value {
        let former = self.has_former_users.then(|| FORMER_VERSION.to_owned());
        let users: Vec<String> = former
            .into_iter()
            .chain(self.users.iter().map(UserKind::format))
            .collect();
        let secrets: Vec<&str> = self.secrets.iter().map(String::as_str).collect();
        json!({USED_BY: users.join(", "), PROTECTED_SECRETS: secrets.join(", ")})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::key::cluster_name;

    const FINALIZER: &str = "ostler.dev/upstream-protection";

    fn user(namespace: &str) -> ObjectRef {
        ObjectRef::new(Gvk::new("g.io", "v1", "Thing"), namespace, "a")
    }

    fn parse(json: &Value) -> KubeObject {
        let gvk = Gvk::new("ostler.dev", "v1alpha1", "Upstream");
        KubeObject::parse(&gvk, json.to_string().as_bytes())
            .expect("an object")
            .1
    }

    fn with_annotations(annotations: &Value) -> KubeObject {
        parse(&json!({"metadata": {"name": "x", "finalizers": [FINALIZER], "annotations": annotations}}))
    }

    #[test]
    fn record_of_a_protection_survives_a_round_trip() {
        let mut protection = Protection {
            secrets: BTreeSet::from(["a".into(), "b".into()]),
            ..Protection::default()
        };
        protection.insert_user(&user("ci"));
        protection.insert_user(&user(""));
        protection.insert_user(&user("n").with_cluster(&cluster_name("fleet", "east")));
        for has_former_users in [false, true] {
            protection.has_former_users = has_former_users;
            let read = Protection::of(&with_annotations(&protection.to_annotations()), FINALIZER);
            assert_eq!(read, protection);
        }
    }

    #[test]
    fn protection_by_a_former_version_may_have_users_that_do_not_list_it() {
        let former = Protection::of(&with_annotations(&Value::Null), FINALIZER);
        assert!(former.has_former_users && former.users.is_empty());
        let unprotected = Protection::of(&parse(&json!({"metadata": {"name": "x"}})), FINALIZER);
        assert_eq!(unprotected, Protection::default());
        let current = with_annotations(&Protection::default().to_annotations());
        assert_eq!(Protection::of(&current, FINALIZER), Protection::default());
    }

    #[test]
    fn user_in_one_of_many_namespaces_is_listed_by_its_kind() {
        let mut protection = Protection::default();
        for i in 0..=MAX_USER_NAMESPACES {
            protection.insert_user(&user(&format!("n{i}")));
            protection.insert_user(&user("n0"));
        }
        let all = UserKind::of(&user(""));
        assert_eq!(protection.users, BTreeSet::from([all]));
        assert!(protection.users.iter().all(|kind| kind.contains(&user("other"))));
    }

    #[test]
    fn entry_that_is_no_name_is_ignored() {
        let annotations = json!({
            USED_BY: "Thing.v1.g.io, Thing.v1.g.io in-cluster n/../a, Thing.v1.g.io n in, Thing in-cluster n, a b c d, , *",
            PROTECTED_SECRETS: "a/b, ..",
        });
        let read = Protection::of(&with_annotations(&annotations), FINALIZER);
        let expected = Protection {
            has_former_users: true,
            ..Protection::default()
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn change_of_the_record_alone_is_told_from_others() {
        let before = json!({"metadata": {"name": "x", "resourceVersion": "1"}, "spec": {"url": "a"}, "status": {"n": 1}});
        let mut recorded = before.clone();
        recorded["metadata"] = json!({"name": "x", "resourceVersion": "2", "finalizers": [UPSTREAM_PROTECTION],
            "annotations": {USED_BY: "", PROTECTED_SECRETS: "s"}});
        let differs = |before: &Value, after: &Value| differs_by_record_only(&parse(before), &parse(after));
        assert!(differs(&before, &recorded) && differs(&recorded, &before));
        assert!(!differs(&before, &before) && !differs(&recorded, &recorded));
        for (pointer, value) in [
            ("/spec/url", json!("b")),
            ("/status/n", json!(2)),
            ("/metadata/finalizers", json!([UPSTREAM_PROTECTION, "other"])),
            (
                "/metadata/annotations",
                json!({USED_BY: "", "ostler.dev/origins": "x"}),
            ),
        ] {
            let mut changed = recorded.clone();
            *changed.pointer_mut(pointer).expect("a field") = value;
            assert!(!differs(&before, &changed), "{pointer}");
        }
        let mut deleted = recorded.clone();
        deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(!differs(&before, &deleted));
    }

    #[test]
    fn object_lists_what_it_needs() {
        let upstream = ObjectRef::new(Gvk::new("ostler.dev", "v1alpha1", "Upstream"), "ci", "a");
        let cluster = ObjectRef::new(Gvk::new("ostler.dev", "v1alpha1", "Cluster"), "fleet", "east");
        let used = BTreeSet::from([upstream.clone(), cluster.clone()]);
        let object = with_annotations(&json!({USED_CONNECTIONS: format_used(&used)}));
        assert_eq!(list_used(&object), used);
        assert!(is_user_of(&object, &upstream) && is_user_of(&object, &cluster));
        let other = ObjectRef::new(upstream.gvk.clone(), "ci", "aa");
        assert!(!is_user_of(&object, &other));
    }

    #[test]
    fn object_needs_the_clusters_of_what_it_owns() {
        let owner = with_annotations(
            &json!({OWNED_OBJECTS: "ConfigMap.v1 fleet/east n/a, ConfigMap.v1 in-cluster n/b"}),
        );
        let east = cluster_object("fleet/east").expect("a Cluster");
        assert_eq!(list_needed(&owner), BTreeSet::from([east.clone()]));
        assert!(is_user_of(&owner, &east) && list_used(&owner).is_empty());
        assert!(may_need_any(&owner) && !may_need_any(&with_annotations(&json!({}))));
    }
}
