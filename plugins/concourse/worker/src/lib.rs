//! Reconciles `concourse-ci.org/v1alpha1` Worker: drains or removes it.
//!
//! Deleting the object leaves the worker alone: the object did not create it, and no request returns a worker that
//! leaves to service.

mod lifecycle;

use concourse_api::{
    ConcourseOperation, Instance, InstanceSpec, NamespacedName, Worker, WorkerLifecycle, WorkerSpec,
    WorkerStatus, check_namespace_allowed, concourse_name, concourse_status, encode_segment, rest,
    suspended_outcome,
};
use lifecycle::{LifecycleStep, MISSING_PHASE, WorkerTransition, next_step};
use ostler_sdk::{Response, Upstream, prelude::*, rfc3339};

/// Interval of polling a worker that has the desired state.
const POLL_INTERVAL_MS: u64 = 120_000;
/// Interval of polling a worker in transition.
const TRANSITION_INTERVAL_MS: u64 = 5_000;
/// Interval of polling a worker that makes no progress by itself.
const STUCK_INTERVAL_MS: u64 = 30_000;

const WORKERS_PATH: &str = "/api/v1/workers";

const LIST_WORKERS: ConcourseOperation = ConcourseOperation::new("list the workers", "ListFailed");

/// `Cache-Control` of a request for the list, which is the same for all Workers of an Instance: as long as none waits
/// for a change, they share a cached one.
const SHARED_LIST: &str = "max-age=120";
/// `Cache-Control` for a worker that is expected to change.
const RECENT_LIST: &str = "max-age=2";
/// `Cache-Control` after a request that changed a worker.
const UNCACHED_LIST: &str = "max-age=0";

/// Reconciles Workers.
pub struct Workers;

impl Reconciler for Workers {
    type Spec = WorkerSpec;

    fn reconcile(&self, ctx: &Context, worker: &Worker) -> Result<Outcome, Failure> {
        if worker.spec.suspend {
            return Ok(suspended_outcome());
        }
        let instance = dereference(ctx, worker)?;
        check_namespace_allowed(&instance, worker.namespace())?;
        let concourse = ctx.upstream_in(instance.namespace(), instance.name());
        let found = apply(ctx, &concourse, worker)?;
        update_status(ctx, worker, found.as_ref())
    }
}

/// Dereferences the Instance, which has to be Ready.
fn dereference(ctx: &Context, worker: &Worker) -> Result<Instance, Failure> {
    let NamespacedName { namespace, name } = worker.spec.instance_ref.resolve(worker.namespace());
    ctx.require_ready::<InstanceSpec>(namespace, name)
        .reason("InstanceNotReady")
}

/// Requests the transition to the desired state, if one is due. Returns the worker as Concourse shows it then.
fn apply(
    ctx: &Context,
    concourse: &Upstream,
    worker: &Worker,
) -> Result<Option<rest::WorkerResponse>, Failure> {
    let name = concourse_name(worker);
    let desired = worker.spec.lifecycle;
    let last_phase = worker.status.phase.as_deref();
    let age = match last_phase {
        Some(phase) if next_step(desired, phase) == LifecycleStep::Done => SHARED_LIST,
        _ => RECENT_LIST,
    };
    let found = find_worker(concourse, name, age)?;
    match (&found, next_step(desired, phase_of(found.as_ref()))) {
        (Some(found), LifecycleStep::Send(request)) => {
            send_transition(ctx, concourse, found, request)?;
            find_worker(concourse, name, UNCACHED_LIST)
        }
        _ => Ok(found),
    }
}

/// Finds a worker in the list, since Concourse has no request for a single one.
fn find_worker(concourse: &Upstream, name: &str, age: &str) -> Result<Option<rest::WorkerResponse>, Failure> {
    let request = concourse.get(WORKERS_PATH).header("Cache-Control", age);
    let response = request.send().reason("ClientFailed")?;
    let workers: Vec<rest::WorkerResponse> = LIST_WORKERS.read_list(Ok(response))?;
    Ok(workers.into_iter().find(|worker| worker.name == name))
}

fn phase_of(worker: Option<&rest::WorkerResponse>) -> &str {
    worker
        .and_then(|worker| worker.state.as_deref())
        .unwrap_or(MISSING_PHASE)
}

