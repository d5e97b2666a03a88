//! Claims: the labels by which an ArgoSetting recognizes what it has written in Argo CD's namespace. What has no such label
//! belongs to another user, and is neither changed nor deleted.

use devops_api::{ArgoSetting, OWNER_ANNOTATION, OWNER_LABEL};
use ostler_sdk::{ApplyOptions, Gvk, ObjectRef, Selection, prelude::*, serde_json::Value};

use crate::{MANAGED_BY, application_kind, project_kind};

/// The objects that a setting has written.
pub struct Claimed {
    /// `AppProject`s.
    pub projects: Vec<Value>,
    /// `Application`s.
    pub applications: Vec<Value>,
}

impl Claimed {
    /// Lists the objects with the setting's label, whichever state its status is in.
    pub fn list(ctx: &Context, setting: &ArgoSetting) -> Result<Self, Failure> {
        Ok(Self {
            projects: list(ctx, setting, &project_kind())?,
            applications: list(ctx, setting, &application_kind())?,
        })
    }

    fn find(&self, object: &Value) -> Option<&Value> {
        let all = if object["kind"] == "AppProject" {
            &self.projects
        } else {
            &self.applications
        };
        all.iter()
            .find(|claimed| claimed["metadata"]["name"] == object["metadata"]["name"])
    }
}

fn list(ctx: &Context, setting: &ArgoSetting, kind: &Gvk) -> Result<Vec<Value>, Failure> {
    let labels = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    let selection = Selection {
        namespace: Some(&setting.spec.argo_namespace),
        labels: Some(&labels),
        ..Selection::default()
    };
    let mut objects = ctx.list_json(kind, &selection, &[]).reason("ListFailed")?;
    objects.retain(|object| object["metadata"]["labels"][OWNER_LABEL] == *setting.metadata.uid);
    Ok(objects)
}

/// Applies an object, unless another user has one of its name. Returns what Argo CD has made of it.
pub fn apply(ctx: &Context, desired: &Value, claimed: &Claimed) -> Result<Value, Failure> {
    let mut force = true;
    match claimed.find(desired) {
        Some(live) if !live["metadata"]["deletionTimestamp"].is_null() => {
            let message = format!(
                "Waiting for the deletion of {}, to create it anew.",
                describe(desired)
            );
            return Err(Failure::wait("DeletionPending", message));
        }
        Some(_) => {}
        None => {
            if let Some(live) = ctx.get_json(&reference_of(desired))? {
                return Err(foreign(&live));
            }
            // One that appears meanwhile is not overruled.
            force = false;
        }
    }
    let options = ApplyOptions {
        force,
        ..ApplyOptions::default()
    };
    let written = ctx.apply_with(desired, &options).reason("ApplyFailed")?;
    Ok(written.json()?)
}

fn foreign(live: &Value) -> Failure {
    let owner = live["metadata"]["annotations"][OWNER_ANNOTATION].as_str();
    let owner = owner.map_or_else(
        || "another user".to_owned(),
        |name| format!("the ArgoSetting {name}"),
    );
    let message = format!(
        "{} exists already and belongs to {owner}: choose another name, or delete it.",
        describe(live)
    );
    Failure::terminal("NotClaimed", message)
}

fn describe(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    format!("{kind} {namespace}/{}", name_of(object))
}

/// The name of an object that was read as JSON.
pub fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The reference of an AppProject or Application that was read as JSON.
pub fn reference_of(object: &Value) -> ObjectRef {
    let kind = if object["kind"] == "AppProject" {
        project_kind()
    } else {
        application_kind()
    };
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    kind.named(namespace, &name_of(object))
}
