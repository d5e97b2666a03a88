//! The Concourse of a test: a simulator of its own, or the real server that `OSTLER_CONCOURSE_URL` names.

use std::{collections::BTreeMap, env, ops::Deref};

use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;

use crate::{
    ADMIN_PASSWORD,
    simulator::{ConcourseSimulator, SimulatedPipeline, SimulatedTeam, SimulatedTeamAuth, SimulatorOptions},
};

/// Name by which tests refer to their team. On a real server each test has a team of its own.
pub const TEAM_ALIAS: &str = "platform";

/// A Concourse server. It dereferences to the simulator for faults and counters; a test that uses them checks
/// [`Concourse::is_simulated`] first.
pub struct Concourse {
    simulator: ConcourseSimulator,
    real: Option<RealServer>,
}

/// A real server, and the account tests use on it.
struct RealServer {
    http: Client,
    url: String,
    user: String,
    password: String,
    token: String,
    team: String,
}

impl Deref for Concourse {
    type Target = ConcourseSimulator;

    fn deref(&self) -> &ConcourseSimulator {
        &self.simulator
    }
}

impl Concourse {
    /// Starts a simulator, or logs in to the real server to use a team of this name there.
    pub async fn start(team: &str) -> Self {
        let options = SimulatorOptions {
            users: vec![("test".into(), ADMIN_PASSWORD.into(), true)],
            ..Default::default()
        };
        let simulator = ConcourseSimulator::start(options)
            .await
            .expect("the simulator starts");
        let real = match env::var("OSTLER_CONCOURSE_URL") {
            Ok(url) if !url.is_empty() => Some(RealServer::log_in(url, team).await),
            _ => None,
        };
        Self { simulator, real }
    }

    /// Returns whether this is a simulator; otherwise prints `reason`, for which the caller skips a check.
    pub fn is_simulated(&self, reason: &str) -> bool {
        if let Some(real) = &self.real {
            println!("skipped on {}: {reason}", real.url);
        }
        self.real.is_none()
    }

    /// Returns its URL without a trailing slash.
    pub fn url(&self) -> &str {
        self.real.as_ref().map_or(self.simulator.url(), |real| &real.url)
    }

    /// Returns the name of an admin.
    pub fn user(&self) -> &str {
        self.real.as_ref().map_or("test", |real| &real.user)
    }

    /// Returns the password of that admin.
    pub fn password(&self) -> &str {
        self.real.as_ref().map_or(ADMIN_PASSWORD, |real| &real.password)
    }

    /// Returns a team's name on the server: [`TEAM_ALIAS`] stands for the test's own team on a real one.
    pub fn team_name<'a>(&'a self, name: &'a str) -> &'a str {
        match &self.real {
            Some(real) if name == TEAM_ALIAS => &real.team,
            _ => name,
        }
    }

    /// Reads a team.
    pub fn team(&self, name: &str) -> Option<SimulatedTeam> {
        let Some(real) = &self.real else {
            return self.simulator.team(name);
        };
        let team = real.get_json(&format!("/api/v1/teams/{}", self.team_name(name)))?;
        Some(SimulatedTeam {
            id: team["id"].as_u64().expect("an id"),
            name: name.into(),
            auth: serde_json::from_value::<SimulatedTeamAuth>(without_nulls(&team["auth"])).expect("roles"),
        })
    }

    /// Reads a pipeline without instance vars. On a real server `saves` and `version` are 0, since its API does not show
    /// them.
    pub fn pipeline(&self, team: &str, name: &str) -> Option<SimulatedPipeline> {
        self.instanced_pipeline(team, name, "")
    }

    /// Reads a pipeline with these instance vars, which are given as a query string.
    pub fn instanced_pipeline(&self, team: &str, name: &str, vars: &str) -> Option<SimulatedPipeline> {
        let Some(real) = &self.real else {
            let of_query = |p: &&SimulatedPipeline| {
                p.name == name && p.instance_vars.as_ref().map_or(String::new(), format_vars) == vars
            };
            return self.simulator.pipelines(team).iter().find(of_query).cloned();
        };
        let path = format!("/api/v1/teams/{}/pipelines/{name}", self.team_name(team));
        let shown = real.get_json(&format!("{path}?{vars}"))?;
        let config = real
            .get_json(&format!("{path}/config?{vars}"))
            .unwrap_or_default();
        let text = |field: &str| shown[field].as_str().map(Into::into);
        Some(SimulatedPipeline {
            id: shown["id"].as_u64().expect("an id"),
            team_id: 0,
            name: name.into(),
            instance_vars: shown["instance_vars"].as_object().cloned(),
            paused: shown["paused"] == true,
            paused_by: text("paused_by"),
            paused_at: shown["paused_at"].as_u64(),
            public: shown["public"] == true,
            archived: shown["archived"] == true,
            config: config["config"].clone(),
            groups: shown["groups"].clone(),
            display: shown["display"].clone(),
            version: 0,
            saves: 0,
            last_updated: shown["last_updated"].as_u64().unwrap_or_default(),
        })
    }

