//! Plugins in Python, with CPython in the component.

pub mod bindings;
mod quick;

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::{
    BuildOptions, RawComponent,
    contract::OptionalExports,
    tools::{self, BuildDir},
};

/// PyPI package and version of the compiler.
const COMPILER_PACKAGE: &str = "componentize-py==0.25.1";
/// Entry module of a plugin. Not `plugin`, which is the name of the world.
const MAIN_MODULE: &str = "main";
/// File with the packages that a plugin needs.
const REQUIREMENTS: &str = "requirements.txt";

/// Files of the SDK.
pub(crate) const SDK_FILES: [(&str, &str); 4] = [
    ("ostler.py", include_str!("../../sdk-python/ostler.py")),
    (
        "ostler_types.py",
        include_str!("../../sdk-python/ostler_types.py"),
    ),
    (
        "ostler_provision.py",
        include_str!("../../sdk-python/ostler_provision.py"),
    ),
    (
        "ostler_provider.py",
        include_str!("../../sdk-python/ostler_provider.py"),
    ),
];

/// Files of the SDK for native tests, which no component has.
pub(crate) const TEST_FILES: [(&str, &str); 2] = [
    (
        "ostler_testing.py",
        include_str!("../../sdk-python/ostler_testing.py"),
    ),
    ("ostler_wit.py", include_str!("../../sdk-python/ostler_wit.py")),
];

/// Program that prints the kinds of a plugin's types.
const CRDS_PROGRAM: (&str, &str) = ("crds.py", include_str!("../../sdk-python/crds.py"));

/// Returns the command that prints the kinds of a plugin's types. It imports the plugin's module, in which packages of
/// `requirements.txt` are found after a build.
///
/// # Errors
/// When the SDK can't be written, or Python is missing.
pub fn crds_command(dir: &BuildDir) -> Result<Command> {
    tools::require_program(&["python3", "--version"], &["python3"], false)?;
    let sdk = write_native_sdk(dir)?;
    let program = dir.write_files("crds", &[CRDS_PROGRAM])?.join(CRDS_PROGRAM.0);
    let mut command = Command::new("python3");
    command.arg("-B").arg(program).arg(&dir.source).arg(sdk);
    command.args(built_packages(dir));
    Ok(command)
}

/// Returns the command that runs the tests of a project; `None` for one without tests. Packages of `requirements.txt` are found
/// after a build.
///
/// # Errors
/// When the SDK can't be written, or Python is missing.
pub fn test_command(folder: &Path) -> Result<Option<Command>> {
    if !folder.join("tests").is_dir() {
        return Ok(None);
    }
    tools::require_program(&["python3", "--version"], &["python3"], false)?;
    let dir = BuildDir::new(folder, "test")?;
    let sdk = write_native_sdk(&dir)?;
    let folders = [dir.source.clone(), sdk].into_iter().chain(built_packages(&dir));
    let inherited = std::env::var_os("PYTHONPATH").unwrap_or_default();
    let all = folders.chain(std::env::split_paths(&inherited).filter(|path| !path.as_os_str().is_empty()));
    let mut command = Command::new("python3");
    command
        .args(["-B", "-m", "unittest", "discover", "tests"])
        .env("PYTHONPATH", std::env::join_paths(all)?)
        .current_dir(folder);
    Ok(Some(command))
}

/// Writes the SDK for programs outside of a component.
fn write_native_sdk(dir: &BuildDir) -> Result<PathBuf> {
    dir.write_files("sdk", &TEST_FILES)?;
    dir.write_files("sdk", &SDK_FILES)
}

/// The folder of the packages that the build of a project has installed.
fn built_packages(dir: &BuildDir) -> Option<PathBuf> {
    let text = fs::read_to_string(dir.source.join("pyproject.toml")).unwrap_or_default();
    let name = project_name(&text)?;
    packages_dir(&dir.source, &dir.target.join("plugins").join(name))
}

/// The modules of a plugin.
#[derive(Deserialize)]
struct ScannedModules {
    /// Path and text by full name.
    modules: Map<String, Value>,
    /// Full names of modules, and names in them, that they import from elsewhere.
    imports: Vec<String>,
}

/// Reads a plugin's modules and checks their syntax, which the compiler reports only after it has started the interpreter.
///
/// # Errors
/// File, line and text of the first syntax error.
fn scan_modules(dir: &BuildDir, stage: &Path) -> Result<ScannedModules> {
    let mut command = Command::new("python3");
    command
        .args(["-B", "-c", SCAN_PROGRAM])
        .arg(stage)
        .args(SDK_FILES.map(|(name, _)| name));
    Ok(serde_json::from_str(&dir.run_command(command)?)?)
}

