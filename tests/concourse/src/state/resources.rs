//! Resources and their versions.

use serde_json::Value;

use super::builds::Trigger;
use super::{InstanceVars, Model, Pipeline};
use crate::config::{each_step, resource_of};

/// A resource.
#[derive(Debug, Clone)]
pub struct Resource {
    /// Its pipeline.
    pub pipeline_id: u64,
    /// Its name.
    pub name: String,
    /// Whether the config still has it.
    pub active: bool,
    /// What was found, oldest first.
    pub versions: Vec<Version>,
    /// The id of the version it is pinned to.
    pub pinned: Option<u64>,
    /// Why it is pinned.
    pub pin_comment: String,
    /// When it was last checked, in seconds since the epoch.
    pub last_checked: Option<u64>,
    /// The build of its last check that ended.
    pub check: Option<u64>,
}

/// A version of a resource.
#[derive(Debug, Clone)]
pub struct Version {
    /// Its id.
    pub id: u64,
    /// What it is.
    pub version: InstanceVars,
    /// Whether builds may use it.
    pub enabled: bool,
}

impl Model {
    pub(super) fn sync_resources(&mut self, pipeline_id: u64, configs: &Value) {
        for resource in self.resources.iter_mut().filter(|r| r.pipeline_id == pipeline_id) {
            resource.active = false;
        }
        for config in configs.as_array().into_iter().flatten() {
            let name = config["name"].as_str().unwrap_or_default();
            let old = config["old_name"].as_str().unwrap_or(name);
            let mine = |r: &&mut Resource| r.pipeline_id == pipeline_id && (r.name == name || r.name == old);
            match self.resources.iter_mut().find(mine) {
                Some(resource) => {
                    name.clone_into(&mut resource.name);
                    resource.active = true;
                }
                None => self.resources.push(Resource {
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

    /// The resources a pipeline has.
    pub fn resources_of(&self, pipeline: &Pipeline) -> impl Iterator<Item = &Resource> {
        let id = pipeline.id;
        self.resources
            .iter()
            .filter(move |r| r.pipeline_id == id && r.active)
    }

    /// A resource its pipeline's config has.
    pub fn resource(&self, pipeline_id: u64, name: &str) -> Option<&Resource> {
        self.resources
            .iter()
            .find(|r| r.pipeline_id == pipeline_id && r.name == name && r.active)
    }

    /// A resource, to change.
    pub fn resource_mut(&mut self, pipeline_id: u64, name: &str) -> Option<&mut Resource> {
        self.resources
            .iter_mut()
            .find(|r| r.pipeline_id == pipeline_id && r.name == name && r.active)
    }

    /// A resource's part of its pipeline's config.
    pub fn resource_config(&self, resource: &Resource) -> &Value {
        let config = self
            .pipeline_by_id(resource.pipeline_id)
            .map_or(&Value::Null, |p| &p.config);
        let mut resources = config["resources"].as_array().into_iter().flatten();
        resources
            .find(|r| r["name"] == resource.name.as_str())
            .unwrap_or(&Value::Null)
    }

    /// A version is found; jobs it triggers get builds. False when there is no such resource.
    pub fn add_version(&mut self, pipeline_id: u64, name: &str, version: InstanceVars) -> bool {
        let id = self.ids.version.next();
        let Some(resource) = self.resource_mut(pipeline_id, name) else {
            return false;
        };
        if resource.versions.iter().any(|v| v.version == version) {
            return true;
        }
        resource.versions.push(Version {
            id,
            version,
            enabled: true,
        });
        self.trigger_by(pipeline_id, name, None);
        true
    }

    /// Triggers jobs that wait for a resource, after this job passed (or that ask for no such thing).
    pub(super) fn trigger_by(&mut self, pipeline_id: u64, resource: &str, passed: Option<&str>) {
        let Some(pipeline) = self.pipeline_by_id(pipeline_id).filter(|p| !p.paused) else {
            return;
        };
        let waits = |job: &Value| {
            let mut waits = false;
            each_step(job, &mut |step| {
                let after = step["passed"].as_array().map_or(&[][..], Vec::as_slice);
                waits |= step.get("get").is_some()
                    && step["trigger"] == true
                    && resource_of(step) == Some(resource)
                    && passed.map_or(after.is_empty(), |job| after.iter().any(|a| a == job));
            });
            waits
        };
        let waiting = self
            .jobs_of(pipeline)
            .into_iter()
            .filter(|job| waits(self.job_config(job)));
        for job in waiting.map(|j| j.id).collect::<Vec<_>>() {
            self.trigger(Trigger::Job(job), None);
        }
    }
}
