//! Connections of commands to a running host: by the URL of its admin server, or to the leader of a cluster.
//!
//! The leader's Lease tells its pod, port and certificate. The connection is a port-forward through the API server, encrypted to that
//! certificate, and the requests have the credentials of the kubeconfig: the host shows what their user may see.

use std::{
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::Args;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection, HttpConnector},
    },
    rt::{TokioExecutor, TokioIo},
};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    client::{ClientBuilder, ConfigExt},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    net::TcpStream,
};
use tower::{BoxError, Service, ServiceBuilder};

use super::{
    addresses::DEFAULT_ADMIN_ADDRESS, is_kubectl_plugin, kubeconfig::KubeContext, session::DevSession,
};
use crate::{
    client::server_verifier::UnsignedVerifier,
    kube::well_known::{bookkeeping::SECURE_ENDPOINT, environment},
    leader::endpoint::SecureEndpoint,
    policy::rbac::{HOST_NAMESPACE, LEASE_NAME},
};

/// Time in which something on the loopback interface accepts a connection.
const PROBE_TIMEOUT: Duration = Duration::from_millis(300);

/// The cluster and the host in it.
#[derive(Args, Clone)]
pub struct ClusterConnection {
    #[command(flatten)]
    pub context: KubeContext,
    /// Namespace of the host. Defaults to `ostler-system`.
    #[arg(long, value_name = "NAMESPACE")]
    pub host_namespace: Option<String>,
    /// Name of the host's Lease, where several hosts are in the namespace.
    #[arg(long, value_name = "NAME", default_value = LEASE_NAME)]
    pub lease_name: String,
}

impl ClusterConnection {
    fn is_named(&self) -> bool {
        self.context.is_named() || self.host_namespace.is_some()
    }
}

/// Address of the host.
#[derive(Args)]
pub struct HostAddress {
    /// URL of the host's admin server. One with `https://` is its secure address, where the credentials of the kubeconfig are used.
    /// Defaults to the leader of the cluster for `kubectl ostler` and with one of the options below, and otherwise to the running
    /// `ostler plugin dev` of the project in the working directory, or to 127.0.0.1:8081 if a process listens there.
    #[arg(long, env = environment::OSTLER_ADMIN, value_name = "URL")]
    admin: Option<String>,
    #[command(flatten)]
    pub cluster: ClusterConnection,
}

/// A client of a host's admin server.
pub struct HostClient {
    /// Sends requests with the user's credentials.
    pub client: kube::Client,
    /// The address, for messages.
    pub place: String,
    /// The namespace of the kubeconfig's context, for a host in a cluster.
    pub default_namespace: Option<String>,
}

impl HostAddress {
    /// The host that a command without options asks.
    pub fn from_environment() -> Self {
        Self {
            admin: std::env::var(environment::OSTLER_ADMIN).ok(),
            cluster: ClusterConnection {
                context: KubeContext::default(),
                host_namespace: None,
                lease_name: LEASE_NAME.to_owned(),
            },
        }
    }

    /// Connects to the host.
    ///
    /// # Errors
    /// The address is no URL, or the leader can't be found.
    pub async fn connect(&self) -> anyhow::Result<HostClient> {
        // An empty variable counts as none.
        let admin = self.admin.clone().filter(|url| !url.is_empty());
        match admin.or_else(|| self.find_session()) {
            Some(url) if url.starts_with("https://") => {
                let config = self.cluster.context.load().await?;
                let api_server = kube::Client::try_from(config.clone())?;
                let endpoint = find_leader(&api_server, &config, &self.cluster).await?;
                let mut http = HttpConnector::new();
                http.enforce_http(false);
                build_client(config, &url, &endpoint, http)
            }
            Some(url) => connect_plainly(&url),
            None if self.is_local().await => connect_plainly(&DEFAULT_ADMIN_ADDRESS.to_string()),
            None => {
                let config =
                    self.cluster
                        .context
                        .load()
                        .await
                        .map_err(|e| match self.cluster.is_named() {
                            true => e,
                            false => e.context(format!("no process listens at {DEFAULT_ADMIN_ADDRESS}")),
                        })?;
                let api_server = kube::Client::try_from(config.clone())?;
                let endpoint = find_leader(&api_server, &config, &self.cluster).await?;
                let pods = Api::namespaced(api_server, &endpoint.namespace);
                let connector = PodConnector {
                    pods,
                    pod: endpoint.pod.clone(),
                    port: endpoint.port,
                };
                // The name is that of the TLS handshake only.
                build_client(config, "https://ostler", &endpoint, connector)
            }
        }
    }

    /// True if the user asks for the host of a cluster.
    fn is_in_cluster(&self) -> bool {
        is_kubectl_plugin() || self.cluster.is_named()
    }

