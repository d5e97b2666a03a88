//! `ostler run`: reconcile.

use std::path::PathBuf;

use clap::Args;

use super::{Common, config, serve};

/// Arguments of `ostler run`.
#[derive(Args)]
pub struct Run {
    /// Kubeconfig of the cluster; without it `$KUBECONFIG`, `~/.kube/config`, or the pod's service account.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(super) common: Common,
}

impl Run {
    /// Runs until a signal, or an error, ends it.
    pub async fn run(self) -> anyhow::Result<()> {
        serve(config(self.kubeconfig).await?, self.common).await
    }
}
