//! The messages between the steps plugin and the shim in its pods: configurations as arguments, the sources of inputs as an
//! annotation, and the report as the termination message of a container.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Directory of the volume that all containers of the pod share.
pub const ROOT_PATH: &str = "/ostler";

/// Path of the shim in the shared volume, where the init container puts it.
pub const SHIM_PATH: &str = "/ostler/bin/shim";

/// File with the key of the artifacts, from a Secret. The process's container does not have it.
pub const KEY_PATH: &str = "/var/run/ostler/key/key";

/// File with the sources of the inputs, from the annotation [`INPUTS_ANNOTATION`]. The kubelet updates it.
pub const SOURCES_PATH: &str = "/var/run/ostler/pod/inputs";

/// Annotation of a pod with its [`InputSource`]s as JSON.
pub const INPUTS_ANNOTATION: &str = "steps.ostler.dev/inputs";

/// Port of the streamer.
pub const STREAMER_PORT: u16 = 17_788;

/// Size that the kubelet keeps of a termination message, in bytes.
pub const MAX_REPORT_BYTES: usize = 4096;

/// Size up to which the log fills a report, in bytes. The kubelet divides 12 KiB by the number of all containers of a pod, those
/// included that others inject, and keeps so much of each message: this much of five containers.
const FILLED_REPORT_BYTES: usize = 2400;

/// Size of the log that even a report with many artifacts has, in bytes, if that fits into [`MAX_REPORT_BYTES`].
const MIN_LOG_BYTES: usize = 512;

/// Size of the longest message of an error in a report, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 512;

/// The configuration of the entry point, `shim run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunConfig {
    /// The process.
    pub process: ProcessConfig,
    /// Names of the inputs that must have been unpacked before the process starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
    /// The outputs that are packed after the process has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Directory>,
    /// Seconds that the process may run; none for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// Seconds between SIGTERM and SIGKILL.
    pub grace_seconds: u64,
    /// Size of the tail of the log in the report, in bytes.
    pub log_tail_bytes: usize,
    /// The shared volume.
    #[serde(default = "root_path", skip_serializing_if = "is_root_path")]
    pub root: String,
    /// The file of the termination message.
    #[serde(default = "termination_path", skip_serializing_if = "is_termination_path")]
    pub termination_path: String,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProcessConfig {
    /// Path of the executable, or a name that is looked up in `PATH`.
    pub path: String,
    /// The arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// The user: a name in the image's `/etc/passwd`, or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A named directory: an input, or an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Directory {
    /// The name.
    pub name: String,
    /// The directory.
    pub path: String,
}

/// The configuration of the input fetcher, `shim fetch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FetchConfig {
    /// The inputs.
    pub inputs: Vec<Directory>,
    /// Seconds until missing inputs are given up.
    pub timeout_seconds: u64,
    /// The shared volume.
    #[serde(default = "root_path", skip_serializing_if = "is_root_path")]
    pub root: String,
    /// The file with the sources.
    #[serde(default = "sources_path", skip_serializing_if = "is_sources_path")]
    pub sources_path: String,
    /// The file with the key.
    #[serde(default = "key_path", skip_serializing_if = "is_key_path")]
    pub key_path: String,
    /// The file of the termination message.
    #[serde(default = "termination_path", skip_serializing_if = "is_termination_path")]
    pub termination_path: String,
}

/// The configuration of the output streamer, `shim serve`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServeConfig {
    /// UID of the Step, from which its token is derived.
    pub step: String,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// The address to listen at.
    #[serde(default = "listen_address", skip_serializing_if = "is_listen_address")]
    pub listen: String,
    /// The shared volume.
    #[serde(default = "root_path", skip_serializing_if = "is_root_path")]
    pub root: String,
    /// The file with the key.
    #[serde(default = "key_path", skip_serializing_if = "is_key_path")]
    pub key_path: String,
    /// The file of the termination message.
    #[serde(default = "termination_path", skip_serializing_if = "is_termination_path")]
    pub termination_path: String,
}

