//! The node of the scenarios that need one, with the images that they run.

use std::path::Path;

use anyhow::Result;

use crate::{
    image::{self, HOST_IMAGE, SHIM_IMAGE},
    node::{self, Node, SHELL_IMAGE},
};

/// Component in the plugin directory of the host's image.
const COMPONENT: &str = "steps/steps-step.wasm";

/// Starts a node with the images of the host, of the shim and of a shell. `control_plane` and `host` are binaries, `components` the
/// folder of all components.
pub fn start_node(control_plane: &Path, host: &Path, components: &Path) -> Result<Node> {
    let node = Node::start(control_plane)?;
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
