//! The API server: its answers to the requests for projects, repositories and applications, over the rules of the controller.

mod application;
mod project;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{ApplicationWorld, ControllerStep, next_step};

/// An answer: status and body. A body that is text is plain text.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Body.
    pub body: Value,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct ArgoRequest<'a> {
    /// Method.
    pub method: &'a str,
    /// Path with the query.
    pub path: &'a str,
    /// Content type.
    pub content_type: Option<&'a str>,
    /// Body; null without one.
    pub body: &'a Value,
}

/// A server with what it stores.
pub struct Rest {
    projects: BTreeMap<String, Value>,
    /// Repositories by project and URL.
    repositories: BTreeMap<(String, String), Value>,
    applications: BTreeMap<String, Value>,
    worlds: BTreeMap<String, ApplicationWorld>,
    /// Operations that were started, each with the name of its application.
    operations: Vec<(String, Value)>,
    version: u64,
    /// Time of the requests and of the controller.
    pub time: String,
}

impl Reply {
    fn ok(body: Value) -> Self {
        Self { status: 200, body }
    }

    /// An error of the API, with its gRPC code.
    fn error(status: u16, code: u8, message: impl Into<String>) -> Self {
        let message = message.into();
        let body = json!({ "error": message, "code": code, "message": message });
        Self { status, body }
    }

    fn hidden() -> Self {
        Self::error(403, 7, "permission denied")
    }

    fn text(status: u16, text: &str) -> Self {
        let body = text.into();
        Self { status, body }
    }
}

impl Rest {
    /// A server with the project `default`.
    pub fn new(time: &str) -> Self {
        let all = json!([{ "server": "*", "namespace": "*" }]);
        let default = json!({
            "metadata": { "name": "default", "resourceVersion": "1" },
            "spec": { "sourceRepos": ["*"], "destinations": all },
        });
        Self {
            projects: BTreeMap::from([("default".into(), default)]),
            repositories: BTreeMap::new(),
            applications: BTreeMap::new(),
            worlds: BTreeMap::new(),
            operations: Vec::new(),
            version: 1,
            time: time.into(),
        }
    }

    /// A server whose clock is that of the machine.
    pub fn now() -> Self {
        Self::new(&read_clock())
    }

    /// Sets the clock to that of the machine, and lets the controller write once.
    pub fn play(&mut self) {
        self.time = read_clock();
        self.advance();
    }

    /// Returns the operations that were started, each with the name of its application.
    pub fn operations(&self) -> &[(String, Value)] {
        &self.operations
    }

    /// Sets what an application deploys.
    pub fn set_world(&mut self, application: &str, world: ApplicationWorld) {
        self.worlds.insert(application.into(), world);
    }

    /// What an application deploys.
    pub fn world(&mut self, application: &str) -> &mut ApplicationWorld {
        self.worlds.entry(application.into()).or_default()
    }

    /// Lets the controller write once. Returns whether it has.
    pub fn advance(&mut self) -> bool {
        let mut has_written = false;
        for (name, application) in &mut self.applications {
            let mut world = self.worlds.get(name).cloned().unwrap_or_default();
            let project = application["spec"]["project"].as_str().unwrap_or_default();
            world.has_project = self.projects.contains_key(project);
            if let ControllerStep::Write(next) = next_step(application, &world, &self.time) {
                *application = next;
                self.version += 1;
                application["metadata"]["resourceVersion"] = self.version.to_string().into();
                has_written = true;
            }
        }
        self.applications.retain(|_, application| {
            let metadata = &application["metadata"];
            let has_finalizers = metadata["finalizers"]
                .as_array()
                .is_some_and(|all| !all.is_empty());
            metadata["deletionTimestamp"].is_null() || has_finalizers
        });
        has_written
    }

    /// Answers a request of an administrator.
    pub fn answer(&mut self, request: ArgoRequest) -> Reply {
        if request.method != "GET" && request.content_type != Some("application/json") {
            return Reply::text(415, "Invalid content type");
        }
        let (path, query) = request.path.split_once('?').unwrap_or((request.path, ""));
        let Some(path) = path.strip_prefix("/api/v1/") else {
            return Reply::text(404, "Not Found");
        };
        let segments: Vec<String> = path.split('/').map(decode).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let query = Query(query);
        let body = request.body;
        match (request.method, &*segments) {
            ("POST", ["projects"]) => self.create_project(body),
            ("GET", ["projects", name]) => self.read_project(name),
            ("PUT", ["projects", name]) => self.update_project(name, body),
            ("DELETE", ["projects", name]) => self.delete_project(name),
            ("POST", ["repositories"]) => self.write_repository(body, query),
            ("GET", ["repositories", url]) => self.read_repository(url, query),
            ("DELETE", ["repositories", url]) => self.delete_repository(url, query),
            ("GET", ["applications"]) => self.list_applications(query),
            ("POST", ["applications"]) => self.create_application(body, query),
            (method, ["applications", name, below @ ..]) => {
                let named = if below == ["sync"] {
                    body["project"].as_str()
                } else {
                    None
                };
                let project = query.get("project").or(named.map(Into::into));
                if let Err(reply) = self.check_application(name, project.as_deref()) {
                    return reply;
                }
                match (method, below) {
                    ("GET", []) => self.read_application(name, query),
                    ("PUT", []) => self.update_application(name, body),
                    ("PUT", ["spec"]) => self.set_spec(name, body),
                    ("PATCH", []) => self.patch_application(name, body),
                    ("DELETE", []) => self.delete_application(name, query),
                    ("POST", ["sync"]) => self.start_sync(name, body),
                    ("DELETE", ["operation"]) => self.terminate_operation(name),
                    _ => Reply::error(405, 12, "Method Not Allowed"),
                }
            }
            _ => Reply::text(404, "Not Found"),
        }
    }

    /// Gives an object a new version.
    fn raise_version(&mut self, object: &mut Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
    }
}

fn read_clock() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Parameters of a request.
#[derive(Clone, Copy)]
struct Query<'a>(&'a str);

impl Query<'_> {
    fn get(&self, name: &str) -> Option<String> {
        let mut pairs = self.0.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(key, _)| *key == name)
            .map(|(_, value)| decode(value))
    }

    fn is_set(&self, name: &str) -> bool {
        self.get(name).as_deref() == Some("true")
    }
}

/// Decodes the percent-encoding.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns whether a pattern of a project, which may have a `*` at its end, matches.
fn matches_pattern(pattern: &Value, text: &Value) -> bool {
    let (pattern, text) = (
        pattern.as_str().unwrap_or_default(),
        text.as_str().unwrap_or_default(),
    );
    match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => pattern == text,
    }
}
