//! Reconciles `devops.ostler.dev/v1alpha1` IngressResource: DNS record, certificate, Ingress, and then the URL.

mod desired;
mod part;

use devops_api::{IngressResource, IngressResourceSpec, IngressResourceStatus, describe_deletion};
use ostler_sdk::{ConditionStatus, prelude::*};

use crate::{
    desired::{Records, secret_name},
    part::IngressPart,
};

/// Reconciles IngressResources.
pub struct IngressResources;

impl Reconciler for IngressResources {
    type Spec = IngressResourceSpec;
    const FINALIZER: Option<&'static str> = Some("devops.ostler.dev/ingress-resource");

    fn reconcile(&self, ctx: &Context, ingress: &IngressResource) -> Result<Outcome, Failure> {
        let claimed = ingress.status.certificate_secret.as_deref();
        let secret = ingress.spec.certificate.as_ref().map(|_| secret_name(ingress));
        // What the spec no longer has goes first: a Secret with its Certificate, which would write it again.
        if claimed.is_some() && claimed != secret.as_deref() {
            delete_certificate(ctx, ingress)?;
            return Ok(Outcome::after(1).status(&IngressResourceStatus::default()));
        }
        apply_dns(ctx, ingress)?;
        if let Some(secret) = &secret {
            apply_certificate(ctx, ingress, secret)?;
        }
        let live = part::apply(
            ctx,
            ingress,
            &IngressPart::Ingress,
            &desired::build_ingress(ingress),
            "ApplyFailed",
        )?;
        let mut status = IngressResourceStatus {
            url: None,
            certificate_secret: secret,
        };
        let addresses = live["status"]["loadBalancer"]["ingress"].as_array();
        if addresses.is_none_or(Vec::is_empty) {
            let message = "Waiting for an ingress controller to set status.loadBalancer of the Ingress.";
            return Err(Failure::wait("IngressNotReady", message).status(&status));
        }
        let scheme = if status.certificate_secret.is_some() {
            "https"
        } else {
            "http"
        };
        status.url = Some(format!("{scheme}://{}", ingress.spec.host));
        let message = format!("The host {} is served.", ingress.spec.host);
        Ok(Outcome::await_change()
            .with(Condition::new_true("Ready", "Ready", message))
            .status(&status))
    }

    fn cleanup(&self, ctx: &Context, ingress: &IngressResource) -> Result<Outcome, Failure> {
        for part in [IngressPart::Ingress, IngressPart::Dns, IngressPart::DnsV6] {
            delete_part(ctx, ingress, &part)?;
        }
        delete_certificate(ctx, ingress)?;
        Ok(Outcome::await_change())
    }
}

fn apply_dns(ctx: &Context, ingress: &IngressResource) -> Result<(), Failure> {
    let records = find_records(ctx, ingress)?;
    let main = records.main.as_ref().map(|(kind, values)| (*kind, &values[..]));
    let v6 = (!records.v6.is_empty()).then_some(("AAAA", &records.v6[..]));
    let mut applied = Vec::new();
    for (part, content) in [(IngressPart::Dns, main), (IngressPart::DnsV6, v6)] {
        let (Some(dns), Some(content)) = (&ingress.spec.dns, content) else {
            delete_part(ctx, ingress, &part)?;
            continue;
        };
        let record = desired::build_record(ingress, dns, &part, content);
        part::apply(ctx, ingress, &part, &record, "DnsNotReady")?;
        applied.push(part.reference(ingress));
    }
    for record in applied {
        ctx.require_condition(&record, "Ready", ConditionStatus::True)
            .reason("DnsNotReady")?;
    }
    Ok(())
}

