//! Reconciles `devops.ostler.dev/v1alpha1` IngressResource: DNS record, certificate, Ingress, and then the URL.

mod desired;
mod part;

use devops_api::{IngressResource, IngressResourceSpec, IngressResourceStatus};
use ostler_sdk::{ConditionStatus, prelude::*, serde_json::Value};

use crate::{desired::secret_name, part::Part};

/// Key of the certificate in its Secret.
const CERTIFICATE_KEY: &str = "tls.crt";

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
            Part::Ingress,
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
        for part in [Part::Ingress, Part::Dns] {
            delete_part(ctx, ingress, part)?;
        }
        delete_certificate(ctx, ingress)?;
        Ok(Outcome::await_change())
    }
}

fn apply_dns(ctx: &Context, ingress: &IngressResource) -> Result<(), Failure> {
    let Some(dns) = &ingress.spec.dns else {
        return delete_part(ctx, ingress, Part::Dns);
    };
    let target = &dns.target;
    let (kind, values) = if let Some(hostname) = &target.hostname {
        ("CNAME", vec![hostname.clone()])
    } else if let Some(service) = &target.service_ref {
        let namespace = service.namespace.as_deref().unwrap_or(ingress.namespace());
        let reference = gvk("", "v1", "Service").named(namespace, &service.name);
        let found = ctx.get_json(&reference).reason("DnsNotReady")?;
        read_load_balancer(found.as_ref()).ok_or_else(|| {
            let message = format!(
                "Service {namespace}/{} has no address of a load balancer yet.",
                service.name
            );
            Failure::wait("DnsNotReady", message)
        })?
    } else {
        ("A", target.addresses.clone())
    };
    let record = desired::build_record(ingress, dns, kind, &values);
    part::apply(ctx, ingress, Part::Dns, &record, "DnsNotReady")?;
    ctx.require_condition(&Part::Dns.reference(ingress), "Ready", ConditionStatus::True)
        .reason("DnsNotReady")?;
    Ok(())
}

/// Type and values of the record for the load balancer of a Service: its IPv4 addresses, or else its host name.
fn read_load_balancer(service: Option<&Value>) -> Option<(&'static str, Vec<String>)> {
    let entries = service?["status"]["loadBalancer"]["ingress"].as_array()?;
    let texts = |field: &str| -> Vec<String> {
        entries
            .iter()
            .filter_map(|e| Some(e[field].as_str()?.to_owned()))
            .collect()
    };
    let addresses: Vec<String> = texts("ip").into_iter().filter(|ip| !ip.contains(':')).collect();
    if !addresses.is_empty() {
        return Some(("A", addresses));
    }
    let hostname = texts("hostname").into_iter().next()?;
    Some(("CNAME", vec![hostname]))
}

fn apply_certificate(ctx: &Context, ingress: &IngressResource, secret: &str) -> Result<(), Failure> {
    if ingress.status.certificate_secret.is_none() {
        // cert-manager would overwrite a Secret of this name, and this object would delete it.
        let exists = ctx
            .secret_digest(secret, CERTIFICATE_KEY)
            .reason("CertificateNotReady")?;
        if exists.is_some() {
            let message = format!(
                "Secret {secret} exists already and is not of this object: set spec.certificate.secretName to another \
                 name, or delete it."
            );
            return Err(Failure::terminal("NotClaimed", message));
        }
        let claim = json!({ "certificateSecret": secret });
        ctx.checkpoint(&claim).reason("CertificateNotReady")?;
    }
    let certificate = desired::build_certificate(ingress, secret);
    part::apply(
        ctx,
        ingress,
        Part::Certificate,
        &certificate,
        "CertificateNotReady",
    )?;
    ctx.require_condition(
        &Part::Certificate.reference(ingress),
        "Ready",
        ConditionStatus::True,
    )
    .reason("CertificateNotReady")?;
    Ok(())
}

/// Deletes a part that this object has applied, and waits until it is gone.
fn delete_part(ctx: &Context, ingress: &IngressResource, part: Part) -> Result<(), Failure> {
    if part::delete(ctx, ingress, part)? {
        return Ok(());
    }
    let message = format!("Waiting for the deletion of {} {}.", part.kind(), ingress.name());
    Err(Failure::wait(part.remaining_reason(), message))
}

/// Deletes the certificate, and then its Secret, which cert-manager leaves behind.
fn delete_certificate(ctx: &Context, ingress: &IngressResource) -> Result<(), Failure> {
    delete_part(ctx, ingress, Part::Certificate)?;
    let Some(secret) = &ingress.status.certificate_secret else {
        return Ok(());
    };
    let reference = gvk("", "v1", "Secret").named(ingress.namespace(), secret);
    ctx.delete(&reference)
        .reason(Part::Certificate.remaining_reason())
}

ostler_sdk::plugin!(IngressResources);
