//! Reconciles `steps.ostler.dev/v1alpha1` Step: one pod per step, followed to its end.

pub mod observe;
pub mod pod;
pub mod settings;

mod finish;
mod inputs;
mod limit;
mod log;
mod refusal;
mod release;
mod rerun;
mod validate;

use ostler_sdk::{
    DeleteOptions, OWNER_UID_LABEL, ObjectRef, Preconditions, Resolution, Selection, duration, from_rfc3339,
    prelude::*, rfc3339, serde_json::Value,
};
use steps_api::{PodState, Step, StepPhase, StepSpec, StepStatus};
use steps_protocol::{INPUTS_ANNOTATION, InputSource};

use crate::{
    inputs::StepInputs,
    observe::{Observation, observe, observe_missing, stop_deadline},
    pod::{build_pod, encode_sources, pod_name},
    settings::StepSettings,
};

/// Key of the artifacts' Secret.
const SECRET_KEY: &str = "key";

/// Time for which a deleted pod may stay, in seconds: on a node that is gone it stays until an administrator removes that.
const MAX_DELETION_SECONDS: u64 = 120;

/// Reconciles Steps.
pub struct Steps;

impl Reconciler for Steps {
    type Spec = StepSpec;
    const FINALIZER: Option<&'static str> = Some("steps.ostler.dev/step");

    fn reconcile(&self, ctx: &Context, step: &Step) -> Result<Outcome, Failure> {
        if step.status.phase.is_final() {
            return finish::retain(ctx, step);
        }
        validate::validate(step)?;
        let mut status = step.status.clone();
        status.attempt = status.attempt.max(1);
        let Some(live) = find_pod(ctx, step, &status)? else {
            if status.pod_uid.is_some() {
                status.pod_state = Some(PodState::Gone);
                return end(ctx, step, status, &observe_missing());
            }
            return create(ctx, step, status);
        };
        if !is_owned(step, &live) {
            let message = format!(
                "Pod {} exists already and is not of this step: delete it, or give the step another name.",
                pod_name(step, status.attempt)
            );
            return Err(Failure::terminal("NotClaimed", message));
        }
        follow(ctx, step, status, &live)
    }

    fn cleanup(&self, ctx: &Context, step: &Step) -> Result<Outcome, Failure> {
        let mut status = step.status.clone();
        let attempt = status.attempt.max(1);
        status.attempt = attempt;
        let Some(live) = find_pod(ctx, step, &status)?.filter(|live| is_owned(step, live)) else {
            return Ok(Outcome::await_change());
        };
        status.pod_state = Some(PodState::Destroying);
        delete_pod(ctx, step, attempt, &live)?;
        let Some(left) = read_pod(ctx, step, attempt, false)? else {
            return Ok(Outcome::await_change());
        };
        if abandon_time(&left).is_some_and(|time| time <= ctx.now() / 1000) {
            warn_abandoned(ctx);
            return Ok(Outcome::await_change());
        }
        let message = format!("Waiting for the deletion of Pod {}.", pod_name(step, attempt));
        Err(Failure::wait("PodRemains", message).status(&status))
    }
}

/// Time from which a deleted pod counts as gone although its node has not confirmed that, in seconds since the Unix epoch.
fn abandon_time(pod: &Value) -> Option<u64> {
    let deleted = pod["metadata"]["deletionTimestamp"]
        .as_str()
        .and_then(from_rfc3339)?;
    Some(deleted + MAX_DELETION_SECONDS)
}

fn warn_abandoned(ctx: &Context) {
    let note = "The pod is being deleted, but its node does not confirm that: remove the Node if it is gone.";
    ctx.warn("PodAbandoned", note);
}

/// The pod of an attempt.
fn pod_reference(step: &Step, attempt: i64) -> ObjectRef {
    gvk("", "v1", "Pod").named(step.namespace(), &pod_name(step, attempt))
}

