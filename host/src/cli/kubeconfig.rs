//! The cluster of a command: its kubeconfig and context.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};

use super::proxy;
use crate::client::connection::connect;

/// The cluster of a command.
#[derive(Args, Clone, Default)]
pub struct KubeContext {
    /// Kubeconfig of the cluster. Defaults to the files of `KUBECONFIG`, `~/.kube/config`, or the pod's service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Defaults to its current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl KubeContext {
    /// Returns true if the user has named a kubeconfig or a context.
    pub fn is_named(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// The client configuration of the cluster.
    ///
    /// # Errors
    /// There is no kubeconfig, or it has no such context.
    pub async fn load(&self) -> anyhow::Result<kube::Config> {
        load_context(self.kubeconfig.clone(), self.context.clone()).await
    }

    /// A client of the cluster.
    ///
    /// # Errors
    /// As [`KubeContext::load`]; certificates or credentials can't be read.
    pub async fn connect(&self) -> anyhow::Result<kube::Client> {
        connect(self.load().await?)
    }
}

/// A client of the cluster, with TLS by rustls and ring.
pub async fn create_client(kubeconfig: Option<PathBuf>) -> anyhow::Result<kube::Client> {
    connect(load_kubeconfig(kubeconfig).await?)
}

/// The client configuration of the cluster.
pub async fn load_kubeconfig(kubeconfig: Option<PathBuf>) -> anyhow::Result<kube::Config> {
    load_context(kubeconfig, None).await
}

async fn load_context(kubeconfig: Option<PathBuf>, context: Option<String>) -> anyhow::Result<kube::Config> {
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let no_cluster = if cfg!(feature = "dev") {
        "no cluster: give --kubeconfig, or use `ostler dev`"
    } else {
        "no cluster: give --kubeconfig"
    };
    let read = match &kubeconfig {
        Some(path) => {
            Ok(Kubeconfig::read_from(path).with_context(|| format!("the kubeconfig {}", path.display()))?)
        }
        None => Kubeconfig::read(),
    };
    let configured = read
        .as_ref()
        .ok()
        .and_then(|read| proxy::find_configured_proxy(read, context.as_deref()))
        .map(str::to_owned);
    let mut config = match read {
        Ok(read) if kubeconfig.is_some() || context.is_some() => {
            let options = KubeConfigOptions {
                context,
                ..KubeConfigOptions::default()
            };
            kube::Config::from_custom_kubeconfig(read, &options).await?
        }
        Ok(_) => kube::Config::infer().await.context(no_cluster)?,
        // Of the two errors, that of the kubeconfig is the one of users.
        Err(e) => kube::Config::incluster().map_err(|_| anyhow::anyhow!("{no_cluster} ({e})"))?,
    };
    let variable = |name: &str| std::env::var(name).ok();
    config.proxy_url = proxy::choose_proxy(configured.as_deref(), &config.cluster_url, variable)?;
    // A watch without events sends nothing until its own timeout.
    config.read_timeout = Some(Duration::from_secs(320));
    // The client's retries would block a worker for minutes; the queue has a backoff for each object.
    config.default_retry = false;
    Ok(config)
}
