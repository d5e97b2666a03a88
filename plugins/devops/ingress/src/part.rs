//! The objects that an IngressResource makes. It owns them: one that it does not own belongs to another user, and is neither
//! changed nor deleted.

use devops_api::IngressResource;
use ostler_sdk::{ApplyOptions, DeleteOptions, ObjectRef, Preconditions, prelude::*, serde_json::Value};

/// Annotation of cert-manager's Secrets with the name of their Certificate.
const CERTIFICATE_ANNOTATION: &str = "cert-manager.io/certificate-name";

/// One of the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IngressPart {
    /// The Ingress.
    Ingress,
    /// The DNS record of the IPv4 addresses, or of the host name.
    Dns,
    /// The DNS record of the IPv6 addresses.
    DnsV6,
    /// The certificate of cert-manager.
    Certificate,
    /// The Secret of the certificate, which cert-manager writes into, and leaves behind.
    Secret(String),
}

impl IngressPart {
    /// Kind of the object.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Dns | Self::DnsV6 => "DnsRecord",
            Self::Certificate => "Certificate",
            Self::Secret(_) => "Secret",
        }
    }

    /// Name of the object.
    pub fn name(&self, ingress: &IngressResource) -> String {
        match self {
            Self::Ingress | Self::Dns | Self::Certificate => ingress.name().to_owned(),
            Self::DnsV6 => [ingress.name(), "-aaaa"].concat(),
            Self::Secret(name) => name.clone(),
        }
    }

    /// Reason of Ready while the object is being deleted, by which a DeploymentRecord knows the step of its clean-up.
    pub fn remaining_reason(&self) -> &'static str {
        match self {
            Self::Ingress => "IngressRemains",
            Self::Dns | Self::DnsV6 => "DnsRemains",
            Self::Certificate | Self::Secret(_) => "CertificateRemains",
        }
    }

    /// The object of an IngressResource.
    pub fn reference(&self, ingress: &IngressResource) -> ObjectRef {
        let kind = match self {
            Self::Ingress => gvk("networking.k8s.io", "v1", "Ingress"),
            Self::Dns | Self::DnsV6 => gvk("dns.ostler.dev", "v1alpha1", "DnsRecord"),
            Self::Certificate => gvk("cert-manager.io", "v1", "Certificate"),
            Self::Secret(_) => gvk("", "v1", "Secret"),
        };
        kind.named(ingress.namespace(), &self.name(ingress))
    }

    /// Returns whether the IngressResource owns an object.
    pub fn is_owned(&self, ingress: &IngressResource, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let mut owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        if owners.any(|owner| owner["uid"] == *ingress.metadata.uid) {
            return true;
        }
        // One of a former version, which has let cert-manager create it.
        let Self::Secret(name) = self else { return false };
        ingress.status.certificate_secret.as_ref() == Some(name)
            && metadata["annotations"][CERTIFICATE_ANNOTATION] == *ingress.name()
    }
}

/// Applies an object, unless another user has one of its name.
pub fn apply(
    ctx: &Context,
    ingress: &IngressResource,
    part: &IngressPart,
    desired: &Value,
    reason: &str,
) -> Result<Value, Failure> {
    let live = ctx.get_json(&part.reference(ingress)).reason(reason)?;
    let mut force = true;
    match &live {
        Some(live) if !part.is_owned(ingress, live) => {
            let message = format!(
                "{} {} exists already and is not of this object: delete it, or give this object another name.",
                part.kind(),
                part.name(ingress)
            );
            return Err(Failure::terminal("NotClaimed", message));
        }
        Some(live) if !live["metadata"]["deletionTimestamp"].is_null() => {
            let message = format!(
                "Waiting for the deletion of {} {}.",
                part.kind(),
                part.name(ingress)
            );
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
pub fn delete(ctx: &Context, ingress: &IngressResource, part: &IngressPart) -> Result<bool, Failure> {
    let reference = part.reference(ingress);
    let reason = part.remaining_reason();
    let Some(live) = ctx.get_metadata(&reference).reason(reason)? else {
        return Ok(true);
    };
    if !part.is_owned(ingress, &live) {
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
