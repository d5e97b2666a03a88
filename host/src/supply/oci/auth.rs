//! Credentials for registries, as Docker's config.json has them.

use std::{
    collections::BTreeMap,
    fmt,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;

use super::Reference;

/// Who we are, for each registry.
#[derive(Clone, Default)]
pub struct Auth {
    places: BTreeMap<String, Credential>,
}

/// Who we are, for one registry.
#[derive(Clone)]
pub(super) enum Credential {
    /// A name and a password, or an access token in its place.
    Basic { username: String, password: String },
    /// Exchanged for a token.
    Refresh(String),
    /// Used as it is.
    Bearer(String),
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_set().entries(self.places.keys()).finish()
    }
}

/// Why there are no credentials. Never has any of the file's text in it but names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Not a config.json.
    #[error("no Docker config.json: {0}")]
    Malformed(String),
    /// A helper that did not help.
    #[error("docker-credential-{helper}: {message}")]
    Helper {
        /// Its name.
        helper: String,
        /// What went wrong.
        message: String,
    },
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    auths: BTreeMap<String, Entry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

impl Config {
    fn parse(json: &[u8]) -> Result<Self, AuthError> {
        // serde's own words may quote what is there.
        serde_json::from_slice(json).map_err(|e| {
            AuthError::Malformed(format!("it breaks in line {}, column {}", e.line(), e.column()))
        })
    }
}

impl Entry {
    fn credential(self, place: &str) -> Result<Option<Credential>, AuthError> {
        if !self.registrytoken.is_empty() {
            return Ok(Some(Credential::Bearer(self.registrytoken)));
        }
        if !self.identitytoken.is_empty() {
            return Ok(Some(Credential::Refresh(self.identitytoken)));
        }
        if !self.auth.is_empty() {
            let decoded = BASE64_STANDARD.decode(self.auth.trim()).ok();
            let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
            let pair = text.as_deref().and_then(|text| text.split_once(':'));
            return match pair {
                Some((username, password)) => Ok(Some(Credential::Basic {
                    username: username.into(),
                    password: password.trim_end_matches('\0').into(),
                })),
                None => Err(AuthError::Malformed(format!(
                    "auths[{place:?}].auth is not USERNAME:PASSWORD in base64"
                ))),
            };
        }
        Ok((!self.username.is_empty()).then_some(Credential::Basic {
            username: self.username,
            password: self.password,
        }))
    }
}

impl Auth {
    /// Nobody in particular.
    pub fn anonymous() -> Self {
        Self::default()
    }

    /// Reads a Docker config.json, which is what a Secret of type `kubernetes.io/dockerconfigjson` has in
    /// `.dockerconfigjson`. Credential helpers in it are not run.
    pub fn from_docker_config(json: &[u8]) -> Result<Self, AuthError> {
        Self::of(Config::parse(json)?.auths)
    }

    fn of(auths: BTreeMap<String, Entry>) -> Result<Self, AuthError> {
        let mut places = BTreeMap::new();
        for (place, entry) in auths {
            if let Some(credential) = entry.credential(&place)? {
                places.insert(normal(&place), credential);
            }
        }
        Ok(Self { places })
    }

    /// A person's own credentials for this registry: of this file, or of the config.json that `docker login` writes.
    /// Runs the credential helper it names.
    pub fn of_user(file: Option<&Path>, reference: &Reference) -> Result<Self, AuthError> {
        let Some(path) = file.map(Path::to_owned).or_else(docker_config) else {
            return Ok(Self::anonymous());
        };
        let json = match std::fs::read(&path) {
            Ok(json) => json,
            Err(_) if file.is_none() => return Ok(Self::anonymous()),
            Err(e) => return Err(AuthError::Malformed(format!("{}: {e}", path.display()))),
        };
        let config = Config::parse(&json).map_err(|e| match e {
            AuthError::Malformed(why) => AuthError::Malformed(format!("{}: {why}", path.display())),
            e => e,
        })?;
        let registry = reference.registry();
        let mut auth = Self::of(config.auths)?;
        let mut helpers = config.cred_helpers.into_iter();
        let helper = helpers
            .find(|(place, _)| normal(place) == registry)
            .map(|(_, helper)| helper);
        if auth.credential(reference).is_none()
            && let Some(helper) = helper.or(config.creds_store)
            && let Some(credential) = ask(&helper, registry)?
        {
            auth.places.insert(registry.into(), credential);
        }
        Ok(auth)
    }

    /// The credential for a repository: the longest place that it is in.
    pub(super) fn credential(&self, reference: &Reference) -> Option<&Credential> {
        let mut places: Vec<_> = self
            .places
            .iter()
            .filter(|(place, _)| covers(place, reference))
            .collect();
        places.sort_by_key(|(place, _)| place.len());
        places.pop().map(|(_, credential)| credential)
    }
}

/// `https://ghcr.io/v2/` is `ghcr.io`.
fn normal(place: &str) -> String {
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

/// A place is a registry, perhaps with a path; `*` stands for one part of the host's name, as Kubernetes has it.
fn covers(place: &str, reference: &Reference) -> bool {
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

fn docker_config() -> Option<PathBuf> {
    let directory = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker"));
    Some(directory.or_else(home)?.join("config.json"))
}

/// Runs `docker-credential-HELPER get`.
fn ask(helper: &str, registry: &str) -> Result<Option<Credential>, AuthError> {
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
        // One that ends without reading says no below.
        let _ = input.write_all(server.as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| fail(e.to_string()))?;
    if !output.status.success() {
        // It knows none.
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
        "<token>" => Credential::Refresh(answer.secret),
        _ => Credential::Basic {
            username: answer.username,
            password: answer.secret,
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(config: &str, reference: &str) -> Option<String> {
        let auth = Auth::from_docker_config(config.as_bytes()).expect("a config");
        match auth.credential(&reference.parse().expect(reference))? {
            Credential::Basic { username, password } => Some(format!("{username}/{password}")),
            Credential::Refresh(token) => Some(format!("refresh {token}")),
            Credential::Bearer(token) => Some(format!("bearer {token}")),
        }
    }

    #[test]
    fn reads_what_docker_and_kubernetes_write() {
        // me:s3cret
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
        let auth = Auth::from_docker_config(config.as_bytes()).expect("a config");
        assert!(!format!("{auth:?}").contains("s3cret"));
    }

    #[test]
    fn errors_quote_nothing() {
        for config in [
            r#"{"auths": "hunter2"}"#,
            r#"{"auths": {"a.io": {"auth": "hunter2"}}}"#,
        ] {
            let error = Auth::from_docker_config(config.as_bytes())
                .expect_err(config)
                .to_string();
            assert!(!error.contains("hunter2"), "{error}");
            assert!(error.contains("config.json"), "{error}");
        }
    }

    #[test]
    fn helpers_are_named_and_nothing_else() {
        let error = ask("../../bin/sh", "a.io").err().expect("no helper").to_string();
        assert!(error.contains("not the name"), "{error}");
        let error = ask("is-not-there", "a.io").err().expect("no helper").to_string();
        assert!(error.starts_with("docker-credential-is-not-there"), "{error}");
    }
}
