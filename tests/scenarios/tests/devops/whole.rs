//! The whole pack on a real broker, a real git server, a real registry and a real DNS server: two events, and what becomes of
//! them until nothing is left. No secret is seen on the way.

use std::sync::{Arc, Mutex};

use base64::{Engine, prelude::BASE64_STANDARD};
use devops_simulators::{git::GIT_PASSWORD, jenkins::JENKINS_TOKEN};
use ostler::testing::{engine::Inspector, key::Gvk, recording::Retention};
use ostler_test_harness::{
    Lab, captured_logs, find_condition,
    gateway::Gateway,
    powerdns::{POWERDNS_KEY, PowerDns},
    rabbitmq::RABBITMQ_PASSWORD,
    registry::REGISTRY_PASSWORD,
    scenario,
};
use serde_json::{Value, json};

use super::{
    cluster::{INGRESS_ADDRESS, certificate, dns_record, ingress, secrets},
    events::wait_heartbeat,
    kind,
    pack::{HOST, PIPELINE, PackLab, ZONE, app_project, application},
    secret,
};

/// Type of A records.
const A: u16 = 1;
/// Address of a host that the pack has not set up.
const FOREIGN_ADDRESS: &str = "192.0.2.99";
/// The secrets of all servers.
const SECRETS: [&str; 5] = [
    GIT_PASSWORD,
    JENKINS_TOKEN,
    REGISTRY_PASSWORD,
    RABBITMQ_PASSWORD,
    POWERDNS_KEY,
];

/// Rules that the course of a deployment does not need.
const UNUSED_RULES: &[&str] = &[
    // Users of the secure address, of which there are none.
    "ostler create tokenreviews.authentication.k8s.io",
    // An Argo CD that is reached by its API.
    "devops-argo create upstreams.ostler.dev",
    "devops-argo patch upstreams.ostler.dev",
    // The address of an ingress controller's Service.
    "devops-ingress get services",
    "ostler list services",
    "ostler watch services",
    // A project that has no Jenkins any more.
    "devops-project delete jenkinssettings.devops.ostler.dev",
    // An imagePullSecret whose password changes.
    "devops-registry patch secrets",
    // A DnsProvider that is deleted, or names another resolver.
    "dns-provider delete upstreams.ostler.dev",
    "dns-provider list dnsrecords.dns.ostler.dev",
    "dns-provider watch dnsrecords.dns.ostler.dev",
    // The record sets of other providers: one plugin has rights for all.
    "dns-record create cloudflarerecordsets.dns.ostler.dev",
    "dns-record create godaddyrecordsets.dns.ostler.dev",
    "dns-record delete cloudflarerecordsets.dns.ostler.dev",
    "dns-record delete godaddyrecordsets.dns.ostler.dev",
    "dns-record get cloudflarerecordsets.dns.ostler.dev",
    "dns-record get godaddyrecordsets.dns.ostler.dev",
    "dns-record patch cloudflarerecordsets.dns.ostler.dev",
    "dns-record patch godaddyrecordsets.dns.ostler.dev",
    "ostler list cloudflarerecordsets.dns.ostler.dev",
    "ostler list godaddyrecordsets.dns.ostler.dev",
    "ostler watch cloudflarerecordsets.dns.ostler.dev",
    "ostler watch godaddyrecordsets.dns.ostler.dev",
    // A plugin may read past the cache, which its manifest does not tell; this one does not.
    "ostler impersonate dns-powerdns",
];

/// Starts a DNS server with the zone of the deployments, and a host with its provider.
pub async fn start_with_dns(pack: &mut PackLab) -> PowerDns {
    let dns = PowerDns::start().await;
    dns.create_zone(ZONE).await;
    pack.start_host().await;
    apply_provider(&pack.lab, &json!({ "url": dns.url() })).await;
    dns
}

/// Starts the same, with a gateway in front of the DNS server.
pub async fn start_with_dns_gateway(pack: &mut PackLab) -> (PowerDns, Gateway) {
    let dns = PowerDns::start().await;
    dns.create_zone(ZONE).await;
    let gateway = Gateway::start(&dns.url()).await;
    pack.start_host().await;
    let lab = &pack.lab;
    lab.apply(secret(lab, "dns-ca", gateway.authority())).await;
    let authority = json!({ "name": "dns-ca", "key": "value" });
    apply_provider(
        lab,
        &json!({ "url": gateway.url(), "tls": { "caRef": authority } }),
    )
    .await;
    (dns, gateway)
}

