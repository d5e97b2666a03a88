//! A pipeline in Concourse, and the requests that make it match its spec.

use concourse_api::{
    ConcourseOperation, InstanceVars, Pipeline, PipelineSpec, PipelineStatus, concourse_name,
    concourse_status, delete_claimed, find_server_url, is_on_server, pipeline_path, read_warnings,
    resolve_json, rest,
};
use ostler_sdk::{
    RequestBuilder, Response, Selection, Upstream,
    prelude::*,
    rfc3339,
    serde_json::{Map, Value},
};

use crate::{config, desired::DesiredConfig, parent::ParentTeam};

/// Interval of polling a pipeline that matches its spec.
pub const POLL_INTERVAL_MS: u64 = 300_000;

const VERSION_HEADER: &str = "x-concourse-config-version";
const READ_PIPELINE: ConcourseOperation = ConcourseOperation::new("read the pipeline", "SetPipelineFailed");
const SAVE_CONFIG: ConcourseOperation = ConcourseOperation::new("save the config", "SetPipelineFailed");
const RENAME_PIPELINE: ConcourseOperation = ConcourseOperation::new("rename the pipeline", "RenameFailed");
const READ_FOR_RENAME: ConcourseOperation = ConcourseOperation::new("read the pipeline", "RenameFailed");
const EXPOSE_PIPELINE: ConcourseOperation = ConcourseOperation::new("expose the pipeline", "ExposeFailed");
const HIDE_PIPELINE: ConcourseOperation = ConcourseOperation::new("hide the pipeline", "HideFailed");
const ARCHIVE_PIPELINE: ConcourseOperation = ConcourseOperation::new("archive the pipeline", "ArchiveFailed");
const PAUSE_PIPELINE: ConcourseOperation = ConcourseOperation::new("pause the pipeline", "PauseFailed");
const UNPAUSE_PIPELINE: ConcourseOperation = ConcourseOperation::new("unpause the pipeline", "UnpauseFailed");

/// Key under which the last config that Concourse showed is cached, as [`config_fingerprint`].
const CONFIG_KEY: &str = "config";

const SECONDS_PER_DAY: u64 = 86_400;
/// A config counts as current only if it was shown this long after the last change: another change may carry the same
/// second, and the clocks of Concourse's database and web nodes may differ by about as much.
const MIN_AGE_SECONDS: u64 = 120;
/// The time of day of a response wraps around at midnight, so an age close to a day may be a negative one.
const MAX_AGE_SECONDS: u64 = SECONDS_PER_DAY - 60;

/// A part of a pipeline that has an endpoint of its own.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Pipeline,
    Config,
    Jobs,
    Resources,
}

impl Part {
    /// Path below the pipeline.
    fn path(self) -> &'static str {
        match self {
            Self::Pipeline => "",
            Self::Config => "/config",
            Self::Jobs => "/jobs",
            Self::Resources => "/resources",
        }
    }
}

/// A pipeline of a team in Concourse.
pub struct RemotePipeline<'a> {
    ctx: &'a Context<'a>,
    concourse: Upstream<'a>,
    /// URL of the server; none if the Upstream is gone.
    server: Option<String>,
    team: &'a ParentTeam,
    name: &'a str,
    instance_vars: &'a InstanceVars,
}

/// State of a pipeline as Concourse shows it; none for the parts that do not exist or were not read.
#[derive(Default)]
struct State {
    pipeline: Option<rest::PipelineResponse>,
    config: Option<Value>,
    version: Option<String>,
    /// Time of the response that showed the config, by Concourse's clock.
    date: Option<String>,
    jobs: Option<Value>,
    resources: Option<Value>,
    /// Indicates whether the config is known to be the desired one although it was not read.
    is_config_current: bool,
    /// Indicates whether the config that was read is known to be the desired one in Concourse's wording.
    is_config_reworded: bool,
}

impl State {
    fn is_paused(&self) -> bool {
        self.pipeline.as_ref().is_some_and(|pipeline| pipeline.paused)
    }

