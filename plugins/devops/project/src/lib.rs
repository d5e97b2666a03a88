//! Reconciles `devops.ostler.dev/v1alpha1` DevOpsProject: applies the four settings of a project and follows them.
//!
//! Registry and repository come first, since checking them is what validates the project: Argo CD and Jenkins are not
//! touched before both are good.

mod children;

use devops_api::{
    DevOpsProject, DevOpsProjectSpec, DevOpsProjectStatus, GitCredentials, JenkinsSettingSpec,
    suspended_outcome,
};
use ostler_sdk::{ConditionStatus, DeleteOptions, Preconditions, prelude::*, serde_json::Value};

/// Limit of the length of a project's name: with that of an environment it is the name of an application.
const MAX_NAME_LENGTH: usize = 22;

/// Reconciles DevOpsProjects.
pub struct Projects;

impl Reconciler for Projects {
    type Spec = DevOpsProjectSpec;

    fn reconcile(&self, ctx: &Context, project: &DevOpsProject) -> Result<Outcome, Failure> {
        validate(project)?;
        let mut children = Children {
            ctx,
            project,
            conditions: Vec::new(),
            first: None,
        };
        children.apply("RegistryReady", &children::registry(project))?;
        children.apply("RepositoryReady", &children::git(project))?;
        let commit = read_commit(ctx, project)?;
        if children.first.is_some() && !project.spec.suspend {
            children.report_waiting("ArgoReady");
            children.report_waiting("JenkinsReady");
            return Err(children.failure());
        }
        children.apply("ArgoReady", &children::argo(project))?;
        match children::jenkins(project) {
            Some(jenkins) => children.apply("JenkinsReady", &jenkins)?,
            None => children.delete_jenkins()?,
        }
        if project.spec.suspend {
            return Ok(suspended_outcome());
        }
        if children.first.is_some() {
            return Err(children.failure());
        }
        let ready = Condition::new_true("Ready", "Ready", "All settings of the project are Ready.");
        let mut outcome = Outcome::await_change()
            .with(ready)
            .status(&DevOpsProjectStatus { commit });
        outcome.conditions.extend(children.conditions);
        Ok(outcome)
    }
}

fn validate(project: &DevOpsProject) -> Result<(), Failure> {
    let invalid = |message: String| Err(Failure::terminal("InvalidSpec", message));
    let name = project.name();
    if name.len() > MAX_NAME_LENGTH || name.contains('.') {
        let rule = format!("at most {MAX_NAME_LENGTH} characters and no dots");
        return invalid(format!(
            "metadata.name has to have {rule}: it is part of the names of applications."
        ));
    }
    let needs_jenkins = project
        .spec
        .environments
        .iter()
        .find(|environment| environment.pipeline.is_some());
    if let (Some(environment), None) = (needs_jenkins, &project.spec.jenkins) {
        return invalid(format!(
            "spec.environments: the pipeline of {} needs spec.jenkins.",
            environment.name
        ));
    }
    Ok(())
}

/// The commit of the repository when it was validated last.
fn read_commit(ctx: &Context, project: &DevOpsProject) -> Result<Option<String>, Failure> {
    let git: Option<GitCredentials> = ctx.get(project.namespace(), project.name())?;
    Ok(git.and_then(|git| git.status.head_commit))
}

/// The settings of a project, as far as they have been applied.
struct Children<'a> {
    ctx: &'a Context<'a>,
    project: &'a DevOpsProject,
    conditions: Vec<Condition>,
    /// The condition of the first setting that is not Ready.
    first: Option<Condition>,
}

impl Children<'_> {
    /// Applies a setting and adds its condition. A setting of the same name that another user has made stays as it is.
    fn apply<S: KindSpec>(&mut self, condition: &str, spec: &S) -> Result<(), Failure> {
        let (namespace, name) = (self.project.namespace(), self.project.name());
        let reference = S::reference(namespace, name);
        if let Some(found) = self.ctx.get_metadata(&reference)?
            && !is_owned(&found, self.project)
        {
            let message = format!(
                "The {} {name} exists and is not this project's: delete it, or give the project another name.",
                S::KIND
            );
            let failure = Failure::wait("SettingExists", message.clone());
            return Err(failure.with(Condition::new_false(condition, "SettingExists", message)));
        }
        self.ctx.apply_owned(&json!({
            "apiVersion": S::gvk().api_version(),
            "kind": S::KIND,
            "metadata": { "name": name, "namespace": namespace },
            "spec": spec,
        }))?;
        let ready = match self
            .ctx
            .require_condition(&reference, "Ready", ConditionStatus::True)
        {
            Ok(_) => Condition::new_true(condition, "Ready", format!("The {} is Ready.", S::KIND)),
            Err(Error::NotReady(other)) if !other.reason.is_empty() => {
                Condition::new_false(condition, &other.reason, other.message)
            }
            Err(Error::NotReady(_)) => Condition::new_unknown(
                condition,
                "Pending",
                format!("The {} has no result yet.", S::KIND),
            ),
            Err(error) => return Err(error.into()),
        };
        if ready.status != ConditionStatus::True && self.first.is_none() {
            self.first = Some(ready.clone());
        }
        self.conditions.push(ready);
        Ok(())
    }

    /// Adds the condition of a setting that waits for registry and repository.
    fn report_waiting(&mut self, condition: &str) {
        let message = "Waiting for registry and repository.";
        self.conditions
            .push(Condition::new_unknown(condition, "Pending", message));
    }

    /// Deletes the JenkinsSetting after `spec.jenkins` was removed.
    fn delete_jenkins(&mut self) -> Result<(), Failure> {
        let reference = JenkinsSettingSpec::reference(self.project.namespace(), self.project.name());
        if let Some(found) = self.ctx.get_metadata(&reference)?
            && is_owned(&found, self.project)
        {
            let uid = found["metadata"]["uid"].as_str().unwrap_or_default();
            let options = DeleteOptions {
                preconditions: Preconditions::uid(uid),
                ..DeleteOptions::default()
            };
            self.ctx.delete_with(&reference, &options)?;
        }
        Ok(())
    }

    /// The failure of a project whose settings are not all Ready; it is reconciled again when one of them changes.
    fn failure(self) -> Failure {
        let (reason, message) = self
            .first
            .map_or_else(Default::default, |first| (first.type_, first.message));
        // `RepositoryReady` becomes `RepositoryNotReady`.
        let reason = [reason.trim_end_matches("Ready"), "NotReady"].concat();
        let mut failure = Failure::wait(&reason, message);
        failure.conditions = self.conditions;
        failure
    }
}

fn is_owned(object: &Value, project: &DevOpsProject) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners
        .into_iter()
        .flatten()
        .any(|owner| owner["uid"] == *project.metadata.uid)
}

ostler_sdk::plugin!(Projects);
