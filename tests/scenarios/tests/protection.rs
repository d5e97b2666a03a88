//! Protection of Upstreams and their Secrets: they stay until the last object is gone that needs them, and no longer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::http::{Method, Request, Response, StatusCode, Uri};
use kube::{Client, api::PostParams, client::Body};
use ostler::testing::{dispatcher::Cause, key::Gvk, upstream::upstream_gvk};
use ostler_test_harness::{Lab, find_condition, probe, proxy::Proxy, scenario};
use serde_json::{Value, json};

use crate::deletion::UPSTREAM_PROTECTION;

const USED_CONNECTIONS: &str = "ostler.dev/used-connections";
const USED_BY: &str = "ostler.dev/used-by";
const PROBE_FINALIZER: &str = "tests.ostler.dev/probe";
const PROTECTED_SECRETS: &str = "ostler.dev/protected-secrets";

fn secrets() -> Gvk {
    Gvk::new("", "v1", "Secret")
}

/// Applies the Upstream `name`, which leads to Concourse, or to a proxy in front of it, and the Secret `name` with its
/// credentials.
async fn apply_upstream(lab: &Lab, name: &str, proxy: Option<&Proxy>) {
    let url = match proxy {
        Some(proxy) => format!("http://{}", proxy.address()),
        None => lab.concourse.url().to_owned(),
    };
    apply_upstream_at(lab, name, &url).await;
}

async fn apply_upstream_at(lab: &Lab, name: &str, url: &str) {
    lab.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": lab.namespace},
        "stringData": {"password": "not-a-secret"},
    }))
    .await;
    let auth = json!({"basic": {"username": "u", "passwordSecretRef": {"name": name, "key": "password"}}});
    lab.apply(json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"url": url, "auth": auth},
    }))
    .await;
}

async fn start_proxy(lab: &Lab) -> Proxy {
    let (_, address) = lab.concourse.url().split_once("://").expect("a URL");
    let address: SocketAddr = address.parse().expect("an address");
    Proxy::start(address).await.expect("the proxy starts")
}

fn request_to(upstream: &str) -> Value {
    json!({"do": "http", "name": upstream, "path": "/"})
}

/// A request that may change something there.
fn change_at(upstream: &str) -> Value {
    json!({"do": "post-once", "name": upstream, "path": "/"})
}

/// Applies a probe that uses an Upstream, and cleans up there.
async fn apply_user(lab: &Lab, name: &str, upstream: &str) {
    lab.apply_probe(name, json!([change_at(upstream)]), json!([request_to(upstream)]))
        .await;
    lab.wait_ready(&probe::kind(), name).await;
}

/// Starts a host with the Upstream `a` and a probe `p` that uses it.
async fn start_with_user(lab: &mut Lab) {
    lab.start_probe().await;
    apply_upstream(lab, "a", None).await;
    apply_user(lab, "p", "a").await;
}

/// Deletes that Upstream, its Secret and the probe, and waits until all are gone.
async fn delete_all(lab: &Lab) {
    delete_connection(lab, "a").await;
    lab.delete(&probe::kind(), "p").await;
    lab.wait_gone(&probe::kind(), "p").await;
    wait_connection_gone(lab, "a").await;
}

/// Has the probe `p` read an Upstream twice, and waits until it has.
async fn read_twice(lab: &Lab, upstream: &str) {
    let steps = json!([request_to(upstream), request_to(upstream)]);
    lab.patch(&probe::kind(), "p", json!({"spec": {"steps": steps}}))
        .await;
    lab.wait_until("the next reconcile", async || {
        let probe = lab.get(&probe::kind(), "p").await.unwrap_or_default();
        probe["status"]["seen"]
            .as_array()
            .is_some_and(|seen| seen.len() == 2)
    })
    .await;
}

async fn finalizers(lab: &Lab, gvk: &Gvk, name: &str) -> String {
    let object = lab.get(gvk, name).await.unwrap_or_default();
    object["metadata"]["finalizers"].to_string()
}

async fn assert_protected(lab: &Lab, name: &str) {
    for gvk in [upstream_gvk(), secrets()] {
        let finalizers = finalizers(lab, &gvk, name).await;
        assert!(
            finalizers.contains(UPSTREAM_PROTECTION),
            "{} {name}: {finalizers}",
            gvk.kind
        );
    }
}

async fn delete_connection(lab: &Lab, name: &str) {
    lab.delete(&secrets(), name).await;
    lab.delete(&upstream_gvk(), name).await;
}

