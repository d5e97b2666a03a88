//! The user that the host acts as on another cluster, and the namespaces whose objects may use a Cluster.

use ostler::testing::{grants::Grants, scope::Projection};

use super::*;
use ostler_test_harness::scenario;

/// The API group of roles and their bindings.
const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
/// Name of the plugin's service account, and of the roles.
const ACCOUNT_NAME: &str = "prober";

/// Applies the Secret `east` with a kubeconfig, and a Cluster `east` with further fields of its spec.
async fn apply_east(lab: &Lab, east: &SecondCluster, fields: Value) {
    apply_kubeconfig(lab, "east", east.kubeconfig()).await;
    let mut spec = fields;
    spec["kubeconfigSecretRef"] = json!({"name": "east"});
    lab.apply(json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Cluster",
        "metadata": {"name": "east", "namespace": lab.namespace}, "spec": spec,
    }))
    .await;
    lab.wait_ready(&cluster_kind(), "east").await;
}

/// The Role and the RoleBinding of a subject in the lab's namespace.
fn describe_role(lab: &Lab, subject: &Value, rules: &Value) -> [(Gvk, Value); 2] {
    let api_version = format!("{RBAC_GROUP}/v1");
    let metadata = json!({"name": ACCOUNT_NAME, "namespace": lab.namespace});
    let role = json!({"apiVersion": api_version, "kind": "Role", "metadata": metadata, "rules": rules});
    let binding = json!({"apiVersion": api_version, "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": ACCOUNT_NAME}, "subjects": [subject]});
    [("Role", role), ("RoleBinding", binding)]
        .map(|(kind, object)| (Gvk::new(RBAC_GROUP, "v1", kind), object))
}

/// Binds a subject to a Role with exactly these rules on the other cluster.
async fn bind_role(lab: &Lab, east: &SecondCluster, subject: &Value, rules: Value) {
    let parameters = PatchParams::apply("test").force();
    for (gvk, object) in describe_role(lab, subject, &rules) {
        let api = east.api_of(&gvk, Some(&lab.namespace));
        let applied = api.patch(ACCOUNT_NAME, &parameters, &Patch::Apply(object)).await;
        applied.expect("applied");
    }
}

/// A rule for ConfigMaps.
fn config_maps(verbs: &[&str]) -> Value {
    json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs})
}

