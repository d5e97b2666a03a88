//! A reconcile as it is put on the tape: values are kept as they are, and made readable when somebody reads them.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use super::{
    Sink,
    codec::Recordable,
    format::{self, API_VERSION, KIND, Recording},
    trace::{self, Line},
    value::RecordedValue,
    wasi::Surroundings,
};
use crate::{
    contract::{
        bindings::reconciler::{Failure, Next, Outcome, Request, Resolution},
        trap::Trap,
    },
    kube::{key::ObjectRef, object::Object},
    observe::telemetry::ReconcileId,
    policy::plugin_policy::PluginPolicy,
};

/// The arguments of a host call, by name.
pub type Arguments = Vec<(&'static str, Box<dyn Recordable>)>;

/// The arguments as one record.
pub fn shown(arguments: &Arguments) -> RecordedValue {
    let named = arguments
        .iter()
        .map(|(name, value)| (super::codec::to_camel_case(name), value.to_recorded()));
    RecordedValue::Record(named.collect())
}

/// What is reconciled, by whom and why.
pub struct About {
    /// Of the reconcile.
    pub id: ReconcileId,
    /// The object.
    pub key: ObjectRef,
    /// As it is given to the component.
    pub object: Arc<Object>,
    /// Failures in a row before.
    pub attempt: u32,
    /// What woke it.
    pub causes: Vec<String>,
    /// Whether it is `cleanup` that is called.
    pub cleanup: bool,
    /// The plugin's name, configuration and limits.
    pub terms: Arc<PluginPolicy>,
    /// Its version.
    pub version: String,
    /// SHA-256 of the component.
    pub digest: String,
}

impl About {
    /// The function that is called.
    pub fn function(&self) -> &'static str {
        match self.cleanup {
            true => "cleanup",
            false => "reconcile",
        }
    }
}

/// What the component's call came to.
pub type Answer = Result<Result<Outcome, Failure>, Trap>;

/// One host call.
struct Entry {
    function: &'static str,
    at: Duration,
    /// None: it never came back.
    took: Option<Duration>,
    arguments: Arguments,
    result: Option<Box<dyn Recordable>>,
}

/// What a call costs besides its values.
const ENTRY: usize = 160;

/// A tape that rolls.
pub struct Rolling {
    about: About,
    at: SystemTime,
    started: Instant,
    entries: Vec<Entry>,
    weight: usize,
    limit: usize,
    cut: bool,
    withheld: bool,
    calls: u32,
    open: Option<Entry>,
    sinks: Vec<Sink>,
    wasi: Option<Surroundings>,
}

impl Rolling {
    /// Begins. Of a plugin that may read Secrets no value is kept.
    pub(super) fn new(about: About, limit: usize, withheld: bool, sinks: Vec<Sink>) -> Self {
        let at = SystemTime::now();
        if sinks.iter().any(Sink::lines) {
            let line = Line::Start {
                reconcile: about.id.to_string(),
                object: about.key.to_string(),
                plugin: about.terms.plugin.to_string(),
                version: about.version.clone(),
                digest: about.digest.clone(),
                function: about.function().into(),
                attempt: about.attempt,
                causes: about.causes.clone(),
                at: format::timestamp(at),
            };
            sinks.iter().for_each(|sink| sink.line(&line));
        }
        Self {
            weight: about.object.json.len(),
            about,
            at,
            started: Instant::now(),
            entries: Vec::new(),
            limit,
            cut: false,
            withheld,
            calls: 0,
            open: None,
            sinks,
            wasi: None,
        }
    }

    /// The clocks and the randomness of a component that imports WASI, from now on on the tape.
    pub fn surroundings(&mut self) -> Surroundings {
        self.wasi.get_or_insert_with(Surroundings::recorded).clone()
    }

    /// A host call begins.
    pub fn enter(&mut self, function: &'static str, arguments: impl FnOnce() -> Arguments) {
        self.calls += 1;
        if self.cut && self.sinks.is_empty() {
            return;
        }
        self.open = Some(Entry {
            function,
            at: self.started.elapsed(),
            took: None,
            arguments: if self.withheld { Vec::new() } else { arguments() },
            result: None,
        });
    }

