//! Permissions: an action needs the request of the manifest, a grant, and RBAC of the plugin's service account.

mod installed;
mod manifests;
mod shipped;

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
    read_component, scenario,
};
use serde_json::{Value, json};

const ACCOUNT_NAME: &str = "prober";

/// Sets the grants of the probe, with additional fields.
fn set_grants(lab: &mut Lab, more: &str) {
    let text = format!(
        "plugins:
  probe:
    reconciles: [{{group: tests.ostler.dev, kinds: [Probe, SelectedProbe]}}]
    kubernetes:
    - {{kinds: [ConfigMap, Secret], verbs: [get, list, apply, create, delete, hold], namespaces: ['*']}}
    - {{group: tests.ostler.dev, kinds: [Probe], verbs: [get, list, hold]}}
    events: true
    {more}
"
    );
    lab.settings.grants = Grants::parse(&text, "grants.yaml").expect("they parse");
    // Retry interval of reconciles that RBAC denies.
    lab.settings.wait_interval = Duration::from_millis(200);
}

fn as_service_account(lab: &mut Lab) {
    let account = format!(
        "serviceAccount: {{namespace: {}, name: {ACCOUNT_NAME}}}",
        lab.namespace
    );
    set_grants(lab, &account);
}

/// Binds the service account to a Role with exactly these rules.
async fn bind_role(lab: &Lab, rules: Value) {
    let meta = json!({"name": ACCOUNT_NAME, "namespace": lab.namespace});
    let group = "rbac.authorization.k8s.io";
    lab.apply(json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": meta, "rules": rules}))
        .await;
    lab.apply(
        json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": meta,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": ACCOUNT_NAME},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT_NAME, "namespace": lab.namespace}]}),
    )
    .await;
}

fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

