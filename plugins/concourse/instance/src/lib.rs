//! Reconciles `concourse-ci.org/v1alpha1` Instance: keeps the `Upstream` that
//! Teams and Pipelines talk through, and looks at the server's health.

use concourse_api::{
    Instance, InstanceSpec, InstanceStatus, SecretKey, TeamSpec, first_line, remaining, suspended, upstream,
};
use ostler_sdk::{Response, duration, prelude::*, serde_json::Value};

/// Reconciles Instances.
pub struct Instances;

impl Reconciler for Instances {
    type Spec = InstanceSpec;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/instance-finalizer");

    fn reconcile(&self, ctx: &Context, instance: &Instance) -> Result<Outcome, Failure> {
        if instance.spec.suspend {
            return Ok(suspended());
        }
        ctx.apply_owned(&desired_upstream(instance)?)?;
        probe(ctx, instance)
    }

    fn cleanup(&self, ctx: &Context, instance: &Instance) -> Result<Outcome, Failure> {
        // The Upstream goes with the Instance, and Teams need it to be deleted.
        let teams = remaining(ctx, &TeamSpec::gvk(), "instanceRef", &instance.metadata)?;
        if teams.is_empty() {
            return Ok(Outcome::await_change());
        }
        let message = format!("Waiting for Teams that use it: {}.", teams.join(", "));
        Err(Failure::wait("TeamsRemain", message))
    }
}

fn desired_upstream(instance: &Instance) -> Result<Value, Failure> {
    let spec = &instance.spec;
    let secret = |key: &SecretKey| json!({ "name": key.name, "key": key.key });
    let auth = match (&spec.auth.password, &spec.auth.token) {
        (Some(password), None) => {
            let mut grant = json!({
                "tokenPath": "/sky/issuer/token",
                "clientId": password.client_id.as_deref().unwrap_or("fly"),
                "username": password.username,
                "passwordSecretRef": secret(&password.password_ref),
                "scopes": ["openid", "profile", "email", "federated:id", "groups"],
            });
            match &password.client_secret_ref {
                Some(key) => grant["clientSecretRef"] = secret(key),
                // Public: the client of Concourse's own command line.
                None => grant["clientSecret"] = "Zmx5".into(),
            }
            json!({ "oauth2Password": grant })
        }
        (None, Some(token)) => json!({ "bearer": { "tokenSecretRef": secret(&token.token_ref) } }),
        _ => {
            let message = "Exactly one of auth.password and auth.token must be set.";
            return Err(
                Failure::terminal("InvalidSpec", message).with(Condition::new_false(
                    "Authenticated",
                    "InvalidSpec",
                    message,
                )),
            );
        }
    };
    let mut wanted = json!({
        "url": spec.url.trim_end_matches('/'),
        "auth": auth,
        "allowedNamespaces": spec.allowed_namespaces,
        "timeoutSeconds": 30,
    });
    if let Some(tls) = &spec.tls {
        let mut settings = json!({});
        if let Some(key) = &tls.ca_ref {
            settings["caSecretRef"] = secret(key);
        }
        if tls.insecure_skip_verify {
            settings["insecureSkipVerify"] = true.into();
        }
        wanted["tls"] = settings;
    }
    let name = upstream(instance.namespace(), instance.name());
    Ok(json!({
        "apiVersion": name.gvk.api_version(),
        "kind": name.gvk.kind,
        "metadata": { "name": name.name, "namespace": name.namespace },
        "spec": wanted,
    }))
}

fn probe(ctx: &Context, instance: &Instance) -> Result<Outcome, Failure> {
    let concourse = ctx.upstream(instance.name());
    let [info, user] = concourse.send_all([concourse.get("/api/v1/info"), concourse.get("/api/v1/user")]);
    // `info` answers without a login as well, so that only `user` proves one.
    let info = answer(info, "version")?;
    let user = answer(user, "is_admin")?;
    let [workers, wall, teams, pipelines] = concourse.send_all([
        concourse.get("/api/v1/workers"),
        concourse.get("/api/v1/wall"),
        concourse.get("/api/v1/teams"),
        concourse.get("/api/v1/pipelines"),
    ]);

    let secrets = secret_generation(ctx, instance)?;
    let login = text(&user, "user_name").or_else(|| text(&user, "name"));
    let login = login.unwrap_or_default();
    let external_url = text(&info, "external_url");
    let flags = info["feature_flags"].as_object().into_iter().flatten();
    let mut status = InstanceStatus {
        web_url: Some(
            external_url
                .as_deref()
                .unwrap_or(&instance.spec.url)
                .trim_end_matches('/')
                .to_owned(),
        ),
        version: text(&info, "version"),
        worker_version: text(&info, "worker_version"),
        cluster_name: text(&info, "cluster_name"),
        external_url,
        feature_flags: flags
            .filter_map(|(name, on)| Some((name.clone(), on.as_bool()?)))
            .collect(),
        authenticated_user: Some(login.clone()),
        authenticated_admin: user["is_admin"].as_bool(),
        auth_secret_generation: Some(secrets),
        team_count: count(teams),
        pipeline_count: count(pipelines),
        ..InstanceStatus::default()
    };
    let workers = workers_healthy(workers, &mut status);
    let wall = wall_active(wall, &mut status);
    let interval = duration(&instance.spec.health_probe_interval)
        .unwrap_or(300_000)
        .clamp(30_000, 3_600_000);
    Ok(Outcome::poll(interval)
        .with(Condition::new_true("Ready", "Ready", "Concourse answers."))
        .with(Condition::new_true(
            "Authenticated",
            "Authenticated",
            format!("Logged in as {login}."),
        ))
        .with(workers)
        .with(wall)
        .status(&status))
}

