//! Plays what was recorded from a real server, in order, and compares each answer.

mod common;

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use common::{SimulatorClient, read_until};
use concourse_simulator::{ConcourseSimulator, SimulatorOptions};
use serde::Deserialize;
use serde_json::Value;

/// Headers that were recorded; one that an exchange does not list was not there.
const HEADERS: [&str; 5] = [
    "content-type",
    "link",
    "x-atc-stream-version",
    "x-concourse-config-version",
    "x-concourse-version",
];

/// URL of the recorded server.
const RECORDED_URL: &str = "http://127.0.0.1:18080";

/// Values that differ between runs. All others must be equal, including ids and config versions.
#[derive(Debug, Default)]
struct Mask {
    /// Recorded plan ids and those of this run, which must correspond everywhere.
    plans: BTreeMap<String, String>,
}

impl Mask {
    /// Compares the values of a masked key as far as two runs can agree; `None` if the key is not masked.
    fn equal(&mut self, key: &str, recorded: &Value, now: &Value) -> Option<bool> {
        let texts = recorded.as_str().zip(now.as_str());
        Some(match key {
            // Times.
            "start_time" | "end_time" | "paused_at" | "last_updated" | "time" | "TTL" => {
                recorded.is_u64() && now.is_u64()
            }
            // Addresses.
            "addr" | "baggageclaim_url" | "external_url" => {
                texts.is_some_and(|(a, b)| a.is_empty() == b.is_empty())
            }
            // Secrets.
            "access_token" => now
                .as_str()
                .and_then(|t| STANDARD_NO_PAD.decode(t).ok())
                .is_some_and(|t| t.len() == 28),
            "id_token" => now.as_str().is_some_and(|t| t.split('.').count() == 3),
            // Ids of plans are texts, all other ids are numbers.
            "id" => {
                let (recorded, now) = texts?;
                let fresh = !self.plans.values().any(|v| v == now);
                match self.plans.get(recorded) {
                    Some(known) => known == now,
                    None => fresh && self.plans.insert(recorded.to_owned(), now.to_owned()).is_none(),
                }
            }
            _ => return None,
        })
    }

    /// Collects the paths at which two values differ.
    fn compare(&mut self, at: &str, recorded: &Value, now: &Value, found: &mut Vec<String>) {
        match (recorded, now) {
            (Value::Object(a), Value::Object(b)) => {
                for (key, value) in a {
                    match b.get(key) {
                        None => found.push(format!("{at}.{key} is missing")),
                        Some(other) => match self.equal(key, value, other) {
                            Some(true) => {}
                            Some(false) => {
                                found.push(format!("{at}.{key}: {value} was recorded, now {other}"))
                            }
                            None => self.compare(&format!("{at}.{key}"), value, other, found),
                        },
                    }
                }
                found.extend(
                    b.keys()
                        .filter(|k| !a.contains_key(*k))
                        .map(|k| format!("{at}.{k} was not recorded")),
                );
            }
            (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
                for (i, (a, b)) in a.iter().zip(b).enumerate() {
                    self.compare(&format!("{at}[{i}]"), a, b, found);
                }
            }
            _ if recorded == now => {}
            _ => found.push(format!("{at}: {recorded} was recorded, now {now}")),
        }
    }
}

#[derive(Deserialize)]
struct Recording {
    exchanges: Vec<Exchange>,
}

#[derive(Deserialize)]
struct Exchange {
    name: String,
    request: Request,
    response: Response,
}

#[derive(Deserialize)]
struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: Value,
}

#[derive(Deserialize)]
struct Response {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Value,
}

