//! Clients of upstreams against a real HTTP server: logins, rotation, limits, and redaction of secrets.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{
    Form, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
    routing::{any, get, post},
};
use futures::future::join_all;
use ostler::testing::upstream::{
    ClientPool, Encoding, Secret, SecretSource, SendError, Substitution, UpstreamObject, UpstreamRequest,
    UpstreamResponse, UpstreamSecretKey, UpstreamSpec,
};
use serde_json::{Value, json};

use crate::common::{Vault, allowing};

/// State of the server, and counts of its requests.
#[derive(Default)]
struct Seen {
    logins: AtomicU32,
    requests: AtomicU32,
    password: Mutex<String>,
    /// Number of the accepted token.
    token: AtomicU32,
    /// The header of the last request.
    authorization: Mutex<String>,
    /// Requests with credentials to the target of a redirect.
    redirected: AtomicU32,
}

async fn token(
    State(seen): State<Arc<Seen>>,
    Form(form): Form<HashMap<String, String>>,
) -> impl IntoResponse {
    let n = seen.logins.fetch_add(1, Ordering::SeqCst) + 1;
    if form["password"] != *seen.password.lock().unwrap() {
        let body =
            json!({"error": "access_denied", "error_description": format!("no, not {}", form["password"])});
        return (StatusCode::UNAUTHORIZED, axum::Json(body));
    }
    seen.token.store(n, Ordering::SeqCst);
    (
        StatusCode::OK,
        axum::Json(
            json!({"access_token": format!("token-number-{n}"), "token_type": "bearer", "expires_in": 3600}),
        ),
    )
}

async fn echo(State(seen): State<Arc<Seen>>, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
    seen.requests.fetch_add(1, Ordering::SeqCst);
    let sent = headers
        .get(header::AUTHORIZATION)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    seen.authorization.lock().unwrap().clone_from(&sent);
    let expected = format!("Bearer token-number-{}", seen.token.load(Ordering::SeqCst));
    let status = if sent == expected {
        StatusCode::OK
    } else {
        StatusCode::UNAUTHORIZED
    };
    // An upstream that repeats its request, credentials included.
    (
        status,
        [("set-cookie", "a=b"), ("x-kept", "yes")],
        format!("{sent} {}", String::from_utf8_lossy(&body)),
    )
}

async fn serve(seen: Arc<Seen>) -> String {
    let elsewhere = seen.clone();
    let other = Router::new().route(
        "/",
        any(async move |headers: HeaderMap| {
            elsewhere.redirected.fetch_add(
                u32::from(headers.contains_key(header::AUTHORIZATION)),
                Ordering::SeqCst,
            );
        }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other_url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, other).await });
    let app = Router::new()
        .route("/sky/token", post(token))
        .route("/echo", any(echo))
        .route(
            "/away",
            get(async move || (StatusCode::FOUND, [("location", other_url)])),
        )
        .route("/huge", get(async || "x".repeat(2000)))
        .route("/slow", get(std::future::pending::<()>))
        .with_state(seen);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

struct Lab {
    seen: Arc<Seen>,
    vault: Vault,
    clients: ClientPool,
    upstream: UpstreamObject,
}

const PASSWORD: &str = "pass<word>&1";

async fn lab() -> Lab {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let seen = Arc::new(Seen::default());
    *seen.password.lock().unwrap() = PASSWORD.into();
    let url = serve(seen.clone()).await;
    let vault = Vault::default();
    vault.set("admin", PASSWORD);
    let spec: UpstreamSpec = serde_json::from_value(json!({
        "url": url,
        "limits": {"requestBodyBytes": 1000, "responseBodyBytes": 1000},
        "timeoutSeconds": 5,
        "auth": {"oauth2Password": {"tokenPath": "/sky/token", "clientId": "fly", "clientSecret": "Zmx5", "username": "test",
            "passwordSecretRef": {"name": "admin", "key": "password"}}},
    }))
    .unwrap();
    Lab {
        seen,
        vault,
        clients: ClientPool::default().with_network(allowing("127.0.0.1")),
        upstream: UpstreamObject {
            uid: "u".into(),
            generation: 1,
            namespace: "n".into(),
            name: "ci".into(),
            spec,
        },
    }
}

fn request(path: &str) -> UpstreamRequest {
    UpstreamRequest {
        method: "GET".into(),
        path_and_query: path.into(),
        headers: vec![],
        body: None,
        substitutions: vec![],
        timeout: None,
        budget: None,
    }
}

impl Lab {
    async fn send(&self, request: UpstreamRequest) -> Result<UpstreamResponse, SendError> {
        self.clients
            .send_request(&self.upstream, request, &self.vault)
            .await
    }

