//! The objects of a whole Concourse.

use serde_json::{Value, json};

use super::load::{LONG_EVERY, LoadShape};
use crate::api::BENCH_NAMESPACE;

/// User of the simulator.
const SIMULATOR_USER: &str = "test";
const PASSWORD_SECRET: &str = "concourse-admin";
/// Name prefix of long Builds.
const LONG_PREFIX: &str = "long-";

fn build_object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "concourse-ci.org/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": BENCH_NAMESPACE}, "spec": spec})
}

/// Builds the Secret with the user's password.
pub fn build_secret() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": PASSWORD_SECRET, "namespace": BENCH_NAMESPACE}, "stringData": {"password": SIMULATOR_USER}})
}

/// Builds the Instance.
pub fn build_instance(url: &str) -> Value {
    let account =
        json!({"username": SIMULATOR_USER, "passwordRef": {"name": PASSWORD_SECRET, "key": "password"}});
    build_object(
        "Instance",
        "ci",
        json!({"url": url, "auth": {"password": account}}),
    )
}

/// Builds the Team of all pipelines.
pub fn build_team() -> Value {
    let roles = json!([{"role": "owner", "users": [format!("local:{SIMULATOR_USER}")]}]);
    build_object(
        "Team",
        "platform",
        json!({"instanceRef": {"name": "ci"}, "roles": roles}),
    )
}

/// Builds a Pipeline. In one of ten the first job has long builds.
pub fn build_pipeline(p: usize, shape: LoadShape) -> Value {
    let jobs: Vec<_> = LoadShape::jobs_of_one()
        .map(|j| {
            // The simulator's clock takes one step for each second.
            let run = if has_long_builds(p, j) {
                json!({"path": "sleep", "args": ["1000000"]})
            } else {
                json!({"path": "echo", "args": [format!("job {j} of {}", shape.pipelines)]})
            };
            json!({"name": job_name(j), "plan": [{"task": "work", "config": {"platform": "linux",
                "image_resource": {"type": "registry-image", "source": {"repository": "alpine"}}, "run": run}}]})
        })
        .collect();
    let config = json!({ "jobs": jobs }).to_string();
    build_object(
        "Pipeline",
        &pipeline_name(p),
        json!({"teamRef": {"name": "platform"}, "config": {"inline": config}}),
    )
}

/// Builds a Job that keeps all its builds.
pub fn build_job(p: usize, j: usize) -> Value {
    build_object(
        "Job",
        &job_object(p, j),
        json!({"pipelineRef": {"name": pipeline_name(p)}, "jobName": job_name(j),
            "successfulBuildsHistoryLimit": 10, "failedBuildsHistoryLimit": 10}),
    )
}

/// Builds a Build of a job.
pub fn build_build(p: usize, j: usize, b: usize) -> Value {
    let long = if has_long_builds(p, j) { LONG_PREFIX } else { "" };
    build_object(
        "Build",
        &format!("{long}{}-{b}", job_object(p, j)),
        json!({"jobRef": {"name": job_object(p, j)}}),
    )
}

/// Returns whether the Build of this name is a long one.
pub fn is_long(build: &str) -> bool {
    build.starts_with(LONG_PREFIX)
}

fn has_long_builds(p: usize, j: usize) -> bool {
    p.is_multiple_of(LONG_EVERY) && j == 0
}

fn pipeline_name(p: usize) -> String {
    format!("pipeline-{p:02}")
}

fn job_name(j: usize) -> String {
    format!("job-{j}")
}

fn job_object(p: usize, j: usize) -> String {
    format!("{}-{}", pipeline_name(p), job_name(j))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_long_builds_is_that_of_the_shape() {
        for pipelines in [1, 5, 50] {
            let shape = LoadShape::for_pipelines(pipelines);
            let names = shape.each_build().map(|(p, j, b)| build_build(p, j, b));
            let long = names.filter(|o| is_long(o["metadata"]["name"].as_str().unwrap_or_default()));
            assert_eq!(long.count(), shape.running);
        }
    }
}
