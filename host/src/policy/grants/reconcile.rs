//! Entries of `reconciles`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Access, Permissions, SAME_NAMESPACE,
    entry::{OwnPlace, PermissionEntry},
    kubernetes::{covers_kind, format_kinds, matches_kind},
    patterns::{covers_all, format_namespaces, match_all, require_values},
};
use crate::kube::key::Gvk;

/// Kinds that a plugin reconciles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReconcileGrant {
    /// API group of the kinds. Empty is the core group, `*` matches any group.
    #[serde(default)]
    pub group: String,
    /// Kinds. `*` matches any kind, `Foo*` a prefix.
    pub kinds: Vec<String>,
    /// Namespaces of the objects, by name, or `*` for all. Objects in other namespaces are ignored. Defaults to `*`.
    #[serde(default = "match_all")]
    pub namespaces: Vec<String>,
}

impl ReconcileGrant {
    /// The entry names the kind, or has a pattern for it.
    pub fn covers(&self, gvk: &Gvk) -> bool {
        matches_kind(&self.group, &self.kinds, gvk)
    }
}

impl fmt::Display for ReconcileGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = format_kinds(&self.group, &self.kinds);
        write!(f, "reconcile {kinds}{}", format_namespaces(&self.namespaces))
    }
}

impl PermissionEntry for ReconcileGrant {
    fn field(&self) -> &'static str {
        "reconciles"
    }

    fn check_fields(&self) -> Result<(), String> {
        require_values(&[("kinds", &self.kinds), ("namespaces", &self.namespaces)])?;
        // Each namespace is a watch.
        let is_pattern = |n: &&String| *n != "*" && (n.contains('*') || *n == SAME_NAMESPACE);
        match self.namespaces.iter().find(is_pattern) {
            Some(pattern) => Err(format!(
                "namespaces has {pattern:?}: names of namespaces are needed, or `*`"
            )),
            None => Ok(()),
        }
    }

    fn allows(&self, access: &Access<'_>, _: OwnPlace<'_>, _: &Permissions) -> bool {
        matches!(access, Access::Reconcile { gvk } if self.covers(gvk))
    }

    fn find_missing(&self, granted: &Permissions) -> Option<String> {
        let covered = |kind: &String| {
            granted.reconciles.iter().any(|g| {
                covers_kind((&g.group, &g.kinds), (&self.group, kind))
                    && covers_all(&g.namespaces, &self.namespaces)
            })
        };
        (!self.kinds.iter().all(covered)).then(|| self.to_string())
    }
}
