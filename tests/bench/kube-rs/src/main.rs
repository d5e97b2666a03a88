//! The bench's operator with kube-rs: a `Sample` becomes a `ConfigMap` of its name.

mod meter;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use clap::Parser;
use futures::StreamExt;
use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::{
    Api, Client, CustomResource, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{
        Config, Controller, WatchStreamExt,
        controller::Action,
        predicates,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch;

use crate::meter::DurationMeter;

const MANAGER: &str = "bench-kube-rs";

/// Content of the ConfigMap.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize)]
#[kube(group = "bench.ostler.dev", version = "v1", kind = "Sample", namespaced)]
// Its CRD is the bench's own.
#[kube(status = "SampleStatus", schema = "disabled")]
struct SampleSpec {
    text: String,
    config: Option<String>,
}

/// Status of the last reconcile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SampleStatus {
    observed_generation: Option<i64>,
    conditions: Vec<Condition>,
}

struct Context {
    client: Client,
    config_maps: Store<ConfigMap>,
    /// Becomes true when the store is complete.
    listed: watch::Receiver<bool>,
    meter: Arc<DurationMeter>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("the object has no {0}")]
    Incomplete(&'static str),
    #[error("the ConfigMap {0} does not exist")]
    NoConfig(String),
    #[error("the ConfigMaps can't be listed")]
    NoStore,
}

async fn reconcile(sample: Arc<Sample>, context: Arc<Context>) -> Result<Action, Error> {
    // The store may still be filling when the first object is due.
    let mut listed = context.listed.clone();
    listed.wait_for(|yes| *yes).await.map_err(|_| Error::NoStore)?;
    let _timed = context.meter.start();
    let (name, namespace) = (
        sample.name_any(),
        sample.namespace().ok_or(Error::Incomplete("namespace"))?,
    );
    let mut data = BTreeMap::from([("text".to_owned(), sample.spec.text.clone())]);
    if let Some(config) = &sample.spec.config {
        let found = context
            .config_maps
            .get(&ObjectRef::new(config).within(&namespace));
        let found = found.ok_or_else(|| Error::NoConfig(config.clone()))?;
        if let Some(value) = found.data.as_ref().and_then(|data| data.get("value")) {
            data.insert("value".into(), value.clone());
        }
    }
    let owner = sample.controller_owner_ref(&()).ok_or(Error::Incomplete("uid"))?;
    let live = context.config_maps.get(&ObjectRef::new(&name).within(&namespace));
    let there = live
        .is_some_and(|live| live.data.as_ref() == Some(&data) && live.owner_references().contains(&owner));
    if !there {
        let mut child = ConfigMap {
            data: Some(data),
            ..ConfigMap::default()
        };
        child.metadata.name = Some(name.clone());
        child.metadata.owner_references = Some(vec![owner]);
        let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &namespace);
        api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&child))
            .await?;
    }
    let status = status(&sample);
    if sample.status.as_ref() != Some(&status) {
        let api: Api<Sample> = Api::namespaced(context.client.clone(), &namespace);
        let patch = Patch::Merge(json!({ "status": status }));
        api.patch_status(&name, &PatchParams::default(), &patch).await?;
    }
    Ok(Action::await_change())
}

fn status(sample: &Sample) -> SampleStatus {
    let old = sample.status.iter().flat_map(|status| &status.conditions);
    let old = old.into_iter().find(|c| c.type_ == "Ready" && c.status == "True");
    let ready = Condition {
        type_: "Ready".into(),
        status: "True".into(),
        observed_generation: sample.meta().generation,
        last_transition_time: old.map_or_else(|| Time(Timestamp::now()), |c| c.last_transition_time.clone()),
        reason: "Applied".into(),
        message: "The ConfigMap is there".into(),
    };
    SampleStatus {
        observed_generation: sample.meta().generation,
        conditions: vec![ready],
    }
}

/// The bench's operator with kube-rs.
#[derive(Parser)]
struct Cli {
    /// Number of concurrent reconciles.
    #[arg(long, default_value_t = 16)]
    workers: u16,
    /// File to write the address of the bench's own server to.
    #[arg(long)]
    ready_file: PathBuf,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    // Fails only when a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::try_default().await?;

    // One ConfigMap watch serves the store, the owned objects and the objects that are read.
    let (config_maps, writer) = reflector::store::<ConfigMap>();
    let changed = watcher(Api::<ConfigMap>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .touched_objects();
    let (samples, writer) = reflector::store::<Sample>();
    let triggers = watcher(Api::<Sample>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .applied_objects()
        .predicate_filter(predicates::generation, Default::default());
    let concerned = {
        let samples = samples.clone();
        move |config: ConfigMap| -> Vec<ObjectRef<Sample>> {
            let namespace = config.namespace().unwrap_or_default();
            let owner = config.owner_references().iter().find(|o| o.kind == "Sample");
            if let Some(owner) = owner {
                return vec![ObjectRef::new(&owner.name).within(&namespace)];
            }
            let reads = |sample: &Sample| {
                sample.spec.config == config.metadata.name
                    && sample.metadata.namespace == config.metadata.namespace
            };
            let found = samples.state_filter(reads);
            found
                .iter()
                .map(|sample| ObjectRef::from_obj(&**sample))
                .collect()
        }
    };
    // Only one task waits for the store, because only the last of several waiters is woken.
    let (sender, listed) = watch::channel(false);
    let filling = config_maps.clone();
    tokio::spawn(async move {
        if filling.wait_until_ready().await.is_ok() {
            sender.send_replace(true);
            sender.closed().await;
        }
    });
    let (meter, again) = DurationMeter::serve(&cli.ready_file).await?;
    let context = Arc::new(Context {
        client,
        config_maps,
        listed,
        meter,
    });
    let reconciling = Controller::for_stream(triggers, samples)
        .with_config(Config::default().concurrency(cli.workers))
        .watches_stream(changed, concerned)
        .reconcile_all_on(again)
        .shutdown_on_signal()
        .run(
            reconcile,
            |_, error, _| {
                eprintln!("reconciling: {error}");
                Action::requeue(Duration::from_millis(100))
            },
            context,
        )
        .for_each(async |_| ());
    reconciling.await;
    Ok(())
}