/// Finds the pod of the current attempt. One that was created and is not in the cache is looked up at the API server: a watch
/// that is behind, as after a change of the leader, is no loss of the pod.
fn find_pod(ctx: &Context, step: &Step, status: &StepStatus) -> Result<Option<Value>, Failure> {
    let cached = read_pod(ctx, step, status.attempt, false)?;
    if cached.is_some() || status.pod_uid.is_none() {
        return Ok(cached);
    }
    read_pod(ctx, step, status.attempt, true)
}

/// Reads what a Step follows of the pod of an attempt.
fn read_pod(ctx: &Context, step: &Step, attempt: i64, live: bool) -> Result<Option<Value>, Failure> {
    read_pod_fields(ctx, step, attempt, live, &["metadata", "spec.nodeName", "status"])
}

/// Reads fields of the pod of an attempt, by the label of owned objects: a read by its name alone would watch all pods once
/// another client has created one of that name.
fn read_pod_fields(
    ctx: &Context,
    step: &Step,
    attempt: i64,
    live: bool,
    fields_read: &[&str],
) -> Result<Option<Value>, Failure> {
    let fields = format!("metadata.name={}", pod_name(step, attempt));
    let selection = Selection {
        namespace: Some(step.namespace()),
        labels: Some(OWNER_UID_LABEL),
        fields: Some(&fields),
        live,
        ..Selection::default()
    };
    let found = ctx
        .list_json(&gvk("", "v1", "Pod"), &selection, fields_read)
        .reason("PodUnknown")?;
    Ok(found.into_iter().next())
}

/// Returns whether a Step owns a pod.
fn is_owned(step: &Step, pod: &Value) -> bool {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == *step.metadata.uid))
}

/// Deletes a pod, unless it is being deleted.
fn delete_pod(ctx: &Context, step: &Step, attempt: i64, live: &Value) -> Result<(), Failure> {
    let metadata = &live["metadata"];
    if !metadata["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let options = DeleteOptions {
        preconditions: Preconditions {
            uid: metadata["uid"].as_str().map(Into::into),
            resource_version: None,
        },
        ..DeleteOptions::default()
    };
    match ctx.delete_with(&pod_reference(step, attempt), &options) {
        // Another pod of that name.
        Ok(()) | Err(Error::Conflict(_)) => Ok(()),
        Err(error) => Err(error).reason("PodRemains"),
    }
}

/// Creates the pod once its inputs are there. Whatever else it waits for has until the process must have started.
fn create(ctx: &Context, step: &Step, mut status: StepStatus) -> Result<Outcome, Failure> {
    let (inputs, since) = match inputs::resolve_inputs(ctx, step)? {
        StepInputs::Available(inputs) => (inputs.sources, inputs.since),
        StepInputs::Pending { message } => {
            let condition = Condition::new_false("Ready", "InputPending", message);
            return Ok(Outcome::await_change().with(condition).status(&status));
        }
        StepInputs::Missing { message } => {
            let deadline = StartDeadline::of(step, &status, 0);
            if deadline.has_passed(ctx) {
                return end_early(ctx, status, "InputMissing", &deadline.explain(&message));
            }
            let condition = Condition::new_false("Ready", "InputMissing", message);
            return Ok(deadline.await_start().with(condition).status(&status));
        }
        StepInputs::Failed { reason, message } => return end_early(ctx, status, reason, &message),
    };
    let settings: StepSettings = ctx.config()?;
    if let Some(waiting) = limit::acquire_permit(ctx, &settings, &mut status)? {
        return Ok(Outcome::await_change().with(waiting).status(&status));
    }
    let deadline = StartDeadline::of(step, &status, since);
    let failure = match create_pod(ctx, step, &settings, status.clone(), &inputs, &deadline) {
        Ok(created) => return Ok(created),
        Err(failure) => failure,
    };
    if failure.resolution != Resolution::Terminal && deadline.has_passed(ctx) {
        let message = deadline.explain(&failure.message);
        return end_early(ctx, status, &failure.reason, &message);
    }
    // Others may have better luck with it, in another namespace for example.
    if failure.resolution == Resolution::Wait {
        limit::release_permit(ctx, &settings);
    }
    Err(failure.status(&status))
}

