//! The pin. One that somebody else has set is left alone unless another version is asked for.

use concourse_api::{Place, ResourceObservation, ResourceSpec, Version};
use ostler_sdk::{prelude::*, serde_json::Value};

use crate::{
    remote::{Remote, tail},
    version, words,
};

const REASON: &str = "PinFailed";
/// As many candidates as are looked at to find the one that is meant.
const CANDIDATES: &str = "50";

/// What to do about the pin.
#[derive(Debug, PartialEq)]
enum Step {
    Leave,
    Pin,
    Unpin,
    InConfig,
}

/// How a resource is pinned.
struct Pin {
    /// To which version; empty when it is not.
    version: Version,
    in_config: bool,
    /// This object has set it.
    ours: bool,
}

fn decide(wanted: Option<&Version>, pin: &Pin) -> Step {
    match wanted {
        Some(wanted) if has(&pin.version, wanted) => Step::Leave,
        Some(_) if pin.in_config => Step::InConfig,
        Some(_) => Step::Pin,
        None if pin.ours => Step::Unpin,
        None => Step::Leave,
    }
}

/// Whether a version has all these fields.
fn has(version: &Version, fields: &Version) -> bool {
    fields.iter().all(|(key, value)| version.get(key) == Some(value))
}

/// The only version that has the fields, or is nothing but them.
fn pick(found: &[Value], fields: &Version) -> Result<i64, Failure> {
    let exact = found.iter().find(|v| version(&v["version"]) == *fields);
    let one = match (exact, found) {
        (Some(one), _) => one,
        (None, [one]) => one,
        (None, []) => {
            let message = [
                "No version of the resource has ",
                &words(fields),
                " of spec.pinnedVersion; no check has found it yet, or there is none.",
            ];
            return Err(Failure::wait(REASON, message.concat()));
        }
        (None, [first, second, ..]) => {
            let message = [
                "Several versions have ",
                &words(fields),
                ", such as ",
                &words(&version(&first["version"])),
                " and ",
                &words(&version(&second["version"])),
                ": give more fields in spec.pinnedVersion.",
            ];
            return Err(Failure::terminal(REASON, message.concat()));
        }
    };
    let none = || Failure::retry(REASON, "The answer is no list of versions: one has no id.");
    one["id"].as_i64().ok_or_else(none)
}

/// Pins or unpins as the spec says.
pub fn converge(
    remote: &Remote,
    spec: &ResourceSpec,
    found: &Value,
    status: &mut ResourceObservation,
) -> Result<(), Failure> {
    let wanted = spec.pinned_version.as_ref().filter(|fields| !fields.is_empty());
    let live = version(&found["pinned_version"]);
    let in_config = found["pinned_in_config"] == true;
    let known = status.pinned_version == live;
    let pin = Pin {
        ours: status.pin_owned == Some(true) && known && !live.is_empty() && !in_config,
        version: live,
        in_config,
    };
    let mut comment = found["pin_comment"].as_str().unwrap_or_default();
    status.pinned = Some(!pin.version.is_empty());
    status.pinned_in_config = Some(in_config);
    let step = decide(wanted, &pin);
    if step != Step::Pin {
        status.pin_owned = pin.ours.then_some(true);
    }
    status.pinned_version = pin.version;
    match (step, wanted) {
        (Step::Leave, Some(wanted)) if !known || status.pinned_version_id.is_none() => {
            let candidates = remote.versions(&status.pinned_version, CANDIDATES)?;
            // A config may pin a version that no check has found.
            status.pinned_version_id = pick(&candidates, wanted)
                .or_else(|_| pick(&candidates, &status.pinned_version))
                .ok();
        }
        (Step::Pin, Some(wanted)) => {
            let candidates = remote.versions(wanted, CANDIDATES)?;
            let id = pick(&candidates, wanted)?;
            let chosen = candidates.iter().find(|v| v["id"] == id);
            let chosen = chosen.map(|v| version(&v["version"])).unwrap_or_default();
            set(remote, status, id, chosen)?;
            // Concourse clears it.
            comment = "";
        }
        (Step::Unpin, _) => {
            unpin(remote, status)?;
        }
        (Step::InConfig, _) => {
            let message = [
                "The pipeline's config pins ",
                &words(&status.pinned_version),
                " (version: of the resource), which goes before spec.pinnedVersion: remove one of them.",
            ];
            return Err(Failure::terminal(REASON, message.concat()));
        }
        _ => {}
    }
    if wanted.is_none() {
        status.pinned_version_id = None;
    }
    let ours = status.pin_owned == Some(true);
    let text = spec.pin_comment.as_deref().or(ours.then_some(""));
    match text {
        Some(text) if wanted.is_some() && !in_config && text != comment => {
            let body = json!({ "pin_comment": text });
            remote.change("/pin_comment", Some(body), "write the pin's comment", REASON)
        }
        _ => Ok(()),
    }
}

