//! The servers around the DevOps pack: real ones (RabbitMQ, PowerDNS, git, docker-registry), simulators (Jenkins, Argo CD's
//! controller) and stand-ins (cert-manager, an ingress controller).
//!
//! The first line of stdout is a JSON object with the addresses and credentials of the servers. Each further line is a message
//! on the broker, or the state of a server that has changed. Everything ends with this process.

mod messages;
mod stand_ins;
mod states;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use argocd_simulator::ArgoController;
use clap::Parser;
use devops_simulators::{
    git::{GIT_PASSWORD, GIT_USER, GitServer},
    jenkins::{JENKINS_TOKEN, JENKINS_USER, Jenkins},
};
use ostler_test_harness::{
    powerdns::{POWERDNS_KEY, PowerDns},
    rabbitmq::{RABBITMQ_PASSWORD, RABBITMQ_USER, RabbitMq},
    registry::{REGISTRY_PASSWORD, REGISTRY_USER, RegistryProcess},
};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::{messages::Mailbox, stand_ins::StandIns, states::States};

/// Zone of the DNS server.
const DNS_ZONE: &str = "example.test";
/// Repository of the git server.
const REPOSITORY: &str = "shop";
/// Definition of the pipelines in the repository.
const PIPELINES: &str = "pipelines:\n- name: build\n  description: Builds and tests.\n  stages:\n  \
    - {name: Build, steps: [make]}\n  - {name: Test, steps: [make test]}\n";
/// Interval between two looks at folder, queues and servers.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the servers around the DevOps pack until SIGTERM or SIGINT.
#[derive(Parser)]
struct Arguments {
    /// Kubeconfig of the cluster, for the controllers among the servers.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Namespace of the project.
    #[arg(long, default_value = "devops")]
    namespace: String,
    /// Namespace of Argo CD.
    #[arg(long, default_value = "argocd")]
    argo_namespace: String,
    /// Folder of events: each file `TYPE-….json` that appears is published.
    #[arg(long)]
    events: Option<PathBuf>,
    /// Start builds, and never end them.
    #[arg(long)]
    hold_builds: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        result = serve(&arguments) => result,
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
    }
}

async fn serve(arguments: &Arguments) -> Result<()> {
    let client = ostler::testing::cli::create_client(Some(arguments.kubeconfig.clone()))
        .await
        .context("connecting to the cluster")?;
    let (rabbitmq, dns, git, jenkins) = tokio::join!(
        RabbitMq::start(),
        PowerDns::start(),
        GitServer::start_private(),
        Jenkins::start()
    );
    let registry = RegistryProcess::start_private();
    dns.create_zone(DNS_ZONE).await;
    git.create_repository(REPOSITORY);
    git.commit(REPOSITORY, "main", &[("devops.yaml", PIPELINES)]);
    if !arguments.hold_builds {
        jenkins.run_builds("SUCCESS");
    }
    let controller = ArgoController::start(client.clone(), &arguments.argo_namespace);
    let stand_ins = StandIns::start(client.clone(), &arguments.namespace);
    let mut mailbox = Mailbox::open(&rabbitmq).await;
    let variables = BTreeMap::from([
        ("RABBITMQ_URL", rabbitmq.url()),
        ("RABBITMQ_USER", RABBITMQ_USER.into()),
        ("RABBITMQ_PASSWORD", RABBITMQ_PASSWORD.into()),
        ("POWERDNS_URL", dns.url()),
        ("POWERDNS_KEY", POWERDNS_KEY.into()),
        ("DNS_ZONE", DNS_ZONE.into()),
        ("GIT_URL", git.repository_url(REPOSITORY)),
        ("GIT_USER", GIT_USER.into()),
        ("GIT_PASSWORD", GIT_PASSWORD.into()),
        ("REGISTRY_URL", format!("http://{}", registry.address())),
        ("REGISTRY_USER", REGISTRY_USER.into()),
        ("REGISTRY_PASSWORD", REGISTRY_PASSWORD.into()),
        ("JENKINS_URL", jenkins.url().into()),
        ("JENKINS_USER", JENKINS_USER.into()),
        ("JENKINS_TOKEN", JENKINS_TOKEN.into()),
    ]);
    println!("{}", json!({ "variables": variables }));

    let mut states = States::new(client, &arguments.argo_namespace);
    loop {
        if let Some(folder) = &arguments.events {
            mailbox.publish_new(folder).await?;
        }
        mailbox.receive().await;
        if arguments.hold_builds {
            jenkins.start_queued();
        }
        states.report("RabbitMQ (real)", &rabbitmq.url());
        states.report("git (real)", &git.repository_url(REPOSITORY));
        states.report("docker-registry (real)", registry.address());
        states.report("Jenkins (simulator)", &states::describe_jenkins(&jenkins));
        let applications = states.describe_applications(controller.operations().len()).await;
        states.report("Argo CD (simulator)", &applications);
        let mut records = dns.record_sets(DNS_ZONE).await;
        // The marks of ownership, which are long, come last.
        records.sort_by_key(|record| record.contains(" TXT "));
        states.report("PowerDNS (real)", &states::describe_list(&records, "no records"));
        let issued = stand_ins.certificates();
        states.report(
            "cert-manager (stand-in)",
            &states::describe_list(&issued, "no certificates"),
        );
        let served = stand_ins.hosts();
        states.report(
            "ingress controller (stand-in)",
            &states::describe_list(&served, "no hosts"),
        );
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
