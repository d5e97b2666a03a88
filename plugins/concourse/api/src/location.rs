//! Location of a pipeline in Concourse: its team and its Instance.

use ostler_sdk::{Context, Failure, ObjectRef, ResultExt, Upstream};

use crate::{
    Instance, NamespacedName, Pipeline, ReclaimPolicy, Team, TeamSpec, concourse_name, path::pipeline_path,
    response::pipeline_archived,
};

/// A pipeline and its team, found by following the references.
pub struct Location {
    pipeline: Pipeline,
    team: Team,
}

impl Location {
    /// Dereferences a Pipeline that has to be Ready. An archived pipeline is waited for without a request to
    /// Concourse.
    ///
    /// # Errors
    /// `PipelineNotReady`, `ChainNotReady` or `PipelineArchived`, until the object in the way changes.
    pub fn dereference(ctx: &Context, pipeline: NamespacedName) -> Result<Self, Failure> {
        let pipeline: Pipeline = ctx
            .require_ready(pipeline.namespace, pipeline.name)
            .reason("PipelineNotReady")?;
        if pipeline.spec.archived {
            return Err(pipeline_archived());
        }
        let team_ref = pipeline.spec.team_ref.resolve(pipeline.namespace());
        let team = ctx.get::<TeamSpec>(team_ref.namespace, team_ref.name);
        let Some(team) = team.reason("ChainNotReady")? else {
            let message = format!("Team {team_ref} does not exist.");
            return Err(Failure::wait("ChainNotReady", message));
        };
        Ok(Self { pipeline, team })
    }

    /// Dereferences a Pipeline for the cleanup of an object in it. None if there is nothing to undo: Pipeline or Team
    /// are gone, so that the location in Concourse is unknown, or the pipeline is being deleted from Concourse, too.
    ///
    /// # Errors
    /// As `kubernetes.get`.
    pub fn dereference_for_cleanup(
        ctx: &Context,
        pipeline: NamespacedName,
        what: &str,
    ) -> Result<Option<Self>, Failure> {
        let warn_orphaned = |parent: &str| {
            let note = format!("{what} stays as it is in Concourse: its {parent} is gone.");
            ctx.warn("Orphaned", &note);
        };
        let Some(pipeline): Option<Pipeline> = ctx.get(pipeline.namespace, pipeline.name)? else {
            warn_orphaned("Pipeline");
            return Ok(None);
        };
        let is_being_deleted = pipeline.metadata.deletion_timestamp.is_some();
        if is_being_deleted && pipeline.spec.reclaim_policy == ReclaimPolicy::Delete {
            return Ok(None);
        }
        let team_ref = pipeline.spec.team_ref.resolve(pipeline.namespace());
        let Some(team) = ctx.get(team_ref.namespace, team_ref.name)? else {
            warn_orphaned("Team");
            return Ok(None);
        };
        Ok(Some(Self { pipeline, team }))
    }

    /// Namespace and name of the Instance.
    #[must_use]
    pub fn instance(&self) -> NamespacedName<'_> {
        self.team.spec.instance_ref.resolve(self.team.namespace())
    }

    /// The Upstream of the Instance.
    #[must_use]
    pub fn upstream<'a>(&self, ctx: &'a Context) -> Upstream<'a> {
        let instance = self.instance();
        ctx.upstream_in(instance.namespace, instance.name)
    }

    /// Path of something below the pipeline in the REST API, as [`pipeline_path`].
    #[must_use]
    pub fn api_path(&self, rest: &str, query: &str) -> String {
        let vars = &self.pipeline.spec.instance_vars;
        let (team, pipeline) = (concourse_name(&self.team), concourse_name(&self.pipeline));
        pipeline_path(team, pipeline, vars, rest, query)
    }

    /// URL of a web page below the pipeline's.
    #[must_use]
    pub fn web_url(&self, rest: &str) -> Option<String> {
        let url = self.pipeline.status.web_url.as_deref()?;
        // The instance vars are the query, which comes last.
        let (page, query) = url.split_at(url.find('?').unwrap_or(url.len()));
        Some(format!("{page}{rest}{query}"))
    }
}

/// The Upstream object of an Instance, which has the same namespace and name.
#[must_use]
pub fn upstream_ref(instance: NamespacedName) -> ObjectRef {
    ostler_sdk::gvk("ostler.dev", "v1alpha1", "Upstream").named(instance.namespace, instance.name)
}

/// Checks that an Instance admits objects of a namespace.
///
/// # Errors
/// `NamespaceNotAllowed`, which is terminal.
pub fn check_namespace_allowed(instance: &Instance, namespace: &str) -> Result<(), Failure> {
    let allowed = &instance.spec.allowed_namespaces;
    if instance.namespace() == namespace || allowed.iter().any(|a| a == "*" || a == namespace) {
        return Ok(());
    }
    let message = format!(
        "Instance {} does not list the namespace {namespace} in spec.allowedNamespaces.",
        NamespacedName::of(instance)
    );
    Err(Failure::terminal("NamespaceNotAllowed", message))
}
