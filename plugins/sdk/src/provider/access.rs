//! Access to the clusters of a service: the requests of openmcp, and the `Cluster` object by which the host connects.
//!
//! In the order in which they are made, and in the reverse order deleted: a `ClusterRequest` for a cluster of the service's own,
//! an `AccessRequest`, which yields a Secret with a kubeconfig, and a `Cluster` that names the Secret. They belong to their
//! object by a label and not by an owner reference: Kubernetes would delete them before the service in a foreground deletion.

use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::provision::OWNER_LABEL;
use crate::{
    ApplyOptions, Context, DeleteOptions, Failure, Gvk, IN_CLUSTER, ObjectMeta, ObjectRef, Preconditions,
    SecretKeyRef, gvk,
};

/// Role of the cluster of a control plane.
pub(super) const MCP_ROLE: &str = "mcp";
/// Role of a workload cluster, which is also the purpose of its request.
pub(super) const WORKLOAD_ROLE: &str = "workload";

/// API group of the requests.
const REQUEST_GROUP: &str = "clusters.openmcp.cloud";
/// Key of the kubeconfig in a Secret with credentials.
const KUBECONFIG_KEY: &str = "kubeconfig";
/// Annotation of a request with the kind, namespace and name of its owner. An owner that was restored from a backup has
/// another uid, and takes its requests over.
const OWNER_ANNOTATION: &str = "provision.ostler.dev/owner-name";

/// Permissions that an `AccessRequest` asks for: a Role in the namespace, or a ClusterRole.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AccessPermissions {
    /// Namespace of the Role; none for a ClusterRole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<&'static str>,
    /// Rules of the role.
    pub rules: &'static [PolicyRule],
}

/// A rule of a role.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRule {
    /// API groups; the core group is the empty string.
    pub api_groups: &'static [&'static str],
    /// Resources, in the plural.
    pub resources: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
}

/// A reference to a `ClusterRequest`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RequestRef {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
}

impl RequestRef {
    /// The request with the name and namespace of the object.
    #[must_use]
    pub fn of_same_name(metadata: &ObjectMeta) -> Self {
        Self {
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
        }
    }
}

/// Function that finds the `ClusterRequest` of the control plane of an object.
pub(super) type FindRequest = fn(&ObjectMeta) -> RequestRef;

/// The clusters that a provider requests for each object.
pub(super) struct AccessPlan {
    pub(super) mcp: Option<(&'static [AccessPermissions], FindRequest)>,
    pub(super) workload: Option<&'static [AccessPermissions]>,
}

/// The clusters of a service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clusters {
    pub(super) mcp: Option<TargetCluster>,
    pub(super) workload: Option<TargetCluster>,
}

impl Clusters {
    /// The control plane of the service.
    ///
    /// # Errors
    /// A terminal failure if the provider requests none.
    pub fn mcp(&self) -> Result<&TargetCluster, Failure> {
        find_requested(self.mcp.as_ref(), "with_mcp_cluster")
    }

    /// The workload cluster of the service.
    ///
    /// # Errors
    /// A terminal failure if the provider requests none.
    pub fn workload(&self) -> Result<&TargetCluster, Failure> {
        find_requested(self.workload.as_ref(), "with_workload_cluster")
    }
}

fn find_requested<'a>(
    cluster: Option<&'a TargetCluster>,
    builder: &str,
) -> Result<&'a TargetCluster, Failure> {
    cluster.ok_or_else(|| {
        let message = ["The provider requests no such cluster: call ", builder, "."];
        Failure::terminal("ClusterNotRequested", message.concat())
    })
}

/// A cluster to which access is granted.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetCluster {
    name: String,
    secret: SecretKeyRef,
}

impl TargetCluster {
    /// `namespace/name` of the `Cluster` object, for references, lists and writes.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The Secret with the kubeconfig, to name it in another object. A plugin cannot read it.
    #[must_use]
    pub fn secret(&self) -> &SecretKeyRef {
        &self.secret
    }
}

/// A cluster in its role for an object.
pub(super) struct ClusterRole<'a> {
    pub(super) owner: &'a ObjectMeta,
    pub(super) kind: &'static str,
    pub(super) group: &'static str,
    pub(super) provider: &'a str,
    pub(super) namespace: &'a str,
    pub(super) role: &'static str,
}

