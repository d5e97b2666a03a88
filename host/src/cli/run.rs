//! `ostler run`: runs a host against a cluster.

use std::{
    hash::{BuildHasher, RandomState},
    path::PathBuf,
    time::Duration,
};

use clap::{ArgAction, Args};

use super::{Common, addresses::read_host_name, kubeconfig::load_kubeconfig, parse_duration, serve_host};
use crate::{
    kube::well_known::environment,
    leader::{election::Timing, endpoint::OwnEndpoint, lease},
    policy::rbac::LEASE_NAME,
};

/// Arguments of `ostler run`.
#[derive(Args)]
pub struct RunCommand {
    /// Kubeconfig of the cluster. Defaults to `~/.kube/config` or the pod's service account.
    #[arg(long, env = environment::KUBECONFIG, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    election: Election,
    #[command(flatten)]
    pub(super) common: Common,
}

impl RunCommand {
    /// Runs until a signal or an error ends it.
    pub async fn run(self) -> anyhow::Result<()> {
        let config = load_kubeconfig(self.kubeconfig).await?;
        let election = self.election.lease_settings(&config);
        serve_host(config, self.common, election).await
    }
}

/// Leader election: of several hosts one leads, the others stand by.
#[derive(Args)]
struct Election {
    /// Reconcile only as the leader. May be false only if no other host ever runs in the cluster.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    leader_elect: bool,
    /// Name of the Lease. Hosts with the same Lease are replicas of each other.
    #[arg(long, default_value = LEASE_NAME)]
    lease_name: String,
    /// Namespace of the Lease. Defaults to the namespace of the pod or of the kubeconfig.
    #[arg(long)]
    lease_namespace: Option<String>,
    /// Unique identity of this process in the Lease. Defaults to the host name with a random suffix.
    #[arg(long)]
    identity: Option<String>,
    /// Time after which other replicas take over from a leader that does not renew its Lease.
    #[arg(long, default_value = "15s", value_parser = parse_duration)]
    lease_duration: Duration,
    /// Time after which a leader that cannot renew its Lease stops leading.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    renew_deadline: Duration,
    /// Interval between attempts to acquire or renew the Lease.
    #[arg(long, default_value = "2s", value_parser = parse_duration)]
    retry_period: Duration,
}

impl Election {
    fn lease_settings(self, config: &kube::Config) -> Option<lease::ElectionSettings> {
        let identity = || {
            format!(
                "{}_{:016x}",
                read_host_name(),
                RandomState::new().hash_one(std::process::id())
            )
        };
        self.leader_elect.then(|| lease::ElectionSettings {
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
            endpoint: OwnEndpoint::default(),
        })
    }
}
