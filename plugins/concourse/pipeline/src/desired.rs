//! The config that a Pipeline asks for.

use concourse_api::{ConfigMapKey, ContainerImage, Pipeline, PipelineVar, SecretKey};
use ostler_sdk::{
    Encoding, SecretKeyRef, Substitution, gvk,
    prelude::*,
    serde_json::{Map, Value},
};
use sha2::{Digest, Sha256};

use crate::{config, injected, vars};

const CONFIG_LOAD_FAILED: &str = "ConfigLoadFailed";

/// Bytes of a digest that identify a secret.
const PLACEHOLDER_DIGEST_BYTES: usize = 12;

/// A config with placeholders for the values of secrets.
pub struct DesiredConfig {
    /// The config.
    pub config: Value,
    /// Secrets that the host substitutes for the placeholders.
    pub secrets: Vec<Substitution>,
    /// Hash of the config and of the secrets.
    pub hash: String,
}

/// Builds the config: parses it, adds the resources of `spec.k8sConfigs` and interpolates the vars.
///
/// # Errors
/// A Secret or ConfigMap is missing, which is waited for; or the config is invalid, which is terminal.
pub fn build(
    ctx: &Context,
    pipeline: &Pipeline,
    default_image: Option<&ContainerImage>,
) -> Result<DesiredConfig, Failure> {
    let vars = resolve_vars(ctx, pipeline)?;
    let source = load_source(ctx, pipeline)?;
    let config = ostler_yaml::parse(&source)
        .map_err(|error| invalid_config(format!("The config is not valid YAML: {error}")))?;
    let Value::Object(mut config) = config else {
        let message = "The config is not a pipeline: it must be a mapping with jobs.";
        return Err(invalid_config(message.to_owned()));
    };
    injected::inject(pipeline, default_image, &mut config)?;
    let config = vars::interpolate(config.into(), &vars.values);
    let hash = config::hash_config(&config, &vars.digests);
    Ok(DesiredConfig {
        config,
        secrets: vars.secrets,
        hash,
    })
}

/// The failure for a config that is not valid.
pub fn invalid_config(message: String) -> Failure {
    Failure::terminal(CONFIG_LOAD_FAILED, message)
}

fn missing_dependency(message: String) -> Failure {
    Failure::wait(CONFIG_LOAD_FAILED, message)
}

/// Values of vars, with placeholders for secrets.
struct ResolvedVars {
    values: Map<String, Value>,
    secrets: Vec<Substitution>,
    digests: Vec<String>,
}

/// Resolves the vars. As in `fly`, `spec.vars` take precedence over the instance vars.
fn resolve_vars(ctx: &Context, pipeline: &Pipeline) -> Result<ResolvedVars, Failure> {
    let mut resolved = ResolvedVars {
        values: pipeline.spec.instance_vars.clone(),
        secrets: Vec::new(),
        digests: Vec::new(),
    };
    for var in &pipeline.spec.vars {
        let value = match (&var.value_from, &var.config_map_ref) {
            (Some(secret), _) => {
                resolved.digests.push(read_digest(ctx, var, secret)?);
                let placeholder = secret_placeholder(pipeline, &var.name);
                let secret = SecretKeyRef::new(&secret.name, &secret.key);
                let substitution = Substitution::key(&placeholder, secret, Encoding::JsonString);
                resolved.secrets.push(substitution);
                placeholder
            }
            (None, Some(key)) => read_config_map(ctx, pipeline, key)?,
            (None, None) => var.value.clone().unwrap_or_default(),
        };
        resolved.values.insert(var.name.clone(), value.into());
    }
    Ok(resolved)
}

fn read_digest(ctx: &Context, var: &PipelineVar, secret: &SecretKey) -> Result<String, Failure> {
    let digest = ctx.secret_digest(&secret.name, &secret.key);
    digest.reason(CONFIG_LOAD_FAILED)?.ok_or_else(|| {
        let SecretKey { name, key } = secret;
        let var = &var.name;
        missing_dependency(format!(
            "The Secret {name} does not exist or has no key {key}, for the var {var}."
        ))
    })
}

fn load_source(ctx: &Context, pipeline: &Pipeline) -> Result<String, Failure> {
    let source = &pipeline.spec.config;
    match &source.config_map_ref {
        Some(key) => read_config_map(ctx, pipeline, key),
        None => Ok(source.inline.clone().unwrap_or_default()),
    }
}

fn read_config_map(ctx: &Context, pipeline: &Pipeline, reference: &ConfigMapKey) -> Result<String, Failure> {
    let ConfigMapKey { name, key } = reference;
    let object = gvk("", "v1", "ConfigMap").named(pipeline.namespace(), name);
    let Some(config_map) = ctx.get_json(&object).reason(CONFIG_LOAD_FAILED)? else {
        return Err(missing_dependency(format!(
            "The ConfigMap {name} does not exist."
        )));
    };
    let value = config_map["data"][key.as_str()].as_str().map(ToOwned::to_owned);
    value.ok_or_else(|| missing_dependency(format!("The ConfigMap {name} has no key {key}.")))
}

/// A text that stands for a secret: stable, and found nowhere else by chance.
fn secret_placeholder(pipeline: &Pipeline, var: &str) -> String {
    let digest = Sha256::digest(format!("{}/{var}", pipeline.metadata.uid));
    let digest: String = digest[..PLACEHOLDER_DIGEST_BYTES]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("ostler-secret-{digest}")
}
