//! The ends of processes of Steps, as the shim in their pods would report them.

use serde_json::Value;
use steps_protocol::{Artifact, ContainerReport, RunConfig};

use crate::Course;

/// The course of a pod whose process succeeds, with an artifact for each of its outputs.
///
/// # Panics
/// The pod is not that of a Step.
pub fn succeed_with_outputs(pod: &Value) -> Course {
    let argument = pod["spec"]["containers"][0]["args"][0]
        .as_str()
        .unwrap_or_default();
    // The kubelet expands variables, which doubles the other dollar signs in the argument.
    let config: RunConfig = serde_json::from_str(&argument.replace("$$", "$")).expect("a configuration");
    let outputs: Vec<&str> = config.outputs.iter().map(|output| &*output.name).collect();
    succeed_with(&outputs)
}

/// The end of a process that succeeds with these artifacts.
pub fn succeed_with(artifacts: &[&str]) -> Course {
    let artifact = |name: &&str| Artifact {
        name: (*name).to_owned(),
        digest: format!("sha256:{}", "a".repeat(64)),
        bytes: 7,
    };
    end_with(&ContainerReport {
        exit_code: Some(0),
        start_time: Some(1_767_225_600),
        end_time: Some(1_767_225_609),
        artifacts: artifacts.iter().map(artifact).collect(),
        log: "done\n".into(),
        ..ContainerReport::default()
    })
}

/// The report of a process that is stopped with its pod.
pub fn stopped_report() -> ContainerReport {
    ContainerReport {
        exit_code: Some(143),
        signal: Some(15),
        stopped: true,
        ..ContainerReport::default()
    }
}

/// The end of a process with this report.
pub fn end_with(report: &ContainerReport) -> Course {
    Course::Ended(report.exit_code.unwrap_or(126).into(), report.encode())
}