/// How often the credentials were another's. A Secret itself does not count: its `metadata.generation` stays 0.
fn secret_generation(ctx: &Context, instance: &Instance) -> Result<i64, Failure> {
    const MEMO: &str = "secrets";
    let auth = &instance.spec.auth;
    let password = auth.password.as_ref();
    let keys = [
        password.map(|p| &p.password_ref),
        password.and_then(|p| p.client_secret_ref.as_ref()),
        auth.token.as_ref().map(|t| &t.token_ref),
    ];
    let mut now = String::new();
    for key in keys.into_iter().flatten() {
        now += &ctx.secret_digest(&key.name, &key.key)?.unwrap_or_default();
        now.push(' ');
    }
    let before = ctx.cache_get(MEMO);
    if before.as_deref() != Some(now.as_bytes()) {
        ctx.cache_set(MEMO, now.as_bytes())?;
    }
    let last = instance.status.auth_secret_generation.unwrap_or_default().max(1);
    // Without a memory, after a restart, it is the one it was.
    let changed = before.is_some_and(|before| before != now.as_bytes());
    Ok(last + i64::from(changed))
}

/// An answer that has this field. Tells a refused login from a server that
/// cannot be reached or is not Concourse.
fn answer(result: Result<Response, Error>, field: &str) -> Result<Value, Failure> {
    let failed = |failure: Failure, kind: &str| {
        let message = failure.message.clone();
        let condition = match kind {
            "AuthenticationFailed" => Condition::new_false("Authenticated", kind, message),
            _ => Condition::new_unknown("Authenticated", kind, message),
        };
        failure.reason(kind).with(condition)
    };
    let response = match result {
        Ok(response) => response,
        // The credentials' Secret is not there (yet).
        Err(error @ Error::NotFound(_)) => return Err(failed(error.into(), "AuthenticationFailed")),
        Err(error @ Error::Denied(_)) => return Err(error.into()),
        Err(error) => return Err(failed(error.into(), "InfoFailed")),
    };
    match response.status() {
        200 => match response.value() {
            Ok(value) if !value[field].is_null() => Ok(value),
            other => {
                let why = match other {
                    Ok(_) => format!("The answer has no {field}."),
                    Err(error) => error.text(),
                };
                let message = format!("This does not look like Concourse. {why}");
                Err(failed(Failure::retry("InfoFailed", message), "InfoFailed"))
            }
        },
        401 | 403 => {
            let message = format!(
                "Concourse does not accept the credentials (HTTP {}): {}",
                response.status(),
                first_line(&response.text())
            );
            Err(failed(
                Failure::retry("AuthenticationFailed", message),
                "AuthenticationFailed",
            ))
        }
        status => {
            let message = format!("Concourse answers with HTTP {status}.");
            Err(failed(Failure::retry("InfoFailed", message), "InfoFailed"))
        }
    }
}

/// The answer of a probe that Ready does not depend on.
fn optional(result: Result<Response, Error>) -> Option<Value> {
    let response = result.ok().filter(Response::is_success)?;
    response.value().ok()
}

/// Concourse writes `null` for an empty list.
fn list(value: Option<Value>) -> Option<Vec<Value>> {
    match value? {
        Value::Array(items) => Some(items),
        Value::Null => Some(Vec::new()),
        _ => None,
    }
}

fn count(result: Result<Response, Error>) -> Option<i32> {
    i32::try_from(list(optional(result))?.len()).ok()
}

fn text(value: &Value, field: &str) -> Option<String> {
    let text = value[field].as_str().filter(|text| !text.is_empty())?;
    Some(text.to_owned())
}

fn workers_healthy(result: Result<Response, Error>, status: &mut InstanceStatus) -> Condition {
    const TYPE: &str = "WorkersHealthy";
    let Some(workers) = list(optional(result)) else {
        return Condition::new_unknown(TYPE, "ListFailed", "The workers could not be listed.");
    };
    let in_state = |state: &str| {
        let number = workers.iter().filter(|w| w["state"] == state).count();
        i32::try_from(number).unwrap_or(i32::MAX)
    };
    let stalled = in_state("stalled");
    status.worker_count = i32::try_from(workers.len()).ok();
    status.running_workers = Some(in_state("running"));
    status.landing_workers = Some(in_state("landing"));
    status.stalled_workers = Some(stalled);
    match stalled {
        0 => Condition::new_true(TYPE, "AllRunning", "No worker is stalled."),
        _ => Condition::new_false(TYPE, "WorkersStalled", format!("{stalled} stalled.")),
    }
}

fn wall_active(result: Result<Response, Error>, status: &mut InstanceStatus) -> Condition {
    const TYPE: &str = "WallActive";
    let Some(wall) = optional(result) else {
        return Condition::new_unknown(TYPE, "ListFailed", "The wall could not be read.");
    };
    match wall["message"].as_str() {
        Some(message) if !message.is_empty() => {
            status.wall_message = Some(message.to_owned());
            Condition::new_true(TYPE, "WallSet", message)
        }
        _ => Condition::new_false(TYPE, "NoWall", "The wall is empty."),
    }
}

ostler_sdk::plugin!(Instances);