async fn wait_refused(lab: &Lab, name: &str, reason: &str, words: &[&str]) {
    let what = format!("{name} is refused: {words:?}");
    lab.wait_until(&what, async || {
        let object = lab.get(&kind(), name).await.unwrap_or_default();
        let ready = find_condition(&object, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        ready["reason"] == reason && words.iter().all(|word| message.contains(word))
    })
    .await;
}

#[scenario(real = "RBAC and impersonation")]
async fn plugin_with_service_account_is_limited_by_rbac(mut lab: Lab) {
    as_service_account(&mut lab);
    lab.apply_config_map("seen", "x", "1").await;
    lab.start_probe().await;
    let get = json!({"do": "get", "kind": "ConfigMap", "name": "seen"});
    lab.apply_probe("reader", json!([get]), json!([])).await;
    let account = format!("RBAC: service account {}/{ACCOUNT_NAME} may not", lab.namespace);
    // Without any rule it may not even read the objects it reconciles.
    wait_refused(&lab, "reader", "PermissionDenied", &[&account, "get Probe"]).await;

    let own = rule("tests.ostler.dev", "probes", &["get", "list", "watch"]);
    bind_role(&lab, json!([own])).await;
    wait_refused(
        &lab,
        "reader",
        "PermissionDenied",
        &[&account, "get ConfigMap seen"],
    )
    .await;

    bind_role(&lab, json!([own, rule("", "configmaps", &["get"])])).await;
    lab.wait_seen("reader", &[r#"{"v":"1"}"#]).await;

    // A list needs `watch` as well, since its changes wake the reconcile.
    let list = json!({"do": "list", "kind": "ConfigMap", "labels": "l=x"});
    lab.apply_probe("lister", json!([list]), json!([])).await;
    wait_refused(&lab, "lister", "PermissionDenied", &[&account, "list ConfigMap"]).await;
    bind_role(&lab, json!([own, rule("", "configmaps", &["get", "list"])])).await;
    wait_refused(&lab, "lister", "PermissionDenied", &[&account, "watch ConfigMap"]).await;
    bind_role(
        &lab,
        json!([own, rule("", "configmaps", &["get", "list", "watch"])]),
    )
    .await;
    lab.wait_seen("lister", &["seen"]).await;

    // Writes impersonate the account, so the API server itself refuses them.
    lab.apply_probe("writer", json!([write("apply", "made", "1")]), json!([]))
        .await;
    wait_refused(
        &lab,
        "writer",
        "PermissionDenied",
        &["may not patch ConfigMap made"],
    )
    .await;
    let writes = ["get", "list", "watch", "patch"];
    bind_role(&lab, json!([own, rule("", "configmaps", &writes)])).await;
    let user = format!("system:serviceaccount:{}:{ACCOUNT_NAME}", lab.namespace);
    wait_refused(
        &lab,
        "writer",
        "PermissionDenied",
        &["is forbidden", &user, "cannot create"],
    )
    .await;
    lab.apply_probe("creator", json!([write("create", "new", "1")]), json!([]))
        .await;
    wait_refused(
        &lab,
        "creator",
        "PermissionDenied",
        &["is forbidden", &user, "cannot create"],
    )
    .await;
    let writes = ["get", "list", "watch", "patch", "create"];
    bind_role(&lab, json!([own, rule("", "configmaps", &writes)])).await;
    lab.wait_ready(&kind(), "writer").await;
    lab.wait_ready(&kind(), "creator").await;
    assert_eq!(
        lab.get(&config_map(), "made").await.expect("made")["data"]["v"],
        "1"
    );

    // A revoked permission applies to writes at once; a cached review of reads may last a minute.
    bind_role(
        &lab,
        json!([own, rule("", "configmaps", &["get", "list", "watch"])]),
    )
    .await;
    lab.apply_probe("writer", json!([write("apply", "made", "2")]), json!([]))
        .await;
    wait_refused(
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

    // The host itself writes status and finalizers, so objects can be deleted although the account may not write them.
    for name in ["writer", "creator", "reader", "lister"] {
        lab.delete(&kind(), name).await;
        lab.wait_gone(&kind(), name).await;
    }
}

/// The CRD of the probes serves another version, in which the grants cover each write to a Probe.
#[scenario(real = "RBAC and impersonation")]
async fn plugin_writes_its_own_object_by_no_served_version(mut lab: Lab) {
    let text = "plugins: {probe: {reconciles: [{group: tests.ostler.dev, kinds: [Probe, SelectedProbe]}], \
         kubernetes: [{group: tests.ostler.dev, kinds: [Probe], verbs: [get, apply, create, patch]}]}}";
    lab.settings.grants = Grants::parse(text, "grants.yaml").expect("they parse");
    let file = ostler_test_harness::workspace_root().join("tests/probe/crd.yaml");
    let crds = std::fs::read_to_string(file).expect("the CRD");
    let (crd, _) = crds.split_once("\n---").expect("several CRDs");
    let crd: Value = serde_saphyr::from_str(crd).expect("a CRD");
    let mut changed = crd.clone();
    let mut second = crd["spec"]["versions"][0].clone();
    second["name"] = "v1beta1".into();
    second["storage"] = false.into();
    let versions = changed["spec"]["versions"].as_array_mut().expect("versions");
    versions.push(second);
    lab.apply(changed).await;
    lab.wait_until("the second version is served", async || {
        let served = lab
            .client
            .list_api_group_resources("tests.ostler.dev/v1beta1")
            .await;
        served.is_ok_and(|served| served.resources.iter().any(|r| r.name == "probes"))
    })
    .await;
    lab.start_probe().await;
    let spec = json!({"spec": {"steps": [], "cleanup": [{"do": "log", "body": "written by itself"}]}});
    for version in ["v1alpha1", "v1beta1"] {
        for action in ["patch", "apply", "force", "create"] {
            let name = format!("{action}-{version}");
            let api_version = format!("tests.ostler.dev/{version}");
            let mut object = spec.clone();
            if action != "patch" {
                object["apiVersion"] = api_version.as_str().into();
                object["kind"] = "Probe".into();
                object["metadata"] = json!({ "name": name });
            }
            let step = json!({"do": action, "apiVersion": api_version, "kind": "Probe", "name": name,
                "object": object.to_string()});
            lab.apply_probe(&name, json!([step]), json!([])).await;
            wait_refused(&lab, &name, "Invalid", &["the reconciled object itself"]).await;
            let written = lab.get(&kind(), &name).await.expect("it is there");
            assert_eq!(written["spec"]["cleanup"], json!([]), "{name}");
        }
        // Another object of the kind may be written in either version.
        let other = format!("other-{version}");
        lab.apply_probe(&other, json!([]), json!([])).await;
        let step = json!({"do": "patch", "apiVersion": format!("tests.ostler.dev/{version}"), "kind": "Probe",
            "name": other, "object": spec.to_string()});
        lab.apply_probe(&format!("author-{version}"), json!([step]), json!([]))
            .await;
        lab.wait_until("the other object is patched", async || {
            let written = lab.get(&kind(), &other).await.expect("it is there");
            written["spec"]["cleanup"][0]["do"] == "log"
        })
        .await;
    }
    lab.host = None;
    lab.apply(crd).await;
}

#[scenario(real = "RBAC and impersonation")]
async fn rbac_rule_with_resource_names_covers_these_objects_only(mut lab: Lab) {
    as_service_account(&mut lab);
    lab.apply_config_map("mine", "x", "1").await;
    lab.apply_config_map("yours", "x", "2").await;
    let own = rule("tests.ostler.dev", "probes", &["get"]);
    let mut named = rule("", "configmaps", &["get"]);
    named["resourceNames"] = json!(["mine"]);
    bind_role(&lab, json!([own, named])).await;
    lab.start_probe().await;
    let get = |name: &str| json!([{"do": "get", "kind": "ConfigMap", "name": name}]);
    lab.apply_probe("mine", get("mine"), json!([])).await;
    lab.wait_seen("mine", &[r#"{"v":"1"}"#]).await;
    lab.apply_probe("yours", get("yours"), json!([])).await;
    wait_refused(
        &lab,
        "yours",
        "PermissionDenied",
        &["may not get ConfigMap yours"],
    )
    .await;
}

/// Installs the probe with a manifest that requests these permissions.
fn install_with_manifest(lab: &Lab, asks: &str) {
    let manifest = Manifest::parse(asks, "plugin.yaml").expect("it parses");
    let probe = manifest::embed_manifest(&read_component("tests/probe"), &manifest).expect("a component");
    lab.install_bytes("probe", &probe);
}

/// Waits until the report of the probe's newest build is a refusal that names this.
async fn wait_kinds_not_granted(lab: &Lab, state: LoadState, words: &[&str]) {
    lab.wait_until(&format!("the build is refused: {words:?}"), async || {
        let reports = lab.host().registry().reports();
        reports.iter().any(|r| {
            r.state == state && r.reason == "KindsNotGranted" && words.iter().all(|w| r.message.contains(w))
        })
    })
    .await;
}

#[scenario]
async fn kind_without_grant_is_not_reconciled(mut lab: Lab) {
    let file = lab.path().join("grants.yaml");
    let granting = |kinds: &str| {
        let text =
            format!("plugins: {{probe: {{reconciles: [{{group: tests.ostler.dev, kinds: {kinds}}}]}}}}");
        std::fs::write(&file, &text).expect("written");
        Grants::parse(&text, "grants.yaml").expect("they parse")
    };
    lab.settings.grants = granting("[Probe]");
    lab.settings.grants_file = Some(file.clone());
    lab.install(&["tests/probe"]);
    lab.start_host().await;
    let remedy =
        "grant it with `plugins.probe.reconciles: [{group: \"tests.ostler.dev\", kinds: [SelectedProbe]}]`";
    wait_kinds_not_granted(
        &lab,
        LoadState::Failed,
        &["may not reconcile SelectedProbe", remedy],
    )
    .await;
    lab.apply_probe("waiting", json!([]), json!([])).await;
    granting("[Probe, SelectedProbe]");
    lab.wait_ready(&kind(), "waiting").await;

    // A build that reconciles a kind that its manifest does not request is refused, and the previous one serves on.
    install_with_manifest(
        &lab,
        "permissions: {reconciles: [{group: tests.ostler.dev, kinds: [Probe]}]}",
    );
    let words = [
        "SelectedProbe",
        "its manifest does not ask for it",
        "`permissions.reconciles: [",
    ];
    wait_kinds_not_granted(&lab, LoadState::Refused, &words).await;
    lab.apply_probe("served", json!([]), json!([])).await;
    lab.wait_ready(&kind(), "served").await;

    // A revoked grant stops what runs.
    granting("[SelectedProbe]");
    lab.apply_probe("revoked", json!([]), json!([])).await;
    wait_refused(&lab, "revoked", "PermissionDenied", &["may not reconcile Probe"]).await;
}

#[scenario]
async fn narrowed_namespaces_are_the_only_ones_reconciled(mut lab: Lab) {
    let other = format!("{}-other", lab.namespace);
    lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}}))
        .await;
    lab.settings.namespaces.push(other.clone());
    let grants = format!(
        "plugins: {{probe: {{reconciles: [{{group: tests.ostler.dev, kinds: ['*'], namespaces: [{}, elsewhere]}}]}}}}",
        lab.namespace
    );
    lab.settings.grants = Grants::parse(&grants, "grants.yaml").expect("they parse");
    let probe = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe",
        "metadata": {"name": "outside", "namespace": other}, "spec": {"steps": []}});
    lab.apply(probe).await;
    lab.start_probe().await;
    lab.apply_probe("inside", json!([]), json!([])).await;
    lab.wait_ready(&kind(), "inside").await;
    lab.wait_idle().await;
    let outside = lab.api(&kind(), &other).get("outside").await.expect("it exists");
    assert!(outside.data["status"].is_null(), "{:?}", outside.data);
    let scopes = lab.host().services().cache.informers.scopes();
    let watched = scopes.iter().filter(|(scope, _)| scope.gvk == kind());
    let watched: Vec<_> = watched.map(|(scope, _)| &*scope.namespace).collect();
    assert_eq!(watched, [&*lab.namespace]);
}

