//! A token server of registries (Docker's token authentication), whose tokens are not signed: for a registry that accepts
//! any, such as docker-registry with `auth.silly`.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use serde_json::json;

use crate::{
    Exchange, parse_basic,
    server::{Handler, Server, lock},
};

/// User of the token server.
pub const TOKEN_USER: &str = "puller";
/// Password of that user.
pub const TOKEN_PASSWORD: &str = "token-pass-0011-secret";

/// A running token server, stopped when dropped.
pub struct TokenServer {
    server: Server,
    password: Arc<Password>,
}

struct Password(Mutex<String>);

impl TokenServer {
    /// Starts a server.
    pub async fn start() -> Self {
        let password = Arc::new(Password(Mutex::new(TOKEN_PASSWORD.into())));
        Self {
            server: Server::start(password.clone()).await,
            password,
        }
    }

    /// Returns the URL of the token endpoint, which is the realm of a registry.
    pub fn url(&self) -> String {
        format!("{}/token", self.server.url)
    }

    /// Returns the requests.
    pub fn requests(&self) -> Vec<Exchange> {
        self.server.requests()
    }

    /// Changes the password of [`TOKEN_USER`].
    pub fn set_password(&self, password: &str) {
        *lock(&self.password.0) = password.into();
    }
}

impl Handler for Password {
    async fn answer(&self, request: Request<Bytes>) -> Response<Bytes> {
        let login = parse_basic(request.headers());
        let expected = (TOKEN_USER.to_owned(), lock(&self.0).clone());
        let (status, body) = match login == Some(expected) {
            true => (
                StatusCode::OK,
                json!({"token": "an-opaque-registry-token", "expires_in": 300}),
            ),
            false => (
                StatusCode::UNAUTHORIZED,
                json!({"details": "incorrect username or password"}),
            ),
        };
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = status;
        response
    }
}
