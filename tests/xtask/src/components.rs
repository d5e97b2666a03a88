//! Guests to components: what demo, test and authors call.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use wasmparser::{Parser, Payload};
use wit_component::ComponentEncoder;

use crate::{cargo, paths, progress, progress::Step, toolchain, toolchain::Toolchain};

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
    let toolchain = Toolchain::find()?;
    let step = Step::new("Building the components");
    let artifacts = cargo::build(command(&toolchain, &guests)?, &step)?;
    let mut components = Vec::new();
    for guest in guests {
        step.at(guest.name.clone());
        let module = artifacts
            .iter()
            .filter(|artifact| artifact.target.name == guest.name.replace('-', "_"))
            .flat_map(|artifact| &artifact.filenames)
            .find(|file| file.extension().is_some_and(|e| e == "wasm"))
            .with_context(|| {
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
    // A target folder of their own: another toolchain, other flags, and no waiting for the host's build.
    // Locked, because a cargo of another version must not rewrite the lock file.
    command
        .args(["--profile", "component", "--lib", "--locked"])
        .env("CARGO_TARGET_DIR", paths::target("wasm")?);
    for guest in guests {
        command.args(["--package", &guest.name]);
    }
    Ok(command)
}

fn finish(guest: Guest, module: &Path) -> Result<Component> {
    let module = std::fs::read(module).with_context(|| format!("reading {}", module.display()))?;
    let component = toolchain::optimise(module)
        .and_then(|module| encode(&module))
        .with_context(|| format!("making a component of {}", guest.name))?;
    check(&guest, &component)?;
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

/// Makes a component of a core module that carries its world (wit-bindgen puts it there).
fn encode(module: &[u8]) -> Result<Vec<u8>> {
    ComponentEncoder::default()
        .validate(true)
        .module(module)?
        .encode()
}

/// What every pack promises: a component's imports are its capabilities.
fn check(guest: &Guest, component: &[u8]) -> Result<()> {
    let imports = imports(component)?;
    if let Some(wasi) = imports.iter().find(|import| import.starts_with("wasi:")) {
        bail!(
            "{} imports {wasi}: plugins use the host's capabilities only",
            guest.name
        );
    }
    Ok(())
}

/// The names of what a component imports.
fn imports(component: &[u8]) -> Result<Vec<String>> {
    let mut imports = Vec::new();
    for payload in Parser::new(0).parse_all(component) {
        if let Payload::ComponentImportSection(section) = payload? {
            for import in section {
                imports.push(import?.name.name.to_owned());
            }
        }
    }
    Ok(imports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_module_makes_no_component() {
        assert!(encode(b"not wasm").is_err());
        assert!(encode(b"\0asm\x01\0\0\0truncated").is_err());
    }

    #[test]
    fn wasi_is_refused_by_name() {
        let guest = Guest {
            name: "some-guest".into(),
            pack: "examples".into(),
            folder: PathBuf::new(),
        };
        let empty = b"\0asm\x0d\0\x01\0";
        check(&guest, empty).unwrap();
        // (component (type (instance)) (import "wasi:a/b" (instance (type 0))))
        let types = [7, 3, 1, 0x42, 0];
        let wasi = [&empty[..], &types, &[10, 13, 1, 0, 8], b"wasi:a/b", &[5, 0]].concat();
        let said = check(&guest, &wasi).expect_err("refused").to_string();
        assert!(said.contains("some-guest imports wasi:a/b"), "{said}");
    }

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