/// The place of an input's artifact. The annotation changes when the producer's pod does, so no address is final.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InputSource {
    /// Name of the input.
    pub name: String,
    /// Name of the producer's output.
    pub artifact: String,
    /// UID of the producer.
    pub step: String,
    /// Address of the producer's streamer, `IP:port`.
    pub address: String,
    /// Digest of the artifact, `sha256:…`.
    pub digest: String,
    /// Size of the artifact in bytes, as it is sent.
    pub bytes: u64,
}

/// The report of a container, its termination message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerReport {
    /// Exit code of the process: 128 plus the number for a signal. None if it did not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Number of the signal that ended the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// True if the process exceeded its timeout.
    #[serde(default, skip_serializing_if = "is_false")]
    pub timed_out: bool,
    /// True if the container got SIGTERM before the process ended.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stopped: bool,
    /// True if the kernel ended a process of the container for its use of memory.
    #[serde(default, skip_serializing_if = "is_false")]
    pub oom_killed: bool,
    /// Start of the process, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<u64>,
    /// End of the process, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<u64>,
    /// The shim's own error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ReportError>,
    /// The packed outputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// The end of what the process wrote.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log: String,
}

/// A packed output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// Name of the output.
    pub name: String,
    /// Digest, `sha256:…`.
    pub digest: String,
    /// Size in bytes, as it is sent.
    pub bytes: u64,
}

/// An error of the shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportError {
    /// The cause.
    pub reason: ErrorReason,
    /// One sentence with the remedy.
    pub message: String,
}

/// The cause of an error of the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorReason {
    /// The executable does not exist.
    CommandNotFound,
    /// The executable cannot be executed.
    CommandNotExecutable,
    /// The working directory does not exist.
    DirectoryNotFound,
    /// The user does not exist, or the container may not change to it.
    UserNotUsable,
    /// An input was not there in time.
    InputMissing,
    /// An input is not what its producer reported.
    InputCorrupted,
    /// An input could not be unpacked.
    InputNotUnpacked,
    /// An output could not be packed.
    OutputNotPacked,
    /// The streamer could not listen.
    StreamerFailed,
    /// The configuration cannot be read.
    ConfigInvalid,
}

impl ContainerReport {
    /// A report of an error.
    #[must_use]
    pub fn of_error(reason: ErrorReason, message: impl Into<String>) -> Self {
        let error = Some(ReportError {
            reason,
            message: message.into(),
        });
        Self {
            error,
            ..Self::default()
        }
    }

