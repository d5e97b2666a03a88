//! The DNS pack on a real PowerDNS server: records are served, foreign ones are left alone, and nothing stays.

mod deletion;
mod front;
mod hosted;
mod records;

use front::Front;
use ostler::testing::{dispatcher::Cause, grants::Grants, key::Gvk, queue::Priority};
use ostler_test_harness::{
    Lab,
    powerdns::{POWERDNS_KEY, PowerDns},
};
use serde_json::{Value, json};

/// Components of the pack that records of PowerDNS need.
const COMPONENTS: [&str; 3] = ["dns/dns-provider", "dns/dns-record", "dns/dns-powerdns"];
const GRANTS: &str = include_str!("../../../deploy/dns-grants.yaml");
/// Zone of the tests.
const ZONE: &str = "example.test";

/// Returns a kind of the pack.
fn kind(kind: &str) -> Gvk {
    Gvk::new("dns.ostler.dev", "v1alpha1", kind)
}

fn secret_kind() -> Gvk {
    Gvk::new("", "v1", "Secret")
}

/// The grants of `deploy/`, for any server, with accounts in the namespace of the test.
fn grants(lab: &Lab) -> Grants {
    let mut grants: Value = serde_saphyr::from_str(GRANTS).expect("YAML");
    for (_, grant) in grants["plugins"].as_object_mut().expect("plugins") {
        grant["serviceAccount"]["namespace"] = lab.namespace.clone().into();
        let secrets = grant.get_mut("secrets").and_then(Value::as_array_mut);
        for secret in secrets.into_iter().flatten() {
            secret["origins"] = json!(["*", "http://*:*"]);
        }
    }
    Grants::parse(&grants.to_string(), "dns-grants.yaml").expect("the grants parse")
}

/// Installs components of the pack, with the accounts and roles that follow from the grants, and starts a host that has its own.
async fn start_host(lab: &mut Lab, components: &[&str]) {
    lab.use_accounts(components, grants(lab)).await;
    lab.install(components);
    lab.start_host().await;
}

/// A lab with a DNS server of its own and a host with the pack.
struct DnsLab {
    lab: Lab,
    dns: PowerDns,
    /// Passes requests on to the server, counts them, and answers DNS over HTTPS.
    front: Front,
}

impl DnsLab {
    async fn start(mut lab: Lab) -> Self {
        let dns = PowerDns::start().await;
        dns.create_zone(ZONE).await;
        let front = Front::start(dns.url(), dns.dns_address()).await;
        start_host(&mut lab, &COMPONENTS).await;
        Self { lab, dns, front }
    }

    /// Starts with a provider that is Ready.
    async fn start_with_provider(lab: Lab) -> Self {
        let dns = Self::start(lab).await;
        dns.lab.apply(dns.secret(POWERDNS_KEY)).await;
        dns.lab.apply(dns.provider()).await;
        dns.lab.wait_ready(&kind("DnsProvider"), "dns").await;
        dns
    }

    fn object(&self, kind: &str, name: &str, spec: Value) -> Value {
        json!({"apiVersion": "dns.ostler.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": self.lab.namespace}, "spec": spec})
    }

    fn secret(&self, key: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "powerdns", "namespace": self.lab.namespace},
            "stringData": {"api-key": key}})
    }

    fn provider(&self) -> Value {
        let spec = json!({"class": "PowerDNS", "url": self.front.url(), "ownerID": "tests", "zones": [ZONE],
            "credentialsRef": {"name": "powerdns", "key": "api-key"}, "resolver": {"url": self.front.url()}});
        self.object("DnsProvider", "dns", spec)
    }

    fn record(&self, name: &str, kind: &str, values: &[&str]) -> Value {
        let spec = json!({"providerRef": {"name": "dns"}, "zone": ZONE, "name": name, "type": kind, "values": values,
            "ttl": 60});
        let object_name = name
            .replace(['*', '@', '_'], "x")
            .replace('.', "-")
            .to_lowercase();
        self.object("DnsRecord", &object_name, spec)
    }

    /// Applies a record and waits until it is Ready and visible.
    async fn apply_visible(&self, record: Value) -> String {
        let name = record["metadata"]["name"].as_str().expect("a name").to_owned();
        self.lab.apply(record).await;
        self.lab
            .wait_condition(&kind("DnsRecord"), &name, "Propagated", "True", "Propagated")
            .await;
        self.lab.wait_ready(&kind("DnsRecord"), &name).await;
        name
    }

    /// Ends the poll interval of a record set now, and waits until the queue is empty.
    async fn poll(&self, name: &str) {
        let key = self.lab.key(&kind("PowerDnsRecordSet"), name);
        let dispatcher = &self.lab.host().services().dispatcher;
        dispatcher.enqueue(&key, Priority::Normal, Cause::Poll);
        self.lab.wait_idle().await;
    }
}