    /// Sends a PUT with a JSON body, as another client of Concourse would.
    pub fn put_json(&self, path: &str, body: &Value) {
        let body = body.to_string();
        block_on(self.send_request(Method::PUT, path, |request| request.body(body)));
    }

    /// Saves a pipeline's config as another client would, on top of the current version.
    pub fn put_config(&self, path: &str, yaml: &str) {
        const VERSION: &str = "X-Concourse-Config-Version";
        block_on(async {
            let shown = self.send_request(Method::GET, path, |request| request).await;
            let version = shown.headers()[VERSION].clone();
            let save = |request: RequestBuilder| {
                let request = request.header("Content-Type", "application/x-yaml");
                request.header(VERSION, version).body(yaml.to_owned())
            };
            self.send_request(Method::PUT, path, save).await;
        });
    }

    /// Logs in as the admin and returns a new token.
    pub async fn fetch_token(&self) -> String {
        fetch_token(&Client::new(), self.url(), self.user(), self.password()).await
    }

    /// Sends a request as the admin, with a new token, and panics unless it succeeds.
    async fn send_request(
        &self,
        method: Method,
        path: &str,
        prepare: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Response {
        let http = Client::new();
        let token = self.fetch_token().await;
        let request = http.request(method.clone(), format!("{}{path}", self.url()));
        let response = prepare(request.bearer_auth(token))
            .send()
            .await
            .expect("a response");
        assert!(
            response.status().is_success(),
            "{method} {path}: {}",
            response.status()
        );
        response
    }
}

fn format_vars(vars: &serde_json::Map<String, Value>) -> String {
    let vars = vars.iter().map(|(name, value)| format!("vars.{name}={value}"));
    vars.collect::<Vec<_>>().join("&")
}

/// Replaces the `null` that Concourse writes for an empty list by `[]`.
fn without_nulls(auth: &Value) -> Value {
    let mut roles: BTreeMap<String, BTreeMap<String, Option<Vec<String>>>> =
        serde_json::from_value(auth.clone()).expect("roles");
    for members in roles.values_mut().flat_map(BTreeMap::values_mut) {
        members.get_or_insert_default();
    }
    serde_json::to_value(roles).expect("JSON")
}

/// Blocks on a future, because tests read Concourse in functions that are not async.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

/// Gets a token by the password grant, with the client and the scopes of fly.
async fn fetch_token(http: &Client, url: &str, user: &str, password: &str) -> String {
    let form = [
        ("grant_type", "password"),
        ("username", user),
        ("password", password),
        ("scope", "openid profile email federated:id groups"),
    ];
    let request = http
        .post(format!("{url}/sky/issuer/token"))
        .basic_auth("fly", Some("Zmx5"));
    let response = request.form(&form).send().await.expect("a response of Concourse");
    let status = response.status();
    let body: Value = serde_json::from_slice(&response.bytes().await.expect("a body")).unwrap_or_default();
    let token = body["access_token"].as_str();
    token
        .unwrap_or_else(|| panic!("no login at {url} as {user}: HTTP {status}"))
        .to_owned()
}

impl RealServer {
    async fn log_in(url: String, team: &str) -> Self {
        let require = |name: &str| {
            env::var(name).unwrap_or_else(|_| panic!("{name} is not set, although OSTLER_CONCOURSE_URL is"))
        };
        let (user, password) = (
            require("OSTLER_CONCOURSE_USER"),
            require("OSTLER_CONCOURSE_PASSWORD"),
        );
        let http = Client::new();
        let url = url.trim_end_matches('/').to_owned();
        let token = fetch_token(&http, &url, &user, &password).await;
        Self {
            http,
            url,
            user,
            password,
            token,
            team: team.to_owned(),
        }
    }

    fn get_json(&self, path: &str) -> Option<Value> {
        let (status, body) = block_on(self.send_request(Method::GET, path));
        match status {
            StatusCode::NOT_FOUND => None,
            status => {
                assert!(status.is_success(), "GET {path}: {status}");
                Some(serde_json::from_slice(&body).expect("JSON"))
            }
        }
    }

    async fn send_request(&self, method: Method, path: &str) -> (StatusCode, Vec<u8>) {
        let request = self.http.request(method, format!("{}{path}", self.url));
        let response = request.bearer_auth(&self.token).send().await.expect("a response");
        (response.status(), response.bytes().await.expect("a body").into())
    }
}

/// Deletes the test's team, and with it everything the test has left on a real server.
impl Drop for RealServer {
    fn drop(&mut self) {
        block_on(self.send_request(Method::DELETE, &format!("/api/v1/teams/{}", self.team)));
    }
}
