//! The life cycle of builds: triggered, started, run step by step, ended.

use std::collections::VecDeque;

use serde::Serialize;
use serde_json::{Value, json};

use super::{ConcourseModel, SimulatedInstanceVars, SimulatedJob};
use crate::config::{step_resource, visit_steps};
use crate::task;

/// Status of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "they say it themselves")]
pub enum Status {
    Pending,
    Started,
    Succeeded,
    Failed,
    Aborted,
}

impl Status {
    /// Returns whether the build has ended.
    pub fn has_ended(self) -> bool {
        !matches!(self, Self::Pending | Self::Started)
    }
}

/// Subject of a build.
#[derive(Debug, Clone, Copy)]
pub enum Trigger<'a> {
    /// A job, by id.
    Job(u64),
    /// A rerun of a build, by its id.
    Rerun(u64),
    /// A check of a pipeline's resource.
    Check(u64, &'a str),
}

/// A build.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "as in Concourse's JSON")]
pub struct SimulatedBuild {
    pub id: u64,
    pub team_id: u64,
    pub pipeline_id: Option<u64>,
    pub job_id: Option<u64>,
    pub resource: Option<String>,
    pub name: String,
    pub status: Status,
    pub comment: String,
    pub start_time: Option<u64>,
    pub end_time: Option<u64>,
    pub created_by: Option<String>,
    /// For a rerun: the id of the original build, and the number of this rerun.
    pub rerun_of: Option<(u64, u64)>,
    /// Plan in Concourse's JSON; null until the build starts.
    pub plan: Value,
    /// Events of its event stream.
    pub events: Vec<Value>,
    /// Resource and version for each `get`.
    pub inputs: Vec<(String, SimulatedInstanceVars)>,
    /// Names of resources for each `put`.
    pub outputs: Vec<String>,
    aborted: bool,
    pending_actions: VecDeque<Action>,
}

/// A pending action of a running build, executed by a step of the clock.
#[derive(Debug, Clone)]
enum Action {
    Event(&'static str, &'static str, Value),
    Sleep(u64),
    End(Status),
}

impl SimulatedBuild {
    fn add_event(&mut self, kind: &str, version: &str, data: Value) {
        let id = self.events.len().to_string();
        self.events
            .push(json!({"data": data, "event": kind, "version": version, "event_id": id}));
    }

    fn start(&mut self, now: u64) {
        self.status = Status::Started;
        self.start_time = Some(now);
        self.add_event("status", "1.0", json!({"status": "started", "time": now}));
    }

    fn end(&mut self, status: Status, now: u64) {
        self.status = status;
        self.end_time = Some(now);
        self.pending_actions.clear();
        self.add_event("status", "1.0", json!({"status": status, "time": now}));
    }
}

/// Translates a job's steps into a plan and pending actions.
struct Planner<'a> {
    next_id: &'a mut dyn FnMut() -> String,
    pending_actions: VecDeque<Action>,
}

