//! The recorder of a call. It clones the values of host calls; they are converted when the recording is read.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use super::{
    codec::Recordable,
    follow::Follower,
    format::{self, API_VERSION, KIND, Recording},
    trace::{self, TraceLine},
    value::RecordedValue,
    wasi::WasiInputs,
};
use crate::{
    contract::{
        bindings::{
            messages::{Delivery, Disposition},
            reconciler::{Failure, Next, Outcome, Request, Resolution},
            types::{self, Error},
        },
        trap::Trap,
    },
    kube::{key::ObjectRef, object::KubeObject},
    observe::telemetry::ReconcileId,
    policy::plugin_policy::PluginPolicy,
};

/// The arguments of a host call, by name.
pub type CallArguments = Vec<(&'static str, Box<dyn Recordable>)>;

/// Converts arguments to one record.
pub fn record_arguments(arguments: &CallArguments) -> RecordedValue {
    let named = arguments
        .iter()
        .map(|(name, value)| (super::codec::to_camel_case(name), value.to_recorded()));
    RecordedValue::Record(named.collect())
}

/// The facts about a call that its recording begins with.
pub struct CallInfo {
    /// The id of the reconcile.
    pub id: ReconcileId,
    /// The object; the `Plugin` for a message.
    pub key: ObjectRef,
    /// The function and its argument.
    pub input: CallInput,
    /// The plugin's name, configuration and limits.
    pub policy: Arc<PluginPolicy>,
    /// The version of the plugin.
    pub version: String,
    /// SHA-256 of the component.
    pub digest: String,
}

/// The function that is called, and its argument.
pub enum CallInput {
    /// `reconcile` or `cleanup`.
    Reconcile {
        /// The version of the object that the component gets.
        object: Arc<KubeObject>,
        /// Number of consecutive failures before.
        attempt: u32,
        /// The causes for which the object was queued.
        causes: Vec<String>,
        /// True for `cleanup`.
        cleanup: bool,
    },
    /// `messages.handle`.
    Handle(Arc<Delivery>),
}

impl CallInfo {
    /// The exported function that is called.
    pub fn function(&self) -> &'static str {
        match &self.input {
            CallInput::Reconcile { cleanup: false, .. } => "reconcile",
            CallInput::Reconcile { cleanup: true, .. } => "cleanup",
            CallInput::Handle(_) => "handle",
        }
    }

    /// The number of failures or deliveries before, and the causes.
    fn history(&self) -> (u32, Vec<String>) {
        match &self.input {
            CallInput::Reconcile { attempt, causes, .. } => (*attempt, causes.clone()),
            CallInput::Handle(delivery) => {
                (delivery.delivery_count, vec![format!("queue {}", delivery.queue)])
            }
        }
    }

    /// Estimated bytes of the argument.
    pub fn input_bytes(&self) -> usize {
        match &self.input {
            CallInput::Reconcile { object, .. } => object.json.len(),
            CallInput::Handle(delivery) => delivery.estimate_bytes(),
        }
    }

    fn record_request(&self) -> RecordedValue {
        match &self.input {
            CallInput::Reconcile {
                object,
                attempt,
                causes,
                ..
            } => Request {
                object: object.json.to_vec(),
                // The component was given the reference of an object of its own cluster.
                ref_: types::ObjectRef {
                    cluster: None,
                    ..(&self.key).into()
                },
                attempt: *attempt,
                causes: causes.clone(),
            }
            .to_recorded(),
            CallInput::Handle(delivery) => delivery.to_recorded(),
        }
    }
}

/// The end of a call.
#[derive(Clone, Debug)]
pub enum CallEnd {
    /// A reconcile or a cleanup succeeded.
    Outcome(Outcome),
    /// A reconcile or a cleanup failed.
    Failure(Failure),
    /// A message handler has decided.
    Disposition(Disposition),
    /// A message handler failed.
    Error(Error),
    /// The call did not return.
    Trap(Trap),
}

