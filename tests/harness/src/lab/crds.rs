//! The CRDs on the API server of a lab.

use std::{fs, sync::LazyLock};

use futures::future::join_all;
use serde_json::Value;
use tokio::sync::OnceCell;

use super::{Lab, objects::parse_documents};
use crate::component::workspace_root;

/// CRDs of the packs, the examples and the test components. Read once, because every embedded API server gets them.
static CRDS: LazyLock<Vec<Value>> = LazyLock::new(read_crds);

/// Set when the real API server, which all tests of the process share, has the CRDs.
static REAL_SERVER_HAS_CRDS: OnceCell<()> = OnceCell::const_new();

impl Lab {
    /// Applies the CRDs and waits until their kinds are served.
    pub(super) async fn install_crds(&self) {
        let apply = async || {
            join_all(CRDS.iter().map(|crd| self.apply(crd.clone()))).await;
            self.wait_established().await;
        };
        if self.embedded.is_some() {
            apply().await;
        } else {
            REAL_SERVER_HAS_CRDS.get_or_init(apply).await;
        }
    }
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
