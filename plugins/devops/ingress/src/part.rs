//! The three objects that an IngressResource applies. All have its name, and it owns them: one that it does not own belongs to
//! another user, and is neither changed nor deleted.

use devops_api::IngressResource;
use ostler_sdk::{ApplyOptions, DeleteOptions, ObjectRef, Preconditions, prelude::*, serde_json::Value};

/// One of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The Ingress.
    Ingress,
    /// The DNS record.
    Dns,
    /// The certificate of cert-manager.
    Certificate,
}

impl Part {
    /// Kind of the object.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Dns => "DnsRecord",
            Self::Certificate => "Certificate",
        }
    }

    /// Reason of Ready while the object is being deleted, by which a DeploymentRecord knows the step of its clean-up.
    pub fn remaining_reason(self) -> &'static str {
        match self {
            Self::Ingress => "IngressRemains",
            Self::Dns => "DnsRemains",
            Self::Certificate => "CertificateRemains",
        }
    }

    /// The object of an IngressResource.
    pub fn reference(self, ingress: &IngressResource) -> ObjectRef {
        let kind = match self {
            Self::Ingress => gvk("networking.k8s.io", "v1", "Ingress"),
            Self::Dns => gvk("dns.ostler.dev", "v1alpha1", "DnsRecord"),
            Self::Certificate => gvk("cert-manager.io", "v1", "Certificate"),
        };
        kind.named(ingress.namespace(), ingress.name())
    }
}

/// Returns whether the IngressResource owns an object.
fn is_owned(ingress: &IngressResource, object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == *ingress.metadata.uid))
}

/// Applies an object, unless another user has one of its name.
pub fn apply(
    ctx: &Context,
    ingress: &IngressResource,
    part: Part,
    desired: &Value,
    reason: &str,
) -> Result<Value, Failure> {
    let live = ctx.get_json(&part.reference(ingress)).reason(reason)?;
    let mut force = true;
    match &live {
        Some(live) if !is_owned(ingress, live) => {
            let message = format!(
                "{} {} exists already and is not of this object: delete it, or give this object another name.",
                part.kind(),
                ingress.name()
            );
            return Err(Failure::terminal("NotClaimed", message));
        }
        Some(live) if !live["metadata"]["deletionTimestamp"].is_null() => {
            let message = format!("Waiting for the deletion of {} {}.", part.kind(), ingress.name());
            return Err(Failure::wait(part.remaining_reason(), message));
        }
        Some(_) => {}
        // One that appears meanwhile is not overruled.
        None => force = false,
    }
    let options = ApplyOptions {
        owned: true,
        force,
        ..ApplyOptions::default()
    };
    Ok(ctx.apply_with(desired, &options).reason(reason)?.json()?)
}

/// Deletes an object if the IngressResource owns it. Returns whether nothing of it is left.
pub fn delete(ctx: &Context, ingress: &IngressResource, part: Part) -> Result<bool, Failure> {
    let reference = part.reference(ingress);
    let reason = part.remaining_reason();
    let Some(live) = ctx.get_metadata(&reference).reason(reason)? else {
        return Ok(true);
    };
    if !is_owned(ingress, &live) {
        return Ok(true);
    }
    let metadata = &live["metadata"];
    if metadata["deletionTimestamp"].is_null() {
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: metadata["uid"].as_str().map(Into::into),
                resource_version: None,
            },
            ..DeleteOptions::default()
        };
        match ctx.delete_with(&reference, &options) {
            Ok(()) | Err(Error::Conflict(_)) => {}
            Err(error) => return Err(error).reason(reason),
        }
    }
    // An object without finalizers is gone at once.
    Ok(ctx.get_metadata(&reference).reason(reason)?.is_none())
}