impl From<&Result<Result<Outcome, Failure>, Trap>> for CallEnd {
    fn from(end: &Result<Result<Outcome, Failure>, Trap>) -> Self {
        match end {
            Ok(Ok(outcome)) => Self::Outcome(outcome.clone()),
            Ok(Err(failure)) => Self::Failure(failure.clone()),
            Err(trap) => Self::Trap(trap.clone()),
        }
    }
}

impl From<&Result<Result<Disposition, Error>, Trap>> for CallEnd {
    fn from(end: &Result<Result<Disposition, Error>, Trap>) -> Self {
        match end {
            Ok(Ok(disposition)) => Self::Disposition(disposition.clone()),
            Ok(Err(error)) => Self::Error(error.clone()),
            Err(trap) => Self::Trap(trap.clone()),
        }
    }
}

/// A host call.
struct RecordedHostCall {
    function: &'static str,
    /// Time since the beginning of the call.
    at: Duration,
    /// None for a host call that has not returned.
    took: Option<Duration>,
    arguments: CallArguments,
    result: Option<Box<dyn Recordable>>,
}

/// Estimated bytes of a recorded host call besides its values.
const HOST_CALL_BYTES: usize = 160;

/// Bytes of the recordings in progress, which all calls that run share.
#[derive(Clone, Debug)]
pub struct ProgressBudget {
    used: Arc<AtomicUsize>,
    max: usize,
}

impl ProgressBudget {
    /// A budget of this many bytes.
    pub fn new(max: usize) -> Self {
        Self {
            used: Arc::default(),
            max,
        }
    }
}

/// The part of one recording, which it returns when it ends.
struct ProgressBytes {
    budget: ProgressBudget,
    bytes: usize,
}

impl ProgressBytes {
    /// Takes bytes from the budget; false if they are not there.
    fn try_take(&mut self, bytes: usize) -> bool {
        let max = self.budget.max;
        let take = |used: usize| used.checked_add(bytes).filter(|used| *used <= max);
        let taken = self
            .budget
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok();
        self.bytes += if taken { bytes } else { 0 };
        taken
    }
}

impl Drop for ProgressBytes {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Records one call into a component.
pub struct Recorder {
    info: CallInfo,
    at: SystemTime,
    started: Instant,
    host_calls: Vec<RecordedHostCall>,
    /// Estimated bytes of everything recorded.
    bytes: usize,
    max_bytes: usize,
    progress: ProgressBytes,
    /// The recording has reached `max_bytes`, or all in progress their sum: later host calls are missing.
    cut: bool,
    /// No values are recorded, because the plugin may read Secrets.
    withheld: bool,
    /// Number of host calls so far, recorded or not.
    calls: u32,
    /// The host call that is running.
    open: Option<RecordedHostCall>,
    followers: Vec<Follower>,
    wasi: Option<WasiInputs>,
}

impl Recorder {
    /// A recorder for a call that begins now. With `withheld` no values are recorded.
    pub(super) fn new(
        info: CallInfo,
        max_bytes: usize,
        progress: ProgressBudget,
        withheld: bool,
        followers: Vec<Follower>,
    ) -> Self {
        let at = SystemTime::now();
        if followers.iter().any(Follower::receives_lines) {
            let (attempt, causes) = info.history();
            let line = TraceLine::Start {
                reconcile: info.id.to_string(),
                object: info.key.to_string(),
                plugin: info.policy.plugin.to_string(),
                version: info.version.clone(),
                digest: info.digest.clone(),
                function: info.function().into(),
                attempt,
                causes,
                at: format::format_timestamp(at),
            };
            followers.iter().for_each(|follower| follower.send_line(&line));
        }
        Self {
            bytes: info.input_bytes(),
            info,
            at,
            started: Instant::now(),
            host_calls: Vec::new(),
            max_bytes,
            progress: ProgressBytes {
                budget: progress,
                bytes: 0,
            },
            cut: false,
            withheld,
            calls: 0,
            open: None,
            followers,
            wasi: None,
        }
    }

    /// The clocks and the randomness of a component that imports WASI, which are recorded from now on.
    pub fn wasi_inputs(&mut self) -> WasiInputs {
        self.wasi.get_or_insert_with(WasiInputs::recorded).clone()
    }

