//! Tests of the example against the SDK's in-memory host.

use foo_service::{FooServiceConfigSpec, FooServiceSpec, PROVIDER};
use ostler_sdk::{
    Failure, Gvk, Next, ObjectRef, Outcome, Resolution, crd, gvk,
    mock::MockHost,
    serde_json::{Value, from_slice, json},
};

/// A host with the configuration, and a FooService with its status as the host stores it.
struct World {
    host: MockHost,
    service: Value,
}

impl World {
    fn new() -> Self {
        let host = MockHost::new();
        host.set_config(json!({ "requestNamespace": "platform" }));
        put_config(&host, json!({ "image": "foo:1" }));
        let service = json!({
            "apiVersion": "services.ostler.dev/v1alpha1", "kind": "FooService",
            "metadata": { "name": "greeter", "namespace": "team", "uid": "u-1" },
            "spec": { "text": "Hello" },
        });
        Self { host, service }
    }

    /// One whose Deployment is available.
    fn ready() -> Self {
        let mut world = Self::new();
        for _ in 0..4 {
            if world.reconcile().is_ok() {
                return world;
            }
            world.grant_requests();
            world.make_available();
        }
        panic!("not ready: {:?}", world.reconcile());
    }

    fn reconcile(&mut self) -> Result<Outcome, Failure> {
        let result = self.host.reconcile(&PROVIDER, &self.service);
        self.store_status(&result);
        result
    }

    fn delete(&mut self) -> Result<Outcome, Failure> {
        self.service["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        let result = self.host.cleanup(&PROVIDER, &self.service);
        self.store_status(&result);
        result
    }

    fn store_status(&mut self, result: &Result<Outcome, Failure>) {
        if let Some(last) = self.host.checkpoints().last() {
            self.service["status"]["provider"] = last["provider"].clone();
        }
        let fields = match result {
            Ok(outcome) => &outcome.status,
            Err(failure) => &failure.status,
        };
        if let Some(fields) = fields {
            self.service["status"] = from_slice(fields).expect("status fields are JSON");
        }
    }

    fn requests(&self, kind: &str) -> Vec<Value> {
        self.host
            .objects(&gvk("clusters.openmcp.cloud", "v1alpha1", kind))
    }

    /// Grants the requests, as the controllers of openmcp do.
    fn grant_requests(&self) {
        for kind in ["ClusterRequest", "AccessRequest"] {
            for mut request in self.requests(kind) {
                request["status"] = json!({ "phase": "Granted", "secretRef": { "name": "credentials" } });
                self.host.put(request);
            }
        }
    }

    /// Name of the Cluster on which the service is installed.
    fn cluster(&self) -> String {
        self.service["status"]["cluster"]
            .as_str()
            .expect("shown in the status")
            .to_owned()
    }

    fn installed(&self, kind: Gvk) -> Option<Value> {
        self.host.objects(&kind).into_iter().next()
    }

    fn make_available(&self) {
        if let Some(mut deployment) = self.installed(deployments()) {
            deployment["status"] = json!({ "conditions": [{ "type": "Available", "status": "True" }] });
            self.host.put_on(&self.cluster(), deployment);
        }
    }
}

fn deployments() -> Gvk {
    gvk("apps", "v1", "Deployment")
}

fn config() -> ObjectRef {
    gvk("services.ostler.dev", "v1alpha1", "FooServiceConfig").named("", "foo-service")
}

fn put_config(host: &MockHost, spec: Value) {
    host.put(json!({
        "apiVersion": "services.ostler.dev/v1alpha1", "kind": "FooServiceConfig",
        "metadata": { "name": "foo-service" }, "spec": spec,
    }));
}

/// The writes without the hashes in names.
fn kinds(host: &MockHost) -> Vec<String> {
    let writes = host.writes();
    let words = |write: &String| write.split(' ').take(2).collect::<Vec<_>>().join(" ");
    writes.iter().map(words).collect()
}

#[test]
fn service_is_installed_on_the_cluster_that_is_granted() {
    let mut world = World::new();
    for reason in ["ClusterRequestPending", "AccessRequestPending"] {
        let failure = world.reconcile().expect_err("waits");
        assert_eq!((failure.resolution, &*failure.reason), (Resolution::Wait, reason));
        world.grant_requests();
    }
    let failure = world.reconcile().expect_err("the Deployment is not available");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Wait, "Provisioning")
    );
    assert_eq!(
        kinds(&world.host),
        [
            "apply ClusterRequest",
            "apply AccessRequest",
            "apply Cluster",
            "apply Namespace",
            "apply ConfigMap",
            "apply Deployment",
            "apply Service"
        ]
    );
    let on = format!(" owned on {}", world.cluster());
    assert!(
        world.host.writes()[3..].iter().all(|write| write.ends_with(&on)),
        "{:?}",
        world.host.writes()
    );
    assert!(world.cluster().starts_with("platform/foo-service-workload-"));

    world.make_available();
    let outcome = world.reconcile().expect("is ready");
    assert_eq!(outcome.next, Next::AwaitChange);
    let map = world.installed(gvk("", "v1", "ConfigMap")).expect("installed");
    assert_eq!(map["data"], json!({ "text": "Hello" }));
    assert_eq!(
        world.service["status"]["host"],
        format!(
            "greeter.{}",
            map["metadata"]["namespace"].as_str().expect("a namespace")
        )
    );
    world.host.forget();
    world.reconcile().expect("is ready");
    assert!(world.host.writes().is_empty(), "nothing changed");
}

