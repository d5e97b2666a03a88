//! Applications and their operation.

use serde_json::{Value, json};

use super::{Query, Reply, Rest, matches_pattern};
use crate::{operation::target_revision, resync};

/// Lengths of what is taken for a commit in hex digits, short and long, and not looked up.
const COMMIT_LENGTHS: [usize; 2] = [7, 40];
/// Finalizer that a deletion with cascade sets.
const RESOURCES_FINALIZER: &str = "resources-finalizer.argocd.argoproj.io";
const IN_PROGRESS: &str = "another operation is already in progress";

impl Rest {
    /// What is missing is hidden, unless its project is named.
    pub(super) fn check_application(&self, name: &str, project: Option<&str>) -> Result<(), Reply> {
        let found = self.applications.get(name);
        match (found, project) {
            (Some(live), Some(project)) if live["spec"]["project"] != project => Err(missing(name)),
            (Some(_), _) => Ok(()),
            (None, Some(_)) => Err(missing(name)),
            (None, None) => Err(Reply::hidden()),
        }
    }

    pub(super) fn list_applications(&self, query: Query) -> Reply {
        let selector = query.get("selector").unwrap_or_default();
        let is_selected = |application: &&Value| {
            let mut terms = selector.split(',').filter_map(|term| term.split_once('='));
            terms.all(|(label, value)| application["metadata"]["labels"][label] == value)
                && query
                    .get("name")
                    .is_none_or(|name| application["metadata"]["name"] == name)
        };
        let items: Vec<&Value> = self.applications.values().filter(is_selected).collect();
        let items = if items.is_empty() {
            Value::Null
        } else {
            json!(items)
        };
        let metadata = json!({ "resourceVersion": self.version.to_string() });
        Reply::ok(json!({ "metadata": metadata, "items": items }))
    }

    pub(super) fn create_application(&mut self, body: &Value, query: Query) -> Reply {
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let mut application = body.clone();
        if application["spec"]["project"].is_null() {
            application["spec"]["project"] = "default".into();
        }
        if let Err(reply) = self.check_permitted(&application) {
            return reply;
        }
        if query.get("validate").as_deref() != Some("false") {
            let target = target_revision(&application).to_owned();
            if let Some((condition, message)) = self.world(&name).find_error(&target) {
                let message = format!("application spec for {name} is invalid: {condition}: {message}");
                return Reply::error(400, 3, message);
            }
        }
        // A body cannot start an operation.
        if let Some(fields) = application.as_object_mut() {
            fields.remove("operation");
        }
        if let Some(live) = self.applications.get(&name) {
            let has_same_labels = body["metadata"]["labels"] == live["metadata"]["labels"];
            let is_deleting = !live["metadata"]["deletionTimestamp"].is_null();
            if live["spec"] == application["spec"] && has_same_labels && !is_deleting {
                return Reply::ok(live.clone());
            }
            if !query.is_set("upsert") {
                let message = "existing application spec is different, use upsert flag to force update";
                return Reply::error(400, 3, message);
            }
            let mut updated = live.clone();
            updated["spec"] = application["spec"].clone();
            for (label, value) in body["metadata"]["labels"].as_object().into_iter().flatten() {
                updated["metadata"]["labels"][&**label] = value.clone();
            }
            self.raise_version(&mut updated);
            self.applications.insert(name, updated.clone());
            return Reply::ok(updated);
        }
        self.raise_version(&mut application);
        self.applications.insert(name, application.clone());
        Reply::ok(self.with_project_labels(application))
    }

    /// The answers to a create and to a sync show the labels of the project among those of the application, if it has any. They
    /// are not stored.
    fn with_project_labels(&self, mut application: Value) -> Value {
        if !application["metadata"]["labels"].is_object() {
            return application;
        }
        let project = application["spec"]["project"].as_str().unwrap_or_default();
        let labels = self.projects.get(project).map(|p| &p["metadata"]["labels"]);
        for (label, value) in labels.and_then(Value::as_object).into_iter().flatten() {
            application["metadata"]["labels"][&**label] = value.clone();
        }
        application
    }

