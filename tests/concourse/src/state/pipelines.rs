//! Pipelines and their jobs.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::Value;

use super::{ConcourseModel, SimulatedInstanceVars};

/// A pipeline.
#[derive(Debug, Clone, Serialize)]
pub struct SimulatedPipeline {
    /// Its id.
    pub id: u64,
    /// Its team.
    pub team_id: u64,
    /// Its name.
    pub name: String,
    /// Variables that distinguish it from other instances of the same name.
    pub instance_vars: Option<SimulatedInstanceVars>,
    /// True when paused.
    pub paused: bool,
    /// Name of the user who paused it.
    pub paused_by: Option<String>,
    /// Time of the pause in seconds since the epoch.
    pub paused_at: Option<u64>,
    /// True when exposed: visible without a login.
    pub public: bool,
    /// True when archived.
    pub archived: bool,
    /// Config as Concourse shows it; null when archived.
    pub config: Value,
    /// Groups, which are kept when the config is archived.
    pub groups: Value,
    /// Display settings.
    pub display: Value,
    /// Version of the config; 0 when archived.
    pub version: u64,
    /// Number of times its config was saved.
    pub saves: u64,
    /// Time of the last change in seconds since the epoch.
    pub last_updated: u64,
}

/// A job.
#[derive(Debug, Clone)]
pub struct SimulatedJob {
    /// Its id.
    pub id: u64,
    /// Its pipeline.
    pub pipeline_id: u64,
    /// Its name.
    pub name: String,
    /// False when the config no longer has it.
    pub active: bool,
    /// Name of the user who paused it, and the time in seconds since the epoch.
    pub paused: Option<(String, u64)>,
    /// Number of triggered builds.
    pub triggered: u64,
}

/// Outcome of saving a config.
#[derive(Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// A new pipeline.
    Created,
    /// A new config of an existing pipeline.
    Updated,
    /// The version of the request was not the current one.
    Stale,
}

impl ConcourseModel {
    /// Finds a pipeline by team, name and instance vars.
    pub fn pipeline(
        &self,
        team: &str,
        name: &str,
        vars: Option<&SimulatedInstanceVars>,
    ) -> Option<&SimulatedPipeline> {
        let team = self.team(team)?.id;
        self.pipelines
            .iter()
            .find(|p| p.team_id == team && p.name == name && p.instance_vars.as_ref() == vars)
    }

    /// Finds a pipeline by id.
    pub fn pipeline_by_id(&self, id: u64) -> Option<&SimulatedPipeline> {
        self.pipelines.iter().find(|p| p.id == id)
    }

    /// Finds a pipeline by id, mutably.
    pub fn pipeline_mut(&mut self, id: u64) -> Option<&mut SimulatedPipeline> {
        self.pipelines.iter_mut().find(|p| p.id == id)
    }

    /// Saves a config. A new pipeline is paused.
    pub fn save_config(
        &mut self,
        team_id: u64,
        name: &str,
        vars: Option<SimulatedInstanceVars>,
        config: Value,
        version: u64,
    ) -> SaveOutcome {
        let now = self.seconds();
        let found = self
            .pipelines
            .iter()
            .position(|p| p.team_id == team_id && p.name == name && p.instance_vars == vars);
        if found.is_some_and(|i| self.pipelines[i].version != version) {
            return SaveOutcome::Stale;
        }
        let index = found.unwrap_or_else(|| {
            self.pipelines.push(SimulatedPipeline {
                id: self.ids.pipeline.next(),
                team_id,
                name: name.to_owned(),
                instance_vars: vars,
                paused: true,
                paused_by: None,
                paused_at: None,
                public: false,
                archived: false,
                config: Value::Null,
                groups: Value::Null,
                display: Value::Null,
                version: 0,
                saves: 0,
                last_updated: now,
            });
            self.pipelines.len() - 1
        });
        let pipeline = &mut self.pipelines[index];
        pipeline.groups = config["groups"].clone();
        pipeline.display = config["display"].clone();
        pipeline.config = config.clone();
        pipeline.version = self.ids.config.next();
        pipeline.saves += 1;
        pipeline.archived = false;
        pipeline.last_updated = now;
        let id = pipeline.id;
        self.sync_jobs(id, &config["jobs"]);
        self.sync_resources(id, &config["resources"]);
        if found.is_some() {
            SaveOutcome::Updated
        } else {
            SaveOutcome::Created
        }
    }

    fn sync_jobs(&mut self, pipeline_id: u64, configs: &Value) {
        for job in self.jobs.iter_mut().filter(|j| j.pipeline_id == pipeline_id) {
            job.active = false;
        }
        for config in configs.as_array().into_iter().flatten() {
            let name = config["name"].as_str().unwrap_or_default();
            let is = |job: &SimulatedJob, name: &str| job.pipeline_id == pipeline_id && job.name == name;
            let old = config["old_name"].as_str().unwrap_or(name);
            let index = self
                .jobs
                .iter()
                .position(|j| is(j, name))
                .or_else(|| self.jobs.iter().position(|j| is(j, old)));
            match index {
                Some(index) => {
                    name.clone_into(&mut self.jobs[index].name);
                    self.jobs[index].active = true;
                }
                None => self.jobs.push(SimulatedJob {
                    id: self.ids.job.next(),
                    pipeline_id,
                    name: name.to_owned(),
                    active: true,
                    paused: None,
                    triggered: 0,
                }),
            }
        }
    }

