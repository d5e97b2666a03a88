//! Built components and their installation into a host's plugin directory.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use crate::Lab;

impl Lab {
    /// Installs built components into the plugin directory. Like a build it renames complete files into place, so that
    /// the host never reads half a component.
    pub fn install(&self, components: &[&str]) {
        for component in components {
            let wasm = read_component(component);
            self.install_bytes(component.rsplit('/').next().unwrap_or(component), &wasm);
        }
    }

    /// Installs a component's bytes as `NAME.wasm`.
    pub fn install_bytes(&self, name: &str, wasm: &[u8]) {
        let mut partial = tempfile::NamedTempFile::new_in(&self.settings.plugins).expect("a temporary file");
        partial.write_all(wasm).expect("written");
        partial
            .persist(self.settings.plugins.join(format!("{name}.wasm")))
            .expect("renamed");
    }
}

/// The root of the workspace.
pub fn workspace_root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Reads a built component, named `PACK/NAME`.
pub fn read_component(component: &str) -> Vec<u8> {
    let root = std::env::var_os("OSTLER_COMPONENTS")
        .map_or_else(|| workspace_root().join("target/components"), PathBuf::from);
    let path = root.join(format!("{component}.wasm"));
    std::fs::read(&path)
        .unwrap_or_else(|e| panic!("{}: {e}; build it with `cargo xtask components`", path.display()))
}

/// Returns the component with a custom section appended: different bytes, and therefore a different digest, with the
/// same behavior.
pub fn with_note(wasm: &[u8], note: &str) -> Vec<u8> {
    let mut component = wasm.to_vec();
    ostler_builder::component::append_section(&mut component, "note", note.as_bytes());
    component
}
