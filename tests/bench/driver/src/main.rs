//! Gives operators work and measures them: one scene, on a control plane that is there, per run.
//!
//! Results are JSON lines on stdout, progress is lines on stderr; `cargo xtask bench` makes the
//! report of them.

mod api;
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
    scenes::Stage,
    subject::{Programs, Subject},
};

/// Measures operators.
#[derive(Parser)]
pub struct Cli {
    /// What to measure.
    scene: Scene,
    /// Whom, one after the other.
    #[arg(long = "subject", required = true)]
    subjects: Vec<Subject>,
    /// Only these benches of the scene.
    #[arg(long = "bench", required = true)]
    benches: Vec<String>,
    /// Kubeconfig of the control plane; nothing else is to be on it.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Objects, at each step for scenes with several.
    #[arg(long = "objects", value_delimiter = ',', required = true)]
    objects: Vec<usize>,
    /// Rounds of the no-op bench.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds a subject may take for one measure.
    #[arg(long, default_value_t = 120)]
    limit: u64,
    /// Seconds in which the steady state of a Concourse is counted.
    #[arg(long, default_value_t = 600)]
    window: u64,
    /// Reconciles at the same time.
    #[arg(long, default_value_t = 16)]
    workers: u32,
    /// Where logs go.
    #[arg(long)]
    folder: PathBuf,
    #[command(flatten)]
    programs: Programs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Scene {
    /// Objects that wait for their operator; then all of them again; then something all of them read changes.
    Converge,
    /// Objects that are only kept, more and more of them.
    Growth,
    /// Two replicas, one of which ends.
    Failover,
    /// A Concourse with pipelines, jobs and builds; objects are its pipelines.
    Concourse,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let cluster = Cluster::connect(&cli.kubeconfig).await?;
    std::fs::create_dir_all(&cli.folder)?;
    let stage = Stage {
        cluster,
        programs: cli.programs,
        kubeconfig: cli.kubeconfig,
        folder: cli.folder,
        workers: cli.workers,
        limit: Duration::from_secs(cli.limit),
        benches: cli.benches,
    };
    stage.cluster.prepare().await?;
    match cli.scene {
        Scene::Converge => {
            for subject in cli.subjects {
                scenes::converge::run(&stage, subject, cli.objects[0], cli.rounds).await?;
            }
        }
        Scene::Growth => scenes::growth::run(&stage, &cli.subjects, &cli.objects).await?,
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
