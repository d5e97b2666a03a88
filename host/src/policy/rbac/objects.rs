//! Roles, bindings and service accounts as objects.
//!
//! Names with a colon, as those of Kubernetes' own roles, are not those of service accounts, and so collide with no role
//! that a user names after one.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::ServiceAccount as AccountObject,
        rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Serialize;
use serde_json::Value;

use super::{PluginRights, RuleSet, ScopedRules};
use crate::{
    kube::{secret_view::DIGEST_KEY_SECRET, well_known::bookkeeping},
    policy::grants::ServiceAccount,
};

/// Default name of the Lease of the host.
pub const LEASE_NAME: &str = "ostler";
/// Namespace of the host unless another one is given: that of the manifests and the chart.
pub const HOST_NAMESPACE: &str = "ostler-system";
/// Label with the name of the application that an object belongs to.
const NAME_LABEL: &str = "app.kubernetes.io/name";
/// Name of the ClusterRole with the rules of the host in a namespace.
const HOST_NAMESPACE_ROLE: &str = "ostler:namespace";
/// Name of the ClusterRole with the rules of the host for cluster-scoped kinds, and of its binding.
pub const HOST_CLUSTER_ROLE: &str = "ostler:cluster";
/// Name of the Role with the rules of the host in its own namespace, and of its binding.
const HOST_OWN_ROLE: &str = "ostler:leadership";
/// Name of the RoleBinding that lets the host read the authority of client certificates, without the namespace of the host.
const HOST_AUTHENTICATION_BINDING: &str = "ostler:authentication-reader";
/// Name of the Role for it, which every cluster has in `kube-system`.
const AUTHENTICATION_READER_ROLE: &str = "extension-apiserver-authentication-reader";

/// The rights of a plugin and their subjects.
#[derive(Clone, Copy, Debug)]
pub struct RightsObjects<'a> {
    /// Name of the plugin.
    pub plugin: &'a str,
    /// Its service account.
    pub account: &'a ServiceAccount,
    /// The service account of the host.
    pub host: &'a ServiceAccount,
    /// The namespaces in which it is installed; empty for all.
    pub namespaces: &'a [String],
    /// Its rights.
    pub rights: &'a PluginRights,
}

/// The objects that give a plugin and the host its rights, in the order in which they are applied.
pub fn rights_objects(of: &RightsObjects<'_>) -> Vec<Value> {
    let writer = ObjectWriter {
        labels: Some(BTreeMap::from([(
            bookkeeping::PLUGIN_LABEL.to_owned(),
            of.plugin.to_owned(),
        )])),
    };
    let mut objects = vec![writer.account(of.account)];
    let name = format!("ostler:{}", of.plugin);
    writer.add_rules(&mut objects, &name, of.account, &of.rights.account, None);
    let impersonation = of.rights.impersonates.then_some(of.account);
    let name = format!("{name}:host");
    writer.add_rules(&mut objects, &name, of.host, &of.rights.host, impersonation);
    // Each plugin has a binding of its own, so that it goes with its plugin and with no other.
    let name = format!("ostler:{}:namespace", of.plugin);
    let bind = |namespace| writer.binding(&name, "ClusterRole", HOST_NAMESPACE_ROLE, namespace, of.host);
    if of.namespaces.is_empty() {
        objects.push(bind(None));
    } else {
        let namespaces = of.rights.host_namespaces(of.namespaces).into_iter();
        objects.extend(namespaces.map(|namespace| bind(Some(namespace))));
    }
    objects
}

/// The objects that give the host its rights, without those for its plugins.
pub fn host_objects(host: &ServiceAccount) -> Vec<Value> {
    let writer = ObjectWriter {
        labels: Some(BTreeMap::from([(NAME_LABEL.to_owned(), LEASE_NAME.to_owned())])),
    };
    // Bindings outside of the namespace of the host: another host of the cluster has its own.
    let bound_in = |name: &str| format!("{name}:{}", host.namespace);
    let own = [
        named_rule("coordination.k8s.io", "leases", None, &["create"]),
        named_rule(
            "coordination.k8s.io",
            "leases",
            Some(LEASE_NAME),
            &["get", "watch", "patch"],
        ),
        // The key of the digests of secrets, so that they are the same after a restart and on each replica.
        named_rule("", "secrets", None, &["create"]),
        named_rule("", "secrets", Some(DIGEST_KEY_SECRET), &["get"]),
    ];
    vec![
        AccountObject {
            metadata: writer.metadata(&host.name, Some(&host.namespace)),
            ..AccountObject::default()
        }
        .to_object(),
        writer.role(HOST_NAMESPACE_ROLE, None, RuleSet::of_host().to_policy_rules()),
        writer.role(
            HOST_CLUSTER_ROLE,
            None,
            RuleSet::of_host_in_cluster().to_policy_rules(),
        ),
        writer.binding(
            &bound_in(HOST_CLUSTER_ROLE),
            "ClusterRole",
            HOST_CLUSTER_ROLE,
            None,
            host,
        ),
        writer.role(HOST_OWN_ROLE, Some(&host.namespace), own.to_vec()),
        writer.binding(HOST_OWN_ROLE, "Role", HOST_OWN_ROLE, Some(&host.namespace), host),
        writer.binding(
            &bound_in(HOST_AUTHENTICATION_BINDING),
            "Role",
            AUTHENTICATION_READER_ROLE,
            Some("kube-system"),
            host,
        ),
    ]
}

