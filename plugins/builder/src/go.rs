//! Plugins in Go, compiled by the standard compiler with `GOOS=wasip1` and `//go:wasmexport`.

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
    BuildOptions, RawComponent, contract,
    tools::{self, BuildDir},
};

/// World of the adapter: the host's interfaces that it imports.
const ADAPTER_WORLD: (&str, &str) = (
    "adapter.wit",
    "package ostler:plugin@0.1.0;\nworld adapter { import log; import clock; }\n",
);
const ADAPTER_WAT: &str = include_str!("go/wasip1.wat");

/// Entry points of the message handler and of the life-cycle hooks in a core module.
const MESSAGES_ENTRY_POINT: &str = "ostler:plugin/messages@0.1.0#handle";
const LIFECYCLE_ENTRY_POINT: &str = "ostler:plugin/lifecycle@0.1.0#initialize";

/// Files of the SDK.
pub(crate) const SDK_FILES: [(&str, &str); 16] = [
    ("go.mod", include_str!("../../sdk-go/go.mod")),
    ("host.go", include_str!("../../sdk-go/host.go")),
    ("json.go", include_str!("../../sdk-go/json.go")),
    ("ostler.go", include_str!("../../sdk-go/ostler.go")),
    ("provider.go", include_str!("../../sdk-go/provider.go")),
    ("provision.go", include_str!("../../sdk-go/provision.go")),
    ("wit/wit.go", include_str!("../../sdk-go/wit/wit.go")),
    ("wit/memory.go", include_str!("../../sdk-go/wit/memory.go")),
    ("wit/types.go", include_str!("../../sdk-go/wit/types.go")),
    ("wit/abi.go", include_str!("../../sdk-go/wit/abi.go")),
    ("wit/panics.go", include_str!("../../sdk-go/wit/panics.go")),
    ("wit/native.go", include_str!("../../sdk-go/wit/native.go")),
    (
        "messages/messages.go",
        include_str!("../../sdk-go/messages/messages.go"),
    ),
    ("messages/abi.go", include_str!("../../sdk-go/messages/abi.go")),
    (
        "lifecycle/lifecycle.go",
        include_str!("../../sdk-go/lifecycle/lifecycle.go"),
    ),
    ("lifecycle/abi.go", include_str!("../../sdk-go/lifecycle/abi.go")),
];

/// Files of the SDK for native tests, which no component has.
pub(crate) const TEST_FILES: [(&str, &str); 4] = [
    (
        "ostlertest/host.go",
        include_str!("../../sdk-go/ostlertest/host.go"),
    ),
    (
        "ostlertest/objects.go",
        include_str!("../../sdk-go/ostlertest/objects.go"),
    ),
    (
        "ostlertest/readiness.go",
        include_str!("../../sdk-go/ostlertest/readiness.go"),
    ),
    (
        "ostlertest/selectors.go",
        include_str!("../../sdk-go/ostlertest/selectors.go"),
    ),
];

