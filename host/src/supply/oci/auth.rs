//! Credentials of registries, in the format of Docker's config.json.
//!
//! Our own parser: `docker_credential` runs credential helpers named by the file also when the file comes from a
//! Secret.

use std::{
    collections::BTreeMap,
    fmt,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;

use super::OciReference;
use crate::kube::well_known::environment;

/// Credentials by registry.
#[derive(Clone, Default)]
pub struct RegistryAuth {
    places: BTreeMap<String, RegistryCredential>,
}

/// The credential of one registry.
#[derive(Clone)]
pub(super) enum RegistryCredential {
    /// A user name with a password or an access token.
    Basic { username: String, password: String },
    /// An identity token, exchanged for an access token.
    Refresh(String),
    /// An access token, used as it is.
    Bearer(String),
}

impl fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_set().entries(self.places.keys()).finish()
    }
}

/// The error of unreadable credentials. It contains no text of the file except names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The file is not a config.json.
    #[error("no Docker config.json: {0}")]
    Malformed(String),
    /// A credential helper failed.
    #[error("docker-credential-{helper}: {message}")]
    Helper {
        /// Name of the helper.
        helper: String,
        /// The failure.
        message: String,
    },
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DockerConfig {
    auths: BTreeMap<String, AuthEntry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AuthEntry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

impl DockerConfig {
    fn parse(json: &[u8]) -> Result<Self, AuthError> {
        // serde's message may quote the file.
        serde_json::from_slice(json).map_err(|e| {
            AuthError::Malformed(format!("it breaks in line {}, column {}", e.line(), e.column()))
        })
    }
}

impl AuthEntry {
    fn into_credential(self, place: &str) -> Result<Option<RegistryCredential>, AuthError> {
        if !self.registrytoken.is_empty() {
            return Ok(Some(RegistryCredential::Bearer(self.registrytoken)));
        }
        if !self.identitytoken.is_empty() {
            return Ok(Some(RegistryCredential::Refresh(self.identitytoken)));
        }
        if !self.auth.is_empty() {
            let decoded = BASE64_STANDARD.decode(self.auth.trim()).ok();
            let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
            let pair = text.as_deref().and_then(|text| text.split_once(':'));
            return match pair {
                Some((username, password)) => Ok(Some(RegistryCredential::Basic {
                    username: username.into(),
                    password: password.trim_end_matches('\0').into(),
                })),
                None => Err(AuthError::Malformed(format!(
                    "auths[{place:?}].auth is not USERNAME:PASSWORD in base64"
                ))),
            };
        }
        Ok((!self.username.is_empty()).then_some(RegistryCredential::Basic {
            username: self.username,
            password: self.password,
        }))
    }
}

impl RegistryAuth {
    /// No credentials.
    pub fn anonymous() -> Self {
        Self::default()
    }

    /// Parses a Docker config.json, as a Secret of type `kubernetes.io/dockerconfigjson` contains it in
    /// `.dockerconfigjson`. Credential helpers named in it are not run.
    pub fn from_docker_config(json: &[u8]) -> Result<Self, AuthError> {
        Self::from_entries(DockerConfig::parse(json)?.auths)
    }

    fn from_entries(auths: BTreeMap<String, AuthEntry>) -> Result<Self, AuthError> {
        let mut places = BTreeMap::new();
        for (place, entry) in auths {
            if let Some(credential) = entry.into_credential(&place)? {
                places.insert(normalize_place(&place), credential);
            }
        }
        Ok(Self { places })
    }

    /// The user's credentials for a registry, from this file or the config.json that `docker login` writes. Runs the
    /// credential helper named in it.
    pub fn from_user_config(file: Option<&Path>, reference: &OciReference) -> Result<Self, AuthError> {
        let Some(path) = file.map(Path::to_owned).or_else(docker_config_path) else {
            return Ok(Self::anonymous());
        };
        let json = match std::fs::read(&path) {
            Ok(json) => json,
            Err(_) if file.is_none() => return Ok(Self::anonymous()),
            Err(e) => return Err(AuthError::Malformed(format!("{}: {e}", path.display()))),
        };
        let config = DockerConfig::parse(&json).map_err(|e| match e {
            AuthError::Malformed(why) => AuthError::Malformed(format!("{}: {why}", path.display())),
            e => e,
        })?;
        let registry = reference.registry();
        let mut auth = Self::from_entries(config.auths)?;
        let mut helpers = config.cred_helpers.into_iter();
        let helper = helpers
            .find(|(place, _)| normalize_place(place) == registry)
            .map(|(_, helper)| helper);
        if auth.credential_for(reference).is_none()
            && let Some(helper) = helper.or(config.creds_store)
            && let Some(credential) = run_credential_helper(&helper, registry)?
        {
            auth.places.insert(registry.into(), credential);
        }
        Ok(auth)
    }

    /// The credential of a repository: that of the longest place that covers it.
    pub(super) fn credential_for(&self, reference: &OciReference) -> Option<&RegistryCredential> {
        let mut places: Vec<_> = self
            .places
            .iter()
            .filter(|(place, _)| place_covers(place, reference))
            .collect();
        places.sort_by_key(|(place, _)| place.len());
        places.pop().map(|(_, credential)| credential)
    }
}

/// Normalizes a place: `https://ghcr.io/v2/` is `ghcr.io`.
fn normalize_place(place: &str) -> String {
    let place = place
        .split_once("://")
        .map_or(place, |(_, place)| place)
        .trim_end_matches('/');
    let place = place
        .strip_suffix("/v1")
        .or(place.strip_suffix("/v2"))
        .unwrap_or(place);
    match place
        .split_once('/')
        .map_or((place, None), |(host, path)| (host, Some(path)))
    {
        ("index.docker.io" | "registry-1.docker.io", None) => "docker.io".into(),
        _ => place.into(),
    }
}

/// A place covers a reference: it is a registry with an optional path; `*` matches one label of the host name, as in
/// Kubernetes.
fn place_covers(place: &str, reference: &OciReference) -> bool {
    let (host, path) = place.split_once('/').unwrap_or((place, ""));
    let (mut theirs, mut ours) = (host.split('.'), reference.registry().split('.'));
    let same = loop {
        match (theirs.next(), ours.next()) {
            (None, None) => break true,
            (Some("*"), Some(_)) => {}
            (theirs, ours) if theirs == ours => {}
            _ => break false,
        }
    };
    same && (path.is_empty()
        || reference
            .repository()
            .strip_prefix(path)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

fn docker_config_path() -> Option<PathBuf> {
    let directory = std::env::var_os(environment::DOCKER_CONFIG).map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker"));
    Some(directory.or_else(home)?.join("config.json"))
}

/// Runs `docker-credential-HELPER get`.
fn run_credential_helper(helper: &str, registry: &str) -> Result<Option<RegistryCredential>, AuthError> {
    let fail = |message: String| AuthError::Helper {
        helper: helper.chars().take(64).collect(),
        message,
    };
    if helper.is_empty()
        || !helper
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    {
        return Err(fail("not the name of a credential helper".into()));
    }
    let server = match registry {
        "docker.io" => "https://index.docker.io/v1/",
        registry => registry,
    };
    let mut child = Command::new(format!("docker-credential-{helper}"))
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| fail(format!("{e}; `docker login` has named it in config.json")))?;
    if let Some(mut input) = child.stdin.take() {
        // A helper that exits without reading fails below.
        let _ = input.write_all(server.as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| fail(e.to_string()))?;
    if !output.status.success() {
        // The helper knows no credential for the registry.
        return Ok(None);
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        username: String,
        secret: String,
    }
    let answer: Answer = serde_json::from_slice(&output.stdout)
        .map_err(|_| fail("its answer is not {Username, Secret}".into()))?;
    Ok(Some(match &*answer.username {
        "<token>" => RegistryCredential::Refresh(answer.secret),
        _ => RegistryCredential::Basic {
            username: answer.username,
            password: answer.secret,
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(config: &str, reference: &str) -> Option<String> {
        let auth = RegistryAuth::from_docker_config(config.as_bytes()).expect("a config");
        match auth.credential_for(&reference.parse().expect(reference))? {
            RegistryCredential::Basic { username, password } => Some(format!("{username}/{password}")),
            RegistryCredential::Refresh(token) => Some(format!("refresh {token}")),
            RegistryCredential::Bearer(token) => Some(format!("bearer {token}")),
        }
    }

    #[test]
    fn docker_config_of_all_forms_is_parsed() {
        // The user me with the password s3cret.
        let config = r#"{"auths": {
            "ghcr.io": {"auth": "bWU6czNjcmV0"},
            "ghcr.io/team": {"username": "team", "password": "p:q"},
            "https://index.docker.io/v1/": {"identitytoken": "i"},
            "http://localhost:5000/v2/": {"registrytoken": "r"},
            "*.example.com": {"username": "any", "password": ""},
            "empty.io": {}
        }, "credsStore": "never-run"}"#;
        for (reference, expected) in [
            ("ghcr.io/other/a", Some("me/s3cret")),
            ("ghcr.io/team/a", Some("team/p:q")),
            ("ghcr.io/teams/a", Some("me/s3cret")),
            ("docker.io/library/a", Some("refresh i")),
            ("localhost:5000/a", Some("bearer r")),
            ("localhost:5001/a", None),
            ("r.example.com/a", Some("any/")),
            ("example.com/a", None),
            ("r.s.example.com/a", None),
            ("evilghcr.io/a", None),
            ("empty.io/a", None),
        ] {
            assert_eq!(user(config, reference).as_deref(), expected, "{reference}");
        }
        let auth = RegistryAuth::from_docker_config(config.as_bytes()).expect("a config");
        assert!(!format!("{auth:?}").contains("s3cret"));
    }

    #[test]
    fn malformed_config_error_quotes_nothing() {
        for config in [
            r#"{"auths": "hunter2"}"#,
            r#"{"auths": {"a.io": {"auth": "hunter2"}}}"#,
        ] {
            let error = RegistryAuth::from_docker_config(config.as_bytes())
                .expect_err(config)
                .to_string();
            assert!(!error.contains("hunter2"), "{error}");
            assert!(error.contains("config.json"), "{error}");
        }
    }

    #[test]
    fn helper_with_invalid_name_is_not_run() {
        let error = run_credential_helper("../../bin/sh", "a.io")
            .err()
            .expect("no helper")
            .to_string();
        assert!(error.contains("not the name"), "{error}");
        let error = run_credential_helper("is-not-there", "a.io")
            .err()
            .expect("no helper")
            .to_string();
        assert!(error.starts_with("docker-credential-is-not-there"), "{error}");
    }
}
