//! The inputs of a Step: its producers, held for as long as it needs them, and the sources of their artifacts.

use ostler_sdk::{from_rfc3339, prelude::*};
use steps_api::{PodLostPolicy, Step, StepArtifact, StepInput, StepPhase, StepSpec};
use steps_protocol::InputSource;

use crate::rerun::MAX_ATTEMPTS;

/// State of the inputs.
pub enum StepInputs {
    /// All artifacts can be fetched.
    Available(AvailableInputs),
    /// A producer has not ended, which its own time limits bound.
    Pending { message: String },
    /// A producer does not exist.
    Missing { message: String },
    /// An artifact will never come.
    Failed { reason: &'static str, message: String },
}

/// Inputs whose artifacts can be fetched.
#[derive(Default)]
pub struct AvailableInputs {
    /// Where to fetch them.
    pub sources: Vec<InputSource>,
    /// End of the last producer, in seconds since the Unix epoch; zero without inputs.
    pub since: u64,
}

/// Resolves the inputs, and holds their producers: neither they nor their pods are removed before this Step has ended. A
/// producer that is deleted meanwhile stays for as long as it is held. If an artifact will never come, nothing new is held.
///
/// # Errors
/// A cycle of Steps, and errors of the host.
pub fn resolve_inputs(ctx: &Context, step: &Step) -> Result<StepInputs, Failure> {
    let (mut available, mut producers) = (AvailableInputs::default(), Vec::new());
    // One that is missing comes before one that has not ended: nothing else bounds the wait for it.
    let (mut pending, mut missing) = (None, None);
    for input in &step.spec.inputs {
        let producer = ctx
            .get::<StepSpec>(step.namespace(), &input.from_step)
            .reason("InputMissing")?;
        let Some(producer) = producer else {
            missing = Some(miss_producer(input));
            continue;
        };
        if producer.metadata.deletion_timestamp.is_some() && !hold_producer(ctx, &producer)? {
            missing = Some(miss_producer(input));
            continue;
        }
        match find_source(input, &producer) {
            Ok(source) => available.sources.push(source),
            Err(StepInputs::Failed { reason, message }) => return Ok(StepInputs::Failed { reason, message }),
            Err(other) => pending = Some(other),
        }
        let ended = producer.status.finish_time.as_deref().and_then(from_rfc3339);
        available.since = available.since.max(ended.unwrap_or_default());
        producers.push((input, producer));
    }
    for (input, producer) in &producers {
        // Its deletion may have begun after it was read.
        if !hold_producer(ctx, producer)? {
            missing = Some(miss_producer(input));
        }
    }
    Ok(missing.or(pending).unwrap_or(StepInputs::Available(available)))
}

fn miss_producer(input: &StepInput) -> StepInputs {
    let message = format!(
        "Input {}: Step {} does not exist, or is being deleted. Create it, or create this step again with another fromStep.",
        input.name, input.from_step
    );
    StepInputs::Missing { message }
}

/// Holds a producer. Returns false for one that is being deleted, and was not held before.
fn hold_producer(ctx: &Context, producer: &Step) -> Result<bool, Failure> {
    match ctx.hold(&producer.reference()) {
        Ok(()) => Ok(true),
        Err(Error::NotReady(_) | Error::NotFound(_)) => Ok(false),
        Err(Error::Invalid(text)) => {
            let message = format!(
                "Step {} needs this step itself: remove one of the inputs. {text}",
                producer.name()
            );
            Err(Failure::terminal("InputCycle", message))
        }
        Err(error) => Err(Failure::from(error).reason("InputMissing")),
    }
}

/// The source of an input, or why there is none.
fn find_source(input: &StepInput, producer: &Step) -> Result<InputSource, StepInputs> {
    let failed = |reason, message| Err(StepInputs::Failed { reason, message });
    let (name, artifact) = (producer.name(), input.artifact());
    if producer.spec.outputs.iter().all(|output| output.name != artifact) {
        let message = format!("Input {}: Step {name} has no output {artifact}.", input.name);
        return failed("InputMissing", message);
    }
    let waiting = |message| Err(StepInputs::Pending { message });
    if matches!(producer.status.phase, StepPhase::Failed | StepPhase::Errored) {
        let message = format!("Input {}: Step {name} has failed.", input.name);
        return failed("InputFailed", message);
    }
    if producer.status.phase != StepPhase::Succeeded {
        return waiting(format!("Input {}: waiting for Step {name}.", input.name));
    }
    let Some(found) = producer
        .status
        .artifacts
        .iter()
        .find(|found| found.name == artifact)
    else {
        let message = format!(
            "Input {}: Step {name} has ended without its artifact {artifact}.",
            input.name
        );
        return failed("InputMissing", message);
    };
    if let Some(source) = build_source(input, producer, found) {
        return Ok(source);
    }
    if producer.spec.on_pod_lost == PodLostPolicy::Rerun && producer.status.attempt < MAX_ATTEMPTS {
        return waiting(format!(
            "Input {}: the pod of Step {name} is gone, and it runs again.",
            input.name
        ));
    }
    let message = format!(
        "Input {}: the pod of Step {name} is gone, and its artifacts with it. Create both steps again, or give that one a \
         longer retain or onPodLost: Rerun.",
        input.name
    );
    failed("InputLost", message)
}

fn build_source(input: &StepInput, producer: &Step, artifact: &StepArtifact) -> Option<InputSource> {
    let url = artifact.url.as_deref()?.strip_prefix("http://")?;
    Some(InputSource {
        name: input.name.clone(),
        artifact: artifact.name.clone(),
        step: producer.metadata.uid.clone(),
        address: url.split('/').next()?.to_owned(),
        digest: artifact.digest.clone(),
        bytes: u64::try_from(artifact.bytes).ok()?,
    })
}