impl Planner<'_> {
    /// Plans a step. Returns the plan and whether the step will succeed.
    fn plan_step(&mut self, step: &Value) -> (Value, bool) {
        let (mut plan, mut ok) = self.plan_core(step);
        for _ in 1..step["attempts"].as_u64().unwrap_or(1).min(100) {
            if ok {
                break;
            }
            ok = self.plan_core(step).1;
        }
        for (hook, runs) in [("on_success", ok), ("on_failure", !ok), ("ensure", true)] {
            if let Some(next) = step.get(hook).filter(|_| runs) {
                let (next, went_well) = self.plan_step(next);
                plan = json!({"id": (self.next_id)(), hook: {"step": plan, hook: next}});
                ok &= went_well || hook == "on_failure";
            }
        }
        (plan, ok)
    }

    fn plan_core(&mut self, step: &Value) -> (Value, bool) {
        let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
        if step.get("do").is_some() {
            return self.plan_sequence(&list(&step["do"]));
        }
        if step.get("in_parallel").is_some() {
            let (plans, went): (Vec<_>, Vec<_>) = list(&step["in_parallel"]["steps"])
                .iter()
                .map(|s| self.plan_step(s))
                .unzip();
            return (
                json!({"id": (self.next_id)(), "in_parallel": {"steps": plans}}),
                went.into_iter().all(|ok| ok),
            );
        }
        if let Some(inner) = step.get("try") {
            let (plan, _) = self.plan_step(inner);
            return (json!({"id": (self.next_id)(), "try": {"step": plan}}), true);
        }
        let id = (self.next_id)();
        if let Some(name) = step.get("task") {
            let ok = self.plan_task(&id, &step["config"]);
            let privileged = step["privileged"] == true;
            return (
                json!({"id": id, "task": {"name": name, "privileged": privileged, "hermetic": step["hermetic"] == true}}),
                ok,
            );
        }
        for kind in ["get", "put", "set_pipeline", "load_var", "run"] {
            if let Some(name) = step.get(kind) {
                let plan = match step_resource(step) {
                    Some(resource) => json!({"name": name, "resource": resource}),
                    None => json!({"name": name}),
                };
                return (json!({"id": id, kind: plan}), true);
            }
        }
        (json!({"id": id}), true)
    }

    fn plan_sequence(&mut self, steps: &[Value]) -> (Value, bool) {
        let mut plans = Vec::new();
        let mut ok = true;
        let mut end = None;
        for step in steps {
            let (plan, went_well) = self.plan_step(step);
            plans.push(plan);
            if ok && !went_well {
                ok = false;
                end = Some(self.pending_actions.len());
            }
        }
        // All steps are planned, but those after the first failure never run.
        self.pending_actions
            .truncate(end.unwrap_or(self.pending_actions.len()));
        (json!({"id": (self.next_id)(), "do": plans}), ok)
    }

    fn plan_task(&mut self, id: &str, config: &Value) -> bool {
        let origin = json!({"id": id});
        let shown = |platform: &Value, run: &Value| {
            let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
            json!({"platform": text(platform), "image": "",
                "run": {"path": text(&run["path"]), "args": run["args"], "dir": text(&run["dir"])}, "inputs": null})
        };
        let outcome = task::run_task(config);
        let mut event =
            |kind, version, data| self.pending_actions.push_back(Action::Event(kind, version, data));
        event(
            "initialize-task",
            "4.0",
            json!({"origin": origin, "config": shown(&Value::Null, &Value::Null)}),
        );
        event(
            "selected-worker",
            "1.0",
            json!({"origin": origin, "selected_worker": "w1"}),
        );
        event(
            "start-task",
            "5.0",
            json!({"origin": origin, "config": shown(&config["platform"], &config["run"])}),
        );
        if !outcome.output.is_empty() {
            event(
                "log",
                "5.1",
                json!({"origin": {"id": id, "source": "stdout"}, "payload": outcome.output}),
            );
        }
        self.pending_actions
            .push_back(Action::Sleep(outcome.seconds.saturating_add(1)));
        let finish = json!({"exit_status": outcome.status, "origin": origin});
        self.pending_actions
            .push_back(Action::Event("finish-task", "4.0", finish));
        outcome.status == 0
    }
}

