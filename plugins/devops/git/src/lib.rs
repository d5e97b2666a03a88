//! Reconciles `devops.ostler.dev/v1alpha1` GitCredentials: keeps the Upstream through which other kinds read the
//! repository, and checks that the credentials are good for it.

use devops_api::{
    GitCredentials, GitCredentialsSpec, GitCredentialsStatus, check_secure_url, git_upstream,
    secret_selector, suspended_outcome, upstream_manifest, with_authenticated,
};
use devops_git_client::{list_references, read_capabilities};
use ostler_sdk::{prelude::*, serde_json::Value};

const POLL_INTERVAL_MS: u64 = 300_000;

/// User name that forges accept with a token (GitLab demands it of OAuth tokens, the others take any).
const TOKEN_USERNAME: &str = "oauth2";

/// Reconciles GitCredentials.
pub struct CredentialsReconciler;

impl Reconciler for CredentialsReconciler {
    type Spec = GitCredentialsSpec;

    fn reconcile(&self, ctx: &Context, credentials: &GitCredentials) -> Result<Outcome, Failure> {
        if credentials.spec.suspend {
            return Ok(suspended_outcome());
        }
        ctx.apply_owned(&build_upstream(credentials)?)?;
        check(ctx, credentials).map_err(with_authenticated)
    }
}

/// Validates the spec and builds the Upstream, whose URL is that of the repository: who may use it can read nothing else.
fn build_upstream(credentials: &GitCredentials) -> Result<Value, Failure> {
    let spec = &credentials.spec;
    check_secure_url(&spec.url, "spec.url")?;
    let auth = match (&spec.password_ref, &spec.username) {
        (Some(password), username) => json!({ "basic": {
            "username": username.as_deref().unwrap_or(TOKEN_USERNAME),
            "passwordSecretRef": secret_selector(password),
        }}),
        (None, None) => json!({ "none": {} }),
        (None, Some(_)) => {
            let message = "spec.username needs spec.passwordRef.";
            return Err(Failure::terminal("InvalidSpec", message));
        }
    };
    let name = git_upstream(credentials.name());
    let ca = spec.ca_ref.as_ref();
    Ok(upstream_manifest(
        credentials.namespace(),
        &name,
        &spec.url,
        &auth,
        ca,
    ))
}

/// Asks the server for what it can do and for its default branch.
fn check(ctx: &Context, credentials: &GitCredentials) -> Result<Outcome, Failure> {
    let name = git_upstream(credentials.name());
    let repository = ctx.upstream(&name);
    let capabilities = read_capabilities(&repository)?;
    let references = list_references(&repository, &["HEAD"])?;
    let head = references.into_iter().find(|reference| reference.name == "HEAD");
    let message = match &head {
        Some(_) => "The repository can be read.",
        None => "The repository can be read; its default branch has no commits.",
    };
    let status = GitCredentialsStatus {
        head_commit: head.as_ref().map(|head| head.id.clone()),
        default_branch: head.and_then(|head| {
            let target = head.target?;
            Some(target.strip_prefix("refs/heads/").unwrap_or(&target).to_owned())
        }),
    };
    let authenticated = match credentials.spec.password_ref {
        Some(_) => Condition::new_true(
            "Authenticated",
            "Authenticated",
            "The server accepts the credentials.",
        ),
        None => Condition::new_true(
            "Authenticated",
            "Anonymous",
            "The repository is read without credentials.",
        ),
    };
    let partial = if capabilities.can_filter {
        Condition::new_true("PartialClone", "Offered", "Single files can be fetched.")
    } else {
        let message = "Single files cannot be fetched: set uploadpack.allowFilter on the server.";
        Condition::new_false("PartialClone", "NotOffered", message)
    };
    Ok(Outcome::poll(POLL_INTERVAL_MS)
        .with(Condition::new_true("Ready", "Ready", message))
        .with(authenticated)
        .with(partial)
        .status(&status))
}

ostler_sdk::plugin!(CredentialsReconciler);
