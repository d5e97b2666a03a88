//! The config a Pipeline asks for.

use concourse_api::Pipeline;
use ostler_sdk::{Encoding, Substitution, gvk, prelude::*, serde_json::Value};
use sha2::{Digest, Sha256};

use crate::{config, vars, yaml};

const REASON: &str = "ConfigLoadFailed";

/// A config with placeholders where the host puts secrets.
pub struct Desired {
    /// The config.
    pub config: Value,
    /// What the host puts in.
    pub secrets: Vec<Substitution>,
    /// Changes with the config and with the secrets.
    pub hash: String,
}

/// Loads and completes the config. What is missing is waited for, what is
/// wrong parks.
pub fn load(ctx: &Context, pipeline: &Pipeline) -> Result<Desired, Failure> {
    let mut values = Vec::new();
    let mut secrets = Vec::new();
    let mut digests = Vec::new();
    for var in &pipeline.spec.vars {
        let value = match &var.value_from {
            None => var.value.clone().unwrap_or_default(),
            Some(from) => {
                let digest = ctx.secret_digest(&from.name, &from.key).reason(REASON)?;
                let Some(digest) = digest else {
                    let message = format!(
                        "The Secret {} has no key {} (for the var {}), or does not exist.",
                        from.name, from.key, var.name
                    );
                    return Err(Failure::yield_(REASON, message));
                };
                digests.push(digest);
                let placeholder = placeholder(pipeline, &var.name);
                secrets.push(Substitution {
                    placeholder: placeholder.clone(),
                    namespace: None,
                    secret: from.name.clone(),
                    key: from.key.clone(),
                    encoding: Encoding::JsonString,
                });
                placeholder
            }
        };
        values.push((var.name.as_str(), value));
    }
    let config = yaml::parse(&text(ctx, pipeline)?)
        .map_err(|error| Failure::parked(REASON, format!("The config is not YAML: {error}")))?;
    if !config.is_object() {
        let message = "The config is not a pipeline: it must be a mapping with jobs.";
        return Err(Failure::parked(REASON, message));
    }
    let config = vars::interpolate(config, &values);
    let hash = config::hash(&config, &digests);
    Ok(Desired {
        config,
        secrets,
        hash,
    })
}

fn text(ctx: &Context, pipeline: &Pipeline) -> Result<String, Failure> {
    let source = &pipeline.spec.config;
    let Some(from) = &source.config_map_ref else {
        return Ok(source.inline.clone().unwrap_or_default());
    };
    let map = gvk("", "v1", "ConfigMap").named(pipeline.namespace(), &from.name);
    let map = ctx.get_json(&map).reason(REASON)?;
    let missing = |what: String| Failure::yield_(REASON, what);
    let map = map.ok_or_else(|| missing(format!("The ConfigMap {} does not exist.", from.name)))?;
    let text = map["data"][from.key.as_str()].as_str();
    text.map(ToOwned::to_owned)
        .ok_or_else(|| missing(format!("The ConfigMap {} has no key {}.", from.name, from.key)))
}

/// Stands for one secret: always the same, and found nowhere else by chance.
fn placeholder(pipeline: &Pipeline, var: &str) -> String {
    let name = [&pipeline.metadata.uid, "/", var].concat();
    let digest = Sha256::digest(name);
    ["ostler-secret-", &config::hex(&digest[..12])].concat()
}
