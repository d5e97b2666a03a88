//! Counts objects that reach a state, by a watch.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use serde::Deserialize;
use tokio::{sync::watch, task::AbortHandle};

use crate::{api::Cluster, report::print_progress};

/// The observed part of an object.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct ObservedObject {
    /// Its metadata.
    pub metadata: Metadata,
    status: Status,
    data: HashMap<String, String>,
}

/// The observed metadata.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Metadata {
    /// The object's name.
    pub name: String,
    generation: i64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    r#type: String,
    status: String,
    #[serde(default)]
    observed_generation: i64,
}

impl ObservedObject {
    /// Returns whether it is Ready for its current generation.
    pub fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|c| {
            c.r#type == "Ready" && c.status == "True" && c.observed_generation == self.metadata.generation
        })
    }

    /// Returns whether a condition is True.
    pub fn has_condition(&self, condition: &str) -> bool {
        let mut conditions = self.status.conditions.iter();
        conditions.any(|c| c.r#type == condition && c.status == "True")
    }

    /// Returns a ConfigMap's value.
    pub fn value(&self) -> Option<&str> {
        self.data.get("value").map(String::as_str)
    }
}

/// Counts the objects that satisfy a predicate.
pub struct Observer {
    seen: Arc<Mutex<HashMap<String, Instant>>>,
    count: watch::Receiver<usize>,
    task: AbortHandle,
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Watches from a resourceVersion on, until the watch ends.
async fn follow_watch(
    cluster: &Cluster,
    path: &str,
    from: String,
    see: &impl Fn(ObservedObject),
) -> Result<()> {
    #[derive(Deserialize)]
    struct Event {
        object: ObservedObject,
    }
    let mut lines = Box::pin(cluster.watch(path, &from).await?);
    while let Some(line) = lines.next().await {
        let line = line?;
        let event: Event = serde_json::from_str(&line).with_context(|| format!("the server sent {line}"))?;
        see(event.object);
    }
    bail!("the watch has ended")
}

/// Lists the existing objects. Returns the resourceVersion to watch from.
async fn list_existing(cluster: &Cluster, path: &str, see: &impl Fn(ObservedObject)) -> Result<String> {
    let list = cluster.get(path).await?;
    for item in list["items"].as_array().into_iter().flatten() {
        see(ObservedObject::deserialize(item)?);
    }
    let version = &list["metadata"]["resourceVersion"];
    Ok(version.as_str().context("a list has a version")?.to_owned())
}

impl Observer {
    /// Watches a collection from now on.
    pub async fn start(
        cluster: &Cluster,
        path: &str,
        right: impl Fn(&ObservedObject) -> bool + Send + Sync + 'static,
    ) -> Result<Self> {
        let (cluster, path) = (cluster.clone(), path.to_owned());
        let version = cluster.current_version(&path).await?;
        let seen = Arc::new(Mutex::new(HashMap::new()));
        let (sender, count) = watch::channel(0);
        let keeping = seen.clone();
        let see = move |object: ObservedObject| {
            if right(&object) {
                let mut seen = keeping.lock().expect("lock");
                seen.entry(object.metadata.name).or_insert_with(Instant::now);
                sender.send_replace(seen.len());
            }
        };
        let task = tokio::spawn(async move {
            let mut from = version;
            while let Err(e) = follow_watch(&cluster, &path, from, &see).await {
                print_progress(format!("restarting the watch of {path}: {e:#}"));
                from = match list_existing(&cluster, &path, &see).await {
                    Ok(version) => version,
                    Err(e) => return print_progress(format!("{e:#}")),
                };
            }
        });
        Ok(Self {
            seen,
            count,
            task: task.abort_handle(),
        })
    }

    /// Returns the number of objects that satisfy the predicate.
    pub fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits for `n` of them. Returns false at the timeout.
    pub async fn wait_count(&self, n: usize, limit: Duration) -> Result<bool> {
        let mut count = self.count.clone();
        match tokio::time::timeout(limit, count.wait_for(|seen| *seen >= n)).await {
            Ok(reached) => reached.map(|_| true).context("the driver's watch has ended"),
            Err(_) => Ok(false),
        }
    }

    /// Returns when the first and the last of them satisfied it.
    pub fn first_and_last(&self) -> Result<(Instant, Instant)> {
        let seen = self.seen.lock().expect("lock");
        match (seen.values().min(), seen.values().max()) {
            (Some(first), Some(last)) => Ok((*first, *last)),
            _ => bail!("no object was observed"),
        }
    }
}
