//! Types that the specs of several kinds share.

use ostler_sdk::{Condition, Failure, SecretKey, UpstreamRef, api, serde_json::Value, serde_json::json};

/// A reference to an Upstream.
#[api]
pub struct UpstreamReference {
    /// Name of the Upstream.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the Upstream; defaults to the namespace of the referring object.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

impl UpstreamReference {
    /// The reference as host functions take it.
    #[must_use]
    pub fn upstream_ref(&self) -> UpstreamRef {
        let upstream = UpstreamRef::new(&self.name);
        match &self.namespace {
            Some(namespace) => upstream.in_namespace(namespace),
            None => upstream,
        }
    }
}

/// Name of the Upstream that an ArgoSetting with a server owns.
#[must_use]
pub fn argo_upstream(setting: &str) -> String {
    ["argo-", setting].concat()
}

/// Name of the Upstream that a JenkinsSetting owns.
#[must_use]
pub fn jenkins_upstream(setting: &str) -> String {
    ["jenkins-", setting].concat()
}

/// Name of the Upstream that a GitCredentials object owns.
#[must_use]
pub fn git_upstream(credentials: &str) -> String {
    ["git-", credentials].concat()
}

/// Name of the Upstream that a ContainerRegistry owns.
#[must_use]
pub fn registry_upstream(registry: &str) -> String {
    ["registry-", registry].concat()
}

/// The manifest of an Upstream, with a certificate authority of its own if there is one.
#[must_use]
pub fn upstream_manifest(
    namespace: &str,
    name: &str,
    url: &str,
    auth: &Value,
    ca: Option<&SecretKey>,
) -> Value {
    let mut spec = json!({ "url": url.trim_end_matches('/'), "auth": auth });
    if let Some(ca) = ca {
        spec["tls"] = json!({ "caSecretRef": secret_selector(ca) });
    }
    json!({
        "apiVersion": "ostler.dev/v1alpha1",
        "kind": "Upstream",
        "metadata": { "name": name, "namespace": namespace },
        "spec": spec,
    })
}

/// A key of a Secret as Upstreams name it.
#[must_use]
pub fn secret_selector(key: &SecretKey) -> Value {
    json!({ "name": key.name, "key": key.key })
}

/// Checks that what is sent to a URL cannot be read on the way: https, or a server on this machine.
///
/// # Errors
/// `InvalidSpec`, which names the field.
pub fn check_secure_url(url: &str, field: &str) -> Result<(), Failure> {
    let is_secure = match url.split_once("://") {
        Some(("https", rest)) => !rest.is_empty(),
        Some(("http", rest)) => is_loopback(rest),
        _ => false,
    };
    let has_login = url
        .split_once("://")
        .is_some_and(|(_, rest)| authority(rest).contains('@'));
    let problem = match (is_secure, has_login) {
        (true, false) => return Ok(()),
        (true, true) => "must have neither user nor password",
        (false, _) => {
            "must be an https URL: SSH is not supported, and without TLS others can read what is sent"
        }
    };
    let message = format!("{field} {problem}.");
    Err(Failure::terminal("InvalidSpec", message))
}

fn authority(rest: &str) -> &str {
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

fn is_loopback(rest: &str) -> bool {
    let authority = authority(rest);
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let is_address = |prefix: &str| {
        let parts = host.strip_prefix(prefix).map(|rest| rest.split('.'));
        parts.is_some_and(|mut parts| {
            parts.clone().count() == 3 && parts.all(|part| part.parse::<u8>().is_ok())
        })
    };
    host == "localhost" || host == "::1" || is_address("127.")
}

/// Adds the condition `Authenticated` to a failure of a request: False if the server refused the credentials, and
/// Unknown if it did not get to that.
#[must_use]
pub fn with_authenticated(failure: Failure) -> Failure {
    let (reason, message) = (failure.reason.clone(), failure.message.clone());
    let condition = match reason.as_str() {
        "AuthenticationFailed" => Condition::new_false("Authenticated", &reason, message),
        _ => Condition::new_unknown("Authenticated", &reason, message),
    };
    failure.with(condition)
}

/// Describes what the deletion of an object waits for: the object's own words are those of its condition Ready.
#[must_use]
pub fn describe_deletion(kind: &str, name: &str, object: &Value) -> String {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready" && condition["status"] == "False");
    let message = ready.and_then(|condition| condition["message"].as_str());
    let message = message.filter(|message| !message.is_empty());
    let separator = if message.is_some() { " " } else { "" };
    format!(
        "Waiting for the deletion of {kind} {name}.{separator}{}",
        message.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_without_tls_is_refused_unless_it_is_loopback() {
        for url in [
            "https://git.example.com/a.git",
            "http://127.0.0.1:8080/a",
            "http://127.8.0.1",
            "http://[::1]:80/a",
            "http://localhost/a",
        ] {
            assert!(check_secure_url(url, "spec.url").is_ok(), "{url}");
        }
        for url in [
            "http://git.example.com/a.git",
            "http://127.0.0.1.example.com/",
            "http://127.0.0/",
            "http://127.example.com.de/",
            "http://localhost@git.example.com/",
            "https://user:password@git.example.com/",
            "ssh://git@git.example.com/a.git",
            "git@git.example.com:a.git",
            "https://",
            "",
        ] {
            let failure = check_secure_url(url, "spec.url").expect_err(url);
            assert!(
                failure.message.starts_with("spec.url must "),
                "{}",
                failure.message
            );
        }
    }
}