    /// Encodes the report within the size that the kubelet keeps, since a part of one is no report: the log loses its beginning,
    /// then a message its end. Artifacts that do not fit even so are left out with an error, so that no consumer waits for them.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut report = self.clone();
        if let Some(error) = &mut report.error {
            truncate_end(&mut error.message, MAX_MESSAGE_BYTES);
        }
        let without_log = Self {
            log: String::new(),
            ..report.clone()
        };
        let length = serde_json::to_string(&without_log).unwrap_or_default().len();
        let max_with_log = (length + MIN_LOG_BYTES).clamp(FILLED_REPORT_BYTES, MAX_REPORT_BYTES);
        loop {
            let text = serde_json::to_string(&report).unwrap_or_default();
            let max = if report.log.is_empty() {
                MAX_REPORT_BYTES
            } else {
                max_with_log
            };
            let excess = text.len().saturating_sub(max);
            if excess == 0 {
                return text;
            }
            // An escaped character takes up to six bytes for its one, so this many at least have to go.
            let cut = excess.div_ceil(6);
            let message = report.error.as_mut().map(|error| &mut error.message);
            if !report.log.is_empty() {
                truncate_start(&mut report.log, cut);
            } else if let Some(message) = message.filter(|message| !message.is_empty()) {
                let kept = message.len().saturating_sub(cut);
                truncate_end(message, kept);
            } else {
                let count = report.artifacts.len();
                report.artifacts.clear();
                report.error = Some(ReportError {
                    reason: ErrorReason::OutputNotPacked,
                    message: format!(
                        "{count} outputs do not fit into a report of {MAX_REPORT_BYTES} bytes: use fewer, or shorter names."
                    ),
                });
            }
        }
    }

    /// Decodes a termination message; none if it is not of the shim. One that the kubelet has cut has the fields before the cut:
    /// the log is the last of them. Artifacts that are missing are an error.
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        Self::decode_by(text, |value| serde_json::from_value(value).ok())
    }

    /// Decodes a termination message by a function that reads a report: a component has less code with that of the SDK.
    pub fn decode_by(text: &str, read: impl Fn(Value) -> Option<Self>) -> Option<Self> {
        let parse = |text: &str| read(serde_json::from_slice(text.as_bytes()).ok()?);
        if let Some(report) = parse(text) {
            return Some(report);
        }
        // Fields begin with a comma and a quote; those within another field leave no JSON before them.
        let ends = text.rmatch_indices(",\"").map(|(end, _)| end);
        let whole = text.trim_end_matches(',').len();
        let mut ends = std::iter::once(whole).chain(ends);
        let (end, mut report) = ends.find_map(|end| {
            let report = parse(&[&text[..end], "}"].concat())?;
            Some((end, report))
        })?;
        let lost = &text[end..];
        if let Some(log) = lost.strip_prefix(LOG_FIELD) {
            report.log = read_cut_string(log);
        } else if !LOG_FIELD.starts_with(lost) {
            report.error = Some(ReportError {
                reason: ErrorReason::OutputNotPacked,
                message: CUT_MESSAGE.to_owned(),
            });
        }
        Some(report)
    }
}

/// Beginning of the last field of a report.
const LOG_FIELD: &str = ",\"log\":";

/// Message for artifacts that a report has lost.
const CUT_MESSAGE: &str = "The kubelet has cut the report of the outputs: use fewer outputs, or shorter names, or have fewer \
                           containers injected into the pod.";

/// Reads a JSON string without its end, which may be in the middle of an escaped character.
fn read_cut_string(text: &str) -> String {
    let ends = (text.len().saturating_sub(12)..=text.len()).rev();
    let ends = ends.filter(|end| text.is_char_boundary(*end));
    let parse = |end: usize| serde_json::from_slice([&text[..end], "\""].concat().as_bytes()).ok();
    let mut strings = ends.filter_map(|end| match parse(end)? {
        Value::String(text) => Some(text),
        _ => None,
    });
    strings.next().unwrap_or_default()
}

fn truncate_end(text: &mut String, max: usize) {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max));
    }
}

fn truncate_start(text: &mut String, cut: usize) {
    let end = text.ceil_char_boundary(cut.min(text.len()));
    text.drain(..end);
}

fn root_path() -> String {
    ROOT_PATH.into()
}

fn is_root_path(path: &str) -> bool {
    path == ROOT_PATH
}

fn sources_path() -> String {
    SOURCES_PATH.into()
}

fn is_sources_path(path: &str) -> bool {
    path == SOURCES_PATH
}

fn key_path() -> String {
    KEY_PATH.into()
}

fn is_key_path(path: &str) -> bool {
    path == KEY_PATH
}

/// The kubelet's default of `terminationMessagePath`.
fn termination_path() -> String {
    "/dev/termination-log".into()
}

fn is_termination_path(path: &str) -> bool {
    path == termination_path()
}

/// All addresses of both families.
fn listen_address() -> String {
    format!("[::]:{STREAMER_PORT}")
}

