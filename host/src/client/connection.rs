//! Connections to the API server: many watches share one by HTTP/2, and dead ones are noticed.
//!
//! kube's own stack speaks HTTP/1.1 only, with one TCP connection per watch and no keepalive: a connection that a load
//! balancer has forgotten looks like one without events.

use std::{
    net::SocketAddr,
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
    client::legacy::{
        Client, Error,
        connect::{HttpConnector, dns::Name},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::client::{Body, ClientBuilder, ConfigExt};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tower::{BoxError, Service, ServiceBuilder};

use crate::policy::network::NetworkPolicy;

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

type HttpClient = Client<HttpsConnector<Connector>, Body>;
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
    build_kube_client(config, None)
}

/// Creates a client that connects to addresses which the network policy allows, and through no proxy: its configuration
/// comes from an object, whose author need not be the administrator.
///
/// # Errors
/// The certificates or credentials of the configuration cannot be read.
pub fn connect_within(config: kube::Config, network: NetworkPolicy) -> anyhow::Result<kube::Client> {
    build_kube_client(config, Some(network))
}

fn build_kube_client(config: kube::Config, network: Option<NetworkPolicy>) -> anyhow::Result<kube::Client> {
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Connections::new(&config, network)?);
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
    fn new(config: &kube::Config, network: Option<NetworkPolicy>) -> anyhow::Result<Self> {
        Ok(Self {
            requests: build_client(build_connector(config, network.clone(), Protocols::Http1)?),
            watches: Arc::new(WatchConnections {
                connector: build_connector(config, network, Protocols::Http2)?,
                shared: Mutex::default(),
            }),
        })
    }
}

/// Clients of which each keeps one HTTP/2 connection, or one HTTP/1.1 connection per watch if the server speaks no
/// HTTP/2.
struct WatchConnections {
    connector: HttpsConnector<Connector>,
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

/// Opens TCP connections. With a network policy, to addresses that it allows at that moment.
#[derive(Clone)]
struct Connector {
    http: HttpConnector<Resolver>,
    network: Option<NetworkPolicy>,
}

impl Service<http::Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: http::Uri) -> Self::Future {
        // An address in the URL is not resolved.
        let checked = self.network.as_ref().map_or(Ok(()), |network| {
            network.check_host(uri.host().unwrap_or_default())
        });
        if let Err(e) = checked {
            return Box::pin(std::future::ready(Err(e.into())));
        }
        let connecting = self.http.call(uri);
        Box::pin(async move { Ok(connecting.await?) })
    }
}

/// Resolves the names of API servers.
#[derive(Clone)]
struct Resolver(Option<NetworkPolicy>);

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let network = self.0.clone();
        Box::pin(async move {
            // The connector sets the port.
            let found: Vec<SocketAddr> = match network {
                Some(network) => {
                    let addresses = network.resolve_host(name.as_str()).await?;
                    addresses.into_iter().map(|address| (address, 0).into()).collect()
                }
                None => tokio::net::lookup_host((name.as_str(), 0)).await?.collect(),
            };
            Ok(found.into_iter())
        })
    }
}

fn build_connector(
    config: &kube::Config,
    network: Option<NetworkPolicy>,
    protocols: Protocols,
) -> anyhow::Result<HttpsConnector<Connector>> {
    let mut http = HttpConnector::new_with_resolver(Resolver(network.clone()));
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
    let http = Connector { http, network };
    Ok(match protocols {
        Protocols::Http1 => https.wrap_connector(http),
        Protocols::Http2 => https.enable_http2().wrap_connector(http),
    })
}

fn build_client(connector: HttpsConnector<Connector>) -> HttpClient {
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
