//! Resources and their versions.

use serde_json::Value;

use super::builds::Trigger;
use super::{ConcourseModel, SimulatedInstanceVars, SimulatedPipeline};
use crate::config::{step_resource, visit_steps};

/// A resource.
#[derive(Debug, Clone)]
pub struct SimulatedResource {
    /// Its pipeline.
    pub pipeline_id: u64,
    /// Its name.
    pub name: String,
    /// False when the config no longer has it.
    pub active: bool,
    /// Versions, oldest first.
    pub versions: Vec<SimulatedVersion>,
    /// Id of the pinned version.
    pub pinned: Option<u64>,
    /// Comment of the pin.
    pub pin_comment: String,
    /// Time of the last check in seconds since the epoch.
    pub last_checked: Option<u64>,
    /// Id of the build of the last finished check.
    pub check: Option<u64>,
}

/// A version of a resource.
#[derive(Debug, Clone)]
pub struct SimulatedVersion {
    /// Its id.
    pub id: u64,
    /// Fields of the version.
    pub version: SimulatedInstanceVars,
    /// False when builds may not use it.
    pub enabled: bool,
}

impl ConcourseModel {
    pub(super) fn sync_resources(&mut self, pipeline_id: u64, configs: &Value) {
        for resource in self.resources.iter_mut().filter(|r| r.pipeline_id == pipeline_id) {
            resource.active = false;
        }
        for config in configs.as_array().into_iter().flatten() {
            let name = config["name"].as_str().unwrap_or_default();
            let old = config["old_name"].as_str().unwrap_or(name);
            let mine = |r: &&mut SimulatedResource| {
                r.pipeline_id == pipeline_id && (r.name == name || r.name == old)
            };
            match self.resources.iter_mut().find(mine) {
                Some(resource) => {
                    name.clone_into(&mut resource.name);
                    resource.active = true;
                }
                None => self.resources.push(SimulatedResource {
                    pipeline_id,
                    name: name.to_owned(),
                    active: true,
                    versions: Vec::new(),
                    pinned: None,
                    pin_comment: String::new(),
                    last_checked: None,
                    check: None,
                }),
            }
        }
    }

    /// Returns the resources of a pipeline.
    pub fn resources_of(&self, pipeline: &SimulatedPipeline) -> impl Iterator<Item = &SimulatedResource> {
        let id = pipeline.id;
        self.resources
            .iter()
            .filter(move |r| r.pipeline_id == id && r.active)
    }

    /// Finds a resource that is in its pipeline's config.
    pub fn resource(&self, pipeline_id: u64, name: &str) -> Option<&SimulatedResource> {
        self.resources
            .iter()
            .find(|r| r.pipeline_id == pipeline_id && r.name == name && r.active)
    }

    /// Finds a resource, mutably.
    pub fn resource_mut(&mut self, pipeline_id: u64, name: &str) -> Option<&mut SimulatedResource> {
        self.resources
            .iter_mut()
            .find(|r| r.pipeline_id == pipeline_id && r.name == name && r.active)
    }

    /// Returns a resource's part of its pipeline's config.
    pub fn resource_config(&self, resource: &SimulatedResource) -> &Value {
        let config = self
            .pipeline_by_id(resource.pipeline_id)
            .map_or(&Value::Null, |p| &p.config);
        let mut resources = config["resources"].as_array().into_iter().flatten();
        resources
            .find(|r| r["name"] == resource.name.as_str())
            .unwrap_or(&Value::Null)
    }

    /// Adds a version and triggers the jobs that wait for it. Returns false when there is no such resource.
    pub fn add_version(&mut self, pipeline_id: u64, name: &str, version: SimulatedInstanceVars) -> bool {
        let id = self.ids.version.next();
        let Some(resource) = self.resource_mut(pipeline_id, name) else {
            return false;
        };
        if resource.versions.iter().any(|v| v.version == version) {
            return true;
        }
        resource.versions.push(SimulatedVersion {
            id,
            version,
            enabled: true,
        });
        self.trigger_dependents(pipeline_id, name, None);
        true
    }

    /// Triggers jobs with a triggering get of a resource: those with the job `passed` in their `passed`, or with `None`
    /// those without `passed`.
    pub(super) fn trigger_dependents(&mut self, pipeline_id: u64, resource: &str, passed: Option<&str>) {
        let Some(pipeline) = self.pipeline_by_id(pipeline_id).filter(|p| !p.paused) else {
            return;
        };
        let waits = |job: &Value| {
            let mut waits = false;
            visit_steps(job, &mut |step| {
                let after = step["passed"].as_array().map_or(&[][..], Vec::as_slice);
                waits |= step.get("get").is_some()
                    && step["trigger"] == true
                    && step_resource(step) == Some(resource)
                    && passed.map_or(after.is_empty(), |job| after.iter().any(|a| a == job));
            });
            waits
        };
        let waiting = self
            .jobs_of(pipeline)
            .into_iter()
            .filter(|job| waits(self.job_config(job)));
        for job in waiting.map(|j| j.id).collect::<Vec<_>>() {
            self.trigger_build(Trigger::Job(job), None);
        }
    }
}
