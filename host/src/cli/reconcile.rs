//! `ostler reconcile`: queues objects as a change of them would.

use clap::Args;
use http::Method;

use super::{
    ask,
    completion::{namespace_completer, object_completer},
    connection::Server,
    explain::format_next,
};
use crate::admin::explain::Explanation;

/// Arguments of `ostler reconcile`.
#[derive(Args)]
#[command(
    after_help = "Exit codes:\n  0  the objects were queued\n  1  object or host not found, or you may not change the object"
)]
pub struct Reconcile {
    /// Objects, such as `team/platform`.
    #[arg(value_name = "KIND/NAME", required = true, add = object_completer())]
    objects: Vec<String>,
    /// Namespace of the objects. Required if a name is ambiguous.
    #[arg(short, long, add = namespace_completer())]
    namespace: Option<String>,
    #[command(flatten)]
    server: Server,
}

impl Reconcile {
    /// Queues the objects, and prints when each is reconciled.
    pub async fn run(self) -> anyhow::Result<()> {
        let host = self.server.connect().await?;
        for object in &self.objects {
            let query = ask::query(object, self.namespace.as_deref())?;
            let queued: Explanation = host.fetch(Method::POST, "/reconcile", &query).await?;
            println!("{object}: {}", format_next(&queued.next));
        }
        Ok(())
    }
}
