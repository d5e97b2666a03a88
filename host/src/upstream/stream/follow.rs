//! Connections of event streams: one that is kept open, and one that is read to its end.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use futures::StreamExt;

use super::{BufferedBytes, EventPattern, EventStreams, ParsedEvent, StreamKey, StreamSource};
use crate::{
    kube::backoff::Backoff,
    upstream::{
        SendError, UpstreamClient,
        answer::{IDENTITY_ENCODING, content_encoding, explain_encoded},
        auth::CredentialError,
        redact::Redactor,
        request_policy, root_cause, sse,
        transport_error::TransportError,
    },
};

/// Maximum size of an event in bytes.
const MAX_EVENT_BYTES: usize = 1 << 20;
/// First and longest delay between connections. The server may ask for another first one (`retry:`).
const INITIAL_RECONNECT_DELAY: Duration = Duration::from_secs(1);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(60);
/// Minimum delay that a server can ask for.
const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(10);
/// Timeout of the response's head.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout without any byte. The connection may be dead without having been closed.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(600);

/// Time in which a resumed stream has to send an event that proves that none was missed.
const RESUMPTION_TIMEOUT: Duration = Duration::from_secs(1);

/// The task of a stream.
pub(super) struct StreamTask {
    pub streams: Weak<EventStreams>,
    pub key: StreamKey,
    pub epoch: u64,
    pub source: Arc<StreamSource>,
    pub last_id: Option<String>,
}

/// The end of a connection.
enum ConnectionEnd {
    /// No subscriber waits for more events.
    Done,
    /// The server has closed the stream for good.
    Finished,
    Broken {
        why: String,
        /// The server rejected the request with a status that a retry hardly changes.
        refused: bool,
        /// A wait that must pass before the reconnection delay.
        wait: Duration,
    },
}

impl From<SendError> for ConnectionEnd {
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

impl StreamTask {
    /// Connects and reads, again and again, until no subscriber waits for more events.
    pub async fn run_until_done(mut self) {
        let (mut first, mut in_a_row, mut told) = (INITIAL_RECONNECT_DELAY, 0u32, false);
        loop {
            let began = Instant::now();
            let (end, retry) = self.read_connection().await;
            let Some(streams) = self.streams.upgrade() else {
                return;
            };
            let (key, epoch) = (&self.key, self.epoch);
            let (why, refused, wait) = match end {
                ConnectionEnd::Done => return,
                ConnectionEnd::Finished => return streams.on_ended(key, epoch),
                ConnectionEnd::Broken { why, refused, wait } => (why, refused, wait),
            };
            if let Some(retry) = retry {
                first = retry.clamp(MIN_RECONNECT_DELAY, MAX_RECONNECT_DELAY);
            }
            // A connection that lasted resets the back-off; one that ends at once increases it.
            let backoff = Backoff::new(first, MAX_RECONNECT_DELAY).with_jitter(50);
            if began.elapsed() > backoff.max_delay(in_a_row + 1).max(INITIAL_RECONNECT_DELAY) {
                in_a_row = 0;
            }
            let pause = backoff.delay(in_a_row + 1);
            // A server that gave a time to come back (`Retry-After`) has not failed.
            in_a_row = in_a_row
                .saturating_add(u32::from(wait.is_zero()))
                .min(u32::MAX - 1);
            tracing::debug!(stream = %key, reason = %why, "event stream interrupted");
            if streams.on_broken(key, epoch, why, refused && !told).is_none() {
                return;
            }
            told = refused;
            drop(streams);
            tokio::time::sleep(wait + pause).await;
            let again = |s: Arc<EventStreams>| s.on_reconnect(&self.key, self.epoch);
            if self.streams.upgrade().and_then(again).is_none() {
                return;
            }
        }
    }