    fn is_public(&self) -> bool {
        self.pipeline.as_ref().is_some_and(|pipeline| pipeline.public)
    }

    fn is_archived(&self) -> bool {
        self.pipeline.as_ref().is_some_and(|pipeline| pipeline.archived)
    }

    /// Returns whether the config that was read is the desired one.
    fn shows(&self, desired: &DesiredConfig) -> bool {
        let config = self.config.as_ref();
        config.is_some_and(|config| config::is_equivalent(config, &desired.config))
    }

    /// Returns whether the config that was read is the one last saved, by its version, and that was the desired one.
    /// This holds even if Concourse shows it in another wording.
    fn is_saved(&self, desired: &DesiredConfig, last: &PipelineStatus) -> bool {
        self.version.is_some()
            && last.config_version == self.version
            && last.config_hash.as_ref() == Some(&desired.hash)
    }

    /// The fingerprint to cache of a config that was read; none while another change may carry the same second.
    fn cacheable_fingerprint(&self, desired: &DesiredConfig) -> Option<String> {
        let shown_at = parse_seconds_of_day(self.date.as_deref()?)?;
        let changed_at = self.pipeline.as_ref()?.last_updated?;
        let age = (shown_at + SECONDS_PER_DAY - changed_at % SECONDS_PER_DAY) % SECONDS_PER_DAY;
        (MIN_AGE_SECONDS..MAX_AGE_SECONDS)
            .contains(&age)
            .then(|| config_fingerprint(desired, self.pipeline.as_ref()))
    }
}

/// Seconds since midnight of a date as HTTP writes it: `Sat, 21 Nov 2026 04:21:24 GMT`.
fn parse_seconds_of_day(date: &str) -> Option<u64> {
    let two_digits = |start: usize| date.get(start..start + 2)?.parse::<u64>().ok();
    Some(two_digits(17)? * 3600 + two_digits(20)? * 60 + two_digits(23)?)
}

/// The hash of the desired config and the time of the last change that Concourse recorded. As long as both are the
/// same, the config in Concourse is the same.
fn config_fingerprint(desired: &DesiredConfig, pipeline: Option<&rest::PipelineResponse>) -> String {
    let changed_at = pipeline.and_then(|pipeline| pipeline.last_updated);
    let changed_at = changed_at.map(|seconds| seconds.to_string());
    format!("{}{}", desired.hash, changed_at.unwrap_or_default())
}

impl<'a> RemotePipeline<'a> {
    /// The pipeline that an object stands for.
    ///
    /// # Errors
    /// The server is not known.
    pub fn new(ctx: &'a Context<'a>, pipeline: &'a Pipeline, team: &'a ParentTeam) -> Result<Self, Failure> {
        let instance = team.instance();
        Ok(Self {
            ctx,
            concourse: ctx.upstream_in(instance.namespace, instance.name),
            server: find_server_url(ctx, instance)?,
            team,
            name: concourse_name(pipeline),
            instance_vars: &pipeline.spec.instance_vars,
        })
    }

    /// Path of the pipeline, or of something below it.
    fn path(&self, rest: &str) -> String {
        pipeline_path(self.team.name(), self.name, self.instance_vars, rest, "")
    }

    // Inlined it would take more bytes than the limit of a component leaves.
    #[inline(never)]
    fn read_id(&self, operation: &ConcourseOperation, path: String) -> Result<Option<i32>, Failure> {
        let pipeline: Option<rest::PipelineResponse> =
            operation.read_optional(self.concourse.get(path).send())?;
        Ok(pipeline.map(|pipeline| pipeline.id))
    }

    fn is_on_claimed_server(&self, status: &PipelineStatus) -> bool {
        let claimed = status.claimed_server.as_deref();
        is_on_server(self.ctx, self.server.as_deref(), claimed, &self.describe(status))
    }

    /// The claimed pipeline in messages, by its name in Concourse.
    fn describe(&self, status: &PipelineStatus) -> String {
        format!("pipeline {}", self.former_name(status).unwrap_or(self.name))
    }

