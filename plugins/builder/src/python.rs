//! Plugins in Python, with CPython in the component.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{
    Options, RawComponent,
    tools::{self, BuildDir},
};

/// PyPI package and version of the compiler.
const COMPILER_PACKAGE: &str = "componentize-py==0.25.1";
/// Entry module of a plugin. Not `plugin`, which is the name of the world.
const MAIN_MODULE: &str = "main";

const SDK_FILES: [(&str, &str); 3] = [
    ("ostler.py", include_str!("../../sdk-python/ostler.py")),
    (
        "ostler_provision.py",
        include_str!("../../sdk-python/ostler_provision.py"),
    ),
    (
        "ostler_provider.py",
        include_str!("../../sdk-python/ostler_provider.py"),
    ),
];

/// Builds the Python project in a folder.
///
/// # Errors
/// The output of the tools, or a missing tool.
pub fn build_component(
    folder: &Path,
    options: &Options,
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
    let sdk = SDK_FILES.map(|(_, text)| text).concat();
    let wasm = dir.build_unless_current(&[COMPILER_PACKAGE, &sdk], || {
        compile_component(&dir, options, progress)
    })?;
    Ok(RawComponent {
        name: name.to_owned(),
        wasm,
        output_dir: dir.target,
        warnings: Vec::new(),
    })
}

fn compile_component(dir: &BuildDir, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Vec<u8>> {
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
    if dir.source.join("requirements.txt").is_file() {
        progress("installing requirements.txt from PyPI");
        // Pure Python only: extensions in C would be built for this machine, not for the component.
        let mut pip = pip_install(
            &compiler,
            &["--no-compile", "--target", ".", "-r", "requirements.txt"],
        );
        pip.current_dir(&stage);
        dir.run_command(pip)?;
    }
    let entry = stage.join(MAIN_MODULE).with_extension("py");
    let source = fs::read_to_string(&entry).with_context(|| format!("reading {MAIN_MODULE}.py"))?;
    let world = crate::contract::plugin_world(exports_messages(&source));
    progress("componentize-py");
    let component = dir.work.join("made.wasm");
    let mut command = Command::new(compiler.join("bin/componentize-py"));
    command
        .arg("--wit-path")
        .arg(dir.write_wit()?)
        .args(["--world", world, "componentize", "--python-path"])
        .arg(&stage)
        .args([MAIN_MODULE, "--output"])
        .arg(&component)
        // componentize-py would also bundle packages of an active virtual environment.
        .env_remove("VIRTUAL_ENV")
        .env("PYTHONHASHSEED", "0");
    dir.run_command(command)?;
    Ok(fs::read(component)?)
}

/// Returns true if the entry module has `Messages`, the message handler. The compiler needs to know it before it reads the
/// module, and complains when the module has no such class.
fn exports_messages(module: &str) -> bool {
    let is_name = |text: &str| {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
        &text[..end.unwrap_or(text.len())] == "Messages"
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
            assert!(exports_messages(module), "{module}");
        }
        for module in [
            "Reconciler = plugin()",
            "    Messages = 1",
            "MessagesHandled = 1",
            "# Messages",
            "import Messages",
        ] {
            assert!(!exports_messages(module), "{module}");
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
