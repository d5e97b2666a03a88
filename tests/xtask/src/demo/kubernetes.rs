//! A minimal Kubernetes client that applies manifests.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use ureq::Agent;

/// Number of concurrent creates.
const CREATE_THREADS: usize = 8;

/// Creates an HTTP client for loopback: without proxy, and a response of any status is not an error.
pub fn http_agent() -> Agent {
    Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(10)))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .new_agent()
}

/// Sends a GET and parses the response as JSON.
pub fn get_json(agent: &Agent, url: &str) -> Result<Value> {
    let mut response = agent.get(url).call().with_context(|| format!("GET {url}"))?;
    let (status, body) = (response.status(), response.body_mut().read_to_string()?);
    if !status.is_success() {
        bail!("GET {url}: {status}: {}", body.trim());
    }
    serde_json::from_str(&body).with_context(|| format!("GET {url}: the response is not JSON"))
}

/// Reads the objects of a YAML file and substitutes `${NAME}`.
pub fn read_manifests(path: &Path, variables: &BTreeMap<&str, &str>) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse_manifests(&text, variables).with_context(|| path.display().to_string())
}

/// Parses the objects of a YAML text and substitutes `${NAME}`.
pub fn parse_manifests(text: &str, variables: &BTreeMap<&str, &str>) -> Result<Vec<Value>> {
    let mut text = text.to_owned();
    for (name, value) in variables {
        // A whole value is quoted as JSON, which is valid YAML; a part of a longer value is not.
        text = text.replace(
            &format!(": ${{{name}}}\n"),
            &format!(": {}\n", Value::from(*value)),
        );
        text = text.replace(&format!("${{{name}}}"), value);
    }
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    Ok(objects.into_iter().filter(|object| !object.is_null()).collect())
}

/// A client of an API server.
pub struct DemoClient {
    agent: Agent,
    url: String,
}

impl DemoClient {
    /// Creates a client without credentials.
    pub fn new(url: &str) -> Self {
        Self {
            agent: http_agent(),
            url: url.trim_end_matches('/').into(),
        }
    }

    /// Creates many objects of a collection, several at a time.
    pub fn create_all(&self, path: &str, objects: &[Value]) -> Result<()> {
        let (url, share) = (
            format!("{}{path}", self.url),
            objects.len().div_ceil(CREATE_THREADS).max(1),
        );
        std::thread::scope(|scope| {
            let creating: Vec<_> = objects
                .chunks(share)
                .map(|chunk| scope.spawn(|| chunk.iter().try_for_each(|object| self.create(&url, object))))
                .collect();
            let mut created = creating.into_iter().map(|thread| thread.join());
            created.try_for_each(|result| result.unwrap_or_else(|_| bail!("a thread that creates panicked")))
        })
    }

    fn create(&self, url: &str, object: &Value) -> Result<()> {
        crate::process::check_interrupt()?;
        let request = self.agent.post(url).content_type("application/json");
        let mut response = request
            .send(object.to_string())
            .with_context(|| format!("POST {url}"))?;
        if !response.status().is_success() {
            bail!("POST {url}: {}", response.body_mut().read_to_string()?);
        }
        Ok(())
    }

    /// Applies an object (server-side apply). Returns `Ok(false)` when the server does not serve the kind (yet).
    pub fn apply(&self, object: &Value) -> Result<bool> {
        let text = |pointer| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (api_version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        let base = if api_version.contains('/') { "apis" } else { "api" };
        let group = format!("{}/{base}/{api_version}", self.url);
        let Ok(discovered) = get_json(&self.agent, &group) else {
            return Ok(false);
        };
        let Some((plural, namespaced)) = find_resource(&discovered, kind) else {
            return Ok(false);
        };
        let namespace = match text("/metadata/namespace") {
            "" => "default",
            namespace => namespace,
        };
        let scope = if namespaced {
            format!("/namespaces/{namespace}")
        } else {
            String::new()
        };
        let url = format!("{group}{scope}/{plural}/{name}?fieldManager=demo&force=true");
        let request = self
            .agent
            .patch(&url)
            .content_type("application/apply-patch+yaml");
        let mut response = request
            .send(object.to_string())
            .with_context(|| format!("PATCH {url}"))?;
        if !response.status().is_success() {
            let body = response.body_mut().read_to_string()?;
            let status: Value = serde_json::from_str(&body).unwrap_or_default();
            bail!("{kind} {name}: {}", status["message"].as_str().unwrap_or(&body));
        }
        Ok(true)
    }
}

/// Finds a kind in a discovery document. Returns its plural and whether it is namespaced.
fn find_resource<'a>(discovered: &'a Value, kind: &str) -> Option<(&'a str, bool)> {
    let resources = discovered["resources"].as_array()?;
    // Subresources such as `pods/status` have the same kind.
    let found = resources
        .iter()
        .find(|r| r["kind"] == kind && !r["name"].as_str().unwrap_or("/").contains('/'))?;
    Some((found["name"].as_str()?, found["namespaced"].as_bool()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_are_substituted_in_each_document() {
        let text = "a: ${X}\nb: local:${X}\n---\n# nothing\n---\nc: 1\n";
        let objects = parse_manifests(text, &BTreeMap::from([("X", "yes")])).unwrap();
        assert_eq!(objects, [json!({"a": "yes", "b": "local:yes"}), json!({"c": 1})]);
    }

    #[test]
    fn plural_is_found_in_the_discovery_document() {
        let discovered = json!({"resources": [
            {"name": "teams/status", "kind": "Team", "namespaced": true},
            {"name": "teams", "kind": "Team", "namespaced": true},
        ]});
        assert_eq!(find_resource(&discovered, "Team"), Some(("teams", true)));
        assert_eq!(find_resource(&discovered, "Job"), None);
    }

    #[test]
    fn example_manifests_parse() {
        let path = crate::paths::workspace_root().join("deploy/examples/concourse.yaml");
        let variables = BTreeMap::from([
            ("CONCOURSE_URL", "http://x"),
            ("CONCOURSE_USER", "u"),
            ("CONCOURSE_PASSWORD", "1: 2"),
        ]);
        let objects = read_manifests(&path, &variables).unwrap();
        let kinds: Vec<_> = objects.iter().filter_map(|o| o["kind"].as_str()).collect();
        assert_eq!(
            kinds,
            [
                "Namespace",
                "Secret",
                "Instance",
                "Team",
                "Secret",
                "ConfigMap",
                "Pipeline"
            ]
        );
        assert_eq!(objects[1]["stringData"]["password"], "1: 2");
        assert!(!serde_json::to_string(&objects).unwrap().contains("${"));
    }
}
