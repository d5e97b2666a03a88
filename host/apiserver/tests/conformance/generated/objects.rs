//! Sequences of writes to one object, whose content comes from a generator.

use fastrand::Rng;
use serde_json::{Value, json};

use super::choice::{Choose as _, insert};
use super::sequence::{
    APPLY_PATCH, JSON_PATCH, MERGE_PATCH, RequestStep, STRATEGIC_PATCH, Step, generate_write_query,
};
use super::value::{add_mistake, generate_fitting, generate_json_patch, generate_merge_patch};

/// Path of the collection of the block's custom kind.
pub const CUSTOM_COLLECTION: &str = "/apis/§group/v1/namespaces/§namespace/things";

/// A resource that a sequence writes.
pub struct WrittenResource {
    /// Path of the collection.
    pub collection: String,
    /// `apiVersion` of its objects.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// The status is a subresource.
    pub status: bool,
    /// `scale` is served.
    pub scale: bool,
}

impl WrittenResource {
    /// The custom kind of the block.
    fn custom() -> Self {
        Self {
            collection: CUSTOM_COLLECTION.into(),
            api_version: "§group/v1".into(),
            kind: "Thing".into(),
            status: true,
            scale: true,
        }
    }
}

/// Generates writes to one object of the block's custom kind.
pub fn generate_custom_steps(rng: &mut Rng, schema: &Value) -> Vec<Step> {
    let content = |rng: &mut Rng| {
        let mut value = generate_fitting(rng, &schema["properties"]["spec"]);
        if rng.percent(45) {
            add_mistake(rng, &mut value);
        }
        let mut object = json!({"spec": value});
        if rng.percent(15) {
            insert(
                &mut object,
                "status",
                generate_fitting(rng, &schema["properties"]["status"]),
            );
        }
        object
    };
    generate_steps(rng, &WrittenResource::custom(), &content)
}

/// Generates writes to one object. `content` returns its fields beside metadata.
pub fn generate_steps(
    rng: &mut Rng,
    resource: &WrittenResource,
    content: &dyn Fn(&mut Rng) -> Value,
) -> Vec<Step> {
    let writer = ObjectWriter { resource, content };
    let mut steps = vec![if rng.percent(70) {
        writer.create(rng)
    } else {
        writer.apply(rng)
    }];
    for _ in 0..rng.usize(1..6) {
        steps.push(writer.change(rng));
    }
    steps.push(RequestStep::get(writer.path()).into());
    steps
}

/// Generates the writes to one object.
struct ObjectWriter<'a> {
    resource: &'a WrittenResource,
    content: &'a dyn Fn(&mut Rng) -> Value,
}

