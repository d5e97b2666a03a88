//! The Concourse of a test: a simulator of its own, or the real one that `OSTLER_CONCOURSE_URL` names.

use std::{collections::BTreeMap, env, ops::Deref};

use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;

use crate::{
    PASSWORD,
    simulator::{Auth, Options, Pipeline, Simulator, Team},
};

/// The team tests speak of; on a real server each test has one of its own.
pub const TEAM: &str = "platform";

/// A Concourse. What only a simulator can (faults, counters) is reached as its own; a test that does asks
/// [`Concourse::simulated`] first.
pub struct Concourse {
    simulator: Simulator,
    real: Option<Real>,
}

/// A real server, and the account that is used.
struct Real {
    http: Client,
    url: String,
    user: String,
    password: String,
    token: String,
    team: String,
}

impl Deref for Concourse {
    type Target = Simulator;

    fn deref(&self) -> &Simulator {
        &self.simulator
    }
}

impl Concourse {
    /// A simulator, or the real server with a team of this name.
    pub async fn start(team: &str) -> Self {
        let options = Options {
            users: vec![("test".into(), PASSWORD.into(), true)],
            ..Default::default()
        };
        let simulator = Simulator::start(options).await.expect("the simulator starts");
        let real = match env::var("OSTLER_CONCOURSE_URL") {
            Ok(url) if !url.is_empty() => Some(Real::log_in(url, team).await),
            _ => None,
        };
        Self { simulator, real }
    }

    /// Whether it is a simulator; a real server's test says what is not looked at there.
    pub fn simulated(&self, what: &str) -> bool {
        if let Some(real) = &self.real {
            println!("skipped on {}: {what}", real.url);
        }
        self.real.is_none()
    }

    /// Its URL, without a slash at the end.
    pub fn url(&self) -> &str {
        self.real.as_ref().map_or(self.simulator.url(), |real| &real.url)
    }

    /// An admin.
    pub fn user(&self) -> &str {
        self.real.as_ref().map_or("test", |real| &real.user)
    }

    /// That admin's password.
    pub fn password(&self) -> &str {
        self.real.as_ref().map_or(PASSWORD, |real| &real.password)
    }

    /// The name there of a team that tests speak of.
    pub fn team_name<'a>(&'a self, name: &'a str) -> &'a str {
        match &self.real {
            Some(real) if name == TEAM => &real.team,
            _ => name,
        }
    }

    /// A team by name.
    pub fn team(&self, name: &str) -> Option<Team> {
        let Some(real) = &self.real else {
            return self.simulator.team(name);
        };
        let team = real.get(&format!("/api/v1/teams/{}", self.team_name(name)))?;
        Some(Team {
            id: team["id"].as_u64().expect("an id"),
            name: name.into(),
            auth: serde_json::from_value::<Auth>(without_nulls(&team["auth"])).expect("roles"),
        })
    }

    /// A pipeline without instance vars. Of a real server's nobody knows how often it was saved.
    pub fn pipeline(&self, team: &str, name: &str) -> Option<Pipeline> {
        self.instance(team, name, "")
    }

