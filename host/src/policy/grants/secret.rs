//! Entries of `secrets`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Access, Permissions, SecretDestination,
    entry::{OwnPlace, PermissionEntry},
    patterns::{
        covers_all, format_namespaces, match_all, matches_any, matches_namespace, require_items,
        require_values, same_namespace,
    },
};
use crate::policy::origin::OriginPattern;

/// Secrets that a plugin may name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SecretGrant {
    /// Names of Secrets. `*` matches any name, `foo*` a prefix. Defaults to `*`.
    #[serde(default = "match_all")]
    pub names: Vec<String>,
    /// Namespaces of Secrets. `Same` matches the namespace of the reconciled object, `*` any namespace, `foo*` a prefix.
    /// Defaults to `Same`.
    #[serde(default = "same_namespace")]
    pub namespaces: Vec<String>,
    /// Origins that the host may send the Secrets to: `https://ci.example.com`, `https://*.example.com`,
    /// `http://127.0.0.1:*`. `*` matches every origin with TLS. A connection without verification of the server counts as
    /// `http`. An entry of a grant needs `origins`, `targetNamespaces` or both; an entry of a manifest with neither asks for
    /// any origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origins: Option<Vec<OriginPattern>>,
    /// Namespaces in which the host may write the values into objects of the kind `Secret`, for which the plugin also needs
    /// `kubernetes`. The readers of these objects can read the values. `Same` matches the namespace of the reconciled
    /// object, `*` any namespace, `foo*` a prefix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_namespaces: Vec<String>,
}

impl SecretGrant {
    /// The values may be sent to any origin. A manifest may leave the origins to the administrator.
    pub fn allows_any_origin(&self) -> bool {
        self.origins.is_none() && self.target_namespaces.is_empty()
    }

    fn allows_destination(&self, destination: SecretDestination<'_>, own_namespace: &str) -> bool {
        match destination {
            SecretDestination::Origin(origin) => match &self.origins {
                Some(origins) => origins.iter().any(|pattern| pattern.matches(origin)),
                None => self.allows_any_origin(),
            },
            SecretDestination::Object { namespace } => {
                matches_namespace(&self.target_namespaces, namespace, own_namespace)
            }
        }
    }

    /// The origins of an entry asked for are covered. A manifest that lists no origins leaves them to the administrator, if
    /// it asks for requests at all.
    fn covers_origins(&self, asked: &Self) -> bool {
        match (&self.origins, &asked.origins) {
            (None, None) => self.allows_any_origin() || !asked.allows_any_origin(),
            (None, Some(_)) => self.allows_any_origin(),
            (Some(_), None) => true,
            (Some(granted), Some(asked)) => asked.iter().all(|a| granted.iter().any(|g| g.covers(a))),
        }
    }
}

impl fmt::Display for SecretGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origins = match &self.origins {
            None => self.allows_any_origin().then(|| "any origin".to_owned()),
            Some(origins) => {
                let origins: Vec<String> = origins.iter().map(ToString::to_string).collect();
                Some(origins.join(","))
            }
        };
        let is_targeted = !self.target_namespaces.is_empty();
        let targets = is_targeted.then(|| format!("Secrets{}", format_namespaces(&self.target_namespaces)));
        let destinations: Vec<String> = origins.into_iter().chain(targets).collect();
        write!(
            f,
            "name Secret {}{} for {}",
            self.names.join(","),
            format_namespaces(&self.namespaces),
            destinations.join(" and ")
        )
    }
}

impl PermissionEntry for SecretGrant {
    fn field(&self) -> &'static str {
        "secrets"
    }

    fn check_fields(&self) -> Result<(), String> {
        require_values(&[("names", &self.names), ("namespaces", &self.namespaces)])?;
        if let Some(origins) = &self.origins {
            require_items("origins", origins)?;
        }
        match self.target_namespaces.iter().any(String::is_empty) {
            true => Err("targetNamespaces has an empty name: it allows nothing".into()),
            false => Ok(()),
        }
    }

    fn allows(&self, access: &Access<'_>, own: OwnPlace<'_>, _: &Permissions) -> bool {
        let Access::Secret {
            namespace,
            name,
            destination,
        } = *access
        else {
            return false;
        };
        let own_namespace = own.namespace_on("");
        matches_any(&self.names, name)
            && matches_namespace(&self.namespaces, namespace, own_namespace)
            && destination.is_none_or(|destination| self.allows_destination(destination, own_namespace))
    }

    fn find_missing(&self, granted: &Permissions) -> Option<String> {
        let covered = |g: &Self| {
            covers_all(&g.names, &self.names)
                && covers_all(&g.namespaces, &self.namespaces)
                && g.covers_origins(self)
                && covers_all(&g.target_namespaces, &self.target_namespaces)
        };
        (!granted.secrets.iter().any(covered)).then(|| self.to_string())
    }
}
