//! Each way in which each server of the DevOps and DNS packs fails, at each step in the life of the objects that need it, by the
//! whole host. What is promised is stated once, and holds in every cell.

use std::collections::BTreeMap;

use devops_simulators::{
    argo::{ARGO_TOKEN, Argo},
    git::{GIT_PASSWORD, GIT_USER, GitServer},
    jenkins::{JENKINS_TOKEN, JENKINS_USER, Jenkins},
};
use dns_simulators::{Cloudflare, DnsSimulator, GoDaddy};
use ostler::testing::key::{Gvk, ObjectRef};
use ostler_test_harness::{
    Lab, find_condition,
    gateway::{Gateway, ServerFault},
    powerdns::{POWERDNS_KEY, PowerDns},
    registry::{REGISTRY_PASSWORD, REGISTRY_USER, RegistryProcess},
    scenario,
};
use serde_json::{Value, json};

use crate::devops::{kind, object, pack::ZONE, prepare, secret};

const COMPONENTS: [&str; 9] = [
    "devops/devops-argo",
    "devops/devops-git",
    "devops/devops-jenkins",
    "devops/devops-registry",
    "dns/dns-cloudflare",
    "dns/dns-godaddy",
    "dns/dns-powerdns",
    "dns/dns-provider",
    "dns/dns-record",
];
const CLOUDFLARE_TOKEN: &str = "cloudflare-token-0002";
const GODADDY_KEYS: &str = "godaddy-key-0002:godaddy-secret-0002";
const DEFINITION: &str = "pipelines:\n- name: build\n  stages: [{name: Test, steps: [make test]}]\n";
/// Address of what others have at the DNS servers.
const FOREIGN_ADDRESS: &str = "192.0.2.99";

/// A server behind a gateway, and the kind whose objects need it.
struct Target {
    server: &'static str,
    /// The server's name in messages; of a DNS server the class of its DnsProvider.
    display_name: &'static str,
    kind: Gvk,
    /// The kind that a driver reconciles for each object, which is a DnsRecord then.
    record_set: Option<Gvk>,
    gateway: Gateway,
    /// Its objects leave something at the server, so their deletion waits for it.
    is_cleaned_up: bool,
}

fn dns_kind(kind: &str) -> Gvk {
    Gvk::new("dns.ostler.dev", "v1alpha1", kind)
}