    /// Checks project, destination and repository of an application.
    fn check_permitted(&self, application: &Value) -> Result<(), Reply> {
        let spec = &application["spec"];
        let name = application["metadata"]["name"].as_str().unwrap_or_default();
        let project = spec["project"].as_str().unwrap_or_default();
        let Some(found) = self.projects.get(project) else {
            let message =
                format!("app is not allowed in project \"{project}\", or the project does not exist");
            return Err(Reply::error(400, 3, message));
        };
        let invalid = |message: String| {
            let message = format!("application spec for {name} is invalid: InvalidSpecError: {message}");
            Err(Reply::error(400, 3, message))
        };
        let list = |field: &str| found["spec"][field].as_array().cloned().unwrap_or_default();
        let url = &spec["source"]["repoURL"];
        if !list("sourceRepos")
            .iter()
            .any(|pattern| matches_pattern(pattern, url))
        {
            let url = url.as_str().unwrap_or_default();
            return invalid(format!(
                "application repo {url} is not permitted in project '{project}'"
            ));
        }
        let (server, namespace) = (&spec["destination"]["server"], &spec["destination"]["namespace"]);
        let is_permitted = list("destinations").iter().any(|destination| {
            matches_pattern(&destination["server"], server)
                && matches_pattern(&destination["namespace"], namespace)
        });
        if is_permitted {
            return Ok(());
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        invalid(format!(
            "application destination server '{}' and namespace '{}' do not match any of the allowed destinations in project '{project}'",
            text(server),
            text(namespace)
        ))
    }

    pub(super) fn read_application(&mut self, name: &str, query: Query) -> Reply {
        if query.get("refresh").is_some()
            && let Some(application) = self.applications.get_mut(name)
        {
            resync(application);
            while self.advance() {}
        }
        match self.applications.get(name) {
            Some(application) => Reply::ok(application.clone()),
            None => Reply::hidden(),
        }
    }

    /// Changes a stored application.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Value)) -> Reply {
        let Some(mut application) = self.applications.get(name).cloned() else {
            return Reply::hidden();
        };
        change(&mut application);
        if let Err(reply) = self.check_permitted(&application) {
            return reply;
        }
        self.raise_version(&mut application);
        self.applications.insert(name.into(), application.clone());
        Reply::ok(application)
    }

    /// Replaces spec, labels and annotations, whichever version was read.
    pub(super) fn update_application(&mut self, name: &str, body: &Value) -> Reply {
        self.change(name, |application| {
            application["spec"] = body["spec"].clone();
            for field in ["labels", "annotations"] {
                application["metadata"][field] = body["metadata"][field].clone();
            }
        })
    }

    pub(super) fn set_spec(&mut self, name: &str, body: &Value) -> Reply {
        let reply = self.change(name, |application| application["spec"] = body.clone());
        match reply.status {
            200 => Reply::ok(reply.body["spec"].clone()),
            _ => reply,
        }
    }

    /// A merge patch of spec and labels; others are dropped.
    pub(super) fn patch_application(&mut self, name: &str, body: &Value) -> Reply {
        let patch = body["patch"].as_str().unwrap_or_default();
        let Ok(patch) = serde_json::from_str::<Value>(patch) else {
            return Reply::error(500, 2, "the patch is not JSON");
        };
        self.change(name, |application| {
            merge_patch(&mut application["spec"], &patch["spec"]);
            merge_patch(
                &mut application["metadata"]["labels"],
                &patch["metadata"]["labels"],
            );
        })
    }

    /// Deletes what was deployed as well, unless that is not wanted.
    pub(super) fn delete_application(&mut self, name: &str, query: Query) -> Reply {
        if query.get("cascade").as_deref() == Some("false") {
            self.applications.remove(name);
            return Reply::ok(json!({}));
        }
        let time = self.time.clone();
        let reply = self.change(name, |application| {
            let metadata = &mut application["metadata"];
            metadata["finalizers"] = json!([RESOURCES_FINALIZER]);
            metadata["deletionTimestamp"] = time.into();
        });
        match reply.status {
            200 => Reply::ok(json!({})),
            _ => reply,
        }
    }

