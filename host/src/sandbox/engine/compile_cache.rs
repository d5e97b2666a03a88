//! Machine code of components: compiled in a process of its own where there is one, kept in a directory.
//!
//! The compiler takes ten times the memory of what it makes, and what a component can make it do is nobody's
//! promise: in a process of its own both end with it.

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

/// A component that takes longer to compile is refused; with an interpreter in it it has more time.
const DEADLINE: Duration = Duration::from_secs(120);
const DEADLINE_PER_MIB: Duration = Duration::from_secs(20);

/// Where compiled code is kept, and who makes it.
#[derive(Clone, Debug)]
pub struct Cache {
    /// A directory only this user may write to.
    pub directory: PathBuf,
    /// The program that compiles, called as `PROGRAM compile --cache DIRECTORY …` with the component as its
    /// input; none compiles in this process.
    pub compiler: Option<PathBuf>,
}

/// The code of a component: from the cache, or compiled and kept there. `arguments` are those that make another
/// process's engine like this one. Blocks: minutes of code take seconds.
pub fn component(
    engine: &Engine,
    cache: Option<&Cache>,
    arguments: &[String],
    wasm: &[u8],
) -> wasmtime::Result<Component> {
    let Some(cache) = cache else {
        return Component::new(engine, wasm);
    };
    let file = cache.directory.join(name(engine, wasm));
    if let Some(component) = kept(engine, &file) {
        return Ok(component);
    }
    if let Some(program) = &cache.compiler {
        elsewhere(program, &cache.directory, arguments, wasm)?;
        if let Some(component) = kept(engine, &file) {
            return Ok(component);
        }
        tracing::warn!(file = %file.display(), "compiler process stored no code, compiling in-process");
    }
    let component = Component::new(engine, wasm)?;
    if let Err(e) = keep(&component, &cache.directory, &file) {
        tracing::warn!(file = %file.display(), error = format!("{e:#}"), "storing compiled code failed");
    }
    Ok(component)
}

/// Code that was compiled before.
fn kept(engine: &Engine, file: &Path) -> Option<Component> {
    if !file.exists() {
        return None;
    }
    // Unsafe because it trusts the file: the directory is this user's, the name says for which
    // engine and component it was written, and it was renamed into place whole.
    #[allow(unsafe_code)]
    match unsafe { Component::deserialize_file(engine, file) } {
        Ok(component) => Some(component),
        Err(e) => {
            tracing::warn!(file = %file.display(), error = format!("{e:#}"), "loading compiled code failed, recompiling");
            // Or else another process would find it, too, and have nothing to do.
            let _ = std::fs::remove_file(file);
            None
        }
    }
}

fn keep(component: &Component, directory: &Path, file: &Path) -> wasmtime::Result<()> {
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

/// Names the component and the engine whose code it is.
fn name(engine: &Engine, wasm: &[u8]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut compatibility = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut compatibility);
    format!(
        "{}-{:016x}.cwasm",
        encode_hex(&Sha256::digest(wasm)),
        compatibility.finish()
    )
}

/// Has another process compile it.
fn elsewhere(program: &Path, directory: &Path, arguments: &[String], wasm: &[u8]) -> wasmtime::Result<()> {
    let child = Command::new(program)
        .arg("compile")
        .arg("--cache")
        .arg(directory)
        .args(arguments)
        // Nothing of this process's surroundings, least of all what may be secret.
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
        // It may have ended early; what it says then is the better error.
        let _ = input.write_all(wasm);
    }
    let mut said = String::new();
    let complaints = child.stderr.take();
    let mib = u32::try_from(wasm.len() >> 20).unwrap_or(u32::MAX);
    let limit = DEADLINE + DEADLINE_PER_MIB.saturating_mul(mib);
    let status = deadline(&mut child, limit, || {
        // Bounded: it is shown to people.
        if let Some(complaints) = complaints {
            let _ = complaints.take(64 << 10).read_to_string(&mut said);
        }
    })?;
    let said = said.trim();
    match status.success() {
        true => Ok(()),
        false if said.is_empty() => Err(format_err!("the compiler ended with {status}")),
        false => Err(format_err!("{}", said.strip_prefix("ostler: ").unwrap_or(said))),
    }
}

/// Waits for its end, not for ever.
fn deadline(
    child: &mut Child,
    limit: Duration,
    listen: impl FnOnce(),
) -> wasmtime::Result<std::process::ExitStatus> {
    let pid = rustix::process::Pid::from_child(child);
    let (done, ended) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let late = ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        if late {
            // Not waited for yet, so the id is still its own.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        late
    });
    listen();
    // It has closed its output; what is left is its end.
    drop(done);
    let late = watchdog.join().unwrap_or_default();
    let status = child.wait()?;
    match late {
        true => Err(format_err!("took longer than {limit:?} to compile")),
        false => Ok(status),
    }
}
