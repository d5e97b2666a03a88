//! Guests to components: what demo, test and authors call.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use ostler_builder::{component, manifest, rust, toolchain::Toolchain};

use crate::{cargo, paths, progress, progress::Step};

/// The pack whose components are to be small.
const SMALL_PACK: &str = "concourse";
const MAX_BYTES: usize = 200 * 1024;

/// A crate that is a plugin: it says so by `[package.metadata.ostler] pack = "…"`.
pub struct Guest {
    /// The package, which is also the component's name.
    pub name: String,
    /// The pack it belongs to.
    pub pack: String,
    /// Its folder.
    pub folder: PathBuf,
}

/// A guest's component.
pub struct Component {
    /// The guest's name.
    pub name: String,
    /// The pack it belongs to.
    pub pack: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: usize,
    /// Whether this build changed it.
    pub changed: bool,
}

impl Component {
    /// What to say of a component that is larger than its pack allows.
    fn excess(&self) -> Option<String> {
        let large = self.pack == SMALL_PACK && self.bytes > MAX_BYTES;
        large.then(|| {
            format!(
                "{} has {} bytes; components of this pack have {MAX_BYTES} at most",
                self.name, self.bytes
            )
        })
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let note = if self.changed { "" } else { " (unchanged)" };
        write!(
            f,
            "{:>7.1} KB  {}{note}",
            self.bytes as f64 / 1000.0,
            self.path.display()
        )
    }
}

/// Builds the guests that are wanted to target/components/PACK/NAME.wasm. What is current stays
/// as it is, to the file's date.
pub fn build(wanted: impl Fn(&Guest) -> bool) -> Result<Vec<Component>> {
    let guests: Vec<_> = guests()?.into_iter().filter(wanted).collect();
    if guests.is_empty() {
        bail!("no such guests: a guest's Cargo.toml has `[package.metadata.ostler] pack = \"…\"`");
    }
    let toolchain = Toolchain::find(true)?;
    let step = Step::new("Building the components");
    let artifacts = cargo::build(command(&toolchain, &guests)?, &step)?;
    let mut components = Vec::new();
    for guest in guests {
        step.at(guest.name.clone());
        let module = artifacts.iter().find_map(|artifact| artifact.module(&guest.name));
        let module = module.with_context(|| {
            format!(
                "{} makes no .wasm file: its [lib] needs crate-type = [\"cdylib\", \"rlib\"]",
                guest.name
            )
        })?;
        let component = finish(guest, module)?;
        if let Some(excess) = component.excess() {
            match &toolchain {
                // Its standard library comes as it is, which is larger.
                Toolchain::Installed => progress::say(&excess),
                Toolchain::Debian { .. } => bail!(excess),
            }
        }
        components.push(component);
    }
    step.done(components.len());
    Ok(components)
}

/// The guests of the workspace.
pub fn guests() -> Result<Vec<Guest>> {
    let packages = cargo::packages()?.into_iter();
    let mut guests: Vec<_> = packages
        .filter_map(|package| {
            let pack = package.metadata.pointer("/ostler/pack")?.as_str()?.to_owned();
            Some(Guest {
                folder: package.folder().to_owned(),
                name: package.name,
                pack,
            })
        })
        .collect();
    guests.sort_by(|a, b| (&a.pack, &a.name).cmp(&(&b.pack, &b.name)));
    Ok(guests)
}

fn command(toolchain: &Toolchain, guests: &[Guest]) -> Result<Command> {
    let mut command = toolchain.build();
    rust::for_components(&mut command, &paths::target_dir());
    // A cargo of another version must not rewrite the lock file.
    command.arg("--locked");
    for guest in guests {
        command.args(["--package", &guest.name]);
    }
    Ok(command)
}

fn finish(guest: Guest, module: &Path) -> Result<Component> {
    let mut component =
        rust::finish(module).with_context(|| format!("making a component of {}", guest.name))?;
    if let Some(manifest) = manifest::section(&guest.folder)? {
        component::embed(&mut component, manifest::SECTION, &manifest);
    }
    let path = paths::target("components")?
        .join(&guest.pack)
        .join(format!("{}.wasm", guest.name));
    let changed = paths::replace(&path, &component)?;
    Ok(Component {
        name: guest.name,
        pack: guest.pack,
        path,
        bytes: component.len(),
        changed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_components_of_the_pack_are_named_with_their_size() {
        let component = |pack: &str, bytes| Component {
            name: "some-guest".into(),
            pack: pack.into(),
            path: PathBuf::new(),
            bytes,
            changed: true,
        };
        assert_eq!(component(SMALL_PACK, MAX_BYTES).excess(), None);
        assert_eq!(component("examples", MAX_BYTES + 1).excess(), None);
        let said = component(SMALL_PACK, MAX_BYTES + 1).excess().expect("too large");
        assert!(said.starts_with("some-guest has 204801 bytes"), "{said}");
    }

    #[test]
    fn the_workspace_has_the_smallest_guest() {
        let guests = guests().unwrap();
        let greeting = guests.iter().find(|g| g.name == "greeting").expect("greeting");
        assert_eq!(greeting.pack, "examples");
    }
}