impl ConcourseModel {
    /// Creates a build. Returns `None` when its subject does not exist.
    pub fn trigger_build(&mut self, what: Trigger<'_>, by: Option<&str>) -> Option<u64> {
        let (job, rerun_of, pipeline_id, resource) = match what {
            Trigger::Job(job) => (
                Some(job),
                None,
                self.jobs.iter().find(|j| j.id == job)?.pipeline_id,
                None,
            ),
            Trigger::Rerun(build) => {
                let build = self.builds.get(&build)?;
                let first = build.rerun_of.map_or(build.id, |r| r.0);
                let again = self
                    .builds
                    .values()
                    .filter(|b| b.rerun_of.is_some_and(|r| r.0 == first))
                    .count();
                (
                    build.job_id,
                    Some((first, again as u64 + 1)),
                    build.pipeline_id?,
                    None,
                )
            }
            Trigger::Check(pipeline, resource) => (None, None, pipeline, Some(resource.to_owned())),
        };
        let name = match (rerun_of, job) {
            (Some((first, again)), _) => format!("{}.{again}", self.builds.get(&first)?.name),
            (None, Some(job)) => {
                let job = self.job_mut(job)?;
                job.triggered += 1;
                job.triggered.to_string()
            }
            (None, None) => "check".to_owned(),
        };
        let id = self.ids.build.next();
        let mut build = SimulatedBuild {
            id,
            team_id: self.pipeline_by_id(pipeline_id)?.team_id,
            pipeline_id: Some(pipeline_id),
            job_id: job,
            resource,
            name,
            status: Status::Pending,
            comment: String::new(),
            start_time: None,
            end_time: None,
            created_by: by.filter(|_| job.is_some()).map(str::to_owned),
            rerun_of,
            plan: Value::Null,
            events: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            aborted: false,
            pending_actions: VecDeque::new(),
        };
        if job.is_none() {
            build.start(self.seconds());
            build.plan = json!({"id": self.next_plan_id(), "check": {"name": build.resource}});
            let ends = if self.check_fails(&build) {
                Status::Failed
            } else {
                Status::Succeeded
            };
            build.pending_actions.push_back(Action::End(ends));
        }
        self.builds.insert(id, build);
        Some(id)
    }

    /// Aborts a build. It ends at the next step of the clock.
    pub fn abort_build(&mut self, id: u64) {
        if let Some(build) = self.builds.get_mut(&id) {
            build.aborted = !build.status.has_ended();
        }
    }

    /// Returns a job's builds in the order of their ids.
    pub fn builds_of(&self, job: &SimulatedJob) -> impl DoubleEndedIterator<Item = &SimulatedBuild> {
        let id = job.id;
        self.builds.values().filter(move |b| b.job_id == Some(id))
    }

    fn next_plan_id(&mut self) -> String {
        format!("{:08x}", self.ids.plan.next())
    }

    pub(super) fn step_builds(&mut self) {
        let running: Vec<u64> = self
            .builds
            .values()
            .filter(|b| !b.status.has_ended())
            .map(|b| b.id)
            .collect();
        for id in running {
            let Some(mut build) = self.builds.get(&id).cloned() else {
                continue;
            };
            let now = self.seconds();
            match build.status {
                _ if build.aborted => build.end(Status::Aborted, now),
                Status::Pending => self.start_build(&mut build),
                _ => run_actions(&mut build, now),
            }
            let ended = build.status;
            self.builds.insert(id, build.clone());
            if ended.has_ended() {
                self.record_check(&build);
            }
            if ended == Status::Succeeded {
                self.trigger_downstream(&build);
            }
        }
    }

    /// Starts a pending build, unless its job or pipeline is paused or inputs are missing.
    fn start_build(&mut self, build: &mut SimulatedBuild) {
        let Some(job) = self.jobs.iter().find(|j| Some(j.id) == build.job_id).cloned() else {
            return;
        };
        let paused = self.pipeline_by_id(job.pipeline_id).is_none_or(|p| p.paused);
        if paused || job.paused.is_some() || !job.active {
            return;
        }
        let Ok(inputs) = self.resolve_inputs(&job) else {
            return;
        };
        let config = self.job_config(&job).clone();
        build.inputs = inputs;
        visit_steps(&config, &mut |step| {
            if step.get("put").is_some() {
                build.outputs.extend(step_resource(step).map(str::to_owned));
            }
        });
        let mut script = Planner {
            next_id: &mut || self.next_plan_id(),
            pending_actions: VecDeque::new(),
        };
        let steps = config["plan"].as_array().cloned().unwrap_or_default();
        let (mut plan, mut ok) = script.plan_sequence(&steps);
        for (hook, runs) in [("on_success", ok), ("on_failure", !ok), ("ensure", true)] {
            if let Some(step) = config.get(hook).filter(|_| runs) {
                let (next, went_well) = script.plan_step(step);
                plan = json!({"id": (script.next_id)(), hook: {"step": plan, hook: next}});
                ok &= went_well || hook == "on_failure";
            }
        }
        build.pending_actions = script.pending_actions;
        build
            .pending_actions
            .push_back(Action::End(if ok { Status::Succeeded } else { Status::Failed }));
        build.plan = plan;
        build.start(self.seconds());
    }

