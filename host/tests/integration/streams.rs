//! Event streams against a real HTTP server: shared, filtered, reconnected, closed.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::HeaderMap,
    response::{IntoResponse, Response},
    routing::get,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use ostler::testing::{
    fence::WriteFence,
    key::{Gvk, ObjectRef},
    network::NetworkGrant,
    object::KubeObject,
    upstream::{
        CircuitState, ClientPool, EventPattern, EventStreams, Secret, SecretStore, SendError, StreamKey,
        StreamState, StreamSubscription, TailQuery, UpstreamObject, UpstreamRequest, UpstreamSecretKey,
    },
};
use serde_json::json;
use tokio::sync::watch;

use crate::common::{Vault, allowing, wait_until};

/// A server with one stream, whose events the test sets.
struct Server {
    /// Frames so far.
    frames: Mutex<Vec<String>>,
    /// Changes with each new frame, and with each hang-up.
    news: watch::Sender<()>,
    hangups: AtomicUsize,
    open: AtomicUsize,
    /// `last-event-id` and `authorization` of each request.
    asked: Mutex<Vec<(Option<String>, Option<String>)>>,
}

/// Counts a connection while its body lives.
struct Counted(Arc<Server>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(State(server): State<Arc<Server>>, Path(kind): Path<String>, headers: HeaderMap) -> Response {
    let header = |name: &str| Some(headers.get(name)?.to_str().ok()?.to_owned());
    let last = header("last-event-id");
    let asked = (last.clone(), header("authorization"));
    server.asked.lock().unwrap().push(asked);
    let media = [("content-type", "text/event-stream; charset=utf-8")];
    match &*kind {
        "brief" => return (media, "retry: 10\n\ndata: x\n\n").into_response(),
        "empty" => return axum::http::StatusCode::NO_CONTENT.into_response(),
        "page" => return "<html>".into_response(),
        "busy" => {
            let later = [("retry-after", "60")];
            return (axum::http::StatusCode::TOO_MANY_REQUESTS, later).into_response();
        }
        "forgetful" => {
            // Gives ids, and knows nothing of what came before.
            let next = server.frames.lock().unwrap().len();
            return stream_from(server, next);
        }
        "down" => return axum::http::StatusCode::BAD_GATEWAY.into_response(),
        _ => {}
    }
    let next = last.and_then(|l| l.parse::<usize>().ok()).map_or(0, |l| l + 1);
    stream_from(server, next)
}

/// Streams the frames from the `next` one on.
fn stream_from(server: Arc<Server>, next: usize) -> Response {
    let media = [("content-type", "text/event-stream; charset=utf-8")];
    server.open.fetch_add(1, Ordering::SeqCst);
    let began = server.hangups.load(Ordering::SeqCst);
    let news = server.news.subscribe();
    let counted = Counted(server);
    let body = futures::stream::unfold(
        (counted, news, next),
        move |(counted, mut news, next)| async move {
            loop {
                let server = &counted.0;
                if server.hangups.load(Ordering::SeqCst) > began {
                    return None;
                }
                let frames = server.frames.lock().unwrap()[next..].concat();
                let after = server.frames.lock().unwrap().len();
                if !frames.is_empty() {
                    return Some((Ok::<_, std::convert::Infallible>(frames), (counted, news, after)));
                }
                news.changed().await.ok()?;
            }
        },
    );
    (media, Body::from_stream(body)).into_response()
}

impl Server {
    fn send_frame(&self, frame: &str) {
        self.frames.lock().unwrap().push(frame.to_owned());
        self.news.send_replace(());
    }

    /// Sends an event with an ID, after which the stream is resumed.
    fn number(&self, name: &str, data: &str) {
        let id = self.frames.lock().unwrap().len();
        self.send_frame(&format!("id: {id}\nevent: {name}\ndata: {data}\n\n"));
    }

    fn hang_up(&self) {
        self.hangups.fetch_add(1, Ordering::SeqCst);
        self.news.send_replace(());
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    fn asked(&self) -> Vec<(Option<String>, Option<String>)> {
        self.asked.lock().unwrap().clone()
    }
}

struct Lab {
    server: Arc<Server>,
    vault: Vault,
    clients: ClientPool,
    gate: WriteFence,
    streams: Arc<EventStreams>,
    upstream: UpstreamObject,
    key: ObjectRef,
    woken: Arc<Mutex<Vec<String>>>,
}

async fn lab() -> Lab {
    // Fails if another test has installed a provider, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = Arc::new(Server {
        frames: Mutex::default(),
        news: watch::Sender::new(()),
        hangups: AtomicUsize::new(0),
        open: AtomicUsize::new(0),
        asked: Mutex::default(),
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new()
        .route("/{kind}", get(serve))
        .route("/", get(async || ""))
        .with_state(server.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let vault = Vault::default();
    vault.set("token", "the-first-token");
    let upstream = json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": "ci", "namespace": "n", "uid": "u", "generation": 1, "resourceVersion": "1"},
        "spec": {"url": url, "auth": {"bearer": {"tokenSecretRef": {"name": "token", "key": "token"}}}}});
    let gvk = Gvk::new("ostler.dev", "v1alpha1", "Upstream");
    let (key, object) = KubeObject::parse(&gvk, upstream.to_string().as_bytes()).unwrap();
    let gate = WriteFence::closed();
    gate.open_until(1, Instant::now() + Duration::from_secs(3600));
    let woken: Arc<Mutex<Vec<String>>> = Arc::default();
    let recorder = woken.clone();
    let streams = EventStreams::new(gate.clone(), move |object, _| {
        recorder.lock().unwrap().push(object.name.to_string());
    });
    Lab {
        server,
        vault,
        clients: ClientPool::default().with_network(allowing("127.0.0.1")),
        gate,
        streams,
        upstream: UpstreamObject::from_object(&object).unwrap(),
        key,
        woken,
    }
}

/// The Secret `token` with a value of the key `token`.
fn secret(version: u32, value: &str) -> (ObjectRef, KubeObject) {
    let json = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "token", "namespace": "n", "uid": "s", "resourceVersion": version.to_string()},
        "data": {"token": STANDARD.encode(value)}});
    KubeObject::parse(&Gvk::new("", "v1", "Secret"), json.to_string().as_bytes()).unwrap()
}

