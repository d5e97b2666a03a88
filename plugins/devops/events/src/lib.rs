//! Handles the messages of the DevOps pack: `DevOpsInitialize` becomes a DevOpsProject, and `DevOpsReconcile` a
//! DeploymentRecord that is named by the event's id.
//!
//! A deployment is created and never changed, so that a message that is delivered again has no effect: the conflict means that it
//! was handled before. A project is applied: another event of it with another spec updates it, except what somebody else has
//! written. What can never be handled is rejected with the reason; everything else is delivered again.
//!
//! A handler reads nothing, so whether the project of a deployment exists is found out by the DeploymentRecord: it waits for
//! the settings, and reports a project that stays unknown as a failed deployment, in its status and its heartbeats.

use devops_api::{
    DEVOPS_INITIALIZE, DEVOPS_RECONCILE, DeploymentBuild, DeploymentIngress, DeploymentRecordSpec,
    DeploymentSync, DeploymentTimeouts, DevOpsInitialize, DevOpsProjectSpec, DevOpsReconcile,
    HeartbeatTarget, LocalReference, application_name,
};
use ostler_sdk::{ApplyOptions, Delivery, Disposition, api, prelude::*, serde::Serialize};

/// Version of the events that this plugin reads; an event without a version has this one.
const EVENT_VERSION: &str = "v1alpha1";
/// Header with the version of an event.
const VERSION_HEADER: &str = "version";
/// Limit of a message's body.
const MAX_BODY_BYTES: usize = 256 << 10;
/// Label of the objects that were created for an event; its value is the event's id.
const EVENT_LABEL: &str = "devops.ostler.dev/event-id";
/// Limit of a label's value, and so of an id.
const MAX_ID_LENGTH: usize = 63;
/// Seconds after which a deployment is cleaned up, unless the event has others.
const DEFAULT_TTL_SECONDS: i64 = 10_800;

/// The configuration of the plugin.
#[api]
pub struct EventsConfig {
    /// Namespace of the objects of an event that names none.
    pub namespace: Option<String>,
    /// Where the heartbeats of deployments are published to; without it, none are.
    pub heartbeat: Option<HeartbeatTarget>,
}

/// Handles events.
pub struct EventHandler;

impl MessageHandler for EventHandler {
    fn handle(&self, ctx: &Context, delivery: &Delivery) -> Result<Disposition, Error> {
        let config: EventsConfig = ctx.config().map_err(|failure| Error::Invalid(failure.message))?;
        let object = match read(delivery, &config) {
            Ok(object) => object,
            Err(reason) => return Ok(Disposition::Reject(reason)),
        };
        match write(ctx, &object) {
            Ok(()) => Ok(Disposition::Ack),
            // The namespace does not exist, the API server refuses the spec, or somebody else has written it.
            Err(error @ (Error::NotFound(_) | Error::Invalid(_) | Error::Conflict(_))) => {
                Ok(Disposition::Reject(object.describe_refusal(&error)))
            }
            Err(error) => Err(error),
        }
    }
}

/// An object to write.
struct Desired {
    api_version: String,
    kind: &'static str,
    namespace: String,
    name: String,
    id: String,
    spec: ostler_sdk::serde_json::Value,
}

/// Reads an event. The error is the reason of its rejection.
fn read(delivery: &Delivery, config: &EventsConfig) -> Result<Desired, String> {
    if delivery.body.len() > MAX_BODY_BYTES {
        let bytes = delivery.body.len();
        return Err(format!("The body has {bytes} bytes, more than {MAX_BODY_BYTES}."));
    }
    match delivery.properties.header(VERSION_HEADER) {
        None | Some(EVENT_VERSION) => {}
        Some(other) => {
            return Err(format!(
                "The version \"{other}\" is not supported; it must be {EVENT_VERSION}."
            ));
        }
    }
    let invalid = |error: Error| error.text();
    match delivery.properties.type_.as_deref() {
        Some(DEVOPS_INITIALIZE) => read_project(delivery.json().map_err(invalid)?, config),
        Some(DEVOPS_RECONCILE) => read_deployment(delivery.json().map_err(invalid)?, config),
        Some(other) => Err(format!(
            "The message type \"{other}\" is not known; it must be {DEVOPS_INITIALIZE} or {DEVOPS_RECONCILE}."
        )),
        None => Err("The message has no type.".into()),
    }
}