/// The DNS records that the host needs.
fn find_records(ctx: &Context, ingress: &IngressResource) -> Result<Records, Failure> {
    let Some(dns) = &ingress.spec.dns else {
        return Ok(Records::new(Vec::new(), Vec::new()));
    };
    let target = &dns.target;
    let Some(service) = &target.service_ref else {
        let hostnames = target.hostname.clone().into_iter().collect();
        return Ok(Records::new(target.addresses.clone(), hostnames));
    };
    let namespace = service.namespace.as_deref().unwrap_or(ingress.namespace());
    let reference = gvk("", "v1", "Service").named(namespace, &service.name);
    let found = ctx
        .get_json(&reference)
        .reason("DnsNotReady")?
        .unwrap_or_default();
    let entries = found["status"]["loadBalancer"]["ingress"].as_array();
    let read_texts = |field: &str| -> Vec<String> {
        let entries = entries.into_iter().flatten();
        entries
            .filter_map(|entry| entry[field].as_str().map(str::to_owned))
            .collect()
    };
    let records = Records::new(read_texts("ip"), read_texts("hostname"));
    if records.main.is_none() && records.v6.is_empty() {
        let name = &service.name;
        let message = format!("Service {namespace}/{name} has no address of a load balancer yet.");
        return Err(Failure::wait("DnsNotReady", message));
    }
    Ok(records)
}

/// Claims the Secret of the certificate by creating it, so that neither cert-manager writes into one of another user, nor this
/// object deletes it.
fn claim_secret(ctx: &Context, ingress: &IngressResource, name: &str) -> Result<(), Failure> {
    let part = IngressPart::Secret(name.to_owned());
    let reason = "CertificateNotReady";
    let live = ctx.get_metadata(&part.reference(ingress)).reason(reason)?;
    let is_claimed = match live {
        Some(live) => part.is_owned(ingress, &live),
        None => match ctx.create(&desired::build_secret(ingress, name), true) {
            Ok(_) => true,
            Err(Error::Conflict(_)) => false,
            Err(error) => return Err(error).reason(reason),
        },
    };
    if is_claimed {
        return Ok(());
    }
    let message = format!(
        "Secret {name} exists already and is not of this object: set spec.certificate.secretName to another name, or \
         delete it."
    );
    // It may be deleted, or be one of a former version that cert-manager has just created anew.
    Err(Failure::retry("NotClaimed", message))
}

fn apply_certificate(ctx: &Context, ingress: &IngressResource, secret: &str) -> Result<(), Failure> {
    if ingress.status.certificate_secret.is_none() {
        let claim = json!({ "certificateSecret": secret });
        ctx.checkpoint(&claim).reason("CertificateNotReady")?;
    }
    claim_secret(ctx, ingress, secret)?;
    let certificate = desired::build_certificate(ingress, secret);
    part::apply(
        ctx,
        ingress,
        &IngressPart::Certificate,
        &certificate,
        "CertificateNotReady",
    )?;
    ctx.require_condition(
        &IngressPart::Certificate.reference(ingress),
        "Ready",
        ConditionStatus::True,
    )
    .reason("CertificateNotReady")?;
    Ok(())
}

/// Deletes a part that this object has made, and waits until it is gone.
fn delete_part(ctx: &Context, ingress: &IngressResource, part: &IngressPart) -> Result<(), Failure> {
    if part::delete(ctx, ingress, part)? {
        return Ok(());
    }
    let reason = part.remaining_reason();
    // What a Secret contains is not read.
    let object = match part {
        IngressPart::Secret(_) => None,
        _ => ctx.get_json(&part.reference(ingress)).reason(reason)?,
    };
    let message = describe_deletion(part.kind(), &part.name(ingress), &object.unwrap_or_default());
    Err(Failure::wait(reason, message))
}

/// Deletes the certificate, and then its Secret, which cert-manager would write again, and leaves behind.
fn delete_certificate(ctx: &Context, ingress: &IngressResource) -> Result<(), Failure> {
    delete_part(ctx, ingress, &IngressPart::Certificate)?;
    match &ingress.status.certificate_secret {
        Some(secret) => delete_part(ctx, ingress, &IngressPart::Secret(secret.clone())),
        None => Ok(()),
    }
}

ostler_sdk::plugin!(IngressResources);
