//! Argo CD's API for components: projects, repositories, applications and their one operation on a server that is not in this
//! cluster.
//!
//! The API differs from the custom resources where it matters:
//!
//! - A create of what exists with the same spec succeeds, and its answer shows labels of the project among those of the
//!   application. So a claim is read back, and never taken from the answer of a write.
//! - An update of an application takes any resourceVersion and replaces its labels. Only that of a project has a precondition.
//! - A sync has no precondition either, but is refused while an operation runs, and removes the state of the last operation in
//!   the write that sets the new one. Until another operation begins, the state is that of the sync, so that a lost answer is
//!   resolved by [`find_progress`] with the start time of the operation that was there before.
//! - What is missing is 403 where its project is not named, and so it always is.

mod answer;
mod operation;

use answer::send;
use ostler_sdk::{Failure, RequestBuilder, Substitution, Upstream, serde_json::Value, serde_json::json};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

pub use operation::{
    OperationProgress, build_termination, find_deployed, find_progress, operation_start, unchanged,
};

/// Characters that are encoded in a segment of a path or the value of a parameter.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
/// Content type of every request that writes. Argo CD refuses one without it, or with a charset, with 415.
const CONTENT_TYPE: (&str, &str) = ("Content-Type", "application/json");

/// A server of Argo CD. Its Upstream has the token.
pub struct ArgoServer<'a> {
    upstream: Upstream<'a>,
}

/// An application by its project and its name.
#[derive(Clone, Copy, Debug)]
pub struct ApplicationKey<'a> {
    /// Name of its project.
    pub project: &'a str,
    /// Name of the application.
    pub name: &'a str,
}

/// A sync to start.
#[derive(Clone, Copy, Debug)]
pub struct Sync<'a> {
    /// ID by which the operation is recognized, as name and value.
    pub info: (&'a str, &'a str),
    /// Commit, branch or tag; that of the application without it.
    pub revision: Option<&'a str>,
    /// Deletes what is no longer in the repository.
    pub prune: bool,
}

/// Result of a request for a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncStart {
    /// The operation is written.
    Started,
    /// It is not, and may be later: another operation runs, the application is deleted, or a window is closed.
    Waiting(String),
    /// It is not, and will not be: no such revision, or an automated application follows another one.
    Refused(String),
    /// The application does not exist.
    Missing,
}

impl<'a> ArgoServer<'a> {
    /// The server behind an Upstream.
    #[must_use]
    pub fn new(upstream: Upstream<'a>) -> Self {
        Self { upstream }
    }

    /// Reads a project; none if it does not exist.
    ///
    /// # Errors
    /// `AuthenticationFailed`, `ArgoDenied`, `ArgoFailed`; the server is unreachable.
    pub fn read_project(&self, name: &str) -> Result<Option<Value>, Failure> {
        send(self.upstream.get(project_path(name)))?.found()
    }

    /// Creates a project. One of its name with another spec is not changed.
    ///
    /// # Errors
    /// As [`Self::read_project`]; `NotClaimed` if another one has the name.
    pub fn create_project(&self, project: &Value) -> Result<(), Failure> {
        let request = self.upstream.post("/api/v1/projects");
        send(request.json(&json!({ "project": project })))?.created()
    }