/// Applies the DnsProvider `dns` of a PowerDNS server, and waits until it is Ready.
async fn apply_provider(lab: &Lab, connection: &Value) {
    lab.apply(secret(lab, "dns", POWERDNS_KEY)).await;
    let mut spec = json!({ "class": "PowerDNS", "ownerID": "tests", "zones": [ZONE],
        "credentialsRef": { "name": "dns", "key": "value" } });
    for (field, value) in connection.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let provider = json!({ "apiVersion": "dns.ostler.dev/v1alpha1", "kind": "DnsProvider",
        "metadata": { "name": "dns", "namespace": lab.namespace }, "spec": spec });
    lab.apply(provider).await;
    let provider = Gvk::new("dns.ostler.dev", "v1alpha1", "DnsProvider");
    lab.wait_ready(&provider, "dns").await;
}

/// What others have beside the pack.
struct Foreign {
    objects: Vec<Value>,
    records: Vec<String>,
}

impl Foreign {
    async fn create(pack: &PackLab, dns: &PowerDns) -> Self {
        let lab = &pack.lab;
        let of = |api_version: &str, kind: &str, spec: Value| {
            json!({ "apiVersion": api_version, "kind": kind,
                "metadata": { "name": "foreign", "namespace": lab.namespace }, "spec": spec })
        };
        let argo = "argoproj.io/v1alpha1";
        let backend = json!({ "service": { "name": "web", "port": { "number": 80 } } });
        let path = json!({ "path": "/", "pathType": "Prefix", "backend": backend });
        let rules = json!([{ "host": "foreign.example.test", "http": { "paths": [path] } }]);
        for object in [
            of(
                argo,
                "AppProject",
                json!({ "destinations": [{ "server": "*", "namespace": "*" }] }),
            ),
            of(
                argo,
                "Application",
                json!({ "project": "foreign",
                "destination": { "server": "https://kubernetes.default.svc", "namespace": "foreign" },
                "source": { "repoURL": "https://git.example.com/foreign.git", "path": "web" } }),
            ),
            of("networking.k8s.io/v1", "Ingress", json!({ "rules": rules })),
            secret(lab, "foreign", "a value"),
        ] {
            lab.apply(object).await;
        }
        pack.servers
            .jenkins
            .set_config("foreign", "<com.cloudbees.hudson.plugins.folder.Folder/>");
        dns.replace(ZONE, "foreign.example.test", "A", &[FOREIGN_ADDRESS])
            .await;
        Self {
            objects: Self::read(lab).await,
            records: dns.record_sets(ZONE).await,
        }
    }

    /// The objects without what their controllers change.
    async fn read(lab: &Lab) -> Vec<Value> {
        let mut objects = Vec::new();
        for gvk in [app_project(), application(), ingress(), secrets()] {
            let object = lab.get(&gvk, "foreign").await.expect("it stays");
            objects.push(json!([
                object["metadata"]["uid"],
                object["spec"],
                object["data"],
                object["metadata"]["deletionTimestamp"]
            ]));
        }
        objects
    }

    async fn assert_kept(&self, pack: &PackLab, dns: &PowerDns) {
        assert_eq!(Self::read(&pack.lab).await, self.objects);
        assert_eq!(dns.record_sets(ZONE).await, self.records);
        assert_eq!(pack.servers.jenkins.items(), ["foreign"]);
    }
}

