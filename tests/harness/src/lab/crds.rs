//! The CRDs on the API server of a lab.

use std::fs;

use futures::future::join_all;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use ostler_apiserver::{EmbeddedServer, ServerOptions};
use serde_json::Value;
use tokio::sync::OnceCell;

use super::objects::parse_documents;
use crate::{component::workspace_root, wait::wait_for};

/// An embedded API server with the CRDs, from which those of all labs are restored. To apply them anew for each would validate and store
/// the same CRDs hundreds of times.
static ORIGIN: OnceCell<EmbeddedServer> = OnceCell::const_new();

/// Set when the real API server, which all tests of the process share, has the CRDs.
static REAL_SERVER_HAS_CRDS: OnceCell<()> = OnceCell::const_new();

/// Starts an embedded API server with the CRDs.
pub(super) async fn start_embedded(options: ServerOptions) -> EmbeddedServer {
    let make_origin = async || {
        let server = EmbeddedServer::start(ServerOptions::default())
            .await
            .expect("the origin starts");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let kubeconfig = directory.path().join("kubeconfig");
        fs::write(&kubeconfig, server.kubeconfig()).expect("kubeconfig written");
        let client = ostler::testing::cli::create_client(Some(kubeconfig)).await;
        install_crds(&client.expect("a client")).await;
        server
    };
    let origin = ORIGIN.get_or_init(make_origin).await;
    let started = EmbeddedServer::start_from(options, origin).await;
    started.expect("the embedded API server starts")
}

/// Installs the CRDs on the real API server, which all tests of the process share.
pub(super) async fn install_on_real_server(client: &Client) {
    REAL_SERVER_HAS_CRDS.get_or_init(|| install_crds(client)).await;
}

/// Applies the CRDs of the packs, the examples and the test components, and waits until their kinds are served.
pub(super) async fn install_crds(client: &Client) {
    let gvk = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk));
    let apply = async |crd: Value| {
        let name = crd["metadata"]["name"].as_str().expect("a name").to_owned();
        let parameters = PatchParams::apply("test").force();
        let applied = api.patch(&name, &parameters, &Patch::Apply(&crd)).await;
        applied.expect("a CRD is applied");
    };
    join_all(read_crds().into_iter().map(apply)).await;
    let look = async || {
        let list = api.list(&ListParams::default()).await.expect("CRDs");
        let is_established = |crd: &DynamicObject| {
            let conditions = crd.data["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|c| c["type"] == "Established" && c["status"] == "True")
        };
        list.items.iter().all(is_established).then_some(())
    };
    wait_for(look, || "the CRDs are established".to_owned()).await;
}

fn read_crds() -> Vec<Value> {
    let folders = ["crds", "crds/examples"].map(|folder| workspace_root().join(folder));
    let entries = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).expect("a folder of CRDs"));
    let packs = entries.map(|entry| entry.expect("an entry").path());
    let tests =
        ["hostile", "lifecycle", "probe"].map(|test| workspace_root().join(format!("tests/{test}/crd.yaml")));
    let files = packs.filter(|path| path.is_file()).chain(tests);
    files
        .flat_map(|path| parse_documents(&fs::read_to_string(&path).expect("a CRD")))
        .collect()
}
