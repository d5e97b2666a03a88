//! Tenants: a user with rights in one namespace only cannot read, redirect, exhaust or end what belongs to others.
//!
//! The platform team's chain is in the namespace of the test; the tenant has every verb on the kinds of the pack,
//! Upstreams, ConfigMaps and Secrets in a second namespace, and nothing elsewhere.

mod crash;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    http::{StatusCode, header::LOCATION},
};
use kube::{
    Client, Config,
    api::{Api, DynamicObject, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, GroupVersionKind},
};
use ostler::testing::key::Gvk;
use ostler_test_harness::{
    ADMIN_PASSWORD, Lab, captured_logs,
    concourse::{PACK_COMPONENTS, kind},
    find_condition, scenario,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Value of the variable of the platform team's pipeline.
const REGISTRY_PASSWORD: &str = "registry-pass-0001";

/// Changes of a pipeline per measurement of its latency.
const CHANGE_COUNT: usize = 20;
/// Maximum ratio of the latencies of a neighbour beside a flood and without it.
const MAX_RATIO: f64 = 2.0;
/// Number of measurements, of which the majority must stay within [`MAX_RATIO`].
const ATTEMPT_COUNT: usize = 3;

fn upstream_gvk() -> Gvk {
    Gvk::new("ostler.dev", "v1alpha1", "Upstream")
}

/// The tenant: a user with a Role in a namespace of its own.
struct Tenant {
    client: Client,
    namespace: String,
}

impl Tenant {
    /// Creates the namespace, the Role and the user's client. The host is to watch both namespaces.
    async fn create(lab: &mut Lab) -> Self {
        let namespace = format!("{}-tenant", lab.namespace);
        let user = format!("user-{namespace}");
        lab.settings.namespaces.push(namespace.clone());
        lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))
            .await;
        let group = "rbac.authorization.k8s.io";
        let meta = json!({"name": "tenant", "namespace": namespace});
        let rules = json!([
            {"apiGroups": ["concourse-ci.org"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": ["ostler.dev"], "resources": ["upstreams"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["configmaps", "secrets", "events"], "verbs": ["*"]},
        ]);
        lab.apply(
            json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": meta, "rules": rules}),
        )
        .await;
        lab.apply(
            json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "tenant"},
            "subjects": [{"kind": "User", "apiGroup": group, "name": user}]}),
        )
        .await;
        let client = create_client_as(lab.kubeconfig.clone(), &user).await;
        Self { client, namespace }
    }

    fn api(&self, gvk: &Gvk, namespace: &str) -> Api<DynamicObject> {
        let kube_gvk = GroupVersionKind::gvk(&gvk.group, &gvk.version, &gvk.kind);
        Api::namespaced_with(self.client.clone(), namespace, &ApiResource::from_gvk(&kube_gvk))
    }

    async fn try_apply(&self, object: &Value) -> Result<DynamicObject, kube::Error> {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let gvk = Gvk::from_api_version(text("/apiVersion"), text("/kind"));
        let api = self.api(&gvk, text("/metadata/namespace"));
        let parameters = PatchParams::apply("tenant").force();
        api.patch(text("/metadata/name"), &parameters, &Patch::Apply(object))
            .await
    }

    async fn apply(&self, object: Value) {
        self.try_apply(&object).await.expect("applied");
    }

    /// Builds an object of the pack in the tenant's namespace.
    fn pack_object(&self, kind_name: &str, name: &str, spec: Value) -> Value {
        json!({"apiVersion": "concourse-ci.org/v1alpha1", "kind": kind_name,
            "metadata": {"name": name, "namespace": self.namespace}, "spec": spec})
    }

    /// Builds the Secret `own` with a password.
    fn password_secret(&self, password: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own", "namespace": self.namespace},
            "stringData": {"password": password}})
    }

    /// Builds an Instance that logs in at `url` with a Secret of the tenant's namespace.
    fn instance_object(&self, name: &str, url: &str, secret: &str) -> Value {
        let password = json!({"username": "test", "passwordRef": {"name": secret, "key": "password"}});
        self.pack_object(
            "Instance",
            name,
            json!({"url": url, "auth": {"password": password}}),
        )
    }

    async fn get(&self, gvk: &Gvk, name: &str) -> Value {
        let found = self.api(gvk, &self.namespace).get_opt(name).await;
        serde_json::to_value(found.expect("an answer")).expect("JSON")
    }

    /// Waits until the object is reported as not Ready, and returns reason and message.
    async fn wait_refused(&self, lab: &Lab, kind_name: &str, name: &str) -> (String, String) {
        let read_ready = async || find_condition(&self.get(&kind(kind_name), name).await, "Ready");
        lab.wait_until(&format!("{kind_name} {name} is not Ready"), async || {
            read_ready().await["status"] == "False"
        })
        .await;
        let ready = read_ready().await;
        let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
        (text("reason"), text("message"))
    }

    /// Everything that the tenant can read, as one text.
    async fn read_everything(&self) -> String {
        let mut texts = String::new();
        let upstream = upstream_gvk();
        let event = Gvk::new("", "v1", "Event");
        let pack = ["Instance", "Team", "Pipeline"].map(kind);
        for gvk in pack.iter().chain([&upstream, &event]) {
            let list = self.api(gvk, &self.namespace).list(&Default::default()).await;
            texts += &format!("{:?}", list.expect("a list").items);
        }
        texts
    }
}

