//! `ostler reconcile`: queues objects as a change of them would.

use clap::Args;
use http::Method;

use super::{ask::NamespaceArguments, connection::HostAddress, explain::format_next};
use crate::admin::explain::ObjectExplanation;

/// Arguments of `ostler reconcile`.
#[derive(Args)]
#[command(
    after_help = "Exit codes:\n  0  the objects were queued\n  1  object or host not found, or you may not change the object"
)]
pub struct ReconcileCommand {
    #[command(flatten)]
    objects: NamespaceArguments,
    #[command(flatten)]
    server: HostAddress,
}

impl ReconcileCommand {
    /// Queues the objects, and prints when each is reconciled.
    pub async fn run(self) -> anyhow::Result<()> {
        let host = self.server.connect().await?;
        for named in self.objects.queries() {
            let (object, query) = named?;
            let queued: ObjectExplanation = host.fetch(Method::POST, "/reconcile", &query).await?;
            println!("{object}: {}", format_next(&queued.next));
        }
        Ok(())
    }
}
