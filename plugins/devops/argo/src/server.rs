//! Projects, repositories and applications of an Argo CD that is reached by its API. Nothing of it is watched, so it is polled.

use devops_api::{
    ApplicationState, ArgoApplication, ArgoConnection, ArgoProject, ArgoRepository, ArgoSetting,
    OWNER_ANNOTATION, OWNER_LABEL, ServerRepository, argo_upstream, check_secure_url, secret_selector,
    upstream_manifest,
};
use devops_argo_client::{ApplicationKey, ArgoServer};
use ostler_sdk::{Encoding, SecretKeyRef, Substitution, prelude::*, serde_json::Value};

use crate::{
    application,
    claim::name_of,
    desired::{self, Owner},
    is_wanted, update_status, wait_for,
};

/// Interval of looks at what is as desired.
const POLL_INTERVAL_MS: u64 = 60_000;
/// Interval of looks at what Argo CD compares or deletes.
const PROGRESS_INTERVAL_MS: u64 = 5_000;
/// Stands for the password in the request that the host is given.
const PASSWORD_PLACEHOLDER: &str = "ostler-argo-repository-password";
/// Fields of a project and of an application that are compared. Argo CD adds others.
const PROJECT_FIELDS: [&str; 4] = [
    "description",
    "sourceRepos",
    "destinations",
    "clusterResourceWhitelist",
];
const APPLICATION_FIELDS: [&str; 4] = ["project", "source", "destination", "syncPolicy"];

/// Brings the server to what a setting describes.
pub fn reconcile(
    ctx: &Context,
    setting: &ArgoSetting,
    connection: &ArgoConnection,
) -> Result<Outcome, Failure> {
    ctx.apply_owned(&build_upstream(setting, connection)?)?;
    let server = Server::new(ctx, setting);
    server.claim()?;
    for project in &setting.spec.projects {
        server.apply_project(project)?;
    }
    let changed = server.apply_repositories()?;
    let (mut names, mut states) = (Vec::new(), Vec::new());
    for application in &setting.spec.applications {
        if !is_wanted(ctx, setting, application)? {
            continue;
        }
        let mut live = server.apply_application(application)?;
        if changed.contains(&(&application.project, &application.source.repo_url)) {
            let refreshed = server.argo.refresh_application(key_of(&live))?;
            live = refreshed.unwrap_or(live);
        }
        names.push(&*application.name);
        states.push(application::observe(&live));
    }
    let remaining = server.prune(&names)?;
    Ok(poll(setting, states, &remaining))
}

fn poll(setting: &ArgoSetting, states: Vec<ApplicationState>, remaining: &[String]) -> Outcome {
    let is_compared = |state: &ApplicationState| {
        let is_progressing = matches!(state.health.as_deref(), None | Some("Progressing" | "Missing"));
        state.sync.is_some() && !is_progressing
    };
    let is_settled = remaining.is_empty() && states.iter().all(is_compared);
    let interval = if is_settled {
        POLL_INTERVAL_MS
    } else {
        PROGRESS_INTERVAL_MS
    };
    let mut outcome = update_status(setting, states, remaining);
    outcome.next = Outcome::poll(interval).next;
    outcome
}

/// Deletes what a setting has written: applications, and then what they need.
pub fn clean_up(ctx: &Context, setting: &ArgoSetting) -> Result<Outcome, Failure> {
    // Nothing was written before it was recorded.
    if setting.status.server_projects.is_empty() {
        return Ok(Outcome::await_change());
    }
    let server = Server::new(ctx, setting);
    let remaining = server.delete_applications(&[])?;
    let names: Vec<String> = remaining.iter().map(name_of).collect();
    wait_for("applications", &names)?;
    for repository in &setting.status.server_repositories {
        server.delete_repository(repository)?;
    }
    let mut projects = Vec::new();
    for name in &setting.status.server_projects {
        if server.delete_project(name)? {
            projects.push(name.clone());
        }
    }
    wait_for("projects", &projects)?;
    Ok(Outcome::await_change())
}

