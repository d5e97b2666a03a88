//! The client of one broker, for one version of its spec and Secrets: its connections, its health, and publishing.
//!
//! All publish on one connection, which tells whether the broker works. Each consumer has one of its own: a host that has no
//! room for further messages stops reading from it, which must not hold up the confirmations of others.

use std::{
    io,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use futures::StreamExt;
use lapin::{
    Channel, Confirmation, Connection, ErrorKind,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::info;

use super::{
    OutgoingMessage,
    connect::{ConnectError, Endpoint, OpenConnection, describe_error},
    metered::AnnouncedMessages,
    properties::{encode_properties, short_string},
};
use crate::{
    client::fence::{NotLeader, WriteFence},
    contract::message_memory::MessageShare,
    kube::backoff::Backoff,
    policy::network::NetworkPolicy,
    upstream::{
        CircuitState, Secret, SecretSnapshot, SecretStore, SendError, UpstreamObject,
        health::{Health, HealthReport},
        missing_secret,
        rate_limit::RateLimiter,
        redact::{MIN_PASSWORD_BYTES, Redactor},
        spec::{Auth, MAX_BODY_BYTES, MAX_REQUESTS_IN_FLIGHT},
        tls,
        transport_error::{TransportError, TransportErrorKind},
    },
};

/// Delays between connection attempts; in between, calls fail at once.
const CONNECT_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).with_jitter(25);

/// Time after which a call is repeated that came while another one was trying to connect.
const TRIAL_RETRY_MILLISECONDS: u64 = 1000;

/// Longest wait for the rate limit inside a call. A longer one is returned as `throttled`.
const MAX_TURN_WAIT: Duration = Duration::from_secs(1);

/// Code and time limit of an orderly close.
pub const CLOSE_SUCCESS: u16 = 200;
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit of the wait for the reason of a loss.
const LOSS_TIMEOUT: Duration = Duration::from_secs(1);

/// Codes of AMQP for a refused operation.
const CONTENT_TOO_LARGE: u16 = 311;
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;

/// The settings of a client besides the Upstream.
pub struct BrokerContext {
    pub network: NetworkPolicy,
    pub fence: WriteFence,
    pub secrets: SecretSnapshot,
    /// The rate limit, which a new client for changed Secrets continues.
    pub rate_limiter: Arc<Mutex<RateLimiter>>,
    /// Called when the Upstream's status may have to change.
    pub on_status_change: Arc<dyn Fn() + Send + Sync>,
}

/// The client of one broker.
pub struct BrokerClient {
    endpoint: Endpoint,
    is_anonymous: bool,
    /// Redacts error texts.
    redactor: Redactor,
    /// Redacts messages, in which a short password may be an ordinary word.
    message_redactor: Redactor,
    context: BrokerContext,
    timeout: Duration,
    connect_timeout: Duration,
    body_bytes: usize,
    in_flight: Semaphore,
    /// One attempt to connect runs at a time.
    connecting: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<BrokerState>,
    /// Number of connections so far.
    connections: watch::Sender<u64>,
    /// A client that was superseded or whose Upstream was deleted makes no new connection.
    retired: CancellationToken,
}

#[derive(Default)]
struct BrokerState {
    link: Option<Arc<Link>>,
    /// The connections of consumers.
    consuming: Vec<Weak<Link>>,
    health: Health,
    schedule: ConnectSchedule,
    last_failure: String,
}

/// The times of connection attempts. Pure: callers pass the time.
#[derive(Debug, Default)]
struct ConnectSchedule {
    failures: u32,
    retry_at: Option<Instant>,
}

impl ConnectSchedule {
    fn record_failure(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + CONNECT_BACKOFF.delay(self.failures));
    }

    /// The wait until the next attempt may begin.
    fn wait(&self, now: Instant) -> Duration {
        self.retry_at
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    fn circuit_state(&self, now: Instant) -> CircuitState {
        match self.retry_at {
            None => CircuitState::Closed,
            Some(at) if now < at => CircuitState::Open,
            Some(_) => CircuitState::HalfOpen,
        }
    }
}

/// An open connection with its idle channels.
pub struct Link {
    connection: Connection,
    /// Channels with confirms, each used by one publish at a time: an error of AMQP closes the whole channel, and would
    /// fail the messages of other plugins on it.
    publishers: Mutex<Vec<Channel>>,
    /// Cancelled when the connection is lost or given up.
    lost: CancellationToken,
    /// Why it was lost, redacted.
    loss: OnceLock<String>,
    /// Cancelled when the connection has ended: the broker has returned its messages to their queues, unless it does not
    /// respond.
    ended: CancellationToken,
    /// Cuts the connection when nothing uses it any more, even if the broker does not respond.
    _cut: DropGuard,
}

impl Link {
    /// The AMQP connection.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits until the connection is lost or given up.
    pub async fn wait_lost(&self) {
        self.lost.cancelled().await;
    }

    /// Why the connection, which has ended, was lost.
    pub async fn describe_loss(&self) -> &str {
        // The consumer may notice it first.
        let _ = tokio::time::timeout(LOSS_TIMEOUT, self.lost.cancelled()).await;
        self.loss.get().map_or("the connection was lost", |why| why)
    }

    /// Gives the connection up: by the close of AMQP first, which keeps the broker's log clean. It is cut when the link is
    /// dropped.
    pub fn close(self: Arc<Self>) {
        self.lost.cancel();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    let closing = self.connection.close(CLOSE_SUCCESS, "closed".into());
                    let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
                    self.ended.cancel();
                });
            }
            Err(_) => self.ended.cancel(),
        }
    }

    /// Awaits an operation of lapin until the connection is lost, which is the error `ConnectionAborted`. lapin never resolves
    /// an acknowledgement that it took after its last command.
    pub async fn await_until_lost<T>(
        &self,
        operation: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<T, lapin::Error> {
        await_until_cancelled(&self.lost, operation).await
    }

    /// Waits until the connection, which is lost or given up, has ended.
    pub async fn wait_end(&self) {
        self.ended.cancelled().await;
    }

    /// Keeps a channel, on which nothing is outstanding, for the next publish.
    pub fn return_publisher(&self, channel: Channel) {
        self.publishers.lock().push(channel);
    }

    /// The connection works, as far as is known.
    pub fn is_open(&self) -> bool {
        self.connection.status().connected() && !self.lost.is_cancelled()
    }

    /// An idle channel with confirms, or a new one.
    pub async fn take_publisher(&self) -> Result<Channel, lapin::Error> {
        let idle = self.publishers.lock().pop();
        if let Some(channel) = idle.filter(|channel| channel.status().connected()) {
            return Ok(channel);
        }
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }
}

