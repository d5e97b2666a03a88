//! Connections: one that is kept open and opened again, and one that is read through to its end.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use futures::StreamExt;

use super::{Body, Pattern, Source, StreamKey, Streams};
use crate::upstream::{
    Client, Former, SendError, auth::Refusal, cause, masking::Masks, request_policy, sse,
    transport_error::Fault,
};

/// Bytes kept of one event.
const EVENT_BYTES: usize = 1 << 20;
/// First and longest pause between connections. The server may ask for another first one.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The shortest it may ask for.
const SHORTEST: Duration = Duration::from_millis(10);
/// A server that is asked for a stream answers within.
const ANSWER: Duration = Duration::from_secs(30);
/// A connection that has said nothing for so long may be dead without anybody having noticed.
const SILENCE: Duration = Duration::from_secs(600);

/// A stream's task.
pub(super) struct Following {
    pub streams: Weak<Streams>,
    pub key: StreamKey,
    pub epoch: u64,
    pub source: Arc<Source>,
    pub last_id: Option<String>,
}

/// How a connection ended.
enum End {
    /// Nothing more is waited for, or nobody waits.
    Done,
    /// The server has nothing more to say.
    Over,
    Broken {
        why: String,
        /// Whether it was refused in a way that trying again hardly changes.
        refused: bool,
        /// How long it may not even be tried.
        wait: Duration,
    },
}

impl From<SendError> for End {
    fn from(e: SendError) -> Self {
        Self::Broken {
            why: e.to_string(),
            refused: matches!(e, SendError::LoginFailed(_)),
            wait: match e {
                SendError::Throttled(ms) => Duration::from_millis(ms),
                _ => Duration::ZERO,
            },
        }
    }
}

impl Following {
    /// Connects and reads, again and again, until nothing more is waited for.
    pub async fn run(mut self) {
        let (mut first, mut in_a_row, mut told) = (PAUSE.0, 0, false);
        loop {
            let began = Instant::now();
            let (end, retry) = self.connection().await;
            let Some(streams) = self.streams.upgrade() else {
                return;
            };
            let (key, epoch) = (&self.key, self.epoch);
            let (why, refused, wait) = match end {
                End::Done => return,
                End::Over => return streams.ended(key, epoch),
                End::Broken { why, refused, wait } => (why, refused, wait),
            };
            if let Some(retry) = retry {
                first = retry.clamp(SHORTEST, PAUSE.1);
            }
            // One that lasted is no reason to wait longer each time; one that ends at once is.
            let pause = |n: u32| first.saturating_mul(1 << n.min(16)).min(PAUSE.1);
            if began.elapsed() > pause(in_a_row).max(PAUSE.0) {
                in_a_row = 0;
            }
            let pause = pause(in_a_row);
            // Who was told when to come has not failed.
            in_a_row += u32::from(wait.is_zero());
            tracing::debug!(stream = %key, "event stream: {why}");
            if streams.broken(key, epoch, why, refused && !told).is_none() {
                return;
            }
            told = refused;
            drop(streams);
            tokio::time::sleep(wait + jittered(pause)).await;
            let again = |s: Arc<Streams>| s.again(&self.key, self.epoch);
            if self.streams.upgrade().and_then(again).is_none() {
                return;
            }
        }
    }

    /// One connection, from opening it to its end; and how long the server asks to wait.
    async fn connection(&mut self) -> (End, Option<Duration>) {
        let (key, epoch) = (&self.key, self.epoch);
        let resumed = self.last_id.is_some();
        let response = match open(&self.source.client, &key.path, self.last_id.as_deref()).await {
            Ok(Some((response, _))) => response,
            Ok(None) => return (End::Over, None),
            Err(end) => return (end, None),
        };
        match self.streams.upgrade().and_then(|s| s.opened(key, epoch, resumed)) {
            Some(()) => {}
            None => return (End::Done, None),
        }
        let mut parser = sse::Parser::new(EVENT_BYTES, self.last_id.clone());
        let mut chunks = response.bytes_stream();
        let why = loop {
            let bytes = match tokio::time::timeout(SILENCE, chunks.next()).await {
                Ok(Some(Ok(bytes))) => bytes,
                Ok(Some(Err(e))) => break cause(&e),
                Ok(None) => break "the server ended the stream".to_owned(),
                Err(_) => break format!("silent for {SILENCE:?}"),
            };
            for event in parser.feed(&bytes) {
                self.last_id.clone_from(&event.id);
                match self.streams.upgrade().and_then(|s| s.came(key, epoch, &event)) {
                    Some(true) => {}
                    Some(false) | None => return (End::Done, None),
                }
            }
        };
        let end = End::Broken {
            why,
            refused: false,
            wait: Duration::ZERO,
        };
        (end, parser.retry().map(Duration::from_millis))
    }
}

/// An answer, and the credential that was sent for it.
type Opened = (reqwest::Response, Option<http::HeaderValue>);