    /// Records the beginning of a host call. `arguments` is not called where they are not recorded.
    pub fn begin_host_call(&mut self, function: &'static str, arguments: impl FnOnce() -> CallArguments) {
        self.calls += 1;
        if self.cut && self.followers.is_empty() {
            return;
        }
        self.open = Some(RecordedHostCall {
            function,
            at: self.started.elapsed(),
            took: None,
            arguments: if self.withheld { Vec::new() } else { arguments() },
            result: None,
        });
    }

    /// Records the result of the host call that is running.
    pub fn end_host_call<T: Recordable + Clone>(&mut self, result: &T) {
        let Some(mut host_call) = self.open.take() else {
            return;
        };
        host_call.took = Some(self.started.elapsed().saturating_sub(host_call.at));
        if self.followers.iter().any(Follower::receives_lines) {
            let line = TraceLine::Call {
                reconcile: self.info.id.to_string(),
                number: self.calls,
                function: host_call.function.into(),
                at_microseconds: to_micros(host_call.at),
                took_microseconds: host_call.took.map_or(0, to_micros),
                arguments: if self.withheld {
                    trace::WITHHELD.into()
                } else {
                    trace::summarize_arguments(&record_arguments(&host_call.arguments))
                },
                result: if self.withheld {
                    String::new()
                } else {
                    trace::summarize_result(&result.to_recorded())
                },
            };
            self.followers
                .iter()
                .for_each(|follower| follower.send_line(&line));
        }
        let values: usize = host_call
            .arguments
            .iter()
            .map(|(_, value)| value.estimate_bytes())
            .sum();
        let bytes = if self.withheld {
            HOST_CALL_BYTES
        } else {
            HOST_CALL_BYTES + values + result.estimate_bytes()
        };
        self.cut = self.cut || self.bytes + bytes > self.max_bytes || !self.progress.try_take(bytes);
        if !self.cut {
            self.bytes += bytes;
            host_call.result = (!self.withheld).then(|| Box::new(result.clone()) as Box<dyn Recordable>);
            self.host_calls.push(host_call);
        }
    }

    /// Ends the recording. A host call that is still running is recorded without a result.
    pub fn finish(mut self, end: &CallEnd, cpu_time: Duration) -> RecordedCall {
        let took = self.started.elapsed();
        if let Some(open) = self.open.take().filter(|_| !self.cut) {
            self.host_calls.push(open);
        }
        let line = |ended| TraceLine::End {
            reconcile: self.info.id.to_string(),
            ended,
            took_microseconds: to_micros(took),
            cpu_microseconds: to_micros(cpu_time),
            calls: self.calls,
        };
        if self.followers.iter().any(Follower::receives_lines) {
            let line = line(summarize_end(end, self.withheld));
            self.followers
                .iter()
                .for_each(|follower| follower.send_line(&line));
        }
        let wasi = self.wasi.map(|wasi| wasi.readings());
        RecordedCall {
            bytes: self.bytes + estimate_end_bytes(end),
            cut: self.cut || wasi.as_ref().is_some_and(|wasi| wasi.cut),
            end: end.clone(),
            info: self.info,
            at: self.at,
            took,
            cpu_time,
            host_calls: self.host_calls,
            withheld: self.withheld,
            followers: self.followers,
            wasi,
        }
    }
}

/// A recorded call. Its values are converted by [`RecordedCall::to_recording`].
pub struct RecordedCall {
    info: CallInfo,
    at: SystemTime,
    took: Duration,
    cpu_time: Duration,
    host_calls: Vec<RecordedHostCall>,
    bytes: usize,
    cut: bool,
    withheld: bool,
    end: CallEnd,
    followers: Vec<Follower>,
    wasi: Option<format::Wasi>,
}

impl RecordedCall {
    /// The object.
    pub fn key(&self) -> &ObjectRef {
        &self.info.key
    }

    /// The plugin's configuration at that time.
    pub fn config(&self) -> &[u8] {
        &self.info.policy.config
    }