    /// The admin server of the running session of the project in the working directory.
    fn find_session(&self) -> Option<String> {
        if self.is_in_cluster() {
            return None;
        }
        DevSession::find().map(|session| session.admin)
    }

    async fn is_local(&self) -> bool {
        if self.is_in_cluster() {
            return false;
        }
        let connected = tokio::time::timeout(PROBE_TIMEOUT, TcpStream::connect(DEFAULT_ADMIN_ADDRESS)).await;
        matches!(connected, Ok(Ok(_)))
    }
}

fn connect_plainly(url: &str) -> anyhow::Result<HostClient> {
    let url = url.trim_end_matches('/');
    let url = if url.contains("://") {
        url.to_owned()
    } else {
        format!("http://{url}")
    };
    let parsed = url.parse().ok().filter(|url: &http::Uri| url.host().is_some());
    let parsed = parsed.with_context(|| format!("--admin {url:?} is no URL"))?;
    Ok(HostClient {
        client: kube::Client::try_from(kube::Config::new(parsed))?,
        place: url,
        default_namespace: None,
    })
}

/// Reads the endpoint of the leader from its Lease.
async fn find_leader(
    api_server: &kube::Client,
    config: &kube::Config,
    cluster: &ClusterConnection,
) -> anyhow::Result<SecureEndpoint> {
    let namespace = cluster.host_namespace.as_deref().unwrap_or(HOST_NAMESPACE);
    let name = &cluster.lease_name;
    let leases: Api<Lease> = Api::namespaced(api_server.clone(), namespace);
    let lease = match leases.get(name).await {
        Ok(lease) => lease,
        Err(kube::Error::Api(status)) if status.code == 404 => bail!(
            "there is no Lease {namespace}/{name} at {}: no host was installed there, or it is named by --host-namespace and \
             --lease-name",
            config.cluster_url
        ),
        Err(kube::Error::Api(status)) if status.code == 403 => bail!(
            "{}. Whoever asks a host needs the Role ostler:user in its namespace",
            status.message
        ),
        Err(e) => bail!(
            "the API server {} can't be reached: {}",
            config.cluster_url,
            root_cause(&e)
        ),
    };
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
    let holder = holder.filter(|holder| !holder.is_empty());
    let Some(holder) = holder else {
        bail!("no host leads: the Lease {namespace}/{name} has no holder");
    };
    let Some(text) = lease.annotations().get(SECURE_ENDPOINT) else {
        bail!(
            "the leader {holder} has no secure address: start it with --secure-bind-address, or name its --admin URL"
        );
    };
    serde_json::from_str(text)
        .with_context(|| format!("the annotation {SECURE_ENDPOINT} of the Lease {namespace}/{name}"))
}

/// The innermost error, which says what happened.
pub fn root_cause<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause
}

/// A client that sends the credentials of this configuration to the host with this certificate, and to nobody else.
fn build_client<C>(
    mut config: kube::Config,
    url: &str,
    endpoint: &SecureEndpoint,
    connector: C,
) -> anyhow::Result<HostClient>
where
    C: Service<http::Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + hyper::rt::Read + hyper::rt::Write + Send + Unpin,
    C::Future: Send,
    C::Error: Into<BoxError>,
{
    config.cluster_url = url
        .parse()
        .with_context(|| format!("--admin {url:?} is no URL"))?;
    let mut tls = config.rustls_client_config()?;
    let verifier = UnsignedVerifier::accept_digest(endpoint.certificate.clone());
    tls.dangerous().set_certificate_verifier(Arc::new(verifier));
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_only()
        .enable_http1()
        .wrap_connector(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Client::builder(TokioExecutor::new()).build(https));
    let namespace = config.default_namespace;
    Ok(HostClient {
        client: ClientBuilder::new(service, namespace.clone()).build(),
        default_namespace: Some(namespace),
        place: format!("{} port {}", endpoint.pod, endpoint.port),
    })
}

/// Connects to a port of a pod through the API server.
#[derive(Clone)]
struct PodConnector {
    pods: Api<Pod>,
    pod: String,
    port: u16,
}

impl Service<http::Uri> for PodConnector {
    type Response = TokioIo<PodStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let Self { pods, pod, port } = self.clone();
        Box::pin(async move {
            let forwarded = pods.portforward(&pod, &[port]).await;
            let mut forwarded =
                forwarded.map_err(|e| format!("port-forward to the pod {pod}: {}", root_cause(&e)))?;
            let stream = forwarded.take_stream(port).ok_or("the port was not forwarded")?;
            Ok(TokioIo::new(PodStream(stream)))
        })
    }
}

/// A connection to a port of a pod.
struct PodStream(DuplexStream);

impl Connection for PodStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for PodStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for PodStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
