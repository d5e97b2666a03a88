//! The Concourse pack: a simulator of Concourse, and the examples.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context, Result};

use super::{
    facts::ObjectKey,
    kubernetes::{DemoClient, http_agent, read_manifests},
    stage::{Site, apply_all, start_server},
};
use crate::{paths, progress::BuildStep};

/// Files of deploy/examples that the demo applies.
const EXAMPLE_FILES: [&str; 3] = [
    "concourse.yaml",
    "concourse-operations.yaml",
    "concourse-build.yaml",
];
const DEMO_USER: &str = "test";
const DEMO_PASSWORD: &str = "demo-password";

/// Starts the simulator and applies the examples.
pub fn start(
    site: &Site,
    cluster: &DemoClient,
    mut command: Command,
    step: &BuildStep,
) -> Result<super::stage::Scene> {
    step.set_status("Concourse simulator");
    command.args(["--user", &format!("{DEMO_USER}:{DEMO_PASSWORD}")]);
    let (simulator, concourse) = start_server("concourse-simulator", command, site.folder)?;
    // The example manages a worker of this name.
    let worker = r#"{"name": "worker-1", "state": "running"}"#;
    http_agent()
        .post(format!("{concourse}/_sim/worker"))
        .content_type("application/json")
        .send(worker)
        .context("adding a worker to the simulator")?;

    step.set_status("applying");
    let variables = BTreeMap::from([
        ("CONCOURSE_URL", &*concourse),
        ("CONCOURSE_USER", DEMO_USER),
        ("CONCOURSE_PASSWORD", DEMO_PASSWORD),
    ]);
    let mut objects = Vec::new();
    // In any order: an object waits until its dependencies are Ready.
    for example in EXAMPLE_FILES {
        let path = paths::workspace_root().join("deploy/examples").join(example);
        objects.extend(read_manifests(&path, &variables)?);
    }
    apply_all(cluster, &objects)?;
    let is_ours = |api_version: &str| api_version.contains('.');
    let ours = objects
        .iter()
        .filter(|object| object["apiVersion"].as_str().is_some_and(is_ours));
    Ok(super::stage::Scene {
        servers: Some(simulator),
        expected: ours.map(ObjectKey::from_manifest).collect(),
        grants: paths::workspace_root().join("tests/grants.yaml"),
        script: None,
    })
}
