//! Python, with CPython in the component.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{
    Made, Options,
    tools::{self, Workplace},
};

/// The compiler's version.
const COMPILER: &str = "componentize-py==0.25.1";
/// The module a plugin begins in. Not `plugin`: that is the name of the world.
const MODULE: &str = "main";

const SDK: [(&str, &str); 1] = [("ostler.py", include_str!("../../sdk-python/ostler.py"))];

/// What is made of the Python project in a folder.
///
/// # Errors
/// The tools' own words, or one that is missing.
pub fn make(folder: &Path, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Made> {
    let path = folder.join("pyproject.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let Some(name) = name(&text) else {
        bail!("{}: it has no `name = \"…\"` in [project]", path.display());
    };
    if !folder.join(MODULE).with_extension("py").is_file() {
        bail!("{}: no {MODULE}.py, in which a plugin begins", folder.display());
    }
    let place = Workplace::of(folder, name)?;
    let wasm = place.unless_current(&[COMPILER, SDK[0].1], || compile(&place, options, progress))?;
    Ok(Made {
        name: name.to_owned(),
        wasm,
        place: place.target,
        warnings: Vec::new(),
    })
}

fn compile(place: &Workplace, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Vec<u8>> {
    tools::require(
        &["python3", "-c", "import ensurepip, venv"],
        &["python3", "python3-venv"],
        options.install,
    )?;
    let compiler = place.tool(&COMPILER.replace("==", "-"), |folder| {
        progress(&format!("installing {COMPILER} from PyPI"));
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(folder);
        place.run(venv)?;
        place.run(pip(folder, &["--no-deps", COMPILER])).map(drop)
    })?;
    let stage = place.stage(&SDK)?;
    if place.source.join("requirements.txt").is_file() {
        progress("installing requirements.txt from PyPI");
        // Modules in C would be for this machine, not for the component.
        let mut pip = pip(
            &compiler,
            &["--no-compile", "--target", ".", "-r", "requirements.txt"],
        );
        pip.current_dir(&stage);
        place.run(pip)?;
    }
    progress("componentize-py");
    let component = place.folder.join("made.wasm");
    let mut command = Command::new(compiler.join("bin/componentize-py"));
    command
        .arg("--wit-path")
        .arg(place.wit()?)
        .args(["--world", crate::contract::WORLD, "componentize", "--python-path"])
        .arg(&stage)
        .args([MODULE, "--output"])
        .arg(&component)
        // Or else it looks for packages there, too.
        .env_remove("VIRTUAL_ENV")
        .env("PYTHONHASHSEED", "0");
    place.run(command)?;
    Ok(fs::read(component)?)
}

fn pip(venv: &Path, arguments: &[&str]) -> Command {
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(arguments);
    pip
}

/// The project's name: all that is needed of the file.
fn name(pyproject: &str) -> Option<&str> {
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
    fn the_name_is_the_projects() {
        let text = "[tool.x]\nname = \"no\"\n[project]\nversion = \"1\"\nname = \"yes\" # so\n[other]\nname = \"no\"";
        assert_eq!(name(text), Some("yes"));
        assert_eq!(name("[project]\nversion = \"1\"\n[a]\nname = \"no\""), None);
    }
}
