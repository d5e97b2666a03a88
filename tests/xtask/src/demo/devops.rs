//! The DevOps pack: the servers around it, and a script of two events.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{
    Variation,
    facts::{ObjectFacts, ObjectKey},
    kubernetes::{DemoClient, parse_manifests, read_manifests},
    stage::{Scene, Site, apply_all, start_server},
    table::Surroundings,
};
use crate::{paths, powerdns, progress::BuildStep, rabbitmq, registry};

/// Plugins of the DNS pack that records in PowerDNS need.
pub const DNS_PLUGINS: [&str; 3] = ["dns-provider", "dns-record", "dns-powerdns"];
/// Namespace of the project.
const NAMESPACE: &str = "devops";
/// CRDs of Argo CD and cert-manager.
const FOREIGN_CRDS: [&str; 3] = ["applications.yaml", "appprojects.yaml", "certificates.yaml"];
/// Type of the event that sets up a project.
const INITIALIZE_EVENT: &str = "DevOpsInitialize";
/// Type of the event that starts a deployment.
const RECONCILE_EVENT: &str = "DevOpsReconcile";
/// Queue of the heartbeats.
const HEARTBEATS_QUEUE: &str = "heartbeats";

/// Extracts the real servers from their packages. Returns the environment variables by which the harness finds them.
pub fn fetch_servers() -> Result<Vec<(&'static str, PathBuf)>> {
    Ok(vec![
        ("OSTLER_TEST_REGISTRY", registry::find_or_fetch()?),
        ("OSTLER_TEST_RABBITMQ", rabbitmq::find_or_fetch()?),
        ("OSTLER_TEST_POWERDNS", powerdns::find_or_fetch()?),
    ])
}

/// Starts the servers, and applies the accounts of the plugins and the connections.
pub fn start(
    site: &Site,
    variation: &Variation,
    cluster: &DemoClient,
    mut command: Command,
    step: &BuildStep,
) -> Result<Scene> {
    let events = site.folder.join("events");
    // Left behind by an earlier demo. It usually does not exist.
    let _ = fs::remove_dir_all(&events);
    fs::create_dir_all(&events)?;
    for name in FOREIGN_CRDS {
        let path = paths::workspace_root().join("tests/argocd/crds").join(name);
        apply_all(cluster, &read_manifests(&path, &BTreeMap::new())?)?;
    }
    step.set_status("RabbitMQ, PowerDNS, git, docker-registry, and simulators of Jenkins and Argo CD");
    command.arg("--kubeconfig").arg(site.folder.join("kubeconfig"));
    command.arg("--events").arg(&events);
    if variation.hold_builds {
        command.arg("--hold-builds");
    }
    let (servers, first) = start_server("devops-servers", command, site.folder)?;
    let first: Value = serde_json::from_str(&first).context("the first line of devops-servers")?;
    let variables: BTreeMap<String, String> = serde_json::from_value(first["variables"].clone())?;

    step.set_status("applying");
    for namespace in ["argocd", NAMESPACE] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        apply_all(cluster, &[object])?;
    }
    for object in read_accounts()? {
        apply_all(cluster, &[object])?;
    }
    let connections = read_example("devops.yaml", &variables)?;
    apply_all(cluster, &connections)?;
    let grants = site.folder.join("grants.yaml");
    fs::write(&grants, merge_grants()?.to_string())?;
    let heartbeat = json!({ "upstreamRef": { "name": "rabbitmq" }, "routingKey": HEARTBEATS_QUEUE });
    let config = json!({ "namespace": NAMESPACE, "heartbeat": heartbeat });
    fs::write(site.plugins.join("devops-events.yaml"), config.to_string())?;

    let script = Script {
        output: site.folder.join("devops-servers.out"),
        events,
        initialize: read_event("devops-initialize.json", &variables)?,
        reconciles: vary_event(&read_event("devops-reconcile.json", &variables)?, variation),
        published: Vec::new(),
        lines: Lines::default(),
    };
    let mut expected: Vec<_> = connections
        .iter()
        .filter(|object| object["kind"] == "DnsProvider")
        .map(ObjectKey::from_manifest)
        .collect();
    expected.push(script.project());
    expected.extend(
        script
            .reconciles
            .iter()
            .map(|event| object_key("DeploymentRecord", &event["id"])),
    );
    Ok(Scene {
        servers: Some(servers),
        expected,
        grants,
        script: Some(script),
    })
}

fn read_example(name: &str, variables: &BTreeMap<String, String>) -> Result<Vec<Value>> {
    let variables = variables
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    read_manifests(
        &paths::workspace_root().join("deploy/examples").join(name),
        &variables,
    )
}

