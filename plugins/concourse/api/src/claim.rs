//! Claims: the record in an object's status that it manages something in Concourse.
//!
//! A claim is written by a checkpoint before the first write to Concourse, with the server that the write goes to.
//! Cleanup deletes or undoes only what is claimed, and only on that server, so that an object that never wrote anything
//! goes without a request, and takes nothing with it that another user has made.

use ostler_sdk::{Context, Error, Failure, Outcome, Upstream};

use crate::{NamespacedName, concourse_status, finish_cleanup, location::upstream_ref};

/// The URL of an Instance's server, as claims record it.
#[must_use]
pub fn server_url(url: &str) -> &str {
    url.trim_end_matches('/')
}

/// The URL of the server that requests to an Instance go to, as claims record it. It is the one of the Upstream, and not
/// of the Instance: a suspended or invalid Instance has not passed its URL on. None if the Upstream is gone.
///
/// # Errors
/// As `kubernetes.get`.
pub fn find_server_url(ctx: &Context, instance: NamespacedName) -> Result<Option<String>, Error> {
    let upstream = ctx.get_json(&upstream_ref(instance))?;
    Ok(upstream.and_then(|upstream| Some(server_url(upstream["spec"]["url"].as_str()?).to_owned())))
}

/// Returns whether a thing is on the server that requests go to, by the server that its claim records. After the
/// Instance's URL was changed it is not: names and IDs are of other things there, so the thing is abandoned with a
/// warning.
#[must_use]
pub fn is_on_server(ctx: &Context, server: Option<&str>, claimed: Option<&str>, what: &str) -> bool {
    match (claimed, server) {
        (Some(claimed), Some(server)) if claimed != server => {
            let note =
                format!("The {what} stays as it is on {claimed}: its Instance has another URL, {server}.");
            ctx.warn("Orphaned", &note);
            false
        }
        _ => true,
    }
}

/// Deletes something claimed from Concourse. It is at the first of these paths that shows its ID; what is there with
/// another ID has been made by another user since, and stays. Without an ID, which is lost if the host is killed during
/// the first write, the first path counts.
///
/// # Errors
/// As [`finish_cleanup`].
pub fn delete_claimed(
    ctx: &Context,
    instance: NamespacedName,
    concourse: &Upstream,
    paths: &[String],
    id: Option<i32>,
    what: &str,
) -> Result<Outcome, Failure> {
    for path in paths {
        if let Some(id) = id {
            let answer = concourse.get(path.as_str()).send();
            let status = answer.as_ref().ok().and_then(concourse_status);
            let found = match (&answer, status) {
                (_, Some(404)) => continue,
                (Ok(response), Some(200)) => response.value().unwrap_or_default(),
                _ => return finish_cleanup(ctx, instance, answer, "read", what),
            };
            if found["id"] != id {
                continue;
            }
        }
        let answer = concourse.delete(path.as_str()).send();
        return finish_cleanup(ctx, instance, answer, "delete", what);
    }
    Ok(Outcome::await_change())
}