async fn wait_connection_gone(lab: &Lab, name: &str) {
    lab.wait_gone(&upstream_gvk(), name).await;
    lab.wait_gone(&secrets(), name).await;
}

async fn wait_cleanup_failed(lab: &Lab, name: &str) {
    lab.wait_until("the cleanup has failed", async || {
        lab.wake_causes(&probe::kind(), name).contains(&Cause::Retry)
    })
    .await;
}

#[scenario]
async fn used_upstream_and_its_user_record_each_other_before_the_first_request(mut lab: Lab) {
    start_with_user(&mut lab).await;
    assert_protected(&lab, "a").await;
    let annotations = async |gvk: &Gvk, name: &str| {
        let object = lab.get(gvk, name).await.expect("the object");
        object["metadata"]["annotations"].clone()
    };
    let of_user = annotations(&probe::kind(), "p").await;
    let listed = format!("Upstream.v1alpha1.ostler.dev {}/a", lab.namespace);
    assert_eq!(of_user[USED_CONNECTIONS], listed);
    let of_upstream = annotations(&upstream_gvk(), "a").await;
    let kind = format!("Probe.v1alpha1.tests.ostler.dev in-cluster {}", lab.namespace);
    assert_eq!(
        (&of_upstream[USED_BY], &of_upstream[PROTECTED_SECRETS]),
        (&json!(kind), &json!("a"))
    );
    // A second one of the kind changes only itself.
    let before = lab.get(&upstream_gvk(), "a").await.expect("there");
    apply_user(&lab, "q", "a").await;
    lab.wait_idle().await;
    let after = lab.get(&upstream_gvk(), "a").await.expect("there");
    assert_eq!(
        before["metadata"]["resourceVersion"],
        after["metadata"]["resourceVersion"]
    );
}

/// The host that made the first request is gone, and the one that releases the Upstream has no user to learn its Secret from.
#[scenario(real = "finalizers and garbage collection")]
async fn secret_of_an_upstream_deleted_without_a_host_is_released_by_the_next(mut lab: Lab) {
    start_with_user(&mut lab).await;
    lab.delete(&probe::kind(), "p").await;
    lab.wait_gone(&probe::kind(), "p").await;
    assert_protected(&lab, "a").await;
    lab.host = None;
    delete_connection(&lab, "a").await;
    lab.start_host().await;
    wait_connection_gone(&lab, "a").await;
}

#[scenario]
async fn release_of_a_secret_is_retried_after_an_error_of_the_api_server(mut lab: Lab) {
    start_with_user(&mut lab).await;
    lab.host = None;
    let failures = Arc::new(AtomicUsize::new(3));
    let client = client_that_fails_patches_of_secrets(lab.client.clone(), failures.clone());
    lab.start_host_with(client).await;
    delete_connection(&lab, "a").await;
    lab.delete(&probe::kind(), "p").await;
    wait_connection_gone(&lab, "a").await;
    assert_eq!(
        failures.load(Ordering::Relaxed),
        0,
        "each was answered by HTTP 503"
    );
}

/// A client whose first patches of Secrets are answered by HTTP 503, as many as `left` says.
fn client_that_fails_patches_of_secrets(client: Client, left: Arc<AtomicUsize>) -> Client {
    refuse_requests(client, move |request| {
        let is_matching = request.method() == Method::PATCH && request.uri().path().contains("/secrets/");
        let take = |left: usize| left.checked_sub(1);
        is_matching
            && left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_ok()
    })
}

