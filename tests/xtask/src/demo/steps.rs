//! The steps pack: a small pipeline in the pods of a real node, or of a kubelet without containers where this machine can run none.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    facts::ObjectKey,
    kubernetes::{DemoClient, read_manifests},
    stage::{Scene, Site, apply_all, start_server},
};
use crate::{
    control_plane::{self, random_token},
    image::{self, SHIM_IMAGE},
    namespaces::{NodeUnsupported, check_root},
    node::{self, RunningNode, SHELL_IMAGE},
    paths,
    progress::{self, BuildStep},
};

/// Namespace of the Steps, that of `deploy/`.
const NAMESPACE: &str = "steps";

/// Starts a node with the images of the Steps; none where this machine can run no node, which is printed.
pub fn start_node() -> Result<Option<RunningNode>> {
    let started = check_root().and_then(|()| RunningNode::start(&control_plane::build_binary()?));
    let node = match started {
        Err(error) if error.is::<NodeUnsupported>() => {
            progress::print_status(&format!(
                "Pods have no containers here, and report what they would do: {error}"
            ));
            return Ok(None);
        }
        started => started?,
    };
    node.import_images(vec![
        (SHIM_IMAGE, image::build_shim_image()?),
        (SHELL_IMAGE, node::shell_image()?),
    ])?;
    Ok(Some(node))
}

/// Applies the account of the plugin, its configuration and the pipeline. `kubelet` is the program of one without containers.
pub fn start(site: &Site, cluster: &DemoClient, kubelet: Option<Command>, step: &BuildStep) -> Result<Scene> {
    step.set_status("applying");
    let key = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "steps-artifact-key", "namespace": NAMESPACE},
        "stringData": {"key": format!("{}{}", random_token()?, random_token()?)}});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    apply_all(cluster, &[namespace, key])?;
    let deploy = paths::workspace_root().join("deploy");
    apply_all(cluster, &read_accounts(&deploy.join("steps.yaml"))?)?;
    let (_, shim) = SHIM_IMAGE.rsplit_once('/').context("an image with a registry")?;
    let config = json!({"shimImage": shim, "logInterval": "1s"});
    fs::write(site.plugins.join("steps-step.yaml"), config.to_string())?;
    let servers = match kubelet {
        None => None,
        Some(mut command) => {
            step.set_status("kubelet without containers");
            command
                .arg(NAMESPACE)
                .env("KUBECONFIG", site.folder.join("kubeconfig"));
            Some(start_server("kubelet-simulator", command, site.folder)?.0)
        }
    };
    step.set_status("applying");
    let pipeline = read_manifests(&deploy.join("examples/steps-pipeline.yaml"), &BTreeMap::new())?;
    apply_all(cluster, &pipeline)?;
    Ok(Scene {
        servers,
        expected: pipeline.iter().map(ObjectKey::from_manifest).collect(),
        grants: deploy.join("steps-grants.yaml"),
        script: None,
    })
}

/// Reads the account of the plugin and its roles, without those of a host in a pod: this one is an administrator.
fn read_accounts(path: &Path) -> Result<Vec<Value>> {
    let mut objects = read_manifests(path, &BTreeMap::new())?;
    objects.retain(|object| object["metadata"]["namespace"] == NAMESPACE);
    Ok(objects)
}
