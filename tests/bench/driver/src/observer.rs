//! Sees objects come to be as they should, by a watch.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use serde::Deserialize;
use tokio::{sync::watch, task::AbortHandle};

use crate::api::Cluster;

/// What an observer looks at.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Object {
    /// Its metadata.
    pub metadata: Metadata,
    status: Status,
    data: HashMap<String, String>,
}

/// The metadata looked at.
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

impl Object {
    /// Ready for its current generation.
    pub fn ready(&self) -> bool {
        self.status.conditions.iter().any(|c| {
            c.r#type == "Ready" && c.status == "True" && c.observed_generation == self.metadata.generation
        })
    }

    /// A ConfigMap's value.
    pub fn value(&self) -> Option<&str> {
        self.data.get("value").map(String::as_str)
    }
}

/// Counts objects that are as they should.
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

impl Observer {
    /// Watches a collection from now on.
    pub async fn start(
        cluster: &Cluster,
        path: &str,
        right: impl Fn(&Object) -> bool + Send + 'static,
    ) -> Result<Self> {
        #[derive(Deserialize)]
        struct Event {
            object: Object,
        }
        let mut lines = Box::pin(cluster.watch(path).await?);
        let seen = Arc::new(Mutex::new(HashMap::new()));
        let (sender, count) = watch::channel(0);
        let keeping = seen.clone();
        let task = tokio::spawn(async move {
            while let Some(Ok(line)) = lines.next().await {
                let Ok(Event { object }) = serde_json::from_str(&line) else {
                    break;
                };
                if right(&object) {
                    let mut seen = keeping.lock().expect("lock");
                    seen.entry(object.metadata.name).or_insert_with(Instant::now);
                    sender.send_replace(seen.len());
                }
            }
        });
        Ok(Self {
            seen,
            count,
            task: task.abort_handle(),
        })
    }

    /// How many are as they should.
    pub fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits for so many of them. False when the time is over before.
    pub async fn reaches(&self, n: usize, limit: Duration) -> Result<bool> {
        let mut count = self.count.clone();
        match tokio::time::timeout(limit, count.wait_for(|seen| *seen >= n)).await {
            Ok(reached) => reached.map(|_| true).context("the driver's watch has ended"),
            Err(_) => Ok(false),
        }
    }

    /// When the first and the last of them came to be so.
    pub fn span(&self) -> Result<(Instant, Instant)> {
        let seen = self.seen.lock().expect("lock");
        match (seen.values().min(), seen.values().max()) {
            (Some(first), Some(last)) => Ok((*first, *last)),
            _ => bail!("nothing was seen"),
        }
    }
}