/// A client whose requests are answered by HTTP 503 if the test says so.
pub fn refuse_requests(
    client: Client,
    is_refused: impl Fn(&Request<Body>) -> bool + Clone + Send + Sync + 'static,
) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, is_refused) = (client.clone(), is_refused.clone());
        async move {
            if is_refused(&request) {
                let mut response = Response::new(Body::from(b"{}".to_vec()));
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                return Ok(response);
            }
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

/// Its last reconcile has used another one.
#[scenario]
async fn upstream_that_an_earlier_reconcile_used_stays_until_the_cleanup(mut lab: Lab) {
    lab.start_probe().await;
    let proxy = start_proxy(&lab).await;
    apply_upstream(&lab, "a", Some(&proxy)).await;
    apply_upstream(&lab, "b", None).await;
    apply_user(&lab, "p", "a").await;
    read_twice(&lab, "b").await;
    proxy.set_down(true);
    delete_connection(&lab, "a").await;
    lab.delete(&probe::kind(), "p").await;
    wait_cleanup_failed(&lab, "p").await;
    lab.wait_event("DeletionBlocked", "a", "Probe").await;
    assert_protected(&lab, "a").await;
    proxy.set_down(false);
    lab.wait_gone(&probe::kind(), "p").await;
    wait_connection_gone(&lab, "a").await;
}

/// It could be anything, and nobody could clean up without the Upstream when the plugin is mended.
#[scenario(real = "finalizers and garbage collection")]
async fn upstream_stays_while_the_plugin_of_its_user_does_not_load(mut lab: Lab) {
    start_with_user(&mut lab).await;
    lab.host = None;
    lab.install_bytes("probe", b"not a component");
    delete_connection(&lab, "a").await;
    lab.delete(&probe::kind(), "p").await;
    lab.start_host().await;
    lab.wait_event("DeletionBlocked", "a", "Probe").await;
    assert_protected(&lab, "a").await;
    lab.install(&["tests/probe"]);
    lab.wait_gone(&probe::kind(), "p").await;
    wait_connection_gone(&lab, "a").await;
}

/// Whoever may edit an Upstream may write any kind into its record.
#[scenario]
async fn kind_that_no_plugin_reconciles_is_not_watched_for_the_record_of_an_upstream(mut lab: Lab) {
    lab.start_probe().await;
    apply_upstream(&lab, "a", None).await;
    let claimed = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "user", "namespace": lab.namespace,
        "finalizers": ["tests.ostler.dev/other"],
        "annotations": {USED_CONNECTIONS: format!("Upstream.v1alpha1.ostler.dev {}/a", lab.namespace)}}});
    lab.apply(claimed).await;
    let record = [
        "ServiceAccount.v1 in-cluster",
        "Service.v1 in-cluster",
        "Gone.v1.example.com in-cluster",
    ];
    let metadata = json!({"finalizers": [UPSTREAM_PROTECTION], "annotations": {USED_BY: record.join(", ")}});
    lab.patch(&upstream_gvk(), "a", json!({ "metadata": metadata }))
        .await;
    delete_connection(&lab, "a").await;
    lab.wait_event("DeletionBlocked", "a", "ServiceAccount").await;
    let accounts = Gvk::new("", "v1", "ServiceAccount");
    lab.patch(&accounts, "user", json!({"metadata": {"finalizers": null}}))
        .await;
    wait_connection_gone(&lab, "a").await;
    let watches = lab.host().services().list_watches();
    let watched: BTreeSet<&str> = watches.iter().map(|(scope, _)| &*scope.gvk.kind).collect();
    assert!(
        watched.contains("Probe") && !watched.contains("ServiceAccount") && !watched.contains("Service"),
        "{watched:?}"
    );
}

#[scenario]
async fn object_that_never_used_an_upstream_does_not_keep_it(mut lab: Lab) {
    start_with_user(&mut lab).await;
    lab.apply_probe("pending", json!([{"do": "retry"}]), json!([]))
        .await;
    lab.wait_until("it is pending", async || {
        let probe = lab.get(&probe::kind(), "pending").await.unwrap_or_default();
        find_condition(&probe, "Ready")["status"] == "False"
    })
    .await;
    delete_all(&lab).await;
    assert!(lab.get(&probe::kind(), "pending").await.is_some());
}

#[scenario]
async fn object_that_only_reads_an_upstream_does_not_keep_it(mut lab: Lab) {
    start_with_user(&mut lab).await;
    lab.apply_probe("reader", json!([request_to("a")]), json!([]))
        .await;
    lab.wait_ready(&probe::kind(), "reader").await;
    delete_all(&lab).await;
}

#[scenario]
async fn object_does_not_begin_to_use_an_upstream_that_is_being_deleted(mut lab: Lab) {
    start_with_user(&mut lab).await;
    delete_connection(&lab, "a").await;
    lab.wait_event("DeletionBlocked", "a", "Probe").await;
    lab.apply_probe("late", json!([change_at("a")]), json!([request_to("a")]))
        .await;
    lab.wait_until("it is told", async || {
        let probe = lab.get(&probe::kind(), "late").await.unwrap_or_default();
        let message = find_condition(&probe, "Ready")["message"].to_string();
        message.contains("is being deleted: no object begins to use it any more")
    })
    .await;
    // Those that use it go on.
    read_twice(&lab, "a").await;
    lab.delete(&probe::kind(), "p").await;
    wait_connection_gone(&lab, "a").await;
}

