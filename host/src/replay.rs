//! Replays: a component runs against a recording, in an engine that is sealed from the world.
//!
//! The tape answers, so nothing is called and nothing changes. Where a build asks for something else than the
//! tape has, the replay ends; where only what it *writes* differs it goes on with the recorded answer, so that all
//! of the difference is seen.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::{
    bindings::reconciler::Request,
    capabilities::{Call, Terms},
    engine::{Compiled, Engine},
    grants::Grants,
    plugin::Plugin,
    tape::{
        Tape,
        recording::{self, Recording},
        rolling::{self, Arguments, Finished},
        shown::{Change, Shown, changes},
        taped::Taped,
        wasi::Surroundings,
    },
};

/// Differences told of one replay at most; a build that has so many more goes its own way.
const DIFFERENCES: usize = 100;

/// How a replay differs from what was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "difference", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Difference {
    /// A call with other arguments, answered as recorded.
    Arguments {
        /// Its number on the tape, from 1.
        call: usize,
        /// `kubernetes.apply`.
        function: String,
        /// Where they differ.
        changes: Vec<Change>,
    },
    /// A call that the tape doesn't have and that needs no answer from it.
    Additional {
        /// Before which call of the tape.
        call: usize,
        /// `log.write`.
        function: String,
    },
    /// A call of the tape that was not made.
    Missing {
        /// Its number on the tape, from 1.
        call: usize,
        /// `log.write`.
        function: String,
    },
    /// A call that the tape can't answer: here the replay ended.
    Departed {
        /// The number on the tape of the call that was to come, from 1.
        call: usize,
        /// What was recorded; empty when nothing more was.
        recorded: String,
        /// What was called in its place.
        function: String,
        /// Its arguments where the function is the same.
        changes: Vec<Change>,
    },
    /// The calls came to something else.
    Outcome {
        /// Where it differs.
        changes: Vec<Change>,
    },
}

impl Difference {
    /// Whether it is about what others see: writes, requests, the outcome. Log lines and the like are not.
    pub fn of_effects(&self) -> bool {
        match self {
            Self::Arguments { function, .. } => !quiet(function),
            Self::Additional { function, .. } | Self::Missing { function, .. } => {
                !quiet(function) && !ambient(function)
            }
            Self::Departed { .. } | Self::Outcome { .. } => true,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments {
                call,
                function,
                changes,
            } => {
                write!(f, "call {call}, {function}: {}", Paths(changes))
            }
            Self::Additional { call, function } => {
                write!(f, "before call {call}: {function} is called besides")
            }
            Self::Missing { call, function } => write!(f, "call {call}, {function}: is not made"),
            Self::Departed {
                call,
                recorded,
                function,
                changes,
            } => match (recorded == function, recorded.is_empty()) {
                (true, _) => write!(f, "departs at call {call}, {function}: {}", Paths(changes)),
                (false, true) => write!(
                    f,
                    "departs at call {call}: {function} is called, where the recording ends"
                ),
                (false, false) => write!(
                    f,
                    "departs at call {call}: {function} is called in place of {recorded}"
                ),
            },
            Self::Outcome { changes } => write!(f, "the outcome: {}", Paths(changes)),
        }
    }
}

/// Changes on one line.
struct Paths<'a>(&'a [Change]);

impl fmt::Display for Paths<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            |value: &Option<serde_json::Value>| value.as_ref().map_or("nothing".into(), ToString::to_string);
        for (i, change) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            let (was, is) = (shown(&change.recorded), shown(&change.replayed));
            write!(f, "{separator}{}: {was} → {is}", change.path)?;
        }
        Ok(())
    }
}

/// Gives nothing back and changes nothing that others work with.
fn quiet(function: &str) -> bool {
    matches!(function, "log.write" | "metrics.counter" | "metrics.gauge")
}

/// Gives nothing back, so that any number of them can be answered.
fn unanswered(function: &str) -> bool {
    quiet(function) || matches!(function, "events.emit" | "memo.remove")
}

