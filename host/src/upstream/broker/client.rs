//! The client of one broker, for one version of its spec and Secrets: its connections, its health, and publishing.
//!
//! All publish on one connection, which tells whether the broker works. Each consumer has one of its own: a host that has no
//! room for further messages stops reading from it, which must not hold up the confirmations of others.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use futures::FutureExt;
use lapin::{Confirmation, ErrorKind, options::BasicPublishOptions, types::ShortString};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tracing::info;

use super::{
    OutgoingMessage,
    connect::{BrokerConnectError, Endpoint, OpenConnection, describe_error},
    link::Link,
    link_state::{LinkChanges, LinkState, LinkStep, superseded},
    metered::AnnouncedMessages,
    properties::{encode_properties, short_string},
};
use crate::{
    client::fence::{NotLeader, WriteFence},
    contract::message_memory::MessageShare,
    policy::network::NetworkPolicy,
    upstream::{
        CircuitState, Secret, SecretSnapshot, SecretStore, SendError, UpstreamObject,
        health::{HealthReport, UpstreamHealth},
        missing_secret,
        rate_limit::RateLimiter,
        redact::{MIN_PASSWORD_BYTES, Redactor},
        spec::{MAX_BODY_BYTES, MAX_REQUESTS_IN_FLIGHT, UpstreamAuth},
        tls,
        transport_error::{TransportError, TransportErrorKind},
    },
};

/// Longest wait for the rate limit inside a call. A longer one is returned as `throttled`.
const MAX_TURN_WAIT: Duration = Duration::from_secs(1);

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

/// The parts of the URL of a broker.
struct BrokerAddress {
    host: String,
    port: u16,
    is_encrypted: bool,
    virtual_host: String,
}

impl BrokerAddress {
    /// Parses an amqp or amqps URL (<https://www.rabbitmq.com/docs/uri-spec>), and checks that its host may be connected to.
    fn parse(url: &str, network: &NetworkPolicy) -> Result<Self, SendError> {
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
        network
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
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: parsed.port().unwrap_or(if is_encrypted { 5671 } else { 5672 }),
            is_encrypted,
            virtual_host,
        })
    }
}

/// Name and password of the user that the host connects as.
fn read_login(upstream: &UpstreamObject, secrets: &SecretSnapshot) -> Result<(String, Secret), SendError> {
    match &upstream.spec.auth {
        // RabbitMQ has a user `guest` for connections from its own machine.
        UpstreamAuth::None {} => Ok(("guest".to_owned(), Secret::new(b"guest".to_vec()))),
        UpstreamAuth::Basic(basic) => {
            let key = upstream.secret_key(&basic.password_secret_ref);
            let value = secrets.get(&key).ok_or_else(|| missing_secret(&key))?;
            let text = std::str::from_utf8(value.expose())
                .map_err(|_| SendError::Invalid(format!("{key} is not UTF-8")))?;
            // Files and `echo` end in a line feed; a credential never does.
            let text = text.trim_end_matches(['\r', '\n']);
            Ok((basic.username.clone(), Secret::new(text.as_bytes().to_vec())))
        }
        _ => Err(SendError::Invalid(
            "spec.auth: an amqp or amqps url supports only auth.none and auth.basic".into(),
        )),
    }
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
    /// The connection on which all publish.
    link: watch::Sender<LinkState<Arc<Link>>>,
    /// The connections of consumers.
    consuming: Mutex<Vec<Weak<Link>>>,
    health: Mutex<UpstreamHealth>,
}

