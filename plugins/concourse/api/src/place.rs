//! Where the things of a pipeline are in Concourse.

use ostler_sdk::{Context, Failure, ObjectRef, Outcome, Resource, ResultExt, Upstream, serde_json::Value};

use crate::{InstanceSpec, PipelineSpec, Reference, TeamSpec, concourse::upstream, pipeline_path, target};

/// What stands for an archived pipeline, which lets nothing be changed.
const ARCHIVED: &str = "PipelineArchived";

/// A pipeline and its team, found by following the references.
pub struct Place {
    pipeline: Value,
    team: Value,
}

impl Place {
    /// The place of a Pipeline that is Ready, for what is reconciled in it. An archived one is waited for, and
    /// Concourse not asked meanwhile.
    ///
    /// # Errors
    /// What it waits for: `PipelineNotReady`, `ChainNotReady` or `PipelineArchived`.
    pub fn ready(ctx: &Context, pipeline: &ObjectRef) -> Result<Self, Failure> {
        let pipeline = ctx.require_ready_json(pipeline).reason("PipelineNotReady")?;
        if pipeline["spec"]["archived"] == true {
            return Err(archived());
        }
        let (namespace, name) = target(&pipeline, "teamRef");
        let team = ctx.get_json(&TeamSpec::reference(namespace, name));
        let Some(team) = team.reason("ChainNotReady")? else {
            let message = ["Team ", namespace, "/", name, " does not exist."].concat();
            return Err(Failure::wait("ChainNotReady", message));
        };
        Ok(Self { pipeline, team })
    }

    /// The place as far as it is still known, for what is being deleted; none when nobody knows any more where it
    /// is in Concourse, or when it goes with its pipeline, so that there is nothing to undo.
    ///
    /// # Errors
    /// As `kubernetes.get`.
    pub fn last(ctx: &Context, pipeline: &ObjectRef, what: &str) -> Result<Option<Self>, Failure> {
        let orphaned = |parent: &str| {
            let note = [what, " stays as it is in Concourse: its ", parent, " is gone."].concat();
            ctx.warn("Orphaned", &note);
            Ok(None)
        };
        let Some(pipeline) = ctx.get_json(pipeline)? else {
            return orphaned("Pipeline");
        };
        let goes = !pipeline["metadata"]["deletionTimestamp"].is_null();
        if goes && pipeline["spec"]["reclaimPolicy"] != "Orphan" {
            return Ok(None);
        }
        let (namespace, name) = target(&pipeline, "teamRef");
        match ctx.get_json(&TeamSpec::reference(namespace, name))? {
            Some(team) => Ok(Some(Self { pipeline, team })),
            None => orphaned("Team"),
        }
    }

    /// Namespace and name of the Instance.
    #[must_use]
    pub fn instance(&self) -> (&str, &str) {
        target(&self.team, "instanceRef")
    }

    /// Concourse.
    #[must_use]
    pub fn concourse<'a>(&self, ctx: &'a Context) -> Upstream<'a> {
        let (namespace, name) = self.instance();
        ctx.upstream_in(namespace, name)
    }

    /// API path of what is below the pipeline, as [`pipeline_path`].
    #[must_use]
    pub fn path(&self, rest: &str, query: &str) -> String {
        pipeline_path(&self.team, &self.pipeline, rest, query)
    }

    /// URL of a page below the pipeline's.
    #[must_use]
    pub fn page(&self, rest: &str) -> Option<String> {
        let page = self.pipeline["status"]["webURL"].as_str()?;
        // Instance vars come last.
        let (page, vars) = page.split_at(page.find('?').unwrap_or(page.len()));
        Some([page, rest, vars].concat())
    }

    /// What a refusal of a change means: an archived pipeline is waited for.
    #[must_use]
    pub fn refused(response: &ostler_sdk::Response, what: &str, reason: &str) -> Failure {
        match response.status() {
            409 => archived(),
            _ => crate::refused(response, what, reason),
        }
    }
}

impl Reference {
    /// The Pipeline it names, seen from an object in `own`.
    #[must_use]
    pub fn pipeline(&self, own: &str) -> ObjectRef {
        PipelineSpec::reference(self.namespace_or(own), &self.name)
    }
}

fn archived() -> Failure {
    Failure::wait(
        ARCHIVED,
        "The pipeline is archived: nothing in it can be changed.",
    )
}

/// Parks what is in a namespace that an Instance does not let in.
///
/// # Errors
/// `NamespaceNotAllowed`.
pub fn namespace_allowed(instance: &Value, at: (&str, &str), namespace: &str) -> Result<(), Failure> {
    let allowed = instance["spec"]["allowedNamespaces"].as_array();
    let listed = |a: &Value| a == "*" || a == namespace;
    if at.0 == namespace || allowed.is_some_and(|all| all.iter().any(listed)) {
        return Ok(());
    }
    let message = [
        "Instance ",
        at.0,
        "/",
        at.1,
        " does not list the namespace ",
        namespace,
        " in allowedNamespaces.",
    ];
    Err(Failure::terminal("NamespaceNotAllowed", message.concat()))
}

/// What becomes of a cleanup whose Instance cannot be reached because something is `missing`: what it would undo is
/// left behind with a warning once Instance or Upstream are gone, since waiting would last for ever.
///
/// # Errors
/// While it may come back.
pub fn out_of_reach(
    ctx: &Context,
    (namespace, instance): (&str, &str),
    missing: &str,
    what: &str,
) -> Result<Outcome, Failure> {
    let object = ctx.get_json(&InstanceSpec::reference(namespace, instance))?;
    let in_use = object.is_some_and(|i| i["metadata"]["deletionTimestamp"].is_null());
    // With both there it is a Secret that is missing, which may come back.
    if in_use && ctx.get_json(&upstream(namespace, instance))?.is_some() {
        let message = ["Not found: ", missing].concat();
        return Err(Failure::wait("DeleteFailed", message));
    }
    ctx.warn(
        "Orphaned",
        &[what, " stays in Concourse: its Instance is gone."].concat(),
    );
    Ok(Outcome::await_change())
}
