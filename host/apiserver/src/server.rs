//! The listener and the handle of a running server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::faults::{FaultInjector, VerbCounters};
use crate::response::Body;
use crate::state::RequestHandler;
use crate::state::ServerState;
use crate::storage::Storage;
use crate::tls::ServerTls;
use crate::{garbage, handler, token};

/// Options of a server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Address of the listener; with port 0 the system chooses a port.
    pub listen: SocketAddr,
    /// Interval of bookmarks in watches that request them.
    pub bookmark_interval: Duration,
    /// Number of changes kept per resource, for watches and lists at an earlier revision.
    pub history: usize,
    /// HTTPS instead of plain HTTP, with a certificate that the kubeconfig carries.
    pub tls: bool,
    /// Stand-ins for the controllers of Deployments, StatefulSets, DaemonSets, ReplicaSets, Jobs, PersistentVolumeClaims and
    /// Services, which report at once what a cluster with free nodes reports in the end. Without them these stay without status.
    pub controllers: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            bookmark_interval: Duration::from_secs(10),
            history: 10_000,
            tls: false,
            controllers: false,
        }
    }
}

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct EmbeddedServer {
    state: Arc<ServerState>,
    listener: tokio::task::JoinHandle<()>,
    collector: tokio::task::JoinHandle<()>,
    stop: DropGuard,
}

impl EmbeddedServer {
    /// Starts listening.
    ///
    /// # Errors
    /// The address cannot be listened on, or there is no certificate.
    pub async fn start(options: ServerOptions) -> anyhow::Result<Self> {
        Self::start_with(options, None).await
    }

    /// Starts a server that has the objects and kinds of another one, as from its backup. Each goes on by itself.
    ///
    /// # Errors
    /// As [`EmbeddedServer::start`].
    pub async fn start_from(options: ServerOptions, origin: &Self) -> anyhow::Result<Self> {
        Self::start_with(options, Some(&origin.state.api)).await
    }

    async fn start_with(options: ServerOptions, origin: Option<&RequestHandler>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(options.listen)
            .await
            .with_context(|| format!("listening on {}", options.listen))?;
        let (storage, written) = Storage::new(options.history);
        let api = RequestHandler::new(storage);
        if let Some(origin) = origin {
            api.storage.restore(&origin.storage);
            api.registry.restore(&origin.registry);
        }
        let tls = options
            .tls
            .then(|| ServerTls::new(options.listen.ip()))
            .transpose()?;
        let state = Arc::new(ServerState {
            api,
            faults: FaultInjector::default(),
            counters: VerbCounters::default(),
            bookmark_interval: options.bookmark_interval.max(Duration::from_millis(1)),
            controllers: options.controllers,
            address: listener.local_addr().context("reading the address listened on")?,
            tls,
        });
        let stop = CancellationToken::new();
        let collector = tokio::spawn({
            let (state, stop) = (state.clone(), stop.clone());
            async move {
                tokio::select! {
                    () = garbage::run_collector(state, written) => {}
                    () = stop.cancelled() => {}
                }
            }
        });
        let listener = tokio::spawn(accept_connections(state.clone(), listener, stop.clone()));
        Ok(Self {
            state,
            listener,
            collector,
            stop: stop.drop_guard(),
        })
    }

    /// `http://127.0.0.1:PORT`, or `https:` with TLS.
    pub fn url(&self) -> String {
        let s = if self.state.tls.is_some() { "s" } else { "" };
        format!("http{s}://{}", self.state.address)
    }

    /// A kubeconfig for kubectl, kube and client-go.
    pub fn kubeconfig(&self) -> String {
        let trusted = self.state.tls.as_ref().map(|tls| {
            let encoded = base64::engine::general_purpose::STANDARD.encode(&tls.certificate);
            format!("    certificate-authority-data: {encoded}\n")
        });
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: ostler\nclusters:\n- name: ostler\n  cluster:\n    server: {}\n{}users:\n- name: ostler\n  user:\n    token: {}\ncontexts:\n- name: ostler\n  context:\n    cluster: ostler\n    user: ostler\n    namespace: default\n",
            self.url(),
            trusted.unwrap_or_default(),
            token::ADMIN_TOKEN
        )
    }

    /// Fault injection.
    pub fn faults(&self) -> &FaultInjector {
        &self.state.faults
    }

    /// Counters of requests.
    pub fn counters(&self) -> &VerbCounters {
        &self.state.counters
    }

    /// Drops the history, so that older watches and page tokens are answered with 410 Gone.
    pub fn compact(&self) {
        self.state.api.storage.compact();
    }

    /// Stops the server and waits for its tasks.
    pub async fn shutdown(self) {
        drop(self.stop);
        // The panic of a task has been reported by the runtime.
        let _ = self.listener.await;
        let _ = self.collector.await;
    }
}

async fn accept_connections(state: Arc<ServerState>, listener: TcpListener, stop: CancellationToken) {
    let connections = tokio_util::task::TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) if *state.faults.refusing.borrow() => drop(stream),
            Ok((stream, _)) => drop(connections.spawn(serve_connection(state.clone(), stream, stop.clone()))),
            Err(error) => {
                // Most likely the process is out of file descriptors: other connections must end first.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    connections.close();
    connections.wait().await;
}

async fn serve_connection(state: Arc<ServerState>, stream: TcpStream, stop: CancellationToken) {
    let mut restarts = state.faults.restarts.subscribe();
    // A small response must not wait for the next one (Nagle).
    let _ = stream.set_nodelay(true);
    let serving_state = state.clone();
    let service = service_fn(move |request: Request<Incoming>| serve_request(serving_state.clone(), request));
    let builder = Builder::new(TokioExecutor::new());
    let tls = state.tls.as_ref().map(|tls| tls.acceptor.clone());
    let serving = async {
        match tls {
            None => builder.serve_connection(TokioIo::new(stream), service).await,
            Some(tls) => {
                let stream = TokioIo::new(tls.accept(stream).await?);
                builder.serve_connection(stream, service).await
            }
        }
    };
    tokio::select! {
        served = serving => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection broke off");
            }
        }
        _ = restarts.changed() => {}
        () = stop.cancelled() => {}
    }
}

/// Serves a request; an error closes the connection without a response.
async fn serve_request(
    state: Arc<ServerState>,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    handler::handle_request(state, parts, body).await
}
