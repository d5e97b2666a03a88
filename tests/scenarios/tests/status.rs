//! The status is of the generation that was reconciled, and a checkpoint is of the version that the component has seen.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    http::{Method, Request, Response},
};
use futures::StreamExt;
use kube::{
    Client,
    api::{Patch, PatchParams},
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use ostler::{
    Host, HostSettings,
    testing::{election::Timing, key::Gvk, lease, scope::Projection},
};
use ostler_test_harness::{Lab, probe, scenario};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, watch};

/// An upstream that answers a request only when the test permits it.
struct HeldUpstream {
    object: Value,
    requests: mpsc::UnboundedReceiver<Method>,
    permits: Arc<Semaphore>,
}

impl HeldUpstream {
    async fn start(lab: &Lab) -> Self {
        let (sender, requests) = mpsc::unbounded_channel();
        let permits = Arc::new(Semaphore::new(0));
        let held = permits.clone();
        let app = Router::new().fallback(async move |method: Method| {
            sender.send(method).expect("the test runs");
            held.acquire().await.expect("open").forget();
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        let object = json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
            "metadata": {"name": "held", "namespace": lab.namespace}, "spec": {"url": format!("http://{address}")}});
        Self {
            object,
            requests,
            permits,
        }
    }

    /// Waits for the next request of a reconcile; it is not answered yet.
    async fn wait_request(&mut self) -> Method {
        self.requests.recv().await.expect("a request")
    }

    fn answer_one(&self) {
        self.permits.add_permits(1);
    }
}

fn http() -> Value {
    json!({"do": "http", "name": "held", "path": "/"})
}

fn checkpoint(seen: &str) -> Value {
    json!({"do": "checkpoint", "object": json!({"seen": [seen]}).to_string()})
}

#[scenario]
async fn checkpoint_after_spec_edit_keeps_the_observed_generation(mut lab: Lab) {
    lab.start_probe().await;
    let mut upstream = HeldUpstream::start(&lab).await;
    lab.apply(upstream.object.clone()).await;
    let steps = json!([http(), checkpoint("saved"), http()]);
    lab.apply_probe("p", steps, json!([])).await;
    upstream.wait_request().await;
    // The spec is edited while generation 1 is reconciled, before its checkpoint.
    lab.patch(&probe::kind(), "p", json!({"spec": {"steps": [http()]}}))
        .await;
    upstream.answer_one();
    // The reconcile of generation 2 has begun and has no result yet.
    upstream.wait_request().await;
    let object = lab.get(&probe::kind(), "p").await.expect("the probe");
    assert_eq!(object["metadata"]["generation"], 2);
    assert_ne!(object["status"]["observedGeneration"], 2, "{}", object["status"]);
    upstream.permits.add_permits(10);
    let ready = lab.wait_ready(&probe::kind(), "p").await;
    assert_eq!(ready["status"]["observedGeneration"], 2);
    assert_eq!(ready["status"]["seen"], json!(["200"]));
}

#[scenario(real = "server-side apply and conflicts")]
async fn checkpoint_over_another_leaders_conflicts(mut lab: Lab) {
    lab.start_probe().await;
    let mut upstream = HeldUpstream::start(&lab).await;
    lab.apply(upstream.object.clone()).await;
    let steps = json!([http(), checkpoint("mine"), http()]);
    lab.apply_probe("p", steps, json!([])).await;
    upstream.wait_request().await;
    // The leader before has written its own checkpoint, and this host has not seen it.
    let theirs = json!({"status": {"seen": ["theirs"]}});
    lab.api(&probe::kind(), &lab.namespace)
        .patch_status("p", &PatchParams::default(), &Patch::Merge(&theirs))
        .await
        .expect("written");
    upstream.answer_one();
    // The retry after the conflict.
    upstream.wait_request().await;
    let object = lab.get(&probe::kind(), "p").await.expect("the probe");
    assert_eq!(object["status"]["seen"], json!(["theirs"]));
    upstream.permits.add_permits(10);
    lab.wait_ready(&probe::kind(), "p").await;
}