    /// It has come back.
    pub fn leave<T: Recordable + Clone>(&mut self, result: &T) {
        let Some(mut entry) = self.open.take() else { return };
        entry.took = Some(self.started.elapsed().saturating_sub(entry.at));
        if self.sinks.iter().any(Sink::lines) {
            let line = Line::Call {
                reconcile: self.about.id.to_string(),
                number: self.calls,
                function: entry.function.into(),
                at_microseconds: micros(entry.at),
                took_microseconds: entry.took.map_or(0, micros),
                arguments: match self.withheld {
                    true => trace::WITHHELD.into(),
                    false => trace::arguments(&shown(&entry.arguments)),
                },
                result: match self.withheld {
                    true => String::new(),
                    false => trace::result(&result.to_recorded()),
                },
            };
            self.sinks.iter().for_each(|sink| sink.line(&line));
        }
        let values: usize = entry
            .arguments
            .iter()
            .map(|(_, value)| value.estimate_bytes())
            .sum();
        let weight = match self.withheld {
            true => ENTRY,
            false => ENTRY + values + result.estimate_bytes(),
        };
        self.cut |= self.weight + weight > self.limit;
        if !self.cut {
            self.weight += weight;
            entry.result = (!self.withheld).then(|| Box::new(result.clone()) as Box<dyn Recordable>);
            self.entries.push(entry);
        }
    }

    /// The component's call has ended.
    pub fn finish(mut self, answer: &Answer, cpu: Duration) -> Finished {
        let took = self.started.elapsed();
        if let Some(open) = self.open.take().filter(|_| !self.cut) {
            self.entries.push(open);
        }
        let line = |ended| Line::End {
            reconcile: self.about.id.to_string(),
            ended,
            took_microseconds: micros(took),
            cpu_microseconds: micros(cpu),
            calls: self.calls,
        };
        if self.sinks.iter().any(Sink::lines) {
            let line = line(ended(answer, self.withheld));
            self.sinks.iter().for_each(|sink| sink.line(&line));
        }
        let wasi = self.wasi.map(|wasi| wasi.heard());
        Finished {
            weight: self.weight + weight(answer),
            cut: self.cut || wasi.as_ref().is_some_and(|wasi| wasi.cut),
            answer: answer.clone(),
            about: self.about,
            at: self.at,
            took,
            cpu,
            entries: self.entries,
            withheld: self.withheld,
            sinks: self.sinks,
            wasi,
        }
    }
}

/// A reconcile that was recorded.
pub struct Finished {
    about: About,
    at: SystemTime,
    took: Duration,
    cpu: Duration,
    entries: Vec<Entry>,
    weight: usize,
    cut: bool,
    withheld: bool,
    answer: Answer,
    sinks: Vec<Sink>,
    wasi: Option<format::Wasi>,
}

impl Finished {
    /// The object.
    pub fn key(&self) -> &ObjectRef {
        &self.about.key
    }

    /// The plugin's configuration then.
    pub fn config(&self) -> &[u8] {
        &self.about.terms.config
    }

    /// When it began.
    pub fn at(&self) -> SystemTime {
        self.at
    }

    /// The plugin.
    pub fn plugin(&self) -> &Arc<str> {
        &self.about.terms.plugin
    }

    /// About how many bytes it keeps.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Whether it can be replayed to its end.
    pub fn replayable(&self) -> bool {
        !self.cut && !self.withheld
    }

    /// Gives it to those who wait for it, and lets go of them.
    pub(super) fn delivered(mut self) -> Arc<Self> {
        let sinks = std::mem::take(&mut self.sinks);
        let finished = Arc::new(self);
        for sink in sinks {
            sink.recording(&finished);
        }
        finished
    }

    /// In a few words.
    pub fn summary(&self) -> format::Summary {
        format::Summary {
            id: self.about.id.to_string(),
            at: format::timestamp(self.at),
            object: self.about.key.to_string(),
            plugin: self.about.terms.plugin.to_string(),
            digest: self.about.digest.clone(),
            function: self.about.function().into(),
            ended: ended(&self.answer, self.withheld),
            calls: self.entries.len(),
            bytes: self.weight,
            replayable: self.replayable(),
        }
    }

