//! The pipeline in Concourse, and how it becomes what is wanted.

use concourse_api::{name_of, path_of, refused, target, warnings};
use ostler_sdk::{
    RequestBuilder, Response, Selection, Upstream, gvk,
    prelude::*,
    rfc3339,
    serde_json::{Map, Value, to_vec},
};

use crate::{Pipeline, config, desired::Desired, exists, name_wanted, text, vars_of};

/// How often it is looked at, in milliseconds.
pub const POLL: u64 = 300_000;
const VERSION: &str = "x-concourse-config-version";
const FAILED: &str = "SetPipelineFailed";
const RENAME_FAILED: &str = "RenameFailed";
/// What is remembered: the config's hash and when Concourse changed the pipeline last.
const MEMO: &str = "config";

/// A pipeline of a team in Concourse.
pub struct Remote<'a> {
    ctx: &'a Context<'a>,
    concourse: Upstream<'a>,
    team: &'a Value,
    name: &'a str,
    vars: &'a Value,
}

/// What Concourse shows of it; null what was not there or not asked for.
#[derive(Default)]
struct State {
    pipeline: Value,
    config: Value,
    version: Option<String>,
    /// When the config was shown, by Concourse's clock.
    date: Option<String>,
    jobs: Value,
    resources: Value,
    /// The config is the wanted one although it was not read.
    known: bool,
}

impl State {
    fn is(&self, field: &str) -> bool {
        self.pipeline[field] == true
    }

    /// What is remembered of a config that was seen; none while another change may carry the same second.
    fn memo(&self, desired: &Desired) -> Option<Vec<u8>> {
        let shown = seconds_of_day(self.date.as_deref()?)?;
        let changed = self.pipeline["last_updated"].as_u64()?;
        let age = (shown + DAY - changed % DAY) % DAY;
        (3..DAY - 60)
            .contains(&age)
            .then(|| memo(desired, &self.pipeline))
    }
}

const DAY: u64 = 86_400;

/// Of a date as HTTP writes it: `Sat, 21 Nov 2026 04:21:24 GMT`.
fn seconds_of_day(date: &str) -> Option<u64> {
    let part = |at: usize| date.get(at..at + 2)?.parse::<u64>().ok();
    Some(part(17)? * 3600 + part(20)? * 60 + part(23)?)
}

/// The hash of the config wanted, and when Concourse last recorded a change.
fn memo(desired: &Desired, pipeline: &Value) -> Vec<u8> {
    let moment = to_vec(&pipeline["last_updated"]).unwrap_or_default();
    [desired.hash.as_bytes(), &moment].concat()
}

/// The parts of a pipeline that can be read.
const PIPELINE: &str = "";
const CONFIG: &str = "/config";
const JOBS: &str = "/jobs";
const RESOURCES: &str = "/resources";

impl<'a> Remote<'a> {
    /// The pipeline an object stands for.
    pub fn new(ctx: &'a Context<'a>, pipeline: &'a Pipeline, team: &'a Value) -> Self {
        let (namespace, instance) = target(team, "instanceRef");
        // What was made is what counts, should the spec ask for something else by now.
        let made = if exists(pipeline) {
            &pipeline.status
        } else {
            &pipeline.spec.json
        };
        Self {
            ctx,
            concourse: ctx.upstream_in(namespace, instance),
            team,
            name: name_wanted(pipeline),
            vars: vars_of(made),
        }
    }

    /// The path of a part of the pipeline, under a name it has or had.
    pub fn path_of(&self, name: &str, part: &str) -> String {
        path_of(name_of(self.team, "teamName"), name, self.vars, part, "")
    }

    fn path(&self, part: &str) -> String {
        self.path_of(self.name, part)
    }

    /// Its id under this name; null when there is none.
    fn id(&self, name: &str) -> Result<Value, Failure> {
        let answer = self.concourse.get(self.path_of(name, PIPELINE)).send();
        Ok(body(answer, RENAME_FAILED)?["id"].take())
    }