/// Host and plugins act as their service accounts, and no rule of theirs is without use.
#[scenario(argocd)]
async fn events_set_up_a_project_and_deploy_it_until_nothing_is_left(lab: Lab) {
    let mut pack = PackLab::start(lab, true).await;
    let dns = start_with_dns(&mut pack).await;
    let foreign = Foreign::create(&pack, &dns).await;
    let project = pack.set_up_project().await;
    for condition in ["RegistryReady", "RepositoryReady", "ArgoReady", "JenkinsReady"] {
        assert_eq!(
            find_condition(&project, condition)["status"],
            "True",
            "{condition}"
        );
    }
    let no_application = pack.lab.get(&application(), "shop-alpha").await;
    assert_eq!(no_application, None, "no deployment needs it");

    pack.gate.arm(Vec::new());
    pack.publish_deployment("d-1", 3).await;
    let live = wait_heartbeat(&pack.client, "d-1", "success").await;
    let url = format!("https://{HOST}");
    assert_eq!(
        live,
        json!({ "operation": "heartbeat", "id": "d-1", "status": "success", "phase": "verifying",
            "phase_message": format!("The deployment is live at {url}."), "url": url })
    );
    let address = INGRESS_ADDRESS.parse::<std::net::Ipv4Addr>().expect("an address");
    assert!(dns.resolve(HOST, A).await.has(&address.octets()));
    let record = pack
        .lab
        .wait_condition(&kind("DeploymentRecord"), "d-1", "Ready", "False", "CleanedUp")
        .await;
    assert_eq!(record["status"]["heartbeat"]["finalConfirmed"], true);
    assert_eq!(record["status"]["ttl"]["phase"], "Completed");
    assert_eq!(pack.count_builds("d-1"), 1);
    assert_eq!(pack.servers.jenkins.builds(PIPELINE).len(), 1);
    assert_eq!(pack.count_syncs(&record), 1);
    assert_eq!(pack.argo_cd.operations().len(), 1);
    let effects = pack.gate.effects();
    assert_order_of_deletions(&effects);
    let is_of_project = |effect: &&String| effect.contains(" devopsprojects/");
    assert_eq!(
        effects.iter().find(is_of_project),
        None,
        "the project stays Ready while its application comes and goes"
    );
    assert!(!dns.resolve(HOST, A).await.has(&address.octets()));
    for (gvk, name) in [
        (application(), "shop-alpha"),
        (kind("IngressResource"), "d-1"),
        (ingress(), "d-1"),
        (dns_record(), "d-1"),
        (certificate(), "d-1"),
        (secrets(), "d-1-tls"),
    ] {
        assert_eq!(pack.lab.get(&gvk, name).await, None, "{} {name}", gvk.kind);
    }

    pack.lab.delete(&kind("DeploymentRecord"), "d-1").await;
    pack.lab.wait_gone(&kind("DeploymentRecord"), "d-1").await;
    pack.lab.delete(&kind("DevOpsProject"), "shop").await;
    for child in [
        "ArgoSetting",
        "ContainerRegistry",
        "GitCredentials",
        "JenkinsSetting",
    ] {
        pack.lab.wait_gone(&kind(child), "shop").await;
    }
    assert_eq!(pack.lab.get(&app_project(), "shop").await, None);
    assert_eq!(pack.lab.get(&secrets(), "pull").await, None);
    foreign.assert_kept(&pack, &dns).await;
    pack.lab.wait_idle().await;
    pack.lab.assert_exact_rights(UNUSED_RULES);
}

/// Applications go first, then the Ingress, the DNS record, the certificate, and its Secret.
fn assert_order_of_deletions(effects: &[String]) {
    let deletions = effects.iter().filter_map(|effect| effect.strip_prefix("DELETE "));
    let deletions: Vec<&str> = deletions
        .filter(|name| !name.starts_with("powerdnsrecordsets/"))
        .collect();
    let expected = [
        "applications/shop-alpha",
        "ingressresources/d-1",
        "ingresses/d-1",
        "dnsrecords/d-1",
        "certificates/d-1",
        "secrets/d-1-tls",
    ];
    assert_eq!(deletions, expected);
}

