//! A second cluster beside that of the lab: an embedded API server, or the second real cluster of the control plane.

use std::{fs, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD};
use kube::{
    Client,
    api::{Api, Patch, PatchParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use ostler::testing::key::Gvk;
use serde_json::{Value, json};

use crate::{Lab, proxy::Proxy};

/// A second cluster, with a namespace of the lab's name.
pub struct SecondCluster {
    client: Client,
    kubeconfig: String,
    server: Server,
}

/// The API server, and the means to make it unreachable.
enum Server {
    Embedded(ostler_apiserver::EmbeddedServer),
    /// A proxy, because other tests use the server as well.
    Real(Proxy),
}

impl SecondCluster {
    /// Starts an embedded API server, or uses the second real cluster for a lab on the real control plane.
    pub async fn start(lab: &Lab) -> Self {
        if lab.embedded.is_some() {
            return Self::start_embedded(lab).await;
        }
        let path = std::env::var("OSTLER_TEST_SECOND_KUBECONFIG")
            .expect("OSTLER_TEST_SECOND_KUBECONFIG names no kubeconfig: run `cargo xtask test real`");
        let text = fs::read_to_string(&path).expect("a kubeconfig");
        let mut config: Value = serde_json::from_str(&text).expect("a kubeconfig in JSON");
        let cluster = &mut config["clusters"][0]["cluster"];
        let server = cluster["server"].as_str().expect("a server");
        let address = server.trim_start_matches("https://").parse().expect("an address");
        let proxy = Proxy::start(address).await.expect("a proxy");
        // The host reads no files that a kubeconfig names.
        let authority = cluster["certificate-authority"].as_str().expect("a path");
        let authority = fs::read(authority).expect("a certificate");
        *cluster = json!({
            "server": format!("https://{}", proxy.address()),
            "certificate-authority-data": BASE64_STANDARD.encode(authority),
        });
        let client = create_client(path.as_ref()).await;
        Self::with_namespace(lab, client, config.to_string(), Server::Real(proxy)).await
    }

    /// Starts an embedded API server, also for a lab on the real control plane.
    pub async fn start_embedded(lab: &Lab) -> Self {
        let server = ostler_apiserver::EmbeddedServer::start(ostler_apiserver::ServerOptions::default())
            .await
            .expect("a second API server");
        let path = lab.path().join("second.kubeconfig");
        fs::write(&path, server.kubeconfig()).expect("written");
        let client = create_client(&path).await;
        Self::with_namespace(lab, client, server.kubeconfig(), Server::Embedded(server)).await
    }

    async fn with_namespace(lab: &Lab, client: Client, kubeconfig: String, server: Server) -> Self {
        let cluster = Self {
            client,
            kubeconfig,
            server,
        };
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": lab.namespace}});
        cluster.apply("Namespace", None, namespace).await;
        cluster
    }

    /// Returns a client that faults do not affect on the real cluster.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a kubeconfig that names no files.
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    /// Returns the embedded API server, for its faults and counters.
    pub fn embedded(&self) -> &ostler_apiserver::EmbeddedServer {
        match &self.server {
            Server::Embedded(server) => server,
            Server::Real(_) => panic!("the second cluster is a real one, which has no faults and counters"),
        }
    }

    /// Closes all connections of the kubeconfig, and refuses new ones while `down`.
    pub fn set_down(&self, down: bool) {
        match &self.server {
            Server::Embedded(server) => server.faults().refuse_connections(down),
            Server::Real(proxy) => proxy.set_down(down),
        }
    }

    /// Closes all connections of the kubeconfig.
    pub fn cut_connections(&self) {
        match &self.server {
            Server::Embedded(server) => server.faults().restart(),
            Server::Real(proxy) => proxy.cut_connections(),
        }
    }

    /// Returns the API of a kind of the core group.
    pub fn api(&self, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        self.api_of(&Gvk::new("", "v1", kind), namespace)
    }

    /// Returns the API of a kind.
    pub fn api_of(&self, gvk: &Gvk, namespace: Option<&str>) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(&gvk.group, &gvk.version, &gvk.kind));
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Applies an object of the core group.
    pub async fn apply(&self, kind: &str, namespace: Option<&str>, object: Value) {
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        self.api(kind, namespace)
            .patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(object))
            .await
            .expect("applied");
    }

    /// Applies a ConfigMap with a value.
    pub async fn apply_config_map(&self, lab: &Lab, name: &str, value: &str) {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"v": value}});
        self.apply("ConfigMap", Some(&lab.namespace), object).await;
    }

    /// Returns the data of a ConfigMap, if it exists.
    pub async fn config_map(&self, lab: &Lab, name: &str) -> Option<Value> {
        let found = self.api("ConfigMap", Some(&lab.namespace)).get_opt(name).await;
        found
            .expect("a response")
            .map(|object| object.data["data"].clone())
    }
}

async fn create_client(kubeconfig: &Path) -> Client {
    ostler::testing::cli::create_client(Some(kubeconfig.to_owned()))
        .await
        .expect("a client")
}