    /// The name that the claimed pipeline had at the last reconcile, if that is not the name that it is to have.
    fn former_name<'s>(&self, status: &'s PipelineStatus) -> Option<&'s str> {
        let name = status.resolved_name.as_deref()?;
        (status.is_claimed() && !name.is_empty() && name != self.name).then_some(name)
    }

    /// Returns whether a status is of the pipeline that the spec names. It is not after the Instance's URL was changed,
    /// or if the claimed pipeline does not exist and the spec has other instance vars by now.
    ///
    /// # Errors
    /// The claimed pipeline exists and the spec has other instance vars, which is terminal.
    pub fn has_status(&self, last: &PipelineStatus) -> Result<bool, Failure> {
        if !self.is_on_claimed_server(last) {
            return Ok(false);
        }
        if !last.is_claimed() || last.instance_vars == *self.instance_vars {
            return Ok(true);
        }
        for path in self.claimed_paths(last) {
            let found = self.read_id(&READ_PIPELINE, path)?;
            if found.is_some() && (found == last.pipeline_id || last.pipeline_id.is_none()) {
                let message = "spec.instanceVars cannot be changed, because Concourse cannot change them: restore \
                               them, or create another Pipeline with the new ones.";
                return Err(Failure::terminal("InvalidSpec", message));
            }
        }
        Ok(false)
    }

    /// The paths that the claimed pipeline may have: with the instance vars it was claimed with, under the recorded name,
    /// or the one to which a rename that was not recorded any more has changed it.
    fn claimed_paths(&self, status: &PipelineStatus) -> Vec<String> {
        let path = |name| pipeline_path(self.team.name(), name, &status.instance_vars, "", "");
        let mut paths = vec![path(self.name)];
        if let Some(former) = self.former_name(status) {
            paths.insert(0, path(former));
        }
        paths
    }

    /// Deletes the claimed pipeline under the name it has in Concourse.
    pub fn delete(&self, status: &PipelineStatus) -> Result<Outcome, Failure> {
        if !self.is_on_claimed_server(status) {
            return Ok(Outcome::await_change());
        }
        let (instance, id) = (self.team.instance(), status.pipeline_id);
        let (paths, what) = (self.claimed_paths(status), self.describe(status));
        delete_claimed(self.ctx, instance, &self.concourse, &paths, id, &what)
    }

    /// Renames the pipeline, which keeps its builds, if the spec has another name than the one it was created with.
    pub fn rename(&self, pipeline: &Pipeline, last: &PipelineStatus) -> Result<(), Failure> {
        let Some(before) = self.former_name(last) else {
            return Ok(());
        };
        let name = self.name;
        let former_path = pipeline_path(self.team.name(), before, self.instance_vars, "", "");
        let occupant = self.read_id(&READ_FOR_RENAME, self.path(""))?;
        let former = self.read_id(&READ_FOR_RENAME, former_path)?;
        // Without an ID, the claimed pipeline is the one of the former name: there was none before the claim.
        let own_id = last.pipeline_id.or(former);
        if former.is_none() || former != own_id || occupant == own_id {
            // The pipeline was renamed already, or another user has deleted it.
            return Ok(());
        }
        if occupant.is_some() {
            let message = format!(
                "Concourse has another pipeline {name}: choose another spec.pipelineName, or delete that pipeline."
            );
            return Err(Failure::retry(RENAME_PIPELINE.reason(), message));
        }
        let others = self.list_namesakes(pipeline, before)?;
        if !others.is_empty() {
            let message = format!(
                "Concourse renames all instances of a pipeline together: set spec.pipelineName to {name} for these \
                 Pipelines, too: {others}."
            );
            return Err(Failure::wait(RENAME_PIPELINE.reason(), message));
        }
        let path = pipeline_path(self.team.name(), before, &Map::new(), "/rename", "");
        let request = self.concourse.put(path).json(&json!({ "name": name }));
        RENAME_PIPELINE.check(request.send())?;
        self.ctx
            .event("Renamed", &format!("Renamed from {before} to {name}."));
        Ok(())
    }

    /// Lists the other Pipelines that have this name in Concourse and are to keep it. They are read as JSON, because
    /// an invalid one must not prevent the rename.
    fn list_namesakes(&self, pipeline: &Pipeline, name: &str) -> Result<String, Failure> {
        let fields = format!("spec.teamRef.name={}", self.team.object().name);
        let selection = Selection {
            fields: Some(&fields),
            ..Selection::default()
        };
        let parts = [
            "metadata",
            "spec.pipelineName",
            "spec.teamRef",
            "status.resolvedName",
        ];
        let pipelines = self.ctx.list_json(&PipelineSpec::gvk(), &selection, &parts)?;
        let keeps_name = |other: &&Value| {
            let metadata = &other["metadata"];
            let name_override = other["spec"]["pipelineName"]
                .as_str()
                .filter(|name| !name.is_empty());
            let desired_name = name_override.or(metadata["name"].as_str());
            resolve_json(other, "teamRef") == self.team.object()
                && other["status"]["resolvedName"] == name
                && desired_name != Some(self.name)
                && metadata["uid"] != pipeline.metadata.uid.as_str()
        };
        let namesakes = pipelines.iter().filter(keeps_name);
        let names: Vec<_> = namesakes
            .filter_map(|other| other["metadata"]["name"].as_str())
            .collect();
        Ok(names.join(", "))
    }

    /// Makes the pipeline match its spec. Returns its status.
    pub fn apply(
        &self,
        spec: &PipelineSpec,
        desired: &DesiredConfig,
        last: &PipelineStatus,
    ) -> Result<PipelineStatus, Failure> {
        let mut state = self.read_state(desired)?;
        let mut warnings = last.warnings.clone();
        let is_save_due = is_save_due(spec, desired, &state, last);
        let switches = find_switches(spec, &state);
        if is_save_due || !switches.is_empty() {
            self.claim(&state, last)?;
        }
        if is_save_due {
            // Concourse creates nothing if it refuses the first write, so there is no claim either.
            let unclaimed = Some(last).filter(|last| !last.is_claimed());
            warnings = self.save(desired, &state, unclaimed)?;
        }
        for (path, operation) in &switches {
            self.send_checked(operation, self.concourse.put(self.path(path)))?;
        }
        if is_save_due || !switches.is_empty() {
            // After a write one more round of reads is affordable.
            let parts = [Part::Pipeline, Part::Config, Part::Jobs, Part::Resources];
            state = self.read_parts(&parts, desired)?;
            if is_save_due && !state.shows(desired) {
                self.save_again(desired, &mut state)?;
            }
        } else if let Some(fingerprint) = state.cacheable_fingerprint(desired) {
            self.ctx.cache_set(CONFIG_KEY, fingerprint.as_bytes())?;
        }
        Ok(self.build_status(state, desired, last, warnings))
    }

    /// Records that the object is about to create the pipeline. One that exists is claimed when it has been written: until
    /// then the object must not delete it.
    fn claim(&self, state: &State, last: &PipelineStatus) -> Result<(), Failure> {
        if last.is_claimed() || state.pipeline.is_some() {
            return Ok(());
        }
        let claim = json!({
            "claimedServer": self.server,
            "resolvedName": self.name,
            "instanceVars": self.instance_vars,
            "pipelineID": null,
        });
        self.ctx.checkpoint(&claim).reason(SAVE_CONFIG.reason())
    }

    /// Reads the pipeline and its config. If the config was read since the last change that Concourse recorded, its
    /// jobs or its resources are read instead, in turns.
    fn read_state(&self, desired: &DesiredConfig) -> Result<State, Failure> {
        let cached = self.ctx.cache_get(CONFIG_KEY).unwrap_or_default();
        if !cached.starts_with(desired.hash.as_bytes()) {
            return self.read_parts(&[Part::Pipeline, Part::Config], desired);
        }
        let state = self.read_parts(&[Part::Pipeline], desired)?;
        let fingerprint = config_fingerprint(desired, state.pipeline.as_ref());
        let is_config_current = cached == fingerprint.as_bytes() && !state.is_archived();
        let is_even_round = (self.ctx.now() / POLL_INTERVAL_MS).is_multiple_of(2);
        let second = match (is_config_current, is_even_round) {
            (false, _) => Part::Config,
            (true, true) => Part::Jobs,
            (true, false) => Part::Resources,
        };
        Ok(State {
            pipeline: state.pipeline,
            is_config_current,
            ..self.read_parts(&[second], desired)?
        })
    }

    fn read_parts(&self, parts: &[Part], desired: &DesiredConfig) -> Result<State, Failure> {
        // With the substitutions the host redacts the secrets in the responses.
        let build_request = |part: &Part| {
            let request = self.concourse.get(self.path(part.path()));
            request.substitute(&desired.secrets)
        };
        let answers = self
            .concourse
            .send_each(parts.iter().map(build_request).collect());
        let mut state = State::default();
        for (part, answer) in parts.iter().zip(answers) {
            match part {
                Part::Pipeline => state.pipeline = READ_PIPELINE.read_optional(answer)?,
                Part::Config => {
                    if let Ok(response) = &answer {
                        state.version = response.header(VERSION_HEADER).map(ToOwned::to_owned);
                        state.date = response.header("date").map(ToOwned::to_owned);
                    }
                    let body: Option<Value> = READ_PIPELINE.read_optional(answer)?;
                    state.config = body.map(|mut body| body["config"].take());
                }
                Part::Jobs => state.jobs = READ_PIPELINE.read_optional(answer)?,
                Part::Resources => state.resources = READ_PIPELINE.read_optional(answer)?,
            }
        }
        Ok(state)
    }

    /// Saves the config and returns Concourse's warnings. If another user has saved at the same time, it is saved once
    /// more on top of theirs. The failure of a refusal has the status that is given for it.
    fn save(
        &self,
        desired: &DesiredConfig,
        state: &State,
        refused: Option<&PipelineStatus>,
    ) -> Result<Vec<String>, Failure> {
        let mut response = self.put_config(desired, state.version.as_deref())?;
        if response.status() == 500 && is_version_conflict(response.bytes()) {
            let latest = self.read_parts(&[Part::Config], desired)?;
            response = self.put_config(desired, latest.version.as_deref())?;
        }
        let status = concourse_status(&response);
        if matches!(status, Some(200..=299)) {
            return Ok(read_warnings(&response.value().unwrap_or_default()));
        }
        let failure = SAVE_CONFIG.failure(&response);
        let condition = Condition::new_false("ConfigSynced", SAVE_CONFIG.reason(), failure.message.clone());
        let failure = failure.with(condition);
        Err(match (status, refused) {
            (Some(400..=499), Some(refused)) => failure.status(refused),
            _ => failure,
        })
    }

    /// Saves a config once more that Concourse shows differently after the first time: either in another wording, or
    /// because another user has saved theirs since. It shows the same again in the first case only.
    fn save_again(&self, desired: &DesiredConfig, state: &mut State) -> Result<(), Failure> {
        if state.config.is_none() {
            return Ok(());
        }
        // A refusal takes nothing back: the first save was accepted.
        self.save(desired, state, None)?;
        let again = self.read_parts(&[Part::Config], desired)?;
        state.is_config_reworded = again.config == state.config;
        (state.config, state.version) = (again.config, again.version);
        Ok(())
    }

    fn put_config(&self, desired: &DesiredConfig, version: Option<&str>) -> Result<Response, Failure> {
        let mut request = self
            .concourse
            .put(self.path(Part::Config.path()))
            .json(&desired.config)
            .substitute(&desired.secrets);
        if let Some(version) = version {
            request = request.header("X-Concourse-Config-Version", version);
        }
        request.send().reason(SAVE_CONFIG.reason())
    }

    fn send_checked(&self, operation: &ConcourseOperation, request: RequestBuilder) -> Result<(), Failure> {
        operation.check(request.send())?;
        Ok(())
    }

    fn build_status(
        &self,
        state: State,
        desired: &DesiredConfig,
        last: &PipelineStatus,
        warnings: Vec<String>,
    ) -> PipelineStatus {
        let (paused, exposed, archived) = (state.is_paused(), state.is_public(), state.is_archived());
        // Hash and version remain those of the last save unless the config that was read is the desired one.
        let is_desired = state.is_config_reworded || state.shows(desired) || state.is_saved(desired, last);
        let (config_hash, config_version) = match &state.version {
            Some(version) if is_desired => (Some(desired.hash.clone()), Some(version.clone())),
            _ => (last.config_hash.clone(), last.config_version.clone()),
        };
        // An archived pipeline has no config, and so none of its parts.
        let config = if archived { &Value::Null } else { &desired.config };
        let (shown_jobs, shown_resources) = (state.jobs.as_ref(), state.resources.as_ref());
        let pipeline = state.pipeline.as_ref();
        let groups = config::describe_groups(pipeline.map(|pipeline| &*pipeline.groups).unwrap_or_default());
        PipelineStatus {
            pipeline_id: pipeline.map(|pipeline| pipeline.id),
            claimed_server: self.server.clone(),
            resolved_name: Some(self.name.to_owned()),
            instance_vars: self.instance_vars.clone(),
            web_url: self.web_url(),
            config_hash,
            config_version,
            warnings,
            paused: Some(paused),
            exposed: Some(exposed),
            archived: Some(archived),
            paused_by: pipeline.and_then(|pipeline| pipeline.paused_by.clone()),
            paused_at: pipeline.and_then(|pipeline| pipeline.paused_at).map(rfc3339),
            last_updated: pipeline.and_then(|pipeline| pipeline.last_updated).map(rfc3339),
            group_count: i32::try_from(groups.len()).ok(),
            groups,
            jobs: config::describe_jobs(config, shown_jobs, &last.jobs),
            resources: config::describe_resources(config, shown_resources, &last.resources),
            resource_types: config::describe_resource_types(config),
        }
    }

    /// URL of the web page, whose path below the team's is the same as in the REST API.
    fn web_url(&self) -> Option<String> {
        let team_url = self.team.web_url()?;
        let path = pipeline_path("", self.name, self.instance_vars, "", "");
        let path = path.trim_start_matches("/api/v1/teams/");
        Some(format!("{team_url}{path}"))
    }
}