/// Tells what is so at any time, however often it is asked.
fn ambient(function: &str) -> bool {
    matches!(function, "clock.now" | "clock.remaining" | "config.get")
}

/// Whether a call with other arguments may be answered as recorded: it writes, and what it gives says little.
fn writes(function: &str, arguments: &Shown) -> bool {
    let writing = |request: &Shown| {
        let method = request.get("method").and_then(Shown::text);
        method.is_some_and(|m| !matches!(m, "GET" | "HEAD" | "OPTIONS"))
    };
    match function {
        "http.send" => arguments.get("request").is_some_and(writing),
        "http.send-all" => match arguments.get("requests") {
            Some(Shown::List(requests)) => requests.iter().all(writing),
            _ => false,
        },
        "kubernetes.apply" | "kubernetes.create" | "kubernetes.delete" | "references.hold"
        | "messaging.publish" | "status.checkpoint" | "memo.put" => true,
        other => unanswered(other),
    }
}

/// Answers a component from a recording.
#[derive(Clone)]
pub struct Player(Arc<Playing>);

struct Playing {
    recording: Arc<Recording>,
    surroundings: Surroundings,
    state: Mutex<State>,
    stopped: Notify,
}

#[derive(Default)]
struct State {
    /// The call of the tape that comes next.
    next: usize,
    differences: Vec<Difference>,
    stop: Option<Stop>,
    /// What ambient calls were last told.
    told: HashMap<&'static str, Shown>,
}

/// Why a replay did not run to its end.
#[derive(Clone, Debug, PartialEq)]
enum Stop {
    /// The tape can't answer.
    Departed,
    /// The tape has this call, and it never came back.
    Unanswered,
    /// Later calls were not kept.
    Cut,
    /// What the tape has is no answer.
    Unreadable(String),
}

