//! The node of the scenarios that need one, with the images that they run.

use std::path::Path;

use anyhow::{Context, Result};

use crate::{
    components,
    image::{self, HOST_IMAGE, SHIM_IMAGE},
    node::{self, Node, SHELL_IMAGE},
    progress::Step,
};

/// Pack whose components are in the plugin directory of the host's image.
const PACK: &str = "steps";

/// Starts a node with the images of the host, of the shim and of a shell. `control_plane` and `host` are binaries.
pub fn start_node(control_plane: &Path, host: &Path) -> Result<Node> {
    let node = Node::start(control_plane)?;
    let components = components::build_components(|guest| guest.pack == PACK)?;
    let images = [
        (HOST_IMAGE, image::host_image(host, &components)?),
        (SHIM_IMAGE, image::shim_image()?),
        (SHELL_IMAGE, node::shell_image()?),
    ];
    let step = Step::new("Importing the images");
    let folder = tempfile::tempdir()?;
    for (name, image) in images {
        step.set_status(name.to_owned());
        let archive = folder.path().join("image.tar");
        image.write_archive(name, &archive)?;
        node.import_image(&archive).context(name)?;
    }
    step.finish("");
    Ok(node)
}