/// A rule with one resource, and the name of the one object that it is about.
fn named_rule(group: &str, resource: &str, name: Option<&str>, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: name.map(|name| vec![name.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}

/// Converts an object of k8s-openapi to JSON, `apiVersion` and `kind` included.
trait ToObject {
    fn to_object(&self) -> Value;
}

impl<T: Serialize> ToObject for T {
    fn to_object(&self) -> Value {
        serde_json::to_value(self).expect("a Kubernetes object is JSON")
    }
}

/// Creates objects with the same labels.
struct ObjectWriter {
    labels: Option<BTreeMap<String, String>>,
}

impl ObjectWriter {
    fn metadata(&self, name: &str, namespace: Option<&str>) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: namespace.map(str::to_owned),
            labels: self.labels.clone(),
            ..ObjectMeta::default()
        }
    }

    /// The service account of a plugin. No pod runs as it.
    fn account(&self, account: &ServiceAccount) -> Value {
        AccountObject {
            metadata: self.metadata(&account.name, Some(&account.namespace)),
            automount_service_account_token: Some(false),
            ..AccountObject::default()
        }
        .to_object()
    }

    /// Adds the roles and bindings of one subject. `impersonated` is an account that it may act as.
    fn add_rules(
        &self,
        objects: &mut Vec<Value>,
        name: &str,
        subject: &ServiceAccount,
        rules: &ScopedRules,
        impersonated: Option<&ServiceAccount>,
    ) {
        if !rules.cluster.is_empty() {
            objects.push(self.role(name, None, rules.cluster.to_policy_rules()));
            objects.push(self.binding(name, "ClusterRole", name, None, subject));
        }
        let mut namespaces: BTreeMap<&str, Vec<PolicyRule>> = BTreeMap::new();
        for (namespace, rules) in &rules.namespaces {
            namespaces.insert(namespace, rules.to_policy_rules());
        }
        if let Some(account) = impersonated {
            // Exactly this account: without a name it would be every one.
            let rule = named_rule("", "serviceaccounts", Some(&account.name), &["impersonate"]);
            namespaces.entry(&account.namespace).or_default().push(rule);
        }
        for (namespace, rules) in namespaces {
            if !rules.is_empty() {
                objects.push(self.role(name, Some(namespace), rules));
                objects.push(self.binding(name, "Role", name, Some(namespace), subject));
            }
        }
    }

    fn role(&self, name: &str, namespace: Option<&str>, rules: Vec<PolicyRule>) -> Value {
        let (metadata, rules) = (self.metadata(name, namespace), Some(rules));
        match namespace {
            Some(_) => Role { metadata, rules }.to_object(),
            None => ClusterRole {
                metadata,
                rules,
                ..ClusterRole::default()
            }
            .to_object(),
        }
    }

    /// Binds a role of this kind.
    fn binding(
        &self,
        name: &str,
        kind: &str,
        role: &str,
        namespace: Option<&str>,
        subject: &ServiceAccount,
    ) -> Value {
        let metadata = self.metadata(name, namespace);
        let role_ref = RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: kind.to_owned(),
            name: role.to_owned(),
        };
        let subjects = Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: subject.name.clone(),
            namespace: Some(subject.namespace.clone()),
            ..Subject::default()
        }]);
        match namespace {
            Some(_) => RoleBinding {
                metadata,
                role_ref,
                subjects,
            }
            .to_object(),
            None => ClusterRoleBinding {
                metadata,
                role_ref,
                subjects,
            }
            .to_object(),
        }
    }
}