    /// The time at which it began.
    pub fn started_at(&self) -> SystemTime {
        self.at
    }

    /// The name of the plugin.
    pub fn plugin(&self) -> &Arc<str> {
        &self.info.policy.plugin
    }

    /// The estimated size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if it can be replayed to its end.
    pub fn is_replayable(&self) -> bool {
        !self.cut && !self.withheld
    }

    /// Sends the recording to its followers, and drops them: a stored recording must not keep the channel of a client open.
    pub(super) fn send_to_followers(mut self) -> Arc<Self> {
        let followers = std::mem::take(&mut self.followers);
        let recorded = Arc::new(self);
        for follower in followers {
            follower.send_recording(&recorded);
        }
        recorded
    }

    /// Summarizes it for a list.
    pub fn summary(&self) -> format::RecordingSummary {
        format::RecordingSummary {
            id: self.info.id.to_string(),
            at: format::format_timestamp(self.at),
            object: self.info.key.to_string(),
            plugin: self.info.policy.plugin.to_string(),
            digest: self.info.digest.clone(),
            function: self.info.function().into(),
            ended: summarize_end(&self.end, self.withheld),
            calls: self.host_calls.len(),
            bytes: self.bytes,
            replayable: self.is_replayable(),
        }
    }

    /// Converts it to the format of recording files.
    pub fn to_recording(&self) -> Recording {
        let CallInfo { policy, .. } = &self.info;
        let unless_withheld = |convert: fn(&Self) -> RecordedValue| {
            if self.withheld {
                RecordedValue::Null
            } else {
                convert(self)
            }
        };
        Recording {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: format::RecordingMetadata {
                name: self.info.id.to_string(),
                creation_timestamp: format::format_timestamp(self.at),
            },
            host: env!("CARGO_PKG_VERSION").into(),
            plugin: format::RecordedPlugin {
                name: policy.plugin.to_string(),
                version: self.info.version.clone(),
                digest: self.info.digest.clone(),
            },
            object: self.info.key.to_string(),
            function: self.info.function().into(),
            ended: summarize_end(&self.end, self.withheld),
            took_microseconds: to_micros(self.took),
            cpu_microseconds: to_micros(self.cpu_time),
            cut: self.cut,
            withheld: self.withheld.then(|| format::WITHHELD_REASON.to_owned()),
            limits: format::select_limits(&policy.limits),
            config: unless_withheld(|call| call.info.policy.config.to_recorded()),
            request: unless_withheld(|call| call.info.record_request()),
            wasi: self.wasi.clone().filter(|_| !self.withheld),
            calls: self.host_calls.iter().map(RecordedHostCall::to_format).collect(),
            end: unless_withheld(|call| record_end(&call.end)),
        }
    }
}

impl RecordedHostCall {
    fn to_format(&self) -> format::HostCallRecord {
        format::HostCallRecord {
            function: self.function.into(),
            at_microseconds: to_micros(self.at),
            took_microseconds: self.took.map(to_micros),
            arguments: record_arguments(&self.arguments),
            result: self.result.as_ref().map(|r| r.to_recorded()).unwrap_or_default(),
        }
    }
}

fn to_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn estimate_end_bytes(end: &CallEnd) -> usize {
    match end {
        CallEnd::Outcome(outcome) => outcome.estimate_bytes(),
        CallEnd::Failure(failure) => failure.estimate_bytes(),
        CallEnd::Disposition(disposition) => disposition.estimate_bytes(),
        CallEnd::Error(error) => error.estimate_bytes(),
        CallEnd::Trap(_) => 0,
    }
}

/// Converts the end of a call.
pub fn record_end(end: &CallEnd) -> RecordedValue {
    RecordedValue::Record(vec![match end {
        CallEnd::Outcome(outcome) => ("outcome".into(), outcome.to_recorded()),
        CallEnd::Failure(failure) => ("failure".into(), failure.to_recorded()),
        CallEnd::Disposition(disposition) => ("disposition".into(), disposition.to_recorded()),
        CallEnd::Error(error) => ("error".into(), error.to_recorded()),
        CallEnd::Trap(trap) => ("trap".into(), RecordedValue::Text(trap.to_string())),
    }])
}

/// Summarizes the end of a call, without the message of the plugin if values are withheld.
fn summarize_end(end: &CallEnd, withheld: bool) -> String {
    let seconds = |ms: u64| format!("{:?}", Duration::from_millis(ms));
    match end {
        CallEnd::Outcome(outcome) => match outcome.next {
            Next::AwaitChange => "awaits a change".into(),
            Next::Poll(None) => "polls".into(),
            Next::Poll(Some(ms)) => format!("polls every {}", seconds(ms)),
            Next::After(ms) => format!("comes back after {}", seconds(ms)),
            Next::At(ms) => {
                let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms));
                format!(
                    "comes back at {}",
                    at.map_or_else(|| format!("{ms} ms"), format::format_timestamp)
                )
            }
        },
        CallEnd::Failure(failure) => {
            let resolution = match &failure.resolution {
                Resolution::Retry => "retry".into(),
                Resolution::Wait => "waits".into(),
                Resolution::Terminal => "terminal".into(),
                Resolution::Throttled(ms) => format!("throttled for {}", seconds(*ms)),
                Resolution::Denied(_) => "denied".into(),
            };
            if withheld {
                format!("{resolution}: {}", failure.reason)
            } else {
                format!("{resolution}: {}: {}", failure.reason, failure.message)
            }
        }
        CallEnd::Disposition(Disposition::Ack) => "acknowledged".into(),
        CallEnd::Disposition(Disposition::RetryAfter(ms)) => {
            format!("is delivered again after {}", seconds(*ms))
        }
        CallEnd::Disposition(Disposition::Reject(_)) | CallEnd::Error(_) if withheld => "not handled".into(),
        CallEnd::Disposition(Disposition::Reject(reason)) => format!("rejected: {reason}"),
        CallEnd::Error(error) => format!("{error:?}"),
        // The message may contain what the component has read.
        CallEnd::Trap(Trap::Panicked(_)) if withheld => "trapped".into(),
        CallEnd::Trap(trap) => trap.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{kube::key::Gvk, policy::grants::Grants};