    /// The name it has in Concourse, which is not the wanted one until it was renamed.
    pub fn name_now<'p>(&self, pipeline: &'p Pipeline) -> Result<&'p str, Failure> {
        let wanted = name_wanted(pipeline);
        let before = text(&pipeline.status["resolvedName"]);
        if !exists(pipeline) || before.is_empty() || before == wanted {
            return Ok(wanted);
        }
        // Its number tells: a pipeline of the wanted name may be another's.
        let response = self.concourse.get(self.path_of(wanted, PIPELINE)).send();
        match response {
            // `delete` says what that means.
            Err(Error::NotFound(_)) => Ok(before),
            response => {
                let found = body(response, "DeleteFailed")?;
                let ours = found["id"] == pipeline.status["pipelineID"];
                Ok(if ours { wanted } else { before })
            }
        }
    }

    /// Renames it in Concourse, with its builds, where the spec has another name than it was made with.
    pub fn rename(&self, pipeline: &Pipeline) -> Result<(), Failure> {
        let before = text(&pipeline.status["resolvedName"]);
        if !exists(pipeline) || before.is_empty() || before == self.name {
            return Ok(());
        }
        let ours = &pipeline.status["pipelineID"];
        let there = self.id(self.name)?;
        if there == *ours || self.id(before)? != *ours {
            // Renamed already, or deleted by somebody.
            return Ok(());
        }
        if !there.is_null() {
            let message = [
                "Concourse has another pipeline ",
                self.name,
                ": choose another spec.pipelineName, or remove that one.",
            ];
            return Err(Failure::retry(RENAME_FAILED, message.concat()));
        }
        let others = self.namesakes(pipeline, before)?;
        if !others.is_empty() {
            let message = [
                "Concourse renames all instances of a pipeline at once: give spec.pipelineName ",
                self.name,
                " to these Pipelines too: ",
                &others,
                ".",
            ];
            return Err(Failure::wait(RENAME_FAILED, message.concat()));
        }
        let path = path_of(
            name_of(self.team, "teamName"),
            before,
            &Value::Null,
            "/rename",
            "",
        );
        let request = self.concourse.put(path).json(&json!({ "name": self.name }));
        self.done(request, "rename the pipeline", RENAME_FAILED)?;
        self.ctx.event(
            "Renamed",
            &["Renamed from ", before, " to ", self.name, "."].concat(),
        );
        Ok(())
    }

    /// Other Pipelines that have this name in Concourse and are to keep it.
    fn namesakes(&self, pipeline: &Pipeline, name: &str) -> Result<String, Failure> {
        let kind = gvk("concourse-ci.org", "v1alpha1", "Pipeline");
        let all = self.ctx.list_json(&kind, &Selection::default(), &[])?;
        let metadata = &self.team["metadata"];
        let team = (text(&metadata["namespace"]), text(&metadata["name"]));
        let keeps = |other: &&Value| {
            target(other, "teamRef") == team
                && text(&other["status"]["resolvedName"]) == name
                && name_of(other, "pipelineName") != self.name
                && text(&other["metadata"]["uid"]) != pipeline.metadata.uid
        };
        let mut names: Vec<&str> = Vec::new();
        for other in all.iter().filter(keeps) {
            names.push(text(&other["metadata"]["name"]));
        }
        Ok(names.join(", "))
    }

    /// Makes it what the spec says, and the status what it is then. Gives whether it is archived.
    pub fn converge(&self, spec: &Value, desired: &Desired, status: &mut Value) -> Result<bool, Failure> {
        let mut state = self.look(desired)?;
        if self.write(spec, desired, &state, status)? {
            // Whoever wrote may look around once.
            state = self.read(&[PIPELINE, CONFIG, JOBS, RESOURCES], desired)?;
        } else if let Some(memo) = state.memo(desired) {
            self.ctx.cache_set(MEMO, &memo)?;
        }
        *status = self.describe(&state, desired, status);
        Ok(state.is("archived"))
    }

    /// Two reads at most: the pipeline, and its config. Where the config was seen since the pipeline changed
    /// last there is nothing new in it, and its jobs and resources are looked at instead, by turns.
    fn look(&self, desired: &Desired) -> Result<State, Failure> {
        let seen = self.ctx.cache_get(MEMO).unwrap_or_default();
        if !seen.starts_with(desired.hash.as_bytes()) {
            return self.read(&[PIPELINE, CONFIG], desired);
        }
        let pipeline = self.read(&[PIPELINE], desired)?.pipeline;
        let known = seen == memo(desired, &pipeline) && pipeline["archived"] != true;
        let second = match (known, self.ctx.now() / POLL % 2) {
            (false, _) => CONFIG,
            (true, 0) => JOBS,
            (true, _) => RESOURCES,
        };
        let state = self.read(&[second], desired)?;
        Ok(State {
            pipeline,
            known,
            ..state
        })
    }

    /// Writes what differs; gives whether there was anything.
    fn write(
        &self,
        spec: &Value,
        desired: &Desired,
        state: &State,
        status: &mut Value,
    ) -> Result<bool, Failure> {
        let is = |field: &str| spec[field] == true;
        let new = state.pipeline.is_null();
        let archive = is("archived");
        // An archived pipeline has no config, and is paused for good.
        let save = new || !archive && differs(desired, state, status);
        if save {
            status["warnings"] = self.save(desired, state)?.into();
        }
        let visible = match (state.is("public"), is("exposed")) {
            (false, true) => Some(("expose", "ExposeFailed")),
            (true, false) => Some(("hide", "HideFailed")),
            _ => None,
        };
        // Concourse creates pipelines paused, and leaves them so when it un-archives them.
        let active = match (new || state.is("paused"), is("paused")) {
            _ if archive => (!state.is("archived")).then_some(("archive", "ArchiveFailed")),
            (false, true) => Some(("pause", "PauseFailed")),
            (true, false) => Some(("unpause", "UnpauseFailed")),
            _ => None,
        };
        for (verb, reason) in visible.iter().chain(&active) {
            let request = self.concourse.put(self.path(&["/", verb].concat()));
            self.done(request, &[verb, " the pipeline"].concat(), reason)?;
        }
        Ok(save || visible.is_some() || active.is_some())
    }

    fn read(&self, parts: &[&str], desired: &Desired) -> Result<State, Failure> {
        // The substitutions keep secrets out of the answers.
        let get = |part: &&str| self.concourse.get(self.path(part)).substitute(&desired.secrets);
        let answers = self.concourse.send_each(parts.iter().map(get).collect());
        let mut state = State::default();
        for (&part, answer) in parts.iter().zip(answers) {
            if let (CONFIG, Ok(response)) = (part, &answer) {
                state.version = response.header(VERSION).map(Into::into);
                state.date = response.header("date").map(Into::into);
            }
            let mut body = body(answer, FAILED)?;
            match part {
                PIPELINE if !body.is_null() && !body["id"].is_i64() => {
                    let message = "The answer is no pipeline: it has no id.";
                    return Err(Failure::retry(FAILED, message));
                }
                PIPELINE => state.pipeline = body,
                CONFIG => state.config = body["config"].take(),
                JOBS => state.jobs = body,
                _ => state.resources = body,
            }
        }
        Ok(state)
    }

    /// Saves the config; gives Concourse's warnings. Somebody else may save at
    /// the same time: then it is tried once more, on top of theirs.
    fn save(&self, desired: &Desired, state: &State) -> Result<Vec<String>, Failure> {
        let mut response = self.put_config(desired, state.version.as_deref())?;
        if response.status() == 500 && is_conflict(response.bytes()) {
            let theirs = self.read(&[CONFIG], desired)?.version;
            response = self.put_config(desired, theirs.as_deref())?;
        }
        if response.is_success() {
            return Ok(warnings(&response.value().unwrap_or_default()));
        }
        let failure = refused(&response, "save the config", FAILED);
        let condition = Condition::new_false("ConfigSynced", FAILED, failure.message.clone());
        Err(failure.with(condition))
    }

    fn put_config(&self, desired: &Desired, version: Option<&str>) -> Result<Response, Failure> {
        let mut request = self
            .concourse
            .put(self.path(CONFIG))
            .json(&desired.config)
            .substitute(&desired.secrets);
        if let Some(version) = version {
            request = request.header("X-Concourse-Config-Version", version);
        }
        request.send().reason(FAILED)
    }

    /// Sends a request that has to succeed.
    fn done(&self, request: RequestBuilder, what: &str, reason: &str) -> Result<(), Failure> {
        let response = request.send().reason(reason)?;
        match response.is_success() {
            true => Ok(()),
            false => Err(refused(&response, what, reason)),
        }
    }

    fn describe(&self, state: &State, desired: &Desired, last: &Value) -> Value {
        let shown = &state.pipeline;
        let time = |field: &str| shown[field].as_u64().map(rfc3339);
        let page = self.team["status"]["webURL"].as_str().map(|url| {
            // The page of an instance is named as its API is.
            let path = path_of("", self.name, self.vars, "", "");
            [url, path.trim_start_matches("/api/v1/teams/")].concat()
        });
        // Only where it was read is it known to be this one.
        let (hash, version) = match &state.version {
            Some(version) => (desired.hash.as_str().into(), version.as_str().into()),
            None => (last["configHash"].clone(), last["configVersion"].clone()),
        };
        // An archived pipeline has none of what the config says.
        let archived = state.is("archived");
        let config = if archived { &Value::Null } else { &desired.config };
        let groups = config::groups(&shown["groups"]);
        let count = groups.as_array().map_or(0, Vec::len);
        let fields = [
            ("resolvedName", self.name.into()),
            ("instanceVars", self.vars.clone()),
            ("webURL", page.into()),
            ("pipelineID", shown["id"].clone()),
            ("configHash", hash),
            ("configVersion", version),
            ("warnings", last["warnings"].clone()),
            ("paused", state.is("paused").into()),
            ("exposed", state.is("public").into()),
            ("archived", archived.into()),
            ("pausedBy", shown["paused_by"].clone()),
            ("pausedAt", time("paused_at").into()),
            ("lastUpdated", time("last_updated").into()),
            ("groups", groups),
            ("groupCount", count.into()),
            ("jobs", config::jobs(config, &state.jobs, &last["jobs"])),
            (
                "resources",
                config::resources(config, &state.resources, &last["resources"]),
            ),
            ("resourceTypes", config::resource_types(config)),
        ];
        let mut status = Map::new();
        for (field, value) in fields {
            config::set(&mut status, field, value);
        }
        status.into()
    }
}

/// Whether the config has to be written. The same hash at the same version
/// settles it where Concourse shows the config in other words than ours.
fn differs(desired: &Desired, state: &State, status: &Value) -> bool {
    if state.known {
        return false;
    }
    let written = state.version.is_some()
        && status["configVersion"].as_str() == state.version.as_deref()
        && status["configHash"] == *desired.hash;
    state.config.is_null() || !written && !config::same(&state.config, &desired.config)
}

/// Concourse has no status of its own for a config that somebody else saved.
fn is_conflict(body: &[u8]) -> bool {
    let text = b"comparison with existing config";
    body.windows(text.len()).any(|part| part == text)
}

/// What an answer has, null for a 404.
fn body(answer: Result<Response, Error>, reason: &str) -> Result<Value, Failure> {
    let response = answer.reason(reason)?;
    match response.status() {
        200 => response.value().reason(reason),
        404 => Ok(Value::Null),
        _ => Err(refused(&response, "read the pipeline", reason)),
    }
}
