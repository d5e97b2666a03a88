//! The compile cache: machine code of components, compiled in a child process and stored in a directory.
//!
//! The compiler takes ten times the memory of its output, and a malicious component may find a bug in it. A child process
//! limits both to its own lifetime.

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use sha2::{Digest, Sha256};
use wasmtime::{Engine, component::Component, format_err};

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
    /// A directory that only this user may write to.
    pub directory: PathBuf,
    /// The program that compiles, called as `PROGRAM compile --cache DIRECTORY …` with the component as its
    /// input; none compiles in this process.
    pub compiler: Option<PathBuf>,
}

/// Loads the code of a component from the cache; none if it has to be compiled.
pub fn load_cached(engine: &Engine, cache: Option<&CompileCache>, wasm: &[u8]) -> Option<Component> {
    load_code(engine, &cache?.directory.join(cache_file_name(engine, wasm)))
}

/// Loads the code of a component from the cache, or compiles and stores it. With `arguments` a child process has an engine
/// like this one. It blocks for seconds if the component is large.
pub fn load_or_compile(
    engine: &Engine,
    cache: Option<&CompileCache>,
    arguments: &[String],
    wasm: &[u8],
) -> wasmtime::Result<Component> {
    let Some(cache) = cache else {
        return Component::new(engine, wasm);
    };
    let file = cache.directory.join(cache_file_name(engine, wasm));
    if let Some(component) = load_code(engine, &file) {
        return Ok(component);
    }
    if let Some(program) = &cache.compiler {
        compile_in_child(program, &cache.directory, arguments, wasm)?;
        if let Some(component) = load_code(engine, &file) {
            return Ok(component);
        }
        tracing::warn!(file = %file.display(), "compiler process stored no code, compiling in-process");
    }
    let component = Component::new(engine, wasm)?;
    if let Err(e) = store_code(&component, &cache.directory, &file) {
        tracing::warn!(file = %file.display(), error = format!("{e:#}"), "storing compiled code failed");
    }
    Ok(component)
}

/// Loads code that was compiled before.
fn load_code(engine: &Engine, file: &Path) -> Option<Component> {
    if !file.exists() {
        return None;
    }
    // Unsafe because it trusts the file: only this user may write to the directory, the name identifies the engine and
    // the component, and the file was renamed into place after it was complete.
    #[allow(unsafe_code)]
    match unsafe { Component::deserialize_file(engine, file) } {
        Ok(component) => Some(component),
        Err(e) => {
            tracing::warn!(file = %file.display(), error = format!("{e:#}"), "loading compiled code failed, recompiling");
            // Otherwise the child process would find the file, too, and not compile.
            let _ = std::fs::remove_file(file);
            None
        }
    }
}

/// Stores code under a temporary name and renames it, so that a reader never sees a part of it.
fn store_code(component: &Component, directory: &Path, file: &Path) -> wasmtime::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let code = component.serialize()?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let partial = file.with_extension(format!("{}.partial", std::process::id()));
    std::fs::write(&partial, code)?;
    Ok(std::fs::rename(&partial, file)?)
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
