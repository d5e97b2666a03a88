//! What the reconcilers of all kinds do the same way.

use std::collections::BTreeMap;

use ostler_sdk::{
    Condition, Context, DeleteOptions, Error, Failure, Gvk, ObjectMeta, ObjectRef, Outcome, Preconditions,
    Response, ResultExt, Selection, gvk,
    serde_json::{Value, to_vec},
};

use crate::{Place, Reference, place::out_of_reach};

/// Namespace and name of the object that a field of another's spec names.
#[must_use]
pub fn target<'a>(object: &'a Value, field: &str) -> (&'a str, &'a str) {
    let text = |value: &'a Value| value.as_str().unwrap_or_default();
    let reference = &object["spec"][field];
    let namespace = match text(&reference["namespace"]) {
        "" => text(&object["metadata"]["namespace"]),
        namespace => namespace,
    };
    (namespace, text(&reference["name"]))
}

/// The outcome for an object that is suspended: nothing is called.
#[must_use]
pub fn suspended() -> Outcome {
    let message = "Not reconciled while spec.suspend is true.";
    Outcome::await_change().with(Condition::new_false("Ready", "Suspended", message))
}

/// Names the `Upstream` of an Instance.
#[must_use]
pub fn upstream(namespace: &str, instance: &str) -> ObjectRef {
    gvk("ostler.dev", "v1alpha1", "Upstream").named(namespace, instance)
}

/// A name as one segment of a path.
#[must_use]
pub fn escape(name: &str) -> String {
    escape_bytes(name.as_bytes())
}

fn escape_bytes(bytes: &[u8]) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut escaped = String::new();
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(char::from(byte));
            }
            _ => {
                escaped.push('%');
                escaped.push(char::from(HEX[usize::from(byte >> 4)]));
                escaped.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
    escaped
}

/// Name in Concourse of a Team or Pipeline, given as JSON; `field` is the one of the spec that may name it.
#[must_use]
pub fn name_of<'a>(object: &'a Value, field: &str) -> &'a str {
    let name = object["spec"][field].as_str().filter(|name| !name.is_empty());
    name.or(object["metadata"]["name"].as_str()).unwrap_or_default()
}

/// API path of what is below a pipeline (`rest` as `/jobs/a`, each name in it escaped; empty for the pipeline),
/// with its instance vars and whatever else is asked (`limit=1`; may be empty). Team and Pipeline are given as JSON.
#[must_use]
pub fn pipeline_path(team: &Value, pipeline: &Value, rest: &str, query: &str) -> String {
    let vars = &pipeline["spec"]["instanceVars"];
    path_of(
        name_of(team, "teamName"),
        name_of(pipeline, "pipelineName"),
        vars,
        rest,
        query,
    )
}

/// As [`pipeline_path`], by the names in Concourse.
#[must_use]
pub fn path_of(team: &str, pipeline: &str, vars: &Value, rest: &str, query: &str) -> String {
    let mut path = [
        "/api/v1/teams/",
        &escape(team),
        "/pipelines/",
        &escape(pipeline),
        rest,
    ]
    .concat();
    let mut separator = "?";
    let mut add = |parts: &[&str]| {
        path.push_str(separator);
        separator = "&";
        path.extend(parts.iter().copied());
    };
    for (key, value) in vars.as_object().into_iter().flatten() {
        // A key that is more than a word is a path for Concourse unless it is quoted.
        let word = key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        let quote = if word { "" } else { "%22" };
        let value = to_vec(value).unwrap_or_default();
        add(&["vars.", quote, &escape(key), quote, "=", &escape_bytes(&value)]);
    }
    if !query.is_empty() {
        add(&[query]);
    }
    path
}

/// What an answer that is not the hoped-for one means. Bad input parks; a
/// fault of the server and a refused login are tried again.
#[must_use]
pub fn refused(response: &Response, what: &str, reason: &str) -> Failure {
    let status = response.status();
    let body = response.value().unwrap_or_default();
    let errors = texts(&body["errors"]).join("; ");
    let detail = match (errors.as_str(), status) {
        ("", 401) => [
            "Concourse does not accept the credentials: ",
            &first_line(&response.text()),
        ]
        .concat(),
        ("", 403) => "the account may not do this".to_owned(),
        ("", 400) => "Concourse finds the request malformed".to_owned(),
        ("", _) => first_line(&response.text()),
        (errors, _) => errors.to_owned(),
    };
    let message = format!("Could not {what} (HTTP {status}): {detail}");
    match status {
        400 | 413 | 415 | 422 => Failure::terminal(reason, message),
        _ => Failure::retry(reason, message),
    }
}

/// The warnings in the answer to a save.
#[must_use]
pub fn warnings(body: &Value) -> Vec<String> {
    let all = [texts(&body["warnings"]), texts(&body["errors"])].concat();
    all.into_iter().map(ToOwned::to_owned).collect()
}

