//! The node of the scenarios that need one, with the images that they run.

use std::path::Path;

use anyhow::Result;

use crate::{
    image::{self, HOST_IMAGE, SHIM_IMAGE},
    node::{self, RunningNode, SHELL_IMAGE},
};

/// Component in the plugin directory of the host's image.
const COMPONENT: &str = "steps/steps-step.wasm";

/// Names of images of the host in the registry of the node, and an environment variable in which they differ. The first is the one of
/// the documentation; the other stands for the next version.
const PUSHED_IMAGES: [(&str, &str); 2] = [
    ("ostler:0.1.0", "VERSION=0.1.0"),
    ("ostler:0.2.0", "VERSION=0.2.0"),
];

/// Starts a node with the images of the host, of the shim and of a shell, and with others of the host in its registry only.
/// `control_plane` and `host` are binaries, `components` the folder of all components.
pub fn start_node(control_plane: &Path, host: &Path, components: &Path) -> Result<RunningNode> {
    let node = RunningNode::start(control_plane)?;
    for (name, variable) in PUSHED_IMAGES {
        let mut image = image::host_image(host, &[])?;
        image.environment.push(variable);
        node.push_image(name, &image)?;
    }
    node.import_images(vec![
        (
            HOST_IMAGE,
            image::host_image(host, &[components.join(COMPONENT)])?,
        ),
        (SHIM_IMAGE, image::build_shim_image()?),
        (SHELL_IMAGE, node::shell_image()?),
    ])?;
    Ok(node)
}