fn create_pod(
    ctx: &Context,
    step: &Step,
    settings: &StepSettings,
    mut status: StepStatus,
    sources: &[InputSource],
    deadline: &StartDeadline<'_>,
) -> Result<Outcome, Failure> {
    if !step.spec.inputs.is_empty() || !step.spec.outputs.is_empty() {
        require_key(ctx, settings)?;
    }
    let desired = build_pod(step, status.attempt, settings, sources);
    let created = match ctx.create(&desired, true) {
        Ok(created) => created.json()?,
        // The pod of a reconcile whose end was lost is in the cache soon; a pod of another user has no label to read it by.
        Err(Error::Conflict(_)) => {
            let name = pod_name(step, status.attempt);
            let message = format!("Pod {name} exists already: if it is not of this step, delete it.");
            return Err(Failure::retry("PodExists", message));
        }
        Err(error) => return Err(refusal::classify_refusal(error)),
    };
    status.pod = Some(pod_name(step, status.attempt));
    status.pod_uid = created["metadata"]["uid"].as_str().map(Into::into);
    status.pod_state = Some(PodState::Created);
    status.pod_time = Some(rfc3339(ctx.now() / 1000));
    ctx.event(
        "PodCreated",
        &format!("Created Pod {}.", pod_name(step, status.attempt)),
    );
    let condition = Condition::new_false("Ready", "Starting", "The pod is being started.");
    Ok(deadline.await_start().with(condition).status(&status))
}

fn require_key(ctx: &Context, settings: &StepSettings) -> Result<(), Failure> {
    let name = &settings.key_secret;
    if ctx
        .secret_digest(name, SECRET_KEY)
        .reason("ArtifactKeyMissing")?
        .is_some()
    {
        return Ok(());
    }
    let message = format!(
        "Secret {name} with the key of the artifacts is missing: kubectl create secret generic {name} \
         --from-literal=key=$(openssl rand -hex 32)"
    );
    Err(Failure::wait("ArtifactKeyMissing", message))
}

/// The time at which the process must have started. It counts from what the Step does not have to wait for any more: its creation,
/// the end of the last producer, the beginning of the attempt, the permit for a pod.
struct StartDeadline<'a> {
    timeout: &'a str,
    /// In seconds since the Unix epoch.
    time: Option<u64>,
}

impl<'a> StartDeadline<'a> {
    /// The deadline of a Step whose inputs are available since this time, in seconds since the Unix epoch.
    fn of(step: &'a Step, status: &StepStatus, inputs_since: u64) -> Self {
        let timeout = step.spec.start_timeout.as_str();
        let times = [
            step.metadata.creation_timestamp.as_deref(),
            status.attempt_time.as_deref(),
            status.permit_time.as_deref(),
        ];
        let begun = times.into_iter().flatten().filter_map(from_rfc3339).max();
        let seconds = duration(timeout).map(|milliseconds| milliseconds.div_ceil(1000));
        Self {
            timeout,
            time: begun
                .zip(seconds)
                .map(|(begun, seconds)| begun.max(inputs_since) + seconds),
        }
    }

    fn has_passed(&self, ctx: &Context) -> bool {
        self.time.is_some_and(|time| time <= ctx.now() / 1000)
    }

    /// The message of a Step that has waited for this until the deadline.
    fn explain(&self, cause: &str) -> String {
        format!("The process did not start within {}: {cause}", self.timeout)
    }

    /// The outcome that looks again at the deadline.
    fn await_start(&self) -> Outcome {
        self.time
            .map_or_else(Outcome::await_change, |time| Outcome::at(time * 1000))
    }
}

