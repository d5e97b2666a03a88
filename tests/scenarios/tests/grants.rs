//! What a plugin may do is what its manifest asks for, and it is granted, and RBAC allows its service account.

use std::time::Duration;

use ostler::testing::{
    grants::Grants,
    key::Gvk,
    manifest::{self, Manifest},
    plugin::LoadState,
};
use ostler_test_harness::{
    Lab, captured_logs, find_condition,
    probe::{config_map, kind, write},
    read_component, scenarios,
};
use serde_json::{Value, json};

scenarios!(
    rbac_decides_for_its_service_account,
    a_role_may_name_the_objects,
    what_is_not_asked_for_is_not_done,
    secrets_are_shown_only_by_a_loud_grant,
    a_namespace_does_not_cover_what_has_none,
);

const ACCOUNT: &str = "prober";

/// Grants for the probe, with this more.
fn granted(lab: &mut Lab, more: &str) {
    let text = format!(
        "plugins:
  probe:
    kubernetes:
    - {{kinds: [ConfigMap, Secret], verbs: [get, list, apply, create, delete, hold]}}
    - {{group: tests.ostler.dev, kinds: [Probe], verbs: [get, list, hold]}}
    events: true
    {more}
"
    );
    lab.settings.grants = Grants::parse(&text, "grants.yaml").expect("they parse");
    // Whoever is refused by RBAC looks again after this long.
    lab.settings.wait_interval = Duration::from_millis(200);
}

fn as_service_account(lab: &mut Lab) {
    let account = format!(
        "serviceAccount: {{namespace: {}, name: {ACCOUNT}}}",
        lab.namespace
    );
    granted(lab, &account);
}

/// Gives the service account a role of its namespace with these rules, and no others.
async fn allow(lab: &Lab, rules: Value) {
    let meta = json!({"name": ACCOUNT, "namespace": lab.namespace});
    let group = "rbac.authorization.k8s.io";
    lab.apply(json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": meta, "rules": rules}))
        .await;
    lab.apply(
        json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": meta,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": lab.namespace}]}),
    )
    .await;
}

fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