fn read_event(name: &str, variables: &BTreeMap<String, String>) -> Result<Value> {
    let mut documents = read_example(name, variables)?;
    documents.pop().with_context(|| format!("{name} has an event"))
}

/// The event of each deployment: the example is `d-1`, and the others are numbered, too.
fn vary_event(example: &Value, variation: &Variation) -> Vec<Value> {
    let numbered = (1..=variation.deployments).map(|n| {
        let mut event = example.clone();
        event["id"] = format!("d-{n}").into();
        event["ttl_seconds"] = variation.ttl_seconds.into();
        if let Some(host) = example["ingress"]["host"].as_str() {
            event["ingress"]["host"] = host.replacen("d-1", &format!("d-{n}"), 1).into();
        }
        event
    });
    numbered.collect()
}

fn object_key(kind: &str, name: &Value) -> ObjectKey {
    ObjectKey {
        kind: kind.into(),
        namespace: NAMESPACE.into(),
        name: name.as_str().unwrap_or_default().into(),
    }
}

/// Reads the accounts and roles of the plugins. Those of the DNS pack are for the namespace of the project here, which has the
/// DnsProvider.
fn read_accounts() -> Result<Vec<Value>> {
    let deploy = paths::workspace_root().join("deploy");
    let mut objects = read_manifests(&deploy.join("devops.yaml"), &BTreeMap::new())?;
    let text = fs::read_to_string(deploy.join("dns.yaml")).context("reading deploy/dns.yaml")?;
    let moved = text.replace("namespace: dns\n", &format!("namespace: {NAMESPACE}\n"));
    objects.extend(parse_manifests(&moved, &BTreeMap::new())?);
    Ok(objects)
}

/// Merges the grants of both packs, with any server in place of the origins, because the ports here are random.
fn merge_grants() -> Result<Value> {
    let deploy = paths::workspace_root().join("deploy");
    let mut plugins = serde_json::Map::new();
    for name in ["devops-grants.yaml", "dns-grants.yaml"] {
        let mut documents = read_manifests(&deploy.join(name), &BTreeMap::new())?;
        let mut all = documents.pop().with_context(|| format!("{name} has grants"))?;
        for (plugin, grant) in all["plugins"].as_object_mut().into_iter().flatten() {
            grant["serviceAccount"]["namespace"] = NAMESPACE.into();
            let secrets = grant.get_mut("secrets").and_then(Value::as_array_mut);
            for secret in secrets.into_iter().flatten() {
                if secret.get("origins").is_some() {
                    secret["origins"] = json!(["http://127.0.0.1:*"]);
                }
            }
            plugins.insert(plugin.clone(), grant.clone());
        }
    }
    Ok(json!({ "plugins": plugins }))
}

/// Explains how to publish further events.
pub fn usage_hint(folder: &Path) -> String {
    let events = folder.join("events");
    let events = events.display();
    format!(
        "Deploy again:   cd {events}
                sed s/d-1/d-2/ {RECONCILE_EVENT}-d-1.json > {RECONCILE_EVENT}-d-2.json
                A file in this folder is published. A deployment is cleaned up 60 s after it is live.
"
    )
}

/// The events of the demo: the first sets up a project, the others deploy it when it is Ready.
pub struct Script {
    /// The stdout of the servers.
    output: PathBuf,
    /// Folder whose files are published.
    events: PathBuf,
    initialize: Value,
    reconciles: Vec<Value>,
    published: Vec<Published>,
    lines: Lines,
}

/// An event, from its publication until its object is Ready.
struct Published {
    kind: &'static str,
    object: ObjectKey,
    at_ms: u64,
    ready_ms: Option<u64>,
}

impl Script {
    fn project(&self) -> ObjectKey {
        object_key("DevOpsProject", &self.initialize["project"])
    }

