//! The server under test, and what every group needs of it.

use std::time::Duration;

use ostler_apiserver::{EmbeddedServer, ServerOptions};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};

/// Timeout of a wait. Generous, because a slow machine is not a failure.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// A server to talk to.
pub struct ConformanceTarget {
    pub url: String,
    token: Option<String>,
    client: Client,
}

/// An answer: status code and body.
#[derive(Debug, Clone)]
pub struct ObservedResponse {
    pub code: u16,
    pub body: Value,
    pub warnings: Vec<String>,
}

impl ObservedResponse {
    /// The body of an answer with the expected code.
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.body);
        self.body
    }
}

fn client() -> reqwest::ClientBuilder {
    // Another test of this process may have installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .user_agent("conformance/1")
        .timeout(Duration::from_secs(60))
}

/// A fresh embedded server.
pub async fn embedded() -> (EmbeddedServer, ConformanceTarget) {
    embedded_with(ServerOptions {
        bookmark_interval: Duration::from_millis(200),
        ..ServerOptions::default()
    })
    .await
}

/// A fresh embedded server with options of its own.
pub async fn embedded_with(options: ServerOptions) -> (EmbeddedServer, ConformanceTarget) {
    let server = EmbeddedServer::start(options).await.expect("the server starts");
    let target = ConformanceTarget::of(&server);
    (server, target)
}

/// The real server that `OSTLER_TEST_KUBECONFIG` names.
pub fn real() -> ConformanceTarget {
    let path = std::env::var("OSTLER_TEST_KUBECONFIG")
        .expect("OSTLER_TEST_KUBECONFIG must name a kubeconfig: cargo xtask test real");
    let text = std::fs::read_to_string(&path).expect("the kubeconfig is readable");
    let config: Value = serde_saphyr::from_str(&text).expect("the kubeconfig is YAML");
    let cluster = &config["clusters"][0]["cluster"];
    let mut builder = client();
    if cluster["insecure-skip-tls-verify"] == true {
        builder = builder.danger_accept_invalid_certs(true);
    }
    let authority = match (
        cluster["certificate-authority-data"].as_str(),
        cluster["certificate-authority"].as_str(),
    ) {
        (Some(data), _) => {
            use base64::Engine as _;
            Some(
                base64::engine::general_purpose::STANDARD
                    .decode(data)
                    .expect("certificate-authority-data is base64"),
            )
        }
        (None, Some(path)) => Some(std::fs::read(path).expect("the certificate authority is readable")),
        (None, None) => None,
    };
    if let Some(pem) = authority {
        for certificate in
            reqwest::Certificate::from_pem_bundle(&pem).expect("the certificate authority is PEM")
        {
            builder = builder.add_root_certificate(certificate);
        }
    }
    ConformanceTarget {
        url: cluster["server"]
            .as_str()
            .expect("the kubeconfig names a server")
            .trim_end_matches('/')
            .to_owned(),
        token: config["users"][0]["user"]["token"].as_str().map(str::to_owned),
        client: builder.build().expect("a client"),
    }
}