impl ClusterRole<'_> {
    /// Requests a cluster, and access to it.
    pub(super) fn request_cluster(
        &self,
        ctx: &Context,
        permissions: &[AccessPermissions],
    ) -> Result<TargetCluster, Failure> {
        let name = self.request_name();
        let spec = json!({ "purpose": self.role });
        self.apply_request(ctx, cluster_request(), &name, spec)?;
        let request = RequestRef {
            name,
            namespace: self.namespace.into(),
        };
        self.request_access(ctx, &request, permissions)
    }

    /// Requests access to the cluster of a `ClusterRequest`, and makes the `Cluster` object for it.
    pub(super) fn request_access(
        &self,
        ctx: &Context,
        request: &RequestRef,
        permissions: &[AccessPermissions],
    ) -> Result<TargetCluster, Failure> {
        let spec = json!({ "requestRef": request, "token": { "permissions": permissions } });
        let granted = self.apply_request(ctx, access_request(), &self.request_name(), spec)?;
        let secret = &granted["status"]["secretRef"];
        let Some(secret_name) = secret["name"].as_str() else {
            let message = [
                "AccessRequest ",
                &self.request_name(),
                " has no status.secretRef yet.",
            ];
            return Err(Failure::wait("AccessRequestPending", message.concat()));
        };
        // Earlier versions of openmcp-operator write the namespace, too.
        if secret["namespace"]
            .as_str()
            .is_some_and(|namespace| namespace != self.namespace)
        {
            let message = [
                "AccessRequest ",
                &self.request_name(),
                ": status.secretRef is in another namespace, where no Cluster can name it.",
            ];
            return Err(Failure::terminal("SecretInOtherNamespace", message.concat()));
        }
        let name = self.cluster_name();
        self.apply_cluster(ctx, &name, secret_name)?;
        Ok(TargetCluster {
            name: [self.namespace, "/", &name].concat(),
            secret: SecretKeyRef::new(secret_name, KUBECONFIG_KEY).in_namespace(self.namespace),
        })
    }

    /// Applies a request, and returns it when it is granted.
    fn apply_request(&self, ctx: &Context, kind: Gvk, name: &str, spec: Value) -> Result<Value, Failure> {
        let reference = kind.named(self.namespace, name).on_cluster(IN_CLUSTER);
        if let Some(live) = self.find_own(ctx, &reference)? {
            if is_deleting(&live) {
                // Another client deletes it. A cleanup uses the access as long as there is one.
                if self.owner.deletion_timestamp.is_some() {
                    return check_granted(&reference, live);
                }
                let message = describe(&reference, " is being deleted, and is made anew after that.");
                return Err(Failure::wait("Deprovisioning", message));
            }
            self.delete_former_cluster(ctx, &live)?;
        }
        let mut object = self.build_object(&reference);
        object["spec"] = spec;
        check_granted(&reference, ctx.apply_with(&object, &apply_options())?.json()?)
    }

    fn apply_cluster(&self, ctx: &Context, name: &str, secret: &str) -> Result<(), Failure> {
        let reference = ostler_cluster()
            .named(self.namespace, name)
            .on_cluster(IN_CLUSTER);
        if let Some(live) = self.find_own(ctx, &reference)?
            && is_deleting(&live)
        {
            // It stays until its last user is gone, which is this object, and works until then.
            return Ok(());
        }
        let mut object = self.build_object(&reference);
        object["spec"] = json!({ "kubeconfigSecretRef": { "name": secret, "key": KUBECONFIG_KEY } });
        if self.owner.namespace != self.namespace {
            object["spec"]["allowedNamespaces"] = json!([self.owner.namespace]);
        }
        ctx.apply_with(&object, &apply_options())?;
        Ok(())
    }

    /// Deletes the `Cluster`, then the `AccessRequest`, and after that the `ClusterRequest`.
    pub(super) fn release_access(&self, ctx: &Context) -> Result<(), Failure> {
        let cluster = ostler_cluster()
            .named(self.namespace, &self.cluster_name())
            .on_cluster(IN_CLUSTER);
        // It is not waited for: the host keeps it until this object is gone, which may need it for its cleanup.
        self.delete_own(ctx, &cluster)?;
        for kind in [access_request(), cluster_request()] {
            let reference = kind
                .named(self.namespace, &self.request_name())
                .on_cluster(IN_CLUSTER);
            if !self.delete_own(ctx, &reference)? {
                let message = describe(&reference, " is being deleted.");
                return Err(Failure::wait("Deprovisioning", message));
            }
        }
        Ok(())
    }

    /// Deletes the `Cluster` of the owner before it was restored from a backup, whose uid is in its name and on the request. It
    /// goes before the request gets the new uid, after which nothing would tell its name. The host keeps it for as long as the
    /// inventory of the owner has objects on it.
    fn delete_former_cluster(&self, ctx: &Context, request: &Value) -> Result<(), Failure> {
        let former = request["metadata"]["labels"][OWNER_LABEL].as_str();
        if let Some(uid) = former.filter(|uid| *uid != self.owner.uid.as_str()) {
            let cluster = ostler_cluster()
                .named(self.namespace, &self.cluster_name_of(uid))
                .on_cluster(IN_CLUSTER);
            self.delete_own(ctx, &cluster)?;
        }
        Ok(())
    }

    /// Deletes an object unless it belongs to another owner. Returns true if nothing is left of it.
    fn delete_own(&self, ctx: &Context, reference: &ObjectRef) -> Result<bool, Failure> {
        let Some(live) = ctx.get_metadata(reference)?.filter(|live| self.is_own(live)) else {
            return Ok(true);
        };
        if reference.gvk.kind != "Cluster" {
            self.delete_former_cluster(ctx, &live)?;
        }
        if !is_deleting(&live) {
            // Not in the foreground: the AccessRequest would wait for the Secret that it owns, and the host keeps that until
            // this object is gone, which waits for the AccessRequest.
            let options = DeleteOptions {
                preconditions: Preconditions {
                    uid: live["metadata"]["uid"].as_str().map(Into::into),
                    resource_version: None,
                },
                ..DeleteOptions::default()
            };
            ctx.delete_with(reference, &options)?;
            return Ok(ctx.get_metadata(reference)?.is_none());
        }
        Ok(false)
    }

    fn find_own(&self, ctx: &Context, reference: &ObjectRef) -> Result<Option<Value>, Failure> {
        let live = ctx.get_json(reference)?;
        if live.as_ref().is_some_and(|live| !self.is_own(live)) {
            let message = describe(
                reference,
                " belongs to another owner. Delete it if that does not exist any more.",
            );
            return Err(Failure::terminal("NotOwned", message));
        }
        Ok(live)
    }

    fn is_own(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        metadata["labels"][OWNER_LABEL] == self.owner.uid.as_str()
            || metadata["annotations"][OWNER_ANNOTATION] == self.owner_name()
    }

    fn owner_name(&self) -> String {
        let owner = self.owner;
        [
            self.kind,
            ".",
            self.group,
            " ",
            &owner.namespace,
            "/",
            &owner.name,
        ]
        .concat()
    }

    fn build_object(&self, reference: &ObjectRef) -> Value {
        json!({
            "apiVersion": reference.gvk.api_version(),
            "kind": reference.gvk.kind,
            "metadata": {
                "name": reference.name,
                "namespace": self.namespace,
                "labels": { OWNER_LABEL: self.owner.uid },
                "annotations": { OWNER_ANNOTATION: self.owner_name() },
            },
        })
    }

    /// Name of the requests: the same for an object that was restored from a backup.
    fn request_name(&self) -> String {
        let hash = hash_text(&self.owner_name());
        [self.provider, "-", self.role, "-", &hash].concat()
    }

    /// Name of the `Cluster`, with the uid: one of an earlier object of the same name may still be there.
    fn cluster_name(&self) -> String {
        self.cluster_name_of(&self.owner.uid)
    }

    fn cluster_name_of(&self, uid: &str) -> String {
        let owner = [&self.owner_name(), " ", uid].concat();
        [self.provider, "-", self.role, "-", &hash_text(&owner)].concat()
    }
}

