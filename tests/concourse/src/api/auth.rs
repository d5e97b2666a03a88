//! Tokens.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::json_as;
use crate::App;
use crate::state::Model;

/// Where tokens are got.
pub(crate) const TOKEN_PATH: &str = "/sky/issuer/token";
/// The client that fly is: its name and its well-known secret.
const CLIENT: (&str, &str) = ("fly", "Zmx5");

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route(TOKEN_PATH, post(token))
}

/// The user of an `Authorization` header.
pub(super) fn bearer(model: &Model, header: &HeaderValue) -> Option<String> {
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    model.bearer(token).map(str::to_owned)
}

/// A user's id in ID tokens: their name and connector, as dex packs them.
pub(super) fn subject(user: &str) -> String {
    let mut packed = Vec::new();
    for (tag, text) in [(0x0a, user), (0x12, "local")] {
        packed.push(tag);
        let mut length = text.len();
        while length > 0x7f {
            packed.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        packed.push(length as u8);
        packed.extend_from_slice(text.as_bytes());
    }
    URL_SAFE_NO_PAD.encode(packed)
}

fn refused(status: StatusCode, error: &str, description: &str) -> Response {
    let mut body = json!({"error": error});
    if !description.is_empty() {
        body["error_description"] = description.into();
    }
    json_as(status, &body)
}

/// The client's id and secret, from the header or the form; header values are form-encoded (RFC 6749, 2.3.1).
fn client(headers: &HeaderMap, form: &impl Fn(&str) -> String) -> Option<(String, String)> {
    let Some(header) = headers.get(header::AUTHORIZATION) else {
        return Some((form("client_id"), form("client_secret")));
    };
    let (scheme, packed) = header.to_str().ok()?.split_once(' ')?;
    let text = String::from_utf8(
        STANDARD
            .decode(packed)
            .ok()
            .filter(|_| scheme.eq_ignore_ascii_case("basic"))?,
    )
    .ok()?;
    let (id, secret) = text.split_once(':')?;
    let decode = |text: &str| {
        percent_encoding::percent_decode_str(text)
            .decode_utf8_lossy()
            .into_owned()
    };
    Some((decode(id), decode(secret)))
}

async fn token(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> Response {
    let fields: Vec<(String, String)> = form_urlencoded::parse(&body).into_owned().collect();
    let form = |key: &str| {
        fields
            .iter()
            .find(|f| f.0 == key)
            .map(|f| f.1.clone())
            .unwrap_or_default()
    };
    let known = client(&headers, &form).is_some_and(|(id, secret)| (id.as_str(), secret.as_str()) == CLIENT);
    if !known {
        return refused(
            StatusCode::UNAUTHORIZED,
            "invalid_client",
            "Invalid client credentials.",
        );
    }
    if form("grant_type") != "password" {
        return refused(StatusCode::BAD_REQUEST, "unsupported_grant_type", "");
    }
    let user = form("username");
    let mut model = app.model();
    if !model.knows(&user, &form("password")) {
        return refused(
            StatusCode::UNAUTHORIZED,
            "access_denied",
            "Invalid username or password",
        );
    }
    let (token, expiry) = opaque(model.now, app.token_lifetime);
    model.issue(token.clone(), &user, app.token_lifetime);
    let claims = json!({"iss": format!("{}/sky/issuer", app.url), "sub": subject(&user), "aud": CLIENT.0,
        "exp": expiry, "iat": model.seconds(), "email": user, "name": user,
        "federated_claims": {"connector_id": "local", "user_id": user}});
    json_as(
        StatusCode::OK,
        &json!({
            "access_token": token,
            "token_type": "bearer",
            // What is left when the answer is written: a little less than the lifetime.
            "expires_in": app.token_lifetime.saturating_sub(Duration::from_millis(1)).as_secs(),
            "id_token": unsigned(&claims),
        }),
    )
}

/// 20 random bytes and the time of expiry.
fn opaque(now: Duration, lifetime: Duration) -> (String, u64) {
    let expiry = now.saturating_add(lifetime).as_secs();
    let mut bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(20).collect();
    bytes.extend_from_slice(&expiry.to_le_bytes());
    (STANDARD_NO_PAD.encode(bytes), expiry)
}

/// The shape of an ID token; nobody signed it.
fn unsigned(claims: &Value) -> String {
    let signature: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(256).collect();
    let header = json!({"alg": "RS256", "kid": "simulator"}).to_string();
    [header.as_bytes(), claims.to_string().as_bytes(), &signature]
        .map(|part| URL_SAFE_NO_PAD.encode(part))
        .join(".")
}
