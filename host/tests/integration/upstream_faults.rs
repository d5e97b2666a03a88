//! Clients of upstreams that are down, slow, strict or malicious.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    routing::{any, get, post},
};
use futures::future::join_all;
use ostler::testing::{
    memory_budget::MemoryBudget,
    network::{NetworkGrant, NetworkPolicy, parse_network},
    upstream::{
        CircuitState, ClientPool, ResponseBudget, SendError, TailQuery, UpstreamObject, UpstreamRequest,
        UpstreamResponse,
    },
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
};

use crate::common::{Vault, allowing, wait_until};

struct Lab {
    clients: ClientPool,
    vault: Vault,
    upstream: UpstreamObject,
}

impl Lab {
    fn new(spec: Value) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            clients: ClientPool::default().with_network(allowing("127.0.0.0/8")),
            vault: Vault::default(),
            upstream: UpstreamObject {
                uid: "u".into(),
                generation: 1,
                namespace: "n".into(),
                name: "ci".into(),
                spec: serde_json::from_value(spec).unwrap(),
            },
        }
    }

    async fn send(&self, method: &str, path: &str) -> Result<UpstreamResponse, SendError> {
        self.clients
            .send_request(&self.upstream, request(method, path), &self.vault)
            .await
    }

    async fn get(&self, path: &str) -> Result<UpstreamResponse, SendError> {
        self.send("GET", path).await
    }
}

fn request(method: &str, path: &str) -> UpstreamRequest {
    UpstreamRequest {
        method: method.into(),
        path_and_query: path.into(),
        headers: vec![],
        body: None,
        substitutions: vec![],
        timeout: None,
        budget: None,
    }
}

async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

fn count(counter: &Arc<AtomicUsize>) -> usize {
    counter.load(Ordering::SeqCst)
}

/// A server that breaks off the first `times` connections after their requests, and responds to the others.
async fn breaks_off(times: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = seen.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            if counter.fetch_add(1, Ordering::SeqCst) >= times {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
                let _ = stream.write_all(answer).await;
            }
        }
    });
    (url, seen)
}

#[tokio::test]
async fn only_safe_requests_are_retried_within_budget() {
    let (url, seen) = breaks_off(1).await;
    let lab = Lab::new(json!({"url": url}));
    assert_eq!(lab.get("/").await.unwrap().status, 200);
    assert_eq!((count(&seen), lab.clients.collect_stats()[0].retries), (2, 1));

    let (url, seen) = breaks_off(1).await;
    let lab = Lab::new(json!({"url": url}));
    assert!(matches!(
        lab.send("POST", "/").await,
        Err(SendError::Unavailable(_))
    ));
    assert_eq!(count(&seen), 1, "the server may have executed it");

    let (url, seen) = breaks_off(usize::MAX).await;
    let lab = Lab::new(json!({"url": url}));
    for _ in 0..3 {
        lab.get("/").await.unwrap_err();
    }
    // Two of the first request, one of the second, which opens the circuit breaker.
    assert_eq!((count(&seen), lab.clients.collect_stats()[0].retries), (5, 3));
}

