//! JavaScript, with QuickJS in the component.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{
    Made, Options, component,
    tools::{self, Workplace},
};

/// The compiler's package. jco has it, too, as one of its engines; alone it is a tenth of the download.
const COMPILER: &str = "componentize-qjs@0.4.5";

const SDK: [(&str, &str); 4] = [
    (
        "node_modules/ostler/index.js",
        include_str!("../../sdk-js/index.js"),
    ),
    (
        "node_modules/ostler/runtime.js",
        include_str!("../../sdk-js/runtime.js"),
    ),
    (
        "node_modules/ostler/index.d.ts",
        include_str!("../../sdk-js/index.d.ts"),
    ),
    (
        "node_modules/ostler/package.json",
        include_str!("../../sdk-js/package.json"),
    ),
];

#[derive(Deserialize)]
struct Package {
    name: String,
    #[serde(default = "index")]
    main: String,
    #[serde(default)]
    dependencies: serde_json::Map<String, serde_json::Value>,
}

fn index() -> String {
    "index.js".into()
}

/// What is made of the npm package in a folder.
///
/// # Errors
/// The tools' own words, or one that is missing.
pub fn make(folder: &Path, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Made> {
    let path = folder.join("package.json");
    let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let package: Package =
        serde_json::from_slice(&text).with_context(|| format!("{}: no package", path.display()))?;
    let name = plugin(&package.name).with_context(|| path.display().to_string())?;
    let place = Workplace::of(folder, name)?;
    // The flags, too.
    let versions = [COMPILER, "without WASI", SDK[0].1, SDK[1].1];
    let wasm = place.unless_current(&versions, || compile(&place, &package, options, progress))?;
    Ok(Made {
        name: name.to_owned(),
        wasm,
        place: place.target,
        warnings: Vec::new(),
    })
}

/// What the plugin of a package is called: `@scope/name` is `name`, for a file has no folder in its name.
fn plugin(package: &str) -> Result<&str> {
    let name = match package.strip_prefix('@') {
        Some(scoped) => scoped.split_once('/').map_or("", |(_, name)| name),
        None => package,
    };
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\']) {
        bail!("name: {package:?} is no name of a package: call it `name` or `@scope/name`");
    }
    Ok(name)
}

fn compile(
    place: &Workplace,
    package: &Package,
    options: &Options,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<u8>> {
    tools::require(&["node", "--version"], &["nodejs", "npm"], options.install)?;
    let compiler = place.tool(&COMPILER.replace('@', "-"), |folder| {
        progress(&format!("installing {COMPILER} from npm"));
        fs::write(folder.join("package.json"), "{\"private\": true}")?;
        let mut npm = npm(folder);
        // Its own version and that of what it needs are exact.
        npm.args(["--save-exact", COMPILER]);
        place.run(npm).map(drop)
    })?;
    let stage = place.stage(&SDK)?;
    if !package.dependencies.is_empty() {
        progress("installing dependencies from npm");
        let mut npm = npm(&stage);
        npm.arg("--omit=dev");
        place.run(npm)?;
        // npm clears away what package.json does not name.
        place.write("stage", &SDK)?;
    }
    progress("componentize-qjs");
    let made = place.folder.join("made.wasm");
    let mut command = Command::new("node");
    command
        .arg(compiler.join("node_modules/componentize-qjs/bin/componentize-qjs"))
        .arg("--wit")
        .arg(place.wit()?)
        .args([
            "--world",
            crate::contract::WORLD,
            "--sync",
            "--opt-size",
            "--stub-wasi",
            "--module-root",
        ])
        .arg(&stage)
        .arg("--js")
        .arg(stage.join(&package.main))
        .arg("--output")
        .arg(&made);
    place.run(command)?;
    // What the engine would ask of WASI the SDK has from the host.
    let wasm = fs::read(made)?;
    component::without_wasi(&wasm)?;
    Ok(wasm)
}

fn npm(folder: &Path) -> Command {
    let mut npm = Command::new("npm");
    npm.current_dir(folder).args([
        "install",
        "--no-package-lock",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
    ]);
    npm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_called_as_its_package_is_within_its_scope() {
        assert_eq!(plugin("greeting").unwrap(), "greeting");
        assert_eq!(plugin("@example/greeting").unwrap(), "greeting");
        for none in ["", "@example", "@example/", "a/b", "@a/b/c", "../up", "@a/.."] {
            let said = plugin(none).unwrap_err().to_string();
            assert!(said.contains("@scope/name") && said.contains(none), "{said}");
        }
    }
}
