//! API priority and fairness: the API server refuses requests of the host with HTTP 429 while its priority level is busy.

use axum::http::Request;
use kube::Client;
use ostler::testing::{cli::create_client, key::Gvk};
use ostler_test_harness::{
    Lab,
    probe::{kind, write},
    scenario,
};
use serde_json::{Value, json};

/// Number of objects that are created at once.
const OBJECTS: usize = 100;
/// Maximum number of requests of a reconcile that is refused: its write, that of the status, and an Event.
const REQUESTS_PER_RECONCILE: u64 = 3;

/// A priority level for the requests of one user.
struct PriorityLevel {
    /// Name of the level and of its user.
    name: String,
}

impl PriorityLevel {
    /// Creates a level with one seat, and the user with all rights.
    async fn create(lab: &Lab) -> Self {
        let level = Self {
            name: format!("host-{}", lab.namespace),
        };
        let name = &level.name;
        // Without a share, a request is served while no other one is.
        let limited = json!({"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"}});
        lab.apply(
            json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
            "metadata": {"name": name}, "spec": {"type": "Limited", "limited": limited}}),
        )
        .await;
        let everything = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"]});
        lab.apply(json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": name},
            "spec": {"priorityLevelConfiguration": {"name": name}, "matchingPrecedence": 100, "rules": [{
                "subjects": [{"kind": "User", "user": {"name": name}}],
                "resourceRules": [everything],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}}))
            .await;
        lab.apply(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]}))
            .await;
        level
    }

    /// Creates a client of the user.
    async fn client(&self, lab: &Lab) -> Client {
        let text = std::fs::read_to_string(&lab.kubeconfig).expect("a kubeconfig");
        let mut config: Value = serde_saphyr::from_str(&text).expect("YAML");
        config["users"][0]["user"]["as"] = self.name.clone().into();
        let path = lab.path().join("priority.kubeconfig");
        std::fs::write(&path, config.to_string()).expect("written");
        create_client(Some(path)).await.expect("a client")
    }

    /// Returns the number of requests that were refused.
    async fn count_refused(&self, lab: &Lab) -> u64 {
        let request = Request::get("/metrics").body(Vec::new()).expect("a request");
        let metrics = lab.client.request_text(request).await.expect("metrics");
        let schema = format!("flow_schema=\"{}\"", self.name);
        let of_level = metrics.lines().filter(|line| {
            line.starts_with("apiserver_flowcontrol_rejected_requests_total{") && line.contains(&schema)
        });
        let counts = of_level.map(|line| line.rsplit(' ').next().expect("a value").parse::<f64>());
        counts.map(|count| count.expect("a number") as u64).sum()
    }

    async fn delete(&self, lab: &Lab) {
        for (group, kind) in [
            ("flowcontrol.apiserver.k8s.io", "FlowSchema"),
            ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"),
            ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
        ] {
            let api = lab.api(&Gvk::new(group, "v1", kind), "");
            api.delete(&self.name, &Default::default())
                .await
                .expect("deleted");
        }
    }
}

/// A hundred objects are created at once, and the API server serves one request of the host at a time. Those that are refused are
/// repeated by the backoff of their objects, not at once.
#[scenario(real_only = "API priority")]
async fn refused_requests_are_repeated_with_backoff_until_all_objects_are_ready(mut lab: Lab) {
    lab.install(&["tests/probe"]);
    let level = PriorityLevel::create(&lab).await;
    lab.start_host_with(level.client(&lab).await).await;
    let names: Vec<_> = (0..OBJECTS).map(|n| format!("probe-{n}")).collect();
    for name in &names {
        lab.apply_probe(name, json!([write("apply", name, "1")]), json!([]))
            .await;
    }
    for name in &names {
        lab.wait_ready(&kind(), name).await;
    }
    let refused = level.count_refused(&lab).await;
    let reconciles: u64 = lab
        .host()
        .stats()
        .all_objects()
        .iter()
        .map(|object| object.reconciles)
        .sum();
    println!("{refused} refused requests of {reconciles} reconciles");
    assert!(refused > 0);
    assert!(
        refused <= reconciles * REQUESTS_PER_RECONCILE,
        "{refused} refused requests of {reconciles} reconciles"
    );
    level.delete(&lab).await;
}
