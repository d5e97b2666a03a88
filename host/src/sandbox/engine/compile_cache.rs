//! The compile cache: machine code of components, compiled in a child process and stored in a directory.
//!
//! The compiler takes ten times the memory of its output, and a malicious component may find a bug in it. A child process
//! limits both to its own lifetime.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use sha2::{Digest, Sha256};
use wasmtime::{Engine, component::Component, format_err};

use super::code_folder::CodeFolder;
use crate::kube::hash::encode_hex;

/// Longest time to compile a component, besides the time for its size.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(120);
/// Additional time per MiB: a component with an interpreter in it is large.
const COMPILE_TIMEOUT_PER_MIB: Duration = Duration::from_secs(20);

/// Maximum bytes of the error message of the child process.
const MAX_MESSAGE_BYTES: u64 = 64 << 10;

/// The directory for compiled code, and the program that compiles.
#[derive(Clone, Debug)]
pub struct CompileCache {
    /// A directory, in which compiled code has a folder of this user's own.
    pub directory: PathBuf,
    /// The program that compiles, called as `PROGRAM compile --cache DIRECTORY …` with the component as its
    /// input; none compiles in this process.
    pub compiler: Option<PathBuf>,
}

/// A file with compiled code that only this user could have written. It is kept open: its name may mean another file by now, or
/// none.
pub struct CodeFile(File);

impl CodeFile {
    /// Maps the code into memory.
    pub fn load(&self, engine: &Engine) -> wasmtime::Result<Component> {
        let path = format!("/dev/fd/{}", self.0.as_raw_fd());
        // Unsafe because it trusts the file: only this user could write it (`CodeFolder::open_file` checks that), its name identified
        // the engine and the component, and the file was renamed into place after it was complete.
        #[allow(unsafe_code)]
        unsafe {
            Component::deserialize_file(engine, path)
        }
    }
}

/// A component, and the file from which its code was loaded; none if it was compiled in this process.
pub type LoadedComponent = (Component, Option<CodeFile>);

/// Loads the code of a component from the cache; none if it has to be compiled.
pub fn load_cached(engine: &Engine, cache: Option<&CompileCache>, wasm: &[u8]) -> Option<LoadedComponent> {
    let folder = CodeFolder::open(&cache?.directory).ok()?;
    load_code(engine, &folder, &cache_file_name(engine, wasm))
}

/// Loads the code of a component from the cache, or compiles and stores it. With `arguments` a child process has an engine
/// like this one. It blocks for seconds if the component is large.
pub fn load_or_compile(
    engine: &Engine,
    cache: Option<&CompileCache>,
    arguments: &[String],
    wasm: &[u8],
) -> wasmtime::Result<LoadedComponent> {
    let compile = || Ok((Component::new(engine, wasm)?, None));
    let Some(cache) = cache else {
        return compile();
    };
    let name = cache_file_name(engine, wasm);
    let folder = match CodeFolder::open(&cache.directory) {
        Ok(folder) => folder,
        Err(e) => {
            tracing::warn!(directory = %cache.directory.display(), error = %e, "compile cache is not used");
            return compile();
        }
    };
    if let Some(loaded) = load_code(engine, &folder, &name) {
        return Ok(loaded);
    }
    if let Some(program) = &cache.compiler {
        compile_in_child(program, &cache.directory, arguments, wasm)?;
        if let Some(loaded) = load_code(engine, &folder, &name) {
            return Ok(loaded);
        }
        tracing::warn!(
            file = name,
            "compiler process stored no code, compiling in-process"
        );
    }
    let component = Component::new(engine, wasm)?;
    let stored = component.serialize().map_err(|e| format!("{e:#}"));
    if let Err(e) = stored.and_then(|code| folder.store(&name, &code).map_err(|e| e.to_string())) {
        tracing::warn!(file = name, error = e, "storing compiled code failed");
    }
    Ok((component, None))
}

/// Loads code that was compiled before.
fn load_code(engine: &Engine, folder: &CodeFolder, name: &str) -> Option<LoadedComponent> {
    let file = match folder.open_file(name) {
        Ok(file) => CodeFile(file?),
        Err(e) => {
            tracing::warn!(file = name, error = %e, "compiled code is not trusted, recompiling");
            return None;
        }
    };
    match file.load(engine) {
        Ok(component) => Some((component, Some(file))),
        Err(e) => {
            tracing::warn!(
                file = name,
                error = format!("{e:#}"),
                "loading compiled code failed, recompiling"
            );
            // Otherwise the child process would find the file, too, and not compile.
            folder.remove_file(name);
            None
        }
    }
}

/// The name of a file, which identifies the component and the engine.
fn cache_file_name(engine: &Engine, wasm: &[u8]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut compatibility = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut compatibility);
    format!(
        "{}-{:016x}.cwasm",
        encode_hex(&Sha256::digest(wasm)),
        compatibility.finish()
    )
}

/// Compiles in a child process, which stores the code.
fn compile_in_child(
    program: &Path,
    directory: &Path,
    arguments: &[String],
    wasm: &[u8],
) -> wasmtime::Result<()> {
    let child = Command::new(program)
        .arg("compile")
        .arg("--cache")
        .arg(directory)
        .args(arguments)
        // The environment of this process may have secrets.
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) => {
            tracing::warn!(program = %program.display(), error = %e, "starting compiler process failed, compiling in-process");
            return Ok(());
        }
    };
    if let Some(mut input) = child.stdin.take() {
        // If the child has ended early, its own message is the better error.
        let _ = input.write_all(wasm);
    }
    let mut message = String::new();
    let stderr = child.stderr.take();
    let mib = u32::try_from(wasm.len() >> 20).unwrap_or(u32::MAX);
    let limit = COMPILE_TIMEOUT + COMPILE_TIMEOUT_PER_MIB.saturating_mul(mib);
    let status = wait_with_timeout(&mut child, limit, || {
        // The message is shown to people, so its size is limited.
        if let Some(stderr) = stderr {
            let _ = stderr.take(MAX_MESSAGE_BYTES).read_to_string(&mut message);
        }
    })?;
    let message = message.trim();
    if status.success() {
        Ok(())
    } else if message.is_empty() {
        Err(format_err!("the compiler ended with {status}"))
    } else {
        Err(format_err!(
            "{}",
            message.strip_prefix("ostler: ").unwrap_or(message)
        ))
    }
}

/// Runs `read_output`, then waits for the child. After the timeout the child is killed.
fn wait_with_timeout(
    child: &mut Child,
    timeout: Duration,
    read_output: impl FnOnce(),
) -> wasmtime::Result<std::process::ExitStatus> {
    let pid = rustix::process::Pid::from_child(child);
    let (done, ended) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let late = ended.recv_timeout(timeout) == Err(mpsc::RecvTimeoutError::Timeout);
        if late {
            // The child has not been waited for, so the process id is still its own.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        late
    });
    read_output();
    // The child has closed its output and is about to end.
    drop(done);
    let late = watchdog.join().unwrap_or_default();
    let status = child.wait()?;
    if late {
        return Err(format_err!("took longer than {timeout:?} to compile"));
    }
    Ok(status)
}
