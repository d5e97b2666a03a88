//! Reconciles `concourse-ci.org/v1alpha1` Worker: lets it land, or retire and
//! be forgotten. Deleting the object does nothing to the worker: it was not the
//! object that made it, and no request brings one that leaves back to work.

mod lifecycle;

use concourse_api::{
    InstanceSpec, Lifecycle, Worker, WorkerSpec, WorkerStatus, escape, first_line, namespace_allowed,
    refused, suspended,
};
use lifecycle::{Step, step};
use ostler_sdk::{Upstream, prelude::*, rfc3339, serde_json::Value};

/// How often a worker is looked at that is as wanted, and one that is on its way.
const POLL: u64 = 120_000;
const SOON: u64 = 5_000;
/// How often one is looked at that gets nowhere by itself.
const STUCK: u64 = 30_000;

const WORKERS: &str = "/api/v1/workers";
/// The list is the same for all Workers of an Instance, so each does with what another has got. One that waits for a
/// change wants to see it.
const SHARED: &str = "max-age=120";
const RECENT: &str = "max-age=2";
const NOW: &str = "max-age=0";

/// Reconciles Workers.
pub struct Workers;

impl Reconciler for Workers {
    type Spec = WorkerSpec;

    fn reconcile(&self, ctx: &Context, worker: &Worker) -> Result<Outcome, Failure> {
        if worker.spec.suspend {
            return Ok(suspended());
        }
        let reference = &worker.spec.instance_ref;
        let at = (reference.namespace_or(worker.namespace()), &*reference.name);
        let instance = ctx
            .require_ready_json(&InstanceSpec::reference(at.0, at.1))
            .reason("InstanceNotReady")?;
        namespace_allowed(&instance, at, worker.namespace())?;
        let concourse = ctx.upstream_in(at.0, at.1);
        let name = worker_name(worker);

        let wanted = worker.spec.lifecycle;
        let before = worker.status.phase.as_deref();
        let age = match before {
            Some(phase) if step(wanted, phase) == Step::Done => SHARED,
            _ => RECENT,
        };
        let mut found = find(&concourse, name, age)?;
        let verb = match step(wanted, phase(&found)) {
            Step::Land => "land",
            Step::Retire => "retire",
            Step::Prune => "prune",
            _ => "",
        };
        if !verb.is_empty() {
            change(ctx, &concourse, &found, verb)?;
            found = find(&concourse, name, NOW)?;
        }
        let status = describe(name, &found);
        let phase = phase(&found);
        let stalled = phase == "stalled";
        if stalled && before != Some(phase) {
            ctx.warn("Stalled", "The worker does not answer Concourse any more.");
        }
        let (ready, next) = match step(wanted, phase) {
            Step::Done if wanted == Lifecycle::Removed => (
                Condition::new_true("Ready", "Removed", "Concourse has no worker of this name."),
                Outcome::poll(POLL),
            ),
            Step::Done => (
                Condition::new_true("Ready", "Ready", ["The worker is ", phase, "."].concat()),
                Outcome::poll(POLL),
            ),
            Step::NotFound => {
                let message = "Concourse has no worker of this name; waiting for it to register.";
                return Err(Failure::wait("WorkerNotFound", message).status(&status));
            }
            Step::OutOfService => {
                let message = [
                    "The worker is ",
                    phase,
                    ", and only starting its process again brings it back to work.",
                ];
                let condition = Condition::new_false("Ready", "NotRunning", message.concat());
                (condition, Outcome::poll(POLL))
            }
            _ => {
                let message = ["The worker is ", phase, "; waiting for it to get on."].concat();
                let condition = Condition::new_false("Ready", "TransitionPending", message);
                let stuck =
                    matches!(step(wanted, phase), Step::Wait) && !matches!(phase, "landing" | "retiring");
                (condition, Outcome::after(if stuck { STUCK } else { SOON }))
            }
        };
        let transition = match step(wanted, phase) {
            Step::Done | Step::OutOfService => {
                Condition::new_false("StateTransitioning", "Converged", "Nothing is under way.")
            }
            _ => {
                let message = ["The worker is ", phase, "."].concat();
                Condition::new_true("StateTransitioning", "TransitionPending", message)
            }
        };
        let stalled = match stalled {
            true => Condition::new_true("Stalled", "Stalled", "The worker does not answer Concourse."),
            false => Condition::new_false("Stalled", "NotStalled", "The worker is not stalled."),
        };
        Ok(next.with(ready).with(stalled).with(transition).status(&status))
    }
}

