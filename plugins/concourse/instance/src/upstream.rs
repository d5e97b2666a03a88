//! The `Upstream` of an Instance.

use concourse_api::{
    Instance, InstanceAuth, InstanceTls, NamespacedName, PasswordAuth, SecretKey, upstream_ref,
};
use ostler_sdk::{prelude::*, serde_json::Value};

/// Concourse's endpoint for tokens.
const TOKEN_PATH: &str = "/sky/issuer/token";
/// OAuth2 client of Concourse's command line, whose secret is public.
const FLY_CLIENT_ID: &str = "fly";
const FLY_CLIENT_SECRET: &str = "Zmx5";
const LOGIN_SCOPES: [&str; 5] = ["openid", "profile", "email", "federated:id", "groups"];
const REQUEST_TIMEOUT_SECONDS: u32 = 30;

/// Validates the credentials and builds the Upstream.
pub fn build(instance: &Instance) -> Result<Value, Failure> {
    let spec = &instance.spec;
    let mut upstream = json!({
        "url": spec.url.trim_end_matches('/'),
        "auth": build_auth(&spec.auth)?,
        "allowedNamespaces": spec.allowed_namespaces,
        "timeoutSeconds": REQUEST_TIMEOUT_SECONDS,
    });
    if let Some(tls) = &spec.tls {
        upstream["tls"] = build_tls(tls);
    }
    let reference = upstream_ref(NamespacedName::of(instance));
    Ok(json!({
        "apiVersion": reference.gvk.api_version(),
        "kind": reference.gvk.kind,
        "metadata": { "name": reference.name, "namespace": reference.namespace },
        "spec": upstream,
    }))
}

fn build_auth(auth: &InstanceAuth) -> Result<Value, Failure> {
    match (&auth.password, &auth.token) {
        (Some(password), None) => Ok(json!({ "oauth2Password": build_password_grant(password) })),
        (None, Some(token)) => {
            let token = build_secret_ref(&token.token_ref);
            Ok(json!({ "bearer": { "tokenSecretRef": token } }))
        }
        _ => {
            let message = "Exactly one of spec.auth.password and spec.auth.token must be set.";
            let condition = Condition::new_false("Authenticated", "InvalidSpec", message);
            Err(Failure::terminal("InvalidSpec", message).with(condition))
        }
    }
}

fn build_password_grant(password: &PasswordAuth) -> Value {
    let mut grant = json!({
        "tokenPath": TOKEN_PATH,
        "clientId": password.client_id.as_deref().unwrap_or(FLY_CLIENT_ID),
        "username": password.username,
        "passwordSecretRef": build_secret_ref(&password.password_ref),
        "scopes": LOGIN_SCOPES,
    });
    match &password.client_secret_ref {
        Some(key) => grant["clientSecretRef"] = build_secret_ref(key),
        None => grant["clientSecret"] = FLY_CLIENT_SECRET.into(),
    }
    grant
}

fn build_tls(tls: &InstanceTls) -> Value {
    let mut settings = json!({});
    if let Some(key) = &tls.ca_ref {
        settings["caSecretRef"] = build_secret_ref(key);
    }
    if tls.insecure_skip_verify {
        settings["insecureSkipVerify"] = true.into();
    }
    settings
}

fn build_secret_ref(key: &SecretKey) -> Value {
    json!({ "name": key.name, "key": key.key })
}