/// Returns whether the config has to be saved. An archived pipeline has none to compare.
fn is_save_due(spec: &PipelineSpec, desired: &DesiredConfig, state: &State, last: &PipelineStatus) -> bool {
    if state.pipeline.is_none() {
        return true;
    }
    !spec.archived && !state.is_config_current && !state.is_saved(desired, last) && !state.shows(desired)
}

/// Finds the requests for visibility, pause and archival that are due.
fn find_switches(spec: &PipelineSpec, state: &State) -> Vec<(&'static str, ConcourseOperation)> {
    let visibility = match (state.is_public(), spec.exposed) {
        (false, true) => Some(("/expose", EXPOSE_PIPELINE)),
        (true, false) => Some(("/hide", HIDE_PIPELINE)),
        _ => None,
    };
    // Concourse creates pipelines paused, and leaves them paused when a save reactivates them. An archived pipeline is
    // always paused.
    let is_paused = state.pipeline.is_none() || state.is_paused();
    let activity = match (is_paused, spec.paused) {
        _ if spec.archived => (!state.is_archived()).then_some(("/archive", ARCHIVE_PIPELINE)),
        (false, true) => Some(("/pause", PAUSE_PIPELINE)),
        (true, false) => Some(("/unpause", UNPAUSE_PIPELINE)),
        _ => None,
    };
    visibility.into_iter().chain(activity).collect()
}

/// Returns whether the response reports that another user has saved the config. Concourse has no status for that but 500.
fn is_version_conflict(body: &[u8]) -> bool {
    const CONFLICT_MARKER: &[u8] = b"comparison with existing config";
    body.windows(CONFLICT_MARKER.len())
        .any(|part| part == CONFLICT_MARKER)
}
