//! Reconciles `concourse-ci.org/v1alpha1` Team: its roles and its name.

use concourse_api::{
    ConcourseOperation, Instance, InstanceSpec, NamespacedName, PipelineSpec, ReclaimPolicy, RoleName, Team,
    TeamSpec, TeamStatus, check_namespace_allowed, concourse_name, concourse_status,
    config_warning_condition, delete_claimed, encode_segment, find_server_url, is_on_server, list_dependents,
    read_warnings, rest, server_url, suspended_outcome, team_path,
};
use ostler_sdk::{Upstream, prelude::*, rfc3339};

const POLL_INTERVAL_MS: u64 = 300_000;

const READ_TEAM: ConcourseOperation = ConcourseOperation::new("read the team", "CreateOrUpdateFailed");
const WRITE_TEAM: ConcourseOperation = ConcourseOperation::new("write the team", "CreateOrUpdateFailed");
const RENAME_TEAM: ConcourseOperation = ConcourseOperation::new("rename the team", "RenameFailed");

/// Reconciles Teams.
pub struct Teams;

impl Reconciler for Teams {
    type Spec = TeamSpec;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/team-finalizer");

    fn reconcile(&self, ctx: &Context, team: &Team) -> Result<Outcome, Failure> {
        if team.spec.suspend {
            return Ok(suspended_outcome());
        }
        let instance = dereference(ctx, team)?;
        check_namespace_allowed(&instance, team.namespace())?;
        let auth = build_auth(&team.spec)?;
        let applied = apply(ctx, team, server_url(&instance.spec.url), &auth)?;
        Ok(update_status(ctx, team, &instance, applied))
    }

    fn cleanup(&self, ctx: &Context, team: &Team) -> Result<Outcome, Failure> {
        let is_orphaned = team.spec.reclaim_policy == ReclaimPolicy::Orphan;
        let names = claimed_names(team);
        let is_main = names.contains(&"main");
        if is_main && team.status.is_claimed() && !is_orphaned && !team.spec.allow_destroy {
            let message = "The team main is not deleted: set spec.allowDestroy to true to delete \
                           it, or spec.reclaimPolicy to Orphan to keep it.";
            return Err(Failure::terminal("DeleteRefused", message));
        }
        // Also of an orphaned team: without this object its Pipelines could not find theirs in Concourse.
        let pipelines = list_dependents(ctx, &PipelineSpec::gvk(), "teamRef", team)?;
        if !pipelines.is_empty() {
            let message = format!("Waiting for Pipelines that use it: {}.", pipelines.join(", "));
            return Err(Failure::wait("PipelinesRemain", message));
        }
        if !team.status.is_claimed() {
            return Ok(Outcome::await_change());
        }
        if is_orphaned {
            let note = "The team stays in Concourse: spec.reclaimPolicy is Orphan.";
            ctx.event("Orphaned", note);
            return Ok(Outcome::await_change());
        }
        delete(ctx, team, &names)
    }
}

/// The names that the claimed team may have in Concourse: the recorded one first, and the one to which a rename that
/// was not recorded any more has changed it.
fn claimed_names(team: &Team) -> Vec<&str> {
    let recorded = team.status.resolved_name.as_deref();
    let desired = concourse_name(team);
    let mut names = vec![recorded.filter(|name| !name.is_empty()).unwrap_or(desired)];
    if names[0] != desired {
        names.push(desired);
    }
    names
}

fn delete(ctx: &Context, team: &Team, names: &[&str]) -> Result<Outcome, Failure> {
    let instance = instance_of(team);
    let what = format!("team {}", names[0]);
    let server = find_server_url(ctx, instance)?;
    if !is_on_server(
        ctx,
        server.as_deref(),
        team.status.claimed_server.as_deref(),
        &what,
    ) {
        return Ok(Outcome::await_change());
    }
    let paths: Vec<String> = names.iter().map(|name| team_path(name)).collect();
    let concourse = upstream_of(ctx, team);
    delete_claimed(ctx, instance, &concourse, &paths, team.status.team_id, &what)
}

fn instance_of(team: &Team) -> NamespacedName<'_> {
    team.spec.instance_ref.resolve(team.namespace())
}

fn upstream_of<'a>(ctx: &'a Context, team: &Team) -> Upstream<'a> {
    let instance = instance_of(team);
    ctx.upstream_in(instance.namespace, instance.name)
}

/// Dereferences the Instance, which has to be Ready.
fn dereference(ctx: &Context, team: &Team) -> Result<Instance, Failure> {
    let instance = instance_of(team);
    ctx.require_ready::<InstanceSpec>(instance.namespace, instance.name)
        .reason("InstanceNotReady")
}