impl Player {
    /// Before the first call.
    pub fn new(recording: Arc<Recording>) -> Self {
        let started = recording::milliseconds(&recording.metadata.creation_timestamp);
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
    pub async fn ask<T: Taped>(&self, function: &'static str, arguments: Arguments) -> T {
        match self.answer(function, rolling::shown(&arguments)).map(T::read) {
            Some(Ok(answer)) => return answer,
            Some(Err(why)) => self.stop(Stop::Unreadable(why)),
            None => {}
        }
        std::future::pending().await
    }

    /// When there is no answer to give.
    async fn stopped(&self) {
        self.0.stopped.notified().await;
    }

    fn stop(&self, why: Stop) {
        self.0.state.lock().expect("lock").stop.get_or_insert(why);
        self.0.stopped.notify_one();
    }

    fn answer(&self, function: &'static str, arguments: Shown) -> Option<Shown> {
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
    fn differs(&mut self, difference: Difference) -> Result<(), Stop> {
        self.differences.push(difference);
        match self.differences.len() < DIFFERENCES {
            true => Ok(()),
            false => Err(Stop::Departed),
        }
    }

    fn answer(&mut self, tape: &Recording, function: &'static str, arguments: &Shown) -> Result<Shown, Stop> {
        loop {
            let number = self.next + 1;
            let recorded = tape.calls.get(self.next);
            let same = recorded.filter(|call| call.function == function);
            let differs = same.map(|call| changes(&call.arguments, arguments));
            if let (Some(call), Some(changes)) = (same, &differs)
                && (changes.is_empty() || writes(function, arguments))
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
                if ambient(function) {
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
                Some(call) if same.is_none() && (unanswered(&call.function) || ambient(&call.function)) => {
                    let function = call.function.clone();
                    self.next += 1;
                    self.differs(Difference::Missing {
                        call: number,
                        function,
                    })?;
                }
                None if tape.cut => return Err(Stop::Cut),
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
    fn besides(&self, tape: &Recording, function: &'static str) -> Option<Shown> {
        if unanswered(function) {
            return Some(Shown::Null);
        }
        if !ambient(function) {
            return None;
        }
        let told = self.told.get(function).cloned();
        Some(told.unwrap_or_else(|| match function {
            "config.get" => tape.config.clone(),
            "clock.now" => recording::milliseconds(&tape.metadata.creation_timestamp).shown(),
            _ => {
                let wall = tape.limits().map(|limits| limits.wall).unwrap_or_default();
                u64::try_from(wall.as_millis()).unwrap_or(u64::MAX).shown()
            }
        }))
    }
}

/// What a replay came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replayed {
    /// Every call and the outcome are as recorded.
    pub same: bool,
    /// Calls answered from the tape.
    pub calls: usize,
    /// Calls on the tape.
    pub recorded: usize,
    /// How it ended.
    pub ended: String,
    /// What differs, in order.
    pub differences: Vec<Difference>,
    /// Whether the component trapped, having been told just what one was told that did not.
    pub trapped: bool,
}

/// Runs a component against a recording. The error says why it can't be replayed.
pub async fn replay(
    engine: &Engine,
    compiled: &Compiled,
    recording: Arc<Recording>,
) -> Result<Replayed, String> {
    if let Some(why) = &recording.withheld {
        return Err(format!(
            "recording {} can't be replayed: {why}",
            recording.metadata.name
        ));
    }
    let request = Request::read(recording.request.clone()).map_err(|e| format!("request: {e}"))?;
    let config = Vec::<u8>::read(recording.config.clone()).map_err(|e| format!("config: {e}"))?;
    let name = &recording.plugin.name;
    let terms = Terms {
        plugin: name.as_str().into(),
        grants: Grants::default().of(name),
        config,
        limits: recording.limits()?,
    };
    let player = Player::new(recording.clone());
    let mut call = Call::new(Arc::new(terms), None);
    call.tape = Tape::Playing(player.clone());
    let deleting = recording.function == "cleanup";
    let answer = tokio::select! {
        (answer, _) = engine.reconcile(compiled, call, request, deleting) => Some(answer),
        () = player.stopped() => None,
    };
    let mut state = player.0.state.lock().expect("lock");
    let calls = state.next;
    let end = match (&answer, &state.stop) {
        (_, Some(Stop::Cut)) => {
            return Err(format!(
                "the recording is cut off after call {calls}: a larger one is kept with --record-bytes"
            ));
        }
        (_, Some(Stop::Unreadable(why))) => {
            return Err(format!(
                "call {calls} of the recording has no answer: result: {why}"
            ));
        }
        (_, Some(Stop::Departed)) => None,
        // As far as it came before: the host call in which it was when its time was over.
        (_, Some(Stop::Unanswered)) | (None, None) => Some(recording.end.clone()),
        (Some(answer), None) => Some(rolling::end(answer)),
    };
    // A panic says so in the log before it traps.
    let trapped = !state.differences.iter().any(Difference::of_effects)
        && matches!(answer, Some(Err(_)))
        && recording.end.get("trap").is_none();
    if let Some(end) = &end {
        if state.stop.is_none() {
            for (i, call) in recording.calls.iter().enumerate().skip(calls) {
                let missing = Difference::Missing {
                    call: i + 1,
                    function: call.function.clone(),
                };
                if state.differs(missing).is_err() {
                    break;
                }
            }
        }
        let changes = changes(&recording.end, end);
        if !changes.is_empty() {
            state.differences.push(Difference::Outcome { changes });
        }
    }
    Ok(Replayed {
        same: state.differences.is_empty() && end.is_some(),
        calls,
        recorded: recording.calls.len(),
        ended: match (&end, &answer) {
            (None, _) => "departed".into(),
            (Some(_), Some(Err(trap))) => trap.to_string(),
            (Some(end), _) => match end {
                Shown::Record(fields) => fields.first().map(|(word, _)| word.clone()).unwrap_or_default(),
                _ => String::new(),
            },
        },
        differences: std::mem::take(&mut state.differences),
        trapped,
    })
}

/// What the last recordings say of a new build.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Recordings that were replayed.
    pub replayed: usize,
    /// Of these, those in which nothing differs but log lines and the like.
    pub same: usize,
    /// Those in which others would see a difference.
    pub differing: Vec<Differing>,
    /// Those in which it trapped, where the build before did not.
    pub trapped: Vec<Differing>,
    /// Recordings for which there was no time, or that can't be replayed.
    pub skipped: usize,
    /// How long it took.
    pub milliseconds: u64,
}

/// A recording in which a new build does otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Differing {
    /// Its id.
    pub recording: String,
    /// The object.
    pub object: String,
    /// The first difference, or how it trapped.
    pub what: String,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} recordings replay the same", self.same, self.replayed)?;
        for differing in self.differing.iter().chain(&self.trapped).take(3) {
            write!(f, "; {}: {}", differing.object, differing.what)?;
        }
        Ok(())
    }
}