#[tokio::test]
async fn failing_upstream_opens_breaker_and_one_trial_closes_it() {
    let seen = Arc::new(AtomicUsize::new(0));
    let broken = Arc::new(Mutex::new(true));
    let state = (seen.clone(), broken.clone());
    let handler = async |State((seen, broken)): State<(Arc<AtomicUsize>, Arc<Mutex<bool>>)>| {
        seen.fetch_add(1, Ordering::SeqCst);
        match *broken.lock().unwrap() {
            true => StatusCode::INTERNAL_SERVER_ERROR,
            false => StatusCode::OK,
        }
    };
    let url = serve(Router::new().route("/", any(handler)).with_state(state)).await;
    let lab = Lab::new(json!({"url": url}));
    for _ in 0..5 {
        assert_eq!(lab.get("/").await.unwrap().status, 500);
    }
    for _ in 0..50 {
        let error = lab.get("/").await.unwrap_err();
        assert!(
            matches!(&error, SendError::Unavailable(why) if why.contains("HTTP 500")),
            "{error}"
        );
    }
    assert_eq!(
        (count(&seen), lab.clients.collect_stats()[0].circuit),
        (5, CircuitState::Open)
    );
    *broken.lock().unwrap() = false;
    wait_until(
        || lab.clients.collect_stats()[0].circuit != CircuitState::Open,
        || "the circuit".into(),
    )
    .await;
    // One is the trial, and the others fail as before: a call that waited for it would hold its memory.
    let answers = join_all((0..20).map(|_| lab.get("/"))).await;
    let passed = answers
        .iter()
        .filter(|a| a.as_ref().is_ok_and(|r| r.status == 200));
    assert_eq!(passed.count(), 1, "{answers:?}");
    let refused = |a: &&Result<UpstreamResponse, SendError>| matches!(a, Err(SendError::Unavailable(why)) if why == "HTTP 500");
    assert_eq!(answers.iter().filter(refused).count(), 19, "{answers:?}");
    assert_eq!(lab.get("/").await.unwrap().status, 200);
    assert_eq!(lab.clients.collect_stats()[0].circuit, CircuitState::Closed);
}

/// Each response alone is within the limit of the upstream, and within what the call may receive.
#[tokio::test]
async fn concurrent_responses_share_what_the_call_may_receive() {
    let url = serve(Router::new().route("/", get(async || "x".repeat(1 << 20)))).await;
    let lab = Lab::new(json!({"url": url, "limits": {"requestsInFlight": 64}}));
    let memory = Arc::new(MemoryBudget::new(256 << 20));
    let budget = ResponseBudget::new(6 << 20, memory.lease());
    let answers = join_all((0..64).map(|_| {
        let mut request = request("GET", "/");
        request.budget = Some(budget.clone());
        lab.clients.send_request(&lab.upstream, request, &lab.vault)
    }))
    .await;
    let refused = |a: &&Result<UpstreamResponse, SendError>| matches!(a, Err(SendError::ResponsesTooLarge));
    assert!(
        answers.iter().filter(refused).count() > 0,
        "all were received at once"
    );
    assert!(answers.iter().all(|a| a.is_ok() || refused(&a)), "{answers:?}");
    assert!(
        budget.is_exceeded() && memory.used() <= 6 << 20,
        "{} bytes",
        memory.used()
    );
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = seen.clone();
    let handler = async move || {
        counter.fetch_add(1, Ordering::SeqCst);
        (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "60")])
    };
    let lab = Lab::new(json!({"url": serve(Router::new().route("/", get(handler))).await}));
    assert_eq!(lab.get("/").await.unwrap().status, 429);
    for _ in 0..10 {
        let Err(SendError::Throttled(ms)) = lab.get("/").await else {
            panic!("throttled")
        };
        assert!((1_000..=60_000).contains(&ms), "{ms}");
    }
    assert_eq!(count(&seen), 1);
}

#[tokio::test]
async fn concurrency_and_rate_are_bounded() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let go = Arc::new(Semaphore::new(0));
    let (inside, highest, slots) = (now.clone(), most.clone(), go.clone());
    let handler = async move || {
        highest.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        slots.acquire().await.unwrap().forget();
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    let lab = Lab::new(
        json!({"url": serve(Router::new().route("/", get(handler))).await, "limits": {"requestsInFlight": 4}}),
    );
    let opening = async {
        wait_until(|| count(&now) >= 4, || "four requests".into()).await;
        go.add_permits(20);
    };
    let (answers, ()) = tokio::join!(join_all((0..20).map(|_| lab.get("/"))), opening);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(count(&most), 4, "concurrent requests up to the limit");

    let limits = json!({"requestsPerSecond": 1, "burst": 3});
    let lab =
        Lab::new(json!({"url": serve(Router::new().route("/", get(async || ""))).await, "limits": limits}));
    let answers = join_all((0..10).map(|_| lab.get("/"))).await;
    let throttled = answers
        .iter()
        .filter(|a| matches!(a, Err(SendError::Throttled(_))))
        .count();
    // Three at once, one waits for its slot, the others are throttled.
    assert_eq!(throttled, 6, "{answers:?}");
}

