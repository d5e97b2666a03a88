//! The format of recording files: the inputs and outputs of one reconcile, to be read by people and replayed.

use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::value::RecordedValue;
use crate::contract::limits::{LimitsSpec, PluginLimits};

/// The version of the file's format.
pub const API_VERSION: &str = "ostler.dev/v1alpha1";
/// The kind of the file.
pub const KIND: &str = "Recording";

/// The reason why a recording has no values.
pub const WITHHELD_REASON: &str = "the plugin may read Secrets (`readSecrets`), so no values are recorded";

/// The recording of one reconcile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recording {
    /// [`API_VERSION`].
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// The name and time of the recording.
    pub metadata: RecordingMetadata,
    /// Version of the host that recorded it.
    pub host: String,
    /// The build of the plugin.
    pub plugin: RecordedPlugin,
    /// The object: `Team/demo/platform`.
    pub object: String,
    /// `reconcile`, `cleanup` or `handle`.
    pub function: String,
    /// A summary of the outcome.
    pub ended: String,
    /// The duration of the call.
    pub took_microseconds: u64,
    /// The CPU time of the component.
    pub cpu_microseconds: u64,
    /// The recording has reached its maximum size: later host calls are missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// The reason why values are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
    /// The limits of the call.
    pub limits: LimitsSpec,
    /// The plugin's configuration.
    #[serde(default)]
    pub config: RecordedValue,
    /// The request that the component got, or the message.
    #[serde(default)]
    pub request: RecordedValue,
    /// Clock readings and randomness, of a component that imports WASI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wasi: Option<Wasi>,
    /// The host calls, in order.
    pub calls: Vec<HostCallRecord>,
    /// `{"outcome": …}`, `{"failure": …}` or `{"trap": …}`; of a message `{"disposition": …}` or `{"error": …}`.
    #[serde(default)]
    pub end: RecordedValue,
}

/// Name and time of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordingMetadata {
    /// The id of the reconcile, as in logs and traces.
    pub name: String,
    /// The time at which it began.
    pub creation_timestamp: String,
}

/// A build of a plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedPlugin {
    /// The name of the plugin.
    pub name: String,
    /// The version of the plugin.
    pub version: String,
    /// SHA-256 of the component.
    pub digest: String,
}

/// Maximum time of a replay, whatever the file says: it may come from elsewhere.
const MAX_REPLAY_TIME: Duration = Duration::from_secs(600);

/// Selects the limits that a replay needs. Limits of host calls show in the recorded results.
pub fn select_limits(limits: &PluginLimits) -> LimitsSpec {
    LimitsSpec {
        memory: Some(limits.memory.into()),
        table_elements: Some(limits.table_elements),
        cpu_time: Some(limits.cpu_time.into()),
        timeout: Some(limits.timeout.into()),
        call_bytes: Some(limits.call_bytes.into()),
        ..LimitsSpec::default()
    }
}

/// A host call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostCallRecord {
    /// `kubernetes.get`.
    pub function: String,
    /// The time of the call since the beginning of the reconcile.
    pub at_microseconds: u64,
    /// The duration; absent if the call did not return.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_microseconds: Option<u64>,
    /// The arguments by name.
    #[serde(default)]
    pub arguments: RecordedValue,
    /// The result.
    #[serde(default)]
    pub result: RecordedValue,
}

/// The inputs of a component that imports WASI: the seed of the randomness, and each reading of a clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wasi {
    /// 32 bytes in hexadecimal.
    pub seed: String,
    /// Nanoseconds since the Unix epoch.
    pub wall_clock: Vec<u64>,
    /// Nanoseconds since an arbitrary moment.
    pub monotonic_clock: Vec<u64>,
    /// Readings are missing, because the maximum number was reached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// The summary of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordingSummary {
    /// The id of the reconcile.
    pub id: String,
    /// The time at which it began.
    pub at: String,
    /// The object.
    pub object: String,
    /// The plugin.
    pub plugin: String,
    /// SHA-256 of the component.
    pub digest: String,
    /// `reconcile`, `cleanup` or `handle`.
    pub function: String,
    /// A summary of the outcome.
    pub ended: String,
    /// The number of host calls.
    pub calls: usize,
    /// The estimated size in bytes.
    pub bytes: usize,
    /// True if it can be replayed to its end.
    pub replayable: bool,
}

