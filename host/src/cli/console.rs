//! `ostler console`: the host in a browser.
//!
//! A browser sends no token of a kubeconfig, so that this process serves the console on the loopback interface, and passes requests on
//! to the host with the user's credentials. Its address has a random path: neither other users of the machine nor other pages in the
//! browser know it. The Host header is checked, since the name of another page may be resolved to the loopback address.

use std::{net::Ipv4Addr, sync::Arc};

use anyhow::Context;
use axum::{
    Json, Router,
    body::Body as ResponseBody,
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use clap::Args;
use kube::client::Body;
use serde_json::json;
use tokio::{net::TcpListener, sync::RwLock};

use super::connection::{HostAddress, HostClient, root_cause};

/// Arguments of `ostler console`.
#[derive(Args)]
#[command(
    after_help = "The page shows what the user of the kubeconfig may see. It is served until the command is interrupted, to whoever knows \
                  the printed address."
)]
pub struct Console {
    /// Port on the loopback interface. Defaults to one that is free.
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,
    #[command(flatten)]
    server: HostAddress,
}

impl Console {
    /// Serves the console until the process ends.
    pub async fn run(self) -> anyhow::Result<()> {
        let host = self.server.connect().await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await;
        let listener = listener.with_context(|| format!("port {} of the loopback interface", self.port))?;
        let authority = listener.local_addr()?.to_string();
        let secret_path = format!("/{:032x}", rand::random::<u128>());
        println!("http://{authority}{secret_path}/console/");
        eprintln!("The console of {}, until Ctrl-C.", host.place);
        let forwarder = Forwarder {
            server: self.server,
            host: RwLock::new(Arc::new(host)),
            authority,
            secret_path,
        };
        let routes = Router::new().fallback(forward).with_state(Arc::new(forwarder));
        axum::serve(listener, routes).await?;
        Ok(())
    }
}

/// Passes requests on to the host.
struct Forwarder {
    server: HostAddress,
    host: RwLock<Arc<HostClient>>,
    /// Host and port of this process.
    authority: String,
    /// Path before those of the host.
    secret_path: String,
}

impl Forwarder {
    /// Returns the path and query at the host; none if the sender does not know the address of the console.
    fn find_target(&self, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        let host = headers.get(header::HOST)?.to_str().ok()?;
        let rest = uri.path_and_query()?.as_str().strip_prefix(&self.secret_path)?;
        (host == self.authority && rest.starts_with('/')).then(|| rest.to_owned())
    }

    async fn send(&self, host: &HostClient, method: &Method, target: &str) -> Result<Response, String> {
        let request = Request::builder().method(method).uri(target).body(Body::empty());
        let answer = host.client.send(request.map_err(|e| e.to_string())?).await;
        let (head, body) = answer.map_err(|e| root_cause(&e).to_string())?.into_parts();
        let mut response = (head.status, ResponseBody::new(body)).into_response();
        let kept = [
            header::CONTENT_TYPE,
            header::CONTENT_SECURITY_POLICY,
            header::X_CONTENT_TYPE_OPTIONS,
            header::REFERRER_POLICY,
            header::CACHE_CONTROL,
            header::LOCATION,
        ];
        for name in kept {
            if let Some(value) = head.headers.get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        Ok(response)
    }

    /// Looks for the leader, which may be another one now.
    async fn reconnect(&self) -> anyhow::Result<Arc<HostClient>> {
        let host = Arc::new(self.server.connect().await?);
        *self.host.write().await = host.clone();
        Ok(host)
    }
}

async fn forward(State(forwarder): State<Arc<Forwarder>>, request: Request) -> Response {
    let Some(target) = forwarder.find_target(request.uri(), request.headers()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let method = request.method();
    if !matches!(*method, Method::GET | Method::POST) {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let host = forwarder.host.read().await.clone();
    let sent = forwarder.send(&host, method, &target).await;
    let sent = match (sent, method) {
        // Nothing was changed by it.
        (Err(error), &Method::GET) => match forwarder.reconnect().await {
            Ok(host) => forwarder.send(&host, method, &target).await,
            Err(e) => Err(format!("{error}; {e:#}")),
        },
        (sent, _) => sent,
    };
    sent.unwrap_or_else(|message| {
        let message = format!("the host does not answer: {message}");
        (StatusCode::BAD_GATEWAY, Json(json!({ "message": message }))).into_response()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn request_without_the_random_path_or_for_another_host_finds_nothing() {
        let host = HostClient {
            client: kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().expect("a URL")))
                .expect("a client"),
            place: String::new(),
            default_namespace: None,
        };
        let forwarder = Forwarder {
            server: HostAddress::from_environment(),
            host: RwLock::new(Arc::new(host)),
            authority: "127.0.0.1:4000".into(),
            secret_path: "/5ec4e7".into(),
        };
        for (path, host, target) in [
            (
                "/5ec4e7/states?kind=team",
                "127.0.0.1:4000",
                Some("/states?kind=team"),
            ),
            ("/5ec4e7/", "127.0.0.1:4000", Some("/")),
            ("/5ec4e7/states", "example.org:4000", None),
            ("/5ec4e7/states", "127.0.0.1", None),
            ("/5ec4e7states", "127.0.0.1:4000", None),
            ("/states", "127.0.0.1:4000", None),
            ("/", "127.0.0.1:4000", None),
        ] {
            let headers = HeaderMap::from_iter([(header::HOST, host.parse().expect("a value"))]);
            let uri = path.parse().expect("a path");
            assert_eq!(
                forwarder.find_target(&uri, &headers).as_deref(),
                target,
                "{path} {host}"
            );
        }
        let uri = "/5ec4e7/states".parse().expect("a path");
        assert_eq!(forwarder.find_target(&uri, &HeaderMap::new()), None);
    }
}
