//! Entries of `upstreams`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Access, Permissions,
    entry::{OwnPlace, PermissionEntry},
    patterns::{
        covers_all, format_namespaces, has_wildcard, match_all, matches_any, matches_namespace,
        require_values, same_namespace,
    },
};

/// Requests to Upstreams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamGrant {
    /// Names of Upstreams. `*` matches any name, `foo*` a prefix. Defaults to `*`.
    #[serde(default = "match_all")]
    pub names: Vec<String>,
    /// Namespaces of Upstreams. `Same` matches the namespace of the reconciled object, `*` any namespace, `foo*` a prefix.
    /// Defaults to `Same`.
    #[serde(default = "same_namespace")]
    pub namespaces: Vec<String>,
    /// HTTP methods. Defaults to `*`.
    #[serde(default = "match_all")]
    pub methods: Vec<String>,
    /// Paths without the query. `/api/*` matches a prefix. Defaults to `*`.
    #[serde(default = "match_all")]
    pub paths: Vec<String>,
}

impl fmt::Display for UpstreamGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.methods.join(","))?;
        if !has_wildcard(&self.paths) {
            write!(f, " {}", self.paths.join(","))?;
        }
        let namespaces = format_namespaces(&self.namespaces);
        write!(f, " at upstream {}{namespaces}", self.names.join(","))
    }
}

impl PermissionEntry for UpstreamGrant {
    fn field(&self) -> &'static str {
        "upstreams"
    }

    fn check_fields(&self) -> Result<(), String> {
        require_values(&[
            ("names", &self.names),
            ("namespaces", &self.namespaces),
            ("methods", &self.methods),
            ("paths", &self.paths),
        ])
    }

    fn allows(&self, access: &Access<'_>, own: OwnPlace<'_>, _: &Permissions) -> bool {
        let Access::Upstream {
            namespace,
            name,
            method,
            path,
        } = *access
        else {
            return false;
        };
        let path = path.split('?').next().unwrap_or_default();
        matches_any(&self.names, name)
            && matches_namespace(&self.namespaces, namespace, own.namespace_on(""))
            && matches_any(&self.methods, method)
            && matches_any(&self.paths, path)
    }

    fn find_missing(&self, granted: &Permissions) -> Option<String> {
        let covered = |g: &Self| {
            covers_all(&g.names, &self.names)
                && covers_all(&g.namespaces, &self.namespaces)
                && covers_all(&g.methods, &self.methods)
                && covers_all(&g.paths, &self.paths)
        };
        (!granted.upstreams.iter().any(covered)).then(|| self.to_string())
    }
}