async fn refused(lab: &Lab, name: &str, reason: &str, words: &[&str]) {
    let what = format!("{name} is refused: {words:?}");
    lab.wait_until(&what, async || {
        let object = lab.get(&kind(), name).await.unwrap_or_default();
        let ready = find_condition(&object, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        ready["reason"] == reason && words.iter().all(|word| message.contains(word))
    })
    .await;
}

async fn rbac_decides_for_its_service_account(mut lab: Lab) {
    as_service_account(&mut lab);
    lab.apply_config_map("seen", "x", "1").await;
    lab.start_probe().await;
    let get = json!({"do": "get", "kind": "ConfigMap", "name": "seen"});
    lab.apply_probe("reader", json!([get]), json!([])).await;
    let account = format!("RBAC: service account {}/{ACCOUNT} may not", lab.namespace);
    // Not even what it reconciles.
    refused(&lab, "reader", "PermissionDenied", &[&account, "get Probe"]).await;

    let own = rule("tests.ostler.dev", "probes", &["get", "list", "watch"]);
    allow(&lab, json!([own])).await;
    refused(
        &lab,
        "reader",
        "PermissionDenied",
        &[&account, "get ConfigMap seen"],
    )
    .await;

    allow(&lab, json!([own, rule("", "configmaps", &["get"])])).await;
    lab.wait_seen("reader", &[r#"{"v":"1"}"#]).await;

    // A list is also told of changes.
    let list = json!({"do": "list", "kind": "ConfigMap", "labels": "l=x"});
    lab.apply_probe("lister", json!([list]), json!([])).await;
    refused(&lab, "lister", "PermissionDenied", &[&account, "list ConfigMap"]).await;
    allow(&lab, json!([own, rule("", "configmaps", &["get", "list"])])).await;
    refused(&lab, "lister", "PermissionDenied", &[&account, "watch ConfigMap"]).await;
    allow(
        &lab,
        json!([own, rule("", "configmaps", &["get", "list", "watch"])]),
    )
    .await;
    lab.wait_seen("lister", &["seen"]).await;

    // What it writes is sent as the account: the API server itself refuses.
    lab.apply_probe("writer", json!([write("apply", "made", "1")]), json!([]))
        .await;
    refused(
        &lab,
        "writer",
        "PermissionDenied",
        &["may not patch ConfigMap made"],
    )
    .await;
    let writes = ["get", "list", "watch", "patch"];
    allow(&lab, json!([own, rule("", "configmaps", &writes)])).await;
    let user = format!("system:serviceaccount:{}:{ACCOUNT}", lab.namespace);
    refused(
        &lab,
        "writer",
        "PermissionDenied",
        &["is forbidden", &user, "cannot create"],
    )
    .await;
    lab.apply_probe("creator", json!([write("create", "new", "1")]), json!([]))
        .await;
    refused(
        &lab,
        "creator",
        "PermissionDenied",
        &["is forbidden", &user, "cannot create"],
    )
    .await;
    let writes = ["get", "list", "watch", "patch", "create"];
    allow(&lab, json!([own, rule("", "configmaps", &writes)])).await;
    lab.wait_ready(&kind(), "writer").await;
    lab.wait_ready(&kind(), "creator").await;
    assert_eq!(
        lab.get(&config_map(), "made").await.expect("made")["data"]["v"],
        "1"
    );

    // What was taken away is gone at once for what is sent; a yes of the cache lasts for a minute at most.
    allow(
        &lab,
        json!([own, rule("", "configmaps", &["get", "list", "watch"])]),
    )
    .await;
    lab.apply_probe("writer", json!([write("apply", "made", "2")]), json!([]))
        .await;
    refused(
        &lab,
        "writer",
        "PermissionDenied",
        &["is forbidden", "cannot patch"],
    )
    .await;
    assert_eq!(
        lab.get(&config_map(), "made").await.expect("made")["data"]["v"],
        "1"
    );

    // Status and finalizers are the host's own: the account may do neither, and the object goes.
    for name in ["writer", "creator", "reader", "lister"] {
        lab.delete(&kind(), name).await;
        lab.wait_gone(&kind(), name).await;
    }
}

async fn a_role_may_name_the_objects(mut lab: Lab) {
    as_service_account(&mut lab);
    lab.apply_config_map("mine", "x", "1").await;
    lab.apply_config_map("yours", "x", "2").await;
    let own = rule("tests.ostler.dev", "probes", &["get"]);
    let mut named = rule("", "configmaps", &["get"]);
    named["resourceNames"] = json!(["mine"]);
    allow(&lab, json!([own, named])).await;
    lab.start_probe().await;
    let get = |name: &str| json!([{"do": "get", "kind": "ConfigMap", "name": name}]);
    lab.apply_probe("mine", get("mine"), json!([])).await;
    lab.wait_seen("mine", &[r#"{"v":"1"}"#]).await;
    lab.apply_probe("yours", get("yours"), json!([])).await;
    refused(
        &lab,
        "yours",
        "PermissionDenied",
        &["may not get ConfigMap yours"],
    )
    .await;
}

/// The probe, asking for this.
fn asking(lab: &Lab, asks: &str) {
    let manifest = Manifest::parse(asks, "plugin.yaml").expect("it parses");
    let probe = manifest::embed_manifest(&read_component("tests/probe"), &manifest).expect("a component");
    lab.install_bytes("probe", &probe);
}

async fn what_is_not_asked_for_is_not_done(mut lab: Lab) {
    granted(&mut lab, "");
    lab.apply_config_map("seen", "x", "1").await;
    asking(
        &lab,
        "permissions: {kubernetes: [{kinds: [ConfigMap], verbs: [get]}]}",
    );
    lab.start_host().await;
    let get = json!({"do": "get", "kind": "ConfigMap", "name": "seen"});
    lab.apply_probe("reader", json!([get]), json!([])).await;
    lab.wait_seen("reader", &[r#"{"v":"1"}"#]).await;
    lab.apply_probe("writer", json!([write("apply", "made", "1")]), json!([]))
        .await;
    let words = [
        "apply ConfigMap",
        "its manifest does not ask for it",
        "`permissions.kubernetes",
    ];
    refused(&lab, "writer", "PermissionDenied", &words).await;
    // Another build asks for more: it is granted already.
    asking(
        &lab,
        "permissions: {kubernetes: [{kinds: [ConfigMap], verbs: [get, apply]}]}",
    );
    lab.wait_ready(&kind(), "writer").await;
    // A manifest that makes no sense does not serve.
    let mut broken = read_component("tests/probe");
    broken = manifest::embed_manifest(&broken, &Manifest::default()).expect("a component");
    let at = broken.len() - 10;
    broken[at..].fill(b'x');
    lab.install_bytes("probe", &broken);
    lab.wait_until("the report names the manifest", async || {
        let reports = lab.host().registry().reports();
        reports
            .iter()
            .any(|r| r.state == LoadState::Refused && r.message.contains("manifest"))
    })
    .await;
}

async fn secrets_are_shown_only_by_a_loud_grant(mut lab: Lab) {
    const VALUE: &str = "an-heirloom-nobody-sees";
    granted(&mut lab, "");
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"v": VALUE},
        "metadata": {"name": "heirloom", "namespace": lab.namespace}}),
    )
    .await;
    lab.install(&["tests/probe"]);
    lab.start_host().await;
    let get = json!({"do": "get", "kind": "Secret", "name": "heirloom"});
    let list = json!({"do": "list", "kind": "Secret"});
    let metadata = json!({"do": "metadata", "kind": "Secret", "name": "heirloom"});
    let same = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "heirloom"}}).to_string();
    let apply = json!({"do": "force", "object": same});
    let steps = [
        ("get", get.clone()),
        ("list", list),
        ("metadata", metadata),
        ("apply", apply),
    ];
    for (name, step) in steps {
        lab.apply_probe(name, json!([step]), json!([])).await;
        refused(&lab, name, "PermissionDenied", &["Secret", "readSecrets: true"]).await;
    }
    let gauge = |lab: &Lab| {
        let host = lab.host();
        let scraped = ostler::testing::metrics::Scraped {
            services: host.services(),
            registry: host.registry(),
            stats: host.stats(),
            workers: 1,
        };
        let format = ostler::testing::metrics::Format::Prometheus;
        let text = host.services().metrics.text(format, &scraped).expect("metrics");
        let line = text
            .lines()
            .find(|l| l.starts_with("ostler_plugin_reads_secrets{plugin=\"probe\"}"));
        line.and_then(|l| l.rsplit(' ').next()).map(str::to_owned)
    };
    assert_eq!(gauge(&lab).as_deref(), Some("0"));
    let objects = format!("{:?}", lab.list(&kind()).await);
    assert!(!objects.contains(VALUE));

    lab.host = None;
    granted(&mut lab, "readSecrets: true");
    lab.start_host().await;
    lab.apply_probe("get", json!([get]), json!([])).await;
    lab.wait_ready(&kind(), "get").await;
    assert_eq!(gauge(&lab).as_deref(), Some("1"));
    let loud = format!("plugin probe is granted to read Secrets of {}", "every namespace");
    assert!(captured_logs().contains(&loud), "no warning in the log");
}

