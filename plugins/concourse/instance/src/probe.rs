//! Health probe of a Concourse server.

use std::collections::BTreeMap;

use concourse_api::{NOT_OF_CONCOURSE, concourse_status, rest};
use ostler_sdk::{
    Response, Upstream, api,
    prelude::*,
    serde::de::{DeserializeOwned, IgnoredAny},
};

const AUTHENTICATED_TYPE: &str = "Authenticated";
const AUTHENTICATION_FAILED: &str = "AuthenticationFailed";
const INFO_FAILED: &str = "InfoFailed";

/// Result of a probe.
pub struct Health {
    /// The server.
    pub info: ServerInfo,
    /// The user that is logged in.
    pub user: ProbedUser,
    /// Workers by state; none if they could not be listed.
    pub workers: Option<WorkerCounts>,
    /// Message of the day; none if it could not be read.
    pub wall_message: Option<Option<String>>,
    /// Number of visible teams; none if they could not be listed.
    pub team_count: Option<i32>,
    /// Number of visible pipelines; none if they could not be listed.
    pub pipeline_count: Option<i32>,
}

/// Response of `/api/v1/info`.
#[api]
#[serde(rename_all = "snake_case")]
pub struct ServerInfo {
    /// Version of Concourse.
    pub version: String,
    /// Version of the worker protocol.
    pub worker_version: Option<String>,
    /// Name of the cluster.
    pub cluster_name: Option<String>,
    /// External URL.
    pub external_url: Option<String>,
    /// Feature flags.
    pub feature_flags: BTreeMap<String, bool>,
}

/// Response of `/api/v1/user`.
#[api]
#[serde(rename_all = "snake_case")]
pub struct ProbedUser {
    user_name: Option<String>,
    name: Option<String>,
    /// Indicates whether the user is an administrator.
    pub is_admin: bool,
}

impl ProbedUser {
    /// Name of the login.
    pub fn login(&self) -> String {
        let mut names = [&self.user_name, &self.name].into_iter().flatten();
        let login = names.find(|name| !name.is_empty());
        login.cloned().unwrap_or_default()
    }
}

/// Response of `/api/v1/wall`.
#[api]
#[serde(rename_all = "snake_case")]
struct Wall {
    message: Option<String>,
}

/// Numbers of workers by state.
#[derive(Clone, Copy)]
pub struct WorkerCounts {
    /// Workers in any state.
    pub total: i32,
    /// Workers that accept work.
    pub running: i32,
    /// Workers that are being drained.
    pub landing: i32,
    /// Workers that have stopped responding.
    pub stalled: i32,
}

impl WorkerCounts {
    fn new(workers: &[rest::WorkerResponse]) -> Self {
        let count_state = |state: &str| {
            let in_state = workers
                .iter()
                .filter(|worker| worker.state.as_deref() == Some(state));
            to_count(in_state.count())
        };
        Self {
            total: to_count(workers.len()),
            running: count_state("running"),
            landing: count_state("landing"),
            stalled: count_state("stalled"),
        }
    }
}

