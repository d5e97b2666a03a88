//! The other side of a deployment: Jenkins, Argo CD, ArgoSetting and IngressResource, as far as a deployment sees them. After
//! each reconcile they take the next step.

use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
};

use argocd_simulator::{ArgoRequest, Rest};
use devops_deployment::DeploymentRecords;
use ostler_sdk::{
    Error, Failure, Next, ObjectRef, Outcome,
    bindings::ostler::plugin::http::Response,
    gvk,
    mock::{MockHost, response},
    serde_json::{Value, from_slice, json},
};

/// Start of the test's clock: 2026-11-22T08:00:00Z.
pub const START_MS: u64 = 1_795_334_400_000;
/// Time that a reconcile takes whose request hangs.
pub const HANG_MS: u64 = 20_000;
const JOB: &str = "/job/shop/job/alpha/job/build";
const ROOT: &str = "/api/json?tree=_class";
const QUEUE: &str = "/queue/api/json?tree=items[id,cancelled,why,actions[parameters[name,value]]]";

/// A server whose failure a deployment has to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailingServer {
    Jenkins,
    Broker,
    /// An Argo CD that is reached by its API.
    Argo,
}

/// A way in which a server fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeploymentFault {
    /// Nothing listens.
    Down,
    /// Requests do not arrive, and end by their timeout.
    HangsBefore,
    /// Requests are carried out, and end by their timeout.
    HangsAfter,
    /// Requests are carried out, and the connection breaks within the response.
    Resets,
    Unauthorized,
    Forbidden,
    /// 404 of a proxy in front of the server.
    ProxyNotFound,
    /// 502 of a proxy in front of the server.
    BadGateway,
    /// 200 with a page that is not of the server.
    Garbage,
}

impl DeploymentFault {
    pub const ALL: [Self; 9] = [
        Self::Down,
        Self::HangsBefore,
        Self::HangsAfter,
        Self::Resets,
        Self::Unauthorized,
        Self::Forbidden,
        Self::ProxyNotFound,
        Self::BadGateway,
        Self::Garbage,
    ];

    /// Returns whether requests are carried out.
    pub fn is_after(self) -> bool {
        matches!(self, Self::HangsAfter | Self::Resets)
    }

    fn hangs(self) -> bool {
        matches!(self, Self::HangsBefore | Self::HangsAfter)
    }

    pub fn answer(self) -> Result<Response, Error> {
        let page = |status| Ok(response(status, &[], "<html>"));
        let own = |status| Ok(response(status, &[("x-jenkins", "2.579")], "<html>"));
        match self {
            Self::Down => Err(Error::Unavailable("connection refused".into())),
            Self::HangsBefore | Self::HangsAfter => Err(Error::Unavailable("timed out after 20 s".into())),
            Self::Resets => Err(Error::Unavailable("the connection was reset".into())),
            Self::Unauthorized => own(401),
            Self::Forbidden => own(403),
            Self::ProxyNotFound => page(404),
            Self::BadGateway => page(502),
            Self::Garbage => page(200),
        }
    }

    /// The error of a broker that fails like this.
    fn broker_error(self) -> Error {
        match self {
            Self::Unauthorized | Self::Forbidden => Error::Denied("ACCESS_REFUSED".into()),
            Self::ProxyNotFound | Self::Garbage => Error::NotFound("NOT_FOUND - no exchange 'devops'".into()),
            _ => Error::Unavailable("connection refused".into()),
        }
    }
}

/// The record and its surroundings.
pub struct DeploymentWorld {
    pub host: MockHost,
    pub record: Value,
    pub now: u64,
    /// Number of builds that Jenkins has.
    pub builds: usize,
    /// Results of the build, in turn; none while it runs.
    pub results: Vec<Option<&'static str>>,
    /// Operations that Argo CD has run, by their IDs.
    pub operations: Vec<String>,
    /// Phase in which operations end.
    pub sync_result: &'static str,
    pub health: &'static str,
    /// Number of builds that were stopped.
    pub stopped: usize,
    /// The server that fails.
    pub fault: Option<(FailingServer, DeploymentFault)>,
    /// The failure of Argo CD, as far as it is reached by its API.
    pub argo_fault: Rc<Cell<Option<DeploymentFault>>>,
    /// Times of the heartbeats.
    pub heartbeat_times: Vec<u64>,
    /// An Argo CD that is reached by its API.
    pub server: Option<Rc<RefCell<Rest>>>,
    requests_seen: usize,
    checkpoints_seen: usize,
}

