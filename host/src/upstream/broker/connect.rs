//! Connections to a broker: TCP through the network policy, our TLS, the AMQP handshake, and the fence of the stream.
//!
//! lapin opens no socket itself: it gets a stream from here. So brokers pass the same network policy and the same TLS
//! settings as HTTP upstreams, and no byte leaves after the leader term in which a connection was opened.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use async_rs::{
    Runtime, Tokio,
    traits::{Executor, Reactor, RuntimeKit},
    util::Task,
};
use lapin::{
    Connection, ConnectionProperties, ErrorKind,
    tcp::AsyncTcpStream,
    uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo},
};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_util::{
    compat::{Compat, TokioAsyncReadCompatExt},
    sync::{CancellationToken, WaitForCancellationFutureOwned},
};

use super::metered::{AnnouncedMessages, MeteredStream};
use crate::{
    client::fence::{NotLeader, WriteFence},
    contract::message_memory::MessageShare,
    policy::network::NetworkPolicy,
    upstream::{
        Secret, SendError,
        transport_error::{TransportError, TransportErrorKind},
    },
};

/// Seconds between heartbeats; a peer that is silent for twice as long is gone.
const HEARTBEAT_SECONDS: u16 = 15;

/// Code of AMQP for a login or an operation that the broker refuses.
const ACCESS_REFUSED: u16 = 403;
/// Code of RabbitMQ for a virtual host that does not exist or that the user may not use.
const NOT_ALLOWED: u16 = 530;

/// The address of a broker and the credentials for it. Not `Debug`: it holds a password.
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    pub tls: Option<TlsConnector>,
    pub virtual_host: String,
    pub username: String,
    pub password: Secret,
}

/// The reason for a failed connection.
pub enum BrokerConnectError {
    /// The broker cannot be reached, or the TLS handshake failed.
    Transport(TransportError),
    /// The broker refuses the credentials or the virtual host.
    Refused(String),
    /// This host is not the leader.
    NotLeader(NotLeader),
}

impl From<BrokerConnectError> for SendError {
    fn from(error: BrokerConnectError) -> Self {
        match error {
            BrokerConnectError::Transport(error) => error.into_send_error(""),
            BrokerConnectError::Refused(why) => Self::LoginFailed(why),
            BrokerConnectError::NotLeader(error) => Self::NotLeader(error),
        }
    }
}

/// An AMQP connection, and the switch that cuts it.
pub struct OpenConnection {
    pub connection: Connection,
    /// Cancelling it breaks the connection at once, also one that does not respond.
    pub cut: CancellationToken,
    /// The memory of its messages, if they are charged.
    pub announced: AnnouncedMessages,
}

impl Endpoint {
    /// Opens a connection that works until the end of the current leader term. The messages that it receives are charged to
    /// `memory`, if there is one.
    pub async fn connect(
        &self,
        network: &NetworkPolicy,
        fence: &WriteFence,
        (connect_timeout, timeout): (Duration, Duration),
        memory: Option<Arc<MessageShare>>,
    ) -> Result<OpenConnection, BrokerConnectError> {
        let term = fence.term().ok_or(BrokerConnectError::NotLeader(NotLeader))?;
        let started = Instant::now();
        let stream = self
            .open_stream(network, connect_timeout)
            .await
            .map_err(BrokerConnectError::Transport)?;
        let (stream, announced): (Box<dyn Duplex>, _) = match memory {
            Some(memory) => {
                let metered = MeteredStream::new(stream, memory);
                let announced = metered.announced();
                (Box::new(metered), announced)
            }
            None => (stream, AnnouncedMessages::default()),
        };
        let cut = CancellationToken::new();
        let fenced = FencedStream {
            stream,
            fence: fence.clone(),
            term,
            cut: Box::pin(cut.clone().cancelled_owned()),
        };
        let boxed: BoxedStream = Box::pin(fenced);
        // lapin may ask again after a connection that broke early. There is one stream for one attempt.
        let slot = Mutex::new(Some(boxed.compat()));
        let take = async move |_: AMQPUri, _: Runtime<BrokerRuntime>| {
            let stream = slot.lock().take();
            let gone = || lapin::Error::from(io::Error::from(io::ErrorKind::ConnectionAborted));
            stream.map(AsyncTcpStream::Plain).ok_or_else(gone)
        };
        let runtime = Runtime::new(BrokerRuntime(Tokio::current()));
        let properties = ConnectionProperties::default()
            .with_connection_name(concat!("ostler/", env!("CARGO_PKG_VERSION")).into());
        let handshake = Connection::connector(self.uri(), runtime, take, properties);
        let left = timeout.saturating_sub(started.elapsed());
        match tokio::time::timeout(left, handshake).await {
            Ok(Ok(connection)) => Ok(OpenConnection {
                connection,
                cut,
                announced,
            }),
            Ok(Err(error)) => {
                cut.cancel();
                Err(self.classify_handshake_error(&error))
            }
            Err(_) => {
                // The thread of the connection would wait for the silent peer.
                cut.cancel();
                Err(BrokerConnectError::Transport(TransportError {
                    kind: TransportErrorKind::Broken,
                    text: format!("no AMQP handshake within {timeout:?}"),
                }))
            }
        }
    }