/// Runs a build against recordings of the plugin, as long as there is time.
pub async fn probe(
    engine: &Engine,
    plugin: &Plugin,
    recordings: &[Arc<Finished>],
    budget: Duration,
) -> Probe {
    let started = Instant::now();
    let mut probe = Probe::default();
    for (i, finished) in recordings.iter().enumerate() {
        let left = budget.saturating_sub(started.elapsed());
        if left.is_zero() {
            probe.skipped += recordings.len() - i;
            break;
        }
        if plugin.kind(&finished.key().gvk).is_none() {
            probe.skipped += 1;
            continue;
        }
        // Configured otherwise, it may rightly do otherwise.
        if finished.config() != plugin.terms.config {
            probe.skipped += 1;
            continue;
        }
        let recording = Arc::new(finished.recording());
        let replaying = replay(engine, &plugin.compiled, recording.clone());
        let Ok(Ok(replayed)) = tokio::time::timeout(left, replaying).await else {
            probe.skipped += 1;
            continue;
        };
        probe.replayed += 1;
        let differing = |what: String| Differing {
            recording: recording.metadata.name.clone(),
            object: recording.object.clone(),
            what,
        };
        if replayed.trapped {
            probe.trapped.push(differing(replayed.ended));
        } else {
            match replayed.differences.iter().find(|d| d.of_effects()) {
                Some(first) => probe.differing.push(differing(first.to_string())),
                None => probe.same += 1,
            }
        }
    }
    probe.milliseconds = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    probe
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
            "limits": {"memory": "1", "wall": "60s"},
            "config": {"json": {}}, "calls": calls, "end": {"outcome": {}}
        });
        Recording::parse(&recording.to_string(), "r").expect("a recording")
    }

    fn shown(value: serde_json::Value) -> Shown {
        serde_json::from_value(value).expect("a tree")
    }

    fn get(name: &str) -> (&'static str, Shown) {
        ("kubernetes.get", shown(json!({"ref": {"name": name}})))
    }

    fn apply(value: &str) -> (&'static str, Shown) {
        ("kubernetes.apply", shown(json!({"object": {"data": value}})))
    }

    fn log(text: &str) -> (&'static str, Shown) {
        ("log.write", shown(json!({"message": text})))
    }

    /// Asks for these, one after the other; what each was answered, and what was different.
    fn play(
        tape: &Recording,
        asked: &[(&'static str, Shown)],
    ) -> (Vec<Result<Shown, Stop>>, Vec<Difference>) {
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
        let beginning = recording::milliseconds("2026-01-01T00:00:00Z");
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
        for (method, goes_on) in [("GET", false), ("HEAD", false), ("PUT", true), ("DELETE", true)] {
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
        tape.calls.truncate(1);
        tape.cut = true;
        assert_eq!(play(&tape, &[log("begin"), get("a")]).0[1], Err(Stop::Cut));
    }

    /// One of the functions that say which object or key they are about.
    fn any_call() -> impl Strategy<Value = (&'static str, Shown)> {
        (0..6usize, 0..4u8).prop_map(|(function, n)| match function {
            0 => get(&n.to_string()),
            1 => apply(&n.to_string()),
            2 => log(&n.to_string()),
            3 => ("memo.get", shown(json!({"key": n.to_string()}))),
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
