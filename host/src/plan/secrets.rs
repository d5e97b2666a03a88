//! What Secrets hold. Whatever passes between a plan and the API server is looked at, whoever asked for it and however, so
//! that none of it is shown.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;

use crate::client::api::Target;

/// The values in what the API server answers about a path, or is sent: nothing where that is not about Secrets.
pub fn values(path: &str, body: &[u8]) -> Vec<Vec<u8>> {
    let target = Target::parse(path);
    let body: Value = match target.is_some_and(|t| t.is_secret()) {
        true => serde_json::from_slice(body).unwrap_or_default(),
        false => return Vec::new(),
    };
    let listed = body["items"].as_array().into_iter().flatten();
    [&body].into_iter().chain(listed).flat_map(held).collect()
}

/// What one Secret holds.
fn held(secret: &Value) -> impl Iterator<Item = Vec<u8>> {
    let texts = |field: &str| {
        let fields = secret[field].as_object().into_iter().flatten();
        fields.filter_map(|(_, value)| value.as_str())
    };
    // What is no base64 is refused, and shown in that refusal.
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
    fn values_are_found_in_objects_lists_and_patches_of_secrets_alone() {
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
            let found = values(path, body.to_string().as_bytes());
            let found: Vec<_> = found.iter().map(|v| String::from_utf8_lossy(v)).collect();
            assert_eq!(found, expected, "{path}");
        }
        assert!(values("/api/v1/secrets", b"no JSON").is_empty());
    }

    /// A server whose Secrets hold what they are called.
    async fn answer(request: http::Request<Body>) -> Result<http::Response<Body>, std::io::Error> {
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

    /// A live read of somebody who may not list is in no watch; it passes here all the same.
    #[tokio::test]
    async fn whatever_passes_is_remembered() {
        let overlay = Arc::new(Overlay::default());
        let cluster = ApiClient::new(kube::Client::new(tower::service_fn(answer), "default"));
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
