//! A resource in Concourse.

use concourse_api::{
    ConcourseOperation, Location, ResourceStatus, VersionFields, abandon_without_instance, build_path,
    concourse_status, encode_segment, find_server_url, is_on_server, rest,
};
use ostler_sdk::{Response, Upstream, prelude::*, serde::de::DeserializeOwned, serde_json::Value};

const FETCH_FAILED: &str = "FetchFailed";
const READ_RESOURCE: ConcourseOperation =
    ConcourseOperation::new("read the resource", FETCH_FAILED).in_pipeline();
const READ_VERSIONS: ConcourseOperation =
    ConcourseOperation::new("read its versions", FETCH_FAILED).in_pipeline();
const READ_CHECK: ConcourseOperation =
    ConcourseOperation::new("read the check's build", FETCH_FAILED).in_pipeline();
const UNDO_CHANGES: ConcourseOperation =
    ConcourseOperation::new("undo the changes", "DeleteFailed").in_pipeline();

/// A resource in Concourse.
pub struct RemoteResource<'a> {
    /// The host.
    pub ctx: &'a Context<'a>,
    concourse: Upstream<'a>,
    location: &'a Location,
    /// Path of the resource below its pipeline.
    path: String,
}

impl<'a> RemoteResource<'a> {
    /// The resource with this name.
    pub fn new(ctx: &'a Context, location: &'a Location, name: &str) -> Self {
        Self {
            ctx,
            concourse: location.upstream(ctx),
            location,
            path: format!("/resources/{}", encode_segment(name)),
        }
    }

    /// URL of its web page.
    pub fn web_url(&self) -> Option<String> {
        self.location.web_url(&self.path)
    }

    fn api_path(&self, rest: &str, query: &str) -> String {
        self.location.api_path(&format!("{}{rest}", self.path), query)
    }

    /// Reads the resource and its newest version.
    pub fn read(&self) -> Result<(rest::ResourceResponse, VersionFields), Failure> {
        let [found, versions] = self.concourse.send_all([
            self.concourse.get(self.api_path("", "")),
            self.concourse.get(self.api_path("/versions", "limit=1")),
        ]);
        let found = read_existing(&READ_RESOURCE, found)?;
        let versions = read_existing_list::<rest::ResourceVersion>(&READ_VERSIONS, versions)?;
        let latest = versions.into_iter().next();
        Ok((found, latest.map(|latest| latest.version).unwrap_or_default()))
    }

    /// Finds the newest versions that have these fields, up to a limit.
    pub fn find_versions(
        &self,
        fields: &VersionFields,
        limit: usize,
    ) -> Result<Vec<rest::ResourceVersion>, Failure> {
        let mut query = format!("limit={limit}");
        for (name, value) in fields {
            query += &format!("&filter={}", encode_segment(&format!("{name}:{value}")));
        }
        let answer = self.concourse.get(self.api_path("/versions", &query)).send();
        read_existing_list(&READ_VERSIONS, answer)
    }

    /// The server that requests go to; none if the Upstream is gone.
    pub fn find_server(&self) -> Result<Option<String>, Failure> {
        let server = find_server_url(self.ctx, self.location.instance());
        server.reason(FETCH_FAILED)
    }

    /// Returns whether the changes that a status records are on the server that requests go to.
    pub fn is_on_claimed_server(&self, status: &ResourceStatus, what: &str) -> Result<bool, Failure> {
        let server = self.find_server()?;
        Ok(is_on_server(
            self.ctx,
            server.as_deref(),
            status.claimed_server.as_deref(),
            what,
        ))
    }

    /// Finds a build of a check; none if Concourse has deleted it.
    pub fn find_build(&self, id: i64) -> Result<Option<rest::BuildResponse>, Failure> {
        READ_CHECK.read_optional(self.concourse.get(build_path(id, "")).send())
    }

    /// Starts a check.
    pub fn start_check(&self) -> Result<Response, Error> {
        let request = self.concourse.post(self.api_path("/check", ""));
        request.json(&json!({ "from": null })).send()
    }

    /// Sends a PUT to a path below the resource.
    pub fn put(&self, rest: &str, body: Option<Value>) -> Result<Response, Error> {
        let request = self.concourse.put(self.api_path(rest, ""));
        match body {
            Some(body) => request.json(&body).send(),
            None => request.send(),
        }
    }

    /// Sends a PUT that has to succeed.
    pub fn put_checked(
        &self,
        operation: &ConcourseOperation,
        rest: &str,
        body: Option<Value>,
    ) -> Result<(), Failure> {
        operation.check(self.put(rest, body))?;
        Ok(())
    }

    /// Undoes what the object has changed: its pin and its disabled versions.
    pub fn undo_changes(&self, status: &ResourceStatus, what: &str) -> Result<Outcome, Failure> {
        let mut answers = Vec::new();
        if status.pin_owned == Some(true) {
            let found = self.concourse.get(self.api_path("", "")).send();
            // Concourse fails to unpin what is not pinned, and the pin may be another user's by now.
            let is_owned = found
                .as_ref()
                .is_ok_and(|response| is_pinned_to(response, &status.pinned_version));
            answers.push(found);
            if is_owned {
                answers.push(self.put("/unpin", None));
            }
        }
        for id in &status.disabled_version_ids {
            answers.push(self.put(&version_path(*id, "/enable"), None));
        }
        for answer in answers {
            match answer {
                Ok(response) if matches!(concourse_status(&response), Some(200 | 404)) => {}
                Ok(response) if concourse_status(&response) == Some(409) => {
                    let note = format!("{what} stays as it is: its pipeline is archived.");
                    self.ctx.warn("Orphaned", &note);
                    break;
                }
                Ok(response) => return Err(UNDO_CHANGES.failure(&response)),
                Err(Error::NotFound(missing)) => {
                    let instance = self.location.instance();
                    return abandon_without_instance(self.ctx, instance, &missing, what);
                }
                Err(error) => return Err(error).reason(UNDO_CHANGES.reason()),
            }
        }
        Ok(Outcome::await_change())
    }
}

/// Returns whether the response shows a resource that is pinned to a version, and not by its config.
fn is_pinned_to(response: &Response, version: &VersionFields) -> bool {
    let found = response.json::<rest::ResourceResponse>();
    concourse_status(response) == Some(200)
        && found.is_ok_and(|found| !found.pinned_in_config && found.pinned_version == *version)
}

/// Path of a change of one version, below its resource.
pub fn version_path(version: i64, rest: &str) -> String {
    format!("/versions/{version}{rest}")
}

fn read_existing<T: DeserializeOwned>(
    operation: &ConcourseOperation,
    answer: Result<Response, Error>,
) -> Result<T, Failure> {
    operation.read_optional(answer)?.ok_or_else(|| {
        let message = "The pipeline has no resource of this name; waiting for its config to change.";
        Failure::wait("ResourceNotFound", message)
    })
}

fn read_existing_list<T: DeserializeOwned>(
    operation: &ConcourseOperation,
    answer: Result<Response, Error>,
) -> Result<Vec<T>, Failure> {
    let list: Option<Vec<T>> = read_existing(operation, answer)?;
    Ok(list.unwrap_or_default())
}
