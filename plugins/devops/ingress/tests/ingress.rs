//! IngressResources against the SDK's mock.

use devops_ingress::IngressResources;
use ostler_sdk::{
    Failure, ObjectRef, Outcome, Resolution, gvk,
    mock::MockHost,
    serde_json::{Value, from_slice, json},
};

fn ingress() -> Value {
    json!({
        "apiVersion": "devops.ostler.dev/v1alpha1", "kind": "IngressResource",
        "metadata": {"name": "web", "namespace": "team", "uid": "u-1", "generation": 1},
        "spec": {
            "host": "app.example.com",
            "dns": {"zone": "example.com", "providerRef": {"name": "powerdns"},
                "target": {"addresses": ["192.0.2.7"]}, "ttl": 600},
            "certificate": {"issuerRef": {"name": "letsencrypt"}},
            "backend": {"service": "web", "port": 80},
            "ingressClassName": "nginx",
        },
    })
}

fn record() -> ObjectRef {
    gvk("dns.ostler.dev", "v1alpha1", "DnsRecord").named("team", "web")
}

fn record_v6() -> ObjectRef {
    gvk("dns.ostler.dev", "v1alpha1", "DnsRecord").named("team", "web-aaaa")
}

fn certificate() -> ObjectRef {
    gvk("cert-manager.io", "v1", "Certificate").named("team", "web")
}

fn served() -> ObjectRef {
    gvk("networking.k8s.io", "v1", "Ingress").named("team", "web")
}

fn tls_secret() -> ObjectRef {
    gvk("", "v1", "Secret").named("team", "web-tls")
}

/// Sets the status of an object, as its controller does.
fn set_status(host: &MockHost, reference: &ObjectRef, status: Value) {
    let mut object = host.object(reference).expect("is applied");
    object["metadata"]["uid"] = format!("uid of {}", reference.gvk.kind).into();
    object["status"] = status;
    host.put(object);
}

fn ready() -> Value {
    json!({"conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": ""}]})
}

fn addresses() -> Value {
    json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}})
}

fn reconcile(host: &MockHost, ingress: &mut Value) -> Result<Outcome, Failure> {
    let before = host.checkpoints().len();
    let result = host.reconcile(&IngressResources, ingress);
    for fields in &host.checkpoints()[before..] {
        for (name, value) in fields.as_object().expect("fields") {
            ingress["status"][name] = value.clone();
        }
    }
    let status = match &result {
        Ok(outcome) => &outcome.status,
        Err(failure) => &failure.status,
    };
    if let Some(status) = status {
        ingress["status"] = from_slice(status).expect("JSON");
    }
    result
}

/// Reconciles until the address is live.
fn live() -> (MockHost, Value) {
    let host = MockHost::new();
    let mut ingress = ingress();
    let reason = |result: Result<Outcome, Failure>| result.expect_err("waits").reason;
    assert_eq!(reason(reconcile(&host, &mut ingress)), "DnsNotReady");
    assert_eq!(host.writes(), ["apply DnsRecord web owned"]);
    set_status(&host, &record(), ready());
    assert_eq!(reason(reconcile(&host, &mut ingress)), "CertificateNotReady");
    assert_eq!(
        host.writes()[1..],
        ["create Secret web-tls owned", "apply Certificate web owned"]
    );
    let secret = host.object(&tls_secret()).expect("is created");
    assert_eq!(secret["type"], "kubernetes.io/tls");
    assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], "u-1");
    set_status(&host, &certificate(), ready());
    assert_eq!(reason(reconcile(&host, &mut ingress)), "IngressNotReady");
    assert_eq!(host.writes()[3..], ["apply Ingress web owned"]);
    set_status(&host, &served(), addresses());
    let outcome = reconcile(&host, &mut ingress).expect("an outcome");
    assert_eq!(outcome.conditions[0].reason, "Ready");
    assert_eq!(ingress["status"]["url"], "https://app.example.com");
    host.forget();
    (host, ingress)
}

