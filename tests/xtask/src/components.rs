//! Builds of the workspace's plugins into components.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use ostler_builder::{
    BuildOptions, Language, component,
    fingerprint::InputDigest,
    manifest, objects,
    rust::{self, Optimize},
    toolchain::Toolchain,
};

use serde_json::Value;

use crate::{cargo, component_cache::ComponentCache, paths, progress, progress::BuildStep};

/// Packs whose components have a size limit.
const SMALL_PACKS: [&str; 2] = ["concourse", "steps"];
/// Size limit of a component of [`SMALL_PACKS`].
const MAX_COMPONENT_BYTES: usize = 250 * 1024;

/// Folders with guests in other languages than Rust, and their packs.
const FOREIGN_FOLDERS: [(&str, &str); 2] = [
    ("plugins/examples", "examples"),
    ("tests/bench/plugins", BENCH_PACK),
];

/// Pack of the operators of the benchmark, in all languages.
pub const BENCH_PACK: &str = "bench";

/// A plugin of the workspace: a crate with `[package.metadata.ostler] pack = "…"`, or a folder in another language.
pub struct Guest {
    /// Name of the package and of the component.
    pub name: String,
    /// Pack it belongs to.
    pub pack: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Language it is written in.
    pub language: Language,
    /// Optimization goal, for a crate.
    pub optimize: Optimize,
}

/// The component of a guest.
pub struct Component {
    /// Name of the guest.
    pub name: String,
    /// Pack it belongs to.
    pub pack: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: usize,
    /// False when the file already had these bytes.
    pub changed: bool,
}

