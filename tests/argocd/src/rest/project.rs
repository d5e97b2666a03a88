//! Projects and repositories.

use serde_json::{Value, json};

use super::{Query, Reply, Rest};

impl Rest {
    pub(super) fn create_project(&mut self, body: &Value) -> Reply {
        let mut project = body["project"].clone();
        let name = project["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if let Some(live) = self.projects.get(&name) {
            if live["spec"] == project["spec"] {
                return Reply::ok(live.clone());
            }
            if body["upsert"] != true {
                let message = "existing project spec is different; use upsert flag to force update";
                return Reply::error(400, 3, message);
            }
            // The labels stay those of the create.
            let spec = project["spec"].take();
            project = live.clone();
            project["spec"] = spec;
        }
        self.store_project(&name, project)
    }

    fn store_project(&mut self, name: &str, mut project: Value) -> Reply {
        if let Some(fields) = project["spec"].as_object_mut() {
            // Empty lists are left out.
            fields.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
        }
        self.raise_version(&mut project);
        self.projects.insert(name.into(), project.clone());
        Reply::ok(project)
    }

    pub(super) fn read_project(&self, name: &str) -> Reply {
        match self.projects.get(name) {
            Some(project) => Reply::ok(project.clone()),
            None => missing_project(name),
        }
    }

    pub(super) fn update_project(&mut self, name: &str, body: &Value) -> Reply {
        let project = &body["project"];
        let Some(live) = self.projects.get(name) else {
            return missing_project(name);
        };
        let version = &project["metadata"]["resourceVersion"];
        if version.is_null() {
            let message = format!(
                "appprojects.argoproj.io \"{name}\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            );
            return Reply::error(400, 3, message);
        }
        if *version != live["metadata"]["resourceVersion"] {
            let message = format!(
                "Operation cannot be fulfilled on appprojects.argoproj.io \"{name}\": the object has been modified; please apply your changes to the latest version and try again"
            );
            return Reply::error(409, 10, message);
        }
        self.store_project(name, project.clone())
    }

    pub(super) fn delete_project(&mut self, name: &str) -> Reply {
        let users = self
            .applications
            .values()
            .filter(|application| application["spec"]["project"] == name);
        match users.count() {
            _ if name == "default" => {
                Reply::error(400, 3, "name 'default' is reserved and cannot be deleted")
            }
            0 if self.projects.remove(name).is_none() => missing_project(name),
            0 => Reply::ok(json!({})),
            count => Reply::error(400, 3, format!("project is referenced by {count} applications")),
        }
    }

    pub(super) fn write_repository(&mut self, body: &Value, query: Query) -> Reply {
        let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        let mut shown = body.clone();
        // Neither user nor password is shown again.
        if let Some(fields) = shown.as_object_mut() {
            fields.remove("username");
            fields.remove("password");
        }
        let key = (text("project"), text("repo"));
        let is_other = self
            .repositories
            .get(&key)
            .is_some_and(|live| live["name"] != shown["name"]);
        if is_other && !query.is_set("upsert") {
            let message = "existing repository spec is different; use upsert flag to force update; difference in keys \"Name\"";
            return Reply::error(400, 3, message);
        }
        self.repositories.insert(key, shown.clone());
        Reply::ok(shown)
    }

    pub(super) fn read_repository(&self, url: &str, query: Query) -> Reply {
        let project = query.get("appProject").unwrap_or_default();
        if let Some(repository) = self.repositories.get(&(project.clone(), url.to_owned())) {
            return Reply::ok(repository.clone());
        }
        if self.repositories.keys().any(|(_, other)| other == url) {
            let message = format!("repository not found for url \"{url}\" and project \"{project}\"");
            return Reply::error(500, 2, message);
        }
        Reply::hidden()
    }

    pub(super) fn delete_repository(&mut self, url: &str, query: Query) -> Reply {
        let project = query.get("appProject").unwrap_or_default();
        match self.repositories.remove(&(project, url.to_owned())) {
            Some(_) => Reply::ok(json!({})),
            None => Reply::hidden(),
        }
    }
}

fn missing_project(name: &str) -> Reply {
    Reply::error(404, 5, format!("appprojects.argoproj.io \"{name}\" not found"))
}