fn object(name: &str) -> ObjectRef {
    ObjectRef::new(Gvk::new("g", "v1", "Thing"), "n", name)
}

/// Status events wake the object, `end` ends its subscription.
fn interest() -> StreamSubscription {
    let named = |name: &str| EventPattern {
        name: Some(name.into()),
        data: None,
    };
    StreamSubscription {
        wake: vec![named("status")],
        until: vec![named("end")],
    }
}

impl Lab {
    fn stream(&self, path: &str) -> StreamKey {
        StreamKey {
            upstream: self.key.clone(),
            path: path.into(),
        }
    }

    fn follow(&self, name: &str, path: &str) -> Result<(), SendError> {
        let source = self.clients.stream_source(&self.upstream, &self.vault)?;
        self.streams
            .subscribe(&object(name), &self.stream(path), interest(), source)
    }

    fn woken(&self, name: &str) -> usize {
        self.woken.lock().unwrap().iter().filter(|n| *n == name).count()
    }

    fn state(&self, name: &str) -> Option<StreamState> {
        Some(self.streams.streams_of(&object(name)).first()?.state.clone())
    }

    async fn get(&self, timeout: Duration) -> Result<u16, SendError> {
        let request = UpstreamRequest {
            method: "GET".into(),
            path_and_query: "/".into(),
            headers: vec![],
            body: None,
            substitutions: vec![],
            timeout: Some(timeout),
            budget: None,
        };
        let answer = self
            .clients
            .send_request(&self.upstream, request, &self.vault)
            .await;
        answer.map(|answer| answer.status)
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        wait_until(holds, || format!("{what}; {:?}", self.streams.all_streams())).await;
    }
}

