//! The Secrets with which Argo CD reads repositories. Their credentials are inserted by the host.

use base64::{Engine, engine::general_purpose::STANDARD};
use devops_api::{ArgoRepository, ArgoSetting};
use ostler_sdk::{ApplyOptions, Encoding, SecretKeyRef, Substitution, prelude::*, serde_json::Value};

use crate::desired::Owner;

/// Stands for the password in the Secret that the host is given.
const PASSWORD_PLACEHOLDER: &str = "ostler-argo-repository-password";
/// Label by which Argo CD finds the Secrets of repositories.
const SECRET_TYPE_LABEL: &str = "argocd.argoproj.io/secret-type";
/// Annotation with a digest of the password, so that a rotated one changes the Secret.
const DIGEST_ANNOTATION: &str = "devops.ostler.dev/password-digest";

/// Names of the Secrets that a setting describes.
pub fn secret_names(setting: &ArgoSetting) -> Vec<String> {
    let with_secret = setting.spec.repositories.iter().filter(|r| needs_secret(r));
    with_secret
        .map(|repository| secret_name(setting, repository))
        .collect()
}

/// An open repository needs no Secret: its project's list of sources permits it.
fn needs_secret(repository: &ArgoRepository) -> bool {
    repository.password_ref.is_some() || repository.insecure
}

/// The UID of the setting makes the name its own: no other user's Secret has it.
fn secret_name(setting: &ArgoSetting, repository: &ArgoRepository) -> String {
    format!("{}-{}", repository.name, setting.metadata.uid)
}

/// Applies the Secrets. Returns project and URL of the repositories whose Secret was not the same before.
pub fn apply_secrets<'a>(
    ctx: &Context,
    setting: &'a ArgoSetting,
) -> Result<Vec<(&'a String, &'a String)>, Failure> {
    let names = secret_names(setting);
    let recorded = &setting.status.repository_secrets;
    if names.iter().any(|name| !recorded.contains(name)) {
        let mut all = recorded.clone();
        all.extend(names.into_iter().filter(|name| !recorded.contains(name)));
        let claim = json!({ "repositorySecrets": all });
        ctx.checkpoint(&claim).reason("ApplyFailed")?;
    }
    let mut changed = Vec::new();
    for repository in setting.spec.repositories.iter().filter(|r| needs_secret(r)) {
        let (secret, digest) = build_secret(ctx, setting, repository)?;
        let substitutions = repository.password_ref.as_ref().map(|password| {
            let key = SecretKeyRef::new(&password.name, &password.key);
            Substitution::key(PASSWORD_PLACEHOLDER, key, Encoding::Plain)
        });
        let options = ApplyOptions {
            force: true,
            substitutions: substitutions.into_iter().collect(),
            ..ApplyOptions::default()
        };
        if let Err(error) = ctx.apply_with(&secret, &options) {
            let is_refused = matches!(
                error,
                Error::Denied(_) | Error::Unsupported(_) | Error::Invalid(_)
            );
            let failure = Failure::from(error).reason("RepositorySecretFailed");
            // Nothing was written, so there is no new claim either.
            return Err(if is_refused {
                failure.status(&setting.status)
            } else {
                failure
            });
        }
        // The cache tells a Secret of another password from the one applied last. After a restart of the host one
        // superfluous refresh is the most it costs.
        let key = format!("secret/{}", repository.name);
        if ctx.cache_get(&key).as_deref() != Some(digest.as_bytes()) {
            ctx.cache_set(&key, digest.as_bytes())?;
            changed.push((&repository.project, &repository.url));
        }
    }
    Ok(changed)
}

/// Builds the Secret of a repository, with the digest of its password.
fn build_secret(
    ctx: &Context,
    setting: &ArgoSetting,
    repository: &ArgoRepository,
) -> Result<(Value, String), Failure> {
    let mut data = json!({});
    let mut set = |key: &str, text: &str| data[key] = STANDARD.encode(text).into();
    set("type", "git");
    set("name", &repository.name);
    set("url", &repository.url);
    set("project", &repository.project);
    if repository.insecure {
        set("insecure", "true");
    }
    let mut digest = String::new();
    if let Some(password) = &repository.password_ref {
        let found = ctx
            .secret_digest(&password.name, &password.key)
            .reason("RepositorySecretFailed")?;
        digest = found.ok_or_else(|| {
            let message = format!(
                "Secret {} has no key {}, which passwordRef of the repository {} names.",
                password.name, password.key, repository.name
            );
            Failure::wait("SecretMissing", message)
        })?;
        // Git servers take a token with any user name, but not with none.
        set("username", repository.username.as_deref().unwrap_or("git"));
        set("password", PASSWORD_PLACEHOLDER);
    }
    let mut metadata = Owner::of(setting).build_metadata(&secret_name(setting, repository));
    metadata["labels"][SECRET_TYPE_LABEL] = "repository".into();
    metadata["annotations"][DIGEST_ANNOTATION] = (*digest).into();
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data });
    Ok((secret, digest))
}

/// Deletes a Secret that was recorded in the status.
pub fn delete_secret(ctx: &Context, namespace: &str, name: &str) -> Result<(), Failure> {
    let secret = gvk("", "v1", "Secret").named(namespace, name);
    ctx.delete(&secret).reason("DeleteFailed")
}