pub fn record() -> Value {
    json!({
        "apiVersion": "devops.ostler.dev/v1alpha1", "kind": "DeploymentRecord",
        "metadata": {"name": "d-1", "namespace": "team", "uid": "uid-d-1", "generation": 1},
        "spec": {
            "deploymentID": "d-1", "environment": "alpha",
            "build": {"settingRef": {"name": "shop"}, "pipeline": "build", "parameters": {"REVISION": "v1"}},
            "sync": {"settingRef": {"name": "shop"}, "application": "web", "revision": "v1"},
            "ingress": {"template": {"host": "app.example.com", "backend": {"service": "web", "port": 80}}},
            "heartbeat": {"upstreamRef": {"name": "rabbit"}, "exchange": "devops", "routingKey": "heartbeats"},
        },
    })
}

fn ready_object(kind: &str, spec: Value) -> Value {
    json!({"apiVersion": "devops.ostler.dev/v1alpha1", "kind": kind,
        "metadata": {"name": "shop", "namespace": "team", "uid": format!("uid-{kind}")}, "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": ""}]}})
}

pub fn application() -> ObjectRef {
    gvk("argoproj.io", "v1alpha1", "Application").named("argocd", "web")
}

pub fn ingress() -> ObjectRef {
    gvk("devops.ostler.dev", "v1alpha1", "IngressResource").named("team", "d-1")
}

impl DeploymentWorld {
    pub fn new() -> Self {
        let host = MockHost::new();
        host.set_response_headers(&[("x-jenkins", "2.579")]);
        host.put(ready_object(
            "JenkinsSetting",
            json!({"url": "https://ci.example.com", "username": "ostler", "tokenRef": {"name": "ci", "key": "token"},
                "project": "shop", "environments": ["alpha"], "git": {"credentialsRef": {"name": "shop"}}}),
        ));
        let world = Self {
            host,
            record: record(),
            now: START_MS,
            builds: 0,
            results: vec![None, Some("SUCCESS")],
            operations: Vec::new(),
            sync_result: "Succeeded",
            health: "Healthy",
            stopped: 0,
            fault: None,
            argo_fault: Rc::default(),
            heartbeat_times: Vec::new(),
            server: None,
            requests_seen: 0,
            checkpoints_seen: 0,
        };
        world.put_argo_setting(Value::Null);
        world.put_application();
        world.answer_jenkins();
        world
    }

    /// A world whose record has no build.
    pub fn without_build() -> Self {
        let mut world = Self::new();
        let spec = world.record["spec"].as_object_mut().expect("a spec");
        spec.remove("build");
        world
    }

    /// An ArgoSetting with a server, or without for null.
    pub fn put_argo_setting(&self, server: Value) {
        self.host.put(ready_object(
            "ArgoSetting",
            json!({"argoNamespace": "argocd", "server": server,
                "projects": [{"name": "shop", "destinations": [{"namespace": "team"}]}],
                "repositories": [],
                "applications": [{"name": "web", "project": "shop", "source": {"repoURL": "https://git"},
                    "lifetime": "Deployment"}]}),
        ));
    }