    async fn open_stream(
        &self,
        network: &NetworkPolicy,
        timeout: Duration,
    ) -> Result<Box<dyn Duplex>, TransportError> {
        let connected = network.open_connection(&self.host, self.port, timeout).await;
        let stream = connected.map_err(|e| TransportError::from_connect(&*e))?;
        // Confirms and acknowledgements are small frames that others wait for.
        stream
            .set_nodelay(true)
            .map_err(|e| TransportError::from_connect(&e))?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let tls_error = |text: String| TransportError {
            kind: TransportErrorKind::Tls,
            text,
        };
        let name = ServerName::try_from(self.host.clone()).map_err(|e| tls_error(format!("TLS: {e}")))?;
        match tokio::time::timeout(timeout, tls.connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(e)) => Err(TransportError::from_connect(&e)),
            Err(_) => Err(tls_error("TLS: no answer in time".into())),
        }
    }

    fn uri(&self) -> AMQPUri {
        AMQPUri {
            // The stream is encrypted already.
            scheme: AMQPScheme::AMQP,
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: self.username.clone(),
                    password: String::from_utf8_lossy(self.password.expose()).into_owned(),
                },
                host: self.host.clone(),
                port: self.port,
            },
            vhost: self.virtual_host.clone(),
            query: AMQPQueryString {
                heartbeat: Some(HEARTBEAT_SECONDS),
                ..AMQPQueryString::default()
            },
        }
    }

    fn classify_handshake_error(&self, error: &lapin::Error) -> BrokerConnectError {
        match error.kind() {
            ErrorKind::ProtocolError(e) if matches!(e.get_id(), ACCESS_REFUSED | NOT_ALLOWED) => {
                BrokerConnectError::Refused(e.get_message().to_string())
            }
            _ => BrokerConnectError::Transport(TransportError {
                kind: TransportErrorKind::Connect,
                text: format!("the AMQP handshake failed: {}", describe_error(error)),
            }),
        }
    }
}

/// The text of a lapin error: the broker's own words, or the innermost cause.
pub fn describe_error(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(e) => format!("{} ({})", e.get_message(), e.get_id()),
        ErrorKind::IOError(e) => e.to_string(),
        ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_) => {
            "the connection is closed".into()
        }
        _ => error.to_string(),
    }
}

/// A stream in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

type BoxedStream = Pin<Box<FencedStream>>;

/// A stream that sends only during one leader term, and that can be cut.
pub struct FencedStream {
    stream: Box<dyn Duplex>,
    fence: WriteFence,
    term: u64,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl FencedStream {
    fn check_cut(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for FencedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_cut(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for FencedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        // Frames may have waited in lapin's buffer. This is the last moment at which they can be held back.
        if self.fence.term() != Some(self.term) {
            return Poll::Ready(Err(io::Error::other(NotLeader)));
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The host's runtime for lapin: tokio, with streams that are opened here.
#[derive(Clone, Debug)]
struct BrokerRuntime(Tokio);

impl RuntimeKit for BrokerRuntime {}

impl Executor for BrokerRuntime {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, f: F) -> T {
        self.0.block_on(f)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(&self, f: F) -> Task<Self::Task<T>> {
        self.0.spawn(f)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        f: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(f)
    }
}

impl Reactor for BrokerRuntime {
    type TcpStream = Compat<BoxedStream>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: io::Read + io::Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl futures::AsyncRead + futures::AsyncWrite + Send + Unpin + 'static> {
        Err::<Self::TcpStream, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl futures::Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    fn tcp_connect_addr(
        &self,
        _: std::net::SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// A stream of term 1, and the peer's end.
    fn open_stream(fence: &WriteFence) -> (FencedStream, tokio::io::DuplexStream) {
        let (near, far) = duplex(64);
        let stream = FencedStream {
            stream: Box::new(near),
            fence: fence.clone(),
            term: 1,
            cut: Box::pin(CancellationToken::new().cancelled_owned()),
        };
        (stream, far)
    }

    #[tokio::test]
    async fn stream_sends_nothing_behind_the_fence_or_in_a_later_term() {
        let fence = WriteFence::closed();
        let later = Instant::now() + Duration::from_secs(3600);
        fence.open_until(1, later);
        let (mut stream, mut peer) = open_stream(&fence);
        stream.write_all(b"while it leads").await.expect("sent");
        fence.close();
        stream
            .write_all(b"after it has lost the lead")
            .await
            .expect_err("refused");
        fence.open_until(2, later);
        stream.write_all(b"in a later term").await.expect_err("refused");
        drop(stream);
        let mut sent = String::new();
        peer.read_to_string(&mut sent).await.expect("read");
        assert_eq!(sent, "while it leads");
    }
}
