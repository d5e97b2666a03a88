//! Generated sequences of requests, sent to the embedded server and to the real one: their answers must be alike.
//!
//! A seed repeats a sequence. What is meant to differ stands in `differences.yaml`, from which the page of the docs is
//! generated. [`sequence`] has the steps and families, [`schema`] and [`value`] generate contents, [`run`] sends the
//! requests, [`compare`] compares the answers, and [`shrink`] finds the shortest sequence that shows a difference.

mod builtin;
mod choice;
mod compare;
mod definition;
mod lifecycle;
mod lists;
mod objects;
mod report;
mod rights;
mod run;
mod schema;
mod sequence;
mod shrink;
mod value;

use std::env;
use std::time::{Duration, Instant};

use fastrand::Rng;
use futures::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};

pub use self::compare::{SeenIdentities, describe_difference, normalize_answer};
use self::definition::{DEFINITIONS, build_definition};
use self::report::ConformanceReport;
use self::run::{Block, ServerPair, run_steps};
use self::sequence::{FAMILIES, Sequence, SequenceFamily};
use self::shrink::shrink_steps;
use crate::target::{ConformanceTarget, embedded, real};

/// Number of seeds that share a namespace and a custom kind.
const BLOCK_SEEDS: u64 = 50;
/// Maximum number of blocks at a time.
const CONCURRENT_BLOCKS: usize = 6;
/// Number of sequences of a run in the suite.
const SUITE_SEQUENCES: u64 = 300;
/// Families of a run in the suite, by name: all but that of deletions, for which a real server takes seconds each.
const SUITE_FAMILIES: &str = "definitions,custom,builtin,lists,rights";
/// Timeout until both servers serve the kind of a block.
const SERVED_TIMEOUT: Duration = Duration::from_secs(60);

/// The sequences of a run, from environment variables that `cargo xtask conform` sets.
struct RunOptions {
    seed: u64,
    sequences: u64,
    families: Vec<(SequenceFamily, u32)>,
}

impl RunOptions {
    fn from_env() -> Self {
        let number = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
        let named = env::var("OSTLER_CONFORM_FAMILIES");
        let named = named.unwrap_or_else(|_| SUITE_FAMILIES.into());
        let named: Vec<&str> = named.split(',').filter(|name| !name.is_empty()).collect();
        let families = FAMILIES
            .into_iter()
            .filter(|(family, _)| named.is_empty() || named.contains(&family.name()));
        Self {
            seed: number("OSTLER_CONFORM_SEED").unwrap_or(0),
            sequences: number("OSTLER_CONFORM_SEQUENCES").unwrap_or(SUITE_SEQUENCES),
            families: families.collect(),
        }
    }
}

mod sequences_are_answered_alike {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs the real control plane: cargo xtask conform"]
    async fn real_default() {
        super::compare_servers(super::RunOptions::from_env()).await;
    }
}

async fn compare_servers(options: RunOptions) {
    assert!(!options.families.is_empty(), "no such family");
    let (server, target) = embedded().await;
    let servers = ServerPair {
        embedded: target,
        real: real(),
    };
    let began = Instant::now();
    let mut report = ConformanceReport::default();
    let end = options.seed + options.sequences;
    let blocks = options.seed / BLOCK_SEEDS..end.div_ceil(BLOCK_SEEDS);
    let mut running = futures::stream::iter(blocks.map(|block| {
        let seeds = (block * BLOCK_SEEDS).max(options.seed)..((block + 1) * BLOCK_SEEDS).min(end);
        run_block(&servers, block, seeds, &options.families)
    }))
    .buffer_unordered(CONCURRENT_BLOCKS);
    while let Some(found) = running.next().await {
        report.merge(found);
    }
    drop(running);
    server.shutdown().await;
    println!(
        "{}",
        report.format(options.seed, options.sequences, began.elapsed())
    );
    assert!(
        report.is_alike(),
        "the servers differ: see above; repeat a sequence with `cargo xtask conform --sequences 1 --seed SEED`"
    );
}