/// The leader before has sent the POST and recorded it, and the cache of this host does not have that status yet.
#[scenario(real = "server-side apply and conflicts")]
async fn post_of_a_stale_version_is_not_sent(mut lab: Lab) {
    lab.start_probe().await;
    let mut upstream = HeldUpstream::start(&lab).await;
    lab.apply(upstream.object.clone()).await;
    let post = json!({"do": "post-once", "name": "held", "path": "/"});
    lab.apply_probe("p", json!([http(), post]), json!([])).await;
    // The component has been given the object without a status.
    assert_eq!(upstream.wait_request().await, Method::GET);
    let recorded = json!({"status": {"seen": ["200", "posted"]}});
    lab.api(&probe::kind(), &lab.namespace)
        .patch_status("p", &PatchParams::default(), &Patch::Merge(&recorded))
        .await
        .expect("written");
    upstream.answer_one();
    assert_eq!(
        upstream.wait_request().await,
        Method::GET,
        "the retry, and no POST"
    );
    upstream.permits.add_permits(10);
    lab.wait_ready(&probe::kind(), "p").await;
    while let Ok(method) = upstream.requests.try_recv() {
        assert_eq!(method, Method::GET);
    }
    // The first POST of an object is sent once.
    let post = json!({"do": "post-once", "name": "held", "path": "/"});
    lab.apply_probe("q", json!([post]), json!([])).await;
    lab.wait_ready(&probe::kind(), "q").await;
    let mut sent = Vec::new();
    while let Ok(method) = upstream.requests.try_recv() {
        sent.push(method);
    }
    assert_eq!(sent, [Method::POST]);
}

/// The settings of one of two hosts, of which one leads.
async fn elect(lab: &Lab, identity: &str) -> HostSettings {
    let kubeconfig = Kubeconfig::read_from(&lab.kubeconfig).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let election = lease::ElectionSettings {
        config: config.expect("a configuration"),
        namespace: lab.namespace.clone(),
        name: "ostler".into(),
        identity: identity.into(),
        timing: Timing {
            lease: Duration::from_secs(3),
            renew: Duration::from_secs(2),
            retry: Duration::from_millis(500),
        },
        endpoint: Default::default(),
    };
    HostSettings {
        election: Some(election),
        ..lab.settings.clone()
    }
}

/// A client that gets nothing from the watches of a kind while they are held.
fn hold_watches(client: Client, plural: &'static str, held: watch::Receiver<bool>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, held) = (client.clone(), held.clone());
        let uri = request.uri();
        let is_watch = uri.path().ends_with(plural) && uri.query().is_some_and(|q| q.contains("watch="));
        async move {
            let (parts, body) = client.send(request).await?.into_parts();
            let chunks = axum::body::Body::new(body).into_data_stream();
            let chunks = chunks.then(move |chunk| {
                let mut held = held.clone();
                async move {
                    if is_watch {
                        let _ = held.wait_for(|held| !held).await;
                    }
                    chunk
                }
            });
            let body = axum::body::Body::from_stream(chunks);
            Ok::<_, kube::Error>(Response::from_parts(parts, body))
        }
    });
    Client::new(service, "default")
}

/// The watch of the standby has not delivered what the leader has recorded by the time that it takes over.
#[scenario(real = "leases")]
async fn new_leader_whose_watch_lags_does_not_repeat_a_post(mut lab: Lab) {
    lab.install(&["tests/probe"]);
    let mut upstream = HeldUpstream::start(&lab).await;
    lab.apply(upstream.object.clone()).await;
    lab.settings = elect(&lab, "first").await;
    lab.start_host().await;
    let post = json!({"do": "post-once", "name": "held", "path": "/"});
    lab.apply_probe("p", json!([http(), post]), json!([])).await;
    assert_eq!(upstream.wait_request().await, Method::GET);

    let held = watch::Sender::new(false);
    let client = hold_watches(lab.host_client(), "/probes", held.subscribe());
    let mut standby = Host::start(client, elect(&lab, "second").await).expect("it starts");
    standby.wait_loaded().await.expect("its plugins are loaded");
    let key = lab.key(&probe::kind(), "p");
    let cached = || standby.services().cache.store.get(&key, Projection::Full);
    lab.wait_until("the standby has the object", async || cached().is_some())
        .await;
    held.send_replace(true);
    let before = cached().expect("the object").resource_version;

    // The leader has sent the POST and recorded it.
    upstream.permits.add_permits(100);
    assert_eq!(upstream.wait_request().await, Method::POST);
    let recorded = lab.wait_ready(&probe::kind(), "p").await;
    assert_eq!(recorded["status"]["seen"], json!(["200", "posted"]));
    lab.host = None;
    assert_eq!(upstream.wait_request().await, Method::GET);
    assert_eq!(cached().expect("the object").resource_version, before);
    assert_eq!(
        upstream.wait_request().await,
        Method::GET,
        "the retry, and no POST"
    );
    held.send_replace(false);
    let newest = recorded["metadata"]["resourceVersion"]
        .as_str()
        .expect("a version");
    let newest: u64 = newest.parse().expect("a number");
    lab.wait_until("the new leader has what was recorded", async || {
        cached().is_some_and(|object| object.resource_version >= newest)
    })
    .await;
    lab.host = Some(standby);
    lab.wait_idle().await;
    let object = lab.wait_ready(&probe::kind(), "p").await;
    assert_eq!(object["status"]["seen"], json!(["200", "posted"]));
    while let Ok(method) = upstream.requests.try_recv() {
        assert_eq!(method, Method::GET);
    }
}