impl BrokerClient {
    /// Builds a client from the spec and the secrets of the context. It connects when it is first used.
    pub fn new(upstream: &UpstreamObject, context: BrokerContext) -> Result<Self, SendError> {
        let spec = &upstream.spec;
        let url = &spec.url;
        let invalid = |why: &str| SendError::Invalid(format!("spec.url {url:?}: {why}"));
        let parsed = reqwest::Url::parse(url).map_err(|e| invalid(&e.to_string()))?;
        let (Some(host), "amqp" | "amqps", "", None) = (
            parsed.host_str(),
            parsed.scheme(),
            parsed.username(),
            parsed.password(),
        ) else {
            return Err(SendError::Invalid(
                "spec.url: an amqp(s) URL without credentials is needed for messages".into(),
            ));
        };
        context
            .network
            .check_url(&parsed)
            .map_err(|e| SendError::NotAllowed(e.to_string()))?;
        let is_encrypted = parsed.scheme() == "amqps";
        let virtual_host = match parsed.path() {
            "" | "/" => "/".into(),
            path => percent_encoding::percent_decode_str(&path[1..])
                .decode_utf8()
                .map_err(|_| invalid("the virtual host is not UTF-8"))?
                .into_owned(),
        };
        if virtual_host.len() > usize::from(u8::MAX) {
            return Err(invalid("the virtual host has more than 255 bytes"));
        }
        let (mut redactor, mut message_redactor) = (Redactor::default(), Redactor::default());
        let (username, password) = match &spec.auth {
            // RabbitMQ has a user `guest` for connections from its own machine.
            Auth::None {} => ("guest".to_owned(), Secret::new(b"guest".to_vec())),
            Auth::Basic(basic) => {
                let key = upstream.secret_key(&basic.password_secret_ref);
                let value = context.secrets.get(&key);
                let value = value.ok_or_else(|| missing_secret(&key))?;
                let text = std::str::from_utf8(value.expose())
                    .map_err(|_| SendError::Invalid(format!("{key} is not UTF-8")))?;
                // Files and `echo` end in a line feed; a credential never does.
                let text = text.trim_end_matches(['\r', '\n']);
                redactor.add_secret(text.as_bytes());
                if text.len() >= MIN_PASSWORD_BYTES {
                    message_redactor.add_secret(text.as_bytes());
                }
                (basic.username.clone(), Secret::new(text.as_bytes().to_vec()))
            }
            _ => {
                return Err(SendError::Invalid(
                    "spec.auth: an amqp or amqps url supports only auth.none and auth.basic".into(),
                ));
            }
        };
        let tls = match is_encrypted {
            true => {
                let mut config = tls::build_config(upstream, &context.secrets)?;
                config.alpn_protocols.clear();
                Some(Arc::new(config).into())
            }
            false => None,
        };
        let limits = spec.limits.clone().unwrap_or_default();
        let seconds = |n: Option<u32>, default: u32| Duration::from_secs(n.unwrap_or(default).max(1).into());
        let timeout = seconds(spec.timeout_seconds, 30);
        Ok(Self {
            endpoint: Endpoint {
                host: host.trim_matches(['[', ']']).to_owned(),
                port: parsed.port().unwrap_or(if is_encrypted { 5671 } else { 5672 }),
                tls,
                virtual_host,
                username,
                password,
            },
            is_anonymous: matches!(spec.auth, Auth::None {}),
            redactor,
            message_redactor,
            context,
            timeout,
            connect_timeout: seconds(spec.connect_timeout_seconds, 10).min(timeout),
            body_bytes: limits.request_body_bytes.unwrap_or(8 << 20).min(MAX_BODY_BYTES) as usize,
            in_flight: Semaphore::new(
                limits
                    .requests_in_flight
                    .unwrap_or(16)
                    .clamp(1, MAX_REQUESTS_IN_FLIGHT) as usize,
            ),
            connecting: Arc::default(),
            state: Mutex::default(),
            connections: watch::Sender::default(),
            retired: CancellationToken::new(),
        })
    }