    /// Everything, to be read.
    pub fn recording(&self) -> Recording {
        let About { terms, .. } = &self.about;
        let request = Request {
            object: self.about.object.json.to_vec(),
            ref_: (&self.about.key).into(),
            attempt: self.about.attempt,
            causes: self.about.causes.clone(),
        };
        let open = |shown: fn(&Self, Request) -> RecordedValue| match self.withheld {
            true => RecordedValue::Null,
            false => shown(self, request.clone()),
        };
        Recording {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: format::Metadata {
                name: self.about.id.to_string(),
                creation_timestamp: format::timestamp(self.at),
            },
            host: env!("CARGO_PKG_VERSION").into(),
            plugin: format::Plugin {
                name: terms.plugin.to_string(),
                version: self.about.version.clone(),
                digest: self.about.digest.clone(),
            },
            object: self.about.key.to_string(),
            function: self.about.function().into(),
            ended: ended(&self.answer, self.withheld),
            took_microseconds: micros(self.took),
            cpu_microseconds: micros(self.cpu),
            cut: self.cut,
            withheld: self.withheld.then(|| format::WITHHELD.to_owned()),
            limits: format::limits(&terms.limits),
            config: open(|f, _| f.about.terms.config.to_recorded()),
            request: open(|_, request| request.to_recorded()),
            wasi: self.wasi.clone().filter(|_| !self.withheld),
            calls: self.entries.iter().map(Entry::call).collect(),
            end: open(|f, _| end(&f.answer)),
        }
    }
}