impl ConformanceTarget {
    /// An embedded server.
    pub fn of(server: &EmbeddedServer) -> Self {
        Self {
            url: server.url(),
            token: None,
            client: client().build().expect("a client"),
        }
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub async fn send(&self, request: RequestBuilder) -> ObservedResponse {
        self.try_send(request).await.expect("the server answers")
    }

    /// Sends a request that the server may not answer.
    pub async fn try_send(&self, request: RequestBuilder) -> reqwest::Result<ObservedResponse> {
        let response = request.send().await?;
        let code = response.status().as_u16();
        let warnings = response
            .headers()
            .get_all("warning")
            .iter()
            .filter_map(|value| value.to_str().ok().map(str::to_owned))
            .collect();
        let text = response.text().await?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(ObservedResponse { code, body, warnings })
    }

    pub async fn get(&self, path: &str) -> ObservedResponse {
        self.send(self.request(Method::GET, path)).await
    }

    /// The table that kubectl prints.
    pub async fn get_table(&self, path: &str) -> ObservedResponse {
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        self.send(self.request(Method::GET, path).header("accept", accept))
            .await
    }

    pub async fn post(&self, path: &str, body: &Value) -> ObservedResponse {
        self.send(
            self.request(Method::POST, path)
                .header("content-type", "application/json")
                .body(body.to_string()),
        )
        .await
    }

    pub async fn put(&self, path: &str, body: &Value) -> ObservedResponse {
        self.send(
            self.request(Method::PUT, path)
                .header("content-type", "application/json")
                .body(body.to_string()),
        )
        .await
    }

    pub async fn delete(&self, path: &str, options: &Value) -> ObservedResponse {
        self.send(
            self.request(Method::DELETE, path)
                .header("content-type", "application/json")
                .body(options.to_string()),
        )
        .await
    }

    /// A patch: `json`, `merge` or `strategic-merge`.
    pub async fn patch(&self, kind: &str, path: &str, body: &Value) -> ObservedResponse {
        let request = self
            .request(Method::PATCH, path)
            .header("content-type", format!("application/{kind}-patch+json"));
        self.send(request.body(body.to_string())).await
    }

    pub async fn apply(&self, path: &str, query: &str, body: &Value) -> ObservedResponse {
        let request = self
            .request(Method::PATCH, &format!("{path}?{query}"))
            .header("content-type", "application/apply-patch+yaml");
        self.send(request.body(body.to_string())).await
    }

    /// Repeats a request until its response satisfies the condition.
    pub async fn until(&self, path: &str, wish: impl Fn(&ObservedResponse) -> bool) -> ObservedResponse {
        let asking = async {
            loop {
                let answer = self.get(path).await;
                if wish(&answer) {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, asking)
            .await
            .unwrap_or_else(|_| panic!("{path} is not as it should be after {WAIT_TIMEOUT:?}"))
    }
}

/// A namespace and a kind `Thing` that only this test uses.
pub struct Place {
    pub namespace: String,
    pub group: String,
}

/// A unique name.
pub fn unique(prefix: &str) -> String {
    let letters: String = std::iter::repeat_with(fastrand::lowercase).take(10).collect();
    format!("{prefix}{letters}")
}

impl Place {
    /// Makes both, with the usual schema.
    pub async fn new(target: &ConformanceTarget) -> Self {
        Self::with_versions(target, json!([usual_version()])).await
    }

    /// Makes both, with these versions.
    pub async fn with_versions(target: &ConformanceTarget, versions: Value) -> Self {
        let place = Self {
            namespace: unique("test-"),
            group: format!("{}.ostler.dev", unique("t")),
        };
        target
            .post(
                "/api/v1/namespaces",
                &json!({"metadata": {"name": place.namespace}}),
            )
            .await
            .expect(201);
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": place.crd_name()},
            "spec": {
                "group": place.group, "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
                "versions": versions,
            },
        });
        target
            .post(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                &definition,
            )
            .await
            .expect(201);
        let path = format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}",
            place.crd_name()
        );
        target
            .until(&path, |answer| {
                answer.body["status"]["conditions"]
                    .to_string()
                    .contains("\"Established\"")
            })
            .await;
        target.until(&place.things(), |answer| answer.code == 200).await;
        place
    }

    pub fn crd_name(&self) -> String {
        format!("things.{}", self.group)
    }

    pub fn version(&self) -> String {
        format!("{}/v1", self.group)
    }

    pub fn things(&self) -> String {
        format!("/apis/{}/v1/namespaces/{}/things", self.group, self.namespace)
    }

    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.things())
    }

    pub fn core(&self, plural: &str) -> String {
        format!("/api/v1/namespaces/{}/{plural}", self.namespace)
    }

    pub fn thing(&self, name: &str, spec: Value) -> Value {
        json!({"apiVersion": self.version(), "kind": "Thing", "metadata": {"name": name}, "spec": spec})
    }

    /// Creates a thing.
    pub async fn create(&self, target: &ConformanceTarget, name: &str, spec: Value) -> Value {
        target
            .post(&self.things(), &self.thing(name, spec))
            .await
            .expect(201)
    }
}

/// A version with a bit of everything.
pub fn usual_version() -> Value {
    json!({
        "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": "URL", "type": "string", "jsonPath": ".spec.url"},
            {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "selectableFields": [{"jsonPath": ".spec.mode"}],
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "url": {"type": "string", "pattern": "^https?://"},
                    "size": {"type": "integer", "minimum": 1, "maximum": 10},
                    "mode": {"type": "string", "enum": ["slow", "fast"], "default": "slow"},
                    "port": {"x-kubernetes-int-or-string": true},
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                    "nested": {"type": "object", "required": ["key"], "properties": {"key": {"type": "string"}, "when": {"type": "string", "format": "date-time"}}},
                    "maybe": {"type": "string", "nullable": true},
                    "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                    "items": {
                        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                        "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "value": {"type": "integer"}}},
                    },
                },
            },
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }}},
    })
}