/// Asks Concourse for a transition of the worker.
fn send_transition(
    ctx: &Context,
    concourse: &Upstream,
    worker: &rest::WorkerResponse,
    request: WorkerTransition,
) -> Result<(), Failure> {
    let verb = request.verb();
    let (operation, requested, failed) = match request {
        WorkerTransition::Land => (
            ConcourseOperation::new("land the worker", "TransitionFailed"),
            "Draining",
            "DrainFailed",
        ),
        WorkerTransition::Retire => (
            ConcourseOperation::new("retire the worker", "TransitionFailed"),
            "Removing",
            "PruneFailed",
        ),
        WorkerTransition::Prune => (
            ConcourseOperation::new("prune the worker", "TransitionFailed"),
            "Removing",
            "PruneFailed",
        ),
    };
    let path = format!("{WORKERS_PATH}/{}/{verb}", encode_segment(&worker.name));
    // Newer servers require the team, older ones ignore it.
    let body = json!({ "team": worker.team.as_deref().unwrap_or_default() });
    let response = concourse
        .put(path)
        .json(&body)
        .send()
        .reason(operation.reason())?;
    let failure = match concourse_status(&response) {
        Some(200) => {
            let note = format!("Requested Concourse to {verb} the worker.");
            ctx.event(requested, &note);
            return Ok(());
        }
        // The worker is gone already.
        Some(404) => return Ok(()),
        // The state or team of the worker has changed since the list was read; the next attempt sees the new one.
        Some(400) => {
            let cause = refusal_cause(&response);
            let message = format!("Concourse refused to {verb} the worker: {cause}");
            Failure::retry(operation.reason(), message)
        }
        _ => operation.failure(&response),
    };
    ctx.warn(failed, &failure.message);
    Err(failure)
}

fn refusal_cause(response: &Response) -> String {
    let body = response.value().unwrap_or_default();
    let stderr = body["stderr"].as_str().map(ToOwned::to_owned);
    stderr.unwrap_or_else(|| response.excerpt())
}

fn update_status(
    ctx: &Context,
    worker: &Worker,
    found: Option<&rest::WorkerResponse>,
) -> Result<Outcome, Failure> {
    let phase = phase_of(found);
    let is_stalled = phase == "stalled";
    if is_stalled && worker.status.phase.as_deref() != Some(phase) {
        ctx.warn("WorkerStalled", "The worker has stopped responding to Concourse.");
    }
    let status = build_status(concourse_name(worker), found);
    let step = next_step(worker.spec.lifecycle, phase);
    if step == LifecycleStep::NotFound {
        let message = "Concourse has no worker of this name; waiting for it to register.";
        return Err(Failure::wait("WorkerNotFound", message).status(&status));
    }
    let interval = match step {
        LifecycleStep::Wait if !matches!(phase, "landing" | "retiring") => Some(STUCK_INTERVAL_MS),
        LifecycleStep::Wait | LifecycleStep::Send(_) => Some(TRANSITION_INTERVAL_MS),
        _ => None,
    };
    let outcome = match interval {
        Some(interval) => Outcome::after(interval),
        None => Outcome::poll(POLL_INTERVAL_MS),
    };
    let stalled = if is_stalled {
        Condition::new_true(
            "WorkerStalled",
            "WorkerStalled",
            "The worker has stopped responding to Concourse.",
        )
    } else {
        Condition::new_false("WorkerStalled", "NotStalled", "The worker is not stalled.")
    };
    Ok(outcome
        .with(ready_condition(worker.spec.lifecycle, step, phase))
        .with(stalled)
        .with(transition_condition(step, phase))
        .status(&status))
}

fn ready_condition(desired: WorkerLifecycle, step: LifecycleStep, phase: &str) -> Condition {
    const CONDITION_TYPE: &str = "Ready";
    match step {
        LifecycleStep::Done if desired == WorkerLifecycle::Removed => {
            Condition::new_true(CONDITION_TYPE, "Removed", "Concourse has no worker of this name.")
        }
        LifecycleStep::Done => {
            Condition::new_true(CONDITION_TYPE, "Ready", format!("The worker is {phase}."))
        }
        LifecycleStep::OutOfService => {
            let message =
                format!("The worker is {phase}; only a restart of its process returns it to service.");
            Condition::new_false(CONDITION_TYPE, "NotRunning", message)
        }
        _ => {
            let message = format!("The worker is {phase}; waiting for its next state.");
            Condition::new_false(CONDITION_TYPE, "TransitionPending", message)
        }
    }
}

fn transition_condition(step: LifecycleStep, phase: &str) -> Condition {
    const CONDITION_TYPE: &str = "StateTransitioning";
    match step {
        LifecycleStep::Done | LifecycleStep::OutOfService => {
            Condition::new_false(CONDITION_TYPE, "Converged", "No transition is pending.")
        }
        _ => Condition::new_true(
            CONDITION_TYPE,
            "TransitionPending",
            format!("The worker is {phase}."),
        ),
    }
}

fn build_status(name: &str, found: Option<&rest::WorkerResponse>) -> WorkerStatus {
    let phase = Some(phase_of(found).to_owned());
    let resolved_name = Some(name.to_owned());
    let Some(worker) = found else {
        return WorkerStatus {
            resolved_name,
            phase,
            ..WorkerStatus::default()
        };
    };
    let non_empty = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    WorkerStatus {
        resolved_name,
        phase,
        platform: non_empty(&worker.platform),
        tags: worker.tags.clone(),
        active_containers: worker.active_containers,
        active_volumes: worker.active_volumes,
        active_tasks: worker.active_tasks,
        version: non_empty(&worker.version),
        start_time: worker.start_time.map(rfc3339),
        ephemeral: worker.ephemeral,
        team: non_empty(&worker.team),
        resource_types: worker.resource_types.clone(),
    }
}

ostler_sdk::plugin!(Workers);