/// Compiles the modules of a folder without running or writing them, and prints them but those of the SDK, which the further
/// arguments name.
const SCAN_PROGRAM: &str = r#"
import ast, importlib.util, json, pathlib, sys, traceback
folder, sdk = pathlib.Path(sys.argv[1]), set(sys.argv[2:])
modules, imports = {}, set()
for path in sorted(folder.rglob("*.py")):
    file = path.relative_to(folder)
    if str(file) in sdk:
        continue
    try:
        source = path.read_bytes()
        compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        sys.exit("".join(traceback.format_exception_only(error)).strip())
    parts = file.with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    modules[name] = [str(file), importlib.util.decode_source(source)]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imports.add(node.module)
            imports.update(f"{node.module}.{alias.name}" for alias in node.names)
own = {name.split(".")[0] for name in modules}
print(json.dumps({"modules": modules, "imports": sorted(name for name in imports if name.split(".")[0] not in own)}))
"#;

/// Builds the Python project in a folder.
///
/// # Errors
/// The output of the tools, or a missing tool.
pub fn build_component(
    folder: &Path,
    options: &BuildOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<RawComponent> {
    let path = folder.join("pyproject.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let Some(name) = project_name(&text) else {
        bail!("{}: it has no `name = \"…\"` in [project]", path.display());
    };
    if !folder.join(MAIN_MODULE).with_extension("py").is_file() {
        bail!(
            "{}: it has no {MAIN_MODULE}.py, the entry module of a plugin",
            folder.display()
        );
    }
    let dir = BuildDir::new(folder, name)?;
    let quick = match options.quick {
        true => quick::build(&dir, &PreparedBuild::prepare(&dir, options, progress)?, progress)?,
        false => None,
    };
    let wasm = match quick {
        Some(wasm) => wasm,
        None => {
            let sdk = SDK_FILES.map(|(_, text)| text).concat();
            dir.build_unless_current(&[COMPILER_PACKAGE, &sdk], || {
                let prepared = PreparedBuild::prepare(&dir, options, progress)?;
                prepared.componentize(&dir, &prepared.stage, MAIN_MODULE, progress)
            })?
        }
    };
    Ok(RawComponent {
        name: name.to_owned(),
        wasm,
        output_dir: dir.target,
        warnings: Vec::new(),
    })
}

/// What a compilation needs: the compiler, the source and its packages.
struct PreparedBuild {
    /// Folder of the compiler.
    compiler: PathBuf,
    /// Copy of the source with the SDK.
    stage: PathBuf,
    /// The modules of the source.
    scanned: ScannedModules,
    /// Folder with the packages of `requirements.txt`, if there is one.
    packages: Option<PathBuf>,
    /// World with the interfaces that the plugin exports.
    world: &'static str,
}

impl PreparedBuild {
    /// Installs the compiler and the packages, unless they are there, and checks the syntax of the source.
    fn prepare(dir: &BuildDir, options: &BuildOptions, progress: &mut dyn FnMut(&str)) -> Result<Self> {
        tools::require_program(
            &["python3", "-c", "import ensurepip, venv"],
            &["python3", "python3-venv"],
            options.install,
        )?;
        let compiler = dir.install_tool(&COMPILER_PACKAGE.replace("==", "-"), |folder| {
            progress(&format!("installing {COMPILER_PACKAGE} from PyPI"));
            let mut venv = Command::new("python3");
            venv.args(["-m", "venv"]).arg(folder);
            dir.run_command(venv)?;
            dir.run_command(pip_install(folder, &["--no-deps", COMPILER_PACKAGE]))
                .map(drop)
        })?;
        let stage = dir.stage_source(&SDK_FILES)?;
        let scanned = scan_modules(dir, &stage)?;
        let packages = packages_dir(&dir.source, &dir.work);
        if let Some(packages) = &packages {
            install_requirements(dir, &compiler, packages, progress)?;
        }
        let entry = stage.join(MAIN_MODULE).with_extension("py");
        let source = fs::read_to_string(&entry).with_context(|| format!("reading {MAIN_MODULE}.py"))?;
        let world = OptionalExports {
            messages: exports_name(&source, "Messages"),
            lifecycle: exports_name(&source, "Lifecycle"),
        }
        .world();
        Ok(Self {
            compiler,
            stage,
            scanned,
            packages,
            world,
        })
    }

    /// Compiles the interpreter with an entry module and all that it imports from a folder.
    fn componentize(
        &self,
        dir: &BuildDir,
        folder: &Path,
        module: &str,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<u8>> {
        progress("componentize-py");
        let component = dir.work.join("made.wasm");
        let packages = self.packages.iter();
        let mut command = Command::new(self.compiler.join("bin/componentize-py"));
        command
            .arg("--wit-path")
            .arg(dir.write_wit()?)
            .args(["--world", self.world, "componentize", "--python-path"])
            .arg(folder)
            .args(packages.flat_map(|packages| [OsStr::new("--python-path"), packages.as_os_str()]))
            .args([module, "--output"])
            .arg(&component)
            // componentize-py would also bundle packages of an active virtual environment.
            .env_remove("VIRTUAL_ENV")
            .env("PYTHONHASHSEED", "0");
        dir.run_command(command)?;
        Ok(fs::read(component)?)
    }
}

/// Returns the folder with the packages of `requirements.txt`, if there is one. It is named by the content of that file, so
/// that packages are installed only when it changes.
fn packages_dir(source: &Path, work: &Path) -> Option<PathBuf> {
    let requirements = fs::read(source.join(REQUIREMENTS)).ok()?;
    let digest = format!("{:x}", Sha256::digest(requirements));
    Some(work.join("packages").join(&digest[..16]))
}

/// Installs the packages of `requirements.txt`, unless they are there.
fn install_requirements(
    dir: &BuildDir,
    compiler: &Path,
    packages: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<()> {
    if packages.is_dir() {
        return Ok(());
    }
    progress("installing requirements.txt from PyPI");
    let all = packages.parent().context("a folder of packages")?;
    // Those of the former requirements.
    if all.exists() {
        fs::remove_dir_all(all).with_context(|| format!("clearing {}", all.display()))?;
    }
    let partial = all.join("partial");
    fs::create_dir_all(&partial).with_context(|| format!("making {}", partial.display()))?;
    // Pure Python only: extensions in C would be built for this machine, not for the component.
    let mut pip = pip_install(compiler, &["--no-compile", "--target"]);
    pip.arg(&partial)
        .args(["-r", REQUIREMENTS])
        .current_dir(dir.work.join("stage"));
    dir.run_command(pip)?;
    fs::rename(&partial, packages).with_context(|| format!("making {}", packages.display()))
}

/// Returns true if the entry module has a class, such as `Messages`, the message handler. The compiler needs to know it before it
/// reads the module, and complains when the module has no such class.
fn exports_name(module: &str, class: &str) -> bool {
    let is_name = |text: &str| {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
        &text[..end.unwrap_or(text.len())] == class
    };
    module.lines().any(|line| {
        let imported = line
            .strip_prefix("from ")
            .and_then(|rest| rest.split_once(" import "));
        match imported {
            Some((_, names)) => names
                .split(',')
                .any(|name| is_name(name.rsplit(" as ").next().unwrap_or(name).trim())),
            None => is_name(line.strip_prefix("class ").unwrap_or(line)),
        }
    })
}

fn pip_install(venv: &Path, arguments: &[&str]) -> Command {
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(arguments);
    pip
}

/// Finds the project's name, the only field needed, without a TOML parser.
fn project_name(pyproject: &str) -> Option<&str> {
    let mut lines = pyproject.lines().map(str::trim);
    lines.find(|line| *line == "[project]")?;
    lines.take_while(|line| !line.starts_with('[')).find_map(|line| {
        let value = line.strip_prefix("name")?.trim_start().strip_prefix('=')?.trim();
        value.strip_prefix('"')?.split_once('"').map(|(name, _)| name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_handler_is_found_by_its_name() {
        for module in [
            "Messages = message_handler(handle)",
            "class Messages(exports.Messages):",
            "from handlers import Messages",
            "from handlers import other, Handler as Messages",
        ] {
            assert!(exports_name(module, "Messages"), "{module}");
        }
        for module in [
            "Reconciler = plugin()",
            "    Messages = 1",
            "MessagesHandled = 1",
            "# Messages",
            "import Messages",
        ] {
            assert!(!exports_name(module, "Messages"), "{module}");
        }
    }

    #[test]
    fn project_name_is_read_from_the_project_table_only() {
        let text = "[tool.x]\nname = \"no\"\n[project]\nversion = \"1\"\nname = \"yes\" # so\n[other]\nname = \"no\"";
        assert_eq!(project_name(text), Some("yes"));
        assert_eq!(
            project_name("[project]\nversion = \"1\"\n[a]\nname = \"no\""),
            None
        );
    }
}