impl Target {
    async fn start(names: [&'static str; 2], kind: Gvk, origin: &str, is_cleaned_up: bool) -> Self {
        Self {
            server: names[0],
            display_name: names[1],
            kind,
            record_set: None,
            gateway: Gateway::start(origin).await,
            is_cleaned_up,
        }
    }

    /// A DNS server, with the kind of the record sets of its driver.
    async fn start_dns(names: [&'static str; 2], record_set: &str, origin: &str) -> Self {
        Self {
            record_set: Some(dns_kind(record_set)),
            ..Self::start(names, dns_kind("DnsRecord"), origin, true).await
        }
    }

    /// A message names the server, so that people know what is down.
    fn is_named_in(&self, message: &str) -> bool {
        let address = self.gateway.address().to_string();
        [&*address, self.display_name, "check the URL"]
            .iter()
            .any(|name| message.contains(name))
    }

    /// The name of an object.
    fn name(&self, step: &str, fault: ServerFault) -> String {
        format!("{}-{step}-{fault:?}", self.server).to_lowercase()
    }

    fn build(&self, lab: &Lab, name: &str) -> Value {
        let key = |name: &str| json!({ "name": name, "key": "value" });
        let (url, ca) = (self.gateway.url(), key(&format!("ca-{}", self.server)));
        let spec = match self.server {
            "registry" => json!({ "url": url, "repository": "team/app", "username": REGISTRY_USER,
                "passwordRef": key("registry"), "caRef": ca }),
            "git" => {
                json!({ "url": format!("{url}/app.git"), "username": GIT_USER, "passwordRef": key("git"), "caRef": ca })
            }
            "jenkins" => {
                json!({ "url": url, "username": JENKINS_USER, "tokenRef": key("jenkins"), "caRef": ca, "project": name,
                "environments": ["alpha"], "git": { "credentialsRef": { "name": "app" } }, "credentials": [] })
            }
            "argo" => {
                let repository = "https://git.example.com/apps.git";
                json!({ "server": { "url": url, "tokenRef": key("argo"), "caRef": ca },
                    "projects": [{ "name": name, "destinations": [{ "namespace": lab.namespace }] }],
                    "repositories": [{ "name": "apps", "url": repository, "project": name, "passwordRef": key("git") }],
                    "applications": [{ "name": name, "project": name,
                        "source": { "repoURL": repository, "path": "web", "revision": "v1" } }] })
            }
            provider => json!({ "providerRef": { "name": provider }, "zone": ZONE, "name": name, "type": "A",
                "values": ["192.0.2.1"] }),
        };
        let mut object = object(lab, &self.kind.kind, name, spec);
        object["apiVersion"] = self.kind.api_version().into();
        object
    }
}

/// The servers themselves.
struct AllServers {
    registry: RegistryProcess,
    git: GitServer,
    jenkins: Jenkins,
    argo: Argo,
    powerdns: PowerDns,
    cloudflare: DnsSimulator<Cloudflare>,
    godaddy: DnsSimulator<GoDaddy>,
}

impl AllServers {
    /// Starts them, with something that belongs to others, and a gateway for each.
    async fn start() -> (Self, Vec<Target>) {
        let servers = Self {
            registry: RegistryProcess::start_private(),
            git: GitServer::start_private().await,
            jenkins: Jenkins::start().await,
            argo: Argo::start().await,
            powerdns: PowerDns::start().await,
            cloudflare: DnsSimulator::start_cloudflare(ZONE, CLOUDFLARE_TOKEN).await,
            godaddy: DnsSimulator::start_godaddy(ZONE, GODADDY_KEYS).await,
        };
        servers.git.create_repository("app");
        servers.git.commit("app", "main", &[("devops.yaml", DEFINITION)]);
        servers
            .jenkins
            .set_config("foreign", "<com.cloudbees.hudson.plugins.folder.Folder/>");
        let project = json!({ "project": { "metadata": { "name": "foreign" }, "spec": {} } });
        servers.argo.send("POST", "/api/v1/projects", &project).await;
        servers.powerdns.create_zone(ZONE).await;
        let name = format!("foreign.{ZONE}");
        servers
            .powerdns
            .replace(ZONE, &name, "A", &[FOREIGN_ADDRESS])
            .await;
        servers
            .cloudflare
            .put_record(&json!({ "name": name, "type": "A", "content": FOREIGN_ADDRESS, "ttl": 1 }));
        servers
            .godaddy
            .put_record(&json!({ "name": "foreign", "type": "A", "data": FOREIGN_ADDRESS, "ttl": 600 }));
        let registry = format!("http://{}", servers.registry.address());
        let targets = vec![
            Target::start(
                ["registry", "registry"],
                kind("ContainerRegistry"),
                &registry,
                false,
            )
            .await,
            Target::start(["git", "git"], kind("GitCredentials"), servers.git.url(), false).await,
            Target::start(
                ["jenkins", "Jenkins"],
                kind("JenkinsSetting"),
                servers.jenkins.url(),
                true,
            )
            .await,
            Target::start(["argo", "Argo CD"], kind("ArgoSetting"), servers.argo.url(), true).await,
            Target::start_dns(
                ["powerdns", "PowerDNS"],
                "PowerDnsRecordSet",
                &servers.powerdns.url(),
            )
            .await,
            Target::start_dns(
                ["cloudflare", "Cloudflare"],
                "CloudflareRecordSet",
                &servers.cloudflare.origin(),
            )
            .await,
            Target::start_dns(
                ["godaddy", "GoDaddy"],
                "GoDaddyRecordSet",
                &servers.godaddy.origin(),
            )
            .await,
        ];
        (servers, targets)
    }

    /// What is at the servers.
    async fn list_all(&self) -> BTreeMap<&'static str, Vec<String>> {
        let names = async |path: &str| -> Vec<String> {
            let items = self.argo.send("GET", path, &Value::Null).await.1["items"].clone();
            let items = items.as_array().cloned().unwrap_or_default();
            let names = items.iter().map(|item| item["metadata"]["name"].to_string());
            names.collect()
        };
        BTreeMap::from([
            ("jenkins", self.jenkins.items()),
            (
                "argo",
                [
                    names("/api/v1/projects").await,
                    names("/api/v1/applications").await,
                ]
                .concat(),
            ),
            ("powerdns", self.powerdns.record_sets(ZONE).await),
            ("cloudflare", self.cloudflare.records()),
            ("godaddy", self.godaddy.records()),
        ])
    }
}

/// Applies the Secrets and the objects that all others need.
async fn apply_connections(lab: &Lab, servers: &AllServers, targets: &[Target]) {
    for (name, value) in [
        ("git", GIT_PASSWORD),
        ("jenkins", JENKINS_TOKEN),
        ("registry", REGISTRY_PASSWORD),
        ("argo", ARGO_TOKEN),
        ("powerdns", POWERDNS_KEY),
        ("cloudflare", CLOUDFLARE_TOKEN),
        ("godaddy", GODADDY_KEYS),
    ] {
        lab.apply(secret(lab, name, value)).await;
    }
    let key = |name: &str| json!({ "name": name, "key": "value" });
    let app =
        json!({ "url": servers.git.repository_url("app"), "username": GIT_USER, "passwordRef": key("git") });
    lab.apply(object(lab, "GitCredentials", "app", app)).await;
    for target in targets {
        let ca = format!("ca-{}", target.server);
        lab.apply(secret(lab, &ca, target.gateway.authority())).await;
        if target.record_set.is_none() {
            continue;
        }
        let class = target.display_name;
        let path = if class == "Cloudflare" { "/client/v4" } else { "" };
        let spec = json!({ "class": class, "url": format!("{}{path}", target.gateway.url()), "ownerID": "tests",
            "tls": { "caRef": key(&ca) }, "limits": { "requestsPerSecond": 1000 }, "credentialsRef": key(target.server) });
        let mut provider = object(lab, "DnsProvider", target.server, spec);
        provider["apiVersion"] = target.kind.api_version().into();
        lab.apply(provider).await;
    }
}

/// The objects of all targets at a step, in their order.
fn list_objects(targets: &[Target], step: &str, fault: ServerFault) -> Vec<(Gvk, String)> {
    let objects = targets.iter();
    objects
        .map(|target| (target.kind.clone(), target.name(step, fault)))
        .collect()
}

/// The keys of all objects and record sets at these steps, which look at the servers.
fn list_polled(lab: &Lab, targets: &[Target], steps: &[&str], faults: &[ServerFault]) -> Vec<ObjectRef> {
    let mut keys = Vec::new();
    for target in targets {
        for (step, fault) in steps
            .iter()
            .flat_map(|step| faults.iter().map(move |fault| (step, fault)))
        {
            let name = target.name(step, *fault);
            let kinds = [Some(&target.kind), target.record_set.as_ref()];
            keys.extend(kinds.into_iter().flatten().map(|kind| lab.key(kind, &name)));
        }
    }
    keys
}

/// The condition Ready of an object, null while it has none for its generation.
async fn ready(lab: &Lab, kind: &Gvk, name: &str) -> Value {
    find_condition(&lab.get(kind, name).await.unwrap_or_default(), "Ready")
}

async fn are_ready(lab: &Lab, objects: &[(Gvk, String)]) -> bool {
    for (kind, name) in objects {
        if ready(lab, kind, name).await["status"] != "True" {
            return false;
        }
    }
    true
}

/// The promises that the cells of a fault break: one object is created while the servers fail, one has been Ready before, and one is
/// deleted meanwhile.
async fn find_broken_promises(lab: &Lab, targets: &[Target], fault: ServerFault) -> Vec<String> {
    let mut broken = Vec::new();
    let of = |step: &str| list_objects(targets, step, fault);
    let (new, kept, deleted) = (of("new"), of("kept"), of("deleted"));
    let live = [new.clone(), kept.clone()].concat();
    let polled = list_polled(lab, targets, &["new", "kept", "deleted"], &[fault]);
    for (target, (kept, deleted)) in targets.iter().zip(kept.iter().zip(&deleted)) {
        lab.apply(target.build(lab, &kept.1)).await;
        lab.apply(target.build(lab, &deleted.1)).await;
    }
    let before = [kept.clone(), deleted.clone()].concat();
    let polled_before = list_polled(lab, targets, &["kept", "deleted"], &[fault]);
    lab.wait_polling(&polled_before, "the objects are Ready", || {
        are_ready(lab, &before)
    })
    .await;

    for target in targets {
        target.gateway.set_fault(Some(fault));
    }
    for (target, (new, deleted)) in targets.iter().zip(new.iter().zip(&deleted)) {
        lab.apply(target.build(lab, &new.1)).await;
        lab.delete(&deleted.0, &deleted.1).await;
    }
    let is_slow = fault == ServerFault::Slow;
    let what = format!("the conditions tell of {fault:?}");
    lab.wait_polling(&polled, &what, async || {
        for (kind, name) in &live {
            let ready = ready(lab, kind, name).await;
            let expected = if is_slow { "True" } else { "False" };
            if ready["status"] != expected || ready["reason"] == "Comparing" {
                return false;
            }
        }
        for (target, (kind, name)) in targets.iter().zip(&deleted) {
            let found = lab.get(kind, name).await;
            let waits = target.is_cleaned_up && !is_slow;
            let is_told = |found: &Value| {
                find_condition(found, "Ready")["status"] == "False" && target.gateway.count_failures() > 0
            };
            if waits && !found.as_ref().is_some_and(is_told) || !waits && found.is_some() {
                return false;
            }
        }
        true
    })
    .await;
    for (target, objects) in targets.iter().zip(new.iter().zip(&kept).zip(&deleted)) {
        let ((new, kept), deleted) = objects;
        for (kind, name) in [new, kept, deleted] {
            let ready = ready(lab, kind, name).await;
            println!("{name}: {} {}", ready["reason"], ready["message"]);
            let message = ready["message"].as_str().unwrap_or_default();
            if !is_slow && !ready.is_null() && !target.is_named_in(message) {
                broken.push(format!("{name}: its server is not named: {message}"));
            }
            if message.contains("<html") || message.contains("docs.rs") {
                broken.push(format!("{name}: it is not for people: {message}"));
            }
        }
    }

    for target in targets {
        target.gateway.set_fault(None);
    }
    let what = format!("all is as wanted after {fault:?}");
    lab.wait_polling(&polled, &what, async || {
        for (kind, name) in &deleted {
            if lab.get(kind, name).await.is_some() {
                return false;
            }
        }
        are_ready(lab, &live).await
    })
    .await;
    broken.sort();
    broken
}

/// Checks all promises in the cells of these faults.
async fn check_faults(mut lab: Lab, faults: &[ServerFault]) {
    let (servers, targets) = AllServers::start().await;
    prepare(&mut lab, &COMPONENTS).await;
    lab.start_host().await;
    let foreign = servers.list_all().await;
    apply_connections(&lab, &servers, &targets).await;
    let mut broken = Vec::new();
    for fault in faults {
        broken.extend(find_broken_promises(&lab, &targets, *fault).await);
    }
    assert!(broken.is_empty(), "{broken:#?}");
    let mut all = Vec::new();
    for fault in faults {
        all.extend(["new", "kept"].map(|step| list_objects(&targets, step, *fault)));
    }
    let all = all.concat();
    for (kind, name) in &all {
        lab.delete(kind, name).await;
    }
    let polled = list_polled(&lab, &targets, &["new", "kept"], faults);
    lab.wait_polling(&polled, "all are gone", async || {
        for (kind, name) in &all {
            if lab.get(kind, name).await.is_some() {
                return false;
            }
        }
        true
    })
    .await;
    assert_eq!(servers.list_all().await, foreign, "only what others made is left");
}

#[scenario]
async fn objects_survive_each_quick_fault_of_each_server(lab: Lab) {
    check_faults(lab, &ServerFault::QUICK).await;
}

/// The same with all faults, on both API servers.
#[scenario(campaign = "waits for servers that hang")]
async fn objects_survive_each_fault_of_each_server(lab: Lab) {
    check_faults(lab, &ServerFault::ALL).await;
}
