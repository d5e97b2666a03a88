//! A provider that copies a text to its workload cluster, and the controllers of openmcp.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ostler_sdk::{
    ObjectRef, gvk,
    mock::{MockHost, merge_patch},
    prelude::*,
    provider::{
        AccessPermissions, Clusters, DomainService, PolicyRule, ProviderConfig, ProviderStatus, RequestRef,
        ServiceProvider, ServiceStatus,
    },
    provision::{Provision, Resource},
    serde_json::Value,
};

/// A text on another cluster.
#[ostler_sdk::resource(group = "g", version = "v1", kind = "Copy", namespaced, status = CopyStatus)]
pub struct CopySpec {
    text: String,
}

#[ostler_sdk::api]
#[derive(Default)]
pub struct CopyStatus {
    phase: Option<String>,
    text: Option<String>,
    provider: Option<ProviderStatus>,
}

impl ServiceStatus for CopyStatus {
    fn provider(&self) -> Option<&ProviderStatus> {
        self.provider.as_ref()
    }
}

/// The configuration of the provider.
#[ostler_sdk::resource(group = "g", version = "v1", kind = "CopyConfig")]
pub struct CopyConfigSpec {
    poll_interval: Option<String>,
}

impl ProviderConfig for CopyConfigSpec {
    fn poll_interval(&self) -> Option<&str> {
        self.poll_interval.as_deref()
    }
}

/// The end of a deletion by the domain.
#[derive(Clone, Copy, Default, PartialEq)]
pub enum DomainDeletion {
    #[default]
    Complete,
    Skipped,
    Failing,
}

#[derive(Default)]
struct Record {
    calls: RefCell<Vec<String>>,
    deletion: Cell<DomainDeletion>,
}

struct Copies(Rc<Record>);

/// Record of a creation or update by the domain.
const CREATION: &str = "create config=true";

fn build_copy<'a>(object: &'a Object<CopySpec>, clusters: &Clusters) -> Result<Resource<'a>, Failure> {
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": object.name(), "namespace": "copies" }, "data": { "text": object.spec.text } });
    Ok(Resource::new(&object.metadata, map).on_cluster(clusters.workload()?.name()))
}

impl DomainService for Copies {
    type Spec = CopySpec;
    type Config = CopyConfigSpec;
    const FINALIZER: &'static str = "g/copy";

    fn create_or_update(
        &self,
        ctx: &Context,
        object: &Object<CopySpec>,
        _: &CopyConfigSpec,
        clusters: &Clusters,
    ) -> Result<Outcome, Failure> {
        self.0.calls.borrow_mut().push(CREATION.into());
        build_copy(object, clusters)?.provision(ctx)?;
        let status = CopyStatus {
            text: Some(object.spec.text.clone()),
            ..CopyStatus::default()
        };
        Ok(Outcome::await_change().status(&status))
    }

    fn delete(
        &self,
        ctx: &Context,
        object: &Object<CopySpec>,
        config: Option<&CopyConfigSpec>,
        clusters: &Clusters,
    ) -> Result<(), Failure> {
        let call = format!("delete config={}", config.is_some());
        self.0.calls.borrow_mut().push(call);
        match self.0.deletion.get() {
            DomainDeletion::Complete => build_copy(object, clusters)?.deprovision(ctx),
            DomainDeletion::Skipped => Ok(()),
            DomainDeletion::Failing => Err(Failure::retry("StillUsed", "The copy is used.")),
        }
    }
}

const RULES: &[PolicyRule] = &[PolicyRule {
    api_groups: &[""],
    resources: &["configmaps"],
    verbs: &["*"],
}];
const PERMISSIONS: &[AccessPermissions] = &[AccessPermissions {
    namespace: None,
    rules: RULES,
}];

pub fn cluster_request(name: &str) -> ObjectRef {
    gvk("clusters.openmcp.cloud", "v1alpha1", "ClusterRequest").named("n", name)
}

pub fn access_request(name: &str) -> ObjectRef {
    gvk("clusters.openmcp.cloud", "v1alpha1", "AccessRequest").named("n", name)
}

/// The clusters, and the object with its status as the host stores it.
pub struct ProviderWorld {
    pub host: MockHost,
    provider: ServiceProvider<Copies>,
    record: Rc<Record>,
    copy: RefCell<Value>,
    merged_checkpoints: Cell<usize>,
}

impl ProviderWorld {
    /// A provider with its configuration, and an object.
    pub fn new() -> Self {
        Self::with_provider(|domain| {
            ServiceProvider::new("copies", domain).with_workload_cluster(PERMISSIONS)
        })
    }

    /// One that needs a control plane as well.
    pub fn with_mcp() -> Self {
        Self::with_provider(|domain| {
            ServiceProvider::new("copies", domain)
                .with_workload_cluster(PERMISSIONS)
                .with_mcp_cluster(PERMISSIONS, RequestRef::of_same_name)
        })
    }

    /// One whose object is installed.
    pub fn installed() -> Self {
        let world = Self::new();
        world.install();
        world
    }

    fn with_provider(build: fn(Copies) -> ServiceProvider<Copies>) -> Self {
        let record = Rc::new(Record::default());
        let copy = json!({ "apiVersion": "g/v1", "kind": "Copy",
            "metadata": { "name": "a", "namespace": "n", "uid": "u-1" }, "spec": { "text": "hello" } });
        let world = Self {
            host: MockHost::new(),
            provider: build(Copies(record.clone())),
            record,
            copy: RefCell::new(copy),
            merged_checkpoints: Cell::new(0),
        };
        world.put_config(json!({}));
        world
    }

    pub fn put_config(&self, spec: Value) {
        self.put_config_named("copies", spec);
    }