impl Component {
    /// Returns an error text when the component is larger than its pack allows.
    fn size_violation(&self) -> Option<String> {
        let large = SMALL_PACKS.contains(&&*self.pack) && self.bytes > MAX_COMPONENT_BYTES;
        large.then(|| {
            format!(
                "{} has {} bytes, more than the {MAX_COMPONENT_BYTES} that components of its pack may have",
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

/// Builds the selected guests to target/components/PACK/NAME.wasm, unless components of the same sources are kept. A file that is up to
/// date keeps its modification time.
pub fn build_components(wanted: impl Fn(&Guest) -> bool) -> Result<Vec<Component>> {
    let guests: Vec<_> = list_guests()?.into_iter().filter(wanted).collect();
    if guests.is_empty() {
        bail!("no plugin matches: a plugin's Cargo.toml has `[package.metadata.ostler] pack = \"…\"`");
    }
    let step = BuildStep::new("Building the components");
    let cache = ComponentCache::open()?;
    let (mut components, mut missing) = (Vec::new(), Vec::new());
    for guest in guests {
        let path = component_path(&guest.pack, &guest.name)?;
        match cache.restore(&guest.pack, &guest.name, &path)? {
            Some(changed) => components.push(Component {
                bytes: usize::try_from(fs::metadata(&path)?.len())?,
                name: guest.name,
                pack: guest.pack,
                path,
                changed,
            }),
            None => missing.push(guest),
        }
    }
    let restored = components.len();
    let (crates, others): (Vec<_>, Vec<_>) = missing.into_iter().partition(|g| g.language == Language::Rust);
    components.extend(build_crates(crates, &step)?);
    for guest in others {
        step.set_status(guest.name.clone());
        components.push(build_foreign(guest, &step)?);
    }
    if restored < components.len()
        && let Some(cache) = cache.reopen()?
    {
        for built in &components[restored..] {
            cache.store(&built.pack, &built.name, &built.path)?;
        }
    }
    step.finish(format!(
        "{} components, {restored} of them built before",
        components.len()
    ));
    Ok(components)
}

fn build_crates(guests: Vec<Guest>, step: &BuildStep) -> Result<Vec<Component>> {
    if guests.is_empty() {
        return Ok(Vec::new());
    }
    let toolchain = Toolchain::find(true)?;
    let mut artifacts = Vec::new();
    for optimize in [Optimize::Size, Optimize::Speed] {
        let alike: Vec<_> = guests.iter().filter(|g| g.optimize == optimize).collect();
        if !alike.is_empty() {
            artifacts.extend(cargo::run_build(
                build_command(&toolchain, optimize, &alike),
                step,
            )?);
        }
    }
    let definitions = read_definitions()?;
    let mut components = Vec::new();
    for guest in guests {
        step.set_status(guest.name.clone());
        let module = artifacts
            .iter()
            .find_map(|artifact| artifact.find_module(&guest.name));
        let module = module.with_context(|| {
            format!(
                "cargo built no .wasm file from {}: its [lib] needs crate-type = [\"cdylib\", \"rlib\"]",
                guest.name
            )
        })?;
        let component = finish_unless_current(guest, module, &definitions)?;
        if let Some(violation) = component.size_violation() {
            match &toolchain {
                // Its precompiled standard library is larger, so this is only a warning.
                Toolchain::Installed => progress::print_status(&violation),
                Toolchain::Debian { .. } => bail!(violation),
            }
        }
        components.push(component);
    }
    Ok(components)
}

/// Builds a guest in JavaScript, Python or Go.
fn build_foreign(guest: Guest, step: &BuildStep) -> Result<Component> {
    let path = component_path(&guest.pack, &guest.name)?;
    let options = BuildOptions {
        out: Some(path.clone()),
        install: true,
        quick: false,
    };
    let mut progress = |what: &str| step.set_status(format!("{}: {what}", guest.name));
    let built = ostler_builder::build_plugin(&guest.folder, &options, &mut progress)?;
    Ok(Component {
        name: guest.name,
        pack: guest.pack,
        path,
        bytes: built.bytes,
        changed: built.changed,
    })
}

fn component_path(pack: &str, name: &str) -> Result<PathBuf> {
    Ok(paths::create_target_subdir("components")?
        .join(pack)
        .join(format!("{name}.wasm")))
}

/// Lists the guests of the workspace.
pub fn list_guests() -> Result<Vec<Guest>> {
    let packages = cargo::list_packages()?.into_iter();
    let mut guests: Vec<_> = packages
        .filter_map(|package| {
            let pack = package.metadata.pointer("/ostler/pack")?.as_str()?.to_owned();
            let folder = package.folder().to_owned();
            Some(
                Optimize::from_metadata(&package.metadata)
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
    for (folder, pack) in FOREIGN_FOLDERS {
        for entry in fs::read_dir(paths::workspace_root().join(folder))? {
            guests.extend(read_foreign_guest(entry?.path(), pack)?);
        }
    }
    guests.sort_by(|a, b| (&a.pack, &a.name).cmp(&(&b.pack, &b.name)));
    Ok(guests)
}

/// The guest of a folder; none if it is a crate.
fn read_foreign_guest(folder: PathBuf, pack: &str) -> Result<Option<Guest>> {
    let language = ostler_builder::detect_language(&folder)?;
    let name = folder
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let guest = Guest {
        name,
        pack: pack.into(),
        folder,
        language,
        optimize: Optimize::default(),
    };
    Ok(Some(guest).filter(|guest| guest.language != Language::Rust))
}

fn build_command(toolchain: &Toolchain, optimize: Optimize, guests: &[&Guest]) -> Command {
    let mut command = toolchain.cargo_build();
    rust::add_component_flags(&mut command, &paths::target_dir(), optimize);
    // Debian's cargo is another version, which must not rewrite the lock file.
    command.arg("--locked");
    for guest in guests {
        command.args(["--package", &guest.name]);
    }
    command
}

/// Makes a component of a module, unless there is one of the same module, manifest and program: wasm-opt takes a second for each.
fn finish_unless_current(guest: Guest, module: &Path, definitions: &[Value]) -> Result<Component> {
    let path = component_path(&guest.pack, &guest.name)?;
    let manifest = manifest::read_manifest(&guest.folder)?;
    let definitions = match &manifest {
        Some(manifest) => select_definitions(definitions, manifest)?,
        None => None,
    };
    let mut inputs = InputDigest::default();
    inputs.add(&fs::read(module).with_context(|| format!("reading {}", module.display()))?);
    inputs.add(manifest.as_deref().unwrap_or_default());
    inputs.add(definitions.as_deref().unwrap_or_default());
    inputs.add(format!("{:?}", guest.optimize).as_bytes());
    inputs.add(program_version()?.as_bytes());
    let changed = inputs.make_unless_current(&path, || {
        let mut component = rust::finish_component(module, guest.optimize)
            .with_context(|| format!("encoding the component of {}", guest.name))?;
        if let Some(manifest) = &manifest {
            component::append_section(&mut component, manifest::MANIFEST_SECTION, manifest);
        }
        if let Some(definitions) = &definitions {
            component::append_section(&mut component, objects::CRDS_SECTION, definitions);
        }
        Ok(component)
    })?;
    let definitions = definitions.map_or(0, |definitions| definitions.len());
    Ok(Component {
        // Of code, which the limit is about.
        bytes: usize::try_from(fs::metadata(&path)?.len())?.saturating_sub(definitions),
        name: guest.name,
        pack: guest.pack,
        path,
        changed,
    })
}

/// Reads the CustomResourceDefinitions in crds/.
fn read_definitions() -> Result<Vec<Value>> {
    let root = paths::workspace_root().join("crds");
    let mut found = Vec::new();
    for folder in ["", "examples", "providers"] {
        found.extend(objects::read_documents(&root.join(folder))?);
    }
    Ok(found)
}

/// Selects the definitions of the kinds that a manifest asks to reconcile, as a JSON array. None if there are none.
fn select_definitions(definitions: &[Value], manifest: &[u8]) -> Result<Option<Vec<u8>>> {
    let manifest: Value = serde_json::from_slice(manifest)?;
    let reconciles = manifest["permissions"]["reconciles"].as_array();
    let is_reconciled = |definition: &&Value| {
        let spec = &definition["spec"];
        reconciles.into_iter().flatten().any(|entry| {
            let mut kinds = entry["kinds"].as_array().into_iter().flatten();
            entry["group"] == spec["group"] && kinds.any(|kind| *kind == spec["names"]["kind"] || kind == "*")
        })
    };
    let selected: Vec<&Value> = definitions.iter().filter(is_reconciled).collect();
    Ok((!selected.is_empty())
        .then(|| serde_json::to_vec(&selected))
        .transpose()?)
}

/// Returns a text that changes whenever this program does, which encodes the components.
fn program_version() -> Result<String> {
    let metadata = fs::metadata(std::env::current_exe()?)?;
    Ok(format!("{:?} {}", metadata.modified()?, metadata.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn component_above_the_limit_of_its_pack_is_reported_with_its_size() {
        let component = |pack: &str, bytes| Component {
            name: "some-guest".into(),
            pack: pack.into(),
            path: PathBuf::new(),
            bytes,
            changed: true,
        };
        for pack in SMALL_PACKS {
            assert_eq!(component(pack, MAX_COMPONENT_BYTES).size_violation(), None);
            assert!(
                component(pack, MAX_COMPONENT_BYTES + 1)
                    .size_violation()
                    .is_some()
            );
        }
        assert_eq!(
            component("examples", MAX_COMPONENT_BYTES + 1).size_violation(),
            None
        );
        let said = component(SMALL_PACKS[0], MAX_COMPONENT_BYTES + 1)
            .size_violation()
            .expect("too large");
        assert!(said.starts_with("some-guest has 256001 bytes"), "{said}");
    }

    #[test]
    fn workspace_lists_the_example_greeting() {
        let guests = list_guests().unwrap();
        let greeting = guests.iter().find(|g| g.name == "greeting").expect("greeting");
        assert_eq!(greeting.pack, "examples");
    }
}
