//! A client of the control plane: raw JSON objects, and the server's own request metrics.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

/// Namespace of a bench's objects.
pub const BENCH_NAMESPACE: &str = "bench";
/// Number of concurrent creates.
const CREATE_CONCURRENCY: usize = 32;

/// The control plane.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

/// Requests by verb.
pub type Requests = BTreeMap<String, u64>;

/// Path of the samples.
pub fn samples_path() -> String {
    format!("/apis/bench.ostler.dev/v1/namespaces/{BENCH_NAMESPACE}/samples")
}

/// Path of the ConfigMaps.
pub fn config_maps_path() -> String {
    format!("/api/v1/namespaces/{BENCH_NAMESPACE}/configmaps")
}

impl Cluster {
    /// Creates a client.
    pub async fn connect(kubeconfig: &Path) -> Result<Self> {
        // Fails only when a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let read = Kubeconfig::read_from(kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        // No read timeout: a watch sends nothing while nothing changes.
        config.read_timeout = None;
        Ok(Self {
            client: Client::try_from(config)?,
        })
    }

    /// Creates the namespace and the CRD of the benches, unless they exist.
    pub async fn prepare_namespace(&self) -> Result<()> {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": BENCH_NAMESPACE}});
        self.create_unless_there("/api/v1/namespaces", &namespace).await?;
        let crd: Value = serde_saphyr::from_str(include_str!("../../crd.yaml"))?;
        self.install_crd(&crd).await?;
        self.wait_served(&samples_path()).await
    }

    /// Creates a CRD, unless it exists.
    pub async fn install_crd(&self, crd: &Value) -> Result<()> {
        self.create_unless_there("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
            .await
    }

    /// Waits until a collection is served.
    pub async fn wait_served(&self, path: &str) -> Result<()> {
        let served = async {
            while self.get(path).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), served)
            .await
            .with_context(|| format!("{path} is not served"))
    }

    async fn create_unless_there(&self, path: &str, object: &Value) -> Result<()> {
        match self.create(path, object).await {
            Err(e)
                if e.downcast_ref::<kube::Error>()
                    .is_some_and(|e| matches!(e, kube::Error::Api(s) if s.code == 409)) =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
    }

    async fn send(&self, method: &str, path: &str, content_type: &str, body: Vec<u8>) -> Result<Value> {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .body(body)?;
        Ok(self.client.request::<Value>(request).await?)
    }

    /// Sends a GET and parses the response.
    pub async fn get(&self, path: &str) -> Result<Value> {
        self.send("GET", path, "application/json", Vec::new()).await
    }

    /// Creates an object.
    pub async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        self.send("POST", path, "application/json", serde_json::to_vec(object)?)
            .await
    }

    /// Replaces an object.
    pub async fn replace(&self, path: &str, object: &Value) -> Result<Value> {
        self.send("PUT", path, "application/json", serde_json::to_vec(object)?)
            .await
    }

    /// Patches an object by a merge patch.
    pub async fn merge_patch(&self, path: &str, patch: &Value) -> Result<Value> {
        self.send(
            "PATCH",
            path,
            "application/merge-patch+json",
            serde_json::to_vec(patch)?,
        )
        .await
    }

    /// Applies an object (server-side apply), at the least cost to the server: without the second parse of the patch that would find
    /// duplicate keys.
    pub async fn apply(&self, path: &str, object: &Value) -> Result<Value> {
        let path = format!("{path}?fieldManager=bench&force=true&fieldValidation=Ignore");
        let body = serde_json::to_vec(object)?;
        self.send("PATCH", &path, "application/apply-patch+yaml", body)
            .await
    }

    /// Creates many objects. `progress` receives the number created so far.
    pub async fn create_all(
        &self,
        path: &str,
        objects: impl Iterator<Item = Value>,
        progress: impl Fn(usize),
    ) -> Result<()> {
        let creating = stream::iter(objects).map(|object| async move { self.create(path, &object).await });
        let mut creating = creating.buffer_unordered(CREATE_CONCURRENCY).enumerate();
        while let Some((done, created)) = creating.next().await {
            created?;
            if (done + 1) % 1000 == 0 {
                progress(done + 1);
            }
        }
        Ok(())
    }

