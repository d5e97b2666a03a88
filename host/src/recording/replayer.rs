//! Who answers a component from a recording.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::sync::Notify;

use super::difference::{Difference, has_no_result, is_ambient, is_write};
use crate::recording::{
    codec::Recordable,
    format::{self, Recording},
    recorder::{self, Arguments},
    value::{RecordedValue, changes},
    wasi::Surroundings,
};

/// Differences told of one replay at most; a build that has so many more goes its own way.
const DIFFERENCES: usize = 100;

/// Answers a component from a recording.
#[derive(Clone)]
pub struct Player(pub(crate) Arc<Playing>);

pub(crate) struct Playing {
    recording: Arc<Recording>,
    surroundings: Surroundings,
    pub(crate) state: Mutex<State>,
    stopped: Notify,
}

#[derive(Default)]
pub(crate) struct State {
    /// The call of the tape that comes next.
    pub next: usize,
    pub differences: Vec<Difference>,
    pub stop: Option<Stop>,
    /// What ambient calls were last told.
    told: HashMap<&'static str, RecordedValue>,
}

/// Why a replay did not run to its end.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// The tape can't answer.
    Departed,
    /// The tape has this call, and it never came back.
    Unanswered,
    /// What the tape has is no answer.
    Unreadable(String),
}

impl Player {
    /// Before the first call.
    pub fn new(recording: Arc<Recording>) -> Self {
        let started = format::milliseconds(&recording.metadata.creation_timestamp);
        Self(Arc::new(Playing {
            surroundings: Surroundings::replayed(recording.wasi.as_ref(), started),
            recording,
            state: Mutex::default(),
            stopped: Notify::new(),
        }))
    }

    /// What a component with WASI sees.
    pub fn surroundings(&self) -> Surroundings {
        self.0.surroundings.clone()
    }

    /// Answers a call. Where there is no answer this never ends, and [`Player::stopped`] does.
    pub async fn ask<T: Recordable>(&self, function: &'static str, arguments: Arguments) -> T {
        match self
            .answer(function, recorder::shown(&arguments))
            .map(T::from_recorded)
        {
            Some(Ok(answer)) => return answer,
            Some(Err(why)) => self.stop(Stop::Unreadable(why)),
            None => {}
        }
        std::future::pending().await
    }

    /// When there is no answer to give.
    pub(crate) async fn stopped(&self) {
        self.0.stopped.notified().await;
    }

    fn stop(&self, why: Stop) {
        self.0.state.lock().expect("lock").stop.get_or_insert(why);
        self.0.stopped.notify_one();
    }

    fn answer(&self, function: &'static str, arguments: RecordedValue) -> Option<RecordedValue> {
        let answered = {
            let state = &mut *self.0.state.lock().expect("lock");
            state.answer(&self.0.recording, function, &arguments)
        };
        match answered {
            Ok(answer) => Some(answer),
            Err(why) => {
                self.stop(why);
                None
            }
        }
    }
}

impl State {
    pub fn differs(&mut self, difference: Difference) -> Result<(), Stop> {
        self.differences.push(difference);
        match self.differences.len() < DIFFERENCES {
            true => Ok(()),
            false => Err(Stop::Departed),
        }
    }