#[tokio::test]
async fn subscribers_share_one_connection_until_last_event() {
    let lab = lab().await;
    for name in ["a", "b", "c"] {
        lab.follow(name, "/live").unwrap();
    }
    lab.until("all are woken when it is open", || {
        ["a", "b", "c"].iter().all(|n| lab.woken(n) == 1)
    })
    .await;
    lab.server.number("log", "no subscriber matches this");
    lab.server.number("status", "started");
    lab.until("all are woken", || {
        ["a", "b", "c"].iter().all(|n| lab.woken(n) == 2)
    })
    .await;
    lab.follow("a", "/live").unwrap();
    assert_eq!((lab.server.open(), lab.server.asked().len()), (1, 1));
    let asked = lab.server.asked();
    assert_eq!(asked[0].1.as_deref(), Some("Bearer the-first-token"));
    // One subscriber leaves, the others stay.
    lab.streams.retain_subscriptions(&object("a"), &HashSet::new());
    assert_eq!(lab.streams.all_streams()[0].subscribers, 2);
    lab.server.number("end", "");
    lab.until("the client closes the connection", || lab.server.open() == 0)
        .await;
    assert_eq!((lab.woken("a"), lab.woken("b"), lab.woken("c")), (2, 3, 3));
    assert_eq!(lab.state("b"), Some(StreamState::Ended));
    lab.follow("b", "/live").unwrap();
    assert_eq!(lab.server.asked().len(), 1, "the subscription has ended");
    lab.follow("d", "/live").unwrap();
    lab.until("a new subscriber receives all events", || lab.woken("d") == 3)
        .await;
    lab.until("and it is closed again", || lab.server.open() == 0)
        .await;
    for name in ["b", "c", "d"] {
        lab.streams.retain_subscriptions(&object(name), &HashSet::new());
    }
    assert!(lab.streams.all_streams().is_empty());
}

#[tokio::test]
async fn stream_resumes_after_last_event_and_wakes_if_events_may_be_missed() {
    let lab = lab().await;
    lab.follow("a", "/live").unwrap();
    lab.server.number("status", "one");
    lab.until("woken by opening and by the event", || lab.woken("a") == 2)
        .await;
    lab.server.hang_up();
    lab.until("it is open again", || {
        lab.server.asked().len() == 2 && lab.server.open() == 1
    })
    .await;
    assert_eq!(lab.server.asked()[1].0.as_deref(), Some("0"));
    lab.server.number("status", "two");
    lab.until("woken by what came after", || lab.woken("a") == 3)
        .await;
    assert_eq!(lab.streams.streams_of(&object("a"))[0].reconnects, 1);
}

#[tokio::test]
async fn reconnected_stream_wakes_unless_ids_prove_that_nothing_was_missed() {
    let lab = lab().await;
    lab.follow("a", "/forgetful").unwrap();
    lab.until("it is open", || lab.server.open() == 1).await;
    lab.server.number("status", "one");
    lab.until("woken by opening and by the event", || lab.woken("a") == 2)
        .await;
    lab.server.hang_up();
    lab.until("it is closed", || lab.server.open() == 0).await;
    lab.server.number("status", "lost");
    lab.until("woken, as an event may be missed", || lab.woken("a") == 3)
        .await;
    lab.server.hang_up();
    lab.until("it is closed", || lab.server.open() == 0).await;
    lab.server.number("status", "lost");
    lab.until("it is open again", || lab.server.open() == 1).await;
    lab.server.number("log", "with an id that shows the gap");
    lab.until("woken by the gap", || lab.woken("a") == 4).await;
}

#[tokio::test]
async fn metadata_change_of_secret_keeps_stream() {
    let lab = lab().await;
    lab.follow("a", "/live").unwrap();
    lab.until("it is open", || lab.woken("a") == 1).await;
    // Another resourceVersion, as an annotation makes one.
    let (key, annotated) = secret(7, "the-first-token");
    lab.streams.on_object_change(&key, Some(&annotated));
    assert_eq!(lab.state("a"), Some(StreamState::Open));
    assert_eq!(lab.woken("a"), 1);
}

#[tokio::test]
async fn stream_that_ends_at_once_is_reconnected_with_backoff() {
    let lab = lab().await;
    let began = Instant::now();
    lab.follow("a", "/brief").unwrap();
    lab.until("seven connections", || lab.server.asked().len() >= 7)
        .await;
    // Delays of 10, 20, … 320 ms, starting with the server's `retry:`; at least half of each by the jitter.
    assert!(
        began.elapsed() > Duration::from_millis(300),
        "{:?}",
        began.elapsed()
    );
    assert!(
        lab.woken("a") <= lab.server.asked().len(),
        "without event ids each reconnect may have missed events"
    );
}