async fn create_client_as(kubeconfig: PathBuf, user: &str) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a config");
    config.auth_info.impersonate = Some(user.to_owned());
    Client::try_from(config).expect("a client")
}

/// Starts the pack for both namespaces, with the platform team's chain Ready.
async fn start_with_tenant(lab: &mut Lab) -> Tenant {
    let tenant = Tenant::create(lab).await;
    lab.install(&PACK_COMPONENTS);
    lab.start_host().await;
    lab.apply_chain().await;
    tenant
}

#[scenario(hostile)]
async fn tenant_cannot_use_objects_and_secrets_of_others(mut lab: Lab) {
    let tenant = start_with_tenant(&mut lab).await;
    let home = lab.namespace.clone();

    // The API server itself keeps the tenant out of the other namespace.
    for gvk in [kind("Instance"), Gvk::new("", "v1", "Secret")] {
        let denied = tenant.api(&gvk, &home).list(&Default::default()).await;
        assert!(
            matches!(&denied, Err(kube::Error::Api(status)) if status.code == 403),
            "{denied:?}"
        );
    }

    // References into it are refused by the Instance's allowedNamespaces, and nothing is made in Concourse.
    let owners = json!([{"role": "owner", "users": ["local:test"]}]);
    let foreign = json!({"name": "ci", "namespace": home});
    tenant
        .apply(tenant.pack_object(
            "Team",
            "intruder",
            json!({"instanceRef": foreign, "teamName": "intruder", "roles": owners}),
        ))
        .await;
    let config = json!({"inline": "jobs: []"});
    tenant
        .apply(tenant.pack_object(
            "Pipeline",
            "intruder",
            json!({"teamRef": {"name": "platform", "namespace": home}, "config": config}),
        ))
        .await;
    for kind_name in ["Team", "Pipeline"] {
        let (reason, message) = tenant.wait_refused(&lab, kind_name, "intruder").await;
        assert!(
            message.contains("allowedNamespaces"),
            "{kind_name}: {reason}: {message}"
        );
    }

    // The credentials of others are not found under their names in the tenant's namespace.
    tenant
        .apply(tenant.instance_object("copy", lab.concourse.url(), "ci-admin"))
        .await;
    let (reason, message) = tenant.wait_refused(&lab, "Instance", "copy").await;
    assert!(
        message.contains("ci-admin") && message.contains(&tenant.namespace),
        "{reason}: {message}"
    );
    // A namespace beside the name of a Secret is no field: it is refused or pruned, never followed.
    let mut reaching = tenant.instance_object("reaching", lab.concourse.url(), "ci-admin");
    reaching["spec"]["auth"]["password"]["passwordRef"]["namespace"] = home.as_str().into();
    if tenant.try_apply(&reaching).await.is_ok() {
        let (reason, message) = tenant.wait_refused(&lab, "Instance", "reaching").await;
        assert!(message.contains(&tenant.namespace), "{reason}: {message}");
    }

    lab.wait_idle().await;
    assert!(lab.concourse.team("intruder").is_none());
    assert!(lab.concourse.pipeline("platform", "intruder").is_none());
    let visible = tenant.read_everything().await;
    assert!(visible.contains("NamespaceNotAllowed"), "the objects are read");
    for secret in [ADMIN_PASSWORD, REGISTRY_PASSWORD] {
        assert!(!visible.contains(secret), "{secret} is visible to the tenant");
        assert!(!captured_logs().contains(secret), "{secret} is in the log");
    }
}

/// A server that counts connections and redirects each request to another address.
struct Redirector {
    address: SocketAddr,
    connections: Arc<AtomicU32>,
}