impl Entry {
    fn call(&self) -> format::Call {
        format::Call {
            function: self.function.into(),
            at_microseconds: micros(self.at),
            took_microseconds: self.took.map(micros),
            arguments: shown(&self.arguments),
            result: self.result.as_ref().map(|r| r.to_recorded()).unwrap_or_default(),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn weight(answer: &Answer) -> usize {
    match answer {
        Ok(Ok(outcome)) => outcome.estimate_bytes(),
        Ok(Err(failure)) => failure.estimate_bytes(),
        Err(_) => 0,
    }
}

/// What a call came to, as a tree.
pub fn end(answer: &Answer) -> RecordedValue {
    RecordedValue::Record(vec![match answer {
        Ok(Ok(outcome)) => ("outcome".into(), outcome.to_recorded()),
        Ok(Err(failure)) => ("failure".into(), failure.to_recorded()),
        Err(trap) => ("trap".into(), RecordedValue::Text(trap.to_string())),
    }])
}

/// What a call came to, in a few words; without those of the plugin where they are withheld.
fn ended(answer: &Answer, withheld: bool) -> String {
    let seconds = |ms: u64| format!("{:?}", Duration::from_millis(ms));
    match answer {
        Ok(Ok(outcome)) => match outcome.next {
            Next::AwaitChange => "awaits a change".into(),
            Next::Poll(None) => "polls".into(),
            Next::Poll(Some(ms)) => format!("polls every {}", seconds(ms)),
            Next::After(ms) => format!("comes back after {}", seconds(ms)),
            Next::At(ms) => {
                let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms));
                format!(
                    "comes back at {}",
                    at.map_or_else(|| format!("{ms} ms"), format::timestamp)
                )
            }
        },
        Ok(Err(failure)) => {
            let resolution = match &failure.resolution {
                Resolution::Retry => "retry".into(),
                Resolution::Wait => "waits".into(),
                Resolution::Terminal => "terminal".into(),
                Resolution::Throttled(ms) => format!("throttled for {}", seconds(*ms)),
                Resolution::Denied(_) => "denied".into(),
            };
            match withheld {
                true => format!("{resolution}: {}", failure.reason),
                false => format!("{resolution}: {}: {}", failure.reason, failure.message),
            }
        }
        Err(trap) => trap.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{kube::key::Gvk, policy::grants::Grants};

    /// A recording of an object of this name, of about this many bytes.
    pub fn finished(name: &str, bytes: usize) -> Finished {
        let mut rolling = rolling(name, 1 << 20, false, Vec::new());
        rolling.enter("cache.get", || vec![("key", Box::new("k".to_owned()))]);
        rolling.leave(&Some(vec![0u8; bytes]));
        rolling.finish(&settled(), Duration::ZERO)
    }

    pub fn settled() -> Answer {
        Ok(Ok(Outcome {
            conditions: Vec::new(),
            status: None,
            next: Next::AwaitChange,
        }))
    }

    pub fn rolling(name: &str, limit: usize, withheld: bool, sinks: Vec<Sink>) -> Rolling {
        let gvk = Gvk::new("a.dev", "v1", "Thing");
        let object = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n"}}}}"#);
        let (key, object) = Object::parse(&gvk, object.as_bytes()).expect("an object");
        let about = About {
            id: ReconcileId::next(),
            key,
            object: Arc::new(object),
            attempt: 0,
            causes: vec!["change".into()],
            cleanup: false,
            terms: Arc::new(PluginPolicy {
                plugin: "thing".into(),
                grants: Grants::default().grants_for("thing"),
                config: b"{}".to_vec(),
                limits: crate::contract::limits::Limits::default(),
            }),
            version: "1.0.0".into(),
            digest: "d1".into(),
        };
        Rolling::new(about, limit, withheld, sinks)
    }

    #[test]
    fn what_passes_the_door_is_in_the_recording() {
        let mut rolling = rolling("a", 1 << 20, false, Vec::new());
        rolling.enter("cache.set", || {
            vec![
                ("key", Box::new("k".to_owned()) as Box<dyn Recordable>),
                ("value", Box::new(b"{\"z\":1}".to_vec())),
            ]
        });
        rolling.leave(&Ok::<(), crate::contract::bindings::types::Error>(()));
        rolling.enter("clock.now", Vec::new);
        let finished = rolling.finish(&Err(Trap::Timeout(Duration::from_secs(1))), Duration::ZERO);
        let recording = finished.recording();
        let text = recording.text();
        let again = Recording::parse(&text, "r.json").expect("it is read back");
        assert_eq!(again, recording);
        let [put, now] = again.calls.as_slice() else {
            panic!("two calls: {text}")
        };
        assert_eq!(
            (&*put.function, put.took_microseconds.is_some()),
            ("cache.set", true)
        );
        assert_eq!(
            put.arguments.get("value"),
            Some(&RecordedValue::Bytes(b"{\"z\":1}".to_vec()))
        );
        assert_eq!((&*now.function, now.took_microseconds), ("clock.now", None));
        assert!(again.ended.contains("took longer"), "{}", again.ended);
    }

    #[test]
    fn a_tape_has_an_end() {
        let mut rolling = rolling("a", 10_000, false, Vec::new());
        for _ in 0..1000 {
            rolling.enter("cache.get", || vec![("key", Box::new("k".to_owned()))]);
            rolling.leave(&Some(vec![0u8; 1000]));
        }
        let finished = rolling.finish(&settled(), Duration::ZERO);
        assert!(finished.weight() < 10_000 && !finished.replayable());
        assert_eq!(
            (finished.recording().calls.len(), finished.recording().cut),
            (8, true)
        );
    }

    #[test]
    fn of_a_plugin_that_reads_secrets_no_value_is_kept() {
        let mut rolling = rolling("a", 1 << 20, true, Vec::new());
        rolling.enter("kubernetes.get", || {
            unreachable!("its arguments are not looked at")
        });
        rolling.leave(&Ok::<Option<Vec<u8>>, crate::contract::bindings::types::Error>(
            Some(b"hunter2".to_vec()),
        ));
        let failure = Failure {
            resolution: Resolution::Retry,
            reason: "Bad".into(),
            message: "hunter2".into(),
            conditions: Vec::new(),
            status: Some(b"hunter2".to_vec()),
        };
        let finished = rolling.finish(&Ok(Err(failure)), Duration::ZERO);
        let text = finished.recording().text();
        assert!(
            text.contains("kubernetes.get") && text.contains("retry: Bad"),
            "{text}"
        );
        assert!(!text.contains("hunter2"), "{text}");
        assert!(!format!("{:?}", finished.summary()).contains("hunter2"));
    }
}