    /// The application as ArgoSetting and Argo CD have made it.
    pub fn put_application(&self) {
        self.host.put(
            json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Application",
            "metadata": {"name": "web", "namespace": "argocd", "uid": "uid-web", "resourceVersion": "10",
                "labels": {"devops.ostler.dev/argo-setting": "uid-ArgoSetting"}},
            "spec": {"project": "shop"},
            "status": {"sync": {"status": "OutOfSync"}, "health": {"status": "Missing"},
                "reconciledAt": "2026-11-22T07:59:00Z"}}),
        );
    }

    /// Answers as Jenkins does with the builds that it has.
    pub fn answer_jenkins(&self) {
        let parameters = json!([{"parameters": [{"name": "DEPLOYMENT_ID", "value": "d-1"}]}]);
        let result = self.results.first().copied().flatten();
        let build = |number: usize| {
            json!({"number": number, "queueId": 100 + number, "building": result.is_none(),
                "inProgress": result.is_none(), "result": result, "actions": parameters})
        };
        let builds: Vec<Value> = (1..=self.builds).map(build).collect();
        let get = |path: &str, body: Value| self.answer("GET", path, response(200, &[], body));
        get(ROOT, json!({"_class": "hudson.model.Hudson"}));
        get(QUEUE, json!({"items": []}));
        let fields = "number,queueId,building,inProgress,result";
        let list = format!("{JOB}/api/json?tree=builds[{fields},actions[parameters[name,value]]]{{0,100}}");
        get(&list, json!({"builds": builds}));
        let number = self.builds + 1;
        let location = format!("https://ci.example.com/queue/item/{}/", 100 + number);
        let created = response(201, &[("location", &location)], Value::Null);
        self.answer("POST", &format!("{JOB}/buildWithParameters"), created);
        let waiting = json!({"id": 100 + number, "cancelled": false, "why": "Waiting for an executor."});
        get(&format!("/queue/item/{}/api/json", 100 + number), waiting);
        for number in 1..=self.builds {
            let item = json!({"id": 100 + number, "cancelled": false, "executable": {"number": number}});
            let id = 100 + number;
            get(&format!("/queue/item/{id}/api/json"), item);
            self.answer(
                "POST",
                &format!("/queue/cancelItem?id={id}"),
                response(422, &[], ""),
            );
            get(&format!("{JOB}/{number}/api/json?tree={fields}"), build(number));
            self.answer("POST", &format!("{JOB}/{number}/stop"), response(302, &[], ""));
        }
    }

    /// Sets the answer of Jenkins to a request, unless it fails.
    fn answer(&self, method: &str, path: &str, answer: Response) {
        let answer = match self.fault {
            Some((FailingServer::Jenkins, fault)) => {
                self.host.set_response_headers(&[]);
                fault.answer()
            }
            _ => {
                self.host.set_response_headers(&[("x-jenkins", "2.579")]);
                Ok(answer)
            }
        };
        self.host.answers(method, path, [answer]);
    }

    /// Makes a server fail from now on; none for all that work.
    pub fn set_fault(&mut self, fault: Option<(FailingServer, DeploymentFault)>) {
        self.fault = fault;
        let argo = fault.filter(|(server, _)| *server == FailingServer::Argo);
        self.argo_fault.set(argo.map(|(_, fault)| fault));
        self.answer_jenkins();
        let error = match fault {
            Some((FailingServer::Broker, fault)) => Some(fault.broker_error()),
            _ => None,
        };
        self.host.fail("messaging.publish", error);
    }

    /// Reconciles or, if the record is being deleted, cleans up; none if the host has stopped in between. Status and
    /// checkpoints are persisted as the host does.
    pub fn reconcile(&mut self) -> Option<Result<Outcome, Failure>> {
        self.host.set_now(self.now);
        let (host, record) = (&self.host, &self.record);
        let is_deleted = !record["metadata"]["deletionTimestamp"].is_null();
        let result = catch_unwind(AssertUnwindSafe(|| {
            if is_deleted {
                host.cleanup(&DeploymentRecords, record)
            } else {
                host.reconcile(&DeploymentRecords, record)
            }
        }));
        let sent = self.host.messages().len() - self.heartbeat_times.len();
        self.heartbeat_times.extend(std::iter::repeat_n(self.now, sent));
        if self.fault.is_some_and(|(_, fault)| fault.hangs()) {
            self.now += HANG_MS;
        }
        let checkpoints = self.host.checkpoints();
        for fields in &checkpoints[self.checkpoints_seen..] {
            for (name, value) in fields.as_object().expect("fields") {
                self.record["status"][name] = value.clone();
            }
        }
        self.checkpoints_seen = checkpoints.len();
        let result = match result {
            Ok(result) => result,
            Err(panic) => {
                let message = panic.downcast_ref::<&str>().map(|m| (*m).to_owned());
                let message = message
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_default();
                assert!(message.contains("the host stops"), "{message}");
                return None;
            }
        };
        let (status, conditions) = match &result {
            Ok(outcome) => (&outcome.status, &outcome.conditions),
            Err(failure) => (&failure.status, &failure.conditions),
        };
        if let Some(status) = status {
            self.record["status"] = from_slice(status).expect("JSON");
        }
        if let Some(ready) = conditions.iter().find(|c| c.type_ == "Ready") {
            self.record["status"]["conditions"] = json!([{"type": "Ready", "reason": ready.reason}]);
        }
        Some(result)
    }

    /// The others react to what has happened.
    pub fn react(&mut self) {
        self.react_jenkins();
        self.react_argo();
        self.react_server();
        self.react_settings();
    }

    fn react_jenkins(&mut self) {
        let requests = self.host.requests();
        let is_stop = |request: &String| request.starts_with("POST") && request.ends_with("/stop");
        let trigger = format!("POST {JOB}/buildWithParameters");
        let new = &requests[self.requests_seen..];
        let triggered = new.iter().filter(|r| **r == trigger).count();
        let stopped = new.iter().filter(|r| is_stop(r)).count();
        self.requests_seen = requests.len();
        let arrives = match self.fault {
            Some((FailingServer::Jenkins, fault)) => fault.is_after(),
            _ => true,
        };
        if arrives && triggered + stopped > 0 {
            self.builds += triggered;
            self.stopped += stopped;
        } else if self.builds > 0 && self.results.len() > 1 {
            self.results.remove(0);
        }
        if self.stopped > 0 {
            self.results = vec![Some("ABORTED")];
        }
        self.answer_jenkins();
    }

    fn react_argo(&mut self) {
        let Some(mut live) = self.host.object(&application()) else {
            return;
        };
        let time = ostler_sdk::rfc3339(self.now / 1000);
        let phase = live["status"]["operationState"]["phase"].clone();
        if live["operation"].is_object() && phase != "Running" && phase != "Terminating" {
            let operation = live["operation"].clone();
            self.operations.push(
                operation["info"][0]["value"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            );
            live["status"]["operationState"] =
                json!({"operation": operation, "phase": "Running", "startedAt": time});
        } else if live["operation"].is_object() {
            live.as_object_mut().expect("an object").remove("operation");
            let state = &mut live["status"]["operationState"];
            state["phase"] = if phase == "Terminating" {
                "Failed"
            } else {
                self.sync_result
            }
            .into();
            state["message"] = "as the test has it".into();
            state["finishedAt"] = time.clone().into();
            state["syncResult"] = json!({"revision": "c0ffee"});
        } else if phase == "Succeeded" {
            live["status"]["sync"]["status"] = "Synced".into();
            live["status"]["health"]["status"] = self.health.into();
            live["status"]["reconciledAt"] = time.into();
        }
        let version: u64 = live["metadata"]["resourceVersion"]
            .as_str()
            .and_then(|v| v.parse().ok())
            .expect("a version");
        live["metadata"]["resourceVersion"] = (version + 1).to_string().into();
        self.host.put(live);
    }

    /// The controller behind the API takes a step. The application goes when no deployment needs it.
    fn react_server(&self) {
        let Some(mut server) = self.server.as_ref().map(|server| server.borrow_mut()) else {
            return;
        };
        server.time = ostler_sdk::rfc3339(self.now / 1000);
        if self.is_ended() {
            server.answer(ArgoRequest {
                method: "DELETE",
                path: "/api/v1/applications/web?project=shop",
                content_type: Some("application/json"),
                body: &Value::Null,
            });
        }
        server.advance();
    }

    /// Returns whether the record needs no application any more.
    fn is_ended(&self) -> bool {
        let is_expired = matches!(
            self.record["status"]["ttl"]["phase"].as_str(),
            Some("Cleanup" | "Completed")
        );
        is_expired || !self.record["metadata"]["deletionTimestamp"].is_null()
    }

    /// ArgoSetting deletes the application that no deployment needs, the IngressResource becomes Ready.
    fn react_settings(&mut self) {
        if self.is_ended() {
            self.host.remove(&application());
        }
        if let Some(mut live) = self.host.object(&ingress())
            && live["status"].is_null()
            && live["metadata"]["ownerReferences"].is_array()
        {
            live["status"] = json!({"url": "http://app.example.com",
                "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": ""}]});
            self.host.put(live);
        }
    }

    /// Reconciles, reacts and advances the clock, until nothing is left to do but to wait for the time to live or a change.
    /// Stops are part of it.
    pub fn run(&mut self) {
        for _ in 0..100 {
            let result = self.reconcile();
            self.react();
            match result {
                // The next host continues some seconds later.
                None => {
                    self.host.stop_after(None);
                    self.now += 6_000;
                }
                Some(Ok(outcome)) => match outcome.next {
                    Next::After(milliseconds) => self.now += milliseconds,
                    Next::Poll(_) => self.now += 10_000,
                    Next::At(_) | Next::AwaitChange => return,
                },
                Some(Err(_)) => self.now += 30_000,
            }
        }
        panic!("no end: {:#}", self.record["status"]);
    }

    /// A field of the status as text.
    pub fn text(&self, pointer: &str) -> String {
        let value = self.record.pointer(&format!("/status{pointer}"));
        value.and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    pub fn reason(&self) -> String {
        self.text("/conditions/0/reason")
    }

    /// Bodies of the heartbeats so far.
    pub fn heartbeats(&self) -> Vec<Value> {
        let messages = self.host.messages();
        messages
            .iter()
            .map(|(_, message)| from_slice(&message.body).expect("JSON"))
            .collect()
    }

    /// Number of syncs that Argo CD was asked for.
    pub fn count_syncs(&self) -> usize {
        let server = self.server.as_ref();
        self.operations.len() + server.map_or(0, |server| server.borrow().operations().len())
    }

    /// Number of requests that trigger a build.
    pub fn triggers(&self) -> usize {
        let trigger = format!("POST {JOB}/buildWithParameters");
        self.host
            .requests()
            .iter()
            .filter(|request| **request == trigger)
            .count()
    }

    /// Makes the trigger of the build fail without an answer, whether or not it arrived.
    pub fn lose_trigger(&self) {
        let lost = Error::Unavailable("the connection was closed".into());
        self.host
            .answers("POST", &format!("{JOB}/buildWithParameters"), [Err(lost)]);
    }

    pub fn refuse_trigger(&self, status: u16) {
        let refused = response(status, &[("x-error", "no such parameter")], "");
        self.host
            .answers("POST", &format!("{JOB}/buildWithParameters"), [Ok(refused)]);
    }
}
