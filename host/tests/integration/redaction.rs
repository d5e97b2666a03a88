//! Redaction of responses against a server that repeats what it was sent, in every way that servers write text.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response as HttpResponse},
    routing::any,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use ostler::testing::upstream::{
    ClientPool, Encoding, EventPattern, SecretSource, SendError, Substitution, TailQuery, UpstreamObject,
    UpstreamRequest, UpstreamResponse, UpstreamSecretKey,
};
use serde_json::json;

use crate::common::{Vault, allowing};

/// The body that was sent last, and the `accept-encoding` of each request.
#[derive(Default)]
struct Server {
    body: Mutex<Vec<u8>>,
    accepted: Mutex<Vec<Option<String>>>,
}

/// The text with each character that `selected` names escaped by `escape`.
fn escape_chars(text: &str, selected: impl Fn(char) -> bool, escape: impl Fn(char) -> String) -> String {
    text.chars()
        .map(|c| if selected(c) { escape(c) } else { c.to_string() })
        .collect()
}

/// What the server repeats, written as `way` names it.
fn write_as(way: &str, text: &str) -> Vec<u8> {
    let json = serde_json::to_string(text).unwrap();
    let inside = &json[1..json.len() - 1];
    let unicode = |c: char| format!("\\u{:04x}", u32::from(c));
    let written = match way {
        "plain" => text.to_owned(),
        "trimmed" => text.trim_end().to_owned(),
        "json-php" => format!("{{\"v\":\"{}\"}}", inside.replace('/', "\\/")),
        "json-gson" => format!(
            "{{\"v\":\"{}\"}}",
            escape_chars(text, |c| "<>&='\"\\\n/".contains(c), unicode)
        ),
        "json-all" => format!("{{\"v\":\"{}\"}}", escape_chars(text, |_| true, unicode)),
        "json-upper" => format!(
            "{{\"v\":\"{}\"}}",
            escape_chars(text, |_| true, |c| format!("\\u{:04X}", u32::from(c)))
        ),
        "json-twice" => json!({"error": format!("cannot parse {json}")}).to_string(),
        "json-html" => json!({"v": inside})
            .to_string()
            .replace('<', "\\u003c")
            .replace('&', "\\u0026"),
        "percent" => escape_chars(
            text,
            |c| !c.is_ascii_alphanumeric(),
            |c| format!("%{:02x}", u32::from(c)),
        ),
        "percent-all" => escape_chars(text, |_| true, |c| format!("%{:02X}", u32::from(c))),
        "form" => escape_chars(
            text,
            |c| !c.is_ascii_alphanumeric(),
            |c| {
                if c == ' ' {
                    "+".into()
                } else {
                    format!("%{:02X}", u32::from(c))
                }
            },
        ),
        "entities" => escape_chars(
            text,
            |c| "<>&\"'/=".contains(c),
            |c| format!("&#x{:x};", u32::from(c)),
        ),
        "base64-0" => STANDARD.encode(text),
        "base64-1" => STANDARD.encode(format!("x{text} and more")),
        "base64-2" => STANDARD.encode(format!("xy{text} and more")),
        "base64-php" => format!(
            "\"{}\"",
            STANDARD.encode(format!("??>{text}??>")).replace('/', "\\/")
        ),
        "base64-lines" => {
            let all = STANDARD.encode(format!("config: {text}, and so on").repeat(3));
            let lines: Vec<&str> = all
                .as_bytes()
                .chunks(20)
                .map(|l| std::str::from_utf8(l).unwrap())
                .collect();
            json!({"content": lines.join("\n")}).to_string()
        }
        other => panic!("no way {other}"),
    };
    written.into_bytes()
}