#[scenario(argocd)]
async fn secrets_stay_out_of_memory_logs_recordings_and_objects(lab: Lab) {
    let needles: Vec<String> = SECRETS.iter().flat_map(|secret| spell(secret)).collect();
    let found = Arc::new(Mutex::new((0_u32, Vec::new())));
    let (looking, sought) = (found.clone(), needles.clone());
    let mut pack = PackLab::start(lab, true).await;
    pack.lab.settings.record.retention = Retention::All;
    pack.lab.settings.record.max_count = 10_000;
    pack.lab.settings.record.max_bytes = 256 << 20;
    pack.lab.settings.inspect = Some(Inspector::new(move |memory: &[u8]| {
        let mut found = looking.lock().expect("lock");
        found.0 += 1;
        let seen = sought
            .iter()
            .filter(|needle| memchr::memmem::find(memory, needle.as_bytes()).is_some());
        found.1.extend(seen.cloned());
    }));
    let _dns = start_with_dns(&mut pack).await;
    pack.set_up_project().await;
    pack.publish_deployment("d-1", 10_800).await;
    pack.lab.wait_ready(&kind("DeploymentRecord"), "d-1").await;
    pack.lab.wait_idle().await;

    assert_delivered(&pack).await;
    let (calls, leaks) = found.lock().expect("lock").clone();
    assert!(
        calls > 20 && leaks.is_empty(),
        "{leaks:?} in the memory of {calls} calls"
    );
    let mut texts = read_recordings(&pack.lab);
    texts.push(captured_logs());
    texts.extend(read_objects(&pack.lab).await);
    for needle in &needles {
        let seen = texts.iter().find(|text| text.contains(needle));
        assert_eq!(seen, None, "{needle}");
    }
}

/// The secrets have arrived where they belong, where the search finds them.
async fn assert_delivered(pack: &PackLab) {
    let stored = pack.servers.jenkins.credential("shop", "registry");
    assert!(stored.is_some_and(|xml| xml.contains(REGISTRY_PASSWORD)));
    let secrets = pack.lab.list(&secrets()).await;
    let has_value = |secret: &Value, text: &str| {
        let mut values = secret["data"].as_object().into_iter().flatten();
        values.any(|(_, value)| {
            let decoded = BASE64_STANDARD.decode(value.as_str().unwrap_or_default());
            decoded.is_ok_and(|bytes| memchr::memmem::find(&bytes, text.as_bytes()).is_some())
        })
    };
    // Its own Secret, and that of Argo CD, or for pulling images.
    for text in [GIT_PASSWORD, REGISTRY_PASSWORD] {
        let with_value: Vec<_> = secrets.iter().filter(|secret| has_value(secret, text)).collect();
        assert_eq!(with_value.len(), 2, "{with_value:#?}");
        let is_found = |needle: &String| {
            with_value
                .iter()
                .any(|secret| secret.to_string().contains(needle))
        };
        assert!(spell(text).iter().any(is_found));
    }
}

fn read_recordings(lab: &Lab) -> Vec<String> {
    let kept = lab.host().services().recordings.list();
    let texts: Vec<String> = kept.iter().map(|kept| kept.to_recording().to_text()).collect();
    for function in [
        "kubernetes.apply",
        "http.send",
        "messaging.publish",
        "kubernetes.create",
    ] {
        assert!(
            texts.iter().any(|text| text.contains(function)),
            "no {function} was recorded"
        );
    }
    texts
}

/// All objects besides Secrets.
async fn read_objects(lab: &Lab) -> Vec<String> {
    let pack = [
        "ArgoSetting",
        "ContainerRegistry",
        "DeploymentRecord",
        "DevOpsProject",
        "GitCredentials",
        "IngressResource",
        "JenkinsSetting",
    ];
    let others = [
        app_project(),
        application(),
        certificate(),
        dns_record(),
        ingress(),
        Gvk::new("ostler.dev", "v1alpha1", "Upstream"),
        Gvk::new("dns.ostler.dev", "v1alpha1", "DnsProvider"),
        Gvk::new("", "v1", "Event"),
    ];
    let mut texts = Vec::new();
    for gvk in pack.map(kind).iter().chain(&others) {
        let objects = lab.list(gvk).await;
        assert!(!objects.is_empty(), "{}", gvk.kind);
        texts.extend(objects.iter().map(Value::to_string));
    }
    texts
}

/// The spellings of a secret: as it is, and in base64 at each of the three alignments.
fn spell(secret: &str) -> Vec<String> {
    let mut spellings = vec![secret.to_owned()];
    for offset in 0..3 {
        let mut bytes = vec![b'.'; offset];
        bytes.extend(secret.bytes());
        let encoded = BASE64_STANDARD.encode(&bytes);
        // Without the characters that depend on what is before and after it.
        let first = (offset * 8).div_ceil(6);
        let last = bytes.len() * 8 / 6;
        spellings.push(encoded[first..last].to_owned());
    }
    spellings
}
