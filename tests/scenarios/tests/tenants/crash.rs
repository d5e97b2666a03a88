//! A tenant who tries to end the host: values at the ends of their ranges, documents that grow when they are parsed, and garbage
//! where the host keeps its records. The host is a process of its own, which a panic or a full stack would show or end.

use std::time::Instant;

use kube::api::{Patch, PatchParams};
use ostler::testing::key::Gvk;
use ostler_test_harness::{
    Lab,
    concourse::{PACK_COMPONENTS, kind},
    process::HostProcess,
    scenario, workspace_root,
};
use serde_json::{Value, json};

use super::{Tenant, change_pipeline, upstream_gvk};

/// Bytes of a long text. An object of etcd has 1.5 MiB.
const LONG_TEXT_BYTES: usize = 400_000;
/// Number of objects that the API server accepts at least, or nothing was tried.
const MIN_ACCEPTED: usize = 60;

/// The annotations that the host writes itself.
const RECORDS: [&str; 8] = [
    "ostler.dev/used-connections",
    "ostler.dev/used-by",
    "ostler.dev/protected-secrets",
    "ostler.dev/owned-objects",
    "ostler.dev/holds",
    "ostler.dev/owner",
    "applied.ostler.dev/concourse-pipeline",
    "held-by.ostler.dev/0",
];

/// Contents that no record has.
fn list_garbage(namespace: &str) -> Vec<String> {
    let many = |entry: &str| vec![entry; 4000].join(", ");
    vec![
        String::new(),
        ", , ,".into(),
        "\u{0}\u{1}\u{feff}\n\r🦀".into(),
        "{\"a\": [".into(),
        "18446744073709551616".into(),
        "Secret.v1 /x, Secret.v1 ../..".into(),
        format!("Upstream.v1alpha1.ostler.dev {namespace}/garbage-0"),
        format!("Upstream.v1alpha1.ostler.dev in-cluster {namespace}"),
        many(&format!("Kind.v1.made-up.example {namespace}/x")),
        many(&format!("Kind.v1.made-up.example in-cluster {namespace}")),
        (0..4000)
            .map(|i| format!("Kind{i}.v1.made-up{i}.example in-cluster {namespace}, "))
            .collect(),
    ]
}

/// The fields below a schema, each with its path and schema.
fn list_fields(schema: &Value, path: &str, fields: &mut Vec<(String, Value)>) {
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}/{name}");
        match inner["type"].as_str() {
            Some("object") if inner["properties"].is_object() => list_fields(inner, &path, fields),
            _ => fields.push((path, inner.clone())),
        }
    }
}

/// A value that a schema accepts.
fn build_minimal(schema: &Value) -> Value {
    match schema["type"].as_str() {
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten();
            let fields = required.filter_map(Value::as_str);
            fields
                .map(|name| (name.to_owned(), build_minimal(&schema["properties"][name])))
                .collect()
        }
        Some("integer") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        _ => match schema["pattern"].as_str() {
            Some("^/") => json!("/"),
            Some(pattern) if pattern.starts_with("^https") => json!("https://example.com"),
            Some(pattern) if pattern.starts_with("^\\$") => json!(".token"),
            _ => json!("x"),
        },
    }
}

/// Sets a field, with the fields that are required beside it.
fn set_field(value: &mut Value, schema: &Value, path: &[&str], extreme: Value) {
    let Some((name, rest)) = path.split_first() else {
        *value = extreme;
        return;
    };
    let minimal = build_minimal(schema);
    for (required, field) in minimal.as_object().into_iter().flatten() {
        if value.get(required).is_none() {
            value[required] = field.clone();
        }
    }
    set_field(&mut value[*name], &schema["properties"][*name], rest, extreme);
}