fn read_project(event: DevOpsInitialize, config: &EventsConfig) -> Result<Desired, String> {
    check_name("id", &event.id)?;
    check_name("project", &event.project)?;
    let namespace = choose_namespace(event.namespace, config)?;
    Ok(build::<DevOpsProjectSpec>(
        namespace,
        event.project,
        event.id,
        &event.spec,
    ))
}

fn read_deployment(event: DevOpsReconcile, config: &EventsConfig) -> Result<Desired, String> {
    check_name("id", &event.id)?;
    check_name("project", &event.project)?;
    check_name("environment", &event.environment)?;
    let namespace = choose_namespace(event.namespace, config)?;
    let setting_ref = LocalReference {
        name: event.project.clone(),
    };
    let build_spec = event.pipeline.map(|pipeline| DeploymentBuild {
        setting_ref: setting_ref.clone(),
        pipeline,
        parameters: event.parameters,
    });
    let sync = DeploymentSync {
        setting_ref,
        application: application_name(&event.project, &event.environment),
        revision: event.revision,
        keep_removed: false,
    };
    let spec = DeploymentRecordSpec {
        deployment_id: Some(event.id.clone()),
        project: Some(event.project),
        environment: event.environment,
        build: build_spec,
        sync,
        ingress: event.ingress.map(|template| DeploymentIngress { template }),
        heartbeat: config.heartbeat.clone(),
        ttl_seconds: event.ttl_seconds.unwrap_or(DEFAULT_TTL_SECONDS),
        timeouts: DeploymentTimeouts::default(),
    };
    Ok(build::<DeploymentRecordSpec>(
        namespace,
        event.id.clone(),
        event.id,
        &spec,
    ))
}

fn build<S: KindSpec>(namespace: String, name: String, id: String, spec: &impl Serialize) -> Desired {
    Desired {
        api_version: S::gvk().api_version(),
        kind: S::KIND,
        namespace,
        name,
        id,
        spec: json!(spec),
    }
}

fn choose_namespace(namespace: Option<String>, config: &EventsConfig) -> Result<String, String> {
    let namespace = namespace.or_else(|| config.namespace.clone());
    let missing = "The event has no namespace, and the configuration of the plugin has none either.";
    let namespace = namespace.ok_or(missing)?;
    check_name("namespace", &namespace)?;
    Ok(namespace)
}

/// Checks that a text can be the name of an object and the value of a label (RFC 1123).
fn check_name(field: &str, name: &str) -> Result<(), String> {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let is_name = (1..=MAX_ID_LENGTH).contains(&bytes.len())
        && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
        && bytes.first().is_some_and(is_alphanumeric)
        && bytes.last().is_some_and(is_alphanumeric);
    match is_name {
        true => Ok(()),
        false => Err(format!(
            "{field} \"{name}\" is not a name: at most {MAX_ID_LENGTH} lower-case letters, digits and hyphens."
        )),
    }
}

impl Desired {
    fn describe_refusal(&self, error: &Error) -> String {
        let Self {
            kind,
            namespace,
            name,
            ..
        } = self;
        let remedy = match error {
            Error::Conflict(_) => {
                " Somebody else has written it: edit it there, or delete it and publish the event again."
            }
            _ => "",
        };
        format!("{kind} {namespace}/{name}: {}{remedy}", error.text())
    }
}

/// Writes the object of an event.
fn write(ctx: &Context, object: &Desired) -> Result<(), Error> {
    let Desired {
        kind,
        namespace,
        name,
        id,
        ..
    } = object;
    let manifest = json!({
        "apiVersion": object.api_version,
        "kind": kind,
        "metadata": { "name": name, "namespace": namespace, "labels": { (EVENT_LABEL): id } },
        "spec": object.spec,
    });
    if *kind == DevOpsProjectSpec::KIND {
        // What a person has written is not overruled.
        let options = ApplyOptions {
            force: false,
            ..ApplyOptions::default()
        };
        return ctx.apply_with(&manifest, &options).map(|_| ());
    }
    match ctx.create(&manifest, false) {
        Ok(_) => {
            ctx.counter("devops_events_created", 1);
            Ok(())
        }
        Err(Error::Conflict(_)) => {
            ctx.info(&format!(
                "The {kind} {namespace}/{name} exists: event {id} was handled before."
            ));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

ostler_sdk::plugin!(messages = EventHandler);
