//! `ostler completion`: completion scripts for shells.

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
    pub fn run(&self) {
        clap_complete::generate(
            self.shell,
            &mut super::Cli::command(),
            "ostler",
            &mut std::io::stdout(),
        );
    }
}