/// Objects and Upstreams of a host before this record have finalizers and no annotations.
#[scenario]
async fn users_of_a_former_version_keep_their_upstream_until_the_cleanup(mut lab: Lab) {
    lab.start_probe().await;
    let proxy = start_proxy(&lab).await;
    apply_upstream(&lab, "a", Some(&proxy)).await;
    apply_user(&lab, "p", "a").await;
    // It reads there, too.
    lab.apply_probe(
        "stays",
        json!([change_at("a"), request_to("a")]),
        json!([request_to("a")]),
    )
    .await;
    lab.wait_ready(&probe::kind(), "stays").await;
    lab.host = None;
    let none = |names: &[&str]| {
        let annotations: serde_json::Map<String, Value> = names
            .iter()
            .map(|name| ((*name).to_owned(), Value::Null))
            .collect();
        json!({"metadata": {"annotations": annotations}})
    };
    for name in ["p", "stays"] {
        lab.patch(&probe::kind(), name, none(&[USED_CONNECTIONS])).await;
    }
    lab.patch(&upstream_gvk(), "a", none(&[USED_BY, PROTECTED_SECRETS]))
        .await;
    delete_connection(&lab, "a").await;
    lab.delete(&probe::kind(), "p").await;
    proxy.set_down(true);
    lab.start_host().await;
    wait_cleanup_failed(&lab, "p").await;
    assert_protected(&lab, "a").await;
    proxy.set_down(false);
    lab.wait_gone(&probe::kind(), "p").await;
    lab.wait_until("the other one lists it", async || {
        let probe = lab.get(&probe::kind(), "stays").await.unwrap_or_default();
        probe["metadata"]["annotations"][USED_CONNECTIONS].is_string()
    })
    .await;
    assert_protected(&lab, "a").await;
    lab.delete(&probe::kind(), "stays").await;
    wait_connection_gone(&lab, "a").await;
}

/// Somebody has replaced the object with a manifest that knows nothing of the host.
#[scenario]
async fn record_that_was_overwritten_is_written_again(mut lab: Lab) {
    start_with_user(&mut lab).await;
    let bare = json!({"metadata": {"annotations": null, "finalizers": null}});
    lab.patch(&upstream_gvk(), "a", bare.clone()).await;
    lab.patch(&secrets(), "a", bare).await;
    lab.patch(&probe::kind(), "p", json!({"metadata": {"annotations": null}}))
        .await;
    lab.wait_until("all of it is there again", async || {
        let probe = lab.get(&probe::kind(), "p").await.unwrap_or_default();
        probe["metadata"]["annotations"][USED_CONNECTIONS].is_string()
            && finalizers(&lab, &upstream_gvk(), "a")
                .await
                .contains(UPSTREAM_PROTECTION)
            && finalizers(&lab, &secrets(), "a")
                .await
                .contains(UPSTREAM_PROTECTION)
    })
    .await;
    delete_connection(&lab, "a").await;
    lab.wait_event("DeletionBlocked", "a", "Probe").await;
    lab.delete(&probe::kind(), "p").await;
    lab.wait_gone(&probe::kind(), "p").await;
    wait_connection_gone(&lab, "a").await;
}

/// The Secret is needed by the other Upstream, and by the first one only for a while.
#[scenario]
async fn secret_of_two_upstreams_is_released_with_the_last(mut lab: Lab) {
    lab.start_probe().await;
    for name in ["a", "b"] {
        apply_upstream(&lab, name, None).await;
        let shared = json!({"spec": {"auth": {"basic": {"username": "u", "passwordSecretRef": {"name": "a", "key": "password"}}}}});
        lab.patch(&upstream_gvk(), name, shared).await;
        apply_user(&lab, &format!("of-{name}"), name).await;
    }
    lab.delete(&secrets(), "a").await;
    lab.delete(&upstream_gvk(), "a").await;
    lab.delete(&probe::kind(), "of-a").await;
    lab.wait_gone(&upstream_gvk(), "a").await;
    assert!(
        finalizers(&lab, &secrets(), "a")
            .await
            .contains(UPSTREAM_PROTECTION)
    );
    lab.delete(&probe::kind(), "of-b").await;
    lab.delete(&upstream_gvk(), "b").await;
    lab.wait_gone(&upstream_gvk(), "b").await;
    lab.wait_gone(&secrets(), "a").await;
}

/// A server that keeps the paths of its requests by method.
struct RecordingServer {
    url: String,
    requests: Arc<Mutex<BTreeSet<(Method, String)>>>,
}

