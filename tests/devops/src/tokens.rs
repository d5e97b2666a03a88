//! A token server of registries (Docker's token authentication), whose tokens are not signed: for a registry that accepts
//! any, such as docker-registry with `auth.silly`. It may be a proxy of the registry, so that both have one origin.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    Exchange,
    http_text::parse_response,
    parse_basic,
    server::{ServerBehavior, TestServer, lock},
};

/// User of the token server.
pub const TOKEN_USER: &str = "puller";
/// Password of that user.
pub const TOKEN_PASSWORD: &str = "token-pass-0011-secret";

/// A running token server, stopped when dropped.
pub struct TokenServer {
    server: TestServer,
    settings: Arc<Settings>,
}

struct Settings {
    password: Mutex<String>,
    /// Host and port of the registry, if this is a proxy of it.
    registry: Mutex<Option<String>>,
}

impl TokenServer {
    /// Starts a server.
    pub async fn start() -> Self {
        let settings = Arc::new(Settings {
            password: Mutex::new(TOKEN_PASSWORD.into()),
            registry: Mutex::new(None),
        });
        Self {
            server: TestServer::start(settings.clone()).await,
            settings,
        }
    }

    /// Returns its URL, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Returns the URL of the token endpoint, which is the realm of a registry.
    pub fn realm(&self) -> String {
        format!("{}/token", self.server.url)
    }

    /// Forwards all other requests to the registry at this host and port from now on.
    pub fn forward_to(&self, registry: &str) {
        *lock(&self.settings.registry) = Some(registry.into());
    }

    /// Returns the requests for tokens.
    pub fn requests(&self) -> Vec<Exchange> {
        let requests = self.server.requests().into_iter();
        requests
            .filter(|request| request.target.starts_with("/token"))
            .collect()
    }

    /// Changes the password of [`TOKEN_USER`].
    pub fn set_password(&self, password: &str) {
        *lock(&self.settings.password) = password.into();
    }
}

impl ServerBehavior for Settings {
    async fn answer(&self, request: Request<Bytes>) -> Response<Bytes> {
        if request.uri().path() != "/token" {
            let registry = lock(&self.registry).clone();
            let forwarded = forward(&request, registry.as_deref().unwrap_or_default()).await;
            return forwarded.unwrap_or_else(|_| with_status(StatusCode::BAD_GATEWAY, ""));
        }
        let login = parse_basic(request.headers());
        let expected = (TOKEN_USER.to_owned(), lock(&self.password).clone());
        if login != Some(expected) {
            let body = json!({"details": "incorrect username or password"});
            return with_status(StatusCode::UNAUTHORIZED, &body.to_string());
        }
        let body = json!({"token": "an-opaque-registry-token", "expires_in": 300});
        with_status(StatusCode::OK, &body.to_string())
    }
}

/// Forwards a request without a body, as HTTP/1.0, so that the response ends with the connection.
async fn forward(request: &Request<Bytes>, registry: &str) -> std::io::Result<Response<Bytes>> {
    let mut stream = TcpStream::connect(registry).await?;
    let mut head = format!("{} {} HTTP/1.0\r\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        head.push_str(&format!(
            "{name}: {}\r\n",
            String::from_utf8_lossy(value.as_bytes())
        ));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).await?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await?;
    Ok(parse_response(&response))
}

fn with_status(status: StatusCode, body: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_owned()));
    *response.status_mut() = status;
    response
}