/// The condition that says whether Concourse had warnings.
#[must_use]
pub fn config_warning(warnings: &[String]) -> Condition {
    match warnings {
        [] => Condition::new_false("ConfigWarning", "NoWarnings", "Concourse has no warnings."),
        some => {
            let all: Vec<&str> = some.iter().map(String::as_str).collect();
            Condition::new_true("ConfigWarning", "HasWarnings", all.join("; "))
        }
    }
}

/// Strings, or objects with a `message`.
fn texts(list: &Value) -> Vec<&str> {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(|text| text.as_str().or(text["message"].as_str()))
        .map(str::trim)
        .collect()
}

/// Enough of a page of HTML or a stack trace to recognise it.
#[must_use]
pub fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(200).collect()
}

/// Which objects of a kind still refer, by a field of their spec, to an object.
/// Read leniently: a deletion must not fail because another object is odd.
///
/// # Errors
/// As `kubernetes.list`.
pub fn remaining(ctx: &Context, kind: &Gvk, field: &str, of: &ObjectMeta) -> Result<Vec<String>, Error> {
    let all = ctx.list_json(kind, &Selection::default(), &[])?;
    let refers = |object: &&Value| target(object, field) == (&*of.namespace, &*of.name);
    let name = |object: &Value| {
        let part = |field| object["metadata"][field].as_str().unwrap_or_default();
        [part("namespace"), "/", part("name")].concat()
    };
    Ok(all.iter().filter(refers).map(name).collect())
}

/// Deletes something in Concourse because its object is being deleted. What
/// cannot be reached any more, because Instance or Upstream are gone, is left
/// behind with a warning: waiting for it would last for ever.
///
/// # Errors
/// A fault that may pass; the deletion is never forgotten.
pub fn delete(
    ctx: &Context,
    namespace: &str,
    instance: &str,
    path: &str,
    what: &str,
) -> Result<Outcome, Failure> {
    let answer = ctx.upstream_in(namespace, instance).delete(path).send();
    undone(ctx, (namespace, instance), answer, "delete", what)
}

/// What the answer to the last request of a cleanup comes to; what is not there any more is as good as undone. As
/// [`delete`] where nobody can be asked.
///
/// # Errors
/// A fault that may pass.
pub fn undone(
    ctx: &Context,
    instance: (&str, &str),
    answer: Result<Response, Error>,
    verb: &str,
    what: &str,
) -> Result<Outcome, Failure> {
    match answer {
        Ok(response) => match response.status() {
            200 | 204 | 404 => Ok(Outcome::await_change()),
            409 => Err(Place::refused(
                &response,
                &[verb, " ", what].concat(),
                "DeleteFailed",
            )),
            _ => Err(refused(&response, &[verb, " ", what].concat(), "DeleteFailed")),
        },
        Err(Error::NotFound(missing)) => out_of_reach(ctx, instance, &missing, what),
        Err(error) => Err(error).reason("DeleteFailed"),
    }
}

/// Deletes exactly this object, unless another has taken its name meanwhile.
///
/// # Errors
/// As `kubernetes.delete`.
pub fn discard(ctx: &Context, object: &ObjectRef, uid: &str) -> Result<(), Error> {
    let options = DeleteOptions {
        preconditions: Preconditions::uid(uid),
        ..DeleteOptions::default()
    };
    match ctx.delete_with(object, &options) {
        Err(Error::Conflict(_)) => Ok(()),
        done => done,
    }
}

/// Whether a build in this status has finished.
#[must_use]
pub fn finished(status: Option<&str>) -> bool {
    matches!(status, Some("succeeded" | "failed" | "errored" | "aborted"))
}

/// A version of a resource as Concourse writes it; what is no text, as no version has it, is left out.
#[must_use]
pub fn version(value: &Value) -> BTreeMap<String, String> {
    let fields = value.as_object().into_iter().flatten();
    fields
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

impl Reference {
    /// The namespace it means, seen from an object in `own`.
    #[must_use]
    pub fn namespace_or<'a>(&'a self, own: &'a str) -> &'a str {
        match self.namespace.as_deref() {
            None | Some("") => own,
            Some(namespace) => namespace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_sdk::serde_json::json;

    #[test]
    fn paths_have_instance_vars_and_more() {
        let team = json!({ "metadata": { "name": "alpha" }, "spec": { "teamName": "A b" } });
        let mut pipeline = json!({ "metadata": { "name": "demo" }, "spec": {} });
        let path = |pipeline: &Value, rest, query| pipeline_path(&team, pipeline, rest, query);
        assert_eq!(path(&pipeline, "", ""), "/api/v1/teams/A%20b/pipelines/demo");
        assert_eq!(
            path(&pipeline, "/jobs/x", "limit=1"),
            "/api/v1/teams/A%20b/pipelines/demo/jobs/x?limit=1"
        );
        pipeline["spec"] =
            json!({ "pipelineName": "p", "instanceVars": { "n": 1, "branch": "a/b", "x.y": {"z": []} } });
        assert_eq!(
            path(&pipeline, "", "limit=1"),
            "/api/v1/teams/A%20b/pipelines/p?vars.branch=%22a%2Fb%22&vars.n=1&\
             vars.%22x.y%22=%7B%22z%22%3A%5B%5D%7D&limit=1"
        );
    }
}
