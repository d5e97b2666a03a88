//! The config a Pipeline asks for.

use ostler_sdk::{
    Encoding, SecretKeyRef, Substitution, gvk,
    prelude::*,
    serde_json::{Map, Value},
};
use sha2::{Digest, Sha256};

use crate::{Pipeline, config, injected, text, vars, vars_of, yaml};

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
pub fn load(ctx: &Context, pipeline: &Pipeline, team: &Value) -> Result<Desired, Failure> {
    let spec = &pipeline.spec.json;
    // As `fly` does: the instance vars, and the vars given, which count more.
    let mut values = match vars_of(spec) {
        Value::Object(vars) => vars.clone(),
        _ => Map::new(),
    };
    let mut secrets = Vec::new();
    let mut digests = Vec::new();
    for var in spec["vars"].as_array().into_iter().flatten() {
        let name = text(&var["name"]);
        let secret = &var["valueFrom"];
        let map = &var["configMapRef"];
        let value = if secret.is_object() {
            let (from, key) = (text(&secret["name"]), text(&secret["key"]));
            let Some(digest) = ctx.secret_digest(from, key).reason(REASON)? else {
                return Err(missing(&[
                    "The Secret ",
                    from,
                    " has no key ",
                    key,
                    " (for the var ",
                    name,
                    "), or does not exist.",
                ]));
            };
            digests.push(digest);
            let placeholder = placeholder(pipeline, name);
            let secret = SecretKeyRef::new(from, key);
            secrets.push(Substitution::key(&placeholder, secret, Encoding::JsonString));
            placeholder
        } else if map.is_object() {
            of_config_map(ctx, pipeline, map)?
        } else {
            text(&var["value"]).to_owned()
        };
        values.insert(name.to_owned(), value.into());
    }
    let source = &spec["config"];
    let source = match &source["configMapRef"] {
        Value::Null => text(&source["inline"]).to_owned(),
        map => of_config_map(ctx, pipeline, map)?,
    };
    let config = yaml::parse(&source)
        .map_err(|error| Failure::terminal(REASON, ["The config is not YAML: ", &error].concat()))?;
    let Value::Object(mut config) = config else {
        let message = "The config is not a pipeline: it must be a mapping with jobs.";
        return Err(Failure::terminal(REASON, message));
    };
    injected::wire(ctx, pipeline, team, &mut config)?;
    let config = vars::interpolate(config.into(), &values);
    let hash = config::hash(&config, &digests);
    Ok(Desired {
        config,
        secrets,
        hash,
    })
}

/// The value of a ConfigMap's key.
fn of_config_map(ctx: &Context, pipeline: &Pipeline, reference: &Value) -> Result<String, Failure> {
    let (name, key) = (text(&reference["name"]), text(&reference["key"]));
    let map = gvk("", "v1", "ConfigMap").named(pipeline.namespace(), name);
    let Some(map) = ctx.get_json(&map).reason(REASON)? else {
        return Err(missing(&["The ConfigMap ", name, " does not exist."]));
    };
    let text = map["data"][key].as_str();
    text.map(ToOwned::to_owned)
        .ok_or_else(|| missing(&["The ConfigMap ", name, " has no key ", key, "."]))
}

fn missing(message: &[&str]) -> Failure {
    Failure::wait(REASON, message.concat())
}

/// Stands for one secret: always the same, and found nowhere else by chance.
fn placeholder(pipeline: &Pipeline, var: &str) -> String {
    let name = [&pipeline.metadata.uid, "/", var].concat();
    let digest = Sha256::digest(name);
    ["ostler-secret-", &config::hex(&digest[..12])].concat()
}