impl BrokerClient {
    /// Builds a client from the spec and the secrets of the context. It connects when it is first used.
    pub fn new(upstream: &UpstreamObject, context: BrokerContext) -> Result<Self, SendError> {
        let spec = &upstream.spec;
        let address = BrokerAddress::parse(&spec.url, &context.network)?;
        let (username, password) = read_login(upstream, &context.secrets)?;
        let (mut redactor, mut message_redactor) = (Redactor::default(), Redactor::default());
        let is_anonymous = matches!(spec.auth, UpstreamAuth::None {});
        if !is_anonymous {
            redactor.add_secret(password.expose());
            if password.expose().len() >= MIN_PASSWORD_BYTES {
                message_redactor.add_secret(password.expose());
            }
        }
        let tls = match address.is_encrypted {
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
                host: address.host,
                port: address.port,
                tls,
                virtual_host: address.virtual_host,
                username,
                password,
            },
            is_anonymous,
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
            link: watch::Sender::default(),
            consuming: Mutex::default(),
            health: Mutex::default(),
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
        if link.connection().status().blocked() {
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
        loop {
            let mut changes = self.link.subscribe();
            let mut step = LinkStep::Wait;
            self.link.send_if_modified(|state| {
                step = state.begin(Instant::now(), |link| link.is_open());
                matches!(step, LinkStep::Connect)
            });
            match step {
                LinkStep::Use(link) => return Ok(link),
                LinkStep::Fail(error) => return Err(error),
                LinkStep::Wait => {
                    let is_over = |state: &LinkState<_>| !matches!(state, LinkState::Connecting { .. });
                    let _ = changes.wait_for(is_over).await;
                }
                LinkStep::Connect => {
                    let client = self.clone();
                    // A task of its own: a caller that is cancelled must not cancel the attempt for the others.
                    let connecting = tokio::spawn(async move { client.connect().await });
                    let ended = |_| {
                        Err(SendError::Unavailable(
                            "the connection attempt was broken off".into(),
                        ))
                    };
                    return connecting.await.unwrap_or_else(ended);
                }
            }
        }
    }

    /// The connections that are established from now on.
    pub fn watch_connections(&self) -> LinkChanges<Arc<Link>> {
        LinkChanges(self.link.subscribe())
    }

    /// There is an open connection.
    fn is_connected(&self) -> bool {
        matches!(&*self.link.borrow(), LinkState::Open(link) if link.is_open())
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
        let link = self.start_link(opened);
        {
            let mut consuming = self.consuming.lock();
            // It is superseded before the lock is taken for the last time.
            if matches!(*self.link.borrow(), LinkState::Superseded) {
                link.close();
                return Err(superseded());
            }
            consuming.retain(|link| link.strong_count() > 0);
            consuming.push(Arc::downgrade(&link));
        }
        Ok((link, announced))
    }

    /// Opens a connection. The error is redacted.
    async fn open_connection(
        &self,
        memory: Option<Arc<MessageShare>>,
    ) -> Result<OpenConnection, BrokerConnectError> {
        let timeouts = (self.connect_timeout, self.timeout);
        let BrokerContext { network, fence, .. } = &self.context;
        let opened = self.endpoint.connect(network, fence, timeouts, memory).await;
        opened.map_err(|mut error| {
            match &mut error {
                BrokerConnectError::Transport(TransportError { text, .. })
                | BrokerConnectError::Refused(text) => {
                    *text = self.redactor.redact_text(text);
                }
                BrokerConnectError::NotLeader(_) => {}
            }
            error
        })
    }

    /// Makes the attempt that the state has recorded.
    async fn connect(self: &Arc<Self>) -> Result<Arc<Link>, SendError> {
        let opening = std::panic::AssertUnwindSafe(self.open_connection(None)).catch_unwind();
        let opened = opening.await.unwrap_or_else(|_| {
            let text = "panic in the attempt, which is a bug of the host".to_owned();
            let kind = TransportErrorKind::Broken;
            Err(BrokerConnectError::Transport(TransportError { kind, text }))
        });
        let now = Instant::now();
        let (changed, result) = match opened {
            Ok(opened) => {
                let link = self.start_link(opened);
                let is_wanted = self
                    .link
                    .send_if_modified(|state| state.record_open(link.clone()));
                if !is_wanted {
                    link.close();
                    return Err(superseded());
                }
                (self.health.lock().record_login(Ok(()), now), Ok(link))
            }
            Err(error @ BrokerConnectError::NotLeader(_)) => {
                self.link.send_modify(LinkState::record_withdrawal);
                return Err(error.into());
            }
            Err(BrokerConnectError::Transport(error)) => {
                self.link
                    .send_modify(|state| state.record_failure(now, &error.text));
                let changed = self.health.lock().record_unreachable(error.kind, &error.text);
                (changed, Err(error.into_send_error("")))
            }
            Err(BrokerConnectError::Refused(why)) => {
                let error = SendError::LoginFailed(why);
                self.link
                    .send_modify(|state| state.record_failure(now, &error.to_string()));
                (self.health.lock().record_login(Err(&error), now), Err(error))
            }
        };
        if changed {
            (self.context.on_status_change)();
        }
        result
    }

    /// Takes a connection whose loss is recorded.
    fn start_link(self: &Arc<Self>, opened: OpenConnection) -> Arc<Link> {
        let client = Arc::downgrade(self);
        Link::start(opened, move |link, error| {
            if let Some(client) = client.upgrade() {
                client.record_loss(link, error);
            }
        })
    }

    /// Records that a connection was lost. The next use connects again, at once for the first time.
    fn record_loss(&self, link: &Arc<Link>, error: &lapin::Error) {
        let why = self.redactor.redact_text(&describe_error(error));
        link.record_loss(&why);
        let was_current = self.link.send_if_modified(|state| {
            let is_current = matches!(state, LinkState::Open(current) if Arc::ptr_eq(current, link));
            if is_current {
                state.record_loss(Instant::now(), &why);
            }
            is_current
        });
        if !was_current {
            return;
        }
        info!(
            host = self.endpoint.host,
            error = why,
            "connection to broker lost"
        );
        let message = format!("the connection was lost: {why}");
        let changed = self
            .health
            .lock()
            .record_unreachable(TransportErrorKind::Broken, &message);
        if changed {
            (self.context.on_status_change)();
        }
    }

    /// Gives the connections up, and makes no other one: the client is superseded.
    pub fn retire(&self) {
        let before = self.link.send_replace(LinkState::Superseded);
        if let LinkState::Open(link) = before {
            link.close();
        }
        self.close_consumers();
    }

    /// Closes all connections.
    pub fn close(&self) {
        let mut link = None;
        self.link.send_modify(|state| link = state.take_open());
        link.into_iter().for_each(Link::close);
        self.close_consumers();
    }

    fn close_consumers(&self) {
        let consuming = std::mem::take(&mut *self.consuming.lock());
        consuming.iter().filter_map(Weak::upgrade).for_each(Link::close);
    }

    /// Connects unless there is a connection, and records the result in the health.
    pub async fn check_health(self: &Arc<Self>) {
        // The health has the error.
        let _ = self.link().await;
    }

    /// Takes the broker for healthy without a connection, in a plan.
    pub fn assume_health(&self) {
        self.health.lock().record_login(Ok(()), Instant::now());
    }

    /// There is no connection.
    pub fn needs_health_check(&self) -> bool {
        !self.is_connected()
    }

    /// The delay before the next health check: `idle` while there is a connection, else until the next attempt.
    pub fn next_health_check(&self, soonest: Duration, idle: Duration) -> Duration {
        if self.is_connected() {
            return idle;
        }
        self.link.borrow().wait(Instant::now()).max(soonest)
    }

    /// The health as reported in the Upstream's status.
    pub fn health_report(&self) -> HealthReport {
        self.health.lock().to_report(None, self.is_anonymous)
    }

    /// The state of the circuit: open while there is no attempt to connect.
    pub fn circuit_state(&self) -> CircuitState {
        self.link.borrow().circuit_state(Instant::now())
    }
}

impl Drop for BrokerClient {
    fn drop(&mut self) {
        self.retire();
    }
}

/// A message that has passed all checks.
pub struct PreparedMessage {
    exchange: ShortString,
    routing_key: ShortString,
    properties: lapin::BasicProperties,
}