    /// Reads one connection to its end; returns the reconnection time that the server has asked for.
    async fn read_connection(&mut self) -> (ConnectionEnd, Option<Duration>) {
        let (key, epoch) = (&self.key, self.epoch);
        let mut unproven = self.last_id.clone();
        let (response, sent) =
            match open_stream(&self.source.client, &key.path, self.last_id.as_deref()).await {
                Ok(Some(opened)) => opened,
                Ok(None) => return (ConnectionEnd::Finished, None),
                Err(end) => return (end, None),
            };
        match self
            .streams
            .upgrade()
            .and_then(|s| s.on_opened(key, epoch, unproven.is_some()))
        {
            Some(()) => {}
            None => return (ConnectionEnd::Done, None),
        }
        let client = self.source.client.clone();
        let mut redactor = client.credential_redactor(sent.as_ref());
        let mut redact = |event: &sse::ServerSentEvent| {
            redactor.update_history(&client.context.secret_history);
            redactor.redact_event(event)
        };
        let mut parser = sse::EventParser::new(MAX_EVENT_BYTES, self.last_id.clone());
        let Some(mut buffered) = self.streams.upgrade().map(|s| BufferedBytes::new(&s.counters)) else {
            return (ConnectionEnd::Done, None);
        };
        let mut chunks = response.bytes_stream();
        let proof_deadline = tokio::time::Instant::now() + RESUMPTION_TIMEOUT;
        let why = loop {
            let silence_deadline = tokio::time::Instant::now() + SILENCE_TIMEOUT;
            let deadline = unproven.as_ref().map_or(silence_deadline, |_| proof_deadline);
            let bytes = match tokio::time::timeout_at(deadline, chunks.next()).await {
                Ok(Some(Ok(bytes))) => bytes,
                Ok(Some(Err(e))) => break root_cause(&e),
                Ok(None) => break "the server ended the stream".to_owned(),
                // Many servers give ids and ignore `Last-Event-ID`: what came in between is lost.
                Err(_) if unproven.take().is_some() => {
                    match self.streams.upgrade().and_then(|s| s.on_missed(key, epoch)) {
                        Some(()) => continue,
                        None => return (ConnectionEnd::Done, None),
                    }
                }
                Err(_) => break format!("silent for {SILENCE_TIMEOUT:?}"),
            };
            for event in parser.parse_chunk(&bytes) {
                if let Some(last) = unproven.take()
                    && !is_next_id(&last, event.id.as_deref())
                    && self
                        .streams
                        .upgrade()
                        .and_then(|s| s.on_missed(key, epoch))
                        .is_none()
                {
                    return (ConnectionEnd::Done, None);
                }
                self.last_id.clone_from(&event.id);
                match self
                    .streams
                    .upgrade()
                    .and_then(|s| s.on_event(key, epoch, &event, &mut redact))
                {
                    Some(true) => {}
                    Some(false) | None => return (ConnectionEnd::Done, None),
                }
            }
            if !buffered.set(parser.buffered_bytes()) {
                break "the events of all streams are larger than the host can keep".to_owned();
            }
        };
        let end = ConnectionEnd::Broken {
            why,
            refused: false,
            wait: Duration::ZERO,
        };
        (end, parser.retry_millis().map(Duration::from_millis))
    }
}

/// The ids are consecutive numbers, so that no event is between them.
fn is_next_id(last: &str, id: Option<&str>) -> bool {
    let number = |id: &str| id.parse::<u64>().ok();
    let next = number(last).and_then(|n| n.checked_add(1));
    next.is_some() && next == id.and_then(number)
}

/// A response, and the credential that was sent for it.
type OpenedStream = (reqwest::Response, Option<http::HeaderValue>);

impl UpstreamClient {
    /// A redactor of the credentials, and of the one that was sent.
    fn credential_redactor(&self, sent: Option<&http::HeaderValue>) -> Redactor {
        let mut redactor = self.context.secret_history.to_redactor();
        self.credentials.add_to_redactor(&mut redactor);
        if let Some(sent) = sent {
            redactor.add_credential(sent.as_bytes());
        }
        redactor
    }

    /// Requests a stream, after the last event received if there is one; once more after a new login if the server
    /// rejects it with 401. The request waits for the rate limit as others do; an open stream does not count as in
    /// flight.
    async fn request_stream(&self, path: &str, last_id: Option<&str>) -> Result<OpenedStream, SendError> {
        request_policy::check_path(path)?;
        let asking = async {
            let mut stale = None;
            loop {
                let attempt = self.admit_request().await?;
                let credential = match self.resolve_credential(stale.as_ref(), &attempt).await {
                    Ok(credential) => credential,
                    Err(CredentialError::Cached(e)) => {
                        attempt.mark_not_sent();
                        return Err(e);
                    }
                    Err(e) => return Err(attempt.record_credential_error(e.into())),
                };
                let mut request = self
                    .http
                    .get(format!("{}{path}", self.url))
                    .header(http::header::ACCEPT, "text/event-stream")
                    .header(http::header::ACCEPT_ENCODING, IDENTITY_ENCODING)
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
                        let error = TransportError::from_request(&e);
                        attempt.record_transport_error(&error);
                        return Err(error.into_send_error(""));
                    }
                };
                let credential = credential.map(|(_, value)| value);
                if response.status() == 401
                    && stale.is_none()
                    && self.credentials.can_replace(credential.as_ref())
                {
                    attempt.record_success();
                    stale = credential;
                    continue;
                }
                let wait = self.record_response(&response, path, &attempt);
                attempt.record_status(response.status().as_u16(), wait.is_some());
                return Ok((response, credential));
            }
        };
        let waited = tokio::time::timeout(RESPONSE_TIMEOUT, asking).await;
        waited.unwrap_or_else(|_| {
            Err(SendError::Unavailable(format!(
                "no answer within {RESPONSE_TIMEOUT:?}"
            )))
        })
    }
}

