//! Execution of a sequence on both servers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use regex::{Captures, Regex};
use serde_json::Value;

use super::compare::{SeenIdentities, describe_difference, normalize_answer};
use super::sequence::{RequestStep, Step};
use crate::target::{ConformanceTarget, ObservedResponse};

/// Timeout until two servers agree on what they do on their own.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for which they must agree: one that has not begun agrees with one that does nothing.
const SETTLED: Duration = Duration::from_millis(200);

/// The two servers.
pub struct ServerPair {
    /// The embedded one.
    pub embedded: ConformanceTarget,
    /// The real one.
    pub real: ConformanceTarget,
}

/// Namespace and group of a block of sequences, the same on both servers.
#[derive(Debug, Clone)]
pub struct Block {
    /// Namespace.
    pub namespace: String,
    /// Group of the custom kind.
    pub group: String,
}

/// A step that the servers answer differently.
#[derive(Debug, Clone)]
pub struct AnswerDifference {
    /// Index of the step.
    pub step: usize,
    /// Its kind: request and what differs, without names of a single sequence.
    pub kind: String,
    /// Answer of the embedded server.
    pub embedded: ObservedResponse,
    /// Answer of the real server.
    pub real: ObservedResponse,
}

/// Number of runs, from which the names of objects are unique.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// Runs the steps of a sequence, up to the first difference.
pub async fn run_steps(servers: &ServerPair, block: &Block, steps: &[Step]) -> Option<AnswerDifference> {
    let id = format!("{:x}", RUNS.fetch_add(1, Ordering::Relaxed));
    let mut embedded = Side::new(&servers.embedded, block, &id);
    let mut real = Side::new(&servers.real, block, &id);
    for (index, step) in steps.iter().enumerate() {
        let (request, settles) = match step {
            Step::Request(request) => (request, false),
            Step::Settle(request) => (request, true),
        };
        let began = Instant::now();
        let mut agreed_since = None;
        let (left, right) = loop {
            let (left, right) = tokio::join!(embedded.send(request), real.send(request));
            // A request on which the real server panics says nothing.
            let right = right?;
            let left = left.unwrap_or_else(|| ObservedResponse {
                code: 0,
                body: Value::Null,
                warnings: Vec::new(),
            });
            if !settles || began.elapsed() > SETTLE_TIMEOUT {
                break (left, right);
            }
            let (normal, expected) = (
                normalize_answer(&left, &mut SeenIdentities::default()),
                normalize_answer(&right, &mut SeenIdentities::default()),
            );
            if normal == expected {
                let since = *agreed_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= SETTLED {
                    break (left, right);
                }
            } else {
                agreed_since = None;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let answer = normalize_answer(&left, &mut embedded.seen);
        let expected = normalize_answer(&right, &mut real.seen);
        if let Some(what) = describe_difference(&answer, &expected) {
            return Some(AnswerDifference {
                step: index,
                kind: format!("{}: {what}", describe_request(request)),
                embedded: left,
                real: right,
            });
        }
    }
    None
}

/// Returns method, media type and the resource of a request.
fn describe_request(request: &RequestStep) -> String {
    let media = request.media.rsplit('/').next().unwrap_or_default();
    let media = media.split(['+', '-']).next().unwrap_or_default();
    let path = request.path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let resource = match parts.iter().position(|part| *part == "namespaces") {
        Some(at) if parts.len() > at + 2 => parts[at + 2..].to_vec(),
        Some(at) => parts[at..].to_vec(),
        None => parts
            .iter()
            .skip(if parts[0] == "api" { 2 } else { 3 })
            .copied()
            .collect(),
    };
    let subresource = resource.get(2).map(|name| format!("/{name}")).unwrap_or_default();
    let method = match request.method.as_str() {
        "PATCH" => media.to_uppercase(),
        method => method.to_owned(),
    };
    format!("{method} {}{subresource}", resource.first().unwrap_or(&"-"))
}

/// One server's side of a run.
struct Side<'a> {
    target: &'a ConformanceTarget,
    block: &'a Block,
    id: &'a str,
    seen: SeenIdentities,
}

impl<'a> Side<'a> {
    fn new(target: &'a ConformanceTarget, block: &'a Block, id: &'a str) -> Self {
        Self {
            target,
            block,
            id,
            seen: SeenIdentities::default(),
        }
    }

    /// Sends a request. Returns nothing if the server closes the connection without an answer.
    async fn send(&mut self, step: &RequestStep) -> Option<ObservedResponse> {
        let path = self.fill(&step.path);
        let mut request = self
            .target
            .request(step.method.clone(), &path)
            .header("accept", step.accept);
        if let Some(user) = step.user {
            request = request.header("impersonate-user", self.fill(user));
        }
        if !step.body.is_null() {
            request = request
                .header("content-type", step.media)
                .body(self.fill(&step.body.to_string()));
        }
        let answer = self.target.try_send(request).await.ok()?;
        self.seen.record(&path, &answer.body);
        if let Some(items) = answer.body["items"].as_array() {
            for item in items {
                self.seen.record(&path, item);
            }
        }
        Some(answer)
    }

    /// Replaces the placeholders of a text.
    fn fill(&self, text: &str) -> String {
        let filled = text
            .replace("§id", self.id)
            .replace("§namespace", &self.block.namespace)
            .replace("§group", &self.block.group);
        let Ok(references) = Regex::new(r"§(uid|revision)\(([^)]*)\)") else {
            return filled;
        };
        let replaced = references.replace_all(&filled, |found: &Captures<'_>| match &found[1] {
            "uid" => self.seen.uid(&found[2]).to_owned(),
            _ => self.seen.revision(&found[2]).to_owned(),
        });
        replaced.into_owned()
    }
}

/// Returns the answers of a difference, for the report.
pub fn format_answer(answer: &ObservedResponse) -> String {
    let body = match &answer.body {
        status if status["kind"] == "Status" && status["status"] == "Failure" => {
            format!("{}: {}", text(&status["reason"]), text(&status["message"]))
        }
        other => {
            let mut shown = other.clone();
            if let Some(metadata) = shown["metadata"].as_object_mut()
                && metadata.contains_key("managedFields")
            {
                metadata.retain(|name, _| name != "uid" && name != "creationTimestamp");
            }
            shown.to_string()
        }
    };
    let mut cut: String = body.chars().take(2500).collect();
    if cut.len() < body.len() {
        cut.push('…');
    }
    format!("{} {cut}", answer.code)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