impl Recording {
    /// Parses a file. The error names the file and the field.
    pub fn parse(text: &str, file: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Header {
            #[serde(default)]
            api_version: String,
            #[serde(default)]
            kind: String,
        }
        let header: Header =
            serde_json::from_str(text).map_err(|e| format!("{file}: not a recording: {e}"))?;
        if header.kind != KIND {
            return Err(format!(
                "{file}: kind: it is `{}`, not `{KIND}`: `ostler record` makes one",
                header.kind
            ));
        }
        if header.api_version != API_VERSION {
            return Err(format!(
                "{file}: apiVersion: this host reads `{API_VERSION}`, not `{}`",
                header.api_version
            ));
        }
        let recording: Self = serde_json::from_str(text).map_err(|e| format!("{file}: {}", e))?;
        match &*recording.function {
            "reconcile" | "cleanup" | "handle" => Ok(recording),
            other => Err(format!(
                "{file}: function: `{other}` is none of `reconcile`, `cleanup` and `handle`"
            )),
        }
    }

    /// The limits of a replay. The error names a limit that no host can grant.
    pub fn limits(&self) -> Result<PluginLimits, String> {
        self.limits.check()?;
        let limits = self.limits.with_defaults(&PluginLimits::default());
        Ok(PluginLimits {
            cpu_time: limits.cpu_time.min(MAX_REPLAY_TIME),
            timeout: limits.timeout.min(MAX_REPLAY_TIME),
            ..limits
        })
    }

    /// Formats the file.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// Formats a time with microseconds.
pub fn format_timestamp(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| String::new(), |t| format!("{t:.6}"))
}

/// Parses a time to milliseconds since the Unix epoch; 0 if it is malformed.
pub fn parse_milliseconds(timestamp: &str) -> u64 {
    let parsed = timestamp.parse::<Timestamp>().map(|t| t.as_millisecond());
    parsed.ok().and_then(|ms| ms.try_into().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_that_is_not_a_recording_is_an_error_with_its_reason() {
        for (text, words) in [
            ("hello", "r.json: not a recording"),
            ("{}", "kind: it is ``, not `Recording`"),
            (
                r#"{"kind": "Recording", "apiVersion": "ostler.dev/v9"}"#,
                "this host reads `ostler.dev/v1alpha1`",
            ),
            (
                r#"{"kind": "Recording", "apiVersion": "ostler.dev/v1alpha1"}"#,
                "missing field `metadata`",
            ),
        ] {
            let error = Recording::parse(text, "r.json").expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused(text in ".*") {
            prop_assert!(Recording::parse(&text, "f").is_err());
        }
    }

    #[test]
    fn limits_of_a_file_are_bounded() {
        let recording = |limits: &str| {
            let text = format!(
                r#"{{"apiVersion": "ostler.dev/v1alpha1", "kind": "Recording", "metadata": {{"name": "r", "creationTimestamp": ""}},
                "host": "0", "plugin": {{"name": "p", "version": "1", "digest": "d"}}, "object": "A/b", "function": "cleanup",
                "ended": "", "tookMicroseconds": 1, "cpuMicroseconds": 1, "limits": {limits}, "calls": []}}"#
            );
            Recording::parse(&text, "r.json")
        };
        let long =
            recording(r#"{"cpuTime": "1000h", "timeout": "1000h", "memory": "64Mi"}"#).expect("a recording");
        let limits = long.limits().expect("limits");
        assert_eq!(
            (limits.cpu_time, limits.timeout, limits.memory),
            (MAX_REPLAY_TIME, MAX_REPLAY_TIME, 64 << 20)
        );
        let large = recording(r#"{"memory": "64Gi"}"#).expect("a recording").limits();
        assert!(large.expect_err("too much").contains("limits.memory is 64Gi"));
        assert!(recording(r#"{"memory": "much"}"#).is_err());
        // A duration is read back as it was written.
        let selected = select_limits(&PluginLimits {
            cpu_time: Duration::from_millis(1234),
            ..PluginLimits::default()
        });
        let text = serde_json::to_string(&selected).unwrap();
        let read: LimitsSpec = serde_json::from_str(&text).unwrap();
        assert_eq!(
            read.with_defaults(&PluginLimits::default()).cpu_time,
            Duration::from_millis(1234),
            "{text}"
        );
    }
}