fn is_listen_address(address: &str) -> bool {
    address == listen_address()
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(artifacts: usize, log: &str) -> ContainerReport {
        let artifact = |n: usize| Artifact {
            name: format!("{n:0>63}"),
            digest: format!("sha256:{}", "a".repeat(64)),
            bytes: u64::MAX,
        };
        ContainerReport {
            exit_code: Some(1),
            artifacts: (0..artifacts).map(artifact).collect(),
            log: log.into(),
            ..ContainerReport::default()
        }
    }

    #[test]
    fn report_survives_a_round_trip() {
        let report = report(2, "a\nb");
        assert_eq!(ContainerReport::decode(&report.encode()), Some(report));
        assert_eq!(ContainerReport::decode("panic: no JSON"), None);
    }

    #[test]
    fn long_log_loses_its_beginning_and_no_more_than_needed() {
        for log in [
            "x".repeat(9000),
            "\u{1}".repeat(9000),
            "ä😀".repeat(3000),
            "\"\\\n".repeat(3000),
        ] {
            for artifacts in [0, 1, 16] {
                let full = report(artifacts, &log);
                let text = full.encode();
                let max = if artifacts < 16 {
                    FILLED_REPORT_BYTES
                } else {
                    MAX_REPORT_BYTES
                };
                assert!(text.len() <= max, "{}", text.len());
                assert!(text.len() > max.min(FILLED_REPORT_BYTES) - 16, "{}", text.len());
                let read = ContainerReport::decode(&text).expect("a report");
                assert_eq!(read.artifacts, full.artifacts);
                assert!(log.ends_with(&read.log) && read.log.len() > MIN_LOG_BYTES / 7);
            }
        }
    }

    #[test]
    fn cut_report_has_the_fields_before_the_cut() {
        for log in ["x\n".repeat(300), "ä😀\u{1}\"".repeat(200)] {
            let mut full = report(3, &log);
            full.exit_code = Some(0);
            let text = full.encode();
            let log_begins = text.find(",\"log\"").expect("a log");
            let artifacts_begin = text.find(",\"artifacts\"").expect("artifacts");
            for end in (artifacts_begin..text.len()).filter(|end| text.is_char_boundary(*end)) {
                let read = ContainerReport::decode(&text[..end]).expect("a report");
                assert_eq!(read.exit_code, Some(0), "{end}");
                if end >= log_begins {
                    assert_eq!((&read.artifacts, &read.error), (&full.artifacts, &None), "{end}");
                    assert!(full.log.contains(&read.log), "{end}");
                } else if end > artifacts_begin + 2 {
                    let error = read.error.expect("an error");
                    assert_eq!(error.reason, ErrorReason::OutputNotPacked, "{end}");
                }
            }
        }
        assert_eq!(ContainerReport::decode("panic: no JSON, \"really\""), None);
    }

    /// The kubelet cuts a longer termination message, and what is left is no JSON.
    #[test]
    fn report_is_never_longer_than_the_kubelet_keeps() {
        for (artifacts, log) in [(16, ""), (16, "x"), (12, "\u{1}"), (40, ""), (40, "log")] {
            for message in ["", "\u{1}", "ä", "x"] {
                let mut full = report(artifacts, &log.repeat(3000));
                let message = message.repeat(2000);
                full.error = Some(ReportError {
                    reason: ErrorReason::OutputNotPacked,
                    message: message.clone(),
                });
                let text = full.encode();
                assert!(text.len() <= MAX_REPORT_BYTES, "{}", text.len());
                let read = ContainerReport::decode(&text).expect("a report");
                let error = read.error.expect("an error");
                if artifacts > 16 {
                    assert!(read.artifacts.is_empty() && error.message.starts_with("40 outputs do not fit"));
                } else {
                    assert_eq!(read.artifacts, full.artifacts);
                    assert!(message.starts_with(&error.message));
                }
            }
        }
    }

    #[test]
    fn long_message_is_cut_at_a_character() {
        let text = ContainerReport::of_error(ErrorReason::InputMissing, "ä".repeat(2000)).encode();
        let error = ContainerReport::decode(&text)
            .and_then(|report| report.error)
            .expect("an error");
        assert_eq!(error.message, "ä".repeat(MAX_MESSAGE_BYTES / 2));
    }
}