/// Values at the ends of what a field can have.
fn list_extremes(schema: &Value) -> Vec<Value> {
    let nested = |levels: usize| (0..levels).fold(json!("x"), |inner, _| json!({"a": inner}));
    match schema["type"].as_str() {
        Some("integer") => {
            let mut values = vec![json!(i64::MAX), json!(i64::MIN), json!(u32::MAX), json!(0)];
            values.extend(
                ["minimum", "maximum"]
                    .iter()
                    .filter_map(|end| Some(json!(schema[end].as_f64()? as i64))),
            );
            values
        }
        Some("boolean") => vec![json!(true), json!(false)],
        Some("array") => vec![
            json!([]),
            Value::Array(vec![build_minimal(&schema["items"]); 5000]),
        ],
        Some("object") => vec![json!({}), nested(100)],
        _ => vec![
            json!(""),
            json!("\u{0}\r\n: 🦀"),
            json!("$(password)".repeat(LONG_TEXT_BYTES / 11)),
            json!(format!("/{}", "../".repeat(LONG_TEXT_BYTES / 3))),
            json!(format!("https://{}.example", "x".repeat(1000))),
            json!(format!(".{}", vec!["a"; 20_000].join("."))),
            json!("999999999999999999h"),
        ],
    }
}

/// Upstreams of which one field has an extreme value.
fn list_upstreams(lab: &Lab, tenant: &Tenant) -> Vec<Value> {
    let text = std::fs::read_to_string(workspace_root().join("crds/ostler.dev_upstreams.yaml"));
    let crd: Value = serde_saphyr::from_str(&text.expect("a CRD")).expect("YAML");
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut fields = Vec::new();
    list_fields(schema, "", &mut fields);
    let mut specs = Vec::new();
    for (path, field) in &fields {
        let path: Vec<&str> = path.split('/').skip(1).collect();
        for extreme in list_extremes(field) {
            let mut spec = json!({"url": lab.concourse.url()});
            set_field(&mut spec, schema, &path, extreme);
            specs.push(spec);
        }
    }
    let named = specs.into_iter().enumerate().map(|(i, spec)| {
        json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
            "metadata": {"name": format!("extreme-{i}"), "namespace": tenant.namespace}, "spec": spec})
    });
    named.collect()
}

/// Pipelines whose configuration grows when it is parsed, or has no end.
fn list_configs() -> Vec<String> {
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..12 {
        let row = vec![format!("*a{}", i - 1); 9].join(", ");
        laughs += &format!("a{i}: &a{i} [{row}]\n");
    }
    vec![
        format!("{laughs}jobs: *a11\n"),
        format!("jobs: {}", "[".repeat(LONG_TEXT_BYTES)),
        format!("jobs: {}1{}", "[".repeat(5000), "]".repeat(5000)),
        "- ".repeat(LONG_TEXT_BYTES / 2),
        format!(
            "jobs: [{{name: a, plan: [{{get: {}}}]}}]",
            "((".repeat(LONG_TEXT_BYTES / 2)
        ),
        "x: &x\n  <<: *x\njobs: []\n".into(),
        "jobs: &a [*a]\n".into(),
        "jobs: 1e999999999\n".into(),
        "jobs: !!binary AAAA\n".into(),
        format!("{}: 1\n", "k".repeat(LONG_TEXT_BYTES)),
        (0..40_000).map(|i| format!("k{i}: 1\n")).collect(),
        "\u{feff}%YAML 9.9\n---\n---\n...\n".into(),
        "jobs: [{name: a, plan: [{do: [{try: {in_parallel: {steps: [{do: []}]}}}]}]}]".repeat(100),
    ]
}

/// Objects with the host's own annotations.
fn list_records(tenant: &Tenant) -> Vec<Value> {
    let metadata = |name: String, record: &str, garbage: &str| {
        json!({"name": name, "namespace": tenant.namespace, "annotations": {record: garbage},
            "finalizers": ["ostler.dev/upstream-protection", "held-by.ostler.dev/0"]})
    };
    let mut objects = Vec::new();
    for (i, garbage) in list_garbage(&tenant.namespace).iter().enumerate() {
        for (j, record) in RECORDS.iter().enumerate() {
            let name = format!("garbage-{i}-{j}");
            let metadata = metadata(name, record, garbage);
            objects.extend([
                json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream", "metadata": metadata,
                    "spec": {"url": "http://127.0.0.1:1"}}),
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata}),
                json!({"apiVersion": "concourse-ci.org/v1alpha1", "kind": "Team", "metadata": metadata,
                    "spec": {"instanceRef": {"name": "own"}, "teamName": "garbage", "roles": []}}),
            ]);
        }
    }
    objects
}