#[test]
fn kind_has_a_phase_and_a_finalizer() {
    let kind = ostler_sdk::guest::kind(&PROVIDER);
    assert!(kind.phase, "the host writes Progressing, Ready and Terminating");
    assert_eq!(kind.finalizer.as_deref(), Some("services.ostler.dev/foo-service"));
}

#[test]
fn permissions_that_are_requested_are_not_those_of_an_administrator() {
    let world = World::ready();
    let permissions = world.requests("AccessRequest")[0]["spec"]["token"]["permissions"].to_string();
    assert!(
        permissions.contains(r#""resources":["deployments"]"#),
        "{permissions}"
    );
    assert!(
        !permissions.contains('*') && !permissions.contains("secrets"),
        "{permissions}"
    );
}

#[test]
fn change_of_the_config_changes_the_service() {
    let mut world = World::ready();
    put_config(&world.host, json!({ "image": "foo:2", "pollInterval": "5m" }));
    let outcome = world.reconcile().expect("is ready");
    assert_eq!(outcome.next, Next::Poll(Some(300_000)));
    let deployment = world.installed(deployments()).expect("installed");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "foo:2");
}

#[test]
fn change_of_the_secret_restarts_the_pods() {
    let mut world = World::ready();
    let secret = json!({ "namespace": "platform", "name": "registry", "key": "password" });
    put_config(
        &world.host,
        json!({ "image": "foo:1", "restartSecretRef": secret }),
    );
    let digest = |world: &mut World| {
        world.reconcile().expect("is ready");
        let deployment = world.installed(deployments()).expect("installed");
        deployment["spec"]["template"]["metadata"]["annotations"]["services.ostler.dev/secret"].clone()
    };
    assert_eq!(digest(&mut world), Value::Null, "there is no Secret");
    world.host.secret("registry", "password", "digest-1");
    assert_eq!(digest(&mut world), "digest-1");
    world.host.secret("registry", "password", "digest-2");
    assert_eq!(digest(&mut world), "digest-2");
}

#[test]
fn drift_on_the_workload_cluster_is_put_right() {
    let mut world = World::ready();
    let mut map = world.installed(gvk("", "v1", "ConfigMap")).expect("installed");
    map["data"]["text"] = "Changed by hand".into();
    world.host.put_on(&world.cluster(), map);
    world.reconcile().expect("is ready");
    let map = world.installed(gvk("", "v1", "ConfigMap")).expect("installed");
    assert_eq!(map["data"]["text"], "Hello");
}

#[test]
fn service_is_removed_before_its_cluster_without_a_config() {
    let mut world = World::ready();
    world.host.remove(&config());
    world.host.forget();
    world.delete().expect("is removed");
    assert_eq!(
        kinds(&world.host),
        [
            "delete Service",
            "delete Deployment",
            "delete ConfigMap",
            "delete Namespace",
            "delete Cluster",
            "delete AccessRequest",
            "delete ClusterRequest"
        ]
    );
}

#[test]
fn service_is_removed_although_its_access_request_is_missing() {
    let mut world = World::ready();
    for request in world.requests("AccessRequest") {
        let name = request["metadata"]["name"].as_str().expect("a name");
        let kind = gvk("clusters.openmcp.cloud", "v1alpha1", "AccessRequest");
        world.host.remove(&kind.named("platform", name));
    }
    world.delete().expect_err("waits for the access");
    assert!(world.installed(deployments()).is_some());
    world.grant_requests();
    world.delete().expect("is removed");
    assert!(world.installed(deployments()).is_none());
    assert!(world.requests("AccessRequest").is_empty());
}

#[test]
fn namespace_of_another_tool_is_not_taken_over() {
    let mut world = World::ready();
    let mut namespace = world.installed(gvk("", "v1", "Namespace")).expect("installed");
    namespace["metadata"]["labels"] = json!({});
    world.host.put_on(&world.cluster(), namespace);
    let failure = world.reconcile().expect_err("is refused");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Terminal, "NotOwned")
    );
    world.delete().expect("is removed");
    assert!(
        world.installed(gvk("", "v1", "Namespace")).is_some(),
        "it is another's"
    );
}

/// `UPDATE_CRDS=1 cargo test -p foo-service` writes the files.
#[test]
fn checked_in_crds_match_generated_ones() {
    for (name, text) in [crd::file::<FooServiceSpec>(), crd::file::<FooServiceConfigSpec>()] {
        let path = format!("{}/../../../crds/providers/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("UPDATE_CRDS").is_some() {
            std::fs::write(&path, &text).expect("can be written");
        }
        let checked_in = std::fs::read_to_string(&path).expect("is checked in");
        assert_eq!(checked_in, text, "run it again with UPDATE_CRDS=1");
    }
}
