//! Reconciles `concourse-ci.org/v1alpha1` Resource: its pin, its disabled
//! versions and its checks. What it did itself it takes back when it goes.

mod check;
mod disabled;
mod pin;
mod remote;

use concourse_api::{Place, ResourceObservation, ResourceSpec, Version, suspended, version};
use ostler_sdk::{ObjectRef, Resolution, prelude::*, rfc3339};
use remote::Remote;

const POLL: u64 = 300_000;

/// Reconciles Resources.
pub struct Resources;

impl Reconciler for Resources {
    type Spec = ResourceSpec;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/resource-finalizer");

    fn reconcile(&self, ctx: &Context, object: &Object<ResourceSpec>) -> Result<Outcome, Failure> {
        if object.spec.suspend {
            return Ok(suspended());
        }
        let place = Place::ready(ctx, &pipeline_of(object))?;
        let remote = Remote::new(ctx, &place, resource_name(object));
        let mut status = object.status.clone();
        status.resolved_name = Some(resource_name(object).to_owned());
        status.web_url = remote.page();
        // What was begun is remembered, however it ends.
        match converge(&remote, object, &mut status) {
            Ok(outcome) => Ok(outcome.status(&status)),
            Err(failure) => Err(failure.status(&status)),
        }
    }

    fn cleanup(&self, ctx: &Context, object: &Object<ResourceSpec>) -> Result<Outcome, Failure> {
        let status = &object.status;
        if status.pin_owned != Some(true) && status.disabled_version_ids.is_empty() {
            return Ok(Outcome::await_change());
        }
        let what = ["resource ", resource_name(object)].concat();
        let Some(place) = Place::last(ctx, &pipeline_of(object), &what)? else {
            return Ok(Outcome::await_change());
        };
        Remote::new(ctx, &place, resource_name(object)).restore(status, &what)
    }
}

fn converge(
    remote: &Remote,
    object: &Object<ResourceSpec>,
    status: &mut ResourceObservation,
) -> Result<Outcome, Failure> {
    let spec = &object.spec;
    // First, so that what it has found is seen below.
    check::follow(remote, status)?;
    let (found, latest) = remote.read()?;
    status.kind = found["type"].as_str().map(ToOwned::to_owned);
    status.last_checked = found["last_checked"].as_u64().map(rfc3339);
    status.latest_version = latest;
    check::learn(&found["build"], status);
    // Before the pin, as it may find the version that is to be pinned.
    let next = check::start(remote, object, status)?.map(|soon| soon.min(POLL));
    let converged = pin::converge(remote, spec, &found, status);
    let unmatched = match converged.and_then(|()| disabled::converge(remote, spec, status)) {
        Ok(unmatched) => unmatched,
        Err(mut failure) => {
            // Checks go on meanwhile.
            if let (Some(soon), Resolution::Terminal | Resolution::Wait) = (next, &failure.resolution) {
                failure.resolution = Resolution::Throttled(soon);
            }
            return Err(failure.with(check::healthy(status)));
        }
    };
    let mut message = String::from("The resource is as wanted.");
    for version in unmatched {
        let more = [
            " No version matches ",
            &words(version),
            " of disabledVersions yet.",
        ];
        message.push_str(&more.concat());
    }
    let outcome = match next {
        Some(soon) => Outcome::after(soon),
        None => Outcome::poll(POLL),
    };
    Ok(outcome
        .with(Condition::new_true("Ready", "Ready", message))
        .with(check::healthy(status)))
}

fn pipeline_of(object: &Object<ResourceSpec>) -> ObjectRef {
    object.spec.pipeline_ref.pipeline(object.namespace())
}

fn resource_name(object: &Object<ResourceSpec>) -> &str {
    let name = object.spec.resource_name.as_deref();
    name.unwrap_or(object.name())
}

/// A version for people.
fn words(version: &Version) -> String {
    let fields: Vec<_> = version.iter().map(|(k, v)| [k, ": ", v].concat()).collect();
    ["{", &fields.join(", "), "}"].concat()
}

ostler_sdk::plugin!(Resources);