    /// Returns the current resourceVersion of a collection.
    pub async fn current_version(&self, path: &str) -> Result<String> {
        let list = self.get(&format!("{path}?limit=1")).await?;
        let version = list["metadata"]["resourceVersion"].as_str();
        Ok(version.context("a list has a version")?.to_owned())
    }

    /// Watches a collection from a resourceVersion on, and returns the lines.
    pub async fn watch(
        &self,
        path: &str,
        from: &str,
    ) -> Result<impl futures::Stream<Item = Result<String>> + Send + use<>> {
        let query = format!("{path}?watch=true&timeoutSeconds=3600&resourceVersion={from}");
        let request = http::Request::get(query).body(Vec::new())?;
        let body = self.client.request_stream(request).await?;
        Ok(futures::AsyncBufReadExt::lines(body).map_err(Into::into))
    }

    /// Counts the requests for objects of benches that the server has answered.
    pub async fn count_requests(&self) -> Result<Requests> {
        self.count_requests_of(&["samples", "configmaps"]).await
    }

    /// Counts the requests for these resources that the server has answered.
    pub async fn count_requests_of(&self, resources: &[&str]) -> Result<Requests> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = self.client.request_text(request).await?;
        sum_requests(&text, resources)
    }
}

/// Sums the requests for these resources in the server's metrics.
fn sum_requests(metrics: &str, resources: &[&str]) -> Result<Requests> {
    let mut requests = Requests::new();
    for line in metrics.lines() {
        let Some((labels, value)) = line
            .strip_prefix("apiserver_request_total{")
            .and_then(|l| l.rsplit_once("} "))
        else {
            continue;
        };
        let label = |name: &str| {
            labels
                .split(',')
                .find_map(|l| l.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
                .unwrap_or("")
        };
        // Only the garbage collector sends GETs, and it is not measured.
        if resources.contains(&label("resource")) && label("verb") != "GET" {
            let Ok(value) = value.parse::<f64>() else {
                bail!("the metric is not a number: {line}")
            };
            *requests.entry(label("verb").to_owned()).or_default() += value as u64;
        }
    }
    Ok(requests)
}

/// Returns the difference of two counts.
pub fn requests_since(before: &Requests, now: &Requests) -> Requests {
    let of = |verb: &String| before.get(verb).copied().unwrap_or(0);
    now.iter()
        .map(|(verb, n)| (verb.clone(), n - of(verb)))
        .filter(|(_, n)| *n > 0)
        .collect()
}

/// Adds the requests of one round to those of the rounds before.
pub fn add_requests(total: &mut Requests, of_round: Requests) {
    for (verb, n) in of_round {
        *total.entry(verb).or_default() += n;
    }
}

/// Divides the requests of all rounds by their number.
pub fn mean_requests(mut total: Requests, rounds: usize) -> Requests {
    total.values_mut().for_each(|n| *n /= rounds as u64);
    total.retain(|_, n| *n > 0);
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_summed_by_verb_and_subtracted() {
        let metrics = |applied: u64| {
            format!(
                "# TYPE apiserver_request_total counter\n\
                 apiserver_request_total{{code=\"200\",resource=\"configmaps\",verb=\"APPLY\"}} {applied}\n\
                 apiserver_request_total{{code=\"201\",resource=\"configmaps\",verb=\"APPLY\"}} 2\n\
                 apiserver_request_total{{code=\"200\",resource=\"samples\",verb=\"GET\"}} 9\n\
                 apiserver_request_total{{code=\"200\",resource=\"leases\",verb=\"PUT\"}} 9\n\
                 apiserver_request_total{{code=\"200\",resource=\"samples\",verb=\"LIST\"}} 1\n"
            )
        };
        let counted = |text: &str| sum_requests(text, &["samples", "configmaps"]);
        let (before, now) = (counted(&metrics(1)).unwrap(), counted(&metrics(5)).unwrap());
        assert_eq!(before["APPLY"], 3);
        assert_eq!(
            requests_since(&before, &now),
            Requests::from([("APPLY".into(), 4)])
        );
        assert!(counted(&metrics(1).replace("} 1\n", "} x\n")).is_err());
    }
}