/// Options of an apply on the host's own cluster, on which the requests are.
fn apply_options() -> ApplyOptions {
    ApplyOptions {
        cluster: Some(IN_CLUSTER.into()),
        force: true,
        ..ApplyOptions::default()
    }
}

fn cluster_request() -> Gvk {
    gvk(REQUEST_GROUP, "v1alpha1", "ClusterRequest")
}

fn access_request() -> Gvk {
    gvk(REQUEST_GROUP, "v1alpha1", "AccessRequest")
}

fn ostler_cluster() -> Gvk {
    gvk("ostler.dev", "v1alpha1", "Cluster")
}

fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Returns a request that is granted in its current generation.
fn check_granted(reference: &ObjectRef, live: Value) -> Result<Value, Failure> {
    let status = &live["status"];
    let phase = status["phase"].as_str().unwrap_or("Pending");
    // A phase of an earlier generation says nothing about the current spec.
    let is_current = status["observedGeneration"].as_i64() >= live["metadata"]["generation"].as_i64();
    if is_current && phase == "Granted" {
        return Ok(live);
    }
    let why = status["message"].as_str().unwrap_or_default();
    if is_current && phase == "Denied" {
        let message = describe(reference, " is Denied. ");
        return Err(Failure::terminal(
            &[&*reference.gvk.kind, "Denied"].concat(),
            [&message, why].concat().trim_end(),
        ));
    }
    let message = describe(reference, " is not granted yet. ");
    Err(Failure::wait(
        &[&*reference.gvk.kind, "Pending"].concat(),
        [&message, why].concat().trim_end(),
    ))
}

fn describe(reference: &ObjectRef, text: &str) -> String {
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    [&*reference.gvk.kind, " ", namespace, "/", &reference.name, text].concat()
}

/// A name that is stable and unique for an object of a kind, such as that of its namespace on a cluster that it shares with
/// others: the prefix and a hash of the namespace and name.
#[must_use]
pub fn build_stable_name(prefix: &str, metadata: &ObjectMeta) -> String {
    let hash = hash_text(&[&*metadata.namespace, "/", &metadata.name].concat());
    [prefix, "-", &hash].concat()
}

/// First 128 bits of the SHA-256 hash, in hexadecimal digits. Names of tenants stand beside each other, and nobody can choose a
/// name of his own whose hash is that of another one.
fn hash_text(text: &str) -> String {
    let digest = Sha256::digest(text);
    let digits = digest[..16].iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}
