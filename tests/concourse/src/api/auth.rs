//! The token endpoint.

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

use super::json_response;
use crate::App;
use crate::state::{ConcourseModel, SimulatedUser};

/// Path of the token endpoint.
pub(crate) const TOKEN_PATH: &str = "/sky/issuer/token";
/// OAuth client of fly: its id and its well-known secret.
const FLY_CLIENT: (&str, &str) = ("fly", "Zmx5");

/// Scopes that dex accepts.
const KNOWN_SCOPES: [&str; 6] = [
    "openid",
    "profile",
    "email",
    "groups",
    "offline_access",
    IDENTITY_SCOPE,
];
/// Scope that adds the connector and the user's id there to the token, by which teams name their members.
const IDENTITY_SCOPE: &str = "federated:id";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route(TOKEN_PATH, post(issue_token))
}

/// Returns the user of an `Authorization` header.
pub(super) fn authenticate(model: &ConcourseModel, header: &HeaderValue) -> Option<SimulatedUser> {
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    model.token_user(token)
}

/// Encodes a user's subject in ID tokens: name and connector as protobuf in base64, as dex does.
pub(super) fn encode_subject(user: &str) -> String {
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

fn oauth_error(status: StatusCode, error: &str, description: &str) -> Response {
    let mut body = json!({"error": error});
    if !description.is_empty() {
        body["error_description"] = description.into();
    }
    json_response(status, &body)
}

/// Returns dex's error text for scopes it refuses.
fn scope_error(scopes: &[&str]) -> Option<String> {
    if !scopes.contains(&"openid") {
        return Some("Missing required scope(s) [\"openid\"].".to_owned());
    }
    let unknown: Vec<_> = scopes.iter().filter(|s| !KNOWN_SCOPES.contains(s)).collect();
    if unknown.is_empty() {
        return None;
    }
    let unknown: Vec<_> = unknown.iter().map(|s| format!("{s:?}")).collect();
    Some(format!("Unrecognized scope(s) [{}]", unknown.join(" ")))
}

/// Reads the client's id and secret from the header or the form. Header values are form-encoded (RFC 6749, 2.3.1).
fn client_credentials(headers: &HeaderMap, form: &impl Fn(&str) -> String) -> Option<(String, String)> {
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

async fn issue_token(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> Response {
    let fields: Vec<(String, String)> = form_urlencoded::parse(&body).into_owned().collect();
    let form = |key: &str| {
        fields
            .iter()
            .find(|f| f.0 == key)
            .map(|f| f.1.clone())
            .unwrap_or_default()
    };
    let known = client_credentials(&headers, &form)
        .is_some_and(|(id, secret)| (id.as_str(), secret.as_str()) == FLY_CLIENT);
    if !known {
        return oauth_error(
            StatusCode::UNAUTHORIZED,
            "invalid_client",
            "Invalid client credentials.",
        );
    }
    if form("grant_type") != "password" {
        return oauth_error(StatusCode::BAD_REQUEST, "unsupported_grant_type", "");
    }
    let scope = form("scope");
    let scopes: Vec<&str> = scope.split_whitespace().collect();
    if let Some(error) = scope_error(&scopes) {
        return oauth_error(StatusCode::BAD_REQUEST, "invalid_request", &error);
    }
    let user = form("username");
    let mut model = app.model();
    if !model.check_password(&user, &form("password")) {
        return oauth_error(
            StatusCode::UNAUTHORIZED,
            "access_denied",
            "Invalid username or password",
        );
    }
    let (token, expiry) = new_access_token(model.now, app.token_lifetime);
    let has_identity = scopes.contains(&IDENTITY_SCOPE);
    let token_user = SimulatedUser {
        name: user.clone(),
        has_identity,
    };
    model.store_token(token.clone(), token_user, app.token_lifetime);
    let mut claims = json!({"iss": format!("{}/sky/issuer", app.url), "sub": encode_subject(&user), "aud": FLY_CLIENT.0,
        "exp": expiry, "iat": model.seconds(), "email": user, "name": user});
    if has_identity {
        claims["federated_claims"] = json!({"connector_id": "local", "user_id": user});
    }
    json_response(
        StatusCode::OK,
        &json!({
            "access_token": token,
            "token_type": "bearer",
            // The remaining time when the response is written: a little less than the lifetime.
            "expires_in": app.token_lifetime.saturating_sub(Duration::from_millis(1)).as_secs(),
            "id_token": encode_unsigned_jwt(&claims),
        }),
    )
}

/// Creates an access token of 20 random bytes and the time of expiry.
fn new_access_token(now: Duration, lifetime: Duration) -> (String, u64) {
    let expiry = now.saturating_add(lifetime).as_secs();
    let mut bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(20).collect();
    bytes.extend_from_slice(&expiry.to_le_bytes());
    (STANDARD_NO_PAD.encode(bytes), expiry)
}

/// Encodes an ID token with a random signature.
fn encode_unsigned_jwt(claims: &Value) -> String {
    let signature: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(256).collect();
    let header = json!({"alg": "RS256", "kid": "simulator"}).to_string();
    [header.as_bytes(), claims.to_string().as_bytes(), &signature]
        .map(|part| URL_SAFE_NO_PAD.encode(part))
        .join(".")
}