#[tokio::test]
async fn not_modified_response_is_served_from_cache() {
    let bodies = Arc::new(AtomicUsize::new(0));
    let counter = bodies.clone();
    let handler = async move |headers: HeaderMap| {
        if headers.get(header::IF_NONE_MATCH).is_some_and(|v| v == "\"v1\"") {
            return (
                StatusCode::NOT_MODIFIED,
                [(header::ETAG, "\"v1\""), (header::DATE, "later")],
                "",
            );
        }
        counter.fetch_add(1, Ordering::SeqCst);
        (
            StatusCode::OK,
            [(header::ETAG, "\"v1\""), (header::DATE, "then")],
            "the body",
        )
    };
    let lab = Lab::new(json!({"url": serve(Router::new().route("/", get(handler))).await}));
    for date in ["then", "later", "later"] {
        let answer = lab.get("/").await.unwrap();
        assert_eq!((answer.status, &*answer.body), (200, &b"the body"[..]));
        assert!(
            answer.headers.contains(&("date".into(), date.into())),
            "{:?}",
            answer.headers
        );
    }
    assert_eq!((count(&bodies), lab.clients.collect_stats()[0].confirmed), (1, 2));
}

#[tokio::test]
async fn private_address_needs_grant() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for host in [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
        "10.0.0.1",
        "0",
    ] {
        let mut lab = Lab::new(json!({"url": format!("http://{host}:{port}")}));
        lab.clients = ClientPool::default();
        let error = lab.get("/").await.unwrap_err();
        assert!(
            matches!(&error, SendError::NotAllowed(why) if why.contains("network.allow")),
            "{host}: {error}"
        );
    }
    let waiting = tokio::time::timeout(Duration::from_millis(1), listener.accept()).await;
    assert!(waiting.is_err(), "there was no connection");
}

#[tokio::test]
async fn revoked_address_is_refused_by_next_request() {
    let here = NetworkPolicy::default();
    let grant = |allow: &[&str]| NetworkGrant {
        allow: allow.iter().map(|a| parse_network(a).unwrap()).collect(),
        ..NetworkGrant::default()
    };
    here.replace_grant(grant(&["127.0.0.1"]));
    let mut lab = Lab::new(json!({"url": serve(Router::new().route("/", get(async || ""))).await}));
    lab.clients = ClientPool::default().with_network(here.clone());
    lab.get("/").await.unwrap();
    here.replace_grant(grant(&[]));
    assert!(matches!(lab.get("/").await, Err(SendError::NotAllowed(_))));
}

/// A server with a login of its own.
async fn with_login(lifetime: u64) -> (String, Arc<AtomicUsize>) {
    let logins = Arc::new(AtomicUsize::new(0));
    let counter = logins.clone();
    let login = async move |body: Json<Value>| {
        let n = counter.fetch_add(1, Ordering::SeqCst);
        match body["auth"]["pw"] == "pa\"ss" && body["auth"]["user"] == "robot" {
            true => (
                StatusCode::OK,
                Json(json!({"data": {"token": format!("secret-token-{n}"), "ttl": lifetime}})),
            ),
            false => (
                StatusCode::UNAUTHORIZED,
                Json(json!({"message": "wrong user name or password"})),
            ),
        }
    };
    let echo = async |headers: HeaderMap| match headers.get("x-token") {
        Some(token) => (StatusCode::OK, format!("got {}", token.to_str().unwrap())),
        None => (StatusCode::UNAUTHORIZED, "no token".into()),
    };
    let forbidden = async || StatusCode::UNAUTHORIZED;
    let app = Router::new()
        .route("/session", post(login))
        .route("/", get(echo))
        .route("/forbidden", get(forbidden));
    (serve(app).await, logins)
}