/// Prints how long a change of the platform team's pipeline takes.
async fn expect_neighbour_served(lab: &Lab) {
    println!("a neighbour's change took {:.1?}", change_pipeline(lab).await);
}

#[scenario(hostile)]
async fn tenant_that_tries_to_end_the_host_harms_only_its_own_objects(mut lab: Lab) {
    let tenant = Tenant::create(&mut lab).await;
    lab.install(&PACK_COMPONENTS);
    let mut host = HostProcess::start(
        &lab,
        "host",
        &["--leader-elect=false", "--watch-namespace", &tenant.namespace],
    );
    host.wait_started(&lab).await;
    lab.apply_chain_objects().await;

    tenant
        .apply(tenant.password_secret(lab.concourse.password()))
        .await;
    tenant
        .apply(tenant.instance_object("own", lab.concourse.url(), "own"))
        .await;
    let owners = json!([{"role": "owner", "users": ["local:test"]}]);
    let team = json!({"instanceRef": {"name": "own"}, "teamName": "tenant", "roles": owners});
    tenant.apply(tenant.pack_object("Team", "own", team)).await;
    let mut attacks = list_upstreams(&lab, &tenant);
    for (i, config) in list_configs().into_iter().enumerate() {
        let spec = json!({"teamRef": {"name": "own"}, "config": {"inline": config}});
        attacks.push(tenant.pack_object("Pipeline", &format!("bomb-{i}"), spec));
    }
    attacks.extend(list_records(&tenant));
    let (mut accepted, began) = (0, Instant::now());
    for attack in attacks {
        accepted += usize::from(tenant.try_apply(&attack).await.is_ok());
    }
    println!("{accepted} objects were accepted in {:.1?}", began.elapsed());
    assert!(accepted >= MIN_ACCEPTED, "{accepted} accepted");
    expect_neighbour_served(&lab).await;

    // Each Upstream is judged.
    lab.wait_until("each Upstream has a condition", async || {
        let upstreams = tenant
            .api(&upstream_gvk(), &tenant.namespace)
            .list(&Default::default())
            .await;
        let upstreams = upstreams.expect("a list").items;
        upstreams
            .iter()
            .all(|upstream| upstream.data["status"]["conditions"].is_array())
    })
    .await;
    println!(
        "all Upstreams were judged {:.1?} after the first",
        began.elapsed()
    );

    // Its status is the host's to write, and the tenant writes it.
    for generation in [i64::MAX, -1] {
        let condition = json!({"type": "Ready", "status": "True", "reason": "X", "message": "x".repeat(1000),
            "lastTransitionTime": "0001-01-01T00:00:00Z", "observedGeneration": generation});
        let status =
            json!({"status": {"observedGeneration": generation, "conditions": vec![condition; 100]}});
        for gvk in [upstream_gvk(), kind("Pipeline")] {
            let api = tenant.api(&gvk, &tenant.namespace);
            let listed = api.list(&Default::default()).await.expect("a list").items;
            for object in listed.iter().take(10) {
                let name = object.metadata.name.as_deref().expect("a name");
                let _ = api
                    .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
                    .await;
            }
        }
    }
    expect_neighbour_served(&lab).await;

    // All is deleted at once. What the tenant's own finalizers keep is the tenant's.
    let namespaces = lab.api(&Gvk::new("", "v1", "Namespace"), "");
    namespaces
        .delete(&tenant.namespace, &Default::default())
        .await
        .expect("deleted");
    expect_neighbour_served(&lab).await;
    assert!(host.is_running(), "the host has ended:\n{}", host.log());
    let log = host.log();
    let panics: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("panicked at") || line.contains("bug of the host"))
        .collect();
    assert!(panics.is_empty(), "{panics:#?}");
}