impl Redirector {
    async fn start(address: &str, target: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let connections = Arc::new(AtomicU32::new(0));
        let counter = connections.clone();
        let app = Router::new().fallback(async move |uri: axum::http::Uri| {
            counter.fetch_add(1, Ordering::Relaxed);
            match target {
                Some(target) => (
                    StatusCode::TEMPORARY_REDIRECT,
                    [(LOCATION, format!("http://{target}{uri}"))],
                    String::new(),
                ),
                None => (StatusCode::OK, [(LOCATION, String::new())], "{}".to_owned()),
            }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, connections }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn request_count(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

#[scenario(hostile)]
async fn tenant_cannot_redirect_requests_to_refused_addresses(mut lab: Lab) {
    // The host of the tests allows 127.0.0.1 only, so 127.0.0.2 stands for an address of the cluster.
    let inner = Redirector::start("127.0.0.2:0", None).await;
    let outer = Redirector::start("127.0.0.1:0", Some(inner.address)).await;
    let tenant = start_with_tenant(&mut lab).await;
    tenant
        .apply(tenant.password_secret("the-tenants-own-password"))
        .await;
    let metadata = "http://169.254.169.254".to_owned();
    let mapped = format!("http://[::ffff:127.0.0.2]:{}", inner.address.port());
    let targets = [
        ("direct", inner.url()),
        ("mapped", mapped),
        ("metadata", metadata),
        ("redirected", outer.url()),
    ];
    for (name, url) in &targets {
        tenant.apply(tenant.instance_object(name, url, "own")).await;
    }
    for (name, _) in &targets {
        tenant.wait_refused(&lab, "Instance", name).await;
    }
    lab.wait_until("the allowed server has answered", async || {
        outer.request_count() > 0
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(inner.request_count(), 0, "a refused address was reached");
}

/// Changes the platform team's pipeline, and waits until Concourse has the change. Returns the duration.
async fn change_pipeline(lab: &Lab) -> Duration {
    let exposed = !lab.concourse.pipeline("platform", "app").expect("there").public;
    let started = Instant::now();
    lab.patch(&kind("Pipeline"), "app", json!({"spec": {"exposed": exposed}}))
        .await;
    lab.wait_until("Concourse has the change", async || {
        let pipeline = lab.concourse.pipeline("platform", "app");
        pipeline.is_some_and(|pipeline| pipeline.public == exposed)
    })
    .await;
    started.elapsed()
}

/// The median duration from the change of the platform team's pipeline until it is in Concourse.
async fn measure_median(lab: &Lab) -> Duration {
    let mut took = Vec::with_capacity(CHANGE_COUNT);
    for _ in 0..CHANGE_COUNT {
        took.push(change_pipeline(lab).await);
    }
    took.sort_unstable();
    took[CHANGE_COUNT / 2]
}

/// Applies a flood of objects that cannot become Ready: references to namespaces the host does not watch, servers that
/// accept connections and never answer, and annotations with thousands of references.
async fn apply_flood(lab: &Lab, tenant: &Tenant, silent: SocketAddr) {
    let owners = json!([{"role": "owner", "users": ["local:test"]}]);
    for i in 0..60 {
        let elsewhere = json!({"name": "x", "namespace": format!("{}-nowhere-{i}", lab.namespace)});
        let spec = json!({"instanceRef": elsewhere, "teamName": format!("lost-{i}"), "roles": owners});
        tenant
            .apply(tenant.pack_object("Team", &format!("lost-{i}"), spec))
            .await;
        let url = format!("http://{silent}/{i}");
        tenant
            .apply(tenant.instance_object(&format!("silent-{i}"), &url, "own"))
            .await;
    }
    let holds: Vec<String> = (0..3000)
        .map(|i| format!("Kind{i}.v1.made-up.example {}/x-{i}", tenant.namespace))
        .collect();
    let mut burdened = tenant.pack_object(
        "Team",
        "burdened",
        json!({"instanceRef": {"name": "silent-0"}, "teamName": "burdened", "roles": owners}),
    );
    burdened["metadata"]["annotations"] = json!({"ostler.dev/holds": holds.join(", ")});
    tenant.apply(burdened).await;
}

#[scenario(hostile)]
async fn tenant_that_floods_does_not_delay_its_neighbours(mut lab: Lab) {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("an address");
    // Accepted connections stay open without an answer until the test ends.
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((connection, _)) = silent.accept().await {
            open.push(connection);
        }
    });
    let tenant = start_with_tenant(&mut lab).await;
    tenant
        .apply(tenant.password_secret("the-tenants-own-password"))
        .await;
    let calm = measure_median(&lab).await;
    apply_flood(&lab, &tenant, address).await;
    let mut ratios = Vec::new();
    for _ in 0..ATTEMPT_COUNT {
        let loaded = measure_median(&lab).await;
        ratios.push(loaded.as_secs_f64() / calm.as_secs_f64());
    }
    println!("median of a neighbour's change: {calm:.1?} calm, beside a flood × {ratios:.2?}");
    let within = ratios.iter().filter(|ratio| **ratio <= MAX_RATIO).count();
    assert!(within * 2 > ATTEMPT_COUNT, "calm {calm:.1?}, ratios {ratios:.2?}");
    // The flood has not made the host unready, and each object says why it is not Ready.
    let address = "127.0.0.1:0".parse().expect("an address");
    let admin = lab.admin().serve_local(address).await.expect("it binds");
    let readiness = reqwest::get(format!("http://{admin}/readyz"))
        .await
        .expect("a response");
    assert_eq!(readiness.status().as_u16(), 200, "{:?}", readiness.text().await);
    tenant.wait_refused(&lab, "Team", "lost-0").await;
}