    /// A recording of an object of this name and of about this size.
    pub fn recorded_call(name: &str, bytes: usize) -> RecordedCall {
        let mut recorder = recorder(name, 1 << 20, false, Vec::new());
        recorder.begin_host_call("cache.get", || vec![("key", Box::new("k".to_owned()))]);
        recorder.end_host_call(&Some(vec![0u8; bytes]));
        recorder.finish(&awaits_change(), Duration::ZERO)
    }

    pub fn awaits_change() -> CallEnd {
        CallEnd::Outcome(Outcome {
            conditions: Vec::new(),
            status: None,
            next: Next::AwaitChange,
        })
    }

    pub fn recorder(name: &str, max_bytes: usize, withheld: bool, followers: Vec<Follower>) -> Recorder {
        let gvk = Gvk::new("a.dev", "v1", "Thing");
        let object = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n"}}}}"#);
        let (key, object) = KubeObject::parse(&gvk, object.as_bytes()).expect("an object");
        let info = CallInfo {
            id: ReconcileId::next(),
            key,
            input: CallInput::Reconcile {
                object: Arc::new(object),
                attempt: 0,
                causes: vec!["change".into()],
                cleanup: false,
            },
            policy: Arc::new(PluginPolicy {
                plugin: "thing".into(),
                grants: Grants::default().grants_for("thing"),
                config: b"{}".to_vec(),
                limits: crate::contract::limits::PluginLimits::default(),
            }),
            version: "1.0.0".into(),
            digest: "d1".into(),
        };
        Recorder::new(
            info,
            max_bytes,
            ProgressBudget::new(usize::MAX),
            withheld,
            followers,
        )
    }

