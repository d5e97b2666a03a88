//! The queue and builds.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{
    JenkinsModel,
    items::{JenkinsRefusal, SimulatedItem},
    xml,
};

/// A request to build that waits for an executor, or has left the queue.
#[derive(Clone, Debug)]
pub struct QueueItem {
    /// Its id.
    pub id: u64,
    /// Path of the pipeline.
    pub job: String,
    parameters: Vec<(String, String)>,
    state: QueueState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum QueueState {
    Waiting,
    Cancelled,
    /// It became the build of this number.
    Left(u64),
}

/// A build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JenkinsBuild {
    /// Its number.
    pub number: u64,
    /// The queue item that it was.
    pub queue_id: u64,
    /// Names and values of its parameters.
    pub parameters: Vec<(String, String)>,
    /// Its result; none while it runs.
    pub result: Option<String>,
    /// Names of its stages, of which [`JenkinsBuild::stages_done`] have ended.
    pub stages: Vec<String>,
    /// The number of stages that have ended.
    pub stages_done: usize,
    /// Time of its start in milliseconds since the Unix epoch.
    pub started: u64,
}

impl QueueItem {
    /// No executor has taken it.
    pub fn is_waiting(&self) -> bool {
        self.state == QueueState::Waiting
    }

    /// Cancels it while it waits. Returns whether it did.
    pub fn cancel(&mut self) -> bool {
        let waits = self.is_waiting();
        if waits {
            self.state = QueueState::Cancelled;
        }
        waits
    }
}

impl JenkinsModel {
    /// Queues a build. An equal request that waits already takes this one, which is the second value.
    pub fn enqueue(
        &mut self,
        job: &str,
        given: Option<&[(String, String)]>,
    ) -> Result<(u64, bool), JenkinsRefusal> {
        let item = self.items.get(job).filter(|item| !item.is_folder());
        let item = item.ok_or((404, "Not Found".to_owned()))?;
        if item.is_disabled() {
            return Err((409, format!("{job} is not buildable")));
        }
        let parameters = match (xml::parameters(&item.config), given) {
            (None, None) => Vec::new(),
            (Some(_), None) => return Err((400, "This page expects a form submission".into())),
            (None, Some(_)) => return Err((400, format!("{job} is not parameterized"))),
            // Values without a definition are dropped (SECURITY-170).
            (Some(defined), Some(given)) => defined
                .into_iter()
                .map(|(name, default)| {
                    let value = given.iter().find(|(n, _)| *n == name);
                    let value = value.map_or(default, |(_, value)| value.clone());
                    (name, value)
                })
                .collect(),
        };
        let equal = self
            .queue
            .values()
            .find(|q| q.is_waiting() && q.job == job && q.parameters == parameters);
        if let Some(equal) = equal {
            return Ok((equal.id, true));
        }
        let id = self.next_queue_id;
        self.next_queue_id += 1;
        let item = QueueItem {
            id,
            job: job.into(),
            parameters,
            state: QueueState::Waiting,
        };
        self.queue.insert(id, item);
        Ok((id, false))
    }

    /// Starts the builds of all waiting queue items.
    pub fn start_queued(&mut self) {
        for queued in self.queue.values_mut().filter(|queued| queued.is_waiting()) {
            let Some(item) = self.items.get_mut(&queued.job) else {
                continue;
            };
            let number = item.builds.keys().next_back().map_or(1, |last| last + 1);
            queued.state = QueueState::Left(number);
            let build = JenkinsBuild {
                number,
                queue_id: queued.id,
                parameters: queued.parameters.clone(),
                result: None,
                stages: stage_names(item),
                stages_done: 0,
                started: unix_millis(),
            };
            item.builds.insert(number, build);
        }
    }

    /// Ends a build.
    pub fn finish_build(&mut self, job: &str, number: u64, result: &str) {
        let build = self
            .items
            .get_mut(job)
            .and_then(|item| item.builds.get_mut(&number));
        let build = build.unwrap_or_else(|| panic!("{job} has no build {number}"));
        build.result = Some(result.into());
        build.stages_done = build.stages.len();
    }

    /// Takes one step of the builds that run by themselves.
    pub fn advance(&mut self) {
        let Some(result) = self.automatic.clone() else {
            return;
        };
        for build in self.items.values_mut().flat_map(|item| item.builds.values_mut()) {
            match &build.result {
                Some(_) => {}
                None if build.stages_done < build.stages.len() => build.stages_done += 1,
                None => build.result = Some(result.clone()),
            }
        }
        self.start_queued();
    }

