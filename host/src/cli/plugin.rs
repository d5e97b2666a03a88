//! `ostler plugin`: what authors and administrators do with components.

mod push;
mod registry;
mod verify;

use clap::Subcommand;

/// The commands.
#[derive(Subcommand)]
pub enum Plugin {
    /// Push a component to an OCI registry, and sign it.
    Push(push::Push),
    /// Verify a component: its digest, who has signed it, and whether it fits this host.
    Verify(verify::Verify),
}

impl Plugin {
    /// Runs it.
    pub async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Push(push) => push.run().await,
            Self::Verify(verify) => verify.run().await,
        }
    }
}