fn login_spec(url: &str) -> Value {
    json!({"url": url, "auth": {"login": {"path": "/session", "username": "robot",
        "passwordSecretRef": {"name": "robot", "key": "password"}, "header": "X-Token",
        "body": {"auth": {"user": "$(username)", "pw": "$(password)"}},
        "tokenJsonPath": "$.data.token", "expirationJsonPath": ".data.ttl"}}})
}

#[tokio::test]
async fn login_yields_token_until_it_nears_expiry() {
    let (url, logins) = with_login(3600).await;
    let lab = Lab::new(login_spec(&url));
    lab.vault.set("robot", "a-false-one");
    let error = lab.get("/").await.unwrap_err();
    assert!(
        matches!(&error, SendError::LoginFailed(why) if why.contains("wrong user name")),
        "{error}"
    );
    lab.vault.set("robot", "pa\"ss");
    let answers = join_all((0..20).map(|_| lab.get("/"))).await;
    for answer in answers {
        assert_eq!(String::from_utf8(answer.unwrap().body).unwrap(), "got ***");
    }
    assert_eq!(count(&logins), 2, "one refused, and one for all");
}

#[tokio::test]
async fn token_without_lifetime_is_kept() {
    let (url, logins) = with_login(0).await;
    let lab = Lab::new(login_spec(&url));
    lab.vault.set("robot", "pa\"ss");
    for _ in 0..20 {
        lab.get("/").await.unwrap();
    }
    assert_eq!(
        count(&logins),
        1,
        "0 seconds stand for a token that does not expire"
    );
}

#[tokio::test]
async fn rejection_that_a_new_token_does_not_cure_causes_no_login_storm() {
    let (url, logins) = with_login(3600).await;
    let lab = Lab::new(login_spec(&url));
    lab.vault.set("robot", "pa\"ss");
    for _ in 0..100 {
        assert_eq!(lab.get("/forbidden").await.unwrap().status, 401);
        assert_eq!(lab.get("/").await.unwrap().status, 200);
    }
    assert_eq!(
        count(&logins),
        2,
        "the first one, and one that was to cure the 401"
    );
}

#[tokio::test]
async fn failed_login_is_shared_by_waiting_requests() {
    for (status, after, wait) in [
        (503, None, None),
        (408, None, None),
        (200, None, None),
        (429, None, Some(1)),
        (503, Some("60"), Some(60)),
        (429, Some("99999999999"), Some(600)),
    ] {
        let logins = Arc::new(AtomicUsize::new(0));
        let counter = logins.clone();
        let login = async move || {
            counter.fetch_add(1, Ordering::SeqCst);
            let mut headers = HeaderMap::new();
            headers.extend(after.map(|after| (header::RETRY_AFTER, after.parse().unwrap())));
            (StatusCode::from_u16(status).unwrap(), headers, "broken")
        };
        let lab = Lab::new(login_spec(
            &serve(Router::new().route("/session", post(login))).await,
        ));
        lab.vault.set("robot", "pa\"ss");
        for answer in join_all((0..20).map(|_| lab.get("/"))).await {
            match (&answer, wait) {
                (Err(SendError::Throttled(ms)), Some(s)) if *ms <= s * 1000 => {}
                (Err(SendError::Unavailable(why)), None) if why.contains("login: ") => {}
                _ => panic!("{status} {after:?}: {answer:?}"),
            }
        }
        assert_eq!(count(&logins), 1, "{status} {after:?}");
        assert_eq!(
            lab.clients.collect_stats()[0].circuit,
            CircuitState::Closed,
            "one failure counts once"
        );
    }
}

