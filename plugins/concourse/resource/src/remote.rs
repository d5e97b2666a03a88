//! A resource in Concourse.

use concourse_api::{Place, ResourceObservation, Version, escape, out_of_reach, version};
use ostler_sdk::{Response, Upstream, prelude::*, serde_json::Value};

const FETCH_FAILED: &str = "FetchFailed";

/// A resource in Concourse.
pub struct Remote<'a> {
    /// The host.
    pub ctx: &'a Context<'a>,
    concourse: Upstream<'a>,
    place: &'a Place,
    /// Its path below the pipeline.
    rest: String,
}

impl<'a> Remote<'a> {
    /// The one of this name.
    pub fn new(ctx: &'a Context, place: &'a Place, name: &str) -> Self {
        Self {
            ctx,
            concourse: place.concourse(ctx),
            place,
            rest: ["/resources/", &escape(name)].concat(),
        }
    }

    /// URL of its page.
    pub fn page(&self) -> Option<String> {
        self.place.page(&self.rest)
    }

    fn path(&self, tail: &str, query: &str) -> String {
        self.place.path(&[&self.rest, tail].concat(), query)
    }

    /// The resource, and its newest version.
    pub fn read(&self) -> Result<(Value, Version), Failure> {
        let [found, latest] = self.concourse.send_all([
            self.concourse.get(self.path("", "")),
            self.concourse.get(self.path("/versions", "limit=1")),
        ]);
        let found = value(found, "read the resource")?;
        let latest = value(latest, "read its versions")?;
        Ok((found, version(&latest[0]["version"])))
    }

    /// The newest versions that have these fields.
    pub fn versions(&self, fields: &Version, limit: &str) -> Result<Vec<Value>, Failure> {
        let mut query = ["limit=", limit].concat();
        for (key, value) in fields {
            let filter = [key, ":", value.as_str()].concat();
            query.push_str("&filter=");
            query.push_str(&escape(&filter));
        }
        let found = self.concourse.get(self.path("/versions", &query)).send();
        match value(found, "read its versions")? {
            Value::Array(versions) => Ok(versions),
            _ => Ok(Vec::new()),
        }
    }

    /// A build, if it is still there.
    pub fn build(&self, id: i64) -> Result<Option<Value>, Failure> {
        let path = ["/api/v1/builds/", &id.to_string()].concat();
        let response = self.concourse.get(path).send().reason(FETCH_FAILED)?;
        match response.status() {
            404 => Ok(None),
            _ => value(Ok(response), "read the check's build").map(Some),
        }
    }

    /// Starts a check.
    pub fn check(&self) -> Result<Response, Failure> {
        let request = self.concourse.post(self.path("/check", ""));
        request
            .json(&json!({ "from": null }))
            .send()
            .reason("CheckFailed")
    }

    /// Changes something; the answer.
    pub fn put(&self, tail: &str, body: Option<Value>) -> Result<Response, Error> {
        let request = self.concourse.put(self.path(tail, ""));
        match body {
            Some(body) => request.json(&body).send(),
            None => request.send(),
        }
    }

    /// Changes something that has to succeed.
    pub fn change(&self, tail: &str, body: Option<Value>, what: &str, reason: &str) -> Result<(), Failure> {
        let response = self.put(tail, body).reason(reason)?;
        match response.is_success() {
            true => Ok(()),
            false => Err(Place::refused(&response, what, reason)),
        }
    }

    /// Takes back what the object has done: its pin, and the versions it disabled.
    pub fn restore(&self, status: &ResourceObservation, what: &str) -> Result<Outcome, Failure> {
        let mut answers = Vec::new();
        if status.pin_owned == Some(true) {
            let found = self.concourse.get(self.path("", "")).send();
            // Unpinning what is not pinned is an error to Concourse, and another's pin is not ours.
            let ours = found.as_ref().is_ok_and(|response| {
                let found = response.value().unwrap_or_default();
                response.is_success()
                    && found["pinned_in_config"] != true
                    && version(&found["pinned_version"]) == status.pinned_version
            });
            answers.push(found);
            if ours {
                answers.push(self.put("/unpin", None));
            }
        }
        for id in &status.disabled_version_ids {
            answers.push(self.put(&tail(*id, "/enable"), None));
        }
        for answer in answers {
            match answer {
                Ok(response) if matches!(response.status(), 200 | 404) => {}
                Ok(response) if response.status() == 409 => {
                    let note = [what, " stays as it is: its pipeline is archived."].concat();
                    self.ctx.warn("Orphaned", &note);
                    break;
                }
                Ok(response) => return Err(Place::refused(&response, "undo the changes", "DeleteFailed")),
                Err(Error::NotFound(missing)) => {
                    return out_of_reach(self.ctx, self.place.instance(), &missing, what);
                }
                Err(error) => return Err(error).reason("DeleteFailed"),
            }
        }
        Ok(Outcome::await_change())
    }
}

/// Path of a change to one version.
pub fn tail(version: i64, verb: &str) -> String {
    ["/versions/", &version.to_string(), verb].concat()
}

fn value(answer: Result<Response, Error>, what: &str) -> Result<Value, Failure> {
    let response = answer.reason(FETCH_FAILED)?;
    match response.status() {
        200 => response.value().reason(FETCH_FAILED),
        404 => {
            let message = "The pipeline has no resource of this name; waiting for its config to change.";
            Err(Failure::wait("ResourceNotFound", message))
        }
        _ => Err(Place::refused(&response, what, FETCH_FAILED)),
    }
}