impl Client {
    /// Asks for a stream, after the last event that came if there is one; once more after a fresh log-in when it is
    /// refused with 401. Asking waits for its turn as requests do; an open stream is none of those in flight.
    async fn stream(&self, path: &str, last_id: Option<&str>) -> Result<Opened, SendError> {
        request_policy::path(path)?;
        let asking = async {
            let mut stale = None;
            loop {
                let ticket = self.admitted().await?;
                let credential = match self.credential(stale.as_ref(), &ticket).await {
                    Ok(credential) => credential,
                    Err(Refusal::Earlier(e)) => {
                        ticket.unsent();
                        return Err(e);
                    }
                    Err(e) => return Err(ticket.given_up(e.into())),
                };
                let mut request = self
                    .http
                    .get(format!("{}{path}", self.url))
                    .header(http::header::ACCEPT, "text/event-stream")
                    .header(http::header::CACHE_CONTROL, "no-cache");
                if let Some((name, value)) = &credential {
                    request = request.header(name, value);
                }
                if let Some(Ok(id)) = last_id.map(|id| http::HeaderValue::from_bytes(id.as_bytes())) {
                    request = request.header("last-event-id", id);
                }
                let response = match request.send().await {
                    Ok(response) => response,
                    Err(e) => {
                        let fault = Fault::of(&e);
                        ticket.failed(&fault);
                        return Err(fault.error(""));
                    }
                };
                let credential = credential.map(|(_, value)| value);
                if response.status() == 401 && stale.is_none() && self.credentials.renewable() {
                    ticket.succeeded();
                    stale = credential;
                    continue;
                }
                let wait = self.answered(&response, path, &ticket);
                ticket.answered(response.status().as_u16(), wait.is_some());
                return Ok((response, credential));
            }
        };
        let waited = tokio::time::timeout(ANSWER, asking).await;
        waited.unwrap_or_else(|_| Err(SendError::Unavailable(format!("no answer within {ANSWER:?}"))))
    }
}

/// Opens a stream; none when the server says that there is nothing to come.
async fn open(client: &Client, path: &str, last_id: Option<&str>) -> Result<Option<Opened>, End> {
    let (response, credential) = client.stream(path, last_id).await?;
    let status = response.status().as_u16();
    let broken = |why: String| End::Broken {
        why,
        refused: matches!(status, 400..=499) && !matches!(status, 408 | 425 | 429),
        wait: Duration::ZERO,
    };
    match status {
        200 => {}
        // So it is in the standard.
        204 => return Ok(None),
        _ => return Err(broken(format!("HTTP {status}"))),
    }
    let kind = response.headers().get(http::header::CONTENT_TYPE);
    let kind = kind.and_then(|v| v.to_str().ok()).unwrap_or_default();
    match kind.split(';').next().unwrap_or_default().trim() {
        "text/event-stream" => Ok(Some((response, credential))),
        other => Err(broken(format!("the answer is {other:?}, no event stream"))),
    }
}

/// Between half of it and all.
fn jittered(pause: Duration) -> Duration {
    pause / 2 + pause / 2 * (crate::kube::time::unique_id() % 1024) as u32 / 1024
}

/// What to read of a stream.
#[derive(Clone, Debug)]
pub struct Query {
    /// Events to give; all when there are none.
    pub select: Vec<Pattern>,
    /// The event that is the last.
    pub until: Vec<Pattern>,
    /// So many at most, the last.
    pub last: usize,
    /// With so many bytes of data at most.
    pub bytes: usize,
    /// In so long at most.
    pub timeout: Duration,
}

/// The end of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Its last events.
    pub events: VecDeque<sse::Event>,
    /// How many of those asked for came before.
    pub skipped: u64,
    /// Whether it was read to its end.
    pub complete: bool,
    bytes: usize,
}

impl Tail {
    fn push(&mut self, event: sse::Event, query: &Query) {
        self.bytes += event.data.len();
        self.events.push_back(event);
        while self.events.len() > query.last || self.bytes > query.bytes {
            let Some(oldest) = self.events.pop_front() else {
                break;
            };
            self.bytes -= oldest.data.len();
            self.skipped += 1;
        }
    }
}

/// Reads a stream through and keeps its end, without credentials or former secrets in it. While it is read it is one of
/// the requests in flight.
pub async fn tail(client: &Client, path: &str, query: &Query, former: &Former) -> Result<Tail, SendError> {
    let (mut tail, mut sent) = (Tail::default(), None);
    let reading = async {
        let _permit = client.in_flight.acquire().await;
        let response = match open(client, path, None).await {
            Ok(Some((response, credential))) => {
                sent = credential;
                response
            }
            Ok(None) | Err(End::Done | End::Over) => return Ok(true),
            Err(End::Broken { wait, .. }) if !wait.is_zero() => {
                let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                return Err(SendError::Throttled(wait));
            }
            Err(End::Broken { why, .. }) => return Err(SendError::Unavailable(why)),
        };
        let mut parser = sse::Parser::new(EVENT_BYTES.min(query.bytes), None);
        let mut chunks = response.bytes_stream();
        while let Some(bytes) = chunks.next().await {
            let bytes = bytes.map_err(|e| SendError::Unavailable(cause(&e)))?;
            for event in parser.feed(&bytes) {
                let mut body = Body::new(&event);
                let last = query.until.iter().any(|p| p.matches(&mut body));
                if query.select.is_empty() || query.select.iter().any(|p| p.matches(&mut body)) {
                    tail.push(event, query);
                }
                if last {
                    return Ok(true);
                }
            }
        }
        Ok(true)
    };
    let complete = match tokio::time::timeout(query.timeout, reading).await {
        Ok(complete) => complete?,
        Err(_) => false,
    };
    tail.complete = complete;
    let mut masks = Masks::all(former);
    client.credentials.never_show(&mut masks);
    if let Some(sent) = sent {
        masks.never_show(sent.as_bytes());
    }
    let hidden = |text: &str| String::from_utf8_lossy(&masks.hide(text.as_bytes())).into_owned();
    for event in &mut tail.events {
        event.data = hidden(&event.data);
        event.name = hidden(&event.name);
        event.id = event.id.as_deref().map(hidden);
    }
    Ok(tail)
}