/// Follows a pod to the end of its process. A reconcile that ends the Step holds no producers, which releases them.
fn follow(ctx: &Context, step: &Step, mut status: StepStatus, live: &Value) -> Result<Outcome, Failure> {
    let observed = observe(live, ctx.now() / 1000);
    status.pod = Some(pod_name(step, status.attempt));
    status.pod_uid = live["metadata"]["uid"].as_str().map(Into::into);
    status.node = live["spec"]["nodeName"].as_str().map(Into::into);
    status.phase = observed.phase;
    status.start_time = observed.start_time.map(rfc3339);
    if status.pod_time.is_none() {
        status.pod_time = live["metadata"]["creationTimestamp"].as_str().map(Into::into);
    }
    if observed.phase.is_final() {
        finish::record_end(&mut status, &step.spec, live, &observed);
        return end(ctx, step, status, &observed);
    }
    let settings: StepSettings = ctx.config()?;
    limit::keep_permit(ctx, &settings)?;
    let condition = Condition::new_false("Ready", observed.reason, &observed.message);
    if observed.phase == StepPhase::Running {
        status.pod_state = Some(PodState::Running);
        inputs::resolve_inputs(ctx, step)?;
        // A node that does not answer has no log to read.
        let read = match observed.reason {
            "Running" => log::read_log(ctx, step, &mut status, &settings),
            _ => None,
        };
        // A node may be lost while it ends the pod.
        let stop = stop_deadline(live).map(|deadline| deadline * 1000);
        let next = [read, stop].into_iter().flatten().min();
        let next = next.map_or_else(Outcome::await_change, Outcome::at);
        return Ok(next.with(condition).status(&status));
    }
    status.pod_state = Some(PodState::Created);
    let inputs = match inputs::resolve_inputs(ctx, step)? {
        StepInputs::Available(inputs) => Some(inputs),
        // It may come back until the fetcher gives up.
        StepInputs::Pending { .. } | StepInputs::Missing { .. } => None,
        StepInputs::Failed { reason, message } => return end_early(ctx, status, reason, &message),
    };
    let since = inputs.as_ref().map_or(0, |inputs| inputs.since);
    let deadline = StartDeadline::of(step, &status, since);
    if deadline.has_passed(ctx) {
        let reason = match observed.reason {
            "Starting" | "Fetching" => "StartTimeout",
            cause => cause,
        };
        let message = deadline.explain(&observed.message);
        return end_early(ctx, status, reason, &message);
    }
    if let Some(inputs) = inputs {
        update_sources(ctx, step, &status, live, &encode_sources(&inputs.sources))?;
    }
    Ok(deadline.await_start().with(condition).status(&status))
}

/// Gives the fetcher the current sources: the pod of a producer may have been replaced.
fn update_sources(
    ctx: &Context,
    step: &Step,
    status: &StepStatus,
    live: &Value,
    sources: &str,
) -> Result<(), Failure> {
    if step.spec.inputs.is_empty() || live["metadata"]["annotations"][INPUTS_ANNOTATION] == *sources {
        return Ok(());
    }
    let patch = json!({ "metadata": { "annotations": { INPUTS_ANNOTATION: sources } } });
    let uid = live["metadata"]["uid"].as_str().unwrap_or_default();
    ctx.patch(
        &pod_reference(step, status.attempt),
        &patch,
        &Preconditions::uid(uid),
    )
    .reason("InputsNotUpdated")?;
    Ok(())
}

/// Ends a Step without a result of its process, or begins the next attempt.
fn end(ctx: &Context, step: &Step, status: StepStatus, observed: &Observation) -> Result<Outcome, Failure> {
    if observed.is_lost && rerun::may_rerun(&step.spec, &status) {
        ctx.warn(observed.reason, &format!("{} It runs again.", observed.message));
        let next = rerun::begin_attempt(&status, ctx.now() / 1000);
        // An evicted pod has ended, but the streamer of one that was stopped has not.
        if let Some(live) = read_pod(ctx, step, status.attempt, false)?.filter(|live| is_owned(step, live)) {
            delete_pod(ctx, step, status.attempt, &live)?;
        }
        // The next attempt needs them, too.
        inputs::resolve_inputs(ctx, step)?;
        // Written before the next pod is created, so that its number is used once.
        let condition = Condition::new_false("Ready", "Rerun", &observed.message);
        return Ok(Outcome::after(1).with(condition).status(&next));
    }
    finish::finish(ctx, status, observed.phase, observed.reason, &observed.message)
}

fn end_early(ctx: &Context, status: StepStatus, reason: &str, message: &str) -> Result<Outcome, Failure> {
    finish::finish(ctx, status, StepPhase::Errored, reason, message)
}

ostler_sdk::plugin!(Steps);
