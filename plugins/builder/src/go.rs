//! Go, by its own compiler: `GOOS=wasip1` and `//go:wasmexport`.

pub mod bindings;

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};

use crate::{
    Made, Options, contract,
    tools::{self, Workplace},
};

/// What the adapter imports, as a world.
const ADAPTER_WORLD: (&str, &str) = (
    "adapter.wit",
    "package ostler:plugin@0.1.0;\nworld adapter { import log; import clock; }\n",
);
const ADAPTER: &str = include_str!("go/wasip1.wat");

const SDK: [(&str, &str); 8] = [
    ("go.mod", include_str!("../../sdk-go/go.mod")),
    ("host.go", include_str!("../../sdk-go/host.go")),
    ("ostler.go", include_str!("../../sdk-go/ostler.go")),
    ("wit/wit.go", include_str!("../../sdk-go/wit/wit.go")),
    ("wit/memory.go", include_str!("../../sdk-go/wit/memory.go")),
    ("wit/types.go", include_str!("../../sdk-go/wit/types.go")),
    ("wit/abi.go", include_str!("../../sdk-go/wit/abi.go")),
    ("wit/native.go", include_str!("../../sdk-go/wit/native.go")),
];

/// What is made of the Go module in a folder.
///
/// # Errors
/// The compiler's own words, or a tool that is missing.
pub fn make(folder: &Path, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Made> {
    let path = folder.join("go.mod");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let module = text
        .lines()
        .find_map(|line| line.strip_prefix("module "))
        .map(str::trim);
    let name = module.and_then(|module| module.rsplit('/').next());
    let Some(name) = name else {
        bail!("{}: it has no line `module NAME`", path.display());
    };
    tools::require(&["go", "version"], &["golang"], options.install)?;
    let place = Workplace::of(folder, name)?;
    let compiler = tools::run(command("go", &["version"]))?;
    let sdk = SDK.map(|(_, text)| text).concat();
    let wasm = place.unless_current(&[&compiler, ADAPTER, &sdk], || compile(&place, progress))?;
    Ok(Made {
        name: name.to_owned(),
        wasm,
        place: place.target,
        warnings: Vec::new(),
    })
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Makes a workspace of plugin and SDK; gives its file, as `GOWORK` wants it.
///
/// # Errors
/// When it can't be written.
pub fn workspace(place: &Workplace) -> Result<std::path::PathBuf> {
    let sdk = place.write("sdk", &SDK)?;
    let text = format!("go 1.24\n\nuse {:?}\nuse {:?}\n", place.source, sdk);
    Ok(place.write(".", &[("go.work", &text)])?.join("go.work"))
}

/// `go test` of the module in a folder, where it finds the SDK.
///
/// # Errors
/// When the workspace can't be written.
pub fn test(folder: &Path) -> Result<Command> {
    let place = Workplace::of(folder, "test")?;
    let mut command = command("go", &["test", "./..."]);
    command.current_dir(folder).env("GOWORK", workspace(&place)?);
    Ok(command)
}

fn compile(place: &Workplace, progress: &mut dyn FnMut(&str)) -> Result<Vec<u8>> {
    progress("go build");
    let module = place.folder.join("module.wasm");
    let mut build = command(
        "go",
        &[
            "build",
            "-buildmode=c-shared",
            "-trimpath",
            "-ldflags=-s -w",
            "-o",
        ],
    );
    build
        .arg(&module)
        .arg(".")
        .current_dir(&place.source)
        .env("GOWORK", workspace(place)?)
        .envs([
            ("GOOS", "wasip1"),
            ("GOARCH", "wasm"),
            ("GOFLAGS", "-buildvcs=false"),
            ("CGO_ENABLED", "0"),
        ]);
    place.run(build)?;
    progress("making a component of it");
    encode(&fs::read(&module)?).with_context(|| format!("making a component of {}", place.name))
}

/// The component of what Go's compiler made.
fn encode(module: &[u8]) -> Result<Vec<u8>> {
    let (resolve, world) = contract::resolve(&[], contract::WORLD)?;
    let mut module = module.to_vec();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    let mut adapter = wat::parse_str(ADAPTER)?;
    let (resolve, world) = contract::resolve(&[ADAPTER_WORLD], "adapter")?;
    embed_component_metadata(&mut adapter, &resolve, world, StringEncoding::UTF8)?;
    let component = ComponentEncoder::default()
        .validate(true)
        .module(&module)?
        .adapter("wasi_snapshot_preview1", &adapter)?
        .encode()?;
    crate::component::without_wasi(&component)?;
    Ok(component)
}

/// A text as gofmt writes it.
///
/// # Errors
/// Where it is no Go.
pub fn formatted(text: &str) -> Result<String> {
    // The first look breaks lines that only the second one indents.
    gofmt(&gofmt(text)?)
}

fn gofmt(text: &str) -> Result<String> {
    let mut gofmt = Command::new("gofmt")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("running gofmt")?;
    let mut input = gofmt.stdin.take().context("piped")?;
    // Its output is larger than a pipe holds.
    let text = text.to_owned();
    let writing = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = gofmt.wait_with_output()?;
    let _ = writing.join();
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
