//! Tokens of service accounts. They are not signed: whoever reaches this server is its administrator.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, header};
use serde_json::{Value, json};

use crate::rbac::RequestUser;
use crate::state::RequestHandler;
use crate::storage::{GroupResource, StoredKey};

/// The token in the kubeconfig of this server, of its administrator.
pub const ADMIN_TOKEN: &str = "anybody";
/// Prefix of the token of a service account, before its namespace, name and UID.
const ACCOUNT_TOKEN_PREFIX: &str = "serviceaccount.";
/// Lifetime that a TokenRequest gets if it names none, in seconds. It is reported, and no token expires.
const DEFAULT_LIFETIME: i64 = 3600;

/// Answers a TokenRequest for a service account.
pub fn issue_token(account: &Value, request: &Value) -> Value {
    let text = |field: &str| account["metadata"][field].clone();
    let identity = json!([text("namespace"), text("name"), text("uid")]).to_string();
    let seconds = request["spec"]["expirationSeconds"]
        .as_i64()
        .unwrap_or(DEFAULT_LIFETIME);
    let expires_at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": { "name": text("name"), "namespace": text("namespace") },
        "spec": { "audiences": ["https://kubernetes.default.svc"], "expirationSeconds": seconds },
        "status": {
            "token": format!("{ACCOUNT_TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(identity)),
            "expirationTimestamp": format!("{expires_at:.0}"),
        },
    })
}

/// The user of a token; none if no token of this server has this text, or its service account is gone.
pub fn find_user(api: &RequestHandler, token: &str) -> Option<RequestUser> {
    if token == ADMIN_TOKEN {
        return Some(RequestUser::admin());
    }
    let identity = URL_SAFE_NO_PAD
        .decode(token.strip_prefix(ACCOUNT_TOKEN_PREFIX)?)
        .ok()?;
    let [namespace, name, uid]: [String; 3] = serde_json::from_slice(&identity).ok()?;
    let key = StoredKey::new(&namespace, &name);
    let account = api
        .storage
        .get(&GroupResource::new("", "serviceaccounts"), &key)?;
    (account.value["metadata"]["uid"] == *uid).then(|| RequestUser::service_account(&namespace, &name, &uid))
}

/// The user that a request acts as: the one that it impersonates, or that of its token. None is the administrator.
pub fn find_requester(api: &RequestHandler, headers: &HeaderMap) -> Option<RequestUser> {
    let token = || {
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let token = value
            .strip_prefix("Bearer ")
            .filter(|token| *token != ADMIN_TOKEN)?;
        find_user(api, token)
    };
    RequestUser::from_impersonation(headers).or_else(token)
}