/// Validates the roles and builds the members by role. Concourse rejects a team without members, and a role without
/// any, with an HTTP 400 that gives no cause.
fn build_auth(spec: &TeamSpec) -> Result<rest::TeamAuth, Failure> {
    let mut auth = rest::TeamAuth::new();
    for entry in &spec.roles {
        let members = auth.entry(role_name(entry.role).to_owned()).or_default();
        members.users.extend(entry.users.iter().cloned());
        members.groups.extend(entry.groups.iter().cloned());
    }
    if auth.is_empty() {
        let message = "spec.roles is empty: a team needs at least one role with users or groups.";
        return Err(Failure::terminal("InvalidSpec", message));
    }
    for (role, members) in &auth {
        if members.users.is_empty() && members.groups.is_empty() {
            let message = format!("The role {role} in spec.roles has neither users nor groups.");
            return Err(Failure::terminal("InvalidSpec", message));
        }
    }
    Ok(auth)
}

fn role_name(role: RoleName) -> &'static str {
    match role {
        RoleName::Owner => "owner",
        RoleName::Member => "member",
        RoleName::PipelineOperator => "pipeline-operator",
        RoleName::Viewer => "viewer",
    }
}

/// Result of [`apply`].
enum Applied {
    /// Concourse already had the team with these members.
    Unchanged { team_id: Option<i32> },
    /// The team was written.
    Written {
        team_id: Option<i32>,
        warnings: Vec<String>,
    },
}

/// Creates, renames or updates the team, unless Concourse already has it with these members.
fn apply(ctx: &Context, team: &Team, server: &str, auth: &rest::TeamAuth) -> Result<Applied, Failure> {
    let concourse = upstream_of(ctx, team);
    let name = concourse_name(team);
    let claimed_server = team.status.claimed_server.as_deref();
    let is_here = is_on_server(ctx, Some(server), claimed_server, &format!("team {name}"));
    let is_claimed = is_here && team.status.is_claimed();
    let mut found = read(&concourse, name)?;
    if found.is_none() && is_claimed && rename(ctx, &concourse, team)? {
        found = read(&concourse, name)?;
    }
    if let Some(found) = &found
        && found.auth == *auth
    {
        return Ok(Applied::Unchanged { team_id: found.id });
    }
    // A team that exists is claimed when it has been written: until then the object must not delete it.
    if !is_claimed && found.is_none() {
        let claim = json!({ "claimedServer": server, "resolvedName": name, "teamID": null });
        ctx.checkpoint(&claim).reason(WRITE_TEAM.reason())?;
    }
    let request = concourse.put(team_path(name)).json(&json!({ "auth": auth }));
    let response = request.send().reason(WRITE_TEAM.reason())?;
    match concourse_status(&response) {
        Some(200..=299) => {}
        // Nothing was written, so there is no claim either.
        Some(400..=499) if !is_claimed => return Err(WRITE_TEAM.failure(&response).status(&team.status)),
        _ => return Err(WRITE_TEAM.failure(&response)),
    }
    let body = response.value()?;
    Ok(Applied::Written {
        team_id: body["team"]["id"].as_i64().and_then(|id| i32::try_from(id).ok()),
        warnings: read_warnings(&body),
    })
}

/// The team as Concourse shows it; none if it does not exist.
fn read(concourse: &Upstream, name: &str) -> Result<Option<rest::TeamResponse>, Failure> {
    READ_TEAM.read_optional(concourse.get(team_path(name)).send())
}

/// Renames the team that was created under the object's name, with its pipelines, after `spec.teamName` was set.
/// Returns whether it was renamed.
fn rename(ctx: &Context, concourse: &Upstream, team: &Team) -> Result<bool, Failure> {
    let Some(before) = &team.status.resolved_name else {
        return Ok(false);
    };
    let name = concourse_name(team);
    if before == name {
        return Ok(false);
    }
    // Without an ID, the claimed team is the one of the former name: there was none before the claim.
    let id = team.status.team_id;
    let is_claimed_one = |found: rest::TeamResponse| id.is_none() || found.id == id;
    if !read(concourse, before)?.is_some_and(is_claimed_one) {
        return Ok(false);
    }
    let request = concourse.put(format!("{}/rename", team_path(before)));
    RENAME_TEAM.check(request.json(&json!({ "name": name })).send())?;
    ctx.event("Renamed", &format!("Renamed from {before} to {name}."));
    Ok(true)
}

fn update_status(ctx: &Context, team: &Team, instance: &Instance, applied: Applied) -> Outcome {
    let name = concourse_name(team);
    let web_url = instance.status.web_url.as_ref();
    let mut status = TeamStatus {
        claimed_server: Some(server_url(&instance.spec.url).to_owned()),
        resolved_name: Some(name.to_owned()),
        web_url: web_url.map(|url| format!("{url}/teams/{}", encode_segment(name))),
        ..team.status.clone()
    };
    match applied {
        Applied::Unchanged { team_id } => status.team_id = team_id,
        Applied::Written { team_id, warnings } => {
            status.team_id = team_id;
            status.last_applied = Some(rfc3339(ctx.now() / 1000));
            status.warnings = warnings;
        }
    }
    Outcome::poll(POLL_INTERVAL_MS)
        .with(Condition::new_true(
            "Ready",
            "Ready",
            "The team matches its spec.",
        ))
        .with(config_warning_condition(&status.warnings))
        .status(&status)
}

ostler_sdk::plugin!(Teams);
