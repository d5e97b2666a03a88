//! A server that does what it is asked when the test says so.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{
    kube::{
        key::ObjectRef,
        object::Object,
        scope::{Projection, Scope},
    },
    plan::merge::merge,
};

type Key = (String, String);

/// Objects, and all that has become of them.
#[derive(Default)]
pub struct Server {
    /// As of now.
    pub version: u64,
    objects: BTreeMap<Key, Value>,
    log: Vec<(u64, Key, Option<Value>, Option<Value>)>,
    uids: u64,
}

/// A request on its way.
#[derive(Debug)]
pub struct Asked {
    method: String,
    pub path: String,
    body: Value,
    done: Option<(u16, Value)>,
    answer: oneshot::Sender<(u16, Value)>,
}

impl Asked {
    /// The server does it, once.
    pub fn serve(&mut self, server: &mut Server) {
        if self.done.is_none() {
            self.done = Some(server.serve(&self.method, &self.path, &self.body));
        }
    }

    /// The answer comes.
    pub fn answer(self) {
        let _ = self.answer.send(self.done.expect("it was served"));
    }
}

/// A client whose requests wait in `asked`. What is not answered there breaks.
pub fn client(asked: Arc<Mutex<Vec<Asked>>>) -> kube::Client {
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
                asked.lock().expect("lock").push(Asked {
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

/// What of an object a watch of metadata has.
pub fn metadata(object: &Value) -> Value {
    json!({"metadata": object["metadata"]})
}

fn key(kind: &str, name: &str) -> Key {
    (kind.to_owned(), name.to_owned())
}

fn within(scope: &Scope, object: &Value) -> bool {
    let (key, object): (ObjectRef, Object) =
        Object::parse(&scope.gvk, object.to_string().as_bytes()).expect("an object");
    scope.contains(&key, &object.labels)
}

fn shown(scope: &Scope, object: &Value) -> Value {
    match scope.projection {
        Projection::Full => object.clone(),
        Projection::Metadata => metadata(object),
    }
}

impl Server {
    pub fn get(&self, kind: &str, name: &str) -> Option<&Value> {
        self.objects.get(&key(kind, name))
    }

    /// A new one, unless there is one.
    pub fn make(&mut self, kind: &str, name: &str, spec: Value) {
        if self.get(kind, name).is_none() {
            self.uids += 1;
            let new = json!({"apiVersion": "g/v1", "kind": kind, "metadata": {"name": name, "namespace": "n", "uid": self.uids.to_string(),
                "labels": {"l": (self.uids % 2).to_string()}}, "spec": spec});
            self.set(key(kind, name), Some(new));
        }
    }

    /// Somebody changes one, if it is there.
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

    /// A write that changes nothing makes no version.
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
        let found = of_kind.filter(|(_, object)| within(scope, object));
        found.map(|(_, object)| shown(scope, object)).collect()
    }

    /// What came next after a version, and the event of it where it concerns a scope.
    pub fn next(&self, scope: &Scope, after: u64) -> Option<(u64, Option<Value>)> {
        let (version, (kind, _), old, new) = self.log.iter().find(|(version, ..)| *version > after)?;
        let in_scope = |o: &&Value| **kind == *scope.gvk.kind && within(scope, o);
        let (old, new) = (old.as_ref().filter(in_scope), new.as_ref().filter(in_scope));
        let event = match (old, new) {
            (_, Some(new)) => Some(json!({"type": "MODIFIED", "object": shown(scope, new)})),
            (Some(old), None) => {
                let mut gone = shown(scope, old);
                gone["metadata"]["resourceVersion"] = version.to_string().into();
                Some(json!({"type": "DELETED", "object": gone}))
            }
            (None, None) => None,
        };
        Some((*version, event))
    }

    fn serve(&mut self, method: &str, path: &str, body: &Value) -> (u16, Value) {
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
            self.make(kind, name, body["spec"].clone());
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
        match status {
            true => merge(&mut new["status"], &body["status"]),
            false => {
                let mut body = body.clone();
                body.as_object_mut().map(|body| body.remove("status"));
                merge(&mut new, &body);
            }
        }
        self.set(key(kind, name), Some(new));
        (200, self.get(kind, name).cloned().unwrap_or_default())
    }
}