    /// Checks that a message could be published.
    pub fn check_message(&self, message: &OutgoingMessage) -> Result<PreparedMessage, SendError> {
        let size = message.body.len();
        if size > self.body_bytes {
            return Err(SendError::TooLarge(format!(
                "the message has {size} bytes: spec.limits.requestBodyBytes of the Upstream allows {}",
                self.body_bytes
            )));
        }
        Ok(PreparedMessage {
            exchange: short_string("exchange", &message.exchange)?,
            routing_key: short_string("routing-key", &message.routing_key)?,
            properties: encode_properties(&message.properties)?,
        })
    }

    /// Publishes a message and waits until the broker confirms it.
    pub async fn publish(
        self: &Arc<Self>,
        message: &OutgoingMessage,
        timeout: Duration,
    ) -> Result<(), SendError> {
        let prepared = self.check_message(message)?;
        let wait = self
            .context
            .rate_limiter
            .lock()
            .reserve_slot(Instant::now(), MAX_TURN_WAIT);
        if wait > MAX_TURN_WAIT {
            return Err(SendError::Throttled(
                u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            ));
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let timeout = timeout.min(self.timeout);
        let publishing = async {
            let _permit = self.in_flight.acquire().await;
            let link = self.link().await?;
            self.publish_on(&link, message, prepared).await
        };
        let late = || {
            Err(SendError::Unavailable(format!(
                "the broker has not confirmed the message within {timeout:?}; it may have been published"
            )))
        };
        tokio::time::timeout(timeout, publishing)
            .await
            .unwrap_or_else(|_| late())
    }

    async fn publish_on(
        &self,
        link: &Link,
        message: &OutgoingMessage,
        prepared: PreparedMessage,
    ) -> Result<(), SendError> {
        if link.connection.status().blocked() {
            return Err(SendError::Unavailable(
                "the broker accepts no messages at the moment (resource alarm)".into(),
            ));
        }
        let channel = link.take_publisher().await.map_err(|e| self.classify_error(&e))?;
        self.context.fence.check_open()?;
        let options = BasicPublishOptions {
            mandatory: message.mandatory,
            ..BasicPublishOptions::default()
        };
        let PreparedMessage {
            exchange,
            routing_key,
            properties,
        } = prepared;
        let published = async {
            let confirm = channel
                .basic_publish(exchange, routing_key, options, &message.body, properties)
                .await?;
            confirm.await
        };
        let confirmation = published.await.map_err(|e| self.classify_error(&e))?;
        // A channel whose publish is cancelled before is dropped, which closes it.
        link.return_publisher(channel);
        match confirmation {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) => {
                Err(SendError::NotFound(format!(
                    "no queue is bound to exchange `{}` for routing key `{}`: {} ({})",
                    message.exchange, message.routing_key, returned.reply_text, returned.reply_code
                )))
            }
            Confirmation::Nack(None) => Err(SendError::Unavailable(
                "the broker has not taken the message (basic.nack)".into(),
            )),
            Confirmation::NotRequested => Err(SendError::Unavailable(
                "the broker does not confirm messages".into(),
            )),
        }
    }

