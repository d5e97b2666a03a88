//! Measures the memory of Ostler's store: reads an object as the API server returns it, stores a number of copies with
//! different values, and prints the allocated bytes per object and the resident bytes of the process at its peak as JSON.

use std::alloc::System;

use anyhow::{Context, Result, bail};
use ostler::testing::{
    key::Gvk,
    object::KubeObject,
    scope::{Projection, Scope},
    store::{Put, Store, VersionSource},
};
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (file, n) = arguments.next().zip(arguments.next()).context("FILE NUMBER")?;
    let n: usize = n.parse()?;
    let mut object: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let gvk = Gvk::from_api_version(&text("apiVersion"), &text("kind"));

    let store = Store::default();
    store.open_collection(&Scope {
        gvk: gvk.clone(),
        cluster: "".into(),
        namespace: "".into(),
        selector: None,
        projection: Projection::Full,
    });
    let region = Region::new(ALLOCATOR);
    for i in 0..n {
        let metadata = &mut object["metadata"];
        metadata["name"] = format!("kept-{i:06}").into();
        metadata["uid"] = format!("00000000-0000-4000-8000-{i:012}").into();
        metadata["resourceVersion"] = (i + 1).to_string().into();
        if let Some(settings) = object["data"]["settings.yaml"].as_str() {
            object["data"]["settings.yaml"] = noise(i, settings.len()).into();
        }
        let (key, parsed) = KubeObject::parse(&gvk, object.to_string().as_bytes())?;
        if !matches!(
            store.put(&key, parsed, Projection::Full, VersionSource::Watch),
            Put::Changed(_)
        ) {
            bail!("object {i} was not taken in");
        }
    }
    let change = region.change();
    if store.size().objects != n {
        bail!("the store has {} of {n} objects", store.size().objects);
    }
    // The allocator reports reallocations as differences.
    let bytes = change.bytes_allocated as i64 - change.bytes_deallocated as i64;
    println!(
        "{}",
        json!({"allocated_per_object": bytes / i64::try_from(n)?, "rss_peak": resident_peak()?})
    );
    Ok(())
}

/// Returns the resident bytes of this process at its peak.
fn resident_peak() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line
        .and_then(|value| value.trim().strip_suffix(" kB"))
        .context("VmHWM")?;
    Ok(kib.parse::<u64>()? * 1024)
}

/// Returns pseudo-random digits, as the bench's driver does.
fn noise(seed: usize, len: usize) -> String {
    let mut dice = fastrand::Rng::with_seed(seed as u64);
    std::iter::repeat_with(|| dice.digit(16)).take(len).collect()
}
