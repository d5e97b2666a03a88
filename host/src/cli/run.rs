//! `ostler run`: a host against a cluster.

use std::{
    hash::{BuildHasher, RandomState},
    path::PathBuf,
    time::Duration,
};

use clap::{ArgAction, Args};

use super::{Common, config, parse_seconds, serve};
use crate::leader::{election::Timing, lease};

/// Arguments of `ostler run`.
#[derive(Args)]
pub struct Run {
    /// Kubeconfig of the cluster. Default: `$KUBECONFIG`, `~/.kube/config`, or the pod's service account.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    election: Election,
    #[command(flatten)]
    pub(super) common: Common,
}

impl Run {
    /// Runs until a signal or an error ends it.
    pub async fn run(self) -> anyhow::Result<()> {
        let config = config(self.kubeconfig).await?;
        let election = self.election.settings(&config);
        serve(config, self.common, election).await
    }
}

/// Options of leader election: of several hosts one leads, the others stand by.
#[derive(Args)]
struct Election {
    /// Acquire the lease before reconciling. Disable it only if no other host runs.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    leader_elect: bool,
    /// Name of the Lease, shared by the hosts that replace each other.
    #[arg(long, default_value = "ostler")]
    lease_name: String,
    /// Namespace of the Lease. Default: the pod's namespace, or that of the kubeconfig.
    #[arg(long)]
    lease_namespace: Option<String>,
    /// Unique name of this process in the Lease. Default: derived from the host name.
    #[arg(long)]
    identity: Option<String>,
    /// Seconds after which another host takes over a lease that is not renewed.
    #[arg(long, default_value = "15", value_parser = parse_seconds)]
    lease_duration: Duration,
    /// Seconds after which a leader that cannot renew its lease stops.
    #[arg(long, default_value = "10", value_parser = parse_seconds)]
    renew_deadline: Duration,
    /// Seconds between attempts to acquire or renew the lease.
    #[arg(long, default_value = "2", value_parser = parse_seconds)]
    retry_period: Duration,
}

impl Election {
    fn settings(self, config: &kube::Config) -> Option<lease::Settings> {
        let identity = || {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            format!(
                "{}_{:016x}",
                host.trim(),
                RandomState::new().hash_one(std::process::id())
            )
        };
        self.leader_elect.then(|| lease::Settings {
            config: config.clone(),
            namespace: self
                .lease_namespace
                .unwrap_or_else(|| config.default_namespace.clone()),
            name: self.lease_name,
            identity: self.identity.unwrap_or_else(identity),
            timing: Timing {
                lease: self.lease_duration,
                renew: self.renew_deadline,
                retry: self.retry_period,
            },
        })
    }
}
