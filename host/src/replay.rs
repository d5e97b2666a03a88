//! Replays: a component runs against a recording, in an engine without access to the cluster or to upstreams.
//!
//! Host calls return their recorded results, so nothing is called and nothing changes. If a build makes another call than
//! the recorded one, the replay ends. If only the arguments of a *write* differ, it continues with the recorded result, so
//! that all differences are found.

use crate::policy::plugin_policy::PluginPolicy;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use crate::recording::Difference;
use crate::{
    contract::{
        bindings::{messages::Delivery, reconciler::Request},
        trap::Trap,
    },
    policy::grants::Grants,
    recording::{
        CallMode, ReplayProgress, ReplayStop, Replayer,
        codec::Recordable,
        comparison::list_changes,
        format::Recording,
        recorder::{self, CallEnd},
        value::RecordedValue,
    },
    sandbox::{
        capabilities::PluginCall,
        engine::{Compiled, Engine},
    },
};

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replayed {
    /// Every call and the outcome are as recorded.
    pub same: bool,
    /// Number of host calls that returned their recorded results.
    pub calls: usize,
    /// Number of recorded host calls.
    pub recorded: usize,
    /// End of the call: `outcome`, `failure`, a trap, or `diverged` after another call than the recorded one.
    pub ended: String,
    /// Differences, in order.
    pub differences: Vec<Difference>,
    /// The component trapped although all host calls so far returned what they returned in the recording, where it did
    /// not trap.
    pub trapped: bool,
}

/// The function that is called again, with its argument.
enum ReplayInput {
    Reconcile { request: Request, deleting: bool },
    Handle(Box<Delivery>),
}

impl ReplayInput {
    fn from_recording(recording: &Recording) -> Result<Self, String> {
        let request = recording.request.clone();
        let malformed = |e| format!("request: {e}");
        Ok(match &*recording.function {
            "handle" => Self::Handle(Box::new(Delivery::from_recorded(request).map_err(malformed)?)),
            function => Self::Reconcile {
                request: Request::from_recorded(request).map_err(malformed)?,
                deleting: function == "cleanup",
            },
        })
    }
}

/// Adds the recorded calls that the component did not make.
fn add_missing_calls(progress: &mut ReplayProgress, recording: &Recording) {
    for (i, call) in recording.calls.iter().enumerate().skip(progress.next) {
        let missing = Difference::Missing {
            call: i + 1,
            function: call.function.clone(),
        };
        if progress.add_difference(missing).is_err() {
            break;
        }
    }
}

/// Checks that a recording is complete. A replay of an incomplete one would report differences that do not exist.
fn check_complete(recording: &Recording) -> Result<(), String> {
    let name = &recording.metadata.name;
    if let Some(why) = &recording.withheld {
        return Err(format!("recording {name} can't be replayed: {why}"));
    }
    if recording.cut {
        return Err(format!(
            "recording {name} is cut off after {} host calls: a larger one is kept with --max-recording-bytes",
            recording.calls.len()
        ));
    }
    let has_end = ["outcome", "failure", "disposition", "error", "trap"]
        .iter()
        .any(|word| recording.end.get(word).is_some());
    if !has_end {
        return Err(format!(
            "recording {name} is incomplete: `end` has no `outcome`, `failure`, `disposition`, `error` or `trap`; record it again"
        ));
    }
    Ok(())
}

/// Runs a component against a recording. Fails if the recording can't be replayed.
pub async fn replay(
    engine: &Engine,
    compiled: &Compiled,
    recording: Arc<Recording>,
) -> Result<Replayed, String> {
    check_complete(&recording)?;
    let call_input = ReplayInput::from_recording(&recording)?;
    let config = Vec::<u8>::from_recorded(recording.config.clone()).map_err(|e| format!("config: {e}"))?;
    let name = &recording.plugin.name;
    let policy = PluginPolicy {
        plugin: name.as_str().into(),
        grants: Grants::default().grants_for(name),
        config,
        limits: recording.limits()?,
    };
    let replayer = Replayer::new(recording.clone());
    let mut call = PluginCall::new(Arc::new(policy), None);
    call.mode = CallMode::Replay(replayer.clone());
    let calling = async {
        match call_input {
            ReplayInput::Reconcile { request, deleting } => {
                (&engine.reconcile(compiled, call, request, deleting).await.0).into()
            }
            ReplayInput::Handle(delivery) => (&engine.handle(compiled, call, *delivery).await.0).into(),
        }
    };
    let answer: Option<CallEnd> = tokio::select! {
        answer = calling => Some(answer),
        () = replayer.wait_stopped() => None,
    };
    let mut progress = replayer.progress();
    let calls = progress.next;
    let end = match (&answer, &progress.stop) {
        (_, Some(ReplayStop::Malformed(why))) => {
            return Err(format!(
                "call {calls} of the recording has no readable result: {why}"
            ));
        }
        (_, Some(ReplayStop::Diverged)) => None,
        // The recorded call ended here as well: its deadline passed during this host call.
        (_, Some(ReplayStop::Unanswered)) | (None, None) => Some(recording.end.clone()),
        (Some(answer), None) => Some(recorder::record_end(answer)),
    };
    // A panic logs its message before it traps, so calls without effects may differ.
    let trapped = !progress.differences.iter().any(Difference::affects_others)
        && matches!(&answer, Some(CallEnd::Trap(trap)) if !matches!(trap, Trap::HostExhausted(_)))
        && recording.end.get("trap").is_none();
    if let Some(end) = &end {
        if progress.stop.is_none() {
            add_missing_calls(&mut progress, &recording);
        }
        let changes = list_changes(&recording.end, end);
        if !changes.is_empty() {
            progress.differences.push(Difference::Outcome { changes });
        }
    }
    Ok(Replayed {
        same: progress.differences.is_empty() && end.is_some(),
        calls,
        recorded: recording.calls.len(),
        ended: match (&end, &answer) {
            (None, _) => "diverged".into(),
            (Some(_), Some(CallEnd::Trap(trap))) => trap.to_string(),
            (Some(RecordedValue::Record(fields)), _) => {
                fields.first().map(|(word, _)| word.clone()).unwrap_or_default()
            }
            (Some(_), _) => String::new(),
        },
        differences: std::mem::take(&mut progress.differences),
        trapped,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn truncated_recording_is_not_replayed() {
        let sound = json!({
            "apiVersion": "ostler.dev/v1alpha1", "kind": "Recording",
            "metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "host": "0", "plugin": {"name": "p", "version": "1", "digest": "d"}, "object": "A/b",
            "function": "reconcile", "ended": "settled", "tookMicroseconds": 1, "cpuMicroseconds": 1,
            "limits": {}, "calls": [], "end": {"outcome": {}}
        });
        let of = |field: &str, value: serde_json::Value| {
            let mut recording = sound.clone();
            recording[field] = value;
            check_complete(&Recording::parse(&recording.to_string(), "r").expect("a recording"))
        };
        assert_eq!(of("cut", json!(false)), Ok(()));
        for (field, value, words) in [
            ("cut", json!(true), "recording r is cut off after 0 host calls"),
            (
                "withheld",
                json!("it may"),
                "recording r can't be replayed: it may",
            ),
            ("end", json!(null), "recording r is incomplete: `end`"),
            ("end", json!({"outcom": {}}), "recording r is incomplete: `end`"),
        ] {
            let why = of(field, value).expect_err(words);
            assert!(why.starts_with(words), "{why}");
        }
    }
}