/// Opens a stream; `None` if the server answers 204: the stream is closed for good.
async fn open_stream(
    client: &UpstreamClient,
    path: &str,
    last_id: Option<&str>,
) -> Result<Option<OpenedStream>, ConnectionEnd> {
    let (response, credential) = client.request_stream(path, last_id).await?;
    let status = response.status().as_u16();
    let broken = |why: String| ConnectionEnd::Broken {
        why,
        refused: matches!(status, 400..=499) && !matches!(status, 408 | 425 | 429),
        wait: Duration::ZERO,
    };
    match status {
        200 => {}
        // 204 ends a stream for good, by the standard.
        204 => return Ok(None),
        _ => return Err(broken(format!("HTTP {status}"))),
    }
    if let Some(encoding) = content_encoding(&response) {
        return Err(broken(explain_encoded(&encoding).to_string()));
    }
    let kind = response.headers().get(http::header::CONTENT_TYPE);
    let kind = kind.and_then(|v| v.to_str().ok()).unwrap_or_default();
    match kind.split(';').next().unwrap_or_default().trim() {
        "text/event-stream" => Ok(Some((response, credential))),
        other => Err(broken(format!("the answer is {other:?}, no event stream"))),
    }
}

/// The events to read of a stream.
#[derive(Clone, Debug)]
pub struct TailQuery {
    /// Events to return; all events if empty.
    pub select: Vec<EventPattern>,
    /// The last event to read.
    pub until: Vec<EventPattern>,
    /// Maximum number of events; the last ones are kept.
    pub last: usize,
    /// Maximum bytes of data.
    pub bytes: usize,
    /// Maximum time of reading.
    pub timeout: Duration,
}

/// The last events of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventTail {
    /// The events.
    pub events: VecDeque<sse::ServerSentEvent>,
    /// Number of selected events that were dropped before them.
    pub skipped: u64,
    /// The stream was read to its end.
    pub complete: bool,
    bytes: usize,
}

impl EventTail {
    fn push_event(&mut self, event: sse::ServerSentEvent, query: &TailQuery) {
        self.bytes += event.data.len();
        self.events.push_back(event);
        // One event may be larger than the limit until it is redacted: cut before that, it might end in a part of a
        // secret.
        while self.events.len() > query.last || (self.bytes > query.bytes && self.events.len() > 1) {
            let Some(oldest) = self.events.pop_front() else {
                break;
            };
            self.bytes -= oldest.data.len();
            self.skipped += 1;
        }
    }

    /// Redacts the events, and then cuts what is more than the limit.
    fn redact_events(&mut self, redactor: &Redactor, query: &TailQuery) {
        for event in std::mem::take(&mut self.events) {
            let mut redacted = redactor.redact_event(&event);
            redacted.is_truncated |= redacted.data.len() > query.bytes;
            redacted
                .data
                .truncate(redacted.data.floor_char_boundary(query.bytes));
            self.bytes -= event.data.len();
            self.push_event(redacted, query);
        }
    }
}

/// Reads a stream to its end and returns its last events, with credentials and previous secrets redacted. It counts as
/// a request in flight.
pub async fn read_tail(
    client: &UpstreamClient,
    path: &str,
    query: &TailQuery,
) -> Result<EventTail, SendError> {
    let mut tail = EventTail::default();
    let mut redactor = client.credential_redactor(None);
    let reading = async {
        let _permit = client.in_flight.acquire().await;
        let response = match open_stream(client, path, None).await {
            Ok(Some((response, credential))) => {
                redactor = client.credential_redactor(credential.as_ref());
                response
            }
            Ok(None) | Err(ConnectionEnd::Done | ConnectionEnd::Finished) => return Ok(true),
            Err(ConnectionEnd::Broken { wait, .. }) if !wait.is_zero() => {
                let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                return Err(SendError::Throttled(wait));
            }
            Err(ConnectionEnd::Broken { why, .. }) => return Err(SendError::Unavailable(why)),
        };
        let mut parser = sse::EventParser::new(MAX_EVENT_BYTES, None);
        let mut chunks = response.bytes_stream();
        while let Some(bytes) = chunks.next().await {
            let bytes = bytes.map_err(|e| SendError::Unavailable(root_cause(&e)))?;
            for event in parser.parse_chunk(&bytes) {
                let (last, selected) = if query.until.is_empty() && query.select.is_empty() {
                    (false, true)
                } else {
                    // A component must not learn of a secret by comparing it.
                    redactor.update_history(&client.context.secret_history);
                    let shown = redactor.redact_event(&event);
                    let mut body = ParsedEvent::new(&shown);
                    let last = query.until.iter().any(|p| p.matches(&mut body));
                    let all = query.select.is_empty();
                    (last, all || query.select.iter().any(|p| p.matches(&mut body)))
                };
                if selected {
                    tail.push_event(event, query);
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
    redactor.update_history(&client.context.secret_history);
    tail.redact_events(&redactor, query);
    Ok(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_consecutive_numbers_prove_that_no_event_is_missing() {
        assert!(is_next_id("41", Some("42")));
        for (last, id) in [
            ("41", Some("43")),
            ("41", Some("41")),
            ("41", None),
            ("a", Some("b")),
            ("18446744073709551615", Some("0")),
        ] {
            assert!(!is_next_id(last, id), "{last} {id:?}");
        }
    }
}