/// Builds the Go module in a folder.
///
/// # Errors
/// The output of the compiler, or a missing tool.
pub fn build_component(
    folder: &Path,
    options: &BuildOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<RawComponent> {
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
    tools::require_program(&["go", "version"], &["golang"], options.install)
        .context("Go 1.24 or later is needed")?;
    let dir = BuildDir::new(folder, name)?;
    let compiler = tools::run_command(new_command("go", &["version"]))?;
    let sdk = SDK_FILES.map(|(_, text)| text).concat();
    let wasm = dir.build_unless_current(&[&compiler, ADAPTER_WAT, &sdk], || {
        compile_component(&dir, progress)
    })?;
    Ok(RawComponent {
        name: name.to_owned(),
        wasm,
        output_dir: dir.target,
        warnings: Vec::new(),
    })
}

fn new_command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Writes a Go workspace of the plugin and the SDK. Returns its file, for `GOWORK`.
///
/// # Errors
/// When it can't be written.
pub fn write_workspace(dir: &BuildDir) -> Result<std::path::PathBuf> {
    let sdk = dir.write_files("sdk", &SDK_FILES)?;
    dir.write_files("sdk", &TEST_FILES)?;
    let text = format!("go 1.24\n\nuse {:?}\nuse {:?}\n", dir.source, sdk);
    Ok(dir.write_files(".", &[("go.work", &text)])?.join("go.work"))
}

/// `go test` of the module in a folder, where it finds the SDK_FILES.
///
/// # Errors
/// When the workspace can't be written.
pub fn test_command(folder: &Path) -> Result<Command> {
    let dir = BuildDir::new(folder, "test")?;
    let mut command = new_command("go", &["test", "./..."]);
    command.current_dir(folder).env("GOWORK", write_workspace(&dir)?);
    Ok(command)
}

/// Program that prints the kinds of a plugin's types. Go leaves out folders with such a name, of which `./...` stands for all.
const CRDS_PROGRAM: (&str, &str) = ("_crds/main.go", include_str!("../../sdk-go/crds/main.go"));

/// Returns the command that prints the kinds of a plugin's types.
///
/// # Errors
/// When the program can't be written, or Go is missing.
pub fn crds_command(dir: &BuildDir) -> Result<Command> {
    tools::require_program(&["go", "version"], &["golang"], false)?;
    let program = dir.write_files(".", &[CRDS_PROGRAM])?.join(CRDS_PROGRAM.0);
    let mut command = new_command("go", &["run"]);
    command
        .arg(program)
        .arg(&dir.source)
        .env("GOWORK", "off")
        .env("GOFLAGS", "");
    Ok(command)
}

fn compile_component(dir: &BuildDir, progress: &mut dyn FnMut(&str)) -> Result<Vec<u8>> {
    progress("go build");
    let module = dir.work.join("module.wasm");
    let mut build = new_command(
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
        .current_dir(&dir.source)
        .env("GOWORK", write_workspace(dir)?)
        .envs([
            ("GOOS", "wasip1"),
            ("GOARCH", "wasm"),
            ("GOFLAGS", "-buildvcs=false"),
            ("CGO_ENABLED", "0"),
        ]);
    dir.run_command(build)?;
    progress("encoding the component");
    encode_component(&fs::read(&module)?).with_context(|| format!("encoding the component of {}", dir.name))
}

/// Encodes a module of Go's compiler as a component, with the adapter in place of WASI.
fn encode_component(module: &[u8]) -> Result<Vec<u8>> {
    // The packages `messages` and `lifecycle` of the SDK have the entry points: importing them exports these.
    let exports = contract::OptionalExports {
        messages: exports_function(module, MESSAGES_ENTRY_POINT)?,
        lifecycle: exports_function(module, LIFECYCLE_ENTRY_POINT)?,
    };
    let (resolve, world) = contract::resolve_world(&[], exports.world())?;
    let mut module = module.to_vec();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    let mut adapter = wat::parse_str(ADAPTER_WAT)?;
    let (resolve, world) = contract::resolve_world(&[ADAPTER_WORLD], "adapter")?;
    embed_component_metadata(&mut adapter, &resolve, world, StringEncoding::UTF8)?;
    let component = ComponentEncoder::default()
        .validate(true)
        .module(&module)?
        .adapter("wasi_snapshot_preview1", &adapter)?
        .encode()?;
    crate::component::reject_wasi(&component)?;
    Ok(component)
}

/// Returns true if a core module exports this function.
fn exports_function(module: &[u8], name: &str) -> Result<bool> {
    for payload in wasmparser::Parser::new(0).parse_all(module) {
        if let wasmparser::Payload::ExportSection(exports) = payload? {
            for export in exports {
                if export?.name == name {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// Formats Go source.
///
/// # Errors
/// The syntax error that gofmt reports.
pub fn format_source(text: &str) -> Result<String> {
    // Twice: lines that the first pass breaks are indented by the second.
    run_gofmt(&run_gofmt(text)?)
}

fn run_gofmt(text: &str) -> Result<String> {
    let mut gofmt = Command::new("gofmt")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("running gofmt")?;
    let mut input = gofmt.stdin.take().context("piped")?;
    // On a thread, because input and output are larger than the buffer of a pipe.
    let text = text.to_owned();
    let writing = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = gofmt.wait_with_output()?;
    let _ = writing.join();
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