#[tokio::test]
async fn other_content_is_named_and_ended_stream_is_left() {
    let lab = lab().await;
    lab.follow("a", "/page").unwrap();
    lab.until(
        "the state has the reason",
        || matches!(lab.state("a"), Some(StreamState::Waiting(why)) if why.contains("no event stream")),
    )
    .await;
    assert_eq!(lab.woken("a"), 0);
    lab.follow("b", "/missing/").unwrap();
    lab.until("a refusal wakes the object", || lab.woken("b") == 1)
        .await;
    lab.follow("c", "/empty").unwrap();
    lab.until("it is over", || lab.state("c") == Some(StreamState::Ended))
        .await;
    assert_eq!(lab.woken("c"), 1);
}

#[tokio::test]
async fn changed_secret_closes_stream_and_reopens_it_with_new_credentials() {
    let lab = lab().await;
    lab.follow("a", "/live").unwrap();
    lab.server.number("status", "one");
    lab.until("it is open", || lab.woken("a") == 2).await;
    lab.vault.set("token", "the-second-token");
    let (key, same) = secret(1, "the-first-token");
    lab.streams.on_object_change(&key, Some(&same));
    assert_eq!(
        lab.state("a"),
        Some(StreamState::Open),
        "the stream was opened with the first token"
    );
    lab.streams
        .on_object_change(&key, Some(&secret(2, "the-second-token").1));
    assert_eq!(lab.state("a"), Some(StreamState::Outdated));
    lab.until("it is closed", || lab.server.open() == 0).await;
    assert_eq!(lab.woken("a"), 3, "a closed stream wakes its object");
    lab.follow("a", "/live").unwrap();
    lab.until("it is open again", || lab.server.open() == 1).await;
    let second = (Some("0".to_owned()), Some("Bearer the-second-token".to_owned()));
    assert_eq!(lab.server.asked()[1], second);
    lab.streams.on_object_change(&lab.key, None);
    lab.until("without its Upstream it is closed", || lab.server.open() == 0)
        .await;
}

#[tokio::test]
async fn stream_closes_with_leadership_and_with_host() {
    let mut lab = lab().await;
    lab.follow("a", "/live").unwrap();
    lab.until("it is open", || lab.server.open() == 1).await;
    lab.gate.close();
    lab.streams.close_all();
    lab.until("it is closed", || lab.server.open() == 0).await;
    assert!(matches!(lab.follow("a", "/live"), Err(SendError::NotLeader(_))));
    lab.gate.open_until(2, Instant::now() + Duration::from_secs(3600));
    lab.follow("a", "/live").unwrap();
    lab.until("it is open", || lab.server.open() == 1).await;
    lab.streams = EventStreams::new(lab.gate.clone(), |_, _| {});
    lab.until("it is closed", || lab.server.open() == 0).await;
}

