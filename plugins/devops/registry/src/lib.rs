//! Reconciles `devops.ostler.dev/v1alpha1` ContainerRegistry: checks the login and the repository, and keeps the Secrets
//! with which images are pulled.

mod pull_secret;

use devops_api::{
    ContainerRegistry, ContainerRegistrySpec, ContainerRegistryStatus, PullSecretState, check_secure_url,
    registry_upstream, secret_selector, suspended_outcome, upstream_manifest, with_authenticated,
};
use ostler_sdk::{Response, prelude::*, serde_json::Value};
use pull_secret::PullSecret;

const POLL_INTERVAL_MS: u64 = 300_000;

/// Characters of a repository's name, which goes into a path as it is.
const REPOSITORY_CHARACTERS: &str = "abcdefghijklmnopqrstuvwxyz0123456789._-/";

/// Reconciles ContainerRegistries.
pub struct Registries;

impl Reconciler for Registries {
    type Spec = ContainerRegistrySpec;
    const FINALIZER: Option<&'static str> = Some("devops.ostler.dev/container-registry");

    fn reconcile(&self, ctx: &Context, registry: &ContainerRegistry) -> Result<Outcome, Failure> {
        if registry.spec.suspend {
            return Ok(suspended_outcome());
        }
        let upstream = build_upstream(registry)?;
        let wanted = pull_secret::build(registry)?;
        ctx.apply_owned(&upstream)?;
        let repository = check(ctx, registry).map_err(with_authenticated)?;
        let pull_secrets = apply_pull_secrets(ctx, registry, &wanted)?;
        Ok(update_status(registry, repository, pull_secrets))
    }

    fn cleanup(&self, ctx: &Context, registry: &ContainerRegistry) -> Result<Outcome, Failure> {
        for state in &registry.status.pull_secrets {
            pull_secret::delete(ctx, registry, state)?;
        }
        Ok(Outcome::await_change())
    }
}

/// Validates the spec and builds the Upstream.
fn build_upstream(registry: &ContainerRegistry) -> Result<Value, Failure> {
    let spec = &registry.spec;
    let invalid = |message: &str| Err(Failure::terminal("InvalidSpec", message));
    check_secure_url(&spec.url, "spec.url")?;
    if let Some(url) = &spec.token_url {
        check_secure_url(url, "spec.tokenURL")?;
    }
    let repository = spec.repository.as_deref();
    let is_name = |name: &str| {
        name.chars().all(|c| REPOSITORY_CHARACTERS.contains(c)) && name.split('/').all(is_path_component)
    };
    if repository.is_some_and(|name| !is_name(name)) {
        return invalid("spec.repository is not the name of a repository, such as team/app.");
    }
    let auth = match (&spec.username, &spec.password_ref) {
        (Some(username), Some(password)) => {
            let scopes: Vec<String> = repository
                .iter()
                .map(|name| format!("repository:{name}:pull"))
                .collect();
            let mut login = json!({
                "username": username,
                "passwordSecretRef": secret_selector(password),
                "scopes": scopes,
            });
            if let Some(url) = &spec.token_url {
                login["tokenUrl"] = url.as_str().into();
            }
            json!({ "registry": login })
        }
        (None, None) => json!({ "none": {} }),
        _ => return invalid("spec.username and spec.passwordRef must be set together."),
    };
    let name = registry_upstream(registry.name());
    let ca = spec.ca_ref.as_ref();
    Ok(upstream_manifest(
        registry.namespace(),
        &name,
        &spec.url,
        &auth,
        ca,
    ))
}

fn is_path_component(part: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    is_end(part.chars().next()) && is_end(part.chars().next_back())
}

