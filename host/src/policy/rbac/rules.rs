//! Sets of RBAC rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{BitOr, BitOrAssign},
};

use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::policy::grants::HOST_GROUP;

/// API group of roles and bindings.
const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// A set of RBAC verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Verbs(u8);

/// Names of the verbs, in the order of their bits.
const VERB_NAMES: [&str; 7] = ["get", "list", "watch", "create", "update", "patch", "delete"];

impl Verbs {
    /// Read one object.
    pub const GET: Self = Self(1);
    /// List objects.
    pub const LIST: Self = Self(1 << 1);
    /// Watch objects.
    pub const WATCH: Self = Self(1 << 2);
    /// Create objects.
    pub const CREATE: Self = Self(1 << 3);
    /// Replace an object.
    pub const UPDATE: Self = Self(1 << 4);
    /// Change or apply an object.
    pub const PATCH: Self = Self(1 << 5);
    /// Delete an object.
    pub const DELETE: Self = Self(1 << 6);

    /// The names of the verbs.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let is_set = move |(i, _): &(usize, &&str)| self.0 & (1 << i) != 0;
        VERB_NAMES
            .iter()
            .enumerate()
            .filter(is_set)
            .map(|(_, name)| *name)
    }

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for Verbs {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Verbs {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Rules: the verbs that are allowed, by group and resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet(BTreeMap<(String, String), Verbs>);

impl RuleSet {
    /// The rules of the host in each namespace that it watches, whatever its plugins do.
    pub fn of_host() -> Self {
        let reads = Verbs::GET | Verbs::LIST | Verbs::WATCH;
        let mut rules = Self::default();
        // Upstreams, Clusters and their Secrets get a finalizer, so that they stay until the objects that need them are
        // cleaned up.
        for resource in ["clusters", "upstreams"] {
            rules.add(HOST_GROUP, resource, reads | Verbs::PATCH);
            rules.add(HOST_GROUP, &format!("{resource}/status"), Verbs::PATCH);
        }
        rules.add("", "secrets", reads | Verbs::PATCH);
        rules.add("", "events", Verbs::CREATE | Verbs::PATCH);
        // So do the bindings and roles of its rights. The API server lets no one add rights by it that he does not have.
        rules.add(RBAC_GROUP, "rolebindings", reads | Verbs::PATCH);
        rules.add(RBAC_GROUP, "roles", Verbs::GET | Verbs::PATCH);
        rules
    }

    /// The rules of the host for cluster-scoped kinds: Plugins, whose finalizer is metadata, and reviews of the access of service
    /// accounts, and of users of the admin server.
    pub fn of_host_in_cluster() -> Self {
        let mut rules = Self::default();
        rules.add(HOST_GROUP, "plugins", Verbs::LIST | Verbs::WATCH | Verbs::PATCH);
        rules.add(HOST_GROUP, "plugins/status", Verbs::PATCH);
        rules.add("authorization.k8s.io", "subjectaccessreviews", Verbs::CREATE);
        rules.add("authentication.k8s.io", "tokenreviews", Verbs::CREATE);
        rules
    }

    /// Adds verbs of a resource.
    pub fn add(&mut self, group: &str, resource: &str, verbs: Verbs) {
        *self.0.entry((group.to_owned(), resource.to_owned())).or_default() |= verbs;
    }

    /// Removes what other rules allow.
    pub fn subtract(&mut self, other: &Self) {
        for (key, verbs) in &mut self.0 {
            *verbs = verbs.without(other.0.get(key).copied().unwrap_or_default());
        }
        self.0.retain(|_, verbs| *verbs != Verbs::default());
    }

    /// Returns true if there is no rule.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The verbs of a resource.
    pub fn verbs(&self, group: &str, resource: &str) -> Verbs {
        let key = (group.to_owned(), resource.to_owned());
        self.0.get(&key).copied().unwrap_or_default()
    }

    /// The rules in the form of a role: resources of a group with the same verbs are one rule.
    pub fn to_policy_rules(&self) -> Vec<PolicyRule> {
        let mut merged: BTreeMap<(&str, Verbs), BTreeSet<&str>> = BTreeMap::new();
        for ((group, resource), verbs) in &self.0 {
            merged.entry((group, *verbs)).or_default().insert(resource);
        }
        let rules = merged.into_iter().map(|((group, verbs), resources)| PolicyRule {
            api_groups: Some(vec![group.to_owned()]),
            resources: Some(resources.into_iter().map(str::to_owned).collect()),
            verbs: verbs.names().map(str::to_owned).collect(),
            ..PolicyRule::default()
        });
        rules.collect()
    }
}