#[scenario]
async fn permission_missing_in_manifest_is_denied_despite_grant(mut lab: Lab) {
    set_grants(&mut lab, "");
    lab.apply_config_map("seen", "x", "1").await;
    install_with_manifest(
        &lab,
        "permissions: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}], kubernetes: [{kinds: [ConfigMap], verbs: [get]}]}",
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
    wait_refused(&lab, "writer", "PermissionDenied", &words).await;
    // No permission would help a kind that there is not.
    let mistaken = r#"{"apiVersion": "v1", "kind": "ConfigMaps", "metadata": {"name": "made"}}"#;
    lab.apply_probe(
        "mistaken",
        json!([{"do": "apply", "object": mistaken}]),
        json!([]),
    )
    .await;
    let words = ["does not serve ConfigMaps.v1", "the kind is ConfigMap"];
    wait_refused(&lab, "mistaken", "PermissionDenied", &words).await;
    // Another build requests more, which is granted already.
    install_with_manifest(
        &lab,
        "permissions: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}], kubernetes: [{kinds: [ConfigMap], verbs: [get, apply]}]}",
    );
    lab.wait_ready(&kind(), "writer").await;
    // A build with an invalid manifest is refused.
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

#[scenario]
async fn secret_values_are_readable_only_with_read_secrets_grant(mut lab: Lab) {
    const SECRET_VALUE: &str = "an-heirloom-to-be-hidden";
    set_grants(&mut lab, "");
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"v": SECRET_VALUE},
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
    for (name, step) in [("get", get.clone()), ("list", list)] {
        lab.apply_probe(name, json!([step]), json!([])).await;
        wait_refused(&lab, name, "PermissionDenied", &["Secret", "readSecrets: true"]).await;
    }
    // Neither the metadata nor the response to an apply has values.
    for (name, step, seen) in [
        ("metadata", metadata, "present"),
        ("apply", apply, "{\"v\":\"Kioq\"}"),
    ] {
        lab.apply_probe(name, json!([step]), json!([])).await;
        let probe = lab.wait_ready(&kind(), name).await;
        assert_eq!(probe["status"]["seen"], json!([seen]), "{name}");
    }
    let gauge = |lab: &Lab| {
        let host = lab.host();
        let scraped = ostler::testing::metrics::Scraped {
            services: host.services(),
            registry: host.registry(),
            stats: host.stats(),
            lease: host.lease(),
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
    assert!(!objects.contains(SECRET_VALUE));

    lab.host = None;
    set_grants(&mut lab, "readSecrets: true");
    lab.start_host().await;
    lab.apply_probe("get", json!([get]), json!([])).await;
    lab.wait_ready(&kind(), "get").await;
    assert_eq!(gauge(&lab).as_deref(), Some("1"));
    let warning = "plugin may read Secrets plugin=\"probe\" namespaces=\"*\"";
    assert!(captured_logs().contains(warning), "no warning in the log");
}

#[scenario]
async fn namespaced_grant_does_not_cover_cluster_scoped_kinds(mut lab: Lab) {
    let grants = format!(
        "plugins: {{probe: {{reconciles: [{{group: tests.ostler.dev, kinds: ['*']}}], kubernetes: [{{kinds: [Namespace], verbs: [apply, create, hold], namespaces: [{}]}}]}}}}",
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
            // A reference without a namespace is one to the cluster-scoped object, which no grant covers.
            let refusals = [
                "Namespace is cluster-scoped: leave the namespace",
                "may not hold Namespace",
            ];
            ready["status"] == "False" && refusals.iter().any(|refusal| message.contains(refusal))
        })
        .await;
    }
    let namespaces = lab.api(&Gvk::new("", "v1", "Namespace"), "");
    assert!(namespaces.get_opt(&other).await.expect("an answer").is_none());
}
