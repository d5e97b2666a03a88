//! Built components and their installation into a host's plugin directory.

use std::{
    fs::Permissions,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use kube::api::{DeleteParams, Patch, PatchParams};
use ostler::testing::{engine::CompileCache, key::Gvk};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};

use crate::Lab;

/// Serializes the tests that have a Plugin object on the real server: it is cluster-scoped and named like its component, so
/// they would collide.
static PLUGIN_LOCK: Mutex<()> = Mutex::const_new(());

/// A compiler of components that waits while it is held. It stores no code, so that the host compiles by itself afterwards.
pub struct HeldCompiler {
    hold: PathBuf,
    compiling: PathBuf,
}

impl HeldCompiler {
    /// Makes the host of a lab, which is not started yet, compile with it.
    pub fn install(lab: &mut Lab) -> Self {
        let [code, compiler, hold, compiling] =
            ["compiled", "compiler", "hold", "compiling"].map(|name| lab.path().join(name));
        let script = format!(
            "#!/bin/sh\ncat > /dev/null\n\
             if [ -e {hold} ]; then touch {compiling}; while [ -e {hold} ]; do sleep 0.02; done; fi\n",
            hold = hold.display(),
            compiling = compiling.display(),
        );
        std::fs::write(&compiler, script).expect("written");
        std::fs::set_permissions(&compiler, Permissions::from_mode(0o755)).expect("executable");
        lab.settings.cache = Some(CompileCache {
            directory: code,
            compiler: Some(compiler),
        });
        Self { hold, compiling }
    }

    /// Makes it wait from now on.
    pub fn hold(&self) {
        std::fs::write(&self.hold, "").expect("written");
    }

    /// Lets it go on.
    pub fn release(&self) {
        std::fs::remove_file(&self.hold).expect("removed");
    }

    /// True once it has been called while it is held.
    pub fn is_compiling(&self) -> bool {
        self.compiling.exists()
    }
}

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

    /// Locks the Plugin objects of a shared server, and deletes one of this name that an earlier test has left. An embedded
    /// server is not shared.
    pub async fn lock_plugin(&self, name: &str) -> Option<MutexGuard<'static, ()>> {
        if self.embedded.is_some() {
            return None;
        }
        let guard = PLUGIN_LOCK.lock().await;
        self.has_plugin_lock.store(true, Ordering::Relaxed);
        self.delete_plugin(name).await;
        Some(guard)
    }

    /// Deletes a Plugin and removes its finalizers.
    pub async fn delete_plugin(&self, name: &str) {
        let api = self.api(&Gvk::new("ostler.dev", "v1alpha1", "Plugin"), "");
        let exists = async || api.get_opt(name).await.expect("an answer").is_some();
        if !exists().await {
            return;
        }
        let _ = api.delete(name, &DeleteParams::default()).await;
        self.wait_until("the Plugin is gone", async || {
            let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            let _ = api.patch(name, &PatchParams::default(), &none).await;
            !exists().await
        })
        .await;
    }
}

/// The root of the workspace.
pub fn workspace_root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the folder of compiled components, which all checkouts of a user share: that of one in Python takes half a minute.
pub fn compiled_dir() -> PathBuf {
    ostler_builder::cache_dir(&workspace_root().join("target")).join("compiled")
}

/// Returns the path of a built component, named `PACK/NAME`.
pub fn component_path(component: &str) -> PathBuf {
    let root = std::env::var_os("OSTLER_COMPONENTS")
        .map_or_else(|| workspace_root().join("target/components"), PathBuf::from);
    root.join(format!("{component}.wasm"))
}

/// Returns the kind that the component `examples/greeting` reconciles.
pub fn greeting_kind() -> Gvk {
    Gvk::new("examples.ostler.dev", "v1alpha1", "Greeting")
}

/// Reads a built component, named `PACK/NAME`.
pub fn read_component(component: &str) -> Vec<u8> {
    let path = component_path(component);
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

/// Returns the component with another text of the same length in place of each occurrence of one, as in its descriptor.
pub fn replace_text(wasm: &[u8], text: &str, by: &str) -> Vec<u8> {
    assert_eq!(text.len(), by.len(), "the size of the component stays");
    let places = wasm.windows(text.len()).enumerate();
    let places: Vec<usize> = places
        .filter(|(_, found)| *found == text.as_bytes())
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty(), "the component contains {text}");
    let mut replaced = wasm.to_vec();
    for at in places {
        replaced[at..at + by.len()].copy_from_slice(by.as_bytes());
    }
    replaced
}