    /// Resolves the versions of a job's get steps, or returns the names of those without a version.
    pub fn resolve_inputs(
        &self,
        job: &SimulatedJob,
    ) -> Result<Vec<(String, SimulatedInstanceVars)>, Vec<String>> {
        let (mut inputs, mut missing) = (Vec::new(), Vec::new());
        visit_steps(self.job_config(job), &mut |step| {
            let (Some(name), Some(resource)) = (step["get"].as_str(), step_resource(step)) else {
                return;
            };
            let usable = self.resource(job.pipeline_id, resource).and_then(|r| {
                let wanted = |v: &&super::SimulatedVersion| v.enabled && r.pinned.is_none_or(|p| p == v.id);
                r.versions.iter().rev().find(wanted)
            });
            match usable {
                Some(version) => inputs.push((name.to_owned(), version.version.clone())),
                None => missing.push(name.to_owned()),
            }
        });
        if missing.is_empty() {
            Ok(inputs)
        } else {
            Err(missing)
        }
    }

    /// Returns whether a check fails: that of the mock resource type does if its source has `check_failure`.
    fn check_fails(&self, build: &SimulatedBuild) -> bool {
        let resource = build.pipeline_id.zip(build.resource.as_deref());
        let resource = resource.and_then(|(pipeline, name)| self.resource(pipeline, name));
        resource.is_some_and(|resource| {
            let config = self.resource_config(resource);
            config["type"] == "mock" && config["source"]["check_failure"].is_string()
        })
    }

    /// Records the last finished check of a resource.
    fn record_check(&mut self, build: &SimulatedBuild) {
        let (Some(pipeline), now) = (build.pipeline_id, self.seconds()) else {
            return;
        };
        let resource = build.resource.as_deref();
        if let Some(resource) = resource.and_then(|r| self.resource_mut(pipeline, r)) {
            resource.last_checked = Some(now);
            resource.check = Some(build.id);
        }
    }

    /// Triggers the jobs that wait for this build's job by `passed`.
    fn trigger_downstream(&mut self, build: &SimulatedBuild) {
        let Some(pipeline) = build.pipeline_id else {
            return;
        };
        let Some(job) = self.jobs.iter().find(|j| Some(j.id) == build.job_id) else {
            return;
        };
        let (name, mut touched) = (job.name.clone(), Vec::new());
        visit_steps(self.job_config(job), &mut |step| {
            touched.extend(step_resource(step).map(str::to_owned))
        });
        touched.sort();
        touched.dedup();
        for resource in touched {
            self.trigger_dependents(pipeline, &resource, Some(&name));
        }
    }
}

/// Executes pending actions until the next sleep.
fn run_actions(build: &mut SimulatedBuild, now: u64) {
    while let Some(action) = build.pending_actions.pop_front() {
        match action {
            Action::Event(kind, version, mut data) => {
                data["time"] = now.into();
                build.add_event(kind, version, data);
            }
            Action::Sleep(seconds) => {
                if seconds > 1 {
                    build.pending_actions.push_front(Action::Sleep(seconds - 1));
                }
                return;
            }
            Action::End(status) => build.end(status, now),
        }
    }
}
