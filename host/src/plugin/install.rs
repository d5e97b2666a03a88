//! The installation of a plugin as objects: its `Plugin` object, its service account, and the roles of the account and of
//! the host.
//!
//! Everything follows from the manifest of the component and from what the administrator decides: the namespaces, and the
//! origins that Secrets may be sent to, which a manifest may leave open. No I/O happens here.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

pub use super::summary::escape_controls;
use super::{
    Plugin,
    spec::{ComponentSource, PluginObject, PluginSpec, VerifySpec},
    summary,
};
use crate::{
    kube::key::Gvk,
    policy::{
        grants::{Permissions, ReconcileGrant, ServiceAccount},
        origin::OriginPattern,
        rbac::{
            self, PluginRights, ReconciledKind, ResourceCatalog, RightsObjects, RightsRequest, rights_objects,
        },
    },
};

/// Decisions of the administrator about an installation.
#[derive(Clone, Debug, Default)]
pub struct InstallOptions {
    /// Namespaces of the objects; empty for all.
    pub namespaces: Vec<String>,
    /// Origins of entries of `secrets` that have none in the manifest.
    pub origins: Vec<OriginPattern>,
    /// Signatures that the component must carry.
    pub verify: Option<VerifySpec>,
    /// Configuration of the plugin.
    pub config: Option<Map<String, Value>>,
}

/// An installation: what is applied, and what of it is new.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The `Plugin` object.
    pub plugin: PluginObject,
    /// The `Plugin` object while the former build may still serve, which has grants that the new one does not need; none if there
    /// are no such grants.
    pub transition: Option<PluginObject>,
    /// The RBAC rules.
    pub rights: PluginRights,
    /// The objects that carry the rules, in the order in which they are applied.
    pub rights_objects: Vec<Value>,
    /// Permissions that the plugin has not been granted before, one line each; all of them if it was not installed.
    pub new_permissions: Vec<String>,
}

/// Error of an installation that an option mends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InstallError {
    /// The component has no manifest.
    #[error(
        "it has no manifest, so that the permissions it needs are not known: write a plugin.yaml, and build it with \
         `ostler plugin build`"
    )]
    ManifestMissing,
    /// An entry of `secrets` needs origins.
    #[error(
        "its manifest leaves open where Secrets ({entry}) may be sent: name the servers with --origin, such as --origin \
         https://ci.example.com"
    )]
    OriginsMissing {
        /// The entry, as text.
        entry: String,
    },
    /// A reconciled kind is not served.
    #[error(
        "the API server does not serve {kinds}, which it reconciles: apply the CustomResourceDefinitions of the plugin first"
    )]
    KindsMissing {
        /// The kinds, separated by commas.
        kinds: String,
    },
}

impl Installation {
    /// Plans the installation of a component. `before` is the spec of its `Plugin` object if it is installed already: settings
    /// that the options leave open keep their values.
    pub fn plan(
        build: &Plugin,
        source: ComponentSource,
        host: &ServiceAccount,
        options: InstallOptions,
        before: Option<PluginSpec>,
        catalog: &ResourceCatalog,
    ) -> Result<Self, InstallError> {
        let asks = build.manifest.as_ref().ok_or(InstallError::ManifestMissing)?;
        let name = build.name();
        let reconciled = reconciled_kinds(build);
        let is_cluster_scoped = |kind: &&ReconciledKind| {
            let resource = catalog.find(&kind.gvk.group, &kind.gvk.kind);
            resource.is_some_and(|resource| !resource.namespaced)
        };
        let cluster_scoped = reconciled.iter().filter(is_cluster_scoped);
        let cluster_scoped: Vec<Gvk> = cluster_scoped.map(|kind| kind.gvk.clone()).collect();
        let grants = grant_permissions(
            &asks.permissions,
            &options,
            before
                .as_ref()
                .map_or(&Permissions::default(), |spec| &spec.grants),
            &cluster_scoped,
        )?;
        // Not in a namespace of the objects: its users may create pods and tokens there, and would act as the plugin.
        let account = ServiceAccount {
            namespace: host.namespace.clone(),
            name: name.to_string(),
        };
        let mut rights = PluginRights::derive(RightsRequest {
            permissions: &grants,
            reconciled: &reconciled,
            handles_messages: build.messages,
            namespaces: &options.namespaces,
            catalog,
        });
        let subscriptions = before.iter().flat_map(|spec| &spec.subscriptions);
        rights.add_upstreams(subscriptions.map(|subscription| &subscription.upstream.namespace));
        let is_unserved = |kind: &&ReconciledKind| catalog.find(&kind.gvk.group, &kind.gvk.kind).is_none();
        let unserved: Vec<_> = reconciled
            .iter()
            .filter(is_unserved)
            .map(|k| k.gvk.to_string())
            .collect();
        if !unserved.is_empty() {
            let kinds = unserved.join(", ");
            return Err(InstallError::KindsMissing { kinds });
        }
        let rights_objects = rights_objects(&RightsObjects {
            plugin: name,
            account: &account,
            host,
            namespaces: &options.namespaces,
            rights: &rights,
        });
        let new_permissions = find_new_permissions(&grants, &account, before.as_ref());
        let former = before.as_ref().map(|spec| spec.grants.clone());
        let both = former.map(|former| add_former_grants(&grants, former));
        let mut spec = before.unwrap_or_else(|| PluginSpec::new(source.clone()));
        spec.source = source;
        spec.service_account = Some(account);
        spec.grants = grants;
        spec.verify = options.verify.or(spec.verify);
        spec.config = options.config.or(spec.config);
        let transition = both.filter(|both| *both != spec.grants).map(|grants| {
            let spec = PluginSpec {
                grants,
                ..spec.clone()
            };
            PluginObject::new(name, spec)
        });
        Ok(Self {
            plugin: PluginObject::new(name, spec),
            transition,
            rights,
            rights_objects,
            new_permissions,
        })
    }
}

