//! Pipelines and their jobs.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::Value;

use super::{InstanceVars, Model};

/// A pipeline.
#[derive(Debug, Clone, Serialize)]
pub struct Pipeline {
    /// Its id.
    pub id: u64,
    /// Its team.
    pub team_id: u64,
    /// Its name.
    pub name: String,
    /// What tells it apart from others of that name.
    pub instance_vars: Option<InstanceVars>,
    /// Whether it is paused.
    pub paused: bool,
    /// By whom.
    pub paused_by: Option<String>,
    /// When, in seconds since the epoch.
    pub paused_at: Option<u64>,
    /// Whether everybody may see it.
    pub public: bool,
    /// Whether it is archived.
    pub archived: bool,
    /// Its config as Concourse shows it; null when archived.
    pub config: Value,
    /// Its groups; they outlast the config.
    pub groups: Value,
    /// How it looks.
    pub display: Value,
    /// The version of its config; 0 when archived.
    pub version: u64,
    /// How often its config was saved.
    pub saves: u64,
    /// When it last changed, in seconds since the epoch.
    pub last_updated: u64,
}

/// A job.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its id.
    pub id: u64,
    /// Its pipeline.
    pub pipeline_id: u64,
    /// Its name.
    pub name: String,
    /// Whether the config still has it.
    pub active: bool,
    /// By whom and when it was paused.
    pub paused: Option<(String, u64)>,
    /// How many builds were triggered.
    pub triggered: u64,
}

/// What became of a save.
#[derive(Debug, PartialEq, Eq)]
pub enum Saved {
    /// A new pipeline.
    Created,
    /// A new config of one that was there.
    Updated,
    /// The version was not the present one.
    Stale,
}

impl Model {
    /// A pipeline by team, name and instance vars.
    pub fn pipeline(&self, team: &str, name: &str, vars: Option<&InstanceVars>) -> Option<&Pipeline> {
        let team = self.team(team)?.id;
        self.pipelines
            .iter()
            .find(|p| p.team_id == team && p.name == name && p.instance_vars.as_ref() == vars)
    }

    /// A pipeline by id.
    pub fn pipeline_by_id(&self, id: u64) -> Option<&Pipeline> {
        self.pipelines.iter().find(|p| p.id == id)
    }

    /// A pipeline by id, to change.
    pub fn pipeline_mut(&mut self, id: u64) -> Option<&mut Pipeline> {
        self.pipelines.iter_mut().find(|p| p.id == id)
    }

    /// Saves a config; a new pipeline starts paused.
    pub fn save(
        &mut self,
        team_id: u64,
        name: &str,
        vars: Option<InstanceVars>,
        config: Value,
        version: u64,
    ) -> Saved {
        let now = self.seconds();
        let found = self
            .pipelines
            .iter()
            .position(|p| p.team_id == team_id && p.name == name && p.instance_vars == vars);
        if found.is_some_and(|i| self.pipelines[i].version != version) {
            return Saved::Stale;
        }
        let index = found.unwrap_or_else(|| {
            self.pipelines.push(Pipeline {
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
            Saved::Updated
        } else {
            Saved::Created
        }
    }

    fn sync_jobs(&mut self, pipeline_id: u64, configs: &Value) {
        for job in self.jobs.iter_mut().filter(|j| j.pipeline_id == pipeline_id) {
            job.active = false;
        }
        for config in configs.as_array().into_iter().flatten() {
            let name = config["name"].as_str().unwrap_or_default();
            let is = |job: &Job, name: &str| job.pipeline_id == pipeline_id && job.name == name;
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
                None => self.jobs.push(Job {
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

    /// Archives: paused for good, the config forgotten.
    pub fn archive(&mut self, id: u64) {
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

    /// Pauses (by somebody) or unpauses.
    pub fn pause(&mut self, id: u64, by: Option<&str>) {
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

    /// Puts a team's pipelines in order: those that `rank` knows first.
    pub fn order_pipelines(&mut self, team_id: u64, rank: impl Fn(&Pipeline) -> Option<usize>) {
        self.reorder(|p| p.team_id == team_id, rank);
    }

    /// Puts the instances of a pipeline in order.
    pub fn order_instances(&mut self, team_id: u64, name: &str, rank: impl Fn(&Pipeline) -> Option<usize>) {
        self.reorder(|p| p.team_id == team_id && p.name == name, rank);
    }

    /// Sorts some pipelines among the places they have.
    fn reorder(&mut self, which: impl Fn(&Pipeline) -> bool, rank: impl Fn(&Pipeline) -> Option<usize>) {
        let places: Vec<usize> = (0..self.pipelines.len())
            .filter(|i| which(&self.pipelines[*i]))
            .collect();
        let mut sorted: Vec<Pipeline> = places.iter().map(|i| self.pipelines[*i].clone()).collect();
        sorted.sort_by_key(|p| rank(p).unwrap_or(usize::MAX));
        for (place, pipeline) in places.into_iter().zip(sorted) {
            self.pipelines[place] = pipeline;
        }
    }

    /// The jobs a pipeline has, in the order of its config.
    pub fn jobs_of(&self, pipeline: &Pipeline) -> Vec<&Job> {
        let configs = pipeline.config["jobs"].as_array().into_iter().flatten();
        let mut seen = HashSet::new();
        configs
            .filter_map(|c| c["name"].as_str())
            .filter(|name| seen.insert(*name))
            .filter_map(|name| self.job(pipeline.id, name))
            .collect()
    }

    /// A job its pipeline's config has.
    pub fn job(&self, pipeline_id: u64, name: &str) -> Option<&Job> {
        self.jobs
            .iter()
            .find(|j| j.pipeline_id == pipeline_id && j.name == name && j.active)
    }

    /// A job by id, to change.
    pub fn job_mut(&mut self, id: u64) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|j| j.id == id)
    }

    /// A job's part of its pipeline's config.
    pub fn job_config(&self, job: &Job) -> &Value {
        let config = self
            .pipeline_by_id(job.pipeline_id)
            .map_or(&Value::Null, |p| &p.config);
        let mut jobs = config["jobs"].as_array().into_iter().flatten();
        jobs.find(|j| j["name"] == job.name.as_str())
            .unwrap_or(&Value::Null)
    }
}