#[test]
fn record_certificate_and_ingress_are_applied_each_after_the_one_before() {
    let (host, mut ingress) = live();
    let record = host.object(&record()).expect("is applied");
    let expected = json!({"zone": "example.com", "name": "app.example.com", "type": "A", "values": ["192.0.2.7"],
        "ttl": 600, "providerRef": {"name": "powerdns"}});
    assert_eq!(record["spec"], expected);
    let certificate = host.object(&certificate()).expect("is applied");
    let issuer = json!({"name": "letsencrypt", "kind": "ClusterIssuer", "group": "cert-manager.io"});
    assert_eq!(certificate["spec"]["issuerRef"], issuer);
    assert_eq!(certificate["spec"]["dnsNames"], json!(["app.example.com"]));
    let served = host.object(&served()).expect("is applied");
    assert_eq!(
        served["spec"]["tls"],
        json!([{"hosts": ["app.example.com"], "secretName": "web-tls"}])
    );
    assert_eq!(served["spec"]["ingressClassName"], "nginx");
    reconcile(&host, &mut ingress).expect("an outcome");
    assert_eq!(host.writes(), Vec::<String>::new());
}

#[test]
fn address_of_the_controllers_service_is_the_target() {
    for (status, expected) in [
        (
            json!([{"ip": "192.0.2.9"}, {"ip": "2001:db8::1"}]),
            vec![("A", "192.0.2.9"), ("AAAA", "2001:db8::1")],
        ),
        (json!([{"ip": "2001:db8::1"}]), vec![("AAAA", "2001:db8::1")]),
        (
            json!([{"hostname": "lb.example.net"}]),
            vec![("CNAME", "lb.example.net")],
        ),
    ] {
        let host = MockHost::new();
        let mut ingress = ingress();
        ingress["spec"]["dns"]["target"] = json!({"serviceRef": {"name": "nginx", "namespace": "ingress"}});
        let wait = reconcile(&host, &mut ingress).expect_err("waits");
        assert_eq!(
            (wait.resolution, &*wait.reason),
            (Resolution::Wait, "DnsNotReady")
        );
        assert!(host.writes().is_empty());
        host.put(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "nginx", "namespace": "ingress"},
            "status": {"loadBalancer": {"ingress": status}}}));
        reconcile(&host, &mut ingress).expect_err("waits for the record");
        let found: Vec<Value> = [record(), record_v6()]
            .iter()
            .filter_map(|reference| Some(host.object(reference)?["spec"].clone()))
            .map(|spec| json!([spec["type"], spec["values"]]))
            .collect();
        let expected: Vec<Value> = expected
            .iter()
            .map(|(kind, value)| json!([kind, [value]]))
            .collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn address_without_dns_and_certificate_has_the_scheme_http() {
    let host = MockHost::new();
    let mut ingress = ingress();
    let spec = ingress["spec"].as_object_mut().expect("a spec");
    spec.remove("dns");
    spec.remove("certificate");
    reconcile(&host, &mut ingress).expect_err("waits for the Ingress");
    set_status(&host, &served(), addresses());
    reconcile(&host, &mut ingress).expect("an outcome");
    assert_eq!(ingress["status"]["url"], "http://app.example.com");
    assert_eq!(host.writes(), ["apply Ingress web owned"]);
}

#[test]
fn object_of_another_user_is_neither_changed_nor_deleted() {
    for (reference, api_version) in [
        (record(), "dns.ostler.dev/v1alpha1"),
        (certificate(), "cert-manager.io/v1"),
        (served(), "networking.k8s.io/v1"),
    ] {
        let host = MockHost::new();
        let foreign = json!({"apiVersion": api_version, "kind": reference.gvk.kind, "spec": {"of": "another user"},
            "metadata": {"name": "web", "namespace": "team"}});
        host.put(foreign.clone());
        let mut ingress = ingress();
        let mut failure = reconcile(&host, &mut ingress).expect_err("fails");
        for _ in 0..3 {
            for reference in [record(), certificate()] {
                if host
                    .object(&reference)
                    .is_some_and(|o| o["status"].is_null() && !o["metadata"]["ownerReferences"].is_null())
                {
                    set_status(&host, &reference, ready());
                }
            }
            failure = reconcile(&host, &mut ingress).expect_err("fails");
        }
        assert_eq!(failure.reason, "NotClaimed");
        assert_eq!(failure.resolution, Resolution::Terminal);
        host.cleanup(&IngressResources, &ingress).expect("an outcome");
        assert_eq!(host.object(&reference), Some(foreign), "{}", reference.gvk.kind);
    }
}

