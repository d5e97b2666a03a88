//! What the API server does to objects of some built-in kinds as it stores them: the strategy of each.

use std::sync::atomic::AtomicU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::allocation;
use crate::builtin::EXTENSIONS_GROUP;
use crate::crd;
use crate::kind::ServedKind;
use crate::object::{items_mut, set_field};
use crate::service;

/// The completion of the objects of a kind, and the metadata that it treats as a part of the spec or of the status.
pub struct KindStrategy {
    group: &'static str,
    kind: &'static str,
    /// Completes a new object, or a changed one with its old state, before it is validated.
    pub prepare: fn(&mut Value, Option<&Value>),
    /// Sets values of a changed object that nobody owns, from its old state.
    pub complete_change: Option<fn(&mut Value, &Value)>,
    /// Writes to the status are completed, too.
    pub completes_status: bool,
    /// Sets values of an object that is stored and has none, which nobody owns. The counter is of the addresses that are taken.
    pub allocate: fn(&mut Value, &AtomicU32),
    /// Completes a new object as its owners have been noted.
    pub begin: fn(&mut Value),
    /// Metadata of which a change raises the generation.
    pub counted_metadata: &'static [&'static str],
    /// Metadata that a write to the status leaves as it is.
    pub metadata_outside_of_status: &'static [&'static str],
}

/// The strategy of kinds that their schemas describe completely.
const PLAIN: KindStrategy = KindStrategy {
    group: "",
    kind: "",
    prepare: |_, _| {},
    complete_change: None,
    completes_status: false,
    allocate: |_, _| {},
    begin: |_| {},
    counted_metadata: &[],
    metadata_outside_of_status: &[],
};

static STRATEGIES: [KindStrategy; 11] = [
    KindStrategy {
        kind: "Namespace",
        prepare: prepare_namespace,
        allocate: |object, _| allocation::add_namespace_finalizer(object),
        ..PLAIN
    },
    KindStrategy {
        kind: "PersistentVolumeClaim",
        allocate: |object, _| allocation::begin_phase(object),
        begin: allocation::protect_claim,
        ..PLAIN
    },
    KindStrategy {
        kind: "Pod",
        complete_change: Some(|object, _| allocation::complete_pod(object)),
        allocate: |object, _| allocation::complete_pod(object),
        begin: allocation::begin_phase,
        metadata_outside_of_status: &["deletionTimestamp", "ownerReferences"],
        ..PLAIN
    },
    KindStrategy {
        kind: "Secret",
        prepare: |object, _| prepare_secret(object),
        ..PLAIN
    },
    KindStrategy {
        kind: "Service",
        complete_change: Some(service::complete_change),
        allocate: |object, allocated| allocation::allocate_address(&mut object["spec"], allocated),
        ..PLAIN
    },
    KindStrategy {
        kind: "ServiceAccount",
        prepare: |object, _| keep_names_of_secrets(object),
        ..PLAIN
    },
    KindStrategy {
        group: EXTENSIONS_GROUP,
        kind: "CustomResourceDefinition",
        prepare: |object, old| {
            crd::fill_names(object);
            crd::set_status(object, old);
        },
        ..PLAIN
    },
    KindStrategy {
        group: "apps",
        kind: "DaemonSet",
        prepare: |object, old| match old {
            Some(_) => allocation::reset_template_mark(object),
            None => allocation::mark_template(object, None),
        },
        complete_change: Some(|object, old| allocation::mark_template(object, Some(old))),
        completes_status: true,
        ..PLAIN
    },
    KindStrategy {
        group: "apps",
        kind: "Deployment",
        counted_metadata: &["annotations"],
        metadata_outside_of_status: &["labels"],
        ..PLAIN
    },
    KindStrategy {
        group: "batch",
        kind: "Job",
        allocate: |object, _| allocation::select_pods(object),
        ..PLAIN
    },
    KindStrategy {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        counted_metadata: &["labels"],
        ..PLAIN
    },
];

/// Returns the strategy of a kind.
pub fn strategy_of(kind: &ServedKind) -> &'static KindStrategy {
    static OTHER: KindStrategy = PLAIN;
    if kind.custom {
        return &OTHER;
    }
    let is_of_kind =
        |strategy: &&KindStrategy| strategy.group == kind.resource.group && strategy.kind == kind.kind;
    STRATEGIES.iter().find(is_of_kind).unwrap_or(&OTHER)
}

fn prepare_namespace(object: &mut Value, old: Option<&Value>) {
    if old.is_none() {
        object["status"] = json!({"phase": "Active"});
    }
    let name = object["metadata"]["name"].clone();
    object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
}

/// Gives a Secret a type, and its texts to its data.
fn prepare_secret(object: &mut Value) {
    if object["type"].as_str().is_none_or(str::is_empty) {
        object["type"] = "Opaque".into();
    }
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(texts)) = fields.remove("stringData") {
        let data = fields.entry("data").or_insert_with(|| json!({}));
        for (name, text) in texts {
            data[name] = STANDARD.encode(text.as_str().unwrap_or_default()).into();
        }
    }
}

/// Keeps the names of the Secrets of a service account, and nothing else of the references.
fn keep_names_of_secrets(object: &mut Value) {
    for secret in items_mut(object, "secrets") {
        let name = secret.get("name").cloned();
        *secret = json!({});
        set_field(secret, "name", name);
    }
}
