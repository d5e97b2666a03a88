//! Reconciles `concourse-ci.org/v1alpha1` Pipeline: config, visibility, pause
//! and archive state. Reads twice and writes nothing while all is as wanted.

mod config;
mod desired;
mod vars;
mod yaml;

use concourse_api::{
    Pipeline, PipelineSpec, PipelineStatus, ReclaimPolicy, TeamSpec, config_warning, delete, escape, refused,
    suspended, target, warnings,
};
use desired::Desired;
use ostler_sdk::{ObjectRef, Response, Upstream, prelude::*, rfc3339, serde_json::Value};

const POLL: u64 = 300_000;
const VERSION: &str = "x-concourse-config-version";
const SET_FAILED: &str = "SetPipelineFailed";

/// Reconciles Pipelines.
pub struct Pipelines;

impl Reconciler for Pipelines {
    type Spec = PipelineSpec;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/pipeline-finalizer");

    fn reconcile(&self, ctx: &Context, pipeline: &Pipeline) -> Result<Outcome, Failure> {
        if pipeline.spec.suspend {
            return Ok(suspended());
        }
        if !pipeline.spec.k8s_configs.is_empty() {
            let message = "spec.k8sConfigs is not supported yet; remove it, or add the resources \
                           to the config yourself.";
            return Err(Failure::parked("Unsupported", message));
        }
        let team = ctx
            .require_ready_json(&team_of(pipeline))
            .reason("TeamNotReady")?;
        let desired = desired::load(ctx, pipeline)?;
        let (namespace, instance) = target(&team, "instanceRef");
        let remote = Remote {
            concourse: ctx.upstream_in(namespace, instance),
            path: path(&team, pipeline),
            desired,
        };
        let mut status = pipeline.status.clone();
        let found = remote.converge(&pipeline.spec, &mut status)?;
        describe(&found, pipeline, &team, &mut status);
        Ok(Outcome::poll(POLL)
            .with(Condition::yes("Ready", "Ready", "The pipeline is as wanted."))
            .with(Condition::yes(
                "ConfigSynced",
                "Synced",
                "Concourse has the config.",
            ))
            .with(config_warning(&status.warnings))
            .status(&status))
    }

    fn cleanup(&self, ctx: &Context, pipeline: &Pipeline) -> Result<Outcome, Failure> {
        if pipeline.spec.reclaim_policy == ReclaimPolicy::Orphan {
            ctx.event(
                "Orphaned",
                "The pipeline stays in Concourse, as reclaimPolicy says.",
            );
            return Ok(Outcome::settled());
        }
        let Some(team) = ctx.get_json(&team_of(pipeline))? else {
            ctx.warn("Orphaned", "The pipeline stays in Concourse: its Team is gone.");
            return Ok(Outcome::settled());
        };
        let (namespace, instance) = target(&team, "instanceRef");
        let what = ["pipeline ", pipeline_name(pipeline)].concat();
        delete(ctx, namespace, instance, &path(&team, pipeline), &what)
    }
}

fn team_of(pipeline: &Pipeline) -> ObjectRef {
    let reference = &pipeline.spec.team_ref;
    TeamSpec::reference(reference.namespace_or(pipeline.namespace()), &reference.name)
}

fn pipeline_name(pipeline: &Pipeline) -> &str {
    let name = pipeline.spec.pipeline_name.as_deref();
    name.unwrap_or(pipeline.name())
}

fn path(team: &Value, pipeline: &Pipeline) -> String {
    let name = team["spec"]["teamName"].as_str();
    let name = name.or(team["metadata"]["name"].as_str());
    [
        "/api/v1/teams/",
        &escape(name.unwrap_or_default()),
        "/pipelines/",
        &escape(pipeline_name(pipeline)),
    ]
    .concat()
}

/// A pipeline as Concourse shows it.
struct Found {
    id: i32,
    paused: bool,
    public: bool,
    archived: bool,
    paused_by: Option<String>,
    paused_at: Option<u64>,
    last_updated: Option<u64>,
}

impl Found {
    fn read(response: &Response) -> Result<Self, Error> {
        let pipeline = response.value()?;
        let is = |field: &str| pipeline[field].as_bool().unwrap_or_default();
        let id = pipeline["id"].as_i64().and_then(|id| id.try_into().ok());
        let none = || Error::Unavailable("The answer is no pipeline: it has no id.".into());
        Ok(Self {
            id: id.ok_or_else(none)?,
            paused: is("paused"),
            public: is("public"),
            archived: is("archived"),
            paused_by: pipeline["paused_by"].as_str().map(ToOwned::to_owned),
            paused_at: pipeline["paused_at"].as_u64(),
            last_updated: pipeline["last_updated"].as_u64(),
        })
    }
}

/// The pipeline and its config; an archived one has none.
#[derive(Default)]
struct State {
    pipeline: Option<Found>,
    config: Option<Value>,
    version: Option<String>,
}

/// The pipeline in Concourse, and what it should be.
struct Remote<'a> {
    concourse: Upstream<'a>,
    path: String,
    desired: Desired,
}