impl RecordingServer {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let requests: Arc<Mutex<BTreeSet<(Method, String)>>> = Arc::default();
        let seen = requests.clone();
        let answer = async move |method: Method, uri: Uri| {
            seen.lock().expect("lock").insert((method, uri.path().to_owned()));
        };
        let app = axum::Router::new().fallback(answer);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, requests }
    }

    fn paths(&self, method: &Method) -> BTreeSet<String> {
        let requests = self.requests.lock().expect("lock");
        let of_method = requests.iter().filter(|(of, _)| of == method);
        of_method.map(|(_, path)| path.clone()).collect()
    }
}

/// Each object makes something at two Upstreams, and everything is deleted at a random moment and in a random order, while the
/// host is killed and its plugin does not load for a while.
#[scenario(hostile)]
async fn objects_deleted_at_random_moments_leave_nothing_at_their_upstreams(mut lab: Lab) {
    let server = RecordingServer::start().await;
    lab.start_probe().await;
    lab.apply_probe("pending", json!([{"do": "retry"}]), json!([]))
        .await;
    for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        for name in ["a", "b"] {
            apply_upstream_at(&lab, name, &server.url).await;
        }
        let names: Vec<String> = (0..3).map(|i| format!("p{seed}-{i}")).collect();
        let step = |action: &str, upstream: &str, name: &str| json!({"do": action, "name": upstream, "path": format!("/{upstream}/{name}")});
        for name in &names {
            let at_both = |action: &str| ["a", "b"].map(|upstream| step(action, upstream, name));
            lab.apply_probe(name, json!(at_both("post-once")), json!(at_both("clean")))
                .await;
        }
        tokio::time::sleep(Duration::from_millis(random.u64(0..400))).await;
        let mut deletions: Vec<(Gvk, String)> =
            names.iter().map(|name| (probe::kind(), name.clone())).collect();
        for name in ["a", "b"] {
            deletions.extend([(upstream_gvk(), name.into()), (secrets(), name.into())]);
        }
        random.shuffle(&mut deletions);
        let killed_at = random.usize(0..deletions.len());
        let is_broken = random.bool();
        for (i, (gvk, name)) in deletions.iter().enumerate() {
            if i == killed_at {
                lab.host = None;
                if is_broken {
                    lab.install_bytes("probe", b"not a component");
                }
            }
            lab.delete(gvk, name).await;
            if i == killed_at {
                lab.start_host().await;
            }
            tokio::time::sleep(Duration::from_millis(random.u64(0..30))).await;
        }
        lab.install(&["tests/probe"]);
        for (gvk, name) in &deletions {
            lab.wait_gone(gvk, name).await;
        }
        let cleaned = server.paths(&Method::GET);
        let leaked: Vec<String> = server
            .paths(&Method::POST)
            .difference(&cleaned)
            .cloned()
            .collect();
        assert!(leaked.is_empty(), "seed {seed}: {leaked:?}");
    }
    let made = server.paths(&Method::POST).len();
    assert!(made > 8, "{made} of 48 were made");
    assert!(lab.get(&probe::kind(), "pending").await.is_some());
}

/// The requests of the deletion of one Upstream with many users, and of one with few.
#[scenario(embedded = "it counts requests of its own API server")]
async fn deletion_of_an_upstream_costs_the_same_with_many_former_users(mut lab: Lab) {
    lab.start_probe().await;
    let mut costs = Vec::new();
    for users in [2, 60] {
        apply_upstream(&lab, "a", None).await;
        for i in 0..users {
            lab.apply_probe(
                &format!("p{i}"),
                json!([change_at("a")]),
                json!([request_to("a")]),
            )
            .await;
        }
        for i in 0..users {
            lab.wait_ready(&probe::kind(), &format!("p{i}")).await;
        }
        for i in 0..users {
            lab.delete(&probe::kind(), &format!("p{i}")).await;
        }
        for i in 0..users {
            lab.wait_gone(&probe::kind(), &format!("p{i}")).await;
        }
        lab.wait_idle().await;
        assert_protected(&lab, "a").await;
        let server = lab.embedded.as_ref().expect("embedded");
        server.counters().reset();
        delete_connection(&lab, "a").await;
        wait_connection_gone(&lab, "a").await;
        let count = |verb: &str, resource: &str| server.counters().of(verb, resource);
        costs.push((
            count("patch", "secrets") + count("patch", "upstreams"),
            count("list", "probes") + count("get", "probes"),
        ));
    }
    assert_eq!(costs, [(2, 0), (2, 0)]);
}