    pub fn put_config_named(&self, name: &str, spec: Value) {
        self.host.put(
            json!({ "apiVersion": "g/v1", "kind": "CopyConfig", "metadata": { "name": name }, "spec": spec }),
        );
    }

    pub fn remove_config(&self) {
        self.host
            .remove(&gvk("g", "v1", "CopyConfig").named("", "copies"));
    }

    pub fn fail_delete(&self) {
        self.set_deletion(DomainDeletion::Failing);
    }

    pub fn skip_delete(&self) {
        self.set_deletion(DomainDeletion::Skipped);
    }

    pub fn set_deletion(&self, deletion: DomainDeletion) {
        self.record.deletion.set(deletion);
    }

    /// Applies a merge patch to the object.
    pub fn patch_owner(&self, patch: &Value) {
        merge_patch(&mut self.copy.borrow_mut(), patch);
    }

    /// The stored status of the object.
    pub fn status(&self) -> Value {
        match &self.copy.borrow()["status"] {
            Value::Null => json!({}),
            status => status.clone(),
        }
    }

    /// The object as a backup has it, with another uid and without a status.
    pub fn restore_with_uid(&self, uid: &str) {
        self.replace_uid(uid);
        self.copy.borrow_mut()["status"] = json!({});
    }

    /// The object as a backup with its status has it.
    pub fn replace_uid(&self, uid: &str) {
        self.copy.borrow_mut()["metadata"]["uid"] = uid.into();
    }

    pub fn reconcile(&self) -> Result<Outcome, Failure> {
        let copy = self.copy.borrow().clone();
        let result = self.host.reconcile(&self.provider, &copy);
        self.store_status(match &result {
            Ok(outcome) => outcome.status.as_deref(),
            Err(failure) => failure.status.as_deref(),
        });
        result
    }

    pub fn delete(&self) -> Result<Outcome, Failure> {
        let mut copy = self.copy.borrow().clone();
        copy["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        let result = self.host.cleanup(&self.provider, &copy);
        self.store_status(match &result {
            Ok(outcome) => outcome.status.as_deref(),
            Err(failure) => failure.status.as_deref(),
        });
        result
    }

    /// Stores the checkpoints since the last call, and the status fields if there are any, which replace those before.
    pub fn store_status(&self, fields: Option<&[u8]>) {
        let mut copy = self.copy.borrow_mut();
        let checkpoints = self.host.checkpoints();
        for fields in &checkpoints[self.merged_checkpoints.get()..] {
            merge_patch(&mut copy["status"], fields);
        }
        self.merged_checkpoints.set(checkpoints.len());
        if let Some(fields) = fields {
            copy["status"] = ostler_sdk::serde_json::from_slice(fields).expect("status fields are JSON");
        }
    }

    /// Reconciles, and grants each request, until the object is installed.
    pub fn install(&self) {
        for _ in 0..5 {
            if self.reconcile().is_ok() {
                return;
            }
            self.grant_all();
        }
        panic!("not installed: {:?}", self.reconcile());
    }

    pub fn grant_all(&self) {
        for kind in ["ClusterRequest", "AccessRequest"] {
            for request in self.requests(kind) {
                let metadata = &request["metadata"];
                let text = |field: &str| metadata[field].as_str().expect("a text").to_owned();
                let reference = gvk("clusters.openmcp.cloud", "v1alpha1", kind);
                self.grant(&reference.named(&text("namespace"), &text("name")));
            }
        }
    }

    pub fn grant(&self, reference: &ObjectRef) {
        let mut status = json!({ "phase": "Granted" });
        if reference.gvk.kind == "AccessRequest" {
            status["secretRef"] = json!({ "name": "credentials" });
        }
        self.set_status(reference, status);
    }

    pub fn set_status(&self, reference: &ObjectRef, status: Value) {
        let mut object = self.object(reference);
        object["status"] = status;
        self.host.put(object);
    }

    pub fn object(&self, reference: &ObjectRef) -> Value {
        self.host.object(reference).expect("it exists")
    }

    pub fn requests(&self, kind: &str) -> Vec<Value> {
        self.host
            .objects(&gvk("clusters.openmcp.cloud", "v1alpha1", kind))
    }

    /// Name of the requests for the workload cluster.
    pub fn request_name(&self) -> String {
        let requests = self.requests("ClusterRequest");
        requests[0]["metadata"]["name"]
            .as_str()
            .expect("a name")
            .to_owned()
    }

    pub fn own_clusters(&self) -> Vec<Value> {
        self.host.objects(&gvk("ostler.dev", "v1alpha1", "Cluster"))
    }

    pub fn cluster_name(&self) -> String {
        let clusters = self.own_clusters();
        let name = clusters[0]["metadata"]["name"].as_str().expect("a name");
        format!("n/{name}")
    }

    /// The calls of the domain, with one creation for those that follow each other.
    pub fn calls(&self) -> Vec<String> {
        let mut calls = self.list_calls();
        calls.dedup_by(|call, before| call == before && call == CREATION);
        calls
    }

    /// All calls of the domain.
    pub fn list_calls(&self) -> Vec<String> {
        self.record.calls.borrow().clone()
    }

    /// The copy on whatever cluster.
    pub fn copy(&self) -> Option<Value> {
        self.host.objects(&gvk("", "v1", "ConfigMap")).into_iter().next()
    }

    pub fn copy_on(&self, cluster: &str) -> Option<Value> {
        let reference = gvk("", "v1", "ConfigMap").named("copies", "a");
        self.host.object(&reference.on_cluster(cluster))
    }

    /// Neither a request nor a `Cluster` is left.
    pub fn is_clean(&self) -> bool {
        self.requests("ClusterRequest").is_empty()
            && self.requests("AccessRequest").is_empty()
            && self.own_clusters().is_empty()
    }
}
