//! Values of Secrets in API requests and responses. Every exchange of a plan with the API server is searched for them,
//! regardless of its origin, so that the output can be redacted.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;

use crate::client::api::ApiTarget;

/// Extracts the values of Secrets from the body of a request or response; empty if the path is not one of Secrets.
pub fn extract_values(path: &str, body: &[u8]) -> Vec<Vec<u8>> {
    let target = ApiTarget::parse(path);
    if !target.is_some_and(|t| t.is_secret()) {
        return Vec::new();
    }
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let listed = body["items"].as_array().into_iter().flatten();
    [&body]
        .into_iter()
        .chain(listed)
        .flat_map(decode_values)
        .collect()
}

/// The values of one Secret, decoded.
fn decode_values(secret: &Value) -> impl Iterator<Item = Vec<u8>> {
    let texts = |field: &str| {
        let fields = secret[field].as_object().into_iter().flatten();
        fields.filter_map(|(_, value)| value.as_str())
    };
    // Invalid base64 is kept as it is: the API server rejects it with an error that quotes it.
    let data = texts("data").map(|text| BASE64_STANDARD.decode(text).unwrap_or_else(|_| text.into()));
    data.chain(texts("stringData").map(Into::into))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::{
        client::{
            api::{ApiClient, PatchType},
            fence::WriteFence,
        },
        plan::Overlay,
        policy::grants::ServiceAccount,
    };

    #[test]
    fn values_are_extracted_from_objects_lists_and_patches_of_secrets_only() {
        let one =
            json!({"kind": "Secret", "data": {"a": "b25l", "b": "no base64"}, "stringData": {"c": "three"}});
        let list =
            json!({"kind": "SecretList", "items": [one, {"data": {"d": "Zm91cg=="}}, {"metadata": {}}]});
        let patch = json!({"data": {"a": "b25l", "gone": null}});
        for (path, body, expected) in [
            (
                "/api/v1/namespaces/n/secrets/s",
                &one,
                &["one", "no base64", "three"][..],
            ),
            (
                "/api/v1/secrets?limit=5",
                &list,
                &["one", "no base64", "three", "four"],
            ),
            (
                "/api/v1/namespaces/n/secrets/s?fieldManager=x&dryRun=All",
                &patch,
                &["one"],
            ),
            ("/api/v1/namespaces/n/configmaps/s", &one, &[]),
            ("/apis/g.io/v1/namespaces/n/secrets/s", &one, &[]),
        ] {
            let found = extract_values(path, body.to_string().as_bytes());
            let found: Vec<_> = found.iter().map(|v| String::from_utf8_lossy(v)).collect();
            assert_eq!(found, expected, "{path}");
        }
        assert!(extract_values("/api/v1/secrets", b"no JSON").is_empty());
    }

    /// Serves Secrets whose only value is their name.
    async fn answer_request(request: http::Request<Body>) -> Result<http::Response<Body>, std::io::Error> {
        let path = request.uri().path();
        let name = path.rsplit('/').next().unwrap_or_default();
        let secret = |name: &str| {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name,
            "namespace": "n", "resourceVersion": "1", "uid": name}, "data": {"v": BASE64_STANDARD.encode(name)}})
        };
        let body = match (request.method().as_str(), name) {
            ("GET", "secrets") => json!({"metadata": {}, "items": [secret("listed")]}),
            ("GET", _) => secret(name),
            _ => secret("answered-to-a-dry-run"),
        };
        Ok(http::Response::new(Body::from(body.to_string().into_bytes())))
    }

    /// Secrets that are read uncached, without a watch, pass the overlay as well as listed and written ones.
    #[tokio::test]
    async fn overlay_collects_secrets_of_every_request_and_response() {
        let overlay = Arc::new(Overlay::default());
        let cluster = ApiClient::new(kube::Client::new(tower::service_fn(answer_request), "default"));
        let cluster = cluster
            .with_fence(WriteFence::closed())
            .with_interceptor(overlay.clone());
        let account = ServiceAccount {
            namespace: "n".into(),
            name: "reader".into(),
        };
        let account = cluster.acting_as(Some(&account));
        let path = "/api/v1/namespaces/n/secrets";
        account
            .get(&format!("{path}/read-live"))
            .await
            .expect("an answer");
        account
            .list_page(&format!("{path}?"), 10, "", None, |_| {})
            .await
            .expect("a page");
        let patch = json!({"stringData": {"v": "written"}}).to_string().into_bytes();
        cluster
            .patch(&format!("{path}/patched"), PatchType::Merge, patch)
            .await
            .expect("a dry run");
        let found = overlay.secrets();
        let found: Vec<_> = found.iter().map(|v| String::from_utf8_lossy(v)).collect();
        assert_eq!(
            found,
            [
                "answered-to-a-dry-run",
                "listed",
                "patched",
                "read-live",
                "written"
            ]
        );
    }
}