    fn logins(&self) -> u32 {
        self.seen.logins.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn concurrent_requests_share_one_login() {
    let lab = lab().await;
    let answers = join_all((0..20).map(|_| lab.send(request("/echo")))).await;
    assert!(
        answers.iter().all(|a| a.as_ref().is_ok_and(|r| r.status == 200)),
        "{answers:?}"
    );
    assert_eq!(lab.logins(), 1);
}

#[tokio::test]
async fn rejected_token_is_replaced_once() {
    let lab = lab().await;
    lab.send(request("/echo")).await.unwrap();
    // The server forgets the token: the next request meets a 401, and succeeds after a new login.
    lab.seen.token.store(99, Ordering::SeqCst);
    assert_eq!(lab.send(request("/echo")).await.unwrap().status, 200);
    assert_eq!(lab.logins(), 2);
}

#[tokio::test]
async fn rotated_secret_is_used_at_once_and_rejected_login_is_made_once() {
    let lab = lab().await;
    lab.send(request("/echo")).await.unwrap();
    *lab.seen.password.lock().unwrap() = "new-password".into();
    lab.seen.token.store(99, Ordering::SeqCst);
    let answers = join_all((0..20).map(|_| lab.send(request("/echo")))).await;
    for answer in &answers {
        let Err(SendError::LoginFailed(why)) = answer else {
            panic!("{answer:?}")
        };
        assert!(why.contains("HTTP 401") && !why.contains(PASSWORD), "{why}");
    }
    assert_eq!(lab.logins(), 2, "one login for all requests");
    lab.vault.set("admin", "new-password");
    assert_eq!(lab.send(request("/echo")).await.unwrap().status, 200);
}

#[tokio::test]
async fn metadata_change_of_secret_keeps_client() {
    let lab = lab().await;
    lab.send(request("/echo")).await.unwrap();
    for _ in 0..5 {
        // Another resourceVersion, as an annotation makes one.
        lab.vault.set("admin", PASSWORD);
        lab.send(request("/echo")).await.unwrap();
    }
    assert_eq!(lab.logins(), 1);
}

#[tokio::test]
async fn rotated_secret_does_not_lift_rate_limit() {
    let mut lab = lab().await;
    lab.upstream.spec.limits = serde_json::from_value(json!({"requestsPerSecond": 1, "burst": 2})).unwrap();
    let mut throttled = 0;
    for n in 0..5 {
        let password = format!("password-{n}");
        *lab.seen.password.lock().unwrap() = password.clone();
        lab.vault.set("admin", &password);
        let requests = (0..3).map(|_| lab.send(request("/echo")));
        let answers = join_all(requests).await;
        throttled += answers
            .iter()
            .filter(|a| matches!(a, Err(SendError::Throttled(_))))
            .count();
    }
    assert!(
        throttled >= 5,
        "15 requests in less than 6 seconds, {throttled} of them throttled"
    );
}

#[tokio::test]
async fn credentials_stay_at_their_origin_and_out_of_response() {
    let lab = lab().await;
    let away = lab.send(request("/away")).await.unwrap();
    assert_eq!(
        (away.status, lab.seen.redirected.load(Ordering::SeqCst)),
        (302, 0)
    );
    let mut forged = request("/echo");
    forged.headers = vec![("Authorization".into(), "Bearer mine".into())];
    assert!(matches!(lab.send(forged).await, Err(SendError::Invalid(_))));
    let echoed = lab.send(request("/echo")).await.unwrap();
    let text = String::from_utf8_lossy(&echoed.body).into_owned();
    assert!(!text.contains("token-number"), "{text}");
    assert!(
        echoed.headers.iter().any(|(n, _)| n == "x-kept")
            && !echoed.headers.iter().any(|(n, _)| n == "set-cookie")
    );
    assert!(!format!("{:?}", lab.upstream).contains(PASSWORD));
    assert_eq!(format!("{:?}", Secret::new(PASSWORD.into())), "***");
}

#[tokio::test]
async fn header_has_its_prefix_and_neither_part_of_its_value_is_shown() {
    let mut lab = lab().await;
    lab.vault.set("keys", "key-of-account:secret-of-account\n");
    lab.upstream.spec = serde_json::from_value(json!({
        "url": lab.upstream.spec.url,
        "auth": {"header": {"name": "Authorization", "prefix": "sso-key ",
            "valueSecretRef": {"name": "keys", "key": "password"}}},
    }))
    .unwrap();
    let mut parts = request("/echo");
    parts.method = "POST".into();
    parts.body = Some(b"key-of-account and secret-of-account".to_vec());
    let echoed = lab.send(parts).await.unwrap();
    let text = String::from_utf8_lossy(&echoed.body).into_owned();
    assert!(!text.contains("of-account"), "{text}");
    let sent = lab.seen.authorization.lock().unwrap().clone();
    assert_eq!(sent, "sso-key key-of-account:secret-of-account");
}

fn secret(name: &str) -> SecretSource {
    SecretSource::Key(UpstreamSecretKey {
        namespace: "n".into(),
        name: name.into(),
        key: "password".into(),
    })
}

#[tokio::test]
async fn secrets_enter_body_and_placeholders_return() {
    let lab = lab().await;
    lab.vault.set("registry", "hunter<2>&\"x\"");
    let mut put = request("/echo");
    put.method = "PUT".into();
    put.body = Some(br#"{"password":"((placeholder-of-registry))"}"#.to_vec());
    put.substitutions = vec![Substitution {
        placeholder: "((placeholder-of-registry))".into(),
        source: secret("registry"),
        encoding: Encoding::JsonString,
    }];
    let answer = lab.send(put.clone()).await.unwrap();
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let json = &text[text.find('{').unwrap()..];
    assert_eq!(
        serde_json::from_str::<Value>(json).unwrap()["password"],
        "((placeholder-of-registry))"
    );
    put.substitutions[0].source = secret("missing");
    let error = lab.send(put).await.unwrap_err();
    assert!(
        matches!(&error, SendError::NotFound(text) if text.contains("Secret n/missing")),
        "{error}"
    );
}

#[tokio::test]
async fn limits_and_transport_errors_are_named() {
    let mut lab = lab().await;
    let error = lab.send(request("/huge")).await.unwrap_err();
    assert!(
        matches!(&error, SendError::TooLarge(text) if text.contains("1000 bytes")),
        "{error}"
    );
    let mut slow = request("/slow");
    slow.timeout = Some(Duration::from_millis(50));
    let error = lab.send(slow).await.unwrap_err();
    assert!(
        matches!(&error, SendError::Unavailable(text) if text.contains("no answer within 50ms")),
        "{error}"
    );
    lab.upstream.spec.url = "http://127.0.0.1:1".into();
    lab.upstream.generation = 2;
    let error = lab.send(request("/echo")).await.unwrap_err();
    assert!(
        matches!(&error, SendError::Unavailable(text) if text.contains("refused")),
        "{error}"
    );
}

/// Serves a registry whose token server has the path `/token`, or the realm that the test sets.
async fn serve_registry(realm: Option<String>) -> (String, Arc<AtomicU32>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let realm = realm.unwrap_or_else(|| format!("{url}/token"));
    let (issued, tokens) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let count = issued.clone();
    let api = async move |headers: HeaderMap| {
        let sent = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
        let token = format!("Bearer registry-token-{}", tokens.load(Ordering::SeqCst));
        let challenge = format!("Bearer realm=\"{realm}\",service=\"tests\"");
        match sent == Some(&token) {
            true => (StatusCode::OK, [(header::WWW_AUTHENTICATE, String::new())]),
            false => (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]),
        }
    };
    let login = async move |uri: axum::http::Uri, headers: HeaderMap| {
        use base64::{Engine, prelude::BASE64_STANDARD};
        let query = uri.query().unwrap_or_default().to_owned();
        let pair = BASE64_STANDARD.encode(format!("robot:{PASSWORD}"));
        let sent = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
        if sent != Some(&format!("Basic {pair}")) || !query.contains("service=tests&scope=repository") {
            return (StatusCode::UNAUTHORIZED, axum::Json(json!({"details": query})));
        }
        let number = count.fetch_add(1, Ordering::SeqCst);
        (
            StatusCode::OK,
            axum::Json(json!({"token": format!("registry-token-{number}")})),
        )
    };
    let app = Router::new().route("/v2/", get(api)).route("/token", get(login));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, issued)
}

async fn registry_lab(realm: Option<String>) -> (Lab, Arc<AtomicU32>) {
    let mut lab = lab().await;
    let (url, issued) = serve_registry(realm).await;
    lab.upstream.spec = serde_json::from_value(json!({"url": url, "auth": {"registry": {"username": "robot",
        "passwordSecretRef": {"name": "admin", "key": "password"}, "scopes": ["repository:a/b:pull"]}}}))
    .unwrap();
    (lab, issued)
}

#[tokio::test]
async fn challenge_of_registry_is_answered_with_one_token() {
    let (lab, issued) = registry_lab(None).await;
    for _ in 0..3 {
        assert_eq!(lab.send(request("/v2/")).await.unwrap().status, 200);
    }
    assert_eq!(issued.load(Ordering::SeqCst), 1);
    lab.vault.set("admin", "wrong-password");
    let refused = lab.send(request("/v2/")).await;
    let Err(SendError::LoginFailed(why)) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        why.contains("HTTP 401") && !why.contains("wrong-password"),
        "{why}"
    );
}

#[tokio::test]
async fn registry_that_names_a_foreign_token_server_gets_no_password() {
    let (thief, stolen) = serve_registry(None).await;
    let (lab, _) = registry_lab(Some(format!("{thief}/token"))).await;
    let refused = lab.send(request("/v2/")).await;
    let Err(SendError::LoginFailed(why)) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains("spec.auth.registry.tokenUrl"), "{why}");
    assert_eq!(stolen.load(Ordering::SeqCst), 0);
}