#[scenario]
async fn deeply_nested_object_is_reported_and_its_neighbours_go_on(mut lab: Lab) {
    // The embedded server parses with the host's own library, which refuses such an object.
    if lab.embedded.is_some() {
        return;
    }
    lab.start_pack().await;
    lab.apply_chain().await;
    let deep = format!("{}1{}", r#"{"a":"#.repeat(140), "}".repeat(140));
    let mut pipeline = lab.pipeline_object();
    pipeline["metadata"]["name"] = "deep".into();
    pipeline["spec"]["name"] = "deep".into();
    pipeline["spec"]["instanceVars"] = "VARS".into();
    let body = pipeline.to_string().replace(r#""VARS""#, &deep);
    let path = format!(
        "/apis/concourse-ci.org/v1alpha1/namespaces/{}/pipelines",
        lab.namespace
    );
    let request = http_request(&path, body);
    lab.client.request_text(request).await.expect("created");
    let read_status = async || {
        let path = format!("{path}/deep");
        let request = axum::http::Request::get(path)
            .body(Vec::new())
            .expect("a request");
        lab.client.request_text(request).await.unwrap_or_default()
    };
    lab.wait_until("its status names the field", async || {
        let text = read_status().await;
        text.contains("NestedTooDeeply") && text.contains("spec.instanceVars is nested 140 levels deep")
    })
    .await;
    // The neighbours are reconciled as before.
    lab.patch(
        &ostler_test_harness::concourse::kind("Pipeline"),
        "app",
        json!({"spec": {"exposed": true}}),
    )
    .await;
    lab.wait_until("a neighbour is applied", async || {
        lab.concourse
            .pipeline("platform", "app")
            .is_some_and(|p| p.public)
    })
    .await;
    // Its deletion is possible: it has never reached Concourse.
    let request = axum::http::Request::delete(format!("{path}/deep"))
        .body(Vec::new())
        .expect("a request");
    lab.client.request_text(request).await.expect("deleted");
    lab.wait_until("it is gone", async || {
        !read_status().await.contains("instanceVars")
    })
    .await;
}

fn http_request(path: &str, body: String) -> axum::http::Request<Vec<u8>> {
    axum::http::Request::post(path)
        .header("content-type", "application/json")
        .body(body.into_bytes())
        .expect("a request")
}

#[scenario]
async fn built_in_kinds_are_ready_by_their_own_rules(mut lab: Lab) {
    lab.start_probe().await;
    let labels = json!({"app": "web"});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": lab.namespace}, "spec": {"replicas": 2, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web"}]}}}});
    lab.apply(deployment).await;
    lab.apply_config_map("config", "a", "b").await;
    let require = |api: &str, kind: &str, name: &str| json!({"do": "ready", "apiVersion": api, "kind": kind, "name": name});
    let steps = json!([
        require("v1", "ConfigMap", "config"),
        require("apps/v1", "Deployment", "web")
    ]);
    lab.apply_probe("p", steps, json!([])).await;
    let wait_message = async |message: &str| {
        lab.wait_until(message, async || {
            let probe = lab.get(&probe::kind(), "p").await.unwrap_or_default();
            let conditions = probe["status"]["conditions"].as_array().into_iter().flatten();
            let texts: Vec<&str> = conditions.filter_map(|c| c["message"].as_str()).collect();
            texts.iter().any(|text| text.contains(message))
        })
        .await;
    };
    wait_message("has not observed generation 1").await;
    let api = lab.api(&Gvk::new("apps", "v1", "Deployment"), &lab.namespace);
    let set_status = async |status: Value| {
        let patch = Patch::Merge(json!({ "status": status }));
        api.patch_status("web", &PatchParams::default(), &patch)
            .await
            .expect("the status is written");
    };
    // Each status wakes the probe by itself.
    set_status(json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 1}))
        .await;
    wait_message("1 of 2 pods are available").await;
    set_status(json!({"availableReplicas": 2})).await;
    lab.wait_ready(&probe::kind(), "p").await;
}
