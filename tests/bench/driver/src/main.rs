//! The benchmark's driver: runs one scene on an existing control plane, gives work to operators and measures them.
//!
//! Results are JSON lines on stdout, progress is lines on stderr. `cargo xtask bench` writes the report.

mod api;
mod cores;
mod observer;
mod process;
mod report;
mod scenes;
mod subject;
mod work;

use std::{path::PathBuf, time::Duration};

use clap::{Parser, ValueEnum};

use crate::{
    api::Cluster,
    scenes::SceneStage,
    subject::{BenchSubject, OperatorPrograms},
};

/// Measures operators.
#[derive(Parser)]
pub struct Cli {
    /// Scene to run.
    scene: Scene,
    /// Subjects to measure, one after the other.
    #[arg(long = "subject", required = true)]
    subjects: Vec<BenchSubject>,
    /// Benches of the scene to report.
    #[arg(long = "bench", required = true)]
    benches: Vec<String>,
    /// Kubeconfig of the control plane, which must have no other load.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Number of objects, for each step of scenes with several.
    #[arg(long = "objects", value_delimiter = ',', required = true)]
    objects: Vec<usize>,
    /// Number of rounds of the no-op bench.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Timeout of one measurement, in seconds.
    #[arg(long, default_value_t = 120)]
    limit: u64,
    /// Duration of the steady state of the Concourse bench, in seconds.
    #[arg(long, default_value_t = 600)]
    window: u64,
    /// Number of concurrent reconciles.
    #[arg(long, default_value_t = 16)]
    workers: u32,
    /// Folder for logs.
    #[arg(long)]
    folder: PathBuf,
    #[command(flatten)]
    programs: OperatorPrograms,
}

#[derive(Clone, Copy, ValueEnum)]
enum Scene {
    /// Reconcile existing objects; then all again without changes; then after a change of an object all of them read.
    Converge,
    /// Cache a growing number of objects.
    Growth,
    /// Terminate the leader of two replicas.
    Failover,
    /// Run many plugins, or operators, without any object; the number of objects is theirs.
    Density,
    /// Reconcile a Concourse with pipelines, jobs and builds; the number of objects is that of pipelines.
    Concourse,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let cluster = Cluster::connect(&cli.kubeconfig).await?;
    std::fs::create_dir_all(&cli.folder)?;
    let stage = SceneStage {
        cluster,
        programs: cli.programs,
        kubeconfig: cli.kubeconfig,
        folder: cli.folder,
        workers: cli.workers,
        limit: Duration::from_secs(cli.limit),
        benches: cli.benches,
    };
    stage.cluster.prepare_namespace().await?;
    match cli.scene {
        Scene::Converge => {
            for subject in cli.subjects {
                scenes::converge::run(&stage, subject, cli.objects[0], cli.rounds).await?;
            }
        }
        Scene::Growth => scenes::growth::run(&stage, &cli.subjects, &cli.objects).await?,
        Scene::Density => scenes::density::run(&stage, &cli.subjects, &cli.objects).await?,
        Scene::Failover => {
            for subject in cli.subjects {
                scenes::failover::run(&stage, subject).await?;
            }
        }
        Scene::Concourse => {
            let window = Duration::from_secs(cli.window);
            for subject in cli.subjects {
                scenes::concourse::run(&stage, subject, cli.objects[0], window).await?;
            }
        }
    }
    Ok(())
}