    /// Updates a project that is still the version that was read.
    ///
    /// # Errors
    /// As [`Self::read_project`]; `ArgoConflict` if it has changed since.
    pub fn update_project(&self, live: &Value, desired: &Value) -> Result<(), Failure> {
        let mut project = desired.clone();
        project["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        let name = text(&desired["metadata"]["name"]);
        let request = self.upstream.put(project_path(name));
        send(request.json(&json!({ "project": project })))?.done()
    }

    /// Deletes a project. Returns what still uses it; none when it is gone.
    ///
    /// # Errors
    /// As [`Self::read_project`].
    pub fn delete_project(&self, name: &str) -> Result<Option<String>, Failure> {
        let answer = send(with_type(self.upstream.delete(project_path(name))))?;
        if answer.is_refused_with("project is referenced by") {
            return Ok(Some(answer.message()));
        }
        answer.gone().map(|()| None)
    }

    /// Reads a repository of a project, without its password; none if it does not exist, or may not be seen, which the server
    /// does not distinguish.
    ///
    /// # Errors
    /// As [`Self::read_project`].
    pub fn read_repository(&self, project: &str, url: &str) -> Result<Option<Value>, Failure> {
        let answer = send(self.upstream.get(repository_path(project, url)))?;
        if answer.is_hidden() || answer.is_missing_repository() {
            return Ok(None);
        }
        answer.found()
    }

    /// Writes a repository of a project. Its password is inserted by the host. It is stored untested.
    ///
    /// # Errors
    /// As [`Self::read_project`].
    pub fn write_repository(&self, repository: &Value, secrets: &[Substitution]) -> Result<(), Failure> {
        let request = self.upstream.post("/api/v1/repositories?upsert=true");
        send(request.json(repository).substitute(secrets))?.done()
    }

    /// Deletes a repository of a project that was found before.
    ///
    /// # Errors
    /// As [`Self::read_project`].
    pub fn delete_repository(&self, project: &str, url: &str) -> Result<(), Failure> {
        send(with_type(self.upstream.delete(repository_path(project, url))))?.gone()
    }

    /// Reads an application as the custom resource has it; none if it does not exist.
    ///
    /// # Errors
    /// As [`Self::read_project`].
    pub fn read_application(&self, key: ApplicationKey) -> Result<Option<Value>, Failure> {
        send(self.upstream.get(application_path(key, "", "")))?.found()
    }

    /// Reads an application after it has been compared again.
    ///
    /// # Errors
    /// As [`Self::read_project`].
    pub fn refresh_application(&self, key: ApplicationKey) -> Result<Option<Value>, Failure> {
        send(self.upstream.get(application_path(key, "", "refresh=normal&")))?.found()
    }

    /// Lists the applications with a label.
    ///
    /// # Errors
    /// As [`Self::read_project`].
    pub fn list_applications(&self, label: &str, value: &str) -> Result<Vec<Value>, Failure> {
        let selector = encode(&[label, "=", value].concat());
        let path = ["/api/v1/applications?selector=", &selector].concat();
        let list = send(self.upstream.get(path))?.found()?.unwrap_or_default();
        // An empty list is null.
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Creates an application. One of its name with another spec or other labels is not changed. Its repository is not tried:
    /// as with the custom resource, errors are among its conditions.
    ///
    /// # Errors
    /// As [`Self::read_project`]; `NotClaimed` if another one has the name.
    pub fn create_application(&self, application: &Value) -> Result<(), Failure> {
        let request = self.upstream.post("/api/v1/applications?validate=false");
        send(request.json(application))?.created()
    }

    /// Updates an application that was read before, also to another project. Labels and annotations of others are kept.
    ///
    /// # Errors
    /// As [`Self::read_project`].
    pub fn update_application(&self, live: &Value, desired: &Value) -> Result<(), Failure> {
        let mut application = desired.clone();
        for field in ["labels", "annotations"] {
            let mut merged = live["metadata"][field].clone();
            let own = desired["metadata"][field].as_object().into_iter().flatten();
            for (name, value) in own {
                merged[&**name] = value.clone();
            }
            application["metadata"][field] = merged;
        }
        let key = ApplicationKey {
            project: text(&live["spec"]["project"]),
            name: text(&desired["metadata"]["name"]),
        };
        let path = application_path(key, "", "validate=false&");
        send(self.upstream.put(path).json(&application))?.done()
    }

    /// Deletes an application with what it has deployed. The server waits for its running operation, so that is to be
    /// terminated first.
    ///
    /// # Errors
    /// As [`Self::read_project`].
    pub fn delete_application(&self, key: ApplicationKey) -> Result<(), Failure> {
        send(with_type(self.upstream.delete(application_path(key, "", ""))))?.gone()
    }

    /// Starts a sync. A lost answer is resolved by [`find_progress`].
    ///
    /// # Errors
    /// As [`Self::read_project`].
    pub fn start_sync(&self, key: ApplicationKey, sync: &Sync) -> Result<SyncStart, Failure> {
        let mut body = json!({
            "project": key.project,
            "prune": sync.prune,
            "infos": [{ "name": sync.info.0, "value": sync.info.1 }],
        });
        if let Some(revision) = sync.revision {
            body["revision"] = revision.into();
        }
        let name = encode(key.name);
        let path = ["/api/v1/applications/", &name, "/sync"].concat();
        send(self.upstream.post(path).json(&body))?.sync_start()
    }

    /// Terminates the running operation. Returns false if none runs.
    ///
    /// # Errors
    /// As [`Self::read_project`].
    pub fn terminate_operation(&self, key: ApplicationKey) -> Result<bool, Failure> {
        let path = application_path(key, "/operation", "");
        let answer = send(with_type(self.upstream.delete(path)))?;
        if answer.is_refused_with("No operation is in progress") {
            return Ok(false);
        }
        answer.gone().map(|()| true)
    }
}

fn with_type(request: RequestBuilder<'_>) -> RequestBuilder<'_> {
    request.header(CONTENT_TYPE.0, CONTENT_TYPE.1)
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

fn project_path(name: &str) -> String {
    ["/api/v1/projects/", &encode(name)].concat()
}

fn repository_path(project: &str, url: &str) -> String {
    [
        "/api/v1/repositories/",
        &encode(url),
        "?appProject=",
        &encode(project),
    ]
    .concat()
}

/// The path of an application, or of something below it, with its project: without it what is missing is 403.
fn application_path(key: ApplicationKey, below: &str, parameters: &str) -> String {
    let (name, project) = (encode(key.name), encode(key.project));
    [
        "/api/v1/applications/",
        &name,
        below,
        "?",
        parameters,
        "project=",
        &project,
    ]
    .concat()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
