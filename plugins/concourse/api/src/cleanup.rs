//! Cleanup of what objects have in Concourse, and of objects.

use ostler_sdk::{
    Context, DeleteOptions, Error, Failure, Gvk, KindSpec, Object, ObjectRef, Outcome, Preconditions,
    Response, ResultExt, Selection, serde_json::Value,
};

use crate::{InstanceSpec, NamespacedName, concourse_status, location::upstream_ref, unexpected_status};

const DELETE_FAILED: &str = "DeleteFailed";

/// Status fields that record a claim. Former builds recorded only the ID.
const CLAIM_FIELDS: [&str; 3] = ["claimedServer", "teamID", "pipelineID"];

/// The outcome of a cleanup, by the response to its last request to Concourse. HTTP 404 of Concourse counts as success:
/// what does not exist needs no cleanup. The action and the thing complete the sentence "Could not …".
///
/// # Errors
/// A fault that may pass, so that no deletion is lost.
pub fn finish_cleanup(
    ctx: &Context,
    instance: NamespacedName,
    answer: Result<Response, Error>,
    action: &str,
    what: &str,
) -> Result<Outcome, Failure> {
    match answer {
        Ok(response) => match concourse_status(&response) {
            Some(200 | 204 | 404) => Ok(Outcome::await_change()),
            _ => {
                let action = format!("{action} {what}");
                Err(unexpected_status(&response, &action, DELETE_FAILED))
            }
        },
        Err(Error::NotFound(missing)) => abandon_without_instance(ctx, instance, &missing, what),
        Err(error) => Err(error).reason(DELETE_FAILED),
    }
}

/// The outcome of a cleanup that cannot reach Concourse because an object is `missing`. Once Instance or Upstream are
/// gone the thing in Concourse is abandoned with a warning, since waiting would never end.
///
/// # Errors
/// Both exist, so a Secret is missing, which may come back.
pub fn abandon_without_instance(
    ctx: &Context,
    instance: NamespacedName,
    missing: &str,
    what: &str,
) -> Result<Outcome, Failure> {
    // As JSON, because neither spec nor status matter.
    let object = ctx.get_json(&instance.object_ref::<InstanceSpec>())?;
    let in_use = object.is_some_and(|object| object["metadata"]["deletionTimestamp"].is_null());
    if in_use && ctx.get_json(&upstream_ref(instance))?.is_some() {
        return Err(Failure::wait(DELETE_FAILED, format!("Not found: {missing}")));
    }
    let note = format!("{what} stays in Concourse: its Instance is gone.");
    ctx.warn("Orphaned", &note);
    Ok(Outcome::await_change())
}

/// Deletes exactly this object. It stays if another object has taken its name meanwhile.
///
/// # Errors
/// As `kubernetes.delete`.
pub fn delete_object(ctx: &Context, object: &ObjectRef, uid: &str) -> Result<(), Error> {
    let options = DeleteOptions {
        preconditions: Preconditions::uid(uid),
        ..DeleteOptions::default()
    };
    match ctx.delete_with(object, &options) {
        Err(Error::Conflict(_)) => Ok(()),
        deleted => deleted,
    }
}

/// Namespaces and names of the objects of a kind whose cleanup needs an object that they refer to by a field of their
/// spec: those that have a claim, and those of its own namespace, which may be about to claim something. Others do not
/// matter, because anybody may refer to the object from another namespace.
///
/// # Errors
/// As `kubernetes.list`.
pub fn list_dependents<S: KindSpec>(
    ctx: &Context,
    kind: &Gvk,
    field: &str,
    referred: &Object<S>,
) -> Result<Vec<String>, Error> {
    let dependents = list_dependents_json(ctx, kind, field, referred)?;
    let is_in_use = |object: &&Value| {
        metadata_of(object).namespace == referred.namespace()
            || CLAIM_FIELDS
                .iter()
                .any(|field| !object["status"][*field].is_null())
    };
    let in_use = dependents.iter().filter(is_in_use);
    Ok(in_use.map(|object| metadata_of(object).to_string()).collect())
}

/// Deletes the objects of a kind in the namespace of an object that refer to it by a field of their spec: they mean
/// nothing without it. Returns whether there are any left, which have a cleanup of their own.
///
/// # Errors
/// As `kubernetes.list` and `kubernetes.delete`.
pub fn delete_dependents<S: KindSpec>(
    ctx: &Context,
    kind: &Gvk,
    field: &str,
    referred: &Object<S>,
) -> Result<bool, Error> {
    let dependents = list_dependents_json(ctx, kind, field, referred)?;
    let mut are_left = false;
    for object in &dependents {
        let NamespacedName { namespace, name } = metadata_of(object);
        if namespace != referred.namespace() {
            continue;
        }
        let metadata = &object["metadata"];
        if metadata["deletionTimestamp"].is_null() {
            let uid = metadata["uid"].as_str().unwrap_or_default();
            delete_object(ctx, &kind.clone().named(namespace, name), uid)?;
        }
        are_left = true;
    }
    Ok(are_left)
}

/// Lists by an index of the field, and as JSON, because a deletion must not fail when one of the objects is invalid.
fn list_dependents_json<S: KindSpec>(
    ctx: &Context,
    kind: &Gvk,
    field: &str,
    referred: &Object<S>,
) -> Result<Vec<Value>, Error> {
    let reference = format!("spec.{field}");
    let fields = format!("{reference}.name={}", referred.name());
    let selection = Selection {
        fields: Some(&fields),
        ..Selection::default()
    };
    let claims = CLAIM_FIELDS.map(|field| format!("status.{field}"));
    let [server, team, pipeline] = &claims;
    let parts = ["metadata", &reference, server, team, pipeline];
    let mut objects = ctx.list_json(kind, &selection, &parts)?;
    objects.retain(|object| resolve_json(object, field) == NamespacedName::of(referred));
    Ok(objects)
}

/// The object that a field of another object's spec refers to, both read as JSON.
#[must_use]
pub fn resolve_json<'a>(object: &'a Value, field: &str) -> NamespacedName<'a> {
    let reference = &object["spec"][field];
    let namespace = reference["namespace"]
        .as_str()
        .filter(|namespace| !namespace.is_empty());
    NamespacedName {
        namespace: namespace.unwrap_or(metadata_of(object).namespace),
        name: reference["name"].as_str().unwrap_or_default(),
    }
}

fn metadata_of(object: &Value) -> NamespacedName<'_> {
    let field = |name| object["metadata"][name].as_str().unwrap_or_default();
    NamespacedName {
        namespace: field("namespace"),
        name: field("name"),
    }
}