    /// The JSON of a queue item.
    pub fn queue_item(&self, id: u64, url: &str) -> Option<Value> {
        let item = self.queue.get(&id)?;
        let job = job_url(url, &item.job);
        let mut json = json!({"_class": "hudson.model.Queue$WaitingItem", "id": id, "blocked": false,
            "buildable": item.is_waiting(), "stuck": false, "why": null, "url": format!("queue/item/{id}/"),
            "task": {"name": item.job, "url": job}, "actions": [parameters_action(&item.parameters)]});
        match item.state {
            QueueState::Waiting => json["why"] = "Waiting for next available executor".into(),
            QueueState::Cancelled => {
                json["_class"] = "hudson.model.Queue$LeftItem".into();
                json["cancelled"] = true.into();
            }
            QueueState::Left(number) => {
                json["_class"] = "hudson.model.Queue$LeftItem".into();
                json["cancelled"] = false.into();
                json["executable"] = json!({"number": number, "url": format!("{job}{number}/")});
            }
        }
        Some(json)
    }

    /// A build by its number, or by `lastBuild`, `lastCompletedBuild` or `lastSuccessfulBuild`.
    pub fn find_build(&self, job: &str, name: &str) -> Option<&JenkinsBuild> {
        let builds = &self.items.get(job)?.builds;
        let mut newest = builds.values().rev();
        match name {
            "lastBuild" => newest.next(),
            "lastCompletedBuild" => newest.find(|build| build.result.is_some()),
            "lastSuccessfulBuild" => newest.find(|build| build.result.as_deref() == Some("SUCCESS")),
            number => builds.get(&number.parse().ok()?),
        }
    }
}

impl JenkinsBuild {
    /// The JSON of the build.
    pub fn json(&self, job: &str, url: &str) -> Value {
        let runs = self.result.is_none();
        json!({"_class": "org.jenkinsci.plugins.workflow.job.WorkflowRun", "number": self.number,
            "queueId": self.queue_id, "building": runs, "inProgress": runs, "result": self.result,
            "timestamp": self.started, "duration": if runs { 0 } else { 1500 }, "estimatedDuration": 2000,
            "displayName": format!("#{}", self.number), "description": null, "artifacts": [],
            "url": format!("{}{}/", job_url(url, job), self.number),
            "actions": [{}, parameters_action(&self.parameters)]})
    }

    /// The JSON of its stages, as the plugin `pipeline-rest-api` shows it.
    pub fn stages_json(&self) -> Value {
        let failed = self.result.as_deref().is_some_and(|result| result != "SUCCESS");
        let status = |at: usize| match at {
            at if failed && at + 1 == self.stages.len() => "FAILED",
            at if at < self.stages_done => "SUCCESS",
            _ => "IN_PROGRESS",
        };
        let visible = self.stages.len().min(self.stages_done + 1);
        let stages: Vec<Value> = self.stages[..visible]
            .iter()
            .enumerate()
            .map(|(at, name)| {
                json!({"id": (at + 6).to_string(), "name": name, "status": status(at),
                "startTimeMillis": self.started, "durationMillis": 10})
            })
            .collect();
        let whole = match self.result.as_deref() {
            None => "IN_PROGRESS",
            Some("FAILURE") => "FAILED",
            Some(result) => result,
        };
        json!({"id": self.number.to_string(), "name": format!("#{}", self.number), "status": whole,
            "startTimeMillis": self.started, "stages": stages})
    }

    /// The whole log.
    pub fn log(&self) -> String {
        let mut log = "Started by user ops\n".to_owned();
        for name in &self.stages[..self.stages_done] {
            log.push_str(&format!(
                "[Pipeline] stage\n[Pipeline] {{ ({name})\n[Pipeline] }}\n"
            ));
        }
        if let Some(result) = &self.result {
            log.push_str(&format!("Finished: {result}\n"));
        }
        log
    }
}

/// The URL of an item, with a trailing slash.
pub fn job_url(url: &str, path: &str) -> String {
    let encode = |name| percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
    let segments: String = path
        .split('/')
        .map(|name| format!("job/{}/", encode(name)))
        .collect();
    format!("{url}/{segments}")
}

fn parameters_action(parameters: &[(String, String)]) -> Value {
    if parameters.is_empty() {
        return json!({});
    }
    let parameters: Vec<Value> = parameters
        .iter()
        .map(|(name, value)| json!({"_class": "hudson.model.StringParameterValue", "name": name, "value": value}))
        .collect();
    json!({"_class": "hudson.model.ParametersAction", "parameters": parameters})
}

/// The names of the stages in a declarative pipeline's script.
fn stage_names(item: &SimulatedItem) -> Vec<String> {
    let script = xml::script(&item.config).unwrap_or_default();
    let stages = script.split("stage('").skip(1);
    stages
        .filter_map(|rest| Some(rest.split_once("')")?.0.to_owned()))
        .collect()
}

fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or_default()
}
