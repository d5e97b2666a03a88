//! The file: everything one reconcile was told and said, to be read by people and replayed.

use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::value::RecordedValue;
use crate::{
    contract::limits::{Limits, LimitsSpec},
    kube::renamed_fields::explain_unknown_field,
};

/// The version of the file's format.
pub const API_VERSION: &str = "ostler.dev/v1alpha1";
/// What the file is.
pub const KIND: &str = "Recording";

/// Why a recording has no values in it.
pub const WITHHELD: &str = "the plugin may read Secrets (`readSecrets`), so no value is on the tape";

/// One reconcile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recording {
    /// [`API_VERSION`].
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// Its name and time.
    pub metadata: Metadata,
    /// Version of the host that recorded it.
    pub host: String,
    /// Who reconciled.
    pub plugin: Plugin,
    /// The object: `Team/demo/platform`.
    pub object: String,
    /// `reconcile` or `cleanup`.
    pub function: String,
    /// What it came to, in a few words.
    pub ended: String,
    /// How long it took.
    pub took_microseconds: u64,
    /// How long the component computed.
    pub cpu_microseconds: u64,
    /// Whether the tape was too short: later calls are missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Why there are no values in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
    /// What the call could use.
    pub limits: LimitsSpec,
    /// The plugin's configuration.
    #[serde(default)]
    pub config: RecordedValue,
    /// What the component was called with.
    #[serde(default)]
    pub request: RecordedValue,
    /// What a component that imports WASI was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wasi: Option<Wasi>,
    /// The host calls, in order.
    pub calls: Vec<Call>,
    /// `{"outcome": …}`, `{"failure": …}` or `{"trap": …}`.
    #[serde(default)]
    pub end: RecordedValue,
}

/// Name and time of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The reconcile's id, as in logs and traces.
    pub name: String,
    /// When it began.
    pub creation_timestamp: String,
}

/// A build of a plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plugin {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the component.
    pub digest: String,
}

/// A replay's own bounds: a file from elsewhere must not have the machine.
const TIME: Duration = Duration::from_secs(600);

/// The limits that a replay needs; those on host calls are on the tape by what they led to.
pub fn limits(limits: &Limits) -> LimitsSpec {
    LimitsSpec {
        memory: Some(limits.memory.into()),
        table_elements: Some(limits.table_elements),
        cpu_time: Some(limits.cpu_time.into()),
        timeout: Some(limits.timeout.into()),
        call_bytes: Some(limits.call_bytes.into()),
        ..LimitsSpec::default()
    }
}

/// One host call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// `kubernetes.get`.
    pub function: String,
    /// When, from the beginning.
    pub at_microseconds: u64,
    /// How long; absent when it never came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_microseconds: Option<u64>,
    /// By name.
    #[serde(default)]
    pub arguments: RecordedValue,
    /// What it gave.
    #[serde(default)]
    pub result: RecordedValue,
}

/// What WASI told: randomness by its seed, clocks by each reading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wasi {
    /// 32 bytes in hexadecimal.
    pub seed: String,
    /// Nanoseconds since the Unix epoch.
    pub wall_clock: Vec<u64>,
    /// Nanoseconds since some moment.
    pub monotonic_clock: Vec<u64>,
    /// More readings than are kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// A recording in a few words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The reconcile's id.
    pub id: String,
    /// When it began.
    pub at: String,
    /// The object.
    pub object: String,
    /// Who reconciled.
    pub plugin: String,
    /// In which build.
    pub digest: String,
    /// `reconcile` or `cleanup`.
    pub function: String,
    /// What it came to.
    pub ended: String,
    /// Host calls.
    pub calls: usize,
    /// What it keeps in memory, about.
    pub bytes: usize,
    /// Whether it can be replayed to its end.
    pub replayable: bool,
}

impl Recording {
    /// Reads a file. The error names it, and what is wrong.
    pub fn parse(text: &str, file: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Header {
            #[serde(default)]
            api_version: String,
            #[serde(default)]
            kind: String,
        }
        let header: Header = serde_json::from_str(text).map_err(|e| format!("{file}: no recording: {e}"))?;
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
        let recording: Self =
            serde_json::from_str(text).map_err(|e| format!("{file}: {}", explain_unknown_field(e)))?;
        match &*recording.function {
            "reconcile" | "cleanup" => Ok(recording),
            other => Err(format!(
                "{file}: function: `{other}` is neither `reconcile` nor `cleanup`"
            )),
        }
    }

    /// What a replay may use. The error names what no host can give.
    pub fn limits(&self) -> Result<Limits, String> {
        self.limits.check()?;
        let limits = self.limits.over(&Limits::default());
        Ok(Limits {
            cpu_time: limits.cpu_time.min(TIME),
            timeout: limits.timeout.min(TIME),
            ..limits
        })
    }

    /// As a file.
    pub fn text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// A time, to the microsecond.
pub fn timestamp(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| String::new(), |t| format!("{t:.6}"))
}

/// Milliseconds since the Unix epoch of such a time; 0 where it is none.
pub fn milliseconds(timestamp: &str) -> u64 {
    let parsed = timestamp.parse::<Timestamp>().map(|t| t.as_millisecond());
    parsed.ok().and_then(|ms| ms.try_into().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_recording_is_refused_with_its_reason() {
        for (text, words) in [
            ("hello", "r.json: no recording"),
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
        fn any_text_is_read_or_refused(text in ".*") {
            prop_assert!(Recording::parse(&text, "f").is_err());
        }
    }

    #[test]
    fn a_file_may_not_ask_for_the_whole_machine() {
        let recording = |limits: &str| {
            let text = format!(
                r#"{{"apiVersion": "ostler.dev/v1alpha1", "kind": "Recording", "metadata": {{"name": "r", "creationTimestamp": ""}},
                "host": "0", "plugin": {{"name": "p", "version": "1", "digest": "d"}}, "object": "A/b", "function": "cleanup",
                "ended": "", "tookMicroseconds": 1, "cpuMicroseconds": 1, "limits": {limits}, "calls": []}}"#
            );
            Recording::parse(&text, "r.json")
        };
        let patient =
            recording(r#"{"cpuTime": "1000h", "timeout": "1000h", "memory": "64Mi"}"#).expect("a recording");
        let limits = patient.limits().expect("limits");
        assert_eq!(
            (limits.cpu_time, limits.timeout, limits.memory),
            (TIME, TIME, 64 << 20)
        );
        let greedy = recording(r#"{"memory": "64Gi"}"#).expect("a recording").limits();
        assert!(greedy.expect_err("too much").contains("limits.memory is 64Gi"));
        assert!(recording(r#"{"memory": "much"}"#).is_err());
        // What is written is what is read.
        let kept = super::limits(&Limits {
            cpu_time: Duration::from_millis(1234),
            ..Limits::default()
        });
        let text = serde_json::to_string(&kept).unwrap();
        let read: LimitsSpec = serde_json::from_str(&text).unwrap();
        assert_eq!(
            read.over(&Limits::default()).cpu_time,
            Duration::from_millis(1234),
            "{text}"
        );
    }
}
