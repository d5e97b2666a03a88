//! Objects and their states in short, and reconciles on demand: for `ostler get` and `ostler reconcile`.

use std::collections::HashMap;

use axum::{
    Json,
    extract::{Extension, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

use super::{
    Admin,
    access::{AccessRefusal, Requester},
    explain::{ExplainedState, NextRun, find_object_state},
    question::Question,
    run_blocking,
};
use crate::{
    kube::{
        key::{Gvk, ObjectRef},
        object::KubeObject,
        scope::Projection,
        selector::LabelSelector,
    },
    schedule::{dispatcher::Cause, queue::Priority},
};

/// Maximum number of objects whose dependencies are looked up for an answer.
const MAX_EXPLAINED_OBJECTS: usize = 500;
/// Maximum number of objects that one is said to wait for.
const MAX_NAMED_CAUSES: usize = 3;

/// Query parameters of `/states`.
#[derive(Deserialize)]
pub struct StatesQuery {
    /// Kind as in a [`Question`]; all by default.
    kind: Option<String>,
    /// Name; all by default.
    name: Option<String>,
    /// Namespace; all by default. Cluster-scoped objects are in each.
    namespace: Option<String>,
    /// Label selector.
    selector: Option<String>,
}

/// An object in the response of `/states`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectSummary {
    /// Its kind, with version and group.
    pub kind: String,
    /// Its namespace; empty for cluster-scoped ones.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: ExplainedState,
    /// Reason of its Ready condition.
    pub reason: String,
    /// Message of its Ready condition.
    pub message: String,
    /// Time of the last change of its Ready condition (RFC 3339); none without one.
    pub since: Option<String>,
    /// The first objects that it waits for; none of the objects beyond [`MAX_EXPLAINED_OBJECTS`].
    pub waits_for: Vec<String>,
    /// Its creation (RFC 3339).
    pub created: String,
    /// Time and reason of the next reconcile.
    pub next: NextRun,
    /// The plugin that reconciles it; empty if none does.
    pub plugin: String,
    /// Reconciles so far.
    pub reconciles: u64,
    /// Reconciles that ended in a failure or a trap.
    pub failures: u64,
    /// End of the last reconcile (RFC 3339).
    pub last_reconcile: Option<String>,
    /// Duration of the last reconcile in milliseconds.
    pub last_ms: Option<f64>,
}

impl ObjectSummary {
    /// Its kind as commands take it: `team`.
    pub fn short_kind(&self) -> String {
        self.kind.split('.').next().unwrap_or_default().to_lowercase()
    }
}

/// The states of the selected objects that the requester may list, in order of kind, namespace and name.
pub async fn states(
    State(admin): State<Admin>,
    Extension(requester): Extension<Requester>,
    Query(selection): Query<StatesQuery>,
) -> Result<Response, AccessRefusal> {
    let bad_request = |message| AccessRefusal(StatusCode::BAD_REQUEST, message);
    let selector = selection
        .selector
        .as_deref()
        .map(LabelSelector::parse)
        .transpose();
    let selector = selector.map_err(|e| bad_request(format!("the label selector: {e}")))?;
    let mut keys = admin.stats.keys();
    let question = Question {
        kind: selection.kind.clone().unwrap_or_default(),
        namespace: selection.namespace,
        name: selection.name.unwrap_or_default(),
    };
    if selection.kind.is_some() {
        keys = question.filter_kind(&keys).map_err(bad_request)?;
    }
    let is_named = |key: &ObjectRef| question.name.is_empty() || *key.name == *question.name;
    keys.retain(|key| question.is_in_namespace(key) && is_named(key));
    let visible = requester.retain_visible("list", keys).await?;
    let describe = move || Json(admin.summarize_objects(&visible, selector.as_ref()));
    Ok(run_blocking(describe).await)
}

impl Admin {
    fn summarize_objects(&self, keys: &[ObjectRef], selector: Option<&LabelSelector>) -> Vec<ObjectSummary> {
        // The plugin of a kind, and why it holds all objects.
        let mut plugins: HashMap<Gvk, (Option<String>, Option<String>)> = HashMap::new();
        let mut summaries = Vec::new();
        let scopes = self.services.list_watches();
        let mut explained = 0;
        for key in keys {
            let Some(object) = self.services.cache.store.get(key, Projection::Full) else {
                continue;
            };
            if selector.is_some_and(|selector| !selector.matches(&object.labels)) {
                continue;
            }
            let Some(stats) = self.stats.describe(key, Some(&object)) else {
                continue;
            };
            let (plugin, held) = plugins
                .entry(key.gvk.clone())
                .or_insert_with(|| self.find_plugin(&key.gvk));
            let turn = self.services.dispatcher.find_turn(key);
            let mut waits_for = Vec::new();
            if !stats.ready && explained < MAX_EXPLAINED_OBJECTS {
                explained += 1;
                waits_for = self.list_causes(key, &scopes);
                waits_for.truncate(MAX_NAMED_CAUSES);
            }
            summaries.push(ObjectSummary {
                kind: key.gvk.to_string(),
                state: find_object_state(&object, &stats),
                since: find_ready_since(&object),
                waits_for,
                created: object.field_text("metadata.creationTimestamp"),
                next: NextRun::of_turn(&turn, plugin.is_some(), held.clone()),
                plugin: plugin.clone().unwrap_or_default(),
                namespace: stats.namespace,
                name: stats.name,
                reason: stats.reason,
                message: stats.message,
                reconciles: stats.reconciles,
                failures: stats.failures,
                last_reconcile: stats.last_reconcile,
                last_ms: stats.last_ms,
            });
        }
        summaries
    }
}

/// The time of the last change of the Ready condition.
fn find_ready_since(object: &KubeObject) -> Option<String> {
    let status = object.status()?;
    let conditions = status["conditions"].as_array()?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    ready["lastTransitionTime"].as_str().map(str::to_owned)
}

/// Queues an object as a change of it would. The response is its next run.
pub async fn reconcile(
    State(admin): State<Admin>,
    Extension(requester): Extension<Requester>,
    Query(question): Query<Question>,
) -> Result<Response, AccessRefusal> {
    let keys = admin.stats.keys();
    let key = admin.find_visible(&requester, "get", &question, keys).await?;
    requester.check_object("patch", &key).await?;
    admin.check_leads()?;
    admin
        .services
        .dispatcher
        .enqueue(&key, Priority::High, Cause::Manual);
    let explained = admin.explain_object(&key);
    let explained = explained.map_err(|message| AccessRefusal(StatusCode::NOT_FOUND, message))?;
    Ok(Json(explained).into_response())
}
