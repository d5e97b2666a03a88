//! Secrets of type `kubernetes.io/dockerconfigjson`. The host puts user name and password into them.

use base64::{Engine, prelude::BASE64_STANDARD};
use devops_api::{ContainerRegistry, PullSecretState, SecretKey};
use ostler_sdk::{
    ApplyOptions, CreateOptions, DeleteOptions, Encoding, ObjectRef, Preconditions, SecretKeyRef,
    Substitution, Username, gvk, prelude::*, serde_json::Value,
};

/// Label of the Secrets that a ContainerRegistry manages; its value is the object's UID. A Secret without it belongs to
/// another user: it is neither changed nor deleted.
const OWNER_LABEL: &str = "devops.ostler.dev/container-registry";

/// What the host replaces by the password.
const PASSWORD_PLACEHOLDER: &str = "ostler-registry-password";
/// What the host replaces by `user:password` in base64.
const PAIR_PLACEHOLDER: &str = "ostler-registry-user-and-password";

/// Hosts of Docker Hub, and the key that container runtimes look up for it.
const DOCKER_HUB_HOSTS: [&str; 3] = ["registry-1.docker.io", "index.docker.io", "docker.io"];
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// A Secret to apply.
pub struct PullSecret {
    namespace: String,
    name: String,
    manifest: Value,
    substitutions: Vec<Substitution>,
}

/// Builds the Secrets that the spec asks for.
pub fn build(registry: &ContainerRegistry) -> Result<Vec<PullSecret>, Failure> {
    let spec = &registry.spec;
    if spec.image_pull_secrets.is_empty() {
        return Ok(Vec::new());
    }
    let (Some(username), Some(password)) = (&spec.username, &spec.password_ref) else {
        let message = "spec.imagePullSecrets need spec.username and spec.passwordRef.";
        return Err(Failure::terminal("InvalidSpec", message));
    };
    let config = build_config(&spec.url, username);
    let substitutions = build_substitutions(registry.namespace(), username, password);
    let mut secrets: Vec<PullSecret> = Vec::new();
    for wanted in &spec.image_pull_secrets {
        let namespace = wanted.namespace.as_deref().unwrap_or(registry.namespace());
        if secrets
            .iter()
            .any(|other| other.namespace == namespace && other.name == wanted.name)
        {
            let message = format!(
                "spec.imagePullSecrets has the Secret {namespace}/{} twice.",
                wanted.name
            );
            return Err(Failure::terminal("InvalidSpec", message));
        }
        secrets.push(PullSecret {
            namespace: namespace.to_owned(),
            name: wanted.name.clone(),
            manifest: json!({
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {
                    "name": wanted.name,
                    "namespace": namespace,
                    "labels": { (OWNER_LABEL): registry.metadata.uid },
                },
                "type": "kubernetes.io/dockerconfigjson",
                "data": { ".dockerconfigjson": BASE64_STANDARD.encode(&config) },
            }),
            substitutions: substitutions.clone(),
        });
    }
    Ok(secrets)
}

/// Builds the configuration file of Docker's client, with placeholders.
fn build_config(url: &str, username: &str) -> String {
    let server = url
        .split_once("://")
        .map_or(url, |(_, rest)| rest)
        .trim_end_matches('/');
    let server = if DOCKER_HUB_HOSTS.contains(&server) {
        DOCKER_HUB_KEY
    } else {
        server
    };
    json!({ "auths": { (server): {
        "username": username,
        "password": PASSWORD_PLACEHOLDER,
        "auth": PAIR_PLACEHOLDER,
    }}})
    .to_string()
}

fn build_substitutions(namespace: &str, username: &str, password: &SecretKey) -> Vec<Substitution> {
    // Named with its namespace, as the Secrets may be written into others.
    let password = SecretKeyRef::new(&password.name, &password.key).in_namespace(namespace);
    let username = Username::Literal(username.to_owned());
    vec![
        Substitution::key(PASSWORD_PLACEHOLDER, password.clone(), Encoding::JsonString),
        Substitution::basic(PAIR_PLACEHOLDER, username, password, Encoding::Base64),
    ]
}

impl PullSecret {
    /// The status has recorded this Secret.
    pub fn is_recorded_as(&self, state: &PullSecretState) -> bool {
        state.namespace == self.namespace && state.name == self.name
    }

    /// The state before it is written.
    pub fn new_state(&self) -> PullSecretState {
        PullSecretState {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            uid: None,
        }
    }

    /// Creates the Secret, or corrects it if it is this object's. Returns its UID.
    pub fn apply(&self, ctx: &Context, registry: &ContainerRegistry) -> Result<String, Failure> {
        let owned = self.namespace == registry.namespace();
        let written = match ctx.get_metadata(&reference(&self.namespace, &self.name))? {
            Some(found) if !is_ours(&found, registry) => return Err(self.foreign()),
            Some(_) => {
                let options = ApplyOptions {
                    owned,
                    force: true,
                    substitutions: self.substitutions.clone(),
                    ..ApplyOptions::default()
                };
                ctx.apply_with(&self.manifest, &options)?
            }
            None => {
                let options = CreateOptions {
                    owned,
                    substitutions: self.substitutions.clone(),
                    ..CreateOptions::default()
                };
                // Not applied: that would take over a Secret that another user creates at this moment.
                match ctx.create_with(&self.manifest, &options) {
                    Err(Error::Conflict(_)) => return Err(self.foreign()),
                    written => written?,
                }
            }
        };
        let uid = &written.json()?["metadata"]["uid"];
        Ok(uid.as_str().unwrap_or_default().to_owned())
    }

    fn foreign(&self) -> Failure {
        let message = format!(
            "The Secret {}/{} exists and is not this object's: delete it, or name another one in \
             spec.imagePullSecrets.",
            self.namespace, self.name
        );
        Failure::retry("SecretExists", message)
    }
}

/// Deletes a recorded Secret if it is this object's.
pub fn delete(ctx: &Context, registry: &ContainerRegistry, state: &PullSecretState) -> Result<(), Failure> {
    let reference = reference(&state.namespace, &state.name);
    let Some(found) = ctx.get_metadata(&reference)? else {
        return Ok(());
    };
    if !is_ours(&found, registry) {
        return Ok(());
    }
    let uid = found["metadata"]["uid"].as_str().unwrap_or_default();
    let options = DeleteOptions {
        preconditions: Preconditions::uid(uid),
        ..DeleteOptions::default()
    };
    match ctx.delete_with(&reference, &options) {
        // Another one has taken its name meanwhile.
        Ok(()) | Err(Error::NotFound(_) | Error::Conflict(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn is_ours(secret: &Value, registry: &ContainerRegistry) -> bool {
    secret["metadata"]["labels"][OWNER_LABEL] == *registry.metadata.uid
}

fn reference(namespace: &str, name: &str) -> ObjectRef {
    gvk("", "v1", "Secret").named(namespace, name)
}
