//! Connections to the API server: many watches share one by HTTP/2, and dead ones are noticed.
//!
//! kube's own stack speaks HTTP/1.1 only, with one TCP connection per watch and no keepalive: a connection that a load
//! balancer has forgotten looks like one without events.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, Error, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ClientBuilder, ConfigExt};
use parking_lot::Mutex;
use tower::{BoxError, Service, ServiceBuilder};

/// Time after which an idle connection is probed: by TCP, and by a ping where it is HTTP/2. The figures are those of
/// client-go.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Time within which a probe, or sent data, must be acknowledged.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(15);
/// Number of TCP probes without an answer after which a connection is dead.
const KEEPALIVE_RETRIES: u32 = 3;
/// Maximum number of watches that share a connection. Servers accept 100 streams (Go's default and that of proxies) or
/// more, and a client must not wait for a stream that no watch ever ends.
const MAX_SHARED_WATCHES: usize = 64;

type HttpClient = Client<HttpsConnector<HttpConnector>, Body>;
type ResponseBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// Marks a request whose response does not end, in the extensions of the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongRunning;

/// Creates a client whose watches share connections where the API server speaks HTTP/2. Behind a proxy it is kube's own
/// client, which knows how to tunnel.
///
/// # Errors
/// The certificates or credentials of the configuration cannot be read.
pub fn connect(config: kube::Config) -> anyhow::Result<kube::Client> {
    if config.proxy_url.is_some() {
        return Ok(kube::Client::try_from(config)?);
    }
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Connections::new(&config)?);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// The connections to one API server.
#[derive(Clone)]
struct Connections {
    /// Ordinary requests have connections of their own: they must not wait for a stream, nor behind a large list.
    requests: HttpClient,
    watches: Arc<WatchConnections>,
}

impl Connections {
    fn new(config: &kube::Config) -> anyhow::Result<Self> {
        Ok(Self {
            requests: build_client(build_connector(config, Protocols::Http1)?),
            watches: Arc::new(WatchConnections {
                connector: build_connector(config, Protocols::Http2)?,
                shared: Mutex::default(),
            }),
        })
    }
}

/// Clients of which each keeps one HTTP/2 connection, or one HTTP/1.1 connection per watch if the server speaks no
/// HTTP/2.
struct WatchConnections {
    connector: HttpsConnector<HttpConnector>,
    shared: Mutex<Vec<(HttpClient, Weak<()>)>>,
}

impl WatchConnections {
    /// A client with room for a watch, which occupies the room until the guard is dropped.
    fn reserve(&self) -> (HttpClient, Arc<()>) {
        let mut shared = self.shared.lock();
        shared.retain(|(_, watches)| watches.strong_count() > 0);
        let free = shared
            .iter()
            .find(|(_, watches)| watches.strong_count() < MAX_SHARED_WATCHES);
        if let Some((client, watches)) = free
            && let Some(guard) = watches.upgrade()
        {
            return (client.clone(), guard);
        }
        let (client, guard) = (build_client(self.connector.clone()), Arc::new(()));
        shared.push((client.clone(), Arc::downgrade(&guard)));
        (client, guard)
    }
}

/// The protocols that a connection offers to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocols {
    Http1,
    /// HTTP/2, or HTTP/1.1 if the server does not speak it.
    Http2,
}

fn build_connector(
    config: &kube::Config,
    protocols: Protocols,
) -> anyhow::Result<HttpsConnector<HttpConnector>> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(config.connect_timeout);
    http.set_keepalive(Some(KEEPALIVE_INTERVAL));
    http.set_keepalive_interval(Some(KEEPALIVE_TIMEOUT));
    http.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    http.set_tcp_user_timeout(Some(KEEPALIVE_TIMEOUT * KEEPALIVE_RETRIES));
    let mut https = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        https = https.with_server_name_resolver(FixedServerNameResolver::new(name.clone().try_into()?));
    }
    let https = https.enable_http1();
    Ok(match protocols {
        Protocols::Http1 => https.wrap_connector(http),
        Protocols::Http2 => https.enable_http2().wrap_connector(http),
    })
}

fn build_client(connector: HttpsConnector<HttpConnector>) -> HttpClient {
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .http2_keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .build(connector)
}

impl Service<Request<Body>> for Connections {
    type Response = Response<ResponseBody>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.extensions().get::<LongRunning>().is_none() {
            let response = self.requests.request(request);
            return Box::pin(async move { Ok(response.await?.map(BodyExt::boxed_unsync)) });
        }
        let (client, guard) = self.watches.reserve();
        let response = client.request(request);
        Box::pin(async move {
            // The guard goes with the body.
            let hold = move |frame| {
                let _ = &guard;
                frame
            };
            Ok(response.await?.map(|body| body.map_frame(hold).boxed_unsync()))
        })
    }
}