fn build_upstream(setting: &ArgoSetting, connection: &ArgoConnection) -> Result<Value, Failure> {
    check_secure_url(&connection.url, "spec.server.url")?;
    let token = json!({ "tokenSecretRef": secret_selector(&connection.token_ref) });
    Ok(upstream_manifest(
        setting.namespace(),
        &argo_upstream(setting.name()),
        &connection.url,
        &json!({ "bearer": token }),
        connection.ca_ref.as_ref(),
    ))
}

/// A server, and the setting that writes to it.
struct Server<'a> {
    ctx: &'a Context<'a>,
    setting: &'a ArgoSetting,
    argo: ArgoServer<'a>,
    owner: Owner<'a>,
}

impl<'a> Server<'a> {
    fn new(ctx: &'a Context<'a>, setting: &'a ArgoSetting) -> Self {
        Self {
            ctx,
            setting,
            argo: ArgoServer::new(ctx.upstream(&argo_upstream(setting.name()))),
            owner: Owner::of(setting),
        }
    }

    /// Records projects and repositories before the first write: only applications can be listed by their label.
    fn claim(&self) -> Result<(), Failure> {
        let (projects, repositories) = record_claims(self.setting);
        let status = &self.setting.status;
        if projects == status.server_projects && repositories == status.server_repositories {
            return Ok(());
        }
        let claim = json!({ "serverProjects": projects, "serverRepositories": repositories });
        self.ctx.checkpoint(&claim).reason("ApplyFailed")
    }

    fn apply_project(&self, project: &ArgoProject) -> Result<(), Failure> {
        let name = &*project.name;
        let desired = to_request(desired::build_project(&self.owner, &self.setting.spec, project));
        let Some(live) = self.argo.read_project(name)? else {
            self.argo.create_project(&desired)?;
            // One that another user has created meanwhile with the same spec is no error of the create.
            let created = self.argo.read_project(name)?.unwrap_or_default();
            return self.check_owner("project", &created);
        };
        self.check_owner("project", &live)?;
        if is_same(&live["spec"], &desired["spec"], &PROJECT_FIELDS) {
            return Ok(());
        }
        self.argo.update_project(&live, &desired)
    }

    /// Writes the repositories that are not there, or have other credentials than before. Returns project and URL of each.
    fn apply_repositories(&self) -> Result<Vec<(&'a String, &'a String)>, Failure> {
        let mut changed = Vec::new();
        for repository in &self.setting.spec.repositories {
            let digest = self.read_digest(repository)?;
            let live = self.argo.read_repository(&repository.project, &repository.url)?;
            let name = repository_name(self.setting, &repository.name);
            if let Some(live) = &live
                && !is_own_repository(self.setting, live)
            {
                let message = format!(
                    "Argo CD has a repository {} of the project {} that belongs to another user: delete it.",
                    repository.url, repository.project
                );
                return Err(Failure::terminal("NotClaimed", message));
            }
            // The password cannot be read. After a restart of the host it is written once more.
            let key = ["repository/", &*repository.name].concat();
            let written = json!([digest, repository.username, repository.insecure]).to_string();
            let is_known = self.ctx.cache_get(&key).as_deref() == Some(written.as_bytes());
            if is_known && live.is_some_and(|live| live["name"] == *name) {
                continue;
            }
            self.write_repository(repository, &name)?;
            self.ctx.cache_set(&key, written.as_bytes())?;
            changed.push((&repository.project, &repository.url));
        }
        Ok(changed)
    }

    /// Digest of a repository's password; empty without one.
    fn read_digest(&self, repository: &ArgoRepository) -> Result<String, Failure> {
        let Some(password) = &repository.password_ref else {
            return Ok(String::new());
        };
        let found = self
            .ctx
            .secret_digest(&password.name, &password.key)
            .reason("RepositorySecretFailed")?;
        found.ok_or_else(|| {
            let message = format!(
                "Secret {} has no key {}, which passwordRef of the repository {} names.",
                password.name, password.key, repository.name
            );
            Failure::wait("SecretMissing", message)
        })
    }