async fn a_namespace_does_not_cover_what_has_none(mut lab: Lab) {
    let grants = format!(
        "plugins: {{probe: {{kubernetes: [{{kinds: [Namespace], verbs: [apply, create, hold], namespaces: [{}]}}]}}}}",
        lab.namespace
    );
    lab.settings.grants = Grants::parse(&grants, "grants.yaml").expect("they parse");
    lab.start_probe().await;
    let other = format!("{}-other", lab.namespace);
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}}).to_string();
    for step in ["apply", "force", "create"] {
        lab.apply_probe(step, json!([{"do": step, "object": object}]), json!([]))
            .await;
    }
    let hold = json!({"do": "hold", "kind": "Namespace", "name": lab.namespace});
    lab.apply_probe("hold", json!([hold]), json!([])).await;
    for name in ["apply", "force", "create", "hold"] {
        lab.wait_until(&format!("{name} is refused"), async || {
            let object = lab.get(&kind(), name).await.unwrap_or_default();
            let ready = find_condition(&object, "Ready");
            let message = ready["message"].as_str().unwrap_or_default();
            ready["status"] == "False" && message.contains("Namespace is cluster-scoped: leave the namespace")
        })
        .await;
    }
    let namespaces = lab.api(&Gvk::new("", "v1", "Namespace"), "");
    assert!(namespaces.get_opt(&other).await.expect("an answer").is_none());
}
