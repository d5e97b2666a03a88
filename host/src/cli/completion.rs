//! `ostler completion`: completion scripts for shells.

use std::io::{ErrorKind, Write};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Arguments of `ostler completion`.
#[derive(Args)]
pub struct Completion {
    /// Shell, as in `source <(ostler completion bash)`.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completion {
    /// Prints the script.
    pub fn run(&self) -> std::io::Result<()> {
        // clap_complete panics if it can't write.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::Cli::command(), "ostler", &mut script);
        match std::io::stdout().write_all(&script) {
            // The reader closed the pipe, as `head` does.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }
}