    #[test]
    fn message_is_the_request_of_its_recording() {
        let mut of_message = recorder("a", 1 << 20, false, Vec::new());
        let delivery = Delivery {
            broker: crate::contract::bindings::types::UpstreamRef {
                cluster: None,
                namespace: Some("n".into()),
                name: "mq".into(),
            },
            queue: "orders".into(),
            exchange: String::new(),
            routing_key: "orders".into(),
            properties: crate::contract::bindings::types::MessageProperties {
                content_type: None,
                content_encoding: None,
                headers: vec![],
                persistent: true,
                priority: None,
                correlation_id: None,
                reply_to: None,
                expiration: None,
                message_id: Some("m1".into()),
                timestamp: None,
                type_: None,
                user_id: None,
                app_id: None,
            },
            body: b"{\"order\":7}".to_vec(),
            delivery_count: 2,
        };
        of_message.info.input = CallInput::Handle(Arc::new(delivery.clone()));
        let end = CallEnd::Disposition(Disposition::Reject("no such order".into()));
        let recording = of_message.finish(&end, Duration::ZERO).to_recording();
        let parsed = Recording::parse(&recording.to_text(), "r.json").expect("a recording");
        assert_eq!(
            (&*parsed.function, &*parsed.ended),
            ("handle", "rejected: no such order")
        );
        assert_eq!(Delivery::from_recorded(parsed.request), Ok(delivery));
        assert!(parsed.end.get("disposition").is_some());
    }

    #[test]
    fn host_calls_are_in_the_recording() {
        let mut recorder = recorder("a", 1 << 20, false, Vec::new());
        recorder.begin_host_call("cache.set", || {
            vec![
                ("key", Box::new("k".to_owned()) as Box<dyn Recordable>),
                ("value", Box::new(b"{\"z\":1}".to_vec())),
            ]
        });
        recorder.end_host_call(&Ok::<(), crate::contract::bindings::types::Error>(()));
        recorder.begin_host_call("clock.now", Vec::new);
        let recorded = recorder.finish(
            &CallEnd::Trap(Trap::Timeout(Duration::from_secs(1))),
            Duration::ZERO,
        );
        let recording = recorded.to_recording();
        let text = recording.to_text();
        let parsed = Recording::parse(&text, "r.json").expect("a recording");
        assert_eq!(parsed, recording);
        let [put, now] = parsed.calls.as_slice() else {
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
        assert!(parsed.ended.contains("took longer"), "{}", parsed.ended);
    }

    #[test]
    fn recording_beyond_its_size_is_cut() {
        let mut recorder = recorder("a", 10_000, false, Vec::new());
        for _ in 0..1000 {
            recorder.begin_host_call("cache.get", || vec![("key", Box::new("k".to_owned()))]);
            recorder.end_host_call(&Some(vec![0u8; 1000]));
        }
        let recorded = recorder.finish(&awaits_change(), Duration::ZERO);
        assert!(recorded.bytes() < 10_000 && !recorded.is_replayable());
        assert_eq!(
            (recorded.to_recording().calls.len(), recorded.to_recording().cut),
            (8, true)
        );
    }

    #[test]
    fn recording_of_a_plugin_that_reads_secrets_has_no_values() {
        let mut recorder = recorder("a", 1 << 20, true, Vec::new());
        recorder.begin_host_call("kubernetes.get", || {
            unreachable!("its arguments are not recorded")
        });
        recorder.end_host_call(&Ok::<Option<Vec<u8>>, crate::contract::bindings::types::Error>(
            Some(b"hunter2".to_vec()),
        ));
        let failure = Failure {
            resolution: Resolution::Retry,
            reason: "Bad".into(),
            message: "hunter2".into(),
            conditions: Vec::new(),
            status: Some(b"hunter2".to_vec()),
        };
        let recorded = recorder.finish(&CallEnd::Failure(failure), Duration::ZERO);
        let text = recorded.to_recording().to_text();
        assert!(
            text.contains("kubernetes.get") && text.contains("retry: Bad"),
            "{text}"
        );
        assert!(!text.contains("hunter2"), "{text}");
        assert!(!format!("{:?}", recorded.summary()).contains("hunter2"));
    }
}