    /// A pipeline with instance vars, given as a query.
    pub fn instance(&self, team: &str, name: &str, vars: &str) -> Option<Pipeline> {
        let Some(real) = &self.real else {
            let of_query = |p: &&Pipeline| {
                p.name == name && p.instance_vars.as_ref().map_or(String::new(), query) == vars
            };
            return self.simulator.pipelines(team).iter().find(of_query).cloned();
        };
        let path = format!("/api/v1/teams/{}/pipelines/{name}", self.team_name(team));
        let shown = real.get(&format!("{path}?{vars}"))?;
        let config = real.get(&format!("{path}/config?{vars}")).unwrap_or_default();
        let text = |field: &str| shown[field].as_str().map(Into::into);
        Some(Pipeline {
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

    /// Does to the server what a person would: a PUT with a JSON body.
    pub fn put(&self, path: &str, body: &Value) {
        let body = body.to_string();
        wait(self.send(Method::PUT, path, |request| request.body(body)));
    }

    /// Saves a pipeline's config as another client would, on top of what is there.
    pub fn put_config(&self, path: &str, yaml: &str) {
        const VERSION: &str = "X-Concourse-Config-Version";
        wait(async {
            let shown = self.send(Method::GET, path, |request| request).await;
            let version = shown.headers()[VERSION].clone();
            let save = |request: RequestBuilder| {
                let request = request.header("Content-Type", "application/x-yaml");
                request.header(VERSION, version).body(yaml.to_owned())
            };
            self.send(Method::PUT, path, save).await;
        });
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        with: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Response {
        let http = Client::new();
        let token = token(&http, self.url(), self.user(), self.password()).await;
        let request = http.request(method.clone(), format!("{}{path}", self.url()));
        let response = with(request.bearer_auth(token)).send().await.expect("an answer");
        assert!(
            response.status().is_success(),
            "{method} {path}: {}",
            response.status()
        );
        response
    }
}

fn query(vars: &serde_json::Map<String, Value>) -> String {
    let vars = vars.iter().map(|(name, value)| format!("vars.{name}={value}"));
    vars.collect::<Vec<_>>().join("&")
}

/// Concourse writes `null` for an empty list.
fn without_nulls(auth: &Value) -> Value {
    let mut roles: BTreeMap<String, BTreeMap<String, Option<Vec<String>>>> =
        serde_json::from_value(auth.clone()).expect("roles");
    for members in roles.values_mut().flat_map(BTreeMap::values_mut) {
        members.get_or_insert_default();
    }
    serde_json::to_value(roles).expect("JSON")
}

/// Waits where nothing can: the tests read Concourse without `await`.
fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

async fn token(http: &Client, url: &str, user: &str, password: &str) -> String {
    let form = [
        ("grant_type", "password"),
        ("username", user),
        ("password", password),
        ("scope", "openid profile email federated:id groups"),
    ];
    let request = http
        .post(format!("{url}/sky/issuer/token"))
        .basic_auth("fly", Some("Zmx5"));
    let response = request.form(&form).send().await.expect("Concourse answers");
    let status = response.status();
    let body: Value = serde_json::from_slice(&response.bytes().await.expect("a body")).unwrap_or_default();
    let token = body["access_token"].as_str();
    token
        .unwrap_or_else(|| panic!("no login at {url} as {user}: HTTP {status}"))
        .to_owned()
}

impl Real {
    async fn log_in(url: String, team: &str) -> Self {
        let of = |name: &str| {
            env::var(name).unwrap_or_else(|_| panic!("{name} is not set, but OSTLER_CONCOURSE_URL"))
        };
        let (user, password) = (of("OSTLER_CONCOURSE_USER"), of("OSTLER_CONCOURSE_PASSWORD"));
        let http = Client::new();
        let url = url.trim_end_matches('/').to_owned();
        let token = token(&http, &url, &user, &password).await;
        Self {
            http,
            url,
            user,
            password,
            token,
            team: team.to_owned(),
        }
    }

    fn get(&self, path: &str) -> Option<Value> {
        let (status, body) = wait(self.send(Method::GET, path));
        match status {
            StatusCode::NOT_FOUND => None,
            status => {
                assert!(status.is_success(), "GET {path}: {status}");
                Some(serde_json::from_slice(&body).expect("JSON"))
            }
        }
    }

    async fn send(&self, method: Method, path: &str) -> (StatusCode, Vec<u8>) {
        let request = self.http.request(method, format!("{}{path}", self.url));
        let response = request.bearer_auth(&self.token).send().await.expect("an answer");
        (response.status(), response.bytes().await.expect("a body").into())
    }
}

/// What the test has left on a real server goes with it.
impl Drop for Real {
    fn drop(&mut self) {
        wait(self.send(Method::DELETE, &format!("/api/v1/teams/{}", self.team)));
    }
}