/// The grants of a build with those of the former one. What is reconciled is the new build's: it must not begin with objects that
/// it leaves afterwards.
fn add_former_grants(grants: &Permissions, former: Permissions) -> Permissions {
    fn add<T: PartialEq>(entries: &mut Vec<T>, former: Vec<T>) {
        for entry in former {
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
    }
    let mut both = grants.clone();
    add(&mut both.kubernetes, former.kubernetes);
    add(&mut both.upstreams, former.upstreams);
    add(&mut both.messages, former.messages);
    add(&mut both.secrets, former.secrets);
    both.events |= former.events;
    both.read_secrets |= former.read_secrets;
    both
}

/// Lines of what the plugin may do that the installed one may not. Another service account may have other roles besides those of
/// the installation.
fn find_new_permissions(
    grants: &Permissions,
    account: &ServiceAccount,
    before: Option<&PluginSpec>,
) -> Vec<String> {
    let none = Permissions::default();
    let granted = before.map_or(&none, |spec| &spec.grants);
    let mut lines = summary::find_missing(grants, granted);
    let replaced = before.and_then(|spec| spec.service_account.as_ref());
    if let Some(replaced) = replaced.filter(|replaced| *replaced != account) {
        lines.push(format!(
            "act as the service account {account} instead of {replaced}"
        ));
    }
    lines
}

/// The kinds that a component reconciles.
pub fn reconciled_kinds(build: &Plugin) -> Vec<ReconciledKind> {
    let kinds = build.kinds.iter().map(|kind| ReconciledKind {
        gvk: kind.gvk.clone(),
        has_finalizer: kind.finalizer.is_some(),
        has_upgrade: build.lifecycle,
    });
    kinds.collect()
}

/// The groups of the kinds that permissions name on the host's own cluster; none if some entry has a pattern for groups, which
/// covers all.
pub fn list_groups(permissions: &Permissions, build: &Plugin) -> Option<BTreeSet<String>> {
    let granted = permissions
        .kubernetes
        .iter()
        .filter(|grant| grant.clusters.is_empty())
        .map(|grant| grant.group.as_str());
    let reconciled = build.kinds.iter().map(|kind| &*kind.gvk.group);
    let groups: BTreeSet<String> = granted.chain(reconciled).map(str::to_owned).collect();
    (!groups.contains("*")).then_some(groups)
}

/// The permissions that the manifest asks for, confined to the namespaces of the installation, with the origins that it
/// leaves open. Objects of the cluster-scoped kinds that it reconciles are in no namespace.
fn grant_permissions(
    asks: &Permissions,
    options: &InstallOptions,
    before: &Permissions,
    cluster_scoped: &[Gvk],
) -> Result<Permissions, InstallError> {
    let mut grants = asks.clone();
    if !options.namespaces.is_empty() {
        let mut unconfined = Vec::new();
        for entry in &mut grants.reconciles {
            if !entry.namespaces.iter().any(|n| n == "*") {
                continue;
            }
            let covered = cluster_scoped.iter().filter(|kind| entry.covers(kind));
            let entries = covered.map(|kind| ReconcileGrant {
                group: kind.group.to_string(),
                kinds: vec![kind.kind.to_string()],
                namespaces: vec!["*".to_owned()],
            });
            let entries: Vec<ReconcileGrant> = entries.collect();
            entry
                .kinds
                .retain(|kind| !entries.iter().any(|other| other.kinds.contains(kind)));
            entry.namespaces.clone_from(&options.namespaces);
            unconfined.extend(entries);
        }
        grants.reconciles.retain(|entry| !entry.kinds.is_empty());
        grants.reconciles.extend(unconfined);
    }
    let lines = summary::format_lines(&Permissions {
        secrets: asks.secrets.clone(),
        ..Permissions::default()
    });
    for (entry, line) in grants.secrets.iter_mut().zip(lines) {
        if !entry.allows_any_origin() {
            continue;
        }
        // An upgrade keeps what was decided before.
        let same = before.secrets.iter().find(|old| {
            old.names == entry.names && old.namespaces == entry.namespaces && old.origins.is_some()
        });
        entry.origins = match (options.origins.is_empty(), same) {
            (false, _) => Some(options.origins.clone()),
            (true, Some(old)) => old.origins.clone(),
            (true, None) => return Err(InstallError::OriginsMissing { entry: line }),
        };
    }
    Ok(grants)
}

/// Renders objects as a stream of YAML documents.
pub fn render_yaml(objects: &[Value]) -> String {
    let documents = objects
        .iter()
        .map(|object| serde_saphyr::to_string(object).unwrap_or_default());
    documents.collect::<Vec<_>>().join("---\n")
}

/// The objects that give the host its own rights.
pub fn host_objects(host: &ServiceAccount) -> Vec<Value> {
    rbac::host_objects(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_service_account_is_a_new_permission() {
        let account = |namespace: &str| ServiceAccount {
            namespace: namespace.into(),
            name: "events".into(),
        };
        let grants: Permissions =
            serde_saphyr::from_str("kubernetes: [{kinds: [ConfigMap], verbs: [create]}]")
                .expect("permissions");
        let mut before = PluginSpec::new(ComponentSource {
            oci: None,
            file: None,
        });
        before.grants = grants.clone();
        before.service_account = Some(account("ci"));
        let lines = |namespace| find_new_permissions(&grants, &account(namespace), Some(&before));
        assert_eq!(lines("ci"), Vec::<String>::new());
        assert_eq!(
            lines("ostler-system"),
            ["act as the service account ostler-system/events instead of ci/events"]
        );
        assert_eq!(
            find_new_permissions(&grants, &account("ci"), None),
            ["create ConfigMap in the same namespace"]
        );
    }

    #[test]
    fn former_grants_are_kept_until_the_new_build_serves() {
        let parse = |yaml: &str| -> Permissions { serde_saphyr::from_str(yaml).expect("permissions") };
        let former = parse(
            "{reconciles: [{kinds: [Pod], namespaces: [a]}], kubernetes: [{kinds: [ConfigMap], verbs: [get]}], events: true}",
        );
        let grants = parse(
            "{reconciles: [{kinds: [Pod], namespaces: [b]}], kubernetes: [{kinds: [Pod], verbs: [get]}]}",
        );
        let both = add_former_grants(&grants, former.clone());
        assert_eq!(both.reconciles, grants.reconciles);
        assert_eq!(
            both.kubernetes,
            [grants.kubernetes.clone(), former.kubernetes].concat()
        );
        assert!(both.events);
        assert_eq!(add_former_grants(&grants, grants.clone()), grants);
    }

    #[test]
    fn namespaces_of_the_installation_confine_no_cluster_scoped_kind() {
        let asks: Permissions = serde_saphyr::from_str(
            "reconciles: [{group: ci.org, kinds: [Team, Zone]}, {group: ci.org, kinds: [Zone]}]",
        )
        .expect("permissions");
        let options = InstallOptions {
            namespaces: vec!["ci".into()],
            ..InstallOptions::default()
        };
        let zone = Gvk::new("ci.org", "v1", "Zone");
        let grants = grant_permissions(
            &asks,
            &options,
            &Permissions::default(),
            std::slice::from_ref(&zone),
        );
        let lines = summary::format_lines(&grants.expect("no origin is open"));
        assert_eq!(
            lines,
            [
                "reconcile Team.ci.org in ci",
                "reconcile Zone.ci.org",
                "reconcile Zone.ci.org"
            ]
        );
        let everywhere = InstallOptions::default();
        let grants = grant_permissions(&asks, &everywhere, &Permissions::default(), &[zone]);
        assert_eq!(grants.expect("no origin is open"), asks);
    }
}
