//! Reconciles `concourse-ci.org/v1alpha1` Instance: keeps the `Upstream` through which all kinds reach Concourse, and
//! probes the server's health.

mod probe;
mod upstream;

use concourse_api::{Instance, InstanceSpec, InstanceStatus, TeamSpec, list_dependents, suspended_outcome};
use ostler_sdk::{duration, prelude::*};
use probe::{Health, WorkerCounts};

const DEFAULT_PROBE_INTERVAL_MS: u64 = 300_000;
const MIN_PROBE_INTERVAL_MS: u64 = 30_000;
const MAX_PROBE_INTERVAL_MS: u64 = 3_600_000;

/// Key under which the digests of the credentials are cached.
const DIGESTS_KEY: &str = "secrets";

/// Reconciles Instances.
pub struct Instances;

impl Reconciler for Instances {
    type Spec = InstanceSpec;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/instance-finalizer");

    fn reconcile(&self, ctx: &Context, instance: &Instance) -> Result<Outcome, Failure> {
        if instance.spec.suspend {
            return Ok(suspended_outcome());
        }
        let upstream = upstream::build(instance)?;
        ctx.apply_owned(&upstream)?;
        let health = probe::probe(&ctx.upstream(instance.name()))?;
        update_status(ctx, instance, health)
    }

    fn cleanup(&self, ctx: &Context, instance: &Instance) -> Result<Outcome, Failure> {
        // The Upstream is deleted with the Instance, and the cleanup of Teams needs it.
        let teams = list_dependents(ctx, &TeamSpec::gvk(), "instanceRef", instance)?;
        if teams.is_empty() {
            return Ok(Outcome::await_change());
        }
        let message = format!("Waiting for Teams that use it: {}.", teams.join(", "));
        Err(Failure::wait("TeamsRemain", message))
    }
}

fn update_status(ctx: &Context, instance: &Instance, health: Health) -> Result<Outcome, Failure> {
    let spec = &instance.spec;
    let Health {
        info,
        user,
        workers,
        wall_message,
        team_count,
        pipeline_count,
    } = health;
    let login = user.login();
    let url = info.external_url.as_ref().unwrap_or(&spec.url);
    let last = &instance.status;
    // What could not be read keeps its last value; the conditions say so.
    let count = |read: fn(&WorkerCounts) -> i32, last: Option<i32>| workers.as_ref().map(read).or(last);
    let status = InstanceStatus {
        web_url: Some(url.trim_end_matches('/').to_owned()),
        version: Some(info.version),
        worker_version: info.worker_version,
        cluster_name: info.cluster_name,
        external_url: info.external_url,
        feature_flags: info.feature_flags,
        authenticated_user: Some(login.clone()),
        authenticated_admin: Some(user.is_admin),
        auth_secret_generation: Some(count_secret_changes(ctx, instance)?),
        team_count: team_count.or(last.team_count),
        pipeline_count: pipeline_count.or(last.pipeline_count),
        worker_count: count(|workers| workers.total, last.worker_count),
        running_workers: count(|workers| workers.running, last.running_workers),
        landing_workers: count(|workers| workers.landing, last.landing_workers),
        stalled_workers: count(|workers| workers.stalled, last.stalled_workers),
        wall_message: wall_message.clone().unwrap_or_else(|| last.wall_message.clone()),
    };
    let interval = duration(&spec.health_probe_interval)
        .unwrap_or(DEFAULT_PROBE_INTERVAL_MS)
        .clamp(MIN_PROBE_INTERVAL_MS, MAX_PROBE_INTERVAL_MS);
    let authenticated = format!("Logged in as {login}.");
    Ok(Outcome::poll(interval)
        .with(Condition::new_true("Ready", "Ready", "Concourse is reachable."))
        .with(Condition::new_true(
            "Authenticated",
            "Authenticated",
            authenticated,
        ))
        .with(probe::workers_condition(workers))
        .with(probe::wall_condition(wall_message))
        .status(&status))
}

/// Counts the changes of the credentials. The generation of a Secret does not serve: Kubernetes keeps it at 0.
fn count_secret_changes(ctx: &Context, instance: &Instance) -> Result<i64, Failure> {
    let auth = &instance.spec.auth;
    let password = auth.password.as_ref();
    let keys = [
        password.map(|password| &password.password_ref),
        password.and_then(|password| password.client_secret_ref.as_ref()),
        auth.token.as_ref().map(|token| &token.token_ref),
    ];
    let mut digests = String::new();
    for key in keys.into_iter().flatten() {
        let digest = ctx.secret_digest(&key.name, &key.key)?;
        digests += &digest.unwrap_or_default();
        digests.push(' ');
    }
    let cached = ctx.cache_get(DIGESTS_KEY);
    let is_current = cached.as_deref() == Some(digests.as_bytes());
    if !is_current {
        ctx.cache_set(DIGESTS_KEY, digests.as_bytes())?;
    }
    let count = instance.status.auth_secret_generation.unwrap_or_default().max(1);
    // An empty cache, as after a restart, does not count as a change.
    let has_changed = cached.is_some() && !is_current;
    Ok(count + i64::from(has_changed))
}

ostler_sdk::plugin!(Instances);