    /// Runs an operation of AMQP within the timeout of the Upstream.
    pub async fn limit_time<T>(
        &self,
        operation: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<T, SendError> {
        match tokio::time::timeout(self.timeout, operation).await {
            Ok(result) => result.map_err(|e| self.classify_error(&e)),
            Err(_) => Err(SendError::Unavailable(format!(
                "the broker has not answered within {:?}",
                self.timeout
            ))),
        }
    }

    /// Fails if this host is not the leader.
    pub fn check_fence(&self) -> Result<(), NotLeader> {
        self.context.fence.check_open()
    }

    /// The user as which the host logs in.
    pub fn username(&self) -> &str {
        &self.endpoint.username
    }

    /// Redacts the messages of this broker: its password is taken out of them, as out of responses.
    pub fn message_redactor(&self) -> &Redactor {
        &self.message_redactor
    }

    /// The error of an operation on a channel.
    pub fn classify_error(&self, error: &lapin::Error) -> SendError {
        let text = self.redactor.redact_text(&describe_error(error));
        match error.kind() {
            ErrorKind::ProtocolError(e) => match e.get_id() {
                NOT_FOUND => SendError::NotFound(text),
                ACCESS_REFUSED => SendError::Refused(text),
                CONTENT_TOO_LARGE | PRECONDITION_FAILED => SendError::Invalid(text),
                _ => SendError::Unavailable(text),
            },
            _ => SendError::Unavailable(text),
        }
    }

    /// The open connection, after an attempt to connect if there is none and it is time for one.
    pub async fn link(self: &Arc<Self>) -> Result<Arc<Link>, SendError> {
        if let Some(link) = self.open_link() {
            return Ok(link);
        }
        let attempt = match self.connecting.clone().try_lock_owned() {
            Ok(attempt) => attempt,
            // A broker that is down may take the whole timeout: callers that waited would hold their memory meanwhile.
            Err(_) if self.state.lock().schedule.failures > 0 => {
                return Err(SendError::Throttled(TRIAL_RETRY_MILLISECONDS));
            }
            Err(_) => self.connecting.clone().lock_owned().await,
        };
        if let Some(link) = self.open_link() {
            return Ok(link);
        }
        if self.retired.is_cancelled() {
            return Err(superseded());
        }
        {
            let state = self.state.lock();
            if !state.schedule.wait(Instant::now()).is_zero() {
                return Err(SendError::Unavailable(format!(
                    "not connected: {}",
                    state.last_failure
                )));
            }
        }
        let client = self.clone();
        // A task of its own: a caller that is cancelled must not cancel the attempt for the others.
        let connecting = tokio::spawn(async move {
            let linked = client.connect().await;
            drop(attempt);
            linked
        });
        let ended = |_| {
            Err(SendError::Unavailable(
                "the connection attempt was broken off".into(),
            ))
        };
        connecting.await.unwrap_or_else(ended)
    }

    /// The connections that are established from now on.
    pub fn watch_connections(&self) -> watch::Receiver<u64> {
        self.connections.subscribe()
    }

    fn open_link(&self) -> Option<Arc<Link>> {
        self.state.lock().link.clone().filter(|link| link.is_open())
    }

    /// Opens a connection for one consumer. Its messages are charged to `memory` before they are received.
    pub async fn open_consumer_link(
        self: &Arc<Self>,
        memory: Arc<MessageShare>,
    ) -> Result<(Arc<Link>, AnnouncedMessages), SendError> {
        // One attempt for all: it has the backoff of the broker.
        self.link().await?;
        let opened = self.open_connection(Some(memory)).await?;
        let announced = opened.announced.clone();
        let link = self.accept_connection(opened, |state, link| {
            state.consuming.retain(|link| link.strong_count() > 0);
            state.consuming.push(Arc::downgrade(link));
        })?;
        Ok((link, announced))
    }

    /// Opens a connection. The error is redacted.
    async fn open_connection(
        &self,
        memory: Option<Arc<MessageShare>>,
    ) -> Result<OpenConnection, ConnectError> {
        let timeouts = (self.connect_timeout, self.timeout);
        let BrokerContext { network, fence, .. } = &self.context;
        let opened = self.endpoint.connect(network, fence, timeouts, memory).await;
        opened.map_err(|mut error| {
            match &mut error {
                ConnectError::Transport(TransportError { text, .. }) | ConnectError::Refused(text) => {
                    *text = self.redactor.redact_text(text);
                }
                ConnectError::NotLeader(_) => {}
            }
            error
        })
    }

    async fn connect(self: &Arc<Self>) -> Result<Arc<Link>, SendError> {
        let opened = match self.open_connection(None).await {
            Ok(opened) => opened,
            Err(ConnectError::Transport(error)) => {
                self.record_failure(&error.text, |health| {
                    health.record_unreachable(error.kind, &error.text)
                });
                return Err(error.into_send_error(""));
            }
            Err(ConnectError::Refused(why)) => {
                let error = SendError::LoginFailed(why);
                self.record_failure(&error.to_string(), |health| {
                    health.record_login(Err(&error), Instant::now())
                });
                return Err(error);
            }
            Err(error @ ConnectError::NotLeader(_)) => return Err(error.into()),
        };
        let mut changed = false;
        let link = self.accept_connection(opened, |state, link| {
            state.schedule = ConnectSchedule::default();
            state.last_failure.clear();
            state.link = Some(link.clone());
            changed = state.health.record_login(Ok(()), Instant::now());
        })?;
        self.connections.send_modify(|count| *count += 1);
        if changed {
            (self.context.on_status_change)();
        }
        Ok(link)
    }

    /// Keeps a connection, unless the client was superseded while it was opened.
    fn accept_connection(
        self: &Arc<Self>,
        opened: OpenConnection,
        keep: impl FnOnce(&mut BrokerState, &Arc<Link>),
    ) -> Result<Arc<Link>, SendError> {
        let OpenConnection { connection, cut, .. } = opened;
        let events = connection.events_listener();
        let link = Arc::new(Link {
            connection,
            publishers: Mutex::default(),
            lost: CancellationToken::new(),
            loss: OnceLock::new(),
            ended: CancellationToken::new(),
            _cut: cut.drop_guard(),
        });
        let mut state = self.state.lock();
        // It is cancelled before the lock is taken for the last time.
        if self.retired.is_cancelled() {
            drop(state);
            link.close();
            return Err(superseded());
        }
        keep(&mut state, &link);
        drop(state);
        tokio::spawn(watch_connection(
            Arc::downgrade(self),
            Arc::downgrade(&link),
            events,
        ));
        Ok(link)
    }

    fn record_failure(&self, why: &str, change: impl FnOnce(&mut Health) -> bool) {
        let mut state = self.state.lock();
        state.schedule.record_failure(Instant::now());
        state.last_failure = why.to_owned();
        let changed = change(&mut state.health);
        drop(state);
        if changed {
            (self.context.on_status_change)();
        }
    }

    /// Records that a connection was lost. The next use connects again, at once for the first time.
    fn record_lost(&self, link: &Arc<Link>, error: &lapin::Error) {
        let why = self.redactor.redact_text(&describe_error(error));
        let _ = link.loss.set(why.clone());
        link.lost.cancel();
        link.ended.cancel();
        let mut state = self.state.lock();
        if !state
            .link
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, link))
        {
            return;
        }
        state.link = None;
        state.last_failure.clone_from(&why);
        let changed = state.health.record_unreachable(
            TransportErrorKind::Broken,
            &format!("the connection was lost: {why}"),
        );
        drop(state);
        info!(
            host = self.endpoint.host,
            error = why,
            "connection to broker lost"
        );
        if changed {
            (self.context.on_status_change)();
        }
    }

    /// Gives the connections up, and makes no other one: the client is superseded.
    pub fn retire(&self) {
        self.retired.cancel();
        self.close();
    }

    /// Closes all connections.
    pub fn close(&self) {
        let mut state = self.state.lock();
        let consuming = std::mem::take(&mut state.consuming);
        let links = state.link.take().into_iter();
        drop(state);
        let links = links.chain(consuming.iter().filter_map(Weak::upgrade));
        links.for_each(Link::close);
    }

    /// Connects unless there is a connection, and records the result in the health.
    pub async fn check_health(self: &Arc<Self>) {
        // The health has the error.
        let _ = self.link().await;
    }

    /// Takes the broker for healthy without a connection, in a plan.
    pub fn assume_health(&self) {
        self.state.lock().health.record_login(Ok(()), Instant::now());
    }

    /// There is no connection.
    pub fn needs_health_check(&self) -> bool {
        self.open_link().is_none()
    }

    /// The delay before the next health check: `idle` while there is a connection, else until the next attempt.
    pub fn next_health_check(&self, soonest: Duration, idle: Duration) -> Duration {
        match self.open_link() {
            Some(_) => idle,
            None => self.state.lock().schedule.wait(Instant::now()).max(soonest),
        }
    }

    /// The health as reported in the Upstream's status.
    pub fn health_report(&self) -> HealthReport {
        self.state.lock().health.to_report(None, self.is_anonymous)
    }

    /// The state of the circuit: open while there is no attempt to connect.
    pub fn circuit_state(&self) -> CircuitState {
        self.state.lock().schedule.circuit_state(Instant::now())
    }
}