#[scenario(real = "RBAC and impersonation")]
async fn impersonated_user_is_limited_by_rbac_of_the_cluster(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.start_probe().await;
    let users = ["robot", "another"].map(|name| format!("{}-{name}", lab.namespace));
    let subject = json!({"apiGroup": RBAC_GROUP, "kind": "User", "name": users[0]});
    let act_as = async |user: &str| {
        apply_east(&lab, &east, json!({"impersonation": {"user": {"name": user}}})).await;
    };
    act_as(&users[0]).await;
    east.apply_config_map(&lab, "there", "1").await;
    let read = on_east(&lab, json!({"do": "get", "kind": "ConfigMap", "name": "there"}));
    lab.apply_probe("reader", json!([read]), json!([])).await;
    let refused = |user: &str, verb: &str| format!("User \"{user}\" cannot {verb} resource \"configmaps\"");
    wait_not_ready(&lab, &kind(), "reader", &refused(&users[0], "list")).await;
    let reads = ["get", "list", "watch"];
    bind_role(&lab, &east, &subject, json!([config_maps(&reads)])).await;
    lab.wait_seen("reader", &[r#"{"v":"1"}"#]).await;

    let made = |value: &str| json!([on_east(&lab, write("apply", "made", value))]);
    lab.apply_probe("writer", made("1"), json!([])).await;
    wait_not_ready(&lab, &kind(), "writer", &refused(&users[0], "patch")).await;
    let writes = ["get", "list", "watch", "patch", "create"];
    bind_role(&lab, &east, &subject, json!([config_maps(&writes)])).await;
    lab.wait_seen("writer", &[r#"{"v":"1"}"#]).await;
    bind_role(&lab, &east, &subject, json!([config_maps(&reads)])).await;
    lab.apply_probe("writer", made("2"), json!([])).await;
    wait_not_ready(&lab, &kind(), "writer", &refused(&users[0], "patch")).await;
    assert_eq!(east.config_map(&lab, "made").await, Some(json!({"v": "1"})));

    // Another user has a cache of its own.
    act_as(&users[1]).await;
    wait_not_ready(&lab, &kind(), "reader", &refused(&users[1], "list")).await;
    let cluster = format!("{}/east", lab.namespace);
    let key = lab.key(&config_map(), "there").with_cluster(&cluster);
    let cached = lab.host().services().cache.store.get(&key, Projection::Full);
    assert!(cached.is_none(), "the objects that the other user has read");
}

#[scenario(real = "RBAC and impersonation")]
async fn service_accounts_of_plugins_are_limited_by_rbac_of_the_cluster(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    let grants = format!(
        "plugins:
  probe:
    reconciles: [{{group: tests.ostler.dev, kinds: [Probe, SelectedProbe]}}]
    kubernetes: [{{kinds: [ConfigMap], verbs: [get, apply, delete], clusters: ['Same/*']}}]
    serviceAccount: {{namespace: {}, name: {ACCOUNT_NAME}}}
",
        lab.namespace
    );
    lab.settings.grants = Grants::parse(&grants, "grants.yaml").expect("they parse");
    lab.settings.wait_interval = Duration::from_millis(200);
    // Rights on the host's own cluster are none on the other one.
    let subject = json!({"kind": "ServiceAccount", "name": ACCOUNT_NAME, "namespace": lab.namespace});
    let own = json!({"apiGroups": ["tests.ostler.dev"], "resources": ["probes"], "verbs": ["get", "list", "watch"]});
    for (_, object) in describe_role(&lab, &subject, &json!([own, config_maps(&["*"])])) {
        lab.apply(object).await;
    }
    lab.start_probe().await;
    apply_east(
        &lab,
        &east,
        json!({"impersonation": {"pluginServiceAccount": {}}}),
    )
    .await;
    for name in ["mine", "yours"] {
        east.apply_config_map(&lab, name, "1").await;
        let read = on_east(&lab, json!({"do": "get", "kind": "ConfigMap", "name": name}));
        lab.apply_probe(name, json!([read]), json!([])).await;
    }
    let account = format!("RBAC: service account {}/{ACCOUNT_NAME} may not", lab.namespace);
    for name in ["mine", "yours"] {
        wait_not_ready(&lab, &kind(), name, &format!("{account} get ConfigMap {name}")).await;
    }
    let mut named = config_maps(&["get"]);
    named["resourceNames"] = json!(["mine"]);
    bind_role(&lab, &east, &subject, json!([named])).await;
    lab.wait_seen("mine", &[r#"{"v":"1"}"#]).await;
    // The cache has the other object now, and it is refused still.
    let cluster = format!("{}/east", lab.namespace);
    let key = lab.key(&config_map(), "yours").with_cluster(&cluster);
    assert!(
        lab.host()
            .services()
            .cache
            .store
            .get(&key, Projection::Full)
            .is_some()
    );
    let read = json!({"do": "get", "kind": "ConfigMap", "name": "yours"});
    lab.apply_probe("mine", json!([on_east(&lab, read)]), json!([]))
        .await;
    for name in ["mine", "yours"] {
        wait_not_ready(&lab, &kind(), name, &format!("{account} get ConfigMap yours")).await;
    }

    lab.apply_probe("owner", json!([own_on(&lab, "east", "made", "1")]), json!([]))
        .await;
    wait_not_ready(&lab, &kind(), "owner", &format!("{account} patch ConfigMap made")).await;
    bind_role(&lab, &east, &subject, json!([config_maps(&["get", "patch"])])).await;
    let user = format!("system:serviceaccount:{}:{ACCOUNT_NAME}", lab.namespace);
    let refused = |verb: &str| format!("User \"{user}\" cannot {verb} resource \"configmaps\"");
    wait_not_ready(&lab, &kind(), "owner", &refused("create")).await;
    bind_role(
        &lab,
        &east,
        &subject,
        json!([config_maps(&["get", "patch", "create"])]),
    )
    .await;
    lab.wait_seen("owner", &[r#"{"v":"1"}"#]).await;
    // What it owns is deleted with its rights as well.
    lab.delete(&kind(), "owner").await;
    wait_objects_remain(&lab, "owner", &refused("delete")).await;
    assert_eq!(east.config_map(&lab, "made").await, Some(json!({"v": "1"})));
    bind_role(&lab, &east, &subject, json!([config_maps(&["get", "delete"])])).await;
    lab.wait_gone(&kind(), "owner").await;
    assert_eq!(east.config_map(&lab, "made").await, None);
}

#[scenario]
async fn cluster_is_used_from_the_namespaces_that_it_allows(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    let others = ["listed", "unlisted"].map(|name| format!("{}-{name}", lab.namespace));
    for namespace in &others {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        lab.apply(object.clone()).await;
        east.apply("Namespace", None, object).await;
        lab.settings.namespaces.push(namespace.clone());
    }
    let grants = "plugins:
  probe:
    reconciles: [{group: tests.ostler.dev, kinds: ['*'], namespaces: ['*']}]
    kubernetes: [{kinds: [ConfigMap], verbs: [get, apply], namespaces: ['*'], clusters: ['*/*']}]
";
    lab.settings.grants = Grants::parse(grants, "grants.yaml").expect("they parse");
    lab.start_probe().await;
    apply_east(&lab, &east, json!({})).await;
    let step = on_east(&lab, write("apply", "made", "1"));
    for namespace in &others {
        lab.apply(json!({"apiVersion": kind().api_version(), "kind": "Probe",
            "metadata": {"name": "p", "namespace": namespace}, "spec": {"steps": [step], "cleanup": []}}))
            .await;
    }
    lab.apply_probe("p", json!([step]), json!([])).await;
    let wait_allowed = async |namespace: &str, allowed: bool| {
        lab.wait_until(
            &format!("use from {namespace} is allowed: {allowed}"),
            async || {
                let probe = lab.api(&kind(), namespace).get("p").await.expect("it exists");
                let ready = find_condition(&probe.data, "Ready");
                let message = ready["message"].as_str().unwrap_or_default();
                match allowed {
                    true => ready["status"] == "True",
                    false => message.contains(&format!("may not be used from namespace {namespace}")),
                }
            },
        )
        .await;
    };
    let is_made = async |namespace: &str| {
        let found = east.api("ConfigMap", Some(namespace)).get_opt("made").await;
        found.expect("a response").is_some()
    };
    wait_allowed(&lab.namespace, true).await;
    for namespace in &others {
        wait_allowed(namespace, false).await;
        assert!(!is_made(namespace).await, "{namespace}");
    }
    let allow = async |namespaces: Value| {
        let spec = json!({"spec": {"allowedNamespaces": namespaces}});
        lab.patch(&cluster_kind(), "east", spec).await;
    };
    // A change of the list wakes the objects.
    allow(json!([others[0]])).await;
    wait_allowed(&others[0], true).await;
    assert!(is_made(&others[0]).await);
    wait_allowed(&others[1], false).await;
    assert!(!is_made(&others[1]).await);
    allow(json!(["*"])).await;
    wait_allowed(&others[1], true).await;
    assert!(is_made(&others[1]).await);
    allow(json!([])).await;
    for namespace in &others {
        wait_allowed(namespace, false).await;
    }
    wait_allowed(&lab.namespace, true).await;
}