    fn write_repository(&self, repository: &ArgoRepository, name: &str) -> Result<(), Failure> {
        let mut body = json!({
            "type": "git",
            "name": name,
            "repo": repository.url,
            "project": repository.project,
            "insecure": repository.insecure,
        });
        let substitution = repository.password_ref.as_ref().map(|password| {
            body["username"] = repository.username.as_deref().unwrap_or("git").into();
            body["password"] = PASSWORD_PLACEHOLDER.into();
            let key = SecretKeyRef::new(&password.name, &password.key);
            Substitution::key(PASSWORD_PLACEHOLDER, key, Encoding::JsonString)
        });
        let substitutions: Vec<Substitution> = substitution.into_iter().collect();
        self.argo.write_repository(&body, &substitutions)
    }

    /// Applies an application. Returns what Argo CD has of it.
    fn apply_application(&self, application: &ArgoApplication) -> Result<Value, Failure> {
        let desired = desired::build_application(&self.owner, &self.setting.spec, application);
        let desired = to_request(desired);
        let key = ApplicationKey {
            project: &application.project,
            name: &application.name,
        };
        let mut live = self.argo.read_application(key)?;
        if live.is_none() {
            // One that is still in the project that the spec named before.
            live = self.find_application(&application.name)?;
        }
        let live = match live {
            Some(live) => live,
            None => {
                self.argo.create_application(&desired)?;
                // The answer to the create shows the labels of the project, too.
                self.argo.read_application(key)?.unwrap_or_default()
            }
        };
        self.check_owner("application", &live)?;
        if !live["metadata"]["deletionTimestamp"].is_null() {
            let message = format!(
                "Waiting for the deletion of {}, to create it anew.",
                application.name
            );
            return Err(Failure::wait("DeletionPending", message));
        }
        if !is_same(&live["spec"], &desired["spec"], &APPLICATION_FIELDS) {
            self.argo.update_application(&live, &desired)?;
        }
        Ok(live)
    }

    /// Finds an application of the setting, whatever its project is.
    fn find_application(&self, name: &str) -> Result<Option<Value>, Failure> {
        let mut own = self
            .argo
            .list_applications(OWNER_LABEL, &self.setting.metadata.uid)?
            .into_iter();
        Ok(own.find(|application| name_of(application) == name))
    }

    fn check_owner(&self, kind: &str, live: &Value) -> Result<(), Failure> {
        if self.is_own(live) {
            return Ok(());
        }
        let owner = live["metadata"]["annotations"][OWNER_ANNOTATION].as_str();
        let owner = owner.map_or_else(
            || "another user".to_owned(),
            |name| format!("the ArgoSetting {name}"),
        );
        let message = format!(
            "Argo CD has the {kind} {} already, which belongs to {owner}: choose another name, or delete it.",
            name_of(live)
        );
        Err(Failure::terminal("NotClaimed", message))
    }

    fn is_own(&self, live: &Value) -> bool {
        live["metadata"]["labels"][OWNER_LABEL] == *self.setting.metadata.uid
    }

    /// Deletes what the spec no longer has: applications first, then what they need. Returns what is still being deleted.
    fn prune(&self, applications: &[&str]) -> Result<Vec<String>, Failure> {
        let spec = &self.setting.spec;
        let deleted = self.delete_applications(applications)?;
        let mut remaining: Vec<String> = deleted.iter().map(name_of).collect();
        if !deleted.is_empty() {
            return Ok(remaining);
        }
        let is_desired = |claimed: &ServerRepository| {
            let mut all = spec.repositories.iter();
            all.any(|r| r.project == claimed.project && r.url == claimed.url)
        };
        for repository in &self.setting.status.server_repositories {
            if !is_desired(repository) {
                self.delete_repository(repository)?;
            }
        }
        for name in &self.setting.status.server_projects {
            let is_desired = spec.projects.iter().any(|project| project.name == *name);
            if !is_desired && self.delete_project(name)? {
                remaining.push(name.clone());
            }
        }
        Ok(remaining)
    }

