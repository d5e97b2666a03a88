//! Plugins in JavaScript, with QuickJS in the component.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{
    BuildOptions, RawComponent, component,
    contract::OptionalExports,
    crds::any_source,
    tools::{self, BuildDir},
};

/// npm package of the compiler. It is also an engine of jco, but a tenth of the download on its own.
const COMPILER_PACKAGE: &str = "componentize-qjs@0.4.5";

/// Files of the SDK.
pub(crate) const SDK_FILES: [(&str, &str); 9] = [
    (
        "node_modules/ostler/index.js",
        include_str!("../../sdk-js/index.js"),
    ),
    (
        "node_modules/ostler/runtime.js",
        include_str!("../../sdk-js/runtime.js"),
    ),
    (
        "node_modules/ostler/provision.js",
        include_str!("../../sdk-js/provision.js"),
    ),
    (
        "node_modules/ostler/provider.js",
        include_str!("../../sdk-js/provider.js"),
    ),
    (
        "node_modules/ostler/sha256.js",
        include_str!("../../sdk-js/sha256.js"),
    ),
    (
        "node_modules/ostler/index.d.ts",
        include_str!("../../sdk-js/index.d.ts"),
    ),
    (
        "node_modules/ostler/provision.d.ts",
        include_str!("../../sdk-js/provision.d.ts"),
    ),
    (
        "node_modules/ostler/provider.d.ts",
        include_str!("../../sdk-js/provider.d.ts"),
    ),
    (
        "node_modules/ostler/package.json",
        include_str!("../../sdk-js/package.json"),
    ),
];

/// Files of the SDK for native tests, which no component has.
pub(crate) const TEST_FILES: [(&str, &str); 5] = [
    (
        "node_modules/ostler/testing/host.js",
        include_str!("../../sdk-js/testing/host.js"),
    ),
    (
        "node_modules/ostler/testing/host.d.ts",
        include_str!("../../sdk-js/testing/host.d.ts"),
    ),
    (
        "node_modules/ostler/testing/readiness.js",
        include_str!("../../sdk-js/testing/readiness.js"),
    ),
    (
        "node_modules/ostler/testing/selectors.js",
        include_str!("../../sdk-js/testing/selectors.js"),
    ),
    (
        "node_modules/ostler/testing/register.js",
        include_str!("../../sdk-js/testing/register.js"),
    ),
];

/// npm package that reads the types of a plugin.
const TYPES_PACKAGE: &str = "typescript@5.9.3";
/// Program that prints the kinds of a plugin's types.
const CRDS_PROGRAM: (&str, &str) = ("crds.mjs", include_str!("../../sdk-js/crds.mjs"));

#[derive(Deserialize)]
struct Package {
    name: String,
    #[serde(default = "default_main")]
    main: String,
    #[serde(default)]
    dependencies: serde_json::Map<String, serde_json::Value>,
}

fn default_main() -> String {
    "index.js".into()
}

/// Builds the npm package in a folder.
///
/// # Errors
/// The output of the tools, or a missing tool.
pub fn build_component(
    folder: &Path,
    options: &BuildOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<RawComponent> {
    let package = read_package(folder)?;
    let file = || folder.join("package.json").display().to_string();
    let name = plugin_name(&package.name).with_context(file)?;
    let dir = BuildDir::new(folder, name)?;
    // Changes when the flags below do.
    let sdk = SDK_FILES.map(|(_, text)| text).concat();
    let versions = [COMPILER_PACKAGE, "without WASI", sdk.as_str()];
    let wasm =
        dir.build_unless_current(&versions, || compile_component(&dir, &package, options, progress))?;
    Ok(RawComponent {
        name: name.to_owned(),
        wasm,
        output_dir: dir.target,
        warnings: Vec::new(),
    })
}

fn read_package(folder: &Path) -> Result<Package> {
    let path = folder.join("package.json");
    let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not a valid package.json", path.display()))
}

/// Returns the plugin's name: the package's without its scope, since it becomes a file name.
fn plugin_name(package: &str) -> Result<&str> {
    let name = match package.strip_prefix('@') {
        Some(scoped) => scoped.split_once('/').map_or("", |(_, name)| name),
        None => package,
    };
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\']) {
        bail!("name: {package:?} is not a package name: use `name` or `@scope/name`");
    }
    Ok(name)
}

