//! `ostler compile`: the compiler as a separate process (see [`crate::sandbox::engine::CompileCache`]).

use std::{io::Read, path::PathBuf};

use clap::Args;
use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};

use crate::sandbox::{
    engine::{CompileCache, Engine},
    memory_limit::memory_limit,
};

/// Largest memory limit of the compiler in bytes, and its share of the memory that the host and its compilers have
/// together (a half).
const MAX_COMPILER_MEMORY: usize = 4 << 30;
const COMPILER_SHARE: usize = 2;

/// Niceness of the compiler: reconciles go first.
const COMPILER_NICENESS: i32 = 19;

/// Arguments of `ostler compile`; the component is read from standard input.
#[derive(Args)]
pub struct CompileCommand {
    #[arg(long)]
    cache: PathBuf,
    #[arg(long)]
    concurrency: u32,
    #[arg(long)]
    memory: usize,
}

impl CompileCommand {
    /// Compiles into the cache.
    pub fn run(self) -> anyhow::Result<()> {
        let share = memory_limit().map(|bytes| bytes / COMPILER_SHARE);
        let most = share.unwrap_or(MAX_COMPILER_MEMORY).min(MAX_COMPILER_MEMORY);
        let most = u64::try_from(most).ok();
        // Best effort: a sandbox may refuse both. If memory runs out all the same, the kernel kills the compiler first.
        let _ = setpriority_process(None, COMPILER_NICENESS);
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        setrlimit(
            Resource::Data,
            Rlimit {
                current: most,
                maximum: most,
            },
        )?;
        let cache = CompileCache {
            directory: self.cache,
            compiler: None,
        };
        let mut wasm = Vec::new();
        std::io::stdin().read_to_end(&mut wasm)?;
        let engine = Engine::new(self.concurrency, self.memory, Some(cache), None);
        // The host adds its own context to this message.
        engine
            .and_then(|engine| engine.precompile(&wasm))
            .map_err(|e| anyhow::anyhow!("{e:#}"))
    }
}