    /// Archives a pipeline, which pauses it and drops its config.
    pub fn archive_pipeline(&mut self, id: u64) {
        let now = self.seconds();
        if let Some(pipeline) = self.pipeline_mut(id) {
            pipeline.archived = true;
            pipeline.paused = true;
            pipeline.paused_by = Some("automatic-pipeline-archiver".into());
            pipeline.paused_at = Some(now);
            pipeline.config = Value::Null;
            pipeline.version = 0;
            pipeline.last_updated = now;
        }
        for job in self.jobs.iter_mut().filter(|j| j.pipeline_id == id) {
            job.active = false;
        }
        for resource in self.resources.iter_mut().filter(|r| r.pipeline_id == id) {
            resource.active = false;
        }
    }

    /// Pauses a pipeline as a user, or unpauses it with `None`.
    pub fn set_paused(&mut self, id: u64, by: Option<&str>) {
        let now = self.seconds();
        if let Some(pipeline) = self.pipeline_mut(id) {
            pipeline.paused = by.is_some();
            pipeline.paused_by = by.map(str::to_owned);
            pipeline.paused_at = by.map(|_| now);
        }
    }

    /// Renames all instances of a pipeline.
    pub fn rename_pipeline(&mut self, team_id: u64, name: &str, new: &str) {
        for pipeline in self
            .pipelines
            .iter_mut()
            .filter(|p| p.team_id == team_id && p.name == name)
        {
            new.clone_into(&mut pipeline.name);
        }
    }

    /// Deletes a pipeline with its jobs, resources and builds.
    pub fn delete_pipeline(&mut self, id: u64) {
        self.pipelines.retain(|p| p.id != id);
        self.jobs.retain(|j| j.pipeline_id != id);
        self.resources.retain(|r| r.pipeline_id != id);
        self.builds.retain(|_, b| b.pipeline_id != Some(id));
    }

    /// Orders a team's pipelines by `rank`; those without a rank come last.
    pub fn order_pipelines(&mut self, team_id: u64, rank: impl Fn(&SimulatedPipeline) -> Option<usize>) {
        self.reorder(|p| p.team_id == team_id, rank);
    }

    /// Orders the instances of a pipeline.
    pub fn order_instances(
        &mut self,
        team_id: u64,
        name: &str,
        rank: impl Fn(&SimulatedPipeline) -> Option<usize>,
    ) {
        self.reorder(|p| p.team_id == team_id && p.name == name, rank);
    }

    /// Sorts the selected pipelines among the positions they occupy.
    fn reorder(
        &mut self,
        which: impl Fn(&SimulatedPipeline) -> bool,
        rank: impl Fn(&SimulatedPipeline) -> Option<usize>,
    ) {
        let places: Vec<usize> = (0..self.pipelines.len())
            .filter(|i| which(&self.pipelines[*i]))
            .collect();
        let mut sorted: Vec<SimulatedPipeline> = places.iter().map(|i| self.pipelines[*i].clone()).collect();
        sorted.sort_by_key(|p| rank(p).unwrap_or(usize::MAX));
        for (place, pipeline) in places.into_iter().zip(sorted) {
            self.pipelines[place] = pipeline;
        }
    }

    /// Returns the jobs of a pipeline in the order of its config.
    pub fn jobs_of(&self, pipeline: &SimulatedPipeline) -> Vec<&SimulatedJob> {
        let configs = pipeline.config["jobs"].as_array().into_iter().flatten();
        let mut seen = HashSet::new();
        configs
            .filter_map(|c| c["name"].as_str())
            .filter(|name| seen.insert(*name))
            .filter_map(|name| self.job(pipeline.id, name))
            .collect()
    }

    /// Finds a job that is in its pipeline's config.
    pub fn job(&self, pipeline_id: u64, name: &str) -> Option<&SimulatedJob> {
        self.jobs
            .iter()
            .find(|j| j.pipeline_id == pipeline_id && j.name == name && j.active)
    }

    /// Finds a job by id, mutably.
    pub fn job_mut(&mut self, id: u64) -> Option<&mut SimulatedJob> {
        self.jobs.iter_mut().find(|j| j.id == id)
    }

    /// Returns a job's part of its pipeline's config.
    pub fn job_config(&self, job: &SimulatedJob) -> &Value {
        let config = self
            .pipeline_by_id(job.pipeline_id)
            .map_or(&Value::Null, |p| &p.config);
        let mut jobs = config["jobs"].as_array().into_iter().flatten();
        jobs.find(|j| j["name"] == job.name.as_str())
            .unwrap_or(&Value::Null)
    }
}