impl Drop for BrokerClient {
    fn drop(&mut self) {
        self.retire();
    }
}

/// The error of a client that a newer version of its Upstream has superseded.
fn superseded() -> SendError {
    SendError::Unavailable("the Upstream has changed: try again".into())
}

/// Awaits an operation until the token is cancelled, which is the error `ConnectionAborted`.
async fn await_until_cancelled<T>(
    token: &CancellationToken,
    operation: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, lapin::Error> {
    tokio::select! {
        // Biased: an operation that has succeeded did so, also if the connection was lost since.
        biased;
        result = operation => result,
        () = token.cancelled() => Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()),
    }
}

/// A message that has passed all checks.
pub struct PreparedMessage {
    exchange: ShortString,
    routing_key: ShortString,
    properties: lapin::BasicProperties,
}

/// Waits for the end of a connection and records it.
async fn watch_connection(
    client: Weak<BrokerClient>,
    link: Weak<Link>,
    events: impl futures::Stream<Item = lapin::Event>,
) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let (Some(client), Some(link)) = (client.upgrade(), link.upgrade()) else {
            return;
        };
        if let lapin::Event::Error(error) = event
            && !link.connection.status().connected()
        {
            return client.record_lost(&link, &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn operation_that_never_resolves_ends_with_the_connection() {
        let lost = CancellationToken::new();
        let done = await_until_cancelled(&lost, std::future::ready(Ok(true))).await;
        assert!(done.expect("it succeeded"));
        lost.cancel();
        let stuck = std::future::pending::<Result<bool, lapin::Error>>();
        let error = await_until_cancelled(&lost, stuck)
            .await
            .expect_err("the connection is lost");
        assert_eq!(describe_error(&error), "connection aborted");
        let done = await_until_cancelled(&lost, std::future::ready(Ok(true))).await;
        assert!(done.expect("it had succeeded before the loss was noticed"));
    }

    #[test]
    fn circuit_opens_with_each_failure_for_longer() {
        let (mut schedule, now) = (ConnectSchedule::default(), Instant::now());
        assert_eq!(schedule.circuit_state(now), CircuitState::Closed);
        let mut last = Duration::ZERO;
        for _ in 0..5 {
            schedule.record_failure(now);
            let wait = schedule.wait(now);
            assert!(wait > last, "{wait:?}");
            assert_eq!(schedule.circuit_state(now), CircuitState::Open);
            assert_eq!(schedule.circuit_state(now + wait), CircuitState::HalfOpen);
            last = wait;
        }
        for _ in 0..100 {
            schedule.record_failure(now);
        }
        assert!(schedule.wait(now) <= Duration::from_secs(30));
    }
}