impl Remote<'_> {
    fn converge(&self, spec: &PipelineSpec, status: &mut PipelineStatus) -> Result<State, Failure> {
        let mut state = self.read()?;
        let archived = state.pipeline.as_ref().is_some_and(|p| p.archived);
        // Saving un-archives: one that is to stay archived keeps what it has.
        if archived && spec.archived {
            return Ok(state);
        }
        let mut wrote = false;
        if self.differs(&state, status) {
            status.warnings = self.save(&state)?;
            wrote = true;
        }
        let (paused, public) = match &state.pipeline {
            Some(pipeline) => (pipeline.paused, pipeline.public),
            // Concourse creates pipelines paused and hidden.
            None => (true, false),
        };
        let (paused, public) = match state.pipeline {
            // Un-archiving leaves it paused.
            Some(_) if archived => (true, public),
            _ => (paused, public),
        };
        for (is, should, on, off) in [
            (
                public,
                spec.exposed,
                ("expose", "ExposeFailed"),
                ("hide", "HideFailed"),
            ),
            (
                // Archiving pauses by itself.
                paused,
                if spec.archived { paused } else { spec.paused },
                ("pause", "PauseFailed"),
                ("unpause", "UnpauseFailed"),
            ),
            (
                false,
                spec.archived,
                ("archive", "ArchiveFailed"),
                ("archive", "ArchiveFailed"),
            ),
        ] {
            if is != should {
                let (verb, reason) = if should { on } else { off };
                self.put(verb, reason)?;
                wrote = true;
            }
        }
        if wrote {
            state = self.read()?;
        }
        status.config_hash = Some(self.desired.hash.clone());
        status.config_version.clone_from(&state.version);
        Ok(state)
    }

    /// Whether the config has to be written. The same hash at the same version
    /// settles it where Concourse shows the config in other words than ours.
    fn differs(&self, state: &State, status: &PipelineStatus) -> bool {
        let Some(live) = &state.config else {
            return true;
        };
        let written = state.version.is_some()
            && status.config_version == state.version
            && status.config_hash.as_ref() == Some(&self.desired.hash);
        !written && !config::same(live, &self.desired.config)
    }

    fn read(&self) -> Result<State, Failure> {
        let [pipeline, live] = self.concourse.send_all([
            self.concourse.get(&*self.path),
            // The substitutions keep secrets out of the answer.
            self.concourse
                .get([&self.path, "/config"].concat())
                .substitute(&self.desired.secrets),
        ]);
        let pipeline = found(pipeline, "read the pipeline")?;
        let live = found(live, "read the config")?;
        let version = live.as_ref().and_then(|r| r.header(VERSION));
        Ok(State {
            version: version.map(ToOwned::to_owned),
            pipeline: pipeline.map(|r| Found::read(&r)).transpose().reason(SET_FAILED)?,
            config: live
                .map(|r| r.value())
                .transpose()
                .reason(SET_FAILED)?
                .map(|mut live| live["config"].take()),
        })
    }

    /// Saves the config; gives Concourse's warnings. Somebody else may save at
    /// the same time: then it is tried once more, on top of theirs.
    fn save(&self, state: &State) -> Result<Vec<String>, Failure> {
        let mut response = self.put_config(state.version.as_deref())?;
        if response.status() == 500 && is_conflict(response.bytes()) {
            response = self.put_config(self.read()?.version.as_deref())?;
        }
        if response.is_success() {
            return Ok(warnings(&response.value().unwrap_or_default()));
        }
        let failure = refused(&response, "save the config", SET_FAILED);
        let condition = Condition::no("ConfigSynced", SET_FAILED, failure.message.clone());
        Err(failure.with(condition))
    }

    fn put_config(&self, version: Option<&str>) -> Result<Response, Failure> {
        let mut request = self
            .concourse
            .put([&self.path, "/config"].concat())
            .json(&self.desired.config)
            .substitute(&self.desired.secrets);
        if let Some(version) = version {
            request = request.header("X-Concourse-Config-Version", version);
        }
        request.send().reason(SET_FAILED)
    }

    fn put(&self, verb: &str, reason: &str) -> Result<(), Failure> {
        let request = self.concourse.put([&self.path, "/", verb].concat());
        let response = request.send().reason(reason)?;
        match response.is_success() {
            true => Ok(()),
            false => {
                let what = [verb, " the pipeline"].concat();
                Err(refused(&response, &what, reason))
            }
        }
    }
}

/// Concourse has no status of its own for a config that somebody else saved.
fn is_conflict(body: &[u8]) -> bool {
    let text = b"comparison with existing config";
    body.windows(text.len()).any(|part| part == text)
}

/// The answer, or none for a 404.
fn found(answer: Result<Response, Error>, what: &str) -> Result<Option<Response>, Failure> {
    let response = answer.reason(SET_FAILED)?;
    match response.status() {
        200 => Ok(Some(response)),
        404 => Ok(None),
        _ => Err(refused(&response, what, SET_FAILED)),
    }
}

fn describe(state: &State, pipeline: &Pipeline, team: &Value, status: &mut PipelineStatus) {
    let name = pipeline_name(pipeline);
    status.resolved_name = Some(name.to_owned());
    let page = |url: &str| [url, "/pipelines/", &escape(name)].concat();
    status.web_url = team["status"]["webURL"].as_str().map(page);
    if let Some(found) = &state.pipeline {
        status.pipeline_id = Some(found.id);
        status.paused = Some(found.paused);
        status.exposed = Some(found.public);
        status.archived = Some(found.archived);
        status.paused_by.clone_from(&found.paused_by);
        status.paused_at = found.paused_at.map(rfc3339);
        status.last_updated = found.last_updated.map(rfc3339);
    }
    if let Some(config) = &state.config {
        config::describe(config, status);
    }
}

ostler_sdk::plugin!(Pipelines);
