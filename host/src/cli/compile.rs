//! `ostler compile`: the compiler in a process of its own (see [`crate::sandbox::engine::Cache`]).

use std::{io::Read, path::PathBuf};

use clap::Args;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::sandbox::engine::{Cache, Engine};

/// Bytes the compiler may use: 64 MiB of code take a tenth.
const MEMORY: u64 = 4 << 30;

/// Arguments of `ostler compile`; the component is its input.
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
        let most = Some(MEMORY);
        setrlimit(
            Resource::Data,
            Rlimit {
                current: most,
                maximum: most,
            },
        )?;
        let cache = Cache {
            directory: self.cache,
            compiler: None,
        };
        let mut wasm = Vec::new();
        std::io::stdin().read_to_end(&mut wasm)?;
        let engine = Engine::new(self.concurrency, self.memory, Some(cache), None);
        // The host puts its own words before these.
        engine
            .and_then(|engine| engine.precompile(&wasm))
            .map_err(|e| anyhow::anyhow!("{e:#}"))
    }
}
