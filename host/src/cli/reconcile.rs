//! `ostler reconcile`: queues objects as a change of them would.

use clap::Args;
use http::Method;

use super::{ask::Objects, connection::Server, explain::format_next};
use crate::admin::explain::Explanation;

/// Arguments of `ostler reconcile`.
#[derive(Args)]
#[command(
    after_help = "Exit codes:\n  0  the objects were queued\n  1  object or host not found, or you may not change the object"
)]
pub struct Reconcile {
    #[command(flatten)]
    objects: Objects,
    #[command(flatten)]
    server: Server,
}

impl Reconcile {
    /// Queues the objects, and prints when each is reconciled.
    pub async fn run(self) -> anyhow::Result<()> {
        let host = self.server.connect().await?;
        for named in self.objects.queries() {
            let (object, query) = named?;
            let queued: Explanation = host.fetch(Method::POST, "/reconcile", &query).await?;
            println!("{object}: {}", format_next(&queued.next));
        }
        Ok(())
    }
}