impl ObjectWriter<'_> {
    fn path(&self) -> String {
        format!("{}/a-§id", self.resource.collection)
    }

    fn object(&self, rng: &mut Rng) -> Value {
        let mut object = (self.content)(rng);
        insert(&mut object, "apiVersion", self.resource.api_version.as_str());
        insert(&mut object, "kind", self.resource.kind.as_str());
        let mut metadata = json!({"name": "a-§id"});
        if rng.percent(30) {
            insert(&mut metadata, "labels", generate_labels(rng));
        }
        if rng.percent(20) {
            insert(&mut metadata, "annotations", generate_labels(rng));
        }
        if rng.percent(12) {
            let finalizers = rng.choose(&[
                json!(["a.example/one"]),
                json!(["a.example/one", "a.example/two"]),
                json!(["one"]),
                json!(["a.example/one", "a.example/one"]),
                json!([""]),
                json!(["orphan", "foregroundDeletion"]),
            ]);
            insert(&mut metadata, "finalizers", finalizers);
        }
        if rng.percent(8) {
            add_metadata_surprise(rng, &mut metadata);
        }
        insert(&mut object, "metadata", metadata);
        object
    }

    fn create(&self, rng: &mut Rng) -> Step {
        let mut object = self.object(rng);
        if rng.percent(4) {
            let field = rng.choose(&["apiVersion", "kind", "metadata"]);
            let other = rng.choose(&[json!("other"), Value::Null, json!(1), json!({})]);
            insert(&mut object, field, other);
        }
        let query = generate_write_query(rng, false);
        RequestStep::post(format!("{}{query}", self.resource.collection), object).into()
    }

    fn apply(&self, rng: &mut Rng) -> Step {
        let query = generate_write_query(rng, true);
        let object = self.object(rng);
        RequestStep::patch(format!("{}{query}", self.path()), APPLY_PATCH, object).into()
    }

    fn change(&self, rng: &mut Rng) -> Step {
        let path = self.path();
        match rng.u32(0..22) {
            0..4 => self.apply(rng),
            4..7 => self.replace(rng),
            7..10 => {
                let wanted = self.object(rng);
                let query = generate_write_query(rng, false);
                let patch = generate_merge_patch(rng, &wanted);
                RequestStep::patch(format!("{path}{query}"), MERGE_PATCH, patch).into()
            }
            10..13 => {
                let sample = self.object(rng);
                let patch = generate_json_patch(rng, &sample);
                RequestStep::patch(path, JSON_PATCH, patch).into()
            }
            13 | 14 => {
                let wanted = self.object(rng);
                let patch = generate_merge_patch(rng, &wanted);
                RequestStep::patch(path, STRATEGIC_PATCH, patch).into()
            }
            15 | 16 if self.resource.status => self.write_status(rng),
            17 if self.resource.scale => write_scale(rng, &path),
            18 => self.create(rng),
            19 => RequestStep::delete(path.as_str(), generate_delete_options(rng, &path)).into(),
            20 => RequestStep::patch(path, MERGE_PATCH, json!({"metadata": {"finalizers": null}})).into(),
            _ => RequestStep::get(path).into(),
        }
    }

    fn replace(&self, rng: &mut Rng) -> Step {
        let path = self.path();
        let mut object = self.object(rng);
        match rng.u32(0..10) {
            0 => {}
            1 => insert(&mut object["metadata"], "resourceVersion", "1"),
            2 => insert(
                &mut object["metadata"],
                "uid",
                "00000000-0000-0000-0000-000000000000",
            ),
            _ => insert(
                &mut object["metadata"],
                "resourceVersion",
                format!("§revision({path})"),
            ),
        }
        let query = generate_write_query(rng, false);
        RequestStep::put(format!("{path}{query}"), object).into()
    }

    fn write_status(&self, rng: &mut Rng) -> Step {
        let path = format!("{}/status", self.path());
        let mut object = self.object(rng);
        let status = rng.choose(&[
            json!({"observedGeneration": 1, "replicas": 2}),
            json!({"conditions": [{"type": "Ready", "status": "True"}]}),
            json!({"conditions": [{"type": "Ready", "status": "Odd"}]}),
            json!({"phase": null, "unknownField": 1}),
            Value::Null,
            json!("text"),
        ]);
        insert(&mut object, "status", status);
        match rng.u32(0..4) {
            0 => {
                insert(
                    &mut object["metadata"],
                    "resourceVersion",
                    format!("§revision({})", self.path()),
                );
                RequestStep::put(path, object).into()
            }
            1 => {
                let mut applied = json!({
                    "apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": "a-§id"},
                });
                // After a null, the real server writes once more: among the differences that are meant.
                if !object["status"].is_null() {
                    insert(&mut applied, "status", object["status"].clone());
                }
                RequestStep::patch(format!("{path}?fieldManager=m1"), APPLY_PATCH, applied).into()
            }
            2 => RequestStep::get(path).into(),
            _ => RequestStep::patch(
                path,
                MERGE_PATCH,
                json!({"status": object["status"], "spec": object["spec"]}),
            )
            .into(),
        }
    }
}

