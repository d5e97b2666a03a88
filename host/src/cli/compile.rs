//! `ostler compile`: the compiler as a separate process (see [`crate::sandbox::engine::CompileCache`]).

use std::{io::Read, path::PathBuf};

use clap::Args;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::sandbox::engine::{CompileCache, Engine};

/// Memory limit of the compiler in bytes: 64 MiB of code need a tenth.
const MEMORY_LIMIT: u64 = 4 << 30;

/// Arguments of `ostler compile`; the component is read from standard input.
#[derive(Args)]
pub struct Compile {
    #[arg(long)]
    cache: PathBuf,
    #[arg(long)]
    concurrency: u32,
    #[arg(long)]
    memory: usize,
}

impl Compile {
    /// Compiles into the cache.
    pub fn run(self) -> anyhow::Result<()> {
        let most = Some(MEMORY_LIMIT);
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