    /// Publishes the next events when the project is Ready, and reads what the servers have printed.
    pub fn advance(&mut self, objects: &[ObjectFacts]) -> Result<()> {
        self.read()?;
        let now = now_ms();
        for event in &mut self.published {
            let is_ready = |object: &ObjectFacts| object.ready && object.key() == event.object;
            if event.ready_ms.is_none() && objects.iter().any(is_ready) {
                event.ready_ms = Some(now.saturating_sub(event.at_ms));
            }
        }
        match &self.published[..] {
            [] => self.publish(INITIALIZE_EVENT, self.project(), &self.initialize.clone()),
            [first] if first.ready_ms.is_some() => {
                for event in self.reconciles.clone() {
                    self.publish(
                        RECONCILE_EVENT,
                        object_key("DeploymentRecord", &event["id"]),
                        &event,
                    )?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Publishes the events of deployments that are not part of the script.
    pub fn publish_deployments(&self, events: &[Value]) -> Result<()> {
        events
            .iter()
            .try_for_each(|event| self.write_event(RECONCILE_EVENT, event))
    }

    /// Puts an event into the folder.
    fn write_event(&self, kind: &str, event: &Value) -> Result<()> {
        let Some(id) = event["id"].as_str() else {
            bail!("the event {kind} has no id");
        };
        let text = serde_json::to_string_pretty(event)?;
        paths::replace_file(&self.events.join(format!("{kind}-{id}.json")), text.as_bytes())?;
        Ok(())
    }

    fn publish(&mut self, kind: &'static str, object: ObjectKey, event: &Value) -> Result<()> {
        self.write_event(kind, event)?;
        self.published.push(Published {
            kind,
            object,
            at_ms: now_ms(),
            ready_ms: None,
        });
        Ok(())
    }

    /// Reads what the servers have printed.
    pub fn read(&mut self) -> Result<()> {
        self.lines.parse(&fs::read_to_string(&self.output)?);
        Ok(())
    }

    /// Returns whether the deployments have succeeded, and their last heartbeats have come.
    pub fn is_complete(&self) -> bool {
        let is_done = |event: &Value| {
            let is_final = |body: &Value| body["id"] == event["id"] && body["status"] == "success";
            self.lines.heartbeats.iter().any(|(_, body)| is_final(body))
        };
        self.reconciles.iter().all(is_done)
    }

    /// Returns the events of the script whose object has become Ready, each with the milliseconds until then.
    pub fn ready_times(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let events = self.published.iter();
        events.filter_map(|event| Some((event.kind, event.ready_ms?)))
    }

    /// Counts the events that the servers have published.
    pub fn count_published(&self) -> usize {
        self.lines.published
    }

    /// Returns the heartbeats so far, each with its time in milliseconds.
    pub fn heartbeats(&self) -> &[(u64, Value)] {
        &self.lines.heartbeats
    }

    /// Counts the deployments that have sent a heartbeat.
    pub fn count_heartbeat_ids(&self) -> usize {
        let ids = self
            .lines
            .heartbeats
            .iter()
            .filter_map(|(_, body)| body["id"].as_str());
        ids.collect::<BTreeSet<_>>().len()
    }

    /// Returns servers and messages for the table.
    pub fn surroundings(&self) -> &Surroundings {
        &self.lines.shown
    }

    /// Adds events, heartbeats and servers to the report of `-o json`.
    pub fn extend_report(&self, report: &mut Value) {
        let events = self.published.iter().map(|event| {
            json!({ "type": event.kind, "kind": event.object.kind, "name": event.object.name, "ready_ms": event.ready_ms })
        });
        report["events"] = events.collect();
        report["heartbeats"] = self
            .lines
            .heartbeats
            .iter()
            .map(|(_, body)| body.clone())
            .collect();
        let servers = self.lines.shown.servers.iter();
        report["servers"] = servers
            .map(|(name, state)| json!({ "name": name, "state": state }))
            .collect();
    }
}

/// Returns the milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// The lines of the servers, as far as they were read.
#[derive(Default)]
struct Lines {
    read: usize,
    began_ms: Option<u64>,
    /// Number of events that were published.
    published: usize,
    heartbeats: Vec<(u64, Value)>,
    shown: Surroundings,
}

impl Lines {
    /// Parses the lines that were not read yet. The last one may be incomplete.
    fn parse(&mut self, output: &str) {
        let complete = output.rfind('\n').map_or(0, |end| end + 1);
        let lines = output[..complete].lines().skip(self.read);
        for line in lines {
            self.read += 1;
            let line: Value = serde_json::from_str(line).unwrap_or_default();
            if let (Some(server), Some(state)) = (line["server"].as_str(), line["state"].as_str()) {
                self.shown.set_state(server, state);
            }
            if line["message"].is_string() {
                self.add_message(&line);
            }
        }
    }

    fn add_message(&mut self, line: &Value) {
        let at_ms = line["at_ms"].as_u64().unwrap_or_default();
        let began = *self.began_ms.get_or_insert(at_ms);
        let seconds = at_ms.saturating_sub(began) as f64 / 1000.0;
        let (text, body) = (
            |value: &Value| value.as_str().unwrap_or("-").to_owned(),
            &line["body"],
        );
        let (kind, queue) = (text(&line["type"]), text(&line["queue"]));
        let arrow = if line["message"] == "published" {
            self.published += 1;
            "→"
        } else {
            "←"
        };
        let content = if queue == HEARTBEATS_QUEUE {
            self.heartbeats.push((at_ms, body.clone()));
            let (id, status, phase) = (text(&body["id"]), text(&body["status"]), text(&body["phase"]));
            format!("{id} {status}, {phase}: {}", text(&body["phase_message"]))
        } else if body["reason"].is_string() {
            format!("{kind} {}", text(&body["reason"]))
        } else {
            format!("{kind} {} of {}", text(&body["id"]), text(&body["project"]))
        };
        self.shown
            .messages
            .push(format!("{seconds:>6.1} s  {arrow} {queue}  {content}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables() -> BTreeMap<String, String> {
        let names = [
            "RABBITMQ_URL",
            "RABBITMQ_USER",
            "RABBITMQ_PASSWORD",
            "POWERDNS_URL",
            "POWERDNS_KEY",
            "DNS_ZONE",
            "GIT_URL",
            "GIT_USER",
            "GIT_PASSWORD",
            "REGISTRY_URL",
            "REGISTRY_USER",
            "REGISTRY_PASSWORD",
            "JENKINS_URL",
            "JENKINS_USER",
            "JENKINS_TOKEN",
        ];
        names
            .iter()
            .map(|name| ((*name).to_owned(), format!("x-{name}")))
            .collect()
    }

    #[test]
    fn examples_have_only_variables_of_the_servers() {
        for name in ["devops.yaml", "devops-initialize.json", "devops-reconcile.json"] {
            let documents = serde_json::to_string(&read_example(name, &variables()).unwrap()).unwrap();
            assert!(documents.contains("x-"), "{name}");
            assert!(!documents.contains("${"), "{name}: {documents}");
        }
    }

    #[test]
    fn accounts_of_the_grants_are_applied() {
        let accounts = read_accounts().unwrap();
        let grants = merge_grants().unwrap();
        let plugins = grants["plugins"].as_object().unwrap();
        assert!(DNS_PLUGINS.iter().all(|name| plugins.contains_key(*name)));
        for (name, grant) in plugins {
            let is_account = |object: &Value| {
                object["kind"] == "ServiceAccount"
                    && object["metadata"]["name"] == grant["serviceAccount"]["name"]
                    && object["metadata"]["namespace"] == grant["serviceAccount"]["namespace"]
            };
            assert!(accounts.iter().any(is_account), "{name}");
        }
    }

    #[test]
    fn second_event_is_published_when_the_project_is_ready() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("output");
        fs::write(&output, "").unwrap();
        let mut script = Script {
            output,
            events: folder.path().into(),
            initialize: json!({ "id": "p-1", "project": "shop" }),
            reconciles: vec![json!({ "id": "d-1" })],
            published: Vec::new(),
            lines: Lines::default(),
        };
        let second = folder.path().join("DevOpsReconcile-d-1.json");
        script.advance(&[]).unwrap();
        assert!(folder.path().join("DevOpsInitialize-p-1.json").is_file());
        script.advance(&[]).unwrap();
        assert!(!second.exists());
        let project = ObjectFacts {
            kind: "DevOpsProject".into(),
            namespace: NAMESPACE.into(),
            name: "shop".into(),
            ready: true,
            ..ObjectFacts::default()
        };
        script.advance(&[project]).unwrap();
        assert!(second.is_file());
        assert!(!script.is_complete());
    }

    #[test]
    fn incomplete_line_is_read_when_it_is_complete() {
        let mut lines = Lines::default();
        let heartbeat = json!({ "message": "received", "at_ms": 5500, "queue": "heartbeats", "type": "t",
            "body": { "id": "d-1", "status": "success", "phase": "verifying", "phase_message": "It is live." } });
        let event = json!({ "message": "published", "at_ms": 4000, "queue": "devops-events", "type": "DevOpsReconcile",
            "body": { "id": "d-1", "project": "shop" } });
        let text = format!("{event}\n{heartbeat}\n");
        lines.parse(&text[..text.len() - 9]);
        assert_eq!(lines.heartbeats.len(), 0);
        lines.parse(&text);
        assert_eq!(
            lines.shown.messages,
            [
                "   0.0 s  → devops-events  DevOpsReconcile d-1 of shop",
                "   1.5 s  ← heartbeats  d-1 success, verifying: It is live."
            ]
        );
        assert_eq!((lines.heartbeats.len(), lines.published), (1, 1));
    }
}