fn write_scale(rng: &mut Rng, path: &str) -> Step {
    let path = format!("{path}/scale");
    match rng.u32(0..3) {
        0 => RequestStep::get(path).into(),
        1 => {
            let replicas = rng.choose(&[json!(3), json!(-1), json!("3"), Value::Null]);
            RequestStep::patch(path, MERGE_PATCH, json!({"spec": {"replicas": replicas}})).into()
        }
        _ => RequestStep::put(
            path,
            json!({
                "apiVersion": "autoscaling/v1", "kind": "Scale",
                "metadata": {"name": "a-§id", "namespace": "§namespace"}, "spec": {"replicas": 2},
            }),
        )
        .into(),
    }
}

/// Returns options of a deletion, or nothing. Without the policies that the garbage collector carries out in its own time.
pub fn generate_delete_options(rng: &mut Rng, path: &str) -> Value {
    rng.choose(&[
        Value::Null,
        Value::Null,
        json!({}),
        json!({"propagationPolicy": "Background"}),
        json!({"propagationPolicy": "Odd"}),
        json!({"gracePeriodSeconds": 0}),
        json!({"gracePeriodSeconds": -1}),
        json!({"dryRun": ["All"]}),
        json!({"dryRun": ["Some"]}),
        json!({"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}),
        json!({"preconditions": {"resourceVersion": "1"}}),
        json!({"preconditions": {"uid": format!("§uid({path})")}}),
        json!({"orphanDependents": true, "propagationPolicy": "Foreground"}),
    ])
}

fn generate_labels(rng: &mut Rng) -> Value {
    rng.choose(&[
        json!({"app": "a"}),
        json!({"app": "b", "a.example/tier": "x"}),
        json!({"app": ""}),
        json!({"a.example/tier": "y"}),
    ])
}

/// Adds something to the metadata that a server must look at.
fn add_metadata_surprise(rng: &mut Rng, metadata: &mut Value) {
    let (field, value) = rng.choose(&[
        ("labels", json!({"app": "not a label"})),
        ("labels", json!({"-bad": "a"})),
        ("labels", json!({"a": 1})),
        ("labels", json!({"a": null})),
        ("labels", json!(["a"])),
        ("annotations", json!({"a": "any text"})),
        ("annotations", json!({"bad key": "a"})),
        ("annotations", json!({"a": true})),
        ("name", json!("Not-A-Name")),
        ("name", json!("a_b")),
        ("name", json!("")),
        ("name", json!(7)),
        ("name", Value::Null),
        ("namespace", json!("other")),
        ("namespace", json!("§namespace")),
        ("generateName", json!("prefix-")),
        ("unknownField", json!(1)),
        ("generation", json!(7)),
        ("uid", json!("1")),
        ("creationTimestamp", json!("2026-01-02T03:04:05Z")),
        ("creationTimestamp", json!("noon")),
        ("creationTimestamp", Value::Null),
        ("deletionTimestamp", json!("2026-01-02T03:04:05Z")),
        ("deletionGracePeriodSeconds", json!(5)),
        ("selfLink", json!("/a")),
        ("managedFields", json!([])),
        ("managedFields", json!([{"manager": "x"}])),
        ("managedFields", json!([{}])),
        (
            "ownerReferences",
            // Of a kind that is not served, so that the garbage collector leaves the object.
            json!([{"apiVersion": "absent.example/v1", "kind": "Absent", "name": "a", "uid": "1"}]),
        ),
        (
            "ownerReferences",
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1", "controller": true},
                   {"apiVersion": "v1", "kind": "ConfigMap", "name": "b", "uid": "2", "controller": true}]),
        ),
        (
            "ownerReferences",
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "", "uid": ""}]),
        ),
        (
            "ownerReferences",
            json!([{"apiVersion": "v1", "kind": "Event", "name": "a", "uid": "1"}]),
        ),
        ("ownerReferences", json!([{"kind": "ConfigMap"}])),
    ]);
    insert(metadata, field, value);
}