/// A text as it is, all else as JSON.
fn text(body: &Value) -> String {
    match body {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// An event stream's frames as JSON, so that they can be compared as such.
fn frames(stream: &str) -> Value {
    let field = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        let value: Value = if name == "data" {
            serde_json::from_str(value).unwrap_or_default()
        } else {
            value.into()
        };
        // Not "id": that of a frame is no plan's.
        (format!("frame {name}"), value)
    };
    stream
        .split_terminator("\n\n")
        .map(|frame| frame.lines().map(field).collect::<Value>())
        .collect()
}

/// Logs in as the recording did, or asks with the headers it had.
fn request(client: &SimulatorClient, recorded: &Exchange) -> reqwest::RequestBuilder {
    let Request {
        method,
        path,
        headers,
        body,
    } = &recorded.request;
    if path == "/sky/issuer/token" {
        return client.login(&text(body).replace("<redacted>", "test"));
    }
    let client = match headers.get("Authorization") {
        None => client.with_token(None),
        Some(_) if recorded.name.ends_with("with a bad token") => client.with_token(Some("bad")),
        Some(_) => client.clone(),
    };
    let said = headers.iter().filter(|h| h.0 != "Authorization");
    said.fold(client.ask(method, path), |request, (name, value)| {
        request.header(name, value)
    })
    .body(text(body))
}

/// Creates the initial state of the recorded server: a paused pipeline of `main` with two jobs and two builds.
async fn before(simulator: &ConcourseSimulator, client: &SimulatorClient) {
    let job = |name: &str| {
        format!("- {{name: {name}, plan: [{{task: t, config: {{platform: linux, run: {{path: x}}}}}}]}}\n")
    };
    assert_eq!(
        client
            .save("demo", &format!("jobs:\n{}{}", job("a"), job("b")))
            .await
            .expect("an answer"),
        201
    );
    let at = "/api/v1/teams/main/pipelines/demo";
    client.done("PUT", &format!("{at}/unpause")).await;
    for job in ["a", "b"] {
        client.done("POST", &format!("{at}/jobs/{job}/builds")).await;
    }
    steps(simulator);
    client.done("PUT", &format!("{at}/pause")).await;
}

/// Enough time for any build in the recording, and for a worker to land.
fn steps(simulator: &ConcourseSimulator) {
    for _ in 0..4 {
        simulator.step();
    }
}

#[tokio::test]
async fn simulator_responds_like_the_recorded_server() {
    let recording: Recording =
        serde_json::from_str(include_str!("../recording.json")).expect("the recording");
    let simulator = ConcourseSimulator::start(SimulatorOptions {
        clock: None,
        ..SimulatorOptions::default()
    })
    .await
    .expect("a simulator");
    let client = SimulatorClient::logged_in(&simulator).await;
    before(&simulator, &client).await;
    let (mut mask, mut differences) = (Mask::default(), Vec::new());
    for (number, recorded) in recording.exchanges.iter().enumerate() {
        if recorded.request.path.ends_with("/events") || recorded.name == "workers later" {
            steps(&simulator);
        }
        let mut found = Vec::new();
        let mut answer = request(&client, recorded).send().await.expect("an answer");
        if answer.status().as_u16() != recorded.response.status {
            found.push(format!(
                "status: {} was recorded, now {}",
                recorded.response.status,
                answer.status().as_u16()
            ));
        }
        for name in HEADERS {
            let now = answer.headers().get(name).map(|v| v.to_str().expect("ASCII"));
            let then = recorded
                .response
                .headers
                .get(name)
                .map(|v| v.replace(RECORDED_URL, simulator.url()));
            if now != then.as_deref() {
                found.push(format!("header {name}: {then:?} was recorded, now {now:?}"));
            }
        }
        if recorded.request.path.ends_with("/events") {
            let now = read_until(&mut answer, "event: end\ndata\n\n")
                .await
                .expect("a stream");
            mask.compare(
                "",
                &frames(&text(&recorded.response.body)),
                &frames(&now),
                &mut found,
            );
        } else {
            let now = answer.text().await.expect("a body");
            let now = match &recorded.response.body {
                Value::String(_) => now.into(),
                _ => serde_json::from_str(&now).unwrap_or(Value::String(now)),
            };
            mask.compare("", &recorded.response.body, &now, &mut found);
        }
        differences.extend(
            found
                .into_iter()
                .map(|what| format!("{number} {}: {what}", recorded.name)),
        );
    }
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
    assert_eq!(recording.exchanges.len(), 125);
    assert_eq!(mask.plans.len(), 2, "the step's and the whole plan's");
}

/// Or the other test would prove nothing.
#[test]
fn mask_hides_volatile_fields_only() {
    let found = |a: &str, b: &str| {
        let mut found = Vec::new();
        let value = |text| serde_json::from_str::<Value>(text).expect("JSON");
        Mask::default().compare("", &value(a), &value(b), &mut found);
        found.len()
    };
    assert_eq!(found(r#"{"time": 1, "id": 2}"#, r#"{"time": 3, "id": 2}"#), 0);
    assert_eq!(found(r#"{"time": 1}"#, r#"{"time": "x"}"#), 1);
    assert_eq!(found(r#"{"id": 1}"#, r#"{"id": 2}"#), 1);
    assert_eq!(
        found(r#"[{"id": "a"}, {"id": "a"}]"#, r#"[{"id": "b"}, {"id": "b"}]"#),
        0
    );
    assert_eq!(
        found(r#"[{"id": "a"}, {"id": "a"}]"#, r#"[{"id": "b"}, {"id": "c"}]"#),
        1
    );
    assert_eq!(
        found(r#"[{"id": "a"}, {"id": "c"}]"#, r#"[{"id": "b"}, {"id": "b"}]"#),
        1
    );
    assert_eq!(found(r#"{"addr": ""}"#, r#"{"addr": "x"}"#), 1);
    assert_eq!(found(r#"{"a": 1, "b": 2}"#, r#"{"a": 1, "c": 2}"#), 2);
    assert_eq!(found("[1]", "[1, 1]"), 1);
    let two = frames("id: 0\nevent: event\ndata: {\"a\":1}\n\nid: 1\nevent: end\ndata\n\n");
    assert_eq!(
        (two[0]["frame data"]["a"].as_u64(), two[1]["frame event"].as_str()),
        (Some(1), Some("end"))
    );
}