fn set(remote: &Remote, status: &mut ResourceObservation, id: i64, chosen: Version) -> Result<(), Failure> {
    status.pin_owned = Some(true);
    status.pinned_version = chosen;
    status.pinned_version_id = Some(id);
    // Before, so that it is known whose pin it is whatever happens in between.
    let begun = json!({
        "pinOwned": true, "pinnedVersion": status.pinned_version, "pinnedVersionID": id,
    });
    remote.ctx.checkpoint(&begun).reason(REASON)?;
    let pinned = remote.change(&tail(id, "/pin"), None, "pin the version", REASON);
    if let Err(failure) = pinned {
        remote.ctx.warn(REASON, &failure.message);
        return Err(failure);
    }
    status.pinned = Some(true);
    let note = ["Pinned to ", &words(&status.pinned_version), "."].concat();
    remote.ctx.event("Pinned", &note);
    Ok(())
}

fn unpin(remote: &Remote, status: &mut ResourceObservation) -> Result<(), Failure> {
    let response = remote.put("/unpin", None).reason(REASON)?;
    // Concourse fails to unpin what somebody has unpinned meanwhile.
    if !response.is_success() {
        let (found, _) = remote.read()?;
        if !found["pinned_version"].is_null() {
            return Err(Place::refused(&response, "unpin the resource", REASON));
        }
    }
    status.pin_owned = None;
    status.pinned = Some(false);
    status.pinned_version = Version::new();
    remote
        .ctx
        .event("Unpinned", "The pin that this object had set is gone.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Version {
        let owned = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        owned.collect()
    }

    #[test]
    fn only_our_own_pin_is_taken_away() {
        let a = fields(&[("ref", "a"), ("branch", "main")]);
        let pin = |version: &Version, in_config, ours| Pin {
            version: version.clone(),
            in_config,
            ours,
        };
        let none = Version::new();
        let wanted = fields(&[("ref", "a")]);
        assert_eq!(decide(Some(&wanted), &pin(&none, false, false)), Step::Pin);
        assert_eq!(decide(Some(&wanted), &pin(&a, false, false)), Step::Leave);
        assert_eq!(decide(Some(&wanted), &pin(&a, true, false)), Step::Leave);
        let other = fields(&[("ref", "b")]);
        assert_eq!(decide(Some(&other), &pin(&a, false, true)), Step::Pin);
        assert_eq!(decide(Some(&other), &pin(&a, true, false)), Step::InConfig);
        assert_eq!(decide(None, &pin(&a, false, true)), Step::Unpin);
        assert_eq!(decide(None, &pin(&a, false, false)), Step::Leave);
    }

    #[test]
    fn the_version_meant_is_told_from_the_others() {
        let found = |all: &[&[(&str, &str)]]| -> Vec<Value> {
            let one = |(i, v): (usize, &&[(&str, &str)])| json!({ "id": i, "version": fields(v) });
            all.iter().enumerate().map(one).collect()
        };
        let wanted = fields(&[("ref", "a")]);
        let (a, more): (&[_], &[_]) = (&[("ref", "a")], &[("ref", "a"), ("x", "1")]);
        assert_eq!(pick(&found(&[more]), &wanted), Ok(0), "the only one");
        assert_eq!(pick(&found(&[more, a]), &wanted), Ok(1), "the one without more");
        let several = pick(&found(&[more, more]), &wanted).expect_err("which one?");
        assert!(several.message.contains("{ref: a, x: 1}"), "{}", several.message);
        let none = pick(&[], &wanted).expect_err("none");
        assert!(none.message.contains("{ref: a}"), "{}", none.message);
    }
}
