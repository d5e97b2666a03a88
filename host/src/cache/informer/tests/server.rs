//! API server of the model, which executes requests and responds when the test decides.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::kube::{
    key::ObjectRef,
    object::KubeObject,
    scope::{Projection, Scope},
};

type Key = (String, String);

/// Objects and the log of their changes.
#[derive(Default)]
pub struct FakeServer {
    /// Current resourceVersion.
    pub version: u64,
    objects: BTreeMap<Key, Value>,
    log: Vec<(u64, Key, Option<Value>, Option<Value>)>,
    uids: u64,
}

/// A pending request.
#[derive(Debug)]
pub struct PendingRequest {
    method: String,
    pub path: String,
    body: Value,
    done: Option<(u16, Value)>,
    answer: oneshot::Sender<(u16, Value)>,
}

impl PendingRequest {
    /// Executes the request, at most once.
    pub fn serve(&mut self, server: &mut FakeServer) {
        if self.done.is_none() {
            self.done = Some(server.execute(&self.method, &self.path, &self.body));
        }
    }

    /// Delivers the response.
    pub fn respond(self) {
        let _ = self.answer.send(self.done.expect("it was served"));
    }
}

/// A client whose requests wait in `asked`. A request that is dropped there fails with a connection error.
pub fn client(asked: Arc<Mutex<Vec<PendingRequest>>>) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let asked = asked.clone();
        async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path().to_owned();
            let (code, json) = if path == "/apis/g/v1" {
                let kind = |kind: &str, name: &str| json!({"kind": kind, "name": name, "namespaced": true});
                (
                    200,
                    json!({"resources": [kind("Owner", "owners"), kind("Owner", "owners/status"), kind("Child", "children")]}),
                )
            } else {
                let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
                let (answer, answered) = oneshot::channel();
                asked.lock().expect("lock").push(PendingRequest {
                    method: parts.method.to_string(),
                    path,
                    body: serde_json::from_slice(&body).unwrap_or_default(),
                    done: None,
                    answer,
                });
                answered.await.map_err(std::io::Error::other)?
            };
            let body = Body::from(json.to_string().into_bytes());
            let response = http::Response::builder().status(code).body(body);
            response.map_err(std::io::Error::other)
        }
    });
    kube::Client::new(service, "default")
}

pub fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The part of an object that a metadata-only watch delivers.
pub fn metadata(object: &Value) -> Value {
    json!({"metadata": object["metadata"]})
}

fn key(kind: &str, name: &str) -> Key {
    (kind.to_owned(), name.to_owned())
}

fn is_in_scope(scope: &Scope, object: &Value) -> bool {
    let (key, object): (ObjectRef, KubeObject) =
        KubeObject::parse(&scope.gvk, object.to_string().as_bytes()).expect("an object");
    scope.contains(&key, &object.labels)
}

fn project(scope: &Scope, object: &Value) -> Value {
    match scope.projection {
        Projection::Full => object.clone(),
        Projection::Metadata => metadata(object),
    }
}

impl FakeServer {
    pub fn get(&self, kind: &str, name: &str) -> Option<&Value> {
        self.objects.get(&key(kind, name))
    }

    /// Creates an object unless it exists.
    pub fn create(&mut self, kind: &str, name: &str, spec: Value) {
        if self.get(kind, name).is_none() {
            self.uids += 1;
            let new = json!({"apiVersion": "g/v1", "kind": kind, "metadata": {"name": name, "namespace": "n", "uid": self.uids.to_string(),
                "labels": {"l": (self.uids % 2).to_string()}}, "spec": spec});
            self.set(key(kind, name), Some(new));
        }
    }

    /// Changes an object if it exists.
    pub fn edit(&mut self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
        if let Some(mut object) = self.get(kind, name).cloned() {
            change(&mut object);
            self.set(key(kind, name), Some(object));
        }
    }

    pub fn delete(&mut self, kind: &str, name: &str) {
        if self.get(kind, name).is_some() {
            self.set(key(kind, name), None);
        }
    }

    /// Stores a new state. A write without a change creates no version, as in Kubernetes.
    fn set(&mut self, key: Key, new: Option<Value>) {
        let old = self.objects.get(&key).cloned();
        if old == new {
            return;
        }
        self.version += 1;
        let new = new.map(|mut new| {
            new["metadata"]["resourceVersion"] = self.version.to_string().into();
            new
        });
        match &new {
            Some(new) => drop(self.objects.insert(key.clone(), new.clone())),
            None => drop(self.objects.remove(&key)),
        }
        self.log.push((self.version, key, old, new));
    }

    pub fn list(&self, scope: &Scope) -> Vec<Value> {
        let of_kind = self
            .objects
            .iter()
            .filter(|((kind, _), _)| **kind == *scope.gvk.kind);
        let found = of_kind.filter(|(_, object)| is_in_scope(scope, object));
        found.map(|(_, object)| project(scope, object)).collect()
    }

    /// The version after `after`, and its event if the change is visible in a scope.
    pub fn next_event(&self, scope: &Scope, after: u64) -> Option<(u64, Option<Value>)> {
        let (version, (kind, _), old, new) = self.log.iter().find(|(version, ..)| *version > after)?;
        let in_scope = |o: &&Value| **kind == *scope.gvk.kind && is_in_scope(scope, o);
        let (old, new) = (old.as_ref().filter(in_scope), new.as_ref().filter(in_scope));
        let event = match (old, new) {
            (_, Some(new)) => Some(json!({"type": "MODIFIED", "object": project(scope, new)})),
            (Some(old), None) => {
                let mut gone = project(scope, old);
                gone["metadata"]["resourceVersion"] = version.to_string().into();
                Some(json!({"type": "DELETED", "object": gone}))
            }
            (None, None) => None,
        };
        Some((*version, event))
    }

    fn execute(&mut self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        // /apis/g/v1/namespaces/n/PLURAL/NAME[/status]
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (plural, name, status) = (parts[5], parts[6], parts.get(7).is_some());
        let kind = if plural == "owners" { "Owner" } else { "Child" };
        let refused = |code: u16| {
            (
                code,
                json!({"kind": "Status", "code": code, "message": "refused"}),
            )
        };
        let Some(there) = self.get(kind, name).cloned() else {
            if body["kind"] != "Child" {
                return refused(404);
            }
            self.create(kind, name, body["spec"].clone());
            return (200, self.get(kind, name).cloned().unwrap_or_default());
        };
        if method == "GET" {
            return (200, there);
        }
        for precondition in ["uid", "resourceVersion"] {
            let asked = &body["metadata"][precondition];
            if !asked.is_null() && *asked != there["metadata"][precondition] {
                return refused(409);
            }
        }
        let mut new = there;
        if status {
            json_patch::merge(&mut new["status"], &body["status"]);
        } else {
            let mut body = body.clone();
            body.as_object_mut().map(|body| body.remove("status"));
            json_patch::merge(&mut new, &body);
        }
        self.set(key(kind, name), Some(new));
        (200, self.get(kind, name).cloned().unwrap_or_default())
    }
}