#[tokio::test]
async fn tail_is_bounded_and_redacted() {
    let lab = lab().await;
    for n in 0..500 {
        lab.server.number("log", &format!("line {n} of the-first-token"));
        lab.server.number("other", "not asked for");
    }
    lab.server.number("end", "");
    let named = |name: &str| EventPattern {
        name: Some(name.into()),
        data: None,
    };
    let query = TailQuery {
        select: vec![named("log")],
        until: vec![named("end")],
        last: 3,
        bytes: 1000,
        timeout: Duration::from_secs(60),
    };
    let tail = |query: TailQuery| {
        let lab = &lab;
        async move {
            lab.clients
                .read_events(&lab.upstream, "/live", &query, &lab.vault)
                .await
                .unwrap()
        }
    };
    let last = tail(query.clone()).await;
    let lines: Vec<_> = last.events.iter().map(|e| e.data.as_str()).collect();
    assert_eq!(lines, ["line 497 of ***", "line 498 of ***", "line 499 of ***"]);
    assert_eq!((last.skipped, last.complete), (497, true));
    let few = tail(TailQuery {
        bytes: 60,
        last: 100,
        ..query.clone()
    })
    .await;
    assert_eq!((few.events.len(), few.skipped), (2, 498));
    let endless = tail(TailQuery {
        until: vec![named("never")],
        timeout: Duration::from_millis(500),
        ..query
    })
    .await;
    assert!(!endless.complete);
    lab.until("no connection is left", || lab.server.open() == 0)
        .await;
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn disallowed_address_closes_stream_at_once() {
    let mut lab = lab().await;
    let network = allowing("127.0.0.1");
    lab.clients = ClientPool::default().with_network(network.clone());
    lab.follow("a", "/live").unwrap();
    lab.until("it is open", || lab.state("a") == Some(StreamState::Open))
        .await;
    let before = lab.clients.stream_source(&lab.upstream, &lab.vault).unwrap();
    lab.streams.on_network_change();
    assert_eq!(lab.state("a"), Some(StreamState::Open), "nothing has");
    network.replace_grant(NetworkGrant::default());
    lab.streams.on_network_change();
    assert_eq!(lab.state("a"), Some(StreamState::Outdated));
    lab.until("it is closed", || lab.server.open() == 0).await;
    assert_eq!(lab.woken("a"), 2, "a closed stream wakes its object");
    assert!(matches!(lab.follow("a", "/live"), Err(SendError::NotAllowed(_))));
    let late = lab
        .streams
        .subscribe(&object("b"), &lab.stream("/live"), interest(), before);
    assert!(matches!(late, Err(SendError::Unavailable(_))), "{late:?}");
    assert_eq!((lab.server.asked().len(), lab.server.open()), (1, 0));
}

/// A Secret with another value at each read.
struct Restless(AtomicUsize);

impl SecretStore for Restless {
    fn get(&self, _: &UpstreamSecretKey) -> Option<Secret> {
        let n = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        Some(Secret::new(format!("token-number-{n}").into_bytes()))
    }
}

#[tokio::test]
async fn stream_keeps_secret_values_of_its_client() {
    let lab = lab().await;
    let restless = Restless(AtomicUsize::new(0));
    let source = lab.clients.stream_source(&lab.upstream, &restless).unwrap();
    lab.streams
        .subscribe(&object("a"), &lab.stream("/live"), interest(), source)
        .unwrap();
    // The server has answered before the client has read that.
    lab.until("it is open", || lab.state("a") == Some(StreamState::Open))
        .await;
    let sent = lab.server.asked()[0].1.clone().unwrap();
    let (key, same) = secret(1, sent.strip_prefix("Bearer ").unwrap());
    lab.streams.on_object_change(&key, Some(&same));
    assert_eq!(lab.state("a"), Some(StreamState::Open));
}

#[tokio::test]
async fn stream_requests_obey_retry_after_and_open_breaker() {
    let lab = lab().await;
    lab.follow("a", "/busy").unwrap();
    lab.until(
        "the state has the reason",
        || matches!(lab.state("a"), Some(StreamState::Waiting(why)) if why.contains("429")),
    )
    .await;
    assert!(
        matches!(lab.get(LONG).await, Err(SendError::Throttled(ms)) if ms > 1000),
        "there is no further request"
    );
    lab.follow("b", "/live").unwrap();
    lab.until(
        "it waits, too",
        || matches!(lab.state("b"), Some(StreamState::Waiting(why)) if why.contains("throttled")),
    )
    .await;
    assert_eq!(lab.server.asked().len(), 1);

    let lab = self::lab().await;
    for name in ["a", "b", "c", "d", "e"] {
        let stream = StreamKey {
            upstream: lab.key.clone(),
            path: format!("/down?{name}").into(),
        };
        let source = lab.clients.stream_source(&lab.upstream, &lab.vault).unwrap();
        lab.streams
            .subscribe(&object(name), &stream, interest(), source)
            .unwrap();
    }
    let open = || lab.clients.collect_stats()[0].circuit != CircuitState::Closed;
    lab.until("its failures open the circuit", open).await;
}

#[tokio::test]
async fn tail_counts_as_in_flight_and_open_stream_does_not() {
    let mut lab = lab().await;
    lab.upstream.spec.limits = serde_json::from_value(json!({"requestsInFlight": 1})).unwrap();
    lab.follow("a", "/live").unwrap();
    lab.until("it is open", || lab.server.open() == 1).await;
    assert_eq!(lab.get(LONG).await, Ok(200));
    let query = TailQuery {
        select: vec![],
        until: interest().until,
        last: 1,
        bytes: 1000,
        timeout: LONG,
    };
    let meanwhile = async {
        lab.until("it is read", || lab.server.open() == 2).await;
        let waiting = lab.get(Duration::from_millis(50)).await;
        lab.server.number("end", "");
        waiting
    };
    let tail = lab
        .clients
        .read_events(&lab.upstream, "/live", &query, &lab.vault);
    let (tail, waiting) = tokio::join!(tail, meanwhile);
    assert!(tail.unwrap().complete);
    assert!(matches!(waiting, Err(SendError::Unavailable(_))), "{waiting:?}");
    assert_eq!(lab.get(LONG).await, Ok(200));
}
