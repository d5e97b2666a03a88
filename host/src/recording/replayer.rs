//! The replayer, which answers the host calls of a component from a recording.

use std::{collections::HashMap, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::difference::{Difference, has_no_result, is_ambient, is_write};
use crate::recording::{
    codec::Recordable,
    comparison::list_changes,
    format::{self, Recording},
    recorder::{self, CallArguments},
    value::RecordedValue,
    wasi::WasiInputs,
};

/// Maximum number of differences reported for one replay, which then ends.
const MAX_DIFFERENCES: usize = 100;

/// Answers the host calls of a component from a recording.
#[derive(Clone)]
pub struct Replayer(Arc<Shared>);

/// The state that a replayer in the store of the component shares with the one that evaluates the replay.
struct Shared {
    recording: Arc<Recording>,
    wasi_inputs: WasiInputs,
    progress: Mutex<ReplayProgress>,
    stopped: Notify,
}

/// The progress of a replay.
#[derive(Default)]
pub(crate) struct ReplayProgress {
    /// Index of the recorded call that comes next.
    pub next: usize,
    /// The differences so far.
    pub differences: Vec<Difference>,
    /// The reason why the replay has stopped before its end.
    pub stop: Option<ReplayStop>,
    /// The last result of each ambient function.
    last_ambient: HashMap<&'static str, RecordedValue>,
}

/// The reason why a replay did not run to its end.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplayStop {
    /// The component has made a call that the recording has no result for.
    Diverged,
    /// The recorded call has no result, because it had not returned when the recorded reconcile ended.
    Unanswered,
    /// The recorded result is malformed.
    Malformed(String),
}

impl Replayer {
    /// A replayer before the first call of a recording.
    pub fn new(recording: Arc<Recording>) -> Self {
        let started = format::parse_milliseconds(&recording.metadata.creation_timestamp);
        Self(Arc::new(Shared {
            wasi_inputs: WasiInputs::replayed(recording.wasi.as_ref(), started),
            recording,
            progress: Mutex::default(),
            stopped: Notify::new(),
        }))
    }

    /// The recorded clocks and randomness, for a component that imports WASI.
    pub fn wasi_inputs(&self) -> WasiInputs {
        self.0.wasi_inputs.clone()
    }

    /// Answers a host call. Without an answer the future stays pending, and [`Replayer::wait_stopped`] returns.
    pub async fn answer_call<T: Recordable>(&self, function: &'static str, arguments: CallArguments) -> T {
        let arguments = recorder::record_arguments(&arguments);
        let found = self
            .progress()
            .find_result(&self.0.recording, function, &arguments);
        let converted = found.and_then(|result| T::from_recorded(result).map_err(ReplayStop::Malformed));
        match converted {
            Ok(result) => return result,
            Err(why) => self.stop(why),
        }
        std::future::pending().await
    }

    /// Waits until the replay stops because there is no answer.
    pub(crate) async fn wait_stopped(&self) {
        self.0.stopped.notified().await;
    }

    /// The progress so far.
    pub(crate) fn progress(&self) -> MutexGuard<'_, ReplayProgress> {
        self.0.progress.lock()
    }

    fn stop(&self, why: ReplayStop) {
        self.progress().stop.get_or_insert(why);
        self.0.stopped.notify_one();
    }
}

impl ReplayProgress {
    /// Adds a difference. Fails at the maximum number of differences.
    pub fn add_difference(&mut self, difference: Difference) -> Result<(), ReplayStop> {
        self.differences.push(difference);
        if self.differences.len() < MAX_DIFFERENCES {
            Ok(())
        } else {
            Err(ReplayStop::Diverged)
        }
    }

    /// Finds the result of a host call: that of the next recorded call if it is the same function with the same
    /// arguments or a write, otherwise one that does not depend on the recorded order.
    fn find_result(
        &mut self,
        recording: &Recording,
        function: &'static str,
        arguments: &RecordedValue,
    ) -> Result<RecordedValue, ReplayStop> {
        loop {
            let number = self.next + 1;
            let recorded = recording.calls.get(self.next);
            let same = recorded.filter(|call| call.function == function);
            let differs = same.map(|call| list_changes(&call.arguments, arguments));
            if let (Some(call), Some(changes)) = (same, &differs)
                && (changes.is_empty() || is_write(function, arguments))
            {
                if !changes.is_empty() {
                    self.add_difference(Difference::Arguments {
                        call: number,
                        function: function.into(),
                        changes: changes.clone(),
                    })?;
                }
                if call.took_microseconds.is_none() {
                    return Err(ReplayStop::Unanswered);
                }
                self.next += 1;
                if is_ambient(function) {
                    self.last_ambient.insert(function, call.result.clone());
                }
                return Ok(call.result.clone());
            }
            // The recorded call is another one. Calls without a result, and ambient calls, are skipped on either side.
            if let Some(answer) = self.answer_unrecorded(recording, function) {
                self.add_difference(Difference::Additional {
                    call: number,
                    function: function.into(),
                })?;
                return Ok(answer);
            }
            match recorded {
                Some(call)
                    if same.is_none() && (has_no_result(&call.function) || is_ambient(&call.function)) =>
                {
                    let function = call.function.clone();
                    self.next += 1;
                    self.add_difference(Difference::Missing {
                        call: number,
                        function,
                    })?;
                }
                _ => {
                    self.add_difference(Difference::Diverged {
                        call: number,
                        recorded: recorded.map(|call| call.function.clone()).unwrap_or_default(),
                        function: function.into(),
                        changes: differs.unwrap_or_default(),
                    })?;
                    return Err(ReplayStop::Diverged);
                }
            }
        }
    }