fn worker_name(worker: &Worker) -> &str {
    worker.spec.worker_name.as_deref().unwrap_or(worker.name())
}

/// The worker in Concourse's list, which is all there is to ask; null when it is not there.
fn find(concourse: &Upstream, name: &str, age: &str) -> Result<Value, Failure> {
    let request = concourse.get(WORKERS).header("Cache-Control", age);
    let response = request.send().reason("ClientFailed")?;
    if response.status() != 200 {
        return Err(refused(&response, "list the workers", "ListFailed"));
    }
    let mut all = response.value().reason("ListFailed")?;
    let all = all.as_array_mut().into_iter().flatten();
    let mut ours = all.filter(|worker| worker["name"] == name);
    Ok(ours.next().map(Value::take).unwrap_or_default())
}

fn phase(worker: &Value) -> &str {
    worker["state"].as_str().unwrap_or(lifecycle::MISSING)
}

/// Asks Concourse to let the worker go.
fn change(ctx: &Context, concourse: &Upstream, worker: &Value, verb: &str) -> Result<(), Failure> {
    let name = worker["name"].as_str().unwrap_or_default();
    let path = [WORKERS, "/", &escape(name), "/", verb].concat();
    // Newer servers want it, and older ones don't look.
    let body = json!({ "team": worker["team"].as_str().unwrap_or_default() });
    let response = concourse
        .put(path)
        .json(&body)
        .send()
        .reason("TransitionFailed")?;
    let (begun, failed) = match verb {
        "land" => ("Draining", "DrainFailed"),
        _ => ("Removing", "PruneFailed"),
    };
    match response.status() {
        200 => {
            ctx.event(begun, &["Concourse is asked to ", verb, " the worker."].concat());
            return Ok(());
        }
        // It is gone already.
        404 => return Ok(()),
        _ => {}
    }
    let failure = match response.status() {
        // It has another state or team than a moment ago: what is right now is seen next time.
        400 => {
            let body = response.value().unwrap_or_default();
            let why = body["stderr"]
                .as_str()
                .map_or_else(|| first_line(&response.text()), ToOwned::to_owned);
            let message = ["Concourse refused to ", verb, " the worker: ", &why].concat();
            Failure::retry("TransitionFailed", message)
        }
        _ => refused(&response, &[verb, " the worker"].concat(), "TransitionFailed"),
    };
    ctx.warn(failed, &failure.message);
    Err(failure)
}

fn describe(name: &str, worker: &Value) -> WorkerStatus {
    let text = |field: &str| worker[field].as_str().filter(|text| !text.is_empty());
    let owned = |field: &str| text(field).map(ToOwned::to_owned);
    let list = |field: &str| worker[field].as_array().into_iter().flatten();
    WorkerStatus {
        resolved_name: Some(name.to_owned()),
        phase: Some(phase(worker).to_owned()),
        platform: owned("platform"),
        tags: list("tags")
            .filter_map(Value::as_str)
            .map(ToOwned::to_owned)
            .collect(),
        active_containers: worker["active_containers"].as_i64(),
        active_volumes: worker["active_volumes"].as_i64(),
        active_tasks: worker["active_tasks"].as_i64(),
        version: owned("version"),
        start_time: worker["start_time"].as_u64().map(rfc3339),
        ephemeral: worker["ephemeral"].as_bool(),
        team: owned("team"),
        resource_types: list("resource_types")
            .filter_map(|kind| kind["type"].as_str())
            .map(ToOwned::to_owned)
            .collect(),
    }
}

ostler_sdk::plugin!(Workers);