fn compile_component(
    dir: &BuildDir,
    package: &Package,
    options: &BuildOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<u8>> {
    tools::require_program(&["node", "--version"], &["nodejs", "npm"], options.install)?;
    let compiler = install_package(dir, COMPILER_PACKAGE, progress)?;
    let stage = dir.stage_source(&SDK_FILES)?;
    let main = stage.join(&package.main);
    let source = fs::read_to_string(&main).with_context(|| format!("reading {}", package.main))?;
    let world = OptionalExports {
        messages: exports_name(&source, "messages"),
        lifecycle: exports_name(&source, "lifecycle"),
    }
    .world();
    if !package.dependencies.is_empty() {
        progress("installing dependencies from npm");
        let mut npm = npm_install(&stage);
        npm.arg("--omit=dev");
        dir.run_command(npm)?;
        // npm has removed the SDK, because package.json does not list it.
        dir.write_files("stage", &SDK_FILES)?;
    }
    progress("componentize-qjs");
    let made = dir.work.join("made.wasm");
    let mut command = Command::new("node");
    command
        .arg(compiler.join("node_modules/componentize-qjs/bin/componentize-qjs"))
        .arg("--wit")
        .arg(dir.write_wit()?)
        .args([
            "--world",
            world,
            "--sync",
            "--opt-size",
            "--stub-wasi",
            "--module-root",
        ])
        .arg(&stage)
        .arg("--js")
        .arg(main)
        .arg("--output")
        .arg(&made);
    dir.run_command(command)?;
    // The SDK provides by the host what the engine would use WASI for.
    let wasm = fs::read(made)?;
    component::reject_wasi(&wasm)?;
    Ok(wasm)
}

/// Returns true if a module exports a name, such as `messages`, the message handler. The compiler needs to know it before it reads
/// the module, and complains when the module has no such export.
fn exports_name(module: &str, exported: &str) -> bool {
    let mut exports = module.split("export ").skip(1).map(str::trim_start);
    exports.any(|export| {
        let declared = ["const", "let", "var", "function"].iter().find_map(|keyword| {
            let names = export.strip_prefix(keyword)?.strip_prefix(' ')?;
            Some(names.trim_start())
        });
        let list = export
            .strip_prefix('{')
            .and_then(|list| Some(list.split_once('}')?.0));
        let is_name = |text: &str| {
            let name = text.rsplit(" as ").next().unwrap_or(text).trim();
            name == exported
        };
        match (declared, list) {
            (Some(names), _) => names
                .split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$')
                .next()
                .is_some_and(is_name),
            (_, Some(list)) => list.split(',').any(is_name),
            _ => false,
        }
    })
}

/// Returns the command that prints the kinds of a plugin's types; `None` for a plugin without types, whose author needs no
/// compiler for them.
///
/// # Errors
/// When `package.json` can't be read, or a tool is missing.
pub fn crds_command(dir: &BuildDir, progress: &mut dyn FnMut(&str)) -> Result<Option<Command>> {
    let is_typed = any_source(&dir.source, &["js", "mjs", "ts"], |text| {
        text.contains("@typedef") || text.contains("interface ") || text.contains("@import")
    });
    if !is_typed {
        return Ok(None);
    }
    let package = read_package(&dir.source)?;
    tools::require_program(&["node", "--version"], &["nodejs", "npm"], false)?;
    let compiler = install_package(dir, TYPES_PACKAGE, progress)?;
    let sdk = dir.write_files("sdk", &SDK_FILES)?.join("node_modules/ostler");
    let program = dir.write_files("crds", &[CRDS_PROGRAM])?.join(CRDS_PROGRAM.0);
    let mut command = Command::new("node");
    command
        .arg(program)
        .arg(compiler.join("node_modules/typescript"))
        .arg(sdk)
        .arg(dir.source.join(package.main));
    Ok(Some(command))
}

/// Returns the command that runs the tests of a package; `None` for one without tests. The SDK is where
/// [`write_sdk`](crate::sdk::write_sdk) has written it, or where npm has installed it.
///
/// # Errors
/// When Node is missing.
pub fn test_command(folder: &Path) -> Result<Option<Command>> {
    if !tools::TEST_DIRS.iter().any(|tests| folder.join(tests).is_dir()) {
        return Ok(None);
    }
    tools::require_program(&["node", "--version"], &["nodejs", "npm"], false)?;
    let mut command = Command::new("node");
    if folder.join("node_modules/ostler").exists() {
        command.args(["--import", "ostler/register"]);
    }
    command.arg("--test").current_dir(folder);
    Ok(Some(command))
}

/// Installs a package with an exact version, unless it is there, and returns the folder of its `node_modules`.
fn install_package(dir: &BuildDir, package: &str, progress: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    dir.install_tool(&package.replace('@', "-"), |folder| {
        progress(&format!("installing {package} from npm"));
        fs::write(folder.join("package.json"), "{\"private\": true}")?;
        let mut npm = npm_install(folder);
        // The packages pin their own dependencies to exact versions.
        npm.args(["--save-exact", package]);
        dir.run_command(npm).map(drop)
    })
}

fn npm_install(folder: &Path) -> Command {
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
    fn message_handler_is_found_by_its_export() {
        for module in [
            "export const messages = messageHandler(handle);",
            "export function messages() {}",
            "const messages = 1;\nexport { reconciler, messages };",
            "export { handler as messages } from \"./handler.js\";",
        ] {
            assert!(exports_name(module, "messages"), "{module}");
        }
        for module in [
            "export const reconciler = plugin({});",
            "export const messagesPerSecond = 1;",
            "const messages = [];",
            "export { messages as reconciler };",
        ] {
            assert!(!exports_name(module, "messages"), "{module}");
        }
    }

    #[test]
    fn plugin_name_is_the_package_name_without_scope() {
        assert_eq!(plugin_name("greeting").unwrap(), "greeting");
        assert_eq!(plugin_name("@example/greeting").unwrap(), "greeting");
        for none in ["", "@example", "@example/", "a/b", "@a/b/c", "../up", "@a/.."] {
            let error = plugin_name(none).unwrap_err().to_string();
            assert!(error.contains("@scope/name") && error.contains(none), "{error}");
        }
    }
}