/// Runs the sequences of a block in a namespace of its own, and removes it.
async fn run_block(
    servers: &ServerPair,
    number: u64,
    seeds: std::ops::Range<u64>,
    families: &[(SequenceFamily, u32)],
) -> ConformanceReport {
    let block = Block {
        namespace: crate::target::unique("block-"),
        group: format!("{}.example.com", crate::target::unique("g")),
    };
    let mut report = ConformanceReport::default();
    let schema = schema::generate_root(&mut Rng::with_seed(number));
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": block.namespace}});
    for target in [&servers.embedded, &servers.real] {
        target.post("/api/v1/namespaces", &namespace).await.expect(201);
    }
    let schema = serve_kind(servers, &block, schema).await;
    for seed in seeds {
        let sequence = Sequence::generate(seed, families, &schema);
        if let Some(difference) = run_steps(servers, &block, &sequence.steps).await {
            if report.add(&sequence, &difference) {
                let (steps, difference) = shrink_steps(servers, &block, &sequence.steps, difference).await;
                report.add_shrunk(&sequence, &schema, steps, difference);
            }
        } else {
            report.add_alike();
        }
    }
    remove_block(servers, &block).await;
    report
}

/// Creates the kind of a block on both servers. Returns its schema: an open one if a server refuses the generated one, which
/// is the subject of the definitions' own sequences.
async fn serve_kind(servers: &ServerPair, block: &Block, schema: Value) -> Value {
    let open = json!({"type": "object", "properties": {
        "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"url": {"type": "string"}}},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }});
    let dry_run = format!("{DEFINITIONS}?dryRun=All");
    let definition = build_definition(&block.group, &schema);
    let mut is_valid = true;
    for target in [&servers.embedded, &servers.real] {
        let request = target
            .request(Method::POST, &dry_run)
            .header("content-type", "application/json");
        let answer = target.try_send(request.body(definition.to_string())).await;
        is_valid &= answer.is_ok_and(|answer| answer.code == 201);
    }
    let schema = if is_valid { schema } else { open };
    let definition = build_definition(&block.group, &schema);
    for target in [&servers.embedded, &servers.real] {
        target.post(DEFINITIONS, &definition).await.expect(201);
        let collection = format!("/apis/{}/v1/namespaces/{}/things", block.group, block.namespace);
        let served = target.until(&collection, |answer| answer.code == 200);
        let served = tokio::time::timeout(SERVED_TIMEOUT, served).await;
        assert!(served.is_ok(), "{collection} is not served");
    }
    schema
}

/// Removes finalizers, the kind and the namespace of a block. The servers delete on while the next block runs.
async fn remove_block(servers: &ServerPair, block: &Block) {
    for target in [&servers.embedded, &servers.real] {
        remove_finalizers(target, block).await;
        for path in [
            format!("{DEFINITIONS}/things.{}", block.group),
            format!("/api/v1/namespaces/{}", block.namespace),
        ] {
            target.delete(&path, &json!({})).await;
        }
    }
}

async fn remove_finalizers(target: &ConformanceTarget, block: &Block) {
    let core = format!("/api/v1/namespaces/{}", block.namespace);
    let collections = [
        format!("/apis/{}/v1/namespaces/{}/things", block.group, block.namespace),
        format!("{core}/configmaps"),
        format!("{core}/secrets"),
    ];
    for collection in collections {
        let listed = target.get(&collection).await.body;
        let items = listed["items"].as_array().into_iter().flatten();
        for item in items.filter(|item| item["metadata"]["finalizers"].is_array()) {
            let name = item["metadata"]["name"].as_str().unwrap_or_default();
            let patch = json!({"metadata": {"finalizers": null}});
            target
                .patch("merge", &format!("{collection}/{name}"), &patch)
                .await;
        }
    }
}