#[tokio::test]
async fn login_survives_cancelled_request() {
    let (logins, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (counter, slots) = (logins.clone(), go.clone());
    let login = async move || {
        counter.fetch_add(1, Ordering::SeqCst);
        slots.acquire().await.unwrap().forget();
        Json(json!({"data": {"token": "secret-token", "ttl": 60}}))
    };
    let app = Router::new()
        .route("/session", post(login))
        .route("/", get(async || ""));
    let lab = Lab::new(login_spec(&serve(app).await));
    lab.vault.set("robot", "pa\"ss");
    let begun = tokio::time::timeout(Duration::from_millis(100), lab.get("/")).await;
    assert!(begun.is_err());
    let waits = async {
        wait_until(|| count(&logins) > 0, || "a login".into()).await;
        go.add_permits(1);
    };
    let (answer, ()) = tokio::join!(lab.get("/"), waits);
    assert_eq!((answer.unwrap().status, count(&logins)), (200, 1));
}

#[tokio::test]
async fn repeated_password_is_redacted() {
    let echo = async || "it was a-long-password, or YS1sb25nLXBhc3N3b3Jk";
    let url = serve(Router::new().route("/", get(echo))).await;
    let lab = Lab::new(json!({"url": url, "auth": {"basic": {"username": "robot",
        "passwordSecretRef": {"name": "robot", "key": "password"}}}}));
    lab.vault.set("robot", "a-long-password");
    let answer = lab.get("/").await.unwrap();
    assert_eq!(String::from_utf8(answer.body).unwrap(), "it was ***, or ***");
}

#[tokio::test]
async fn tail_redacts_credential_of_its_request() {
    let logins = Arc::new(AtomicUsize::new(0));
    let counter = logins.clone();
    let login = async move || {
        let n = counter.fetch_add(1, Ordering::SeqCst);
        Json(json!({"data": {"token": format!("secret-token-{n}"), "ttl": 0}}))
    };
    let events = async |headers: HeaderMap| {
        let token = headers["x-token"].to_str().unwrap().to_owned();
        let event = format!("id: {token}\nevent: {token}\ndata: sent {token}\n\n");
        ([(header::CONTENT_TYPE, "text/event-stream")], event)
    };
    let app = Router::new()
        .route("/session", post(login))
        .route("/events", get(events));
    let lab = Lab::new(login_spec(&serve(app).await));
    lab.vault.set("robot", "pa\"ss");
    let query = TailQuery {
        select: vec![],
        until: vec![],
        last: 10,
        bytes: 1000,
        timeout: Duration::from_secs(60),
    };
    let tail = lab
        .clients
        .read_events(&lab.upstream, "/events", &query, &lab.vault)
        .await
        .unwrap();
    let event = &tail.events[0];
    assert_eq!(
        (&*event.data, &*event.name, event.id.as_deref()),
        ("sent ***", "***", Some("***"))
    );
    assert_eq!(count(&logins), 1, "redaction causes no login");
}

#[tokio::test]
async fn token_endpoint_elsewhere_gets_only_the_login() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let app = |name: &'static str| {
        let requests = requests.clone();
        let handler = async move |headers: HeaderMap, body: Bytes| {
            let text = format!("{name} {headers:?} {}", String::from_utf8_lossy(&body));
            requests.lock().unwrap().push(text);
            Json(json!({"access_token": "the-token", "expires_in": 3600}))
        };
        Router::new().route("/{*path}", any(handler))
    };
    let (api, issuer) = (serve(app("api")).await, serve(app("issuer")).await);
    let spec = |token_url: &str| {
        json!({"url": api, "auth": {"oauth2ClientCredentials": {"tokenUrl": token_url, "clientId": "me",
            "clientSecretRef": {"name": "client", "key": "secret"}}}})
    };
    let lab = Lab::new(spec(&format!("{issuer}/token")));
    lab.vault.set("client", "client-secret");
    let error = lab.get("/x").await.unwrap_err();
    assert!(
        matches!(&error, SendError::Invalid(why) if why.contains("must be https")),
        "{error}"
    );
    assert!(
        requests.lock().unwrap().is_empty(),
        "no password in the clear to another origin"
    );
    let lab = Lab::new(spec(&format!("{api}/token")));
    lab.vault.set("client", "client-secret");
    lab.get("/x").await.unwrap();
    let requests = requests.lock().unwrap();
    assert!(
        requests.iter().all(|r| r.starts_with("api")) && requests.len() == 2,
        "{requests:?}"
    );
}

