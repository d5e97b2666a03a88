//! Clusters whose servers answer with anything but what was asked for: they cost the objects that use them, and no others.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{Method, StatusCode, Uri, header::LOCATION},
    response::{IntoResponse, Response},
};
use futures::stream;
use ostler_test_harness::{
    PACK_GRANTS,
    cgroup::MemoryCgroup,
    process::{HostProcess, ProcessOptions},
    scenario,
};

use super::*;

/// Memory limit of the pod in `deploy/`.
const POD_BYTES: usize = 512 << 20;
/// Number of requests after which memory that adds up with each of them would show.
const MIN_ATTACK_COUNT: usize = 3;
/// Number of pages of endless lists, of which the host reads some dozens each time.
const MIN_PAGE_COUNT: usize = 100;
/// Size of the objects of endless lists.
const PADDING_BYTES: usize = 256 << 10;
/// Number of objects of a page.
const PAGE_OBJECT_COUNT: usize = 20;

const GRANTS: &str = "
  probe:
    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]
    kubernetes:
    - {kinds: [ConfigMap], verbs: [get]}
    - {kinds: [ConfigMap], verbs: [get, apply], clusters: ['Same/*']}
";

/// The way in which a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// Lists are not JSON.
    Garbage,
    /// Lists are an error page of a proxy.
    Html,
    /// Lists are elsewhere.
    Redirect,
    /// Lists go on for ever, page by page.
    EndlessPages,
    /// Streaming lists go on for ever.
    EndlessStream,
    /// The response to a list does not end.
    EndlessList,
    /// A watch adds objects for ever.
    EndlessWatch,
    /// An event of a watch does not end.
    EndlessEvent,
    /// The response to a write does not end.
    EndlessResponse,
}

impl Attack {
    /// Each attack, with the Cluster's name and a part of the message of the objects that use it. A watch is an attack after
    /// a successful list, so that the message of its reader depends on the moment.
    const ALL: [(Self, &'static str, Option<&'static str>); 9] = [
        (
            Self::Garbage,
            "garbage",
            Some("unexpected response of the API server"),
        ),
        (Self::Html, "html", Some("HTTP 502 <html>")),
        (Self::Redirect, "redirect", Some("HTTP 302")),
        (Self::EndlessPages, "endless-pages", Some("too large")),
        (Self::EndlessStream, "endless-stream", Some("too large")),
        (Self::EndlessList, "endless-list", Some("too large")),
        (Self::EndlessWatch, "endless-watch", None),
        (Self::EndlessEvent, "endless-event", None),
        (Self::EndlessResponse, "endless-response", Some("too large")),
    ];
}

/// A server that attacks.
struct Attacker {
    attack: Attack,
    /// Number of requests that were answered with the attack.
    count: AtomicUsize,
    /// Number of the next object.
    next: AtomicUsize,
    /// The server that requests are redirected to.
    elsewhere: String,
}

impl Attacker {
    /// Starts a server, and returns its address.
    async fn start(attack: Attack, elsewhere: &str) -> (Arc<Self>, String) {
        let attacker = Arc::new(Self {
            attack,
            count: AtomicUsize::default(),
            next: AtomicUsize::default(),
            elsewhere: elsewhere.to_owned(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let routes = Router::new().fallback(answer).with_state(attacker.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (attacker, format!("http://{address}"))
    }

    /// Builds an object that no earlier list had.
    fn build_object(&self) -> Value {
        let name = format!("c-{}", self.next.fetch_add(1, Ordering::Relaxed));
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"padding": "x".repeat(PADDING_BYTES)},
            "metadata": {"name": name, "namespace": "any", "uid": name, "resourceVersion": "1"}})
    }

    /// Builds a page of a list, after which there is another one if there is a token.
    fn build_page(&self, count: usize, token: &str) -> Response {
        let items: Vec<Value> = (0..count).map(|_| self.build_object()).collect();
        let page = json!({"kind": "ConfigMapList", "apiVersion": "v1", "items": items,
            "metadata": {"resourceVersion": "1", "continue": token}});
        page.to_string().into_response()
    }

    /// Builds a response of which each part is made when the one before has been read.
    fn build_stream(self: Arc<Self>, next: impl Fn(&Self) -> Bytes + Send + 'static) -> Response {
        let parts = stream::unfold((self, next), |(attacker, next)| async move {
            // The other tasks of the test's runtime come first.
            tokio::task::yield_now().await;
            let part = next(&attacker);
            Some((Ok::<_, std::io::Error>(part), (attacker, next)))
        });
        Body::from_stream(parts).into_response()
    }
}

async fn answer(State(attacker): State<Arc<Attacker>>, method: Method, uri: Uri) -> Response {
    let query = uri.query().unwrap_or_default();
    match uri.path() {
        "/version" => return json!({"gitVersion": "v1.34.0"}).to_string().into_response(),
        "/api" => return json!({"versions": ["v1"]}).to_string().into_response(),
        "/api/v1" => {
            let resource = json!({"name": "configmaps", "kind": "ConfigMap", "namespaced": true});
            return json!({"resources": [resource]}).to_string().into_response();
        }
        _ => {}
    }
    let blanks = |_: &Attacker| Bytes::from(vec![b' '; 1 << 16]);
    let added = |attacker: &Attacker| {
        let event = json!({"type": "ADDED", "object": attacker.build_object()});
        Bytes::from(format!("{event}\n"))
    };
    let (is_list, is_stream) = (
        method == Method::GET && !query.contains("watch=true"),
        query.contains("sendInitialEvents=true"),
    );
    let is_watch = method == Method::GET && !is_list && !is_stream;
    let is_attack = match attacker.attack {
        Attack::EndlessStream => is_stream,
        Attack::EndlessWatch | Attack::EndlessEvent => is_watch,
        Attack::EndlessResponse => method == Method::PATCH,
        _ => is_list,
    };
    if is_attack {
        attacker.count.fetch_add(1, Ordering::Relaxed);
        return match attacker.attack {
            Attack::Garbage => "\u{1}{\"items\": [garbage".into_response(),
            Attack::Html => (StatusCode::BAD_GATEWAY, "<html><body>proxy</body></html>").into_response(),
            Attack::Redirect => {
                let elsewhere = format!("{}{uri}", attacker.elsewhere);
                (StatusCode::FOUND, [(LOCATION, elsewhere)]).into_response()
            }
            Attack::EndlessPages => attacker.build_page(PAGE_OBJECT_COUNT, "more"),
            Attack::EndlessStream | Attack::EndlessWatch => attacker.build_stream(added),
            Attack::EndlessList | Attack::EndlessEvent | Attack::EndlessResponse => {
                attacker.build_stream(blanks)
            }
        };
    }
    match attacker.attack {
        _ if is_watch => {
            Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>()).into_response()
        }
        // Without streaming lists the pages go on.
        _ if is_stream => StatusCode::BAD_REQUEST.into_response(),
        Attack::EndlessStream => attacker.build_page(1, "more"),
        _ => attacker.build_page(0, ""),
    }
}