fn to_count(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

/// Reads what the server shows. Only server and user are required: Ready does not depend on the rest.
///
/// # Errors
/// The server is unreachable, refuses the login, or is not Concourse.
pub fn probe(concourse: &Upstream) -> Result<Health, Failure> {
    let [info, user] = concourse.send_all([concourse.get("/api/v1/info"), concourse.get("/api/v1/user")]);
    // `info` needs no login; only `user` proves that there is one.
    let info = read_required(info)?;
    let user = read_required(user)?;
    let [workers, wall, teams, pipelines] = concourse.send_all([
        concourse.get("/api/v1/workers"),
        concourse.get("/api/v1/wall"),
        concourse.get("/api/v1/teams"),
        concourse.get("/api/v1/pipelines"),
    ]);
    Ok(Health {
        info,
        user,
        workers: read_list(workers).map(|workers| WorkerCounts::new(&workers)),
        wall_message: read_optional(wall)
            .map(|wall: Wall| wall.message.filter(|message| !message.is_empty())),
        team_count: count_items(teams),
        pipeline_count: count_items(pipelines),
    })
}

/// Reads a required response. The failure distinguishes a refused login from a server that is unreachable or not
/// Concourse.
fn read_required<T: DeserializeOwned>(answer: Result<Response, Error>) -> Result<T, Failure> {
    let response = match answer {
        Ok(response) => response,
        // The Secret of the credentials does not exist (yet).
        Err(error @ Error::NotFound(_)) => return Err(auth_failed(error.into())),
        Err(error @ Error::Denied(_)) => return Err(error.into()),
        Err(error) => return Err(info_failed(error.into())),
    };
    match response.status() {
        200 if concourse_status(&response).is_none() => {
            let message = format!("The server does not look like Concourse: {NOT_OF_CONCOURSE}");
            Err(info_failed(Failure::retry(INFO_FAILED, message)))
        }
        200 => response.json().map_err(|error| {
            let message = format!("The server does not look like Concourse. {}", error.text());
            info_failed(Failure::retry(INFO_FAILED, message))
        }),
        status @ (401 | 403) => {
            let cause = response.excerpt();
            let message = format!("Concourse does not accept the credentials (HTTP {status}): {cause}");
            Err(auth_failed(Failure::retry(AUTHENTICATION_FAILED, message)))
        }
        status => {
            let message = format!("Concourse responded with HTTP {status}.");
            Err(info_failed(Failure::retry(INFO_FAILED, message)))
        }
    }
}

fn auth_failed(failure: Failure) -> Failure {
    let condition = Condition::new_false(AUTHENTICATED_TYPE, AUTHENTICATION_FAILED, failure.message.clone());
    failure.reason(AUTHENTICATION_FAILED).with(condition)
}

fn info_failed(failure: Failure) -> Failure {
    let condition = Condition::new_unknown(AUTHENTICATED_TYPE, INFO_FAILED, failure.message.clone());
    failure.reason(INFO_FAILED).with(condition)
}

/// Reads an optional response; none if it is not the expected one.
fn read_optional<T: DeserializeOwned>(answer: Result<Response, Error>) -> Option<T> {
    let response = answer.ok()?;
    match concourse_status(&response) {
        Some(200) => response.json().ok(),
        _ => None,
    }
}

/// Reads an optional list, which Concourse writes as `null` when it is empty.
fn read_list<T: DeserializeOwned>(answer: Result<Response, Error>) -> Option<Vec<T>> {
    let list: Option<Vec<T>> = read_optional(answer)?;
    Some(list.unwrap_or_default())
}

fn count_items(answer: Result<Response, Error>) -> Option<i32> {
    let items: Vec<IgnoredAny> = read_list(answer)?;
    Some(to_count(items.len()))
}

/// The condition `WorkersHealthy`.
pub fn workers_condition(workers: Option<WorkerCounts>) -> Condition {
    const CONDITION_TYPE: &str = "WorkersHealthy";
    match workers {
        None => Condition::new_unknown(CONDITION_TYPE, "ListFailed", "The workers could not be listed."),
        Some(WorkerCounts { stalled: 0, .. }) => {
            Condition::new_true(CONDITION_TYPE, "AllRunning", "No worker is stalled.")
        }
        Some(WorkerCounts { stalled, .. }) => {
            Condition::new_false(CONDITION_TYPE, "WorkersStalled", format!("{stalled} stalled."))
        }
    }
}

/// The condition `WallActive`.
pub fn wall_condition(wall_message: Option<Option<String>>) -> Condition {
    const CONDITION_TYPE: &str = "WallActive";
    match wall_message {
        None => Condition::new_unknown(
            CONDITION_TYPE,
            "ListFailed",
            "The wall message could not be read.",
        ),
        Some(Some(message)) => Condition::new_true(CONDITION_TYPE, "WallSet", message),
        Some(None) => Condition::new_false(CONDITION_TYPE, "NoWall", "The wall message is empty."),
    }
}