/// Checks the login, and reads the repository. Returns the condition `RepositoryReadable`, if there is a repository.
fn check(ctx: &Context, registry: &ContainerRegistry) -> Result<Option<Condition>, Failure> {
    let name = registry_upstream(registry.name());
    let upstream = ctx.upstream(&name);
    let get = |path: &str| -> Result<Response, Failure> {
        let response = upstream.get(path).send().reason("RegistryUnreachable")?;
        if response.is_success() && response.is_page() {
            let message = "The server responds with a page of HTML: spec.url is not the URL of a registry, or a proxy in front of the \
                           registry asks for a login.";
            return Err(Failure::retry("NotARegistry", message));
        }
        Ok(response)
    };
    let response = get("/v2/")?;
    match response.status() {
        200 => {}
        401 | 403 => return Err(refused(&response, registry)),
        404 => {
            let message = "The server has no /v2/: spec.url is not the URL of a registry.";
            return Err(Failure::retry("NotARegistry", message));
        }
        _ => return Err(unexpected(&response)),
    }
    let Some(repository) = &registry.spec.repository else {
        return Ok(None);
    };
    let response = get(&format!("/v2/{repository}/tags/list?n=1"))?;
    match response.status() {
        200 => Ok(Some(Condition::new_true(
            "RepositoryReadable",
            "Readable",
            format!("The repository {repository} can be read."),
        ))),
        // The first push creates it.
        404 => Ok(Some(Condition::new_false(
            "RepositoryReadable",
            "RepositoryNotFound",
            format!("The registry has no repository {repository} yet."),
        ))),
        401 | 403 => {
            let message = format!("The registry does not let this user read the repository {repository}.");
            Err(Failure::retry("RepositoryDenied", message))
        }
        _ => Err(unexpected(&response)),
    }
}

fn refused(response: &Response, registry: &ContainerRegistry) -> Failure {
    let status = response.status();
    let message = match &registry.spec.password_ref {
        None => {
            format!("The registry demands a login (HTTP {status}): set spec.username and spec.passwordRef.")
        }
        Some(_) => {
            let cause = response.excerpt();
            format!("The registry does not accept the credentials (HTTP {status}): {cause}")
        }
    };
    Failure::retry("AuthenticationFailed", message)
}

fn unexpected(response: &Response) -> Failure {
    let message = format!("The registry responded with HTTP {}.", response.status());
    Failure::retry("RegistryFailed", message)
}

/// Applies the wanted Secrets, and deletes those that are no longer wanted. Each Secret is in the status before it is
/// created, so that the cleanup finds it whatever happens in between.
fn apply_pull_secrets(
    ctx: &Context,
    registry: &ContainerRegistry,
    wanted: &[PullSecret],
) -> Result<Vec<PullSecretState>, Failure> {
    let recorded = &registry.status.pull_secrets;
    let mut states: Vec<PullSecretState> = Vec::new();
    for secret in wanted {
        let known = recorded.iter().find(|state| secret.is_recorded_as(state));
        states.push(known.cloned().unwrap_or_else(|| secret.new_state()));
    }
    let obsolete = recorded
        .iter()
        .filter(|state| !wanted.iter().any(|secret| secret.is_recorded_as(state)));
    let obsolete: Vec<&PullSecretState> = obsolete.collect();
    if states.iter().any(|state| !recorded.contains(state)) {
        let all: Vec<&PullSecretState> = states.iter().chain(obsolete.iter().copied()).collect();
        ctx.checkpoint(&json!({ "pullSecrets": all }))?;
    }
    for state in obsolete {
        pull_secret::delete(ctx, registry, state)?;
    }
    for (secret, state) in wanted.iter().zip(&mut states) {
        state.uid = Some(secret.apply(ctx, registry)?);
    }
    Ok(states)
}

fn update_status(
    registry: &ContainerRegistry,
    repository: Option<Condition>,
    pull_secrets: Vec<PullSecretState>,
) -> Outcome {
    let (reason, message) = match registry.spec.password_ref {
        Some(_) => ("Authenticated", "The registry accepts the credentials."),
        None => ("Anonymous", "The registry is used without credentials."),
    };
    let outcome = Outcome::poll(POLL_INTERVAL_MS)
        .with(Condition::new_true("Ready", "Ready", "The registry can be used."))
        .with(Condition::new_true("Authenticated", reason, message))
        .status(&ContainerRegistryStatus { pull_secrets });
    match repository {
        Some(condition) => outcome.with(condition),
        None => outcome,
    }
}

ostler_sdk::plugin!(Registries);
