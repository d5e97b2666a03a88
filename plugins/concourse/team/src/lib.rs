//! Reconciles `concourse-ci.org/v1alpha1` Team.

use concourse_api::{
    InstanceSpec, PipelineSpec, ReclaimPolicy, Role, Team, TeamSpec, TeamStatus, config_warning, delete,
    escape, namespace_allowed, refused, remaining, suspended, warnings,
};
use ostler_sdk::{
    Upstream,
    prelude::*,
    rfc3339,
    serde_json::{Map, Value},
};

const POLL: u64 = 300_000;

/// Reconciles Teams.
pub struct Teams;

/// Who belongs to which role, as Concourse writes it.
type Auth = Map<String, Value>;

impl Reconciler for Teams {
    type Spec = TeamSpec;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/team-finalizer");

    fn reconcile(&self, ctx: &Context, team: &Team) -> Result<Outcome, Failure> {
        if team.spec.suspend {
            return Ok(suspended());
        }
        let (namespace, name) = instance_of(team);
        let instance = ctx
            .require_ready_json(&InstanceSpec::reference(namespace, name))
            .reason("InstanceNotReady")?;
        namespace_allowed(&instance, (namespace, name), team.namespace())?;
        let wanted = wanted(&team.spec)?;

        let concourse = ctx.upstream_in(namespace, name);
        let path = path(team_name(team));
        let mut found = read(&concourse, &path)?;
        if found.is_none() && rename(ctx, &concourse, team)? {
            found = read(&concourse, &path)?;
        }
        let mut status = TeamStatus {
            team_id: found.as_ref().and_then(id),
            resolved_name: Some(team_name(team).to_owned()),
            web_url: instance["status"]["webURL"]
                .as_str()
                .map(|url| [url, "/teams/", &escape(team_name(team))].concat()),
            ..team.status.clone()
        };
        if found.is_none_or(|found| normal(&found["auth"]) != wanted) {
            let body = json!({ "auth": wanted });
            let response = concourse.put(&path).json(&body).send().reason(FAILED)?;
            if !response.is_success() {
                return Err(refused(&response, "write the team", FAILED));
            }
            let answer = response.value()?;
            status.team_id = id(&answer["team"]);
            status.last_applied = Some(rfc3339(ctx.now() / 1000));
            status.warnings = warnings(&answer);
        }
        Ok(Outcome::poll(POLL)
            .with(Condition::new_true("Ready", "Ready", "The team is as wanted."))
            .with(config_warning(&status.warnings))
            .status(&status))
    }

    fn cleanup(&self, ctx: &Context, team: &Team) -> Result<Outcome, Failure> {
        // The one that was made, should the spec have another name by now.
        let name = match (team.status.team_id, &team.status.resolved_name) {
            (Some(_), Some(made)) => made,
            _ => team_name(team),
        };
        if team.spec.reclaim_policy == ReclaimPolicy::Orphan {
            ctx.event("Orphaned", "The team stays in Concourse, as reclaimPolicy says.");
            return Ok(Outcome::await_change());
        }
        if name == "main" && !team.spec.allow_destroy {
            let message = "The team main is not deleted: set spec.allowDestroy to true to delete \
                           it, or spec.reclaimPolicy to Orphan to keep it.";
            return Err(Failure::terminal("DeleteRefused", message));
        }
        let pipelines = remaining(ctx, &PipelineSpec::gvk(), "teamRef", &team.metadata)?;
        if !pipelines.is_empty() {
            let message = format!("Waiting for Pipelines that use it: {}.", pipelines.join(", "));
            return Err(Failure::wait("PipelinesRemain", message));
        }
        let (namespace, instance) = instance_of(team);
        let what = ["team ", name].concat();
        delete(ctx, namespace, instance, &path(name), &what)
    }
}

fn instance_of(team: &Team) -> (&str, &str) {
    let reference = &team.spec.instance_ref;
    (reference.namespace_or(team.namespace()), &reference.name)
}

fn team_name(team: &Team) -> &str {
    team.spec.team_name.as_deref().unwrap_or(team.name())
}

fn path(name: &str) -> String {
    ["/api/v1/teams/", &escape(name)].concat()
}

const FAILED: &str = "CreateOrUpdateFailed";

/// A team as Concourse shows it, if it is there.
fn read(concourse: &Upstream, path: &str) -> Result<Option<Value>, Failure> {
    let response = concourse.get(path).send().reason(FAILED)?;
    match response.status() {
        200 => Ok(Some(response.value()?)),
        404 => Ok(None),
        _ => Err(refused(&response, "read the team", FAILED)),
    }
}

/// `teamName` may still be given where there was none: then the team that was made under the object's name is
/// renamed, with its pipelines. Gives whether it was.
fn rename(ctx: &Context, concourse: &Upstream, team: &Team) -> Result<bool, Failure> {
    let (Some(number), Some(before)) = (team.status.team_id, &team.status.resolved_name) else {
        return Ok(false);
    };
    let name = team_name(team);
    let is_ours = |team: &Value| id(team) == Some(number);
    if before == name || !read(concourse, &path(before))?.as_ref().is_some_and(is_ours) {
        return Ok(false);
    }
    let request = concourse.put([&path(before), "/rename"].concat());
    let response = request
        .json(&json!({ "name": name }))
        .send()
        .reason("RenameFailed")?;
    if !response.is_success() {
        return Err(refused(&response, "rename the team", "RenameFailed"));
    }
    ctx.event("Renamed", &["Renamed from ", before, " to ", name, "."].concat());
    Ok(true)
}

/// The roles as Concourse knows them. It answers a team without members, or a
/// role without any, with a 400 that doesn't say why.
fn wanted(spec: &TeamSpec) -> Result<Auth, Failure> {
    let mut auth = json!({});
    for role in &spec.roles {
        let name = match role.role {
            Role::Owner => "owner",
            Role::Member => "member",
            Role::PipelineOperator => "pipeline-operator",
            Role::Viewer => "viewer",
        };
        let role_of = &mut auth[name];
        for (list, members) in [("users", &role.users), ("groups", &role.groups)] {
            let before = texts(&role_of[list]);
            role_of[list] = before.chain(members.iter().map(String::as_str)).collect();
        }
    }
    let auth = normal(&auth);
    if auth.is_empty() {
        let message = "spec.roles is empty: a team needs at least one role with users or groups.";
        return Err(Failure::terminal("InvalidSpec", message));
    }
    let empty = |members: &Value| {
        texts(&members["users"])
            .chain(texts(&members["groups"]))
            .next()
            .is_none()
    };
    if let Some((role, _)) = auth.iter().find(|(_, members)| empty(members)) {
        let message = format!("The role {role} in spec.roles has neither users nor groups.");
        return Err(Failure::terminal("InvalidSpec", message));
    }
    Ok(auth)
}

/// Order and repetition mean nothing, and where Concourse has none it writes `null`.
fn normal(auth: &Value) -> Auth {
    let sorted = |members: &Value| {
        let mut names: Vec<_> = texts(members).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().collect::<Value>()
    };
    let roles = auth.as_object().into_iter().flatten();
    roles
        .map(|(role, members)| {
            let users = sorted(&members["users"]);
            let groups = sorted(&members["groups"]);
            (role.clone(), json!({ "users": users, "groups": groups }))
        })
        .collect()
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(Value::as_str)
}

fn id(team: &Value) -> Option<i32> {
    team["id"].as_i64()?.try_into().ok()
}

ostler_sdk::plugin!(Teams);
