//! Guests to components: what demo, test and authors call.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use ostler_builder::{
    Language, Options, component, manifest,
    rust::{self, Optimize},
    toolchain::Toolchain,
};

use crate::{cargo, paths, progress, progress::Step};

/// The pack whose components are to be small.
const SMALL_PACK: &str = "concourse";
const MAX_BYTES: usize = 250 * 1024;

/// Where plugins in other languages than Rust are.
const EXAMPLES: &str = "examples";

/// A plugin: a crate that says so by `[package.metadata.ostler] pack = "…"`, or an example in another language.
pub struct Guest {
    /// The package, which is also the component's name.
    pub name: String,
    /// The pack it belongs to.
    pub pack: String,
    /// Its folder.
    pub folder: PathBuf,
    /// What it is written in.
    pub language: Language,
    /// What its component is to be, where it is a crate.
    pub optimize: Optimize,
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
    let (crates, others): (Vec<_>, Vec<_>) = guests.into_iter().partition(|g| g.language == Language::Rust);
    let step = Step::new("Building the components");
    let mut components = build_crates(crates, &step)?;
    for guest in others {
        step.at(guest.name.clone());
        components.push(build_other(guest, &step)?);
    }
    step.done(components.len());
    Ok(components)
}

fn build_crates(guests: Vec<Guest>, step: &Step) -> Result<Vec<Component>> {
    if guests.is_empty() {
        return Ok(Vec::new());
    }
    let toolchain = Toolchain::find(true)?;
    let mut artifacts = Vec::new();
    for optimize in [Optimize::Size, Optimize::Speed] {
        let alike: Vec<_> = guests.iter().filter(|g| g.optimize == optimize).collect();
        if !alike.is_empty() {
            artifacts.extend(cargo::build(command(&toolchain, optimize, &alike), step)?);
        }
    }
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
    Ok(components)
}

/// JavaScript, Python or Go.
fn build_other(guest: Guest, step: &Step) -> Result<Component> {
    let path = path(&guest.pack, &guest.name)?;
    let options = Options {
        out: Some(path.clone()),
        install: true,
    };
    let mut progress = |what: &str| step.at(format!("{}: {what}", guest.name));
    let built = ostler_builder::build(&guest.folder, &options, &mut progress)?;
    Ok(Component {
        name: guest.name,
        pack: guest.pack,
        path,
        bytes: built.bytes,
        changed: built.changed,
    })
}

fn path(pack: &str, name: &str) -> Result<PathBuf> {
    Ok(paths::target("components")?
        .join(pack)
        .join(format!("{name}.wasm")))
}

/// The guests of the workspace.
pub fn guests() -> Result<Vec<Guest>> {
    let packages = cargo::packages()?.into_iter();
    let mut guests: Vec<_> = packages
        .filter_map(|package| {
            let pack = package.metadata.pointer("/ostler/pack")?.as_str()?.to_owned();
            let folder = package.folder().to_owned();
            Some(
                Optimize::of(&package.metadata)
                    .with_context(|| folder.join("Cargo.toml").display().to_string())
                    .map(|optimize| Guest {
                        folder,
                        name: package.name,
                        pack,
                        language: Language::Rust,
                        optimize,
                    }),
            )
        })
        .collect::<Result<_>>()?;
    for entry in std::fs::read_dir(paths::root().join("plugins").join(EXAMPLES))? {
        let folder = entry?.path();
        let language = ostler_builder::detect(&folder)?;
        if language != Language::Rust {
            guests.push(Guest {
                name: folder
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
                pack: EXAMPLES.into(),
                folder,
                language,
                optimize: Optimize::default(),
            });
        }
    }
    guests.sort_by(|a, b| (&a.pack, &a.name).cmp(&(&b.pack, &b.name)));
    Ok(guests)
}

fn command(toolchain: &Toolchain, optimize: Optimize, guests: &[&Guest]) -> Command {
    let mut command = toolchain.build();
    rust::for_components(&mut command, &paths::target_dir(), optimize);
    // A cargo of another version must not rewrite the lock file.
    command.arg("--locked");
    for guest in guests {
        command.args(["--package", &guest.name]);
    }
    command
}

fn finish(guest: Guest, module: &Path) -> Result<Component> {
    let mut component = rust::finish(module, guest.optimize)
        .with_context(|| format!("making a component of {}", guest.name))?;
    if let Some(manifest) = manifest::section(&guest.folder)? {
        component::append_section(&mut component, manifest::SECTION, &manifest);
    }
    let path = path(&guest.pack, &guest.name)?;
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
        assert!(said.starts_with("some-guest has 256001 bytes"), "{said}");
    }

    #[test]
    fn the_workspace_has_the_smallest_guest() {
        let guests = guests().unwrap();
        let greeting = guests.iter().find(|g| g.name == "greeting").expect("greeting");
        assert_eq!(greeting.pack, "examples");
    }
}