#[test]
fn secret_of_another_user_is_neither_overwritten_nor_deleted() {
    // It may lack the key of a certificate, or have been recorded by a former version, which asked for the key only.
    for (data, recorded) in [("tls.crt", false), ("password", false), ("password", true)] {
        let host = MockHost::new();
        let mut ingress = ingress();
        if recorded {
            ingress["status"] = json!({"certificateSecret": "web-tls"});
        }
        host.put(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "web-tls", "namespace": "team"},
            "data": {data: "c2VjcmV0"}}),
        );
        reconcile(&host, &mut ingress).expect_err("waits for the record");
        set_status(&host, &record(), ready());
        let failure = reconcile(&host, &mut ingress).expect_err("fails");
        assert_eq!(failure.reason, "NotClaimed");
        assert_eq!(host.object(&certificate()), None);
        host.cleanup(&IngressResources, &ingress).expect("an outcome");
        assert!(host.object(&tls_secret()).is_some(), "{data} {recorded}");
    }
}

#[test]
fn secret_that_a_former_version_had_created_by_cert_manager_is_deleted() {
    let host = MockHost::new();
    let mut ingress = ingress();
    ingress["status"] = json!({"certificateSecret": "web-tls"});
    host.put(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "web-tls", "namespace": "team",
        "annotations": {"cert-manager.io/certificate-name": "web"}}}),
    );
    reconcile(&host, &mut ingress).expect_err("waits for the record");
    set_status(&host, &record(), ready());
    let wait = reconcile(&host, &mut ingress).expect_err("waits");
    assert_eq!(wait.reason, "CertificateNotReady");
    host.cleanup(&IngressResources, &ingress).expect("an outcome");
    assert_eq!(host.object(&tls_secret()), None);
}

#[test]
fn cleanup_deletes_in_order_and_waits_for_each() {
    let (host, ingress) = live();
    let in_deletion = |reference: &ObjectRef| {
        let mut object = host.object(reference).expect("is there");
        object["metadata"]["deletionTimestamp"] = "2026-11-22T08:06:04Z".into();
        host.put(object);
    };
    for (reference, reason) in [
        (served(), "IngressRemains"),
        (record(), "DnsRemains"),
        (certificate(), "CertificateRemains"),
    ] {
        in_deletion(&reference);
        let wait = host.cleanup(&IngressResources, &ingress).expect_err("waits");
        assert_eq!((wait.resolution, &*wait.reason), (Resolution::Wait, reason));
        host.remove(&reference);
    }
    assert!(host.object(&tls_secret()).is_some());
    host.cleanup(&IngressResources, &ingress).expect("an outcome");
    assert_eq!(host.object(&tls_secret()), None);
    assert_eq!(host.writes(), ["delete Secret web-tls"]);
}

#[test]
fn cleanup_without_finalizers_takes_one_call() {
    let (host, ingress) = live();
    host.cleanup(&IngressResources, &ingress).expect("an outcome");
    let expected = [
        "delete Ingress web",
        "delete DnsRecord web",
        "delete Certificate web",
        "delete Secret web-tls",
    ];
    assert_eq!(host.writes(), expected);
}

#[test]
fn removed_certificate_takes_its_secret_along() {
    let (host, mut ingress) = live();
    ingress["spec"]
        .as_object_mut()
        .expect("a spec")
        .remove("certificate");
    reconcile(&host, &mut ingress).expect("an outcome");
    assert_eq!(host.writes(), ["delete Certificate web", "delete Secret web-tls"]);
    reconcile(&host, &mut ingress).expect("an outcome");
    assert_eq!(ingress["status"], json!({"url": "http://app.example.com"}));
}

#[test]
fn address_that_ceases_to_be_ready_is_shown() {
    let (host, mut ingress) = live();
    let expired = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "Expired", "message": "expired"}]});
    set_status(&host, &certificate(), expired);
    let failure = reconcile(&host, &mut ingress).expect_err("waits");
    assert_eq!(failure.reason, "CertificateNotReady");
    assert!(failure.message.contains("expired"), "{}", failure.message);
}