#[scenario(embedded = "its hostile clusters are servers of its own", hostile)]
async fn hostile_clusters_cost_their_own_objects_only(lab: Lab) {
    let Some(cgroup) = MemoryCgroup::create_or_skip(POD_BYTES) else {
        return;
    };
    lab.install(&["tests/probe"]);
    let grants = format!("{PACK_GRANTS}{GRANTS}");
    let options = ProcessOptions {
        grants: Some(&grants),
        cgroup: Some(&cgroup),
    };
    let mut process = HostProcess::start_with(&lab, "host", &["--leader-elect=false"], options);
    process.wait_started(&lab).await;
    let honest = SecondCluster::start_embedded(&lab).await;
    apply_cluster(&lab, "honest", honest.kubeconfig()).await;
    honest.apply_config_map(&lab, "c", "0").await;
    let read = json!({"do": "get", "kind": "ConfigMap", "name": "c"});
    let near = on_cluster(&lab, "honest", read.clone());
    lab.apply_probe("honest", json!([near]), json!([])).await;
    lab.wait_seen("honest", &[r#"{"v":"0"}"#]).await;
    // Redirects lead to a server that would count the requests.
    let (elsewhere, elsewhere_url) = Attacker::start(Attack::Garbage, "").await;
    let mut attackers = Vec::new();
    for (attack, name, _) in Attack::ALL {
        let (attacker, url) = Attacker::start(attack, &elsewhere_url).await;
        apply_cluster(&lab, name, &format_kubeconfig(&url, "token: t")).await;
        for (action, step) in [("read", read.clone()), ("write", write("apply", "made", "1"))] {
            let step = on_cluster(&lab, name, step);
            lab.apply_probe(&format!("{name}-{action}"), json!([step]), json!([]))
                .await;
        }
        attackers.push(attacker);
    }
    for (_, name, message) in Attack::ALL {
        if let Some(message) = message {
            // A write reads first, so it fails for the same reason.
            wait_not_ready(&lab, &kind(), &format!("{name}-write"), message).await;
        }
    }
    // One after the other, since all of them share the time.
    for (attacker, (_, name, _)) in attackers.iter().zip(Attack::ALL) {
        let minimum = match attacker.attack {
            Attack::EndlessPages => MIN_PAGE_COUNT,
            // It goes on until the limit of a watch, which takes minutes where the host is not optimized.
            Attack::EndlessWatch => 1,
            _ => MIN_ATTACK_COUNT,
        };
        lab.wait_until(&format!("{minimum} attacks of {name}"), async || {
            attacker.count.load(Ordering::Relaxed) >= minimum
        })
        .await;
    }
    for change in ["1", "2", "3"] {
        let changed = Instant::now();
        honest.apply_config_map(&lab, "c", change).await;
        lab.wait_seen("honest", &[&json!({"v": change}).to_string()])
            .await;
        let elapsed = changed.elapsed();
        assert!(
            elapsed < Duration::from_secs(10),
            "{elapsed:?} beside the attacks"
        );
    }
    assert!(process.is_running(), "the host has ended");
    assert_eq!(cgroup.oom_kills(), 0, "the kernel has killed a process");
    println!("peak memory of the host: {} MiB", cgroup.peak_bytes() >> 20);
    assert_eq!(
        elsewhere.count.load(Ordering::Relaxed),
        0,
        "a redirect was followed"
    );
    drop(process);
}
