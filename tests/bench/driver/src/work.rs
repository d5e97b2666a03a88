//! Objects of the benches, and the bare client that is their upper bound.

use std::{collections::HashMap, time::Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use crate::api::{BENCH_NAMESPACE, Cluster, config_maps_path, samples_path};

/// Name of the ConfigMap that samples read.
pub const SHARED_CONFIG_MAP: &str = "shared";
/// Size of a cached object's JSON without `managedFields`.
const BALLAST_BYTES: usize = 1331;

/// Builds a Sample that reads the ConfigMap `config`.
pub fn build_sample(name: &str, config: Option<&str>) -> Value {
    let mut spec = json!({"text": format!("The quick brown fox jumps over the lazy dog, says {name}.")});
    if let Some(config) = config {
        spec["config"] = config.into();
    }
    json!({"apiVersion": "bench.ostler.dev/v1", "kind": "Sample",
        "metadata": {"name": name, "namespace": BENCH_NAMESPACE, "labels": {"app.kubernetes.io/part-of": "bench"}},
        "spec": spec})
}

/// Returns the name of the nth object of a series.
pub fn object_name(series: &str, n: usize) -> String {
    format!("{series}-{n:06}")
}

/// Builds the ConfigMap that samples read.
pub fn build_shared(value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": SHARED_CONFIG_MAP, "namespace": BENCH_NAMESPACE}, "data": {"value": value}})
}

/// Returns the value of that ConfigMap after its nth change.
pub fn shared_value(round: usize) -> String {
    format!("after-{round}")
}

/// Builds a ConfigMap that is only cached: a few entries and labels, like a typical application's configuration.
pub fn build_ballast(n: usize, padding: usize) -> Value {
    let tier = ["web", "worker", "batch"][n % 3];
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": object_name("kept", n), "namespace": BENCH_NAMESPACE,
            "labels": {"app.kubernetes.io/name": "kept", "app.kubernetes.io/instance": object_name("kept", n),
                "app.kubernetes.io/managed-by": "bench", "tier": tier},
            "annotations": {"bench.ostler.dev/purpose": "cached, and read by no reconciler"}},
        "data": {"LOG_LEVEL": "info", "ENDPOINT": format!("https://service-{n}.example/api/v1"),
            "settings.yaml": random_digits(n, padding)}})
}

/// Returns pseudo-random digits, unique to each object, so that deduplication or compression gains nothing by them.
fn random_digits(seed: usize, len: usize) -> String {
    let mut dice = fastrand::Rng::with_seed(seed as u64);
    std::iter::repeat_with(|| dice.digit(16)).take(len).collect()
}

/// Computes the padding that gives a cached object its intended size.
pub async fn ballast_padding(cluster: &Cluster) -> Result<usize> {
    let mut object = build_ballast(999_999, 0);
    object["metadata"]["name"] = "measured".into();
    let mut kept = cluster.create(&config_maps_path(), &object).await?;
    if let Some(metadata) = kept["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    Ok(BALLAST_BYTES.saturating_sub(kept.to_string().len()))
}

/// Builds the ConfigMap of a Sample. Returns it with its name.
fn build_child(sample: &Value) -> (&str, Value) {
    let (name, uid) = (&sample["metadata"]["name"], &sample["metadata"]["uid"]);
    let name = name.as_str().unwrap_or_default();
    let child = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": BENCH_NAMESPACE, "ownerReferences": [{
            "apiVersion": "bench.ostler.dev/v1", "kind": "Sample", "name": name, "uid": uid,
            "controller": true, "blockOwnerDeletion": true}]},
        "data": {"text": sample["spec"]["text"]}});
    (name, child)
}

/// Sends the writes of an operator after what all objects read has changed to `value`, by a bare client: it replaces each
/// of the ConfigMaps that are there, or applies it. Returns the seconds they took.
pub async fn send_raw_updates(
    cluster: &Cluster,
    samples_there: &[Value],
    children_there: &[Value],
    value: &str,
    workers: usize,
    apply: bool,
) -> Result<f64> {
    let cached: HashMap<&str, &Value> = children_there
        .iter()
        .filter_map(|child| Some((child["metadata"]["name"].as_str()?, child)))
        .collect();
    let began = Instant::now();
    let writing = stream::iter(samples_there).map(|sample| {
        let (name, mut child) = build_child(sample);
        let path = format!("{}/{name}", config_maps_path());
        let cached = cached.get(name).copied();
        async move {
            if apply {
                child["data"]["value"] = value.into();
                return cluster.apply(&path, &child).await;
            }
            let mut child = cached.cloned().with_context(|| format!("no ConfigMap {name}"))?;
            child["data"]["value"] = value.into();
            // Items of a list have neither.
            child["apiVersion"] = "v1".into();
            child["kind"] = "ConfigMap".into();
            cluster.replace(&path, &child).await
        }
    });
    writing
        .buffer_unordered(workers)
        .try_for_each(async |_| Ok(()))
        .await?;
    Ok(began.elapsed().as_secs_f64())
}

/// Sends the writes of an operator by a bare client. Returns the seconds they took.
pub async fn send_raw_writes(
    cluster: &Cluster,
    samples_there: &[Value],
    workers: usize,
    apply: bool,
) -> Result<f64> {
    let began = Instant::now();
    let writing = stream::iter(samples_there).map(|sample| async move {
        let (name, child) = build_child(sample);
        let path = config_maps_path();
        if apply {
            cluster.apply(&format!("{path}/{name}"), &child).await?;
        } else {
            cluster.create(&path, &child).await?;
        }
        let generation = &sample["metadata"]["generation"];
        let status = json!({"observedGeneration": generation, "conditions": [{
            "type": "Ready", "status": "True", "observedGeneration": generation, "reason": "Applied",
            "message": "The ConfigMap is there", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let path = format!("{}/{name}/status", samples_path());
        cluster.merge_patch(&path, &json!({ "status": status })).await
    });
    writing
        .buffer_unordered(workers)
        .try_for_each(async |_| Ok(()))
        .await?;
    Ok(began.elapsed().as_secs_f64())
}