    /// Answers a call that is not the next recorded one, if it has no result or an ambient one.
    fn answer_unrecorded(&self, recording: &Recording, function: &'static str) -> Option<RecordedValue> {
        if has_no_result(function) {
            return Some(RecordedValue::Null);
        }
        if !is_ambient(function) {
            return None;
        }
        let last = self.last_ambient.get(function).cloned();
        Some(last.unwrap_or_else(|| match function {
            "config.get" => recording.config.clone(),
            "clock.now" => format::parse_milliseconds(&recording.metadata.creation_timestamp).to_recorded(),
            _ => {
                let timeout = recording
                    .limits()
                    .map(|limits| limits.timeout)
                    .unwrap_or_default();
                u64::try_from(timeout.as_millis())
                    .unwrap_or(u64::MAX)
                    .to_recorded()
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A recording of these calls: function, arguments, result.
    fn recording_of(calls: &[(&str, serde_json::Value, serde_json::Value)]) -> Recording {
        let calls: Vec<_> = calls
            .iter()
            .map(|(function, arguments, result)| {
                json!({"function": function, "atMicroseconds": 0, "tookMicroseconds": 1,
                    "arguments": arguments, "result": result})
            })
            .collect();
        let recording = json!({
            "apiVersion": "ostler.dev/v1alpha1", "kind": "Recording",
            "metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "host": "0", "plugin": {"name": "p", "version": "1", "digest": "d"}, "object": "A/b",
            "function": "reconcile", "ended": "settled", "tookMicroseconds": 1, "cpuMicroseconds": 1,
            "limits": {"memory": "1", "timeout": "60s"},
            "config": {"json": {}}, "calls": calls, "end": {"outcome": {}}
        });
        Recording::parse(&recording.to_string(), "r").expect("a recording")
    }

    fn parse_value(value: serde_json::Value) -> RecordedValue {
        serde_json::from_value(value).expect("a recorded value")
    }

    fn get(name: &str) -> (&'static str, RecordedValue) {
        ("kubernetes.get", parse_value(json!({"ref": {"name": name}})))
    }

    fn apply(value: &str) -> (&'static str, RecordedValue) {
        (
            "kubernetes.apply",
            parse_value(json!({"object": {"data": value}})),
        )
    }

    fn log(text: &str) -> (&'static str, RecordedValue) {
        ("log.write", parse_value(json!({"message": text})))
    }

    /// Makes these calls one after the other, and returns the results and the differences.
    fn replay_calls(
        recording: &Recording,
        calls: &[(&'static str, RecordedValue)],
    ) -> (Vec<Result<RecordedValue, ReplayStop>>, Vec<Difference>) {
        let mut progress = ReplayProgress::default();
        let results = calls
            .iter()
            .map(|(f, arguments)| progress.find_result(recording, f, arguments));
        (results.collect(), progress.differences)
    }

    fn recorded() -> Recording {
        recording_of(&[
            ("log.write", json!({"message": "begin"}), json!(null)),
            ("kubernetes.get", json!({"ref": {"name": "a"}}), json!("A")),
            ("clock.now", json!({}), json!(5)),
            (
                "kubernetes.apply",
                json!({"object": {"data": "1"}}),
                json!("written"),
            ),
            ("kubernetes.get", json!({"ref": {"name": "b"}}), json!("B")),
        ])
    }

    #[test]
    fn same_calls_get_recorded_results() {
        let same = [
            log("begin"),
            get("a"),
            ("clock.now", parse_value(json!({}))),
            apply("1"),
            get("b"),
        ];
        let (answers, differences) = replay_calls(&recorded(), &same);
        let wanted = [json!(null), json!("A"), json!(5), json!("written"), json!("B")];
        assert_eq!(answers, wanted.map(|value| Ok(parse_value(value))));
        assert_eq!(differences, []);
    }

    #[test]
    fn write_with_other_arguments_gets_recorded_result() {
        let (answers, differences) = replay_calls(
            &recorded(),
            &[log("start"), get("a"), apply("2"), get("b"), get("b")],
        );
        assert!(answers[..4].iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(answers[4], Err(ReplayStop::Diverged));
        let reported: Vec<_> = differences.iter().map(ToString::to_string).collect();
        assert_eq!(
            reported,
            [
                r#"call 1, log.write: message: "begin" → "start""#,
                "call 3, clock.now: is not made",
                r#"call 4, kubernetes.apply: object.data: "1" → "2""#,
                "diverges at call 6: kubernetes.get is called, where the recording ends",
            ]
        );
        let effects: Vec<_> = differences.iter().map(Difference::affects_others).collect();
        assert_eq!(effects, [false, false, true, true]);
    }

    #[test]
    fn call_without_recorded_result_ends_replay() {
        for (calls, reported) in [
            (
                vec![get("c")],
                r#"diverges at call 2, kubernetes.get: ref.name: "a" → "c""#,
            ),
            (
                vec![get("a"), get("b")],
                "diverges at call 4: kubernetes.get is called in place of kubernetes.apply",
            ),
            (
                vec![apply("1")],
                "diverges at call 2: kubernetes.apply is called in place of kubernetes.get",
            ),
        ] {
            let (answers, differences) = replay_calls(&recorded(), &calls);
            assert_eq!(answers.last(), Some(&Err(ReplayStop::Diverged)));
            assert_eq!(
                differences.last().map(ToString::to_string).as_deref(),
                Some(reported)
            );
        }
    }

    #[test]
    fn ambient_calls_are_answered_in_any_order() {
        let now = || ("clock.now", parse_value(json!({})));
        let (answers, differences) = replay_calls(
            &recorded(),
            &[
                now(),
                log("begin"),
                get("a"),
                now(),
                now(),
                ("config.get", parse_value(json!({}))),
                apply("1"),
            ],
        );
        let reported: Vec<_> = answers
            .into_iter()
            .map(|a| a.expect("a result").to_json())
            .collect();
        let beginning = format::parse_milliseconds("2026-01-01T00:00:00Z");
        assert_eq!(
            reported,
            [
                json!(beginning),
                json!(null),
                json!("A"),
                json!(5),
                json!(5),
                json!({}),
                json!("written")
            ]
        );
        assert_eq!(differences.len(), 3, "{differences:?}");
        assert!(!differences.iter().any(Difference::affects_others));
    }

    #[test]
    fn changed_request_ends_replay_unless_it_writes() {
        let request = |method: &str, path: &str| json!({"request": {"method": method, "pathAndQuery": path}});
        for (method, goes_on) in [("get", false), ("head", false), ("put", true), ("delete", true)] {
            let recording = recording_of(&[("http.send", request(method, "/a"), json!("answer"))]);
            let (answers, differences) =
                replay_calls(&recording, &[("http.send", parse_value(request(method, "/b")))]);
            assert_eq!(answers[0].is_ok(), goes_on, "{method}");
            assert_eq!(differences.len(), 1);
        }
    }

    #[test]
    fn call_without_result_stops_unanswered() {
        let mut recording = recorded();
        recording.calls[1].took_microseconds = None;
        let (answers, differences) = replay_calls(&recording, &[log("begin"), get("a")]);
        assert_eq!(
            (&answers[1], differences.len()),
            (&Err(ReplayStop::Unanswered), 0)
        );
    }

    /// Any call of a few functions, with arguments that identify it.
    fn any_call() -> impl Strategy<Value = (&'static str, RecordedValue)> {
        (0..6usize, 0..4u8).prop_map(|(function, n)| match function {
            0 => get(&n.to_string()),
            1 => apply(&n.to_string()),
            2 => log(&n.to_string()),
            3 => ("cache.get", parse_value(json!({"key": n.to_string()}))),
            4 => ("events.emit", parse_value(json!({"note": n.to_string()}))),
            _ => ("clock.now", parse_value(json!({}))),
        })
    }

    proptest! {
        #[test]
        fn recording_answers_its_own_calls_and_reports_another_call(
            calls in prop::collection::vec(any_call(), 1..20),
            at in any::<prop::sample::Index>(),
        ) {
            let recorded: Vec<_> = calls.iter().enumerate().map(|(i, (f, a))| (*f, a.to_json(), json!(i))).collect();
            let recording = recording_of(&recorded);
            let (answers, differences) = replay_calls(&recording, &calls);
            let wanted: Vec<_> = (0..calls.len()).map(|i| Ok(parse_value(json!(i)))).collect();
            prop_assert_eq!(answers, wanted);
            prop_assert_eq!(differences, []);
            // Another read in its place: the replay diverges there, and not before.
            let at = at.index(calls.len());
            let mut other = calls.clone();
            other.truncate(at);
            other.push(get("elsewhere"));
            let (answers, differences) = replay_calls(&recording, &other);
            prop_assert!(answers[..at].iter().all(Result::is_ok));
            prop_assert_eq!(answers.last(), Some(&Err(ReplayStop::Diverged)));
            let diverged = matches!(differences.last(), Some(Difference::Diverged { call, .. }) if *call > at);
            prop_assert!(diverged, "{:?}", differences);
        }
    }

    #[test]
    fn replay_with_too_many_differences_ends() {
        let chatter: Vec<_> = (0..MAX_DIFFERENCES * 2).map(|_| log("again")).collect();
        let (answers, differences) = replay_calls(&recording_of(&[]), &chatter);
        assert!(answers.contains(&Err(ReplayStop::Diverged)));
        assert!(differences.len() >= MAX_DIFFERENCES);
    }
}