    fn answer(
        &mut self,
        tape: &Recording,
        function: &'static str,
        arguments: &RecordedValue,
    ) -> Result<RecordedValue, Stop> {
        loop {
            let number = self.next + 1;
            let recorded = tape.calls.get(self.next);
            let same = recorded.filter(|call| call.function == function);
            let differs = same.map(|call| changes(&call.arguments, arguments));
            if let (Some(call), Some(changes)) = (same, &differs)
                && (changes.is_empty() || is_write(function, arguments))
            {
                if !changes.is_empty() {
                    self.differs(Difference::Arguments {
                        call: number,
                        function: function.into(),
                        changes: changes.clone(),
                    })?;
                }
                if call.took_microseconds.is_none() {
                    return Err(Stop::Unanswered);
                }
                self.next += 1;
                if is_ambient(function) {
                    self.told.insert(function, call.result.clone());
                }
                return Ok(call.result.clone());
            }
            // The tape has something else. What needs no answer from it goes by, on either side.
            if let Some(answer) = self.besides(tape, function) {
                self.differs(Difference::Additional {
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
                    self.differs(Difference::Missing {
                        call: number,
                        function,
                    })?;
                }
                _ => {
                    self.differs(Difference::Departed {
                        call: number,
                        recorded: recorded.map(|call| call.function.clone()).unwrap_or_default(),
                        function: function.into(),
                        changes: differs.unwrap_or_default(),
                    })?;
                    return Err(Stop::Departed);
                }
            }
        }
    }

    /// The answer to a call that is not the tape's next, if it needs none or is always the same.
    fn besides(&self, tape: &Recording, function: &'static str) -> Option<RecordedValue> {
        if has_no_result(function) {
            return Some(RecordedValue::Null);
        }
        if !is_ambient(function) {
            return None;
        }
        let told = self.told.get(function).cloned();
        Some(told.unwrap_or_else(|| match function {
            "config.get" => tape.config.clone(),
            "clock.now" => format::milliseconds(&tape.metadata.creation_timestamp).to_recorded(),
            _ => {
                let timeout = tape.limits().map(|limits| limits.timeout).unwrap_or_default();
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

    /// A tape of these calls: function, arguments, result.
    fn tape(calls: &[(&str, serde_json::Value, serde_json::Value)]) -> Recording {
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

    fn shown(value: serde_json::Value) -> RecordedValue {
        serde_json::from_value(value).expect("a tree")
    }

    fn get(name: &str) -> (&'static str, RecordedValue) {
        ("kubernetes.get", shown(json!({"ref": {"name": name}})))
    }

    fn apply(value: &str) -> (&'static str, RecordedValue) {
        ("kubernetes.apply", shown(json!({"object": {"data": value}})))
    }

    fn log(text: &str) -> (&'static str, RecordedValue) {
        ("log.write", shown(json!({"message": text})))
    }

    /// Asks for these, one after the other; what each was answered, and what was different.
    fn play(
        tape: &Recording,
        asked: &[(&'static str, RecordedValue)],
    ) -> (Vec<Result<RecordedValue, Stop>>, Vec<Difference>) {
        let mut state = State::default();
        let answers = asked
            .iter()
            .map(|(f, arguments)| state.answer(tape, f, arguments));
        (answers.collect(), state.differences)
    }

    fn recorded() -> Recording {
        tape(&[
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
    fn the_same_calls_have_the_same_answers() {
        let same = [
            log("begin"),
            get("a"),
            ("clock.now", shown(json!({}))),
            apply("1"),
            get("b"),
        ];
        let (answers, differences) = play(&recorded(), &same);
        let wanted = [json!(null), json!("A"), json!(5), json!("written"), json!("B")];
        assert_eq!(answers, wanted.map(|value| Ok(shown(value))));
        assert_eq!(differences, []);
    }

    #[test]
    fn what_is_only_written_otherwise_goes_on_with_the_recorded_answer() {
        let (answers, differences) = play(
            &recorded(),
            &[log("start"), get("a"), apply("2"), get("b"), get("b")],
        );
        assert!(answers[..4].iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(answers[4], Err(Stop::Departed));
        let told: Vec<_> = differences.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                r#"call 1, log.write: message: "begin" → "start""#,
                "call 3, clock.now: is not made",
                r#"call 4, kubernetes.apply: object.data: "1" → "2""#,
                "departs at call 6: kubernetes.get is called, where the recording ends",
            ]
        );
        let effects: Vec<_> = differences.iter().map(Difference::of_effects).collect();
        assert_eq!(effects, [false, false, true, true]);
    }

    #[test]
    fn what_the_tape_cannot_answer_ends_the_replay() {
        for (asked, told) in [
            (
                vec![get("c")],
                r#"departs at call 2, kubernetes.get: ref.name: "a" → "c""#,
            ),
            (
                vec![get("a"), get("b")],
                "departs at call 4: kubernetes.get is called in place of kubernetes.apply",
            ),
            (
                vec![apply("1")],
                "departs at call 2: kubernetes.apply is called in place of kubernetes.get",
            ),
        ] {
            let (answers, differences) = play(&recorded(), &asked);
            assert_eq!(answers.last(), Some(&Err(Stop::Departed)));
            assert_eq!(differences.last().map(ToString::to_string).as_deref(), Some(told));
        }
    }

    #[test]
    fn time_and_configuration_may_be_asked_for_at_any_time() {
        let now = || ("clock.now", shown(json!({})));
        let (answers, differences) = play(
            &recorded(),
            &[
                now(),
                log("begin"),
                get("a"),
                now(),
                now(),
                ("config.get", shown(json!({}))),
                apply("1"),
            ],
        );
        let told: Vec<_> = answers
            .into_iter()
            .map(|a| a.expect("an answer").value())
            .collect();
        let beginning = format::milliseconds("2026-01-01T00:00:00Z");
        assert_eq!(
            told,
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
        assert!(!differences.iter().any(Difference::of_effects));
    }

    #[test]
    fn requests_that_read_must_be_the_same_and_those_that_write_may_differ() {
        let request = |method: &str, path: &str| json!({"request": {"method": method, "pathAndQuery": path}});
        for (method, goes_on) in [("get", false), ("head", false), ("put", true), ("delete", true)] {
            let tape = tape(&[("http.send", request(method, "/a"), json!("answer"))]);
            let (answers, differences) = play(&tape, &[("http.send", shown(request(method, "/b")))]);
            assert_eq!(answers[0].is_ok(), goes_on, "{method}");
            assert_eq!(differences.len(), 1);
        }
    }

    #[test]
    fn a_call_that_never_came_back_never_comes_back() {
        let mut tape = recorded();
        tape.calls[1].took_microseconds = None;
        let (answers, differences) = play(&tape, &[log("begin"), get("a")]);
        assert_eq!((&answers[1], differences.len()), (&Err(Stop::Unanswered), 0));
    }

    /// One of the functions that say which object or key they are about.
    fn any_call() -> impl Strategy<Value = (&'static str, RecordedValue)> {
        (0..6usize, 0..4u8).prop_map(|(function, n)| match function {
            0 => get(&n.to_string()),
            1 => apply(&n.to_string()),
            2 => log(&n.to_string()),
            3 => ("cache.get", shown(json!({"key": n.to_string()}))),
            4 => ("events.emit", shown(json!({"note": n.to_string()}))),
            _ => ("clock.now", shown(json!({}))),
        })
    }

    proptest! {
        #[test]
        fn a_tape_answers_its_own_calls_and_says_where_another_call_comes(
            calls in prop::collection::vec(any_call(), 1..20),
            at in any::<prop::sample::Index>(),
        ) {
            let recorded: Vec<_> = calls.iter().enumerate().map(|(i, (f, a))| (*f, a.value(), json!(i))).collect();
            let tape = tape(&recorded);
            let (answers, differences) = play(&tape, &calls);
            let wanted: Vec<_> = (0..calls.len()).map(|i| Ok(shown(json!(i)))).collect();
            prop_assert_eq!(answers, wanted);
            prop_assert_eq!(differences, []);
            // Another read there: it departs there, and not before.
            let at = at.index(calls.len());
            let mut other = calls.clone();
            other.truncate(at);
            other.push(get("elsewhere"));
            let (answers, differences) = play(&tape, &other);
            prop_assert!(answers[..at].iter().all(Result::is_ok));
            prop_assert_eq!(answers.last(), Some(&Err(Stop::Departed)));
            let departed = matches!(differences.last(), Some(Difference::Departed { call, .. }) if *call > at);
            prop_assert!(departed, "{:?}", differences);
        }
    }

    #[test]
    fn a_build_that_only_chatters_comes_to_an_end() {
        let chatter: Vec<_> = (0..DIFFERENCES * 2).map(|_| log("news")).collect();
        let (answers, differences) = play(&tape(&[]), &chatter);
        assert!(answers.contains(&Err(Stop::Departed)));
        assert!(differences.len() >= DIFFERENCES);
    }
}
