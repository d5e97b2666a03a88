//! Claims: the record in an object's status that it manages something in Concourse.
//!
//! A claim is written by a checkpoint before the first write to Concourse. Cleanup deletes only what is claimed, so that
//! an object that never wrote anything goes without a request, and takes nothing with it that another user has made.

use ostler_sdk::{Context, Failure, Outcome, Upstream};

use crate::{InstanceSpec, NamespacedName, finish_cleanup};

/// Returns whether a claim is valid on this server, by the fields of the status: the server of the claim, and the
/// presence of an ID. A status of before claims were recorded has an ID only. IDs of two servers are unrelated.
pub(crate) fn is_valid(claimed_server: Option<&str>, has_id: bool, server: Option<&str>) -> bool {
    match (claimed_server, server) {
        (Some(claimed), Some(server)) => claimed == server,
        (Some(_), None) => true,
        (None, _) => has_id,
    }
}

/// The URL of an Instance's server, as claims record it.
#[must_use]
pub fn server_url(url: &str) -> &str {
    url.trim_end_matches('/')
}

/// As [`server_url`], of an Instance that is read as JSON, because a deletion must not fail when it is invalid. None if
/// it is gone.
///
/// # Errors
/// As `kubernetes.get`.
pub fn find_server_url(ctx: &Context, instance: NamespacedName) -> Result<Option<String>, Failure> {
    let object = ctx.get_json(&instance.object_ref::<InstanceSpec>())?;
    let url = object.and_then(|object| Some(server_url(object["spec"]["url"].as_str()?).to_owned()));
    Ok(url)
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
            let found = match &answer {
                Ok(response) if response.status() == 404 => continue,
                Ok(response) if response.status() == 200 => response.value().unwrap_or_default(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_is_valid_on_its_server_only() {
        let (old, new) = (Some("https://old"), Some("https://new"));
        assert!(is_valid(old, false, old) && is_valid(old, true, None));
        assert!(!is_valid(old, true, new) && !is_valid(None, false, new));
        assert!(
            is_valid(None, true, new),
            "the status was written before claims were"
        );
    }
}
