//! Built components, and where a host finds them.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use crate::Lab;

impl Lab {
    /// Puts built components into the plugin directory, as a build would: whole, and renamed into place.
    pub fn install(&self, components: &[&str]) {
        for component in components {
            let wasm = component_bytes(component);
            self.install_bytes(component.rsplit('/').next().unwrap_or(component), &wasm);
        }
    }

    /// Puts these bytes into the plugin directory as `NAME.wasm`.
    pub fn install_bytes(&self, name: &str, wasm: &[u8]) {
        let mut partial = tempfile::NamedTempFile::new_in(&self.settings.plugins).expect("a temporary file");
        partial.write_all(wasm).expect("written");
        partial
            .persist(self.settings.plugins.join(format!("{name}.wasm")))
            .expect("renamed");
    }
}

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A built component, by `PACK/NAME`.
pub fn component_bytes(component: &str) -> Vec<u8> {
    let root = std::env::var_os("OSTLER_COMPONENTS")
        .map_or_else(|| workspace().join("target/components"), PathBuf::from);
    let path = root.join(format!("{component}.wasm"));
    std::fs::read(&path)
        .unwrap_or_else(|e| panic!("{}: {e}; build it with `cargo xtask components`", path.display()))
}

/// The same component with other bytes: a custom section more, as another build would have.
pub fn rebuilt(wasm: &[u8], note: &str) -> Vec<u8> {
    let name = b"note";
    let mut section = vec![u8::try_from(name.len()).expect("short")];
    section.extend_from_slice(name);
    section.extend_from_slice(note.as_bytes());
    let mut out = wasm.to_vec();
    out.push(0);
    out.push(
        u8::try_from(section.len())
            .ok()
            .filter(|n| *n < 128)
            .expect("a short note"),
    );
    out.extend_from_slice(&section);
    out
}