    /// Writes the operation and removes the state of the last one, if none runs.
    pub(super) fn start_sync(&mut self, name: &str, body: &Value) -> Reply {
        let application = self.applications.get(name).cloned().unwrap_or_default();
        let target = target_revision(&application).to_owned();
        let asked = body["revision"].as_str().unwrap_or_default();
        let project = application["spec"]["project"].as_str().unwrap_or_default();
        let project = self.projects.get(project).cloned().unwrap_or_default();
        let mut windows = project["spec"]["syncWindows"].as_array().into_iter().flatten();
        if windows.any(|window| window["kind"] == "deny") {
            return Reply::error(403, 7, "cannot sync: blocked by sync window");
        }
        if !application["metadata"]["deletionTimestamp"].is_null() {
            return Reply::error(400, 9, "application is deleting");
        }
        let is_automated = application["spec"]["syncPolicy"]["automated"].is_object();
        if is_automated && !asked.is_empty() && asked != target {
            let message = format!("Cannot sync to {asked}: auto-sync currently set to {target}");
            return Reply::error(400, 9, message);
        }
        let revision = if asked.is_empty() { &target } else { asked };
        let is_commit =
            COMMIT_LENGTHS.contains(&revision.len()) && revision.bytes().all(|b| b.is_ascii_hexdigit());
        let commit = if is_commit {
            Some(revision.to_owned())
        } else {
            self.world(name).find_commit(revision)
        };
        let Some(commit) = commit else {
            let message = format!(
                "error resolving repo revision: rpc error: code = Unknown desc = unable to resolve '{revision}' to a commit SHA"
            );
            return Reply::error(400, 9, message);
        };
        let phase = application["status"]["operationState"]["phase"].as_str();
        if application["operation"].is_object() || matches!(phase, Some("Running" | "Terminating")) {
            return Reply::error(400, 9, IN_PROGRESS);
        }
        let mut sync = json!({ "revision": commit });
        for field in ["prune", "dryRun"] {
            if body[field] == true {
                sync[field] = true.into();
            }
        }
        let options = &application["spec"]["syncPolicy"]["syncOptions"];
        if options.is_array() {
            sync["syncOptions"] = options.clone();
        }
        let mut operation = json!({ "initiatedBy": { "username": "admin" }, "sync": sync });
        operation["retry"] = match &body["retryStrategy"] {
            Value::Null => json!({}),
            strategy => strategy.clone(),
        };
        if body["infos"].is_array() {
            operation["info"] = body["infos"].clone();
        }
        let started = (name.to_owned(), operation.clone());
        let reply = self.change(name, |application| {
            application["operation"] = operation;
            if let Some(status) = application["status"].as_object_mut() {
                status.remove("operationState");
            }
        });
        match reply.status {
            200 => {
                self.operations.push(started);
                Reply::ok(self.with_project_labels(reply.body))
            }
            _ => reply,
        }
    }

    pub(super) fn terminate_operation(&mut self, name: &str) -> Reply {
        let state = &self.applications[name];
        if !state["operation"].is_object() || state["status"]["operationState"].is_null() {
            let message = "Unable to terminate operation. No operation is in progress";
            return Reply::error(400, 3, message);
        }
        self.change(name, |application| {
            application["status"]["operationState"]["phase"] = "Terminating".into();
        });
        Reply::ok(json!({}))
    }
}

fn missing(name: &str) -> Reply {
    Reply::error(404, 5, format!("applications.argoproj.io \"{name}\" not found"))
}

fn merge_patch(into: &mut Value, patch: &Value) {
    for (field, value) in patch.as_object().into_iter().flatten() {
        match value {
            Value::Null => {
                if let Some(fields) = into.as_object_mut() {
                    fields.remove(field);
                }
            }
            Value::Object(_) => merge_patch(&mut into[&**field], value),
            value => into[&**field] = value.clone(),
        }
    }
}