#[scenario(embedded = "it counts requests of its own API server")]
async fn deletion_of_an_upstream_costs_the_same_beside_1000_objects(lab: Lab) {
    compare_deletions(lab, [2, 50], 20).await;
}

#[scenario(
    embedded = "it counts requests of its own API server",
    campaign = "takes minutes"
)]
async fn deletion_of_an_upstream_costs_the_same_beside_100000_objects(lab: Lab) {
    compare_deletions(lab, [5, 500], 200).await;
}

/// Deletes one of few Upstreams with its users, and one of many that have as many users each, and compares the costs.
async fn compare_deletions(few: Lab, upstream_counts: [usize; 2], user_count: usize) {
    let many = few.another().await;
    let few = measure_deletion(few, upstream_counts[0], user_count).await;
    let many = measure_deletion(many, upstream_counts[1], user_count).await;
    assert_eq!(few, many);
    // The finalizers of the Upstream and of its Secret, and nothing is read.
    assert_eq!(
        few,
        BTreeMap::from([("patch secrets".into(), 1), ("patch upstreams".into(), 1)])
    );
}

/// Counts the requests with which the host finds the users of a deleted Upstream, and releases it. No user of another Upstream
/// is reconciled.
async fn measure_deletion(mut lab: Lab, upstream_count: usize, user_count: usize) -> BTreeMap<String, u64> {
    create_used_upstreams(&lab, upstream_count, user_count).await;
    lab.start_probe().await;
    let stats = lab.host().stats().clone();
    // A wait each, since it has a bound.
    for share in 1..=20 {
        let expected = upstream_count * user_count * share / 20;
        lab.wait_until("more probes are Ready", async || {
            let counts = stats.count_by_kind();
            counts
                .get(&probe::kind())
                .is_some_and(|counts| counts.ready >= expected)
        })
        .await;
    }
    lab.wait_idle().await;
    let count_reconciles_of_others = || -> u64 {
        let objects = stats.all_objects().into_iter();
        let others = objects.filter(|object| object.name.contains('-') && !object.name.starts_with("u0-"));
        others.map(|probe| probe.reconciles).sum()
    };
    let before = count_reconciles_of_others();
    let server = lab.embedded.as_ref().expect("embedded");
    server.counters().reset();
    delete_connection(&lab, "u0").await;
    for user in 0..user_count {
        lab.delete(&probe::kind(), &format!("u0-{user}")).await;
    }
    wait_connection_gone(&lab, "u0").await;
    assert_eq!(count_reconciles_of_others(), before);
    let counts = server.counters().all().into_iter();
    counts.filter(|(request, _)| is_counted(request)).collect()
}

/// Requests that find users, or release the Upstream. The test reads Upstreams and Secrets itself until they are gone.
fn is_counted(request: &str) -> bool {
    request.starts_with("list ") || ["get probes", "patch secrets", "patch upstreams"].contains(&request)
}

/// Creates Upstreams, `u0` to `uN`, and for each as many probes that list it, as a former leader has left them.
async fn create_used_upstreams(lab: &Lab, upstream_count: usize, user_count: usize) {
    let probes = lab.api(&probe::kind(), &lab.namespace);
    let users = format!("Probe.v1alpha1.tests.ostler.dev in-cluster {}", lab.namespace);
    let metadata = json!({"finalizers": [UPSTREAM_PROTECTION]});
    for number in 0..upstream_count {
        let name = format!("u{number}");
        apply_upstream(lab, &name, None).await;
        let mut protected = metadata.clone();
        lab.patch(&secrets(), &name, json!({"metadata": protected})).await;
        protected["annotations"] = json!({USED_BY: users, PROTECTED_SECRETS: name});
        lab.patch(&upstream_gvk(), &name, json!({"metadata": protected}))
            .await;
        let used = format!("Upstream.v1alpha1.ostler.dev {}/{name}", lab.namespace);
        let create = async |user: usize| {
            let metadata = json!({"name": format!("{name}-{user}"), "finalizers": [PROBE_FINALIZER],
                "annotations": {USED_CONNECTIONS: used}});
            let probe = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe", "metadata": metadata, "spec": {}});
            let probe = serde_json::from_value(probe).expect("an object");
            let created = probes.create(&PostParams::default(), &probe).await;
            created.expect("created");
        };
        futures::future::join_all((0..user_count).map(create)).await;
    }
}
