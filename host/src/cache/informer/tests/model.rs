//! Reconciling side of the model: workers like the host's, and a reconciler like a plugin's.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::server;
use crate::{
    cache::store::{ListQuery, Store},
    client::api::ApiError,
    effect::writer::{ApiWriter, WriteContext},
    kube::{
        key::{Gvk, ObjectRef},
        object::KubeObject,
        scope::{Projection, Scope},
        selector::LabelSelector,
    },
    schedule::{
        dependencies::{List, ReadDependency},
        dispatcher::{Cause, Dispatcher},
        queue::{Requeue, Work},
    },
};

const CLEANUP_FINALIZER: &str = "g/cleanup";

pub(super) fn owner() -> Gvk {
    Gvk::new("g", "v1", "Owner")
}

fn child() -> Gvk {
    Gvk::new("g", "v1", "Child")
}

/// Watches and reads of children.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reading {
    /// No children.
    None,
    /// One watch of full objects.
    Full,
    /// A watch of full objects in one namespace, and one of all metadata, which is listed.
    Both,
    /// Two watches of full objects, one of them with a label selector.
    Overlapping,
    /// A watch of all metadata, which is read, and one of full objects with a label selector.
    Metadata,
}

impl Reading {
    pub(super) fn scopes(self) -> Vec<Scope> {
        let scope = |namespace: &str, selector: Option<&str>, form| Scope {
            gvk: child(),
            cluster: "".into(),
            namespace: namespace.into(),
            selector: selector.map(|s| LabelSelector::parse(s).expect("a selector")),
            projection: form,
        };
        match self {
            Self::None => Vec::new(),
            Self::Full => vec![scope("", None, Projection::Full)],
            Self::Both => vec![
                scope("n", None, Projection::Full),
                scope("", None, Projection::Metadata),
            ],
            Self::Overlapping => vec![
                scope("", None, Projection::Full),
                scope("", Some("l=0"), Projection::Full),
            ],
            Self::Metadata => vec![
                scope("", Some("l=0"), Projection::Full),
                scope("", None, Projection::Metadata),
            ],
        }
    }

    /// The part of a child that its reader uses.
    pub(super) fn view(self, object: &Value) -> Value {
        match self {
            Self::Metadata => object["metadata"]["labels"].clone(),
            _ => json!([object["metadata"]["labels"], object["spec"]["others"]]),
        }
    }
}

/// State that a reconcile has seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SeenState {
    pub(super) uid: Value,
    pub(super) spec: Value,
    /// View of its own child.
    pub(super) child: Value,
    /// Labels of the listed children, without its own, which it may have created itself.
    pub(super) listed: BTreeMap<String, Value>,
}

/// State that a test shares with its reconciles.
pub(super) struct InformerModel {
    pub(super) reading: Reading,
    pub(super) store: Arc<Store>,
    pub(super) dispatcher: Arc<Dispatcher>,
    pub(super) writer: ApiWriter,
    /// Paused reconciles.
    pub(super) paused: Mutex<Vec<oneshot::Sender<()>>>,
    pub(super) saw: Mutex<BTreeMap<String, SeenState>>,
    pub(super) running: Mutex<usize>,
}

impl InformerModel {
    async fn pause(&self) {
        let (go, gone) = oneshot::channel();
        self.paused.lock().expect("lock").push(go);
        let _ = gone.await;
    }

    /// Processes one item of the queue as the host's workers do.
    pub(super) async fn process(self: Arc<Self>, work: Work<ObjectRef, Cause>) {
        let key = &work.key;
        match self.store.get(key, Projection::Full) {
            None => {
                self.saw.lock().expect("lock").remove(&*key.name);
                self.dispatcher.forget(key);
            }
            Some(object) => match self.reconcile(key, object).await {
                Ok((saw, reads)) => {
                    self.saw.lock().expect("lock").insert(key.name.to_string(), saw);
                    self.dispatcher.done(key, Requeue::AwaitChange, Some(reads), None);
                }
                Err(_) => self
                    .dispatcher
                    .done(key, Requeue::Retry(Duration::ZERO, Cause::Retry), None, None),
            },
        }
        *self.running.lock().expect("lock") -= 1;
    }

    async fn reconcile(
        &self,
        key: &ObjectRef,
        mut object: Arc<KubeObject>,
    ) -> Result<(SeenState, Vec<ReadDependency>), ApiError> {
        let writer = &self.writer;
        if object.finalizers().is_empty() {
            object = writer
                .set_finalizers(key, &object, &[CLEANUP_FINALIZER.into()])
                .await?;
        }
        let whole = object.to_value();
        let mut saw = SeenState {
            uid: whole["metadata"]["uid"].clone(),
            spec: whole["spec"].clone(),
            ..SeenState::default()
        };
        let mut reads = Vec::new();
        if let Some(scope) = self.reading.scopes().pop() {
            self.reconcile_child(key, scope, &mut saw, &mut reads).await?;
        } else {
            let odd = saw.spec["v"].as_u64().is_some_and(|v| v % 2 == 1);
            let held = odd.then(|| ObjectRef::new(child(), "n", "held"));
            let held = held.into_iter().collect();
            writer.set_holds(key, &object.uid, &held).await?;
        }
        let status = json!({"seen": saw.spec});
        if whole["status"] != status {
            writer.patch_status(key, &object.uid, &status).await?;
        }
        Ok((saw, reads))
    }

    /// Reads its child, lists (the last scope is the one that is listed), and applies the child.
    async fn reconcile_child(
        &self,
        key: &ObjectRef,
        scope: Scope,
        saw: &mut SeenState,
        reads: &mut Vec<ReadDependency>,
    ) -> Result<(), ApiError> {
        let mut read = |dependency: ReadDependency| {
            self.dispatcher.record_read(key, dependency.clone());
            reads.push(dependency);
        };
        let mine = ObjectRef::new(child(), &key.namespace, &key.name);
        let form = match self.reading {
            Reading::Metadata => Projection::Metadata,
            _ => Projection::Full,
        };
        read(ReadDependency::Object(mine.clone(), form));
        self.pause().await;
        let stored = self.store.get(&mine, form);
        saw.child = stored
            .map(|o| self.reading.view(&o.to_value()))
            .unwrap_or_default();
        read(ReadDependency::List(Box::new(List {
            gvk: child(),
            cluster: "".into(),
            namespace: "".into(),
            labels: scope.selector.clone(),
            fields: None,
            projection: scope.projection,
        })));
        self.pause().await;
        let listed = self.store.list(&scope, &ListQuery::default()).into_iter();
        saw.listed = labels_except(&key.name, listed.map(|(_, o)| o.to_value()));
        if self.reading != Reading::Metadata {
            let applied = json!({"apiVersion": "g/v1", "kind": "Child",
                "metadata": {"name": &*key.name, "namespace": "n"}, "spec": {"own": saw.spec["v"]}});
            let writer = WriteContext {
                manager: "test",
                live_version: None,
                by: key,
                request_digest: 0,
                sent_digest: None,
                account: None,
            };
            let written = self.writer.apply(writer, &mine, &applied, true).await?;
            if saw.child.is_null() {
                saw.child = self.reading.view(&written.object.to_value());
            }
        }
        Ok(())
    }
}

/// Labels of all objects except the one named `but`.
pub(super) fn labels_except(but: &str, objects: impl Iterator<Item = Value>) -> BTreeMap<String, Value> {
    let others = objects.filter(|o| server::name(o) != but);
    others
        .map(|o| (server::name(&o), o["metadata"]["labels"].clone()))
        .collect()
}
