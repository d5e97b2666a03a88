//! A Kubernetes object as a part.

use serde_json::Value;

use super::Provision;
use crate::{
    ApplyOptions, ConditionStatus, Context, DeleteOptions, Error, Failure, OWNER_UID_LABEL, ObjectMeta,
    ObjectRef, Preconditions, Propagation, Substitution, gvk,
};

/// Label with the uid of the owner, on objects in a namespace in which owner references to it are impossible.
pub const OWNER_LABEL: &str = "provision.ostler.dev/owner";
/// A Kubernetes object that is applied, and deleted again.
///
/// It belongs to its owner by the owner reference, or by [`OWNER_LABEL`] where the owner is in another namespace. On another
/// cluster it is an owned object in the inventory of the host. An object of the same name that does not belong to it is
/// neither changed nor deleted.
pub struct Resource<'a> {
    owner: &'a ObjectMeta,
    object: Value,
    readiness: Readiness<'a>,
    can_adopt: bool,
    options: ApplyOptions,
}

/// Function that reads whether an object is ready.
type Check = fn(&Value) -> Result<(), Failure>;

/// The point from which on an object is ready.
enum Readiness<'a> {
    Applied,
    Condition(&'a str),
    Check(Check),
}

impl<'a> Resource<'a> {
    /// An object with the fields to apply. It is ready as soon as it is applied.
    #[must_use]
    pub fn new(owner: &'a ObjectMeta, mut object: Value) -> Self {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let owned = owner.namespace.is_empty() || namespace == owner.namespace;
        if !owned {
            object["metadata"]["labels"][OWNER_LABEL] = owner.uid.as_str().into();
        }
        Self {
            owner,
            object,
            readiness: Readiness::Applied,
            can_adopt: false,
            options: ApplyOptions {
                owned,
                force: true,
                ..ApplyOptions::default()
            },
        }
    }

    /// It is ready when this condition is True for its current generation, such as `Available` of a Deployment.
    #[must_use]
    pub fn ready_when(mut self, condition: &'a str) -> Self {
        self.readiness = Readiness::Condition(condition);
        self
    }

    /// It is ready when this function succeeds for the whole object.
    #[must_use]
    pub fn ready_if(mut self, check: fn(&Value) -> Result<(), Failure>) -> Self {
        self.readiness = Readiness::Check(check);
        self
    }

    /// Applies it on another cluster: `namespace/name` of the `Cluster` object. The kind of the owner needs a finalizer.
    #[must_use]
    pub fn on_cluster(mut self, cluster: &str) -> Self {
        // The host marks it instead.
        if let Some(labels) = self.object["metadata"]["labels"].as_object_mut() {
            labels.remove(OWNER_LABEL);
        }
        self.options.cluster = Some(cluster.into());
        self.options.owned = true;
        self
    }

    /// Takes over an object of the same name that does not belong to the owner, such as one that another tool has made.
    #[must_use]
    pub fn adopt(mut self) -> Self {
        self.can_adopt = true;
        self
    }

    /// Inserts secrets into a `Secret` ([`ApplyOptions`]).
    #[must_use]
    pub fn substitutions(mut self, substitutions: Vec<Substitution>) -> Self {
        self.options.substitutions = substitutions;
        self
    }

    fn reference(&self) -> ObjectRef {
        let text = |value: &'static str| self.object[value].as_str().unwrap_or_default();
        let (group, version) = text("apiVersion")
            .split_once('/')
            .unwrap_or(("", text("apiVersion")));
        let metadata = &self.object["metadata"];
        let mut reference = gvk(group, version, text("kind")).named(
            metadata["namespace"].as_str().unwrap_or_default(),
            metadata["name"].as_str().unwrap_or_default(),
        );
        reference.cluster.clone_from(&self.options.cluster);
        reference
    }

    /// The object may be applied: it belongs to the owner. On another cluster the host decides between the owners of one
    /// object (`conflict`), so that an owner that was restored from a backup takes its objects over.
    fn may_apply(&self, metadata: &Value) -> bool {
        let is_remote = self.options.cluster.is_some();
        self.can_adopt
            || self.is_owned(metadata)
            || (is_remote && metadata["labels"][OWNER_UID_LABEL].is_string())
    }

    fn is_owned(&self, metadata: &Value) -> bool {
        let uid = self.owner.uid.as_str();
        if self.options.cluster.is_some() {
            return metadata["labels"][OWNER_UID_LABEL] == uid;
        }
        let mut owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        metadata["labels"][OWNER_LABEL] == uid || owners.any(|owner| owner["uid"] == uid)
    }
}

impl Provision for Resource<'_> {
    fn provision(&self, ctx: &Context) -> Result<(), Failure> {
        let reference = self.reference();
        if let Some(live) = ctx.get_json(&reference)? {
            let metadata = &live["metadata"];
            if !self.may_apply(metadata) {
                let message = describe(
                    &reference,
                    " belongs to another owner. Delete it, or give this one another name.",
                );
                return Err(Failure::terminal("NotOwned", message));
            }
            if !metadata["deletionTimestamp"].is_null() {
                let message = describe(&reference, " is being deleted, and is made anew after that.");
                return Err(Failure::wait("Deprovisioning", message));
            }
        }
        let written = ctx.apply_with(&self.object, &self.options)?;
        match self.readiness {
            Readiness::Applied => Ok(()),
            Readiness::Condition(kind) => {
                match ctx.require_condition(&reference, kind, ConditionStatus::True) {
                    Ok(_) => Ok(()),
                    Err(error @ Error::NotReady(_)) => Err(Failure::from(error).reason("Provisioning")),
                    Err(error) => Err(error.into()),
                }
            }
            Readiness::Check(check) => check(&written.json()?),
        }
    }

    fn deprovision(&self, ctx: &Context) -> Result<(), Failure> {
        let reference = self.reference();
        let Some(live) = ctx.get_metadata(&reference)? else {
            return Ok(());
        };
        let metadata = &live["metadata"];
        if !self.is_owned(metadata) {
            return Ok(());
        }
        if metadata["deletionTimestamp"].is_null() {
            let options = DeleteOptions {
                // It is gone only after its dependents: a Deployment after its Pods.
                propagation: Propagation::Foreground,
                preconditions: Preconditions {
                    uid: metadata["uid"].as_str().map(Into::into),
                    resource_version: None,
                },
            };
            ctx.delete_with(&reference, &options)?;
            // The deletion of an object without finalizers is complete, and wakes nothing later.
            if ctx.get_metadata(&reference)?.is_none() {
                return Ok(());
            }
        }
        Err(Failure::wait(
            "Deprovisioning",
            describe(&reference, " is being deleted."),
        ))
    }
}

fn describe(reference: &ObjectRef, text: &str) -> String {
    [&*reference.gvk.kind, " ", &reference.name, text].concat()
}