    /// Deletes the setting's applications but these. Returns those that are still there.
    fn delete_applications(&self, kept: &[&str]) -> Result<Vec<Value>, Failure> {
        let mut remaining = self
            .argo
            .list_applications(OWNER_LABEL, &self.setting.metadata.uid)?;
        remaining.retain(|application| !kept.contains(&&*name_of(application)));
        for application in &remaining {
            let is_deleting = !application["metadata"]["deletionTimestamp"].is_null();
            if is_deleting && !application["operation"].is_object() {
                continue;
            }
            // The API has no preconditions, and requests before this one may have taken their time: another application may have
            // the name by now.
            let live = self.argo.read_application(key_of(application))?;
            let is_same =
                |live: &Value| self.is_own(live) && live["metadata"]["uid"] == application["metadata"]["uid"];
            let Some(live) = live.filter(is_same) else {
                continue;
            };
            // Argo CD deletes only after the running operation, which may never end.
            if live["operation"].is_object() {
                self.argo.terminate_operation(key_of(&live))?;
            }
            if live["metadata"]["deletionTimestamp"].is_null() {
                self.argo.delete_application(key_of(&live))?;
            }
        }
        Ok(remaining)
    }

    fn delete_repository(&self, claimed: &ServerRepository) -> Result<(), Failure> {
        let live = self.argo.read_repository(&claimed.project, &claimed.url)?;
        if live.is_some_and(|live| is_own_repository(self.setting, &live)) {
            self.argo.delete_repository(&claimed.project, &claimed.url)?;
        }
        Ok(())
    }

    /// Deletes a project, if it is the setting's own. Returns whether it is still there.
    fn delete_project(&self, name: &str) -> Result<bool, Failure> {
        let live = self.argo.read_project(name)?;
        if !live.is_some_and(|live| self.is_own(&live)) {
            return Ok(false);
        }
        Ok(self.argo.delete_project(name)?.is_some())
    }
}

/// Projects and repositories that a setting has written or is about to write.
pub fn record_claims(setting: &ArgoSetting) -> (Vec<String>, Vec<ServerRepository>) {
    let (spec, status) = (&setting.spec, &setting.status);
    let (mut projects, mut repositories) =
        (status.server_projects.clone(), status.server_repositories.clone());
    if spec.server.is_none() {
        return (projects, repositories);
    }
    for project in &spec.projects {
        if !projects.contains(&project.name) {
            projects.push(project.name.clone());
        }
    }
    for repository in &spec.repositories {
        let claim = ServerRepository {
            project: repository.project.clone(),
            url: repository.url.clone(),
        };
        if !repositories.contains(&claim) {
            repositories.push(claim);
        }
    }
    (projects, repositories)
}

fn key_of(application: &Value) -> ApplicationKey<'_> {
    ApplicationKey {
        project: application["spec"]["project"].as_str().unwrap_or_default(),
        name: application["metadata"]["name"].as_str().unwrap_or_default(),
    }
}

/// The UID of the setting makes the name its own: repositories have no labels in the API.
fn repository_name(setting: &ArgoSetting, name: &str) -> String {
    [name, "-", &setting.metadata.uid].concat()
}

fn is_own_repository(setting: &ArgoSetting, live: &Value) -> bool {
    let suffix = repository_name(setting, "");
    live["name"].as_str().is_some_and(|name| name.ends_with(&suffix))
}

/// An object as the API takes it: without type and namespace, and without the finalizers, which the API sets when it deletes.
fn to_request(mut object: Value) -> Value {
    let remove = |fields: &mut Value, names: &[&str]| {
        if let Some(fields) = fields.as_object_mut() {
            fields.retain(|name, _| !names.contains(&&**name));
        }
    };
    remove(&mut object, &["apiVersion", "kind"]);
    remove(&mut object["metadata"], &["namespace", "finalizers"]);
    object
}

/// Returns whether two specs agree in these fields. The API leaves out what is empty or false.
fn is_same(live: &Value, desired: &Value, fields: &[&str]) -> bool {
    let compact = |spec: &Value, field: &str| {
        let mut value = spec[field].clone();
        remove_empty(&mut value);
        value
    };
    fields
        .iter()
        .all(|field| compact(live, field) == compact(desired, field))
}

fn remove_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(remove_empty);
            fields.retain(|_, value| !is_empty(value));
        }
        Value::Array(items) => items.iter_mut().for_each(remove_empty),
        _ => {}
    }
    if is_empty(value) {
        *value = Value::Null;
    }
}

/// An empty object means something: a policy `automated: {}`.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