async fn serve(
    State(server): State<Arc<Server>>,
    Path(way): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> HttpResponse {
    let accepted = headers
        .get("accept-encoding")
        .map(|v| v.to_str().unwrap().to_owned());
    server.accepted.lock().unwrap().push(accepted);
    if !body.is_empty() {
        *server.body.lock().unwrap() = body.to_vec();
        return StatusCode::NO_CONTENT.into_response();
    }
    let body = server.body.lock().unwrap().clone();
    let text = String::from_utf8(body.clone()).unwrap();
    match &*way {
        // The test needs no compressor: the body is as unreadable to the client as a compressed one.
        "gzip" => (
            [("content-encoding", "gzip")],
            body.iter().map(|b| b ^ 0x55).collect::<Vec<_>>(),
        )
            .into_response(),
        "range" => match headers.get("range").map(|v| v.to_str().unwrap()) {
            Some(range) => {
                let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                let part = body[start.parse().unwrap()..=end.parse::<usize>().unwrap()].to_vec();
                (StatusCode::PARTIAL_CONTENT, part).into_response()
            }
            None => body.into_response(),
        },
        "events" => {
            let media = [("content-type", "text/event-stream")];
            (media, format!("data: {text}\n\n")).into_response()
        }
        "json-event" => {
            let media = [("content-type", "text/event-stream")];
            (media, format!("data: {}\n\n", json!({"log": text}))).into_response()
        }
        "large-event" => {
            let media = [("content-type", "text/event-stream")];
            (media, format!("data: {}{text}\n\n", "x".repeat((1 << 20) - 16))).into_response()
        }
        way => write_as(way, &text).into_response(),
    }
}

struct Lab {
    server: Arc<Server>,
    vault: Vault,
    clients: ClientPool,
    upstream: UpstreamObject,
}

const SECRET: &str = "correct/horse=\"battery\"+staple<1>&'x'";

const PLACEHOLDER: &str = "((the-placeholder-of-a-secret))";

async fn lab() -> Lab {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = Arc::new(Server::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new()
        .route("/{way}", any(serve))
        .with_state(server.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Lab {
        server,
        vault: Vault::default(),
        clients: ClientPool::default().with_network(allowing("127.0.0.1")),
        upstream: UpstreamObject {
            uid: "u".into(),
            generation: 1,
            namespace: "n".into(),
            name: "ci".into(),
            spec: serde_json::from_value(json!({"url": url})).unwrap(),
        },
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

fn substitution(name: &str) -> Substitution {
    Substitution {
        placeholder: PLACEHOLDER.into(),
        source: SecretSource::Key(UpstreamSecretKey {
            namespace: "n".into(),
            name: name.into(),
            key: "password".into(),
        }),
        encoding: Encoding::Plain,
    }
}

impl Lab {
    async fn send(&self, request: UpstreamRequest) -> Result<UpstreamResponse, SendError> {
        self.clients
            .send_request(&self.upstream, request, &self.vault)
            .await
    }

    /// Sends the value of a secret to the server, which keeps it.
    async fn put(&self, name: &str) -> Result<UpstreamResponse, SendError> {
        let mut put = request("PUT", "/plain");
        put.body = Some(PLACEHOLDER.into());
        put.substitutions = vec![substitution(name)];
        self.send(put).await
    }

    async fn put_value(&self, value: &str) {
        self.vault.set("secret", value);
        self.put("secret").await.unwrap();
        assert_eq!(*self.server.body.lock().unwrap(), value.as_bytes());
    }

    async fn get(&self, way: &str) -> String {
        let response = self.send(request("GET", &format!("/{way}"))).await.unwrap();
        String::from_utf8(response.body).unwrap()
    }

    async fn read_events(&self, path: &str, bytes: usize) -> VecDeque<String> {
        let query = TailQuery {
            select: vec![],
            until: vec![],
            last: 10,
            bytes,
            timeout: Duration::from_secs(60),
        };
        let tail = self
            .clients
            .read_events(&self.upstream, path, &query, &self.vault)
            .await
            .unwrap();
        tail.events.into_iter().map(|event| event.data).collect()
    }
}

/// No part of five characters of the secret is left, in the encoding that the answer has it in.
fn assert_redacted(way: &str, answer: &str, secret: &str) {
    let whole = String::from_utf8(write_as(way, secret)).unwrap();
    let redacted = |part: &str| !answer.contains(part);
    assert!(
        answer.contains("***") || answer.contains(PLACEHOLDER),
        "{way}: {answer}"
    );
    if way.starts_with("base64") {
        let inner = &STANDARD.encode(secret)[3..12];
        assert!(redacted(inner), "{way}: {answer}");
        for word in ["horse", "battery", "staple"] {
            for pad in 0..3 {
                let encoded = STANDARD.encode(format!("{}{word}", "x".repeat(pad)));
                assert!(redacted(&encoded[4..8]), "{way}: {word} in {answer}");
            }
        }
        return;
    }
    let secret_part = &whole[whole.len() / 2 - 2..whole.len() / 2 + 3];
    assert!(redacted(secret_part), "{way}: {secret_part} in {answer}");
    for word in ["correct", "horse", "battery", "staple"] {
        assert!(redacted(word), "{way}: {word} in {answer}");
    }
}

macro_rules! ways {
    ($($test:ident: $way:literal,)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                let lab = lab().await;
                lab.put_value(SECRET).await;
                assert_redacted($way, &lab.get($way).await, SECRET);
            }
        )*
    };
}

ways! {
    plain_secret_is_redacted: "plain",
    json_with_escaped_slash_is_redacted: "json-php",
    json_with_escaped_punctuation_is_redacted: "json-gson",
    json_with_every_character_escaped_is_redacted: "json-all",
    json_with_upper_case_escapes_is_redacted: "json-upper",
    json_within_json_is_redacted: "json-twice",
    json_safe_for_html_is_redacted: "json-html",
    lower_case_percent_encoding_is_redacted: "percent",
    percent_encoding_of_every_character_is_redacted: "percent-all",
    html_entities_are_redacted: "entities",
    base64_of_secret_alone_is_redacted: "base64-0",
    base64_with_secret_at_second_byte_is_redacted: "base64-1",
    base64_with_secret_at_third_byte_is_redacted: "base64-2",
    base64_in_json_with_escaped_slash_is_redacted: "base64-php",
    base64_broken_into_lines_is_redacted: "base64-lines",
}

#[tokio::test]
async fn secret_with_spaces_is_redacted_in_form() {
    let lab = lab().await;
    lab.put_value("correct horse/battery staple").await;
    assert_redacted("form", &lab.get("form").await, "correct horse/battery staple");
}

#[tokio::test]
async fn secret_with_line_end_is_redacted_when_server_trims_it() {
    let lab = lab().await;
    lab.put_value("correct-horse-battery-staple\n").await;
    assert_redacted(
        "trimmed",
        &lab.get("trimmed").await,
        "correct-horse-battery-staple\n",
    );
}

#[tokio::test]
async fn compression_is_not_asked_for_and_encoded_answer_is_refused() {
    let lab = lab().await;
    lab.put_value(SECRET).await;
    let mut asking = request("GET", "/plain");
    asking.headers = vec![("Accept-Encoding".into(), "gzip".into())];
    let refused = lab.send(asking).await;
    assert!(
        matches!(&refused, Err(SendError::Invalid(why)) if why.contains("Accept-Encoding")),
        "{refused:?}"
    );
    let encoded = lab.send(request("GET", "/gzip")).await;
    assert!(
        matches!(&encoded, Err(SendError::Invalid(why)) if why.contains("gzip")),
        "{encoded:?}"
    );
    let accepted = lab.server.accepted.lock().unwrap();
    assert!(
        accepted.iter().all(|a| a.as_deref() == Some("identity")),
        "{accepted:?}"
    );
}

#[tokio::test]
async fn part_of_answer_cannot_be_requested() {
    let lab = lab().await;
    lab.put_value(SECRET).await;
    let mut parts = Vec::new();
    for start in (0..30).step_by(5) {
        let mut part = request("GET", "/range");
        part.headers = vec![("Range".into(), format!("bytes={start}-{}", start + 4))];
        if let Ok(response) = lab.send(part).await {
            parts.extend(response.body);
        }
    }
    assert!(parts.is_empty(), "{}", String::from_utf8_lossy(&parts));
}

#[tokio::test]
async fn event_is_redacted_before_it_is_cut() {
    let lab = lab().await;
    lab.put_value("correct-horse-battery-staple").await;
    for bytes in 5..30 {
        for event in lab.read_events("/events", bytes).await {
            assert!(
                !event.contains("corre") && event.len() <= bytes,
                "{bytes}: {event}"
            );
        }
    }
}

/// Otherwise the number of events would tell whether a guess is the secret.
#[tokio::test]
async fn pattern_is_compared_with_redacted_event() {
    let lab = lab().await;
    lab.put_value("correct-horse-battery-staple").await;
    for (guess, count) in [("correct-horse-battery-staple", 0), ("***", 1)] {
        let query = TailQuery {
            select: vec![EventPattern {
                name: None,
                data: Some(("/log".into(), guess.into())),
            }],
            until: vec![],
            last: 10,
            bytes: 1000,
            timeout: Duration::from_secs(60),
        };
        let tail = lab
            .clients
            .read_events(&lab.upstream, "/json-event", &query, &lab.vault)
            .await
            .unwrap();
        assert_eq!(tail.events.len(), count, "{guess}");
    }
}

#[tokio::test]
async fn secret_cut_by_size_limit_of_event_is_redacted() {
    let lab = lab().await;
    lab.put_value("correct-horse-battery-staple").await;
    let events = lab.read_events("/large-event", 2 << 20).await;
    let end = &events[0][events[0].len() - 10..];
    assert!(events[0].len() > 1 << 19 && !end.contains("corr"), "{end}");
}

#[tokio::test]
async fn many_other_secrets_do_not_evict_one() {
    let lab = lab().await;
    lab.vault.set("target", "correct-horse-battery-staple");
    for i in 0..30 {
        lab.vault
            .set(&format!("other-{i}"), &format!("{i:04}").repeat(64 << 10));
    }
    lab.put("target").await.unwrap();
    let mut refused = 0;
    for i in 0..30 {
        refused += usize::from(lab.put(&format!("other-{i}")).await.is_err());
    }
    *lab.server.body.lock().unwrap() = b"correct-horse-battery-staple".to_vec();
    assert_eq!(lab.get("plain").await, "***", "{refused} were refused");
}

#[tokio::test]
async fn rotated_value_stays_redacted() {
    let lab = lab().await;
    lab.put_value("the-first-of-many-values").await;
    for i in 0..12 {
        lab.put_value(&format!("another-value-{i}")).await;
    }
    *lab.server.body.lock().unwrap() = b"the-first-of-many-values".to_vec();
    assert_eq!(lab.get("plain").await, "***");
}

#[tokio::test]
async fn recreated_upstream_still_redacts() {
    let mut lab = lab().await;
    lab.put_value("correct-horse-battery-staple").await;
    lab.clients.remove_client("n", "ci");
    lab.upstream.uid = "another".into();
    assert_eq!(lab.get("plain").await, "***");
}

#[tokio::test]
async fn secret_of_one_upstream_is_not_searched_in_answers_of_another() {
    let lab = lab().await;
    lab.put_value("correct-horse-battery-staple").await;
    let mut other = lab.upstream.clone();
    (other.uid, other.name) = ("v".into(), "other".into());
    let answer = lab
        .clients
        .send_request(&other, request("GET", "/plain"), &lab.vault)
        .await
        .unwrap();
    assert_eq!(
        answer.body, b"correct-horse-battery-staple",
        "another server's guesses are not confirmed"
    );
}