#[tokio::test]
async fn rotation_during_request_closes_old_connections_after_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let lab = Lab::new(
        json!({"url": format!("http://{}", listener.local_addr().unwrap()),
        "auth": {"bearer": {"tokenSecretRef": {"name": "t", "key": "token"}}}}),
    );
    lab.vault.set("t", "old-token");
    let (rotated, answered) = (Notify::new(), Notify::new());
    let first = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(head(&mut stream).await.contains("Bearer old-token"));
        lab.vault.set("t", "new-token");
        rotated.notify_one();
        let (mut other, _) = listener.accept().await.unwrap();
        assert!(
            head(&mut other).await.contains("Bearer new-token"),
            "the new Secret is used at once, on a new connection"
        );
        for stream in [&mut other, &mut stream] {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                .await
                .unwrap();
        }
        // The request ends on the old client; then the server sees its connection close.
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
        answered.notified().await;
        lab.clients.drop_idle(Duration::ZERO);
        assert_eq!(other.read(&mut [0; 1]).await.unwrap(), 0, "and an idle client's");
    };
    let second = async {
        rotated.notified().await;
        lab.get("/").await.unwrap();
        answered.notify_one();
    };
    let (answer, (), ()) = tokio::join!(lab.get("/"), first, second);
    assert_eq!(answer.unwrap().status, 200);
    assert!(lab.clients.collect_stats().is_empty());
}

async fn head(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    while !text.contains("\r\n\r\n") {
        let mut bytes = [0; 1024];
        let n = stream.read(&mut bytes).await.unwrap();
        assert!(n > 0, "closed after {text:?}");
        text.push_str(&String::from_utf8_lossy(&bytes[..n]));
    }
    text.replace("authorization: ", "Authorization: ")
}

#[tokio::test]
async fn mutual_tls_verifies_both_sides() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
    let lab = |url: &str, tls: Value| Lab::new(json!({"url": url, "tls": tls}));
    let ca_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(params, &ca_key);
    let signed = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap(), key)
    };
    let ((server, server_key), (client, client_key)) = (signed("127.0.0.1"), signed("ostler"));
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots))
        .build()
        .unwrap();
    let key = PrivateKeyDer::from_pem_slice(server_key.serialize_pem().as_bytes()).unwrap();
    let config = rustls::ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![server.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    return;
                };
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                    .await;
            });
        }
    });
    let whole = json!({"caSecretRef": {"name": "ca", "key": "ca.crt"}, "clientCertificateSecretRef": {"name": "own"}});
    let known = lab(&url, whole.clone());
    known.vault.set("ca", &ca.pem());
    known.vault.set("tls.crt", &client.pem());
    known.vault.set("tls.key", &client_key.serialize_pem());
    assert_eq!(known.get("/").await.unwrap().body, b"ok");
    // An unknown server, and an unknown client.
    let strange = lab(&url, json!({}));
    let error = strange.get("/").await.unwrap_err().to_string();
    assert!(
        error.starts_with("TLS: ") && error.contains("UnknownIssuer"),
        "{error}"
    );
    let nobody = lab(&url, json!({"insecureSkipVerify": true}));
    assert!(matches!(nobody.get("/").await, Err(SendError::Unavailable(_))));
    let half = lab(&url, whole);
    half.vault.set("ca", &ca.pem());
    half.vault.set("tls.crt", "not a certificate");
    half.vault.set("tls.key", &client_key.serialize_pem());
    let error = half.get("/").await.unwrap_err();
    assert!(
        matches!(&error, SendError::Invalid(why) if why.contains("`tls.crt` has no PEM certificates")),
        "{error}"
    );
}
