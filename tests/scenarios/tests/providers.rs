//! Service providers, with the example `foo-service`: the second cluster is the workload cluster, or the onboarding cluster in
//! the scenario of one, and the test is the platform that grants the requests.

use kube::{
    api::{Api, ListParams, Patch, PatchParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use ostler::testing::{grants::Grants, key::Gvk};
use ostler_test_harness::{Lab, SecondCluster, find_condition, scenario, workspace_root};
use serde_json::{Value, json};

const MANIFEST: &str = include_str!("../../../plugins/providers/foo-service/plugin.yaml");

fn services() -> Gvk {
    Gvk::new("services.ostler.dev", "v1alpha1", "FooService")
}

fn configs() -> Gvk {
    Gvk::new("services.ostler.dev", "v1alpha1", "FooServiceConfig")
}

fn requests(kind: &str) -> Gvk {
    Gvk::new("clusters.openmcp.cloud", "v1alpha1", kind)
}

fn clusters() -> Gvk {
    Gvk::new("ostler.dev", "v1alpha1", "Cluster")
}

/// The workload cluster.
struct Workload {
    cluster: SecondCluster,
    /// The owners in this namespace are those of the test, which may share the cluster with others.
    owner_namespace: String,
}

impl Workload {
    async fn start(lab: &Lab) -> Self {
        Self {
            cluster: SecondCluster::start(lab).await,
            owner_namespace: lab.namespace.clone(),
        }
    }

    fn api(&self, group: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        Api::namespaced_with(self.cluster.client().clone(), namespace, &resource)
    }

    /// The objects of a kind that FooServices of the test own.
    async fn list(&self, group: &str, kind: &str) -> Vec<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        let api: Api<DynamicObject> = Api::all_with(self.cluster.client().clone(), &resource);
        let listed = api.list(&Default::default()).await.expect("a response");
        let owners = format!(" {}/", self.owner_namespace);
        let is_own = |object: &DynamicObject| {
            let annotations = object.metadata.annotations.as_ref();
            let owner = annotations.and_then(|annotations| annotations.get("ostler.dev/owner"));
            owner.is_some_and(|owner| owner.contains(&owners))
        };
        listed.items.into_iter().filter(is_own).collect()
    }

    /// Reports each Deployment as available, as its controller does.
    async fn make_available(&self) {
        for deployment in self.list("apps", "Deployment").await {
            let status = json!({ "status": {
                "observedGeneration": deployment.metadata.generation,
                "conditions": [{ "type": "Available", "status": "True", "reason": "MinimumReplicasAvailable",
                    "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": "2026-01-01T00:00:00Z" }],
            } });
            let (namespace, name) = (deployment.metadata.namespace, deployment.metadata.name);
            self.api("apps", "Deployment", &namespace.expect("a namespace"))
                .patch_status(
                    &name.expect("a name"),
                    &PatchParams::default(),
                    &Patch::Merge(status),
                )
                .await
                .expect("patched");
        }
    }
}

/// Starts the host with the plugin, whose provider has the name of the lab: the configuration is cluster-scoped.
async fn start(lab: &mut Lab) -> Workload {
    install(lab, None).await;
    lab.start_host().await;
    Workload::start(lab).await
}

/// Installs the plugin, with this home cluster.
async fn install(lab: &mut Lab, home: Option<&str>) {
    for path in [
        "tests/openmcp/crds/clusterrequests.yaml",
        "tests/openmcp/crds/accessrequests.yaml",
        "crds/providers/services.ostler.dev_fooservices.yaml",
        "crds/providers/services.ostler.dev_fooserviceconfigs.yaml",
    ] {
        let crd = std::fs::read_to_string(workspace_root().join(path)).expect("a CRD");
        lab.apply_yaml(&crd).await;
    }
    lab.wait_until("the kinds are served", async || {
        for kind in [services(), requests("ClusterRequest"), requests("AccessRequest")] {
            if lab
                .api(&kind, &lab.namespace)
                .list(&ListParams::default())
                .await
                .is_err()
            {
                return false;
            }
        }
        lab.api(&configs(), "").list(&ListParams::default()).await.is_ok()
    })
    .await;
    let workloads = format!("*/{}-workload-*", lab.namespace);
    let manifest: Value = serde_saphyr::from_str(&MANIFEST.replace("*/*", &workloads)).expect("YAML");
    let mut grant = manifest["permissions"].clone();
    let mut config = json!({ "providerName": lab.namespace });
    if let Some(home) = home {
        grant["cluster"] = home.into();
        // Others may use the onboarding cluster as well.
        grant["reconciles"][0]["namespaces"] = json!([lab.namespace]);
        config["requestNamespace"] = lab.namespace.as_str().into();
    }
    let grants = json!({ "plugins": { "foo-service": grant } });
    lab.settings.grants = Grants::parse(&grants.to_string(), "grants").expect("they parse");
    std::fs::write(lab.settings.plugins.join("foo-service.yaml"), config.to_string()).expect("written");
    lab.install(&["providers/foo-service"]);
    apply_config(lab, "foo:1").await;
}

async fn apply_config(lab: &Lab, image: &str) {
    lab.apply(
        json!({ "apiVersion": "services.ostler.dev/v1alpha1", "kind": "FooServiceConfig",
        "metadata": { "name": lab.namespace }, "spec": { "image": image } }),
    )
    .await;
}

async fn delete_config(lab: &Lab) {
    let api = lab.api(&configs(), "");
    api.delete(&lab.namespace, &Default::default())
        .await
        .expect("deleted");
}

fn build_service(lab: &Lab, name: &str) -> Value {
    json!({ "apiVersion": "services.ostler.dev/v1alpha1", "kind": "FooService",
        "metadata": { "name": name, "namespace": lab.namespace }, "spec": { "text": "Hello" } })
}

async fn apply_service(lab: &Lab, name: &str) {
    lab.apply(build_service(lab, name)).await;
}

/// Grants each request, as openmcp does.
async fn grant_requests(lab: &Lab, workload: &Workload) {
    for kind in ["ClusterRequest", "AccessRequest"] {
        for request in lab.list(&requests(kind)).await {
            let metadata = &request["metadata"];
            let name = metadata["name"].as_str().expect("a name");
            if request["status"]["phase"] == "Granted" || !metadata["deletionTimestamp"].is_null() {
                continue;
            }
            lab.apply(json!({ "apiVersion": "v1", "kind": "Secret",
                "metadata": { "name": name, "namespace": lab.namespace },
                "stringData": { "kubeconfig": workload.cluster.kubeconfig() } }))
                .await;
            let status = json!({ "status": { "phase": "Granted", "observedGeneration": metadata["generation"],
                "secretRef": { "name": name } } });
            // It may be deleted meanwhile.
            let _ = lab
                .api(&requests(kind), &lab.namespace)
                .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
                .await;
        }
    }
}

/// Waits until the services are Ready.
async fn make_ready(lab: &Lab, workload: &Workload, names: &[&str]) {
    lab.wait_until("the services are Ready", async || {
        grant_requests(lab, workload).await;
        workload.make_available().await;
        for name in names {
            let service = lab.get(&services(), name).await.unwrap_or_default();
            if find_condition(&service, "Ready")["status"] != "True" {
                return false;
            }
        }
        true
    })
    .await;
}

/// Nothing of the provider is left on any cluster.
async fn check_clean(lab: &Lab, workload: &Workload) {
    for (group, kind) in [
        ("", "Namespace"),
        ("", "ConfigMap"),
        ("", "Service"),
        ("apps", "Deployment"),
    ] {
        assert!(workload.list(group, kind).await.is_empty(), "{kind}");
    }
    for kind in [requests("ClusterRequest"), requests("AccessRequest"), clusters()] {
        lab.wait_until(&format!("no {} is left", kind.kind), async || {
            lab.list(&kind).await.is_empty()
        })
        .await;
    }
}

#[scenario]
async fn service_is_installed_on_the_granted_cluster_and_removed(mut lab: Lab) {
    let workload = start(&mut lab).await;
    apply_service(&lab, "greeter").await;
    lab.wait_condition(&services(), "greeter", "Ready", "False", "ClusterRequestPending")
        .await;
    let service = lab.get(&services(), "greeter").await.expect("it exists");
    assert_eq!(service["status"]["phase"], "Progressing");
    make_ready(&lab, &workload, &["greeter"]).await;
    let service = lab.get(&services(), "greeter").await.expect("it exists");
    assert_eq!(service["status"]["phase"], "Ready");
    assert_eq!(service["status"]["provider"]["stage"], "Installed");
    assert_eq!(workload.list("apps", "Deployment").await.len(), 1);

    lab.delete(&services(), "greeter").await;
    lab.wait_gone(&services(), "greeter").await;
    check_clean(&lab, &workload).await;
}

#[scenario]
async fn drift_on_the_workload_cluster_is_put_right_without_a_poll(mut lab: Lab) {
    let workload = start(&mut lab).await;
    apply_service(&lab, "greeter").await;
    make_ready(&lab, &workload, &["greeter"]).await;
    let map = workload.list("", "ConfigMap").await.remove(0);
    let (namespace, name) = (
        map.metadata.namespace.expect("one"),
        map.metadata.name.expect("one"),
    );
    let api = workload.api("", "ConfigMap", &namespace);
    let drift = json!({ "data": { "text": "Changed by hand" } });
    api.patch(&name, &PatchParams::default(), &Patch::Merge(drift))
        .await
        .expect("patched");
    lab.wait_until("the text is put right", async || {
        api.get(&name).await.expect("it exists").data["data"]["text"] == "Hello"
    })
    .await;
}

#[scenario]
async fn change_of_the_config_reaches_every_service(mut lab: Lab) {
    let workload = start(&mut lab).await;
    let names = ["a", "b", "c"];
    for name in names {
        apply_service(&lab, name).await;
    }
    make_ready(&lab, &workload, &names).await;
    apply_config(&lab, "foo:2").await;
    lab.wait_until("all Deployments have the new image", async || {
        let deployments = workload.list("apps", "Deployment").await;
        deployments.len() == names.len()
            && deployments.iter().all(|deployment| {
                deployment.data["spec"]["template"]["spec"]["containers"][0]["image"] == "foo:2"
            })
    })
    .await;
}

#[scenario]
async fn service_is_removed_without_its_access_request_and_its_config(mut lab: Lab) {
    let workload = start(&mut lab).await;
    apply_service(&lab, "greeter").await;
    make_ready(&lab, &workload, &["greeter"]).await;
    // While the host is stopped, so that it does not request the access again before the deletion.
    lab.host = None;
    for request in lab.list(&requests("AccessRequest")).await {
        let name = request["metadata"]["name"].as_str().expect("a name");
        lab.delete(&requests("AccessRequest"), name).await;
    }
    delete_config(&lab).await;
    lab.delete(&services(), "greeter").await;
    lab.start_host().await;
    lab.wait_until("the service is gone", async || {
        grant_requests(&lab, &workload).await;
        lab.get(&services(), "greeter").await.is_none()
    })
    .await;
    check_clean(&lab, &workload).await;
}

#[scenario]
async fn restart_of_the_host_in_a_deletion_leaves_nothing(mut lab: Lab) {
    let workload = start(&mut lab).await;
    apply_service(&lab, "greeter").await;
    make_ready(&lab, &workload, &["greeter"]).await;
    // Kept, so that the deletion stops between the two requests.
    for request in lab.list(&requests("AccessRequest")).await {
        let name = request["metadata"]["name"].as_str().expect("a name");
        let kept = json!({ "metadata": { "finalizers": ["tests.ostler.dev/kept"] } });
        lab.patch(&requests("AccessRequest"), name, kept).await;
    }
    lab.delete(&services(), "greeter").await;
    lab.wait_until("the service is removed", async || {
        let service = lab.get(&services(), "greeter").await.expect("it exists");
        service["status"]["provider"]["stage"] == "Removed"
    })
    .await;
    lab.wait_condition(&services(), "greeter", "Ready", "False", "Deprovisioning")
        .await;
    let service = lab.get(&services(), "greeter").await.expect("it exists");
    assert_eq!(service["status"]["phase"], "Terminating");
    lab.host = None;
    for request in lab.list(&requests("AccessRequest")).await {
        let name = request["metadata"]["name"].as_str().expect("a name");
        let released = json!({ "metadata": { "finalizers": null } });
        lab.patch(&requests("AccessRequest"), name, released).await;
    }
    lab.start_host().await;
    lab.wait_gone(&services(), "greeter").await;
    check_clean(&lab, &workload).await;
}

/// Serves FooServices on the onboarding cluster, and returns their API.
async fn serve_on(lab: &Lab, onboarding: &SecondCluster) -> Api<DynamicObject> {
    let path = workspace_root().join("crds/providers/services.ostler.dev_fooservices.yaml");
    let crd = std::fs::read_to_string(path).expect("a CRD");
    let crd: Value = serde_saphyr::from_str(&crd).expect("YAML");
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let crds: Api<DynamicObject> = Api::all_with(onboarding.client().clone(), &ApiResource::from_gvk(&kind));
    let name = crd["metadata"]["name"].as_str().expect("a name");
    crds.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(&crd))
        .await
        .expect("applied");
    let kind = GroupVersionKind::gvk("services.ostler.dev", "v1alpha1", "FooService");
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> =
        Api::namespaced_with(onboarding.client().clone(), &lab.namespace, &resource);
    lab.wait_until("the kind is served on the onboarding cluster", async || {
        api.list(&ListParams::default()).await.is_ok()
    })
    .await;
    api
}

#[scenario]
async fn service_on_an_onboarding_cluster_is_installed_and_removed(mut lab: Lab) {
    let onboarding = SecondCluster::start(&lab).await;
    let on_onboarding = serve_on(&lab, &onboarding).await;
    let home = format!("{}/onboarding", lab.namespace);
    install(&mut lab, Some(&home)).await;
    lab.apply(json!({ "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "onboarding", "namespace": lab.namespace },
        "stringData": { "kubeconfig": onboarding.kubeconfig() } }))
        .await;
    lab.apply(json!({ "apiVersion": "ostler.dev/v1alpha1", "kind": "Cluster",
        "metadata": { "name": "onboarding", "namespace": lab.namespace },
        "spec": { "kubeconfigSecretRef": { "name": "onboarding" } } }))
        .await;
    lab.start_host().await;
    let workload = Workload {
        cluster: SecondCluster::start_embedded(&lab).await,
        owner_namespace: lab.namespace.clone(),
    };
    // One on the platform cluster is none of the provider's.
    apply_service(&lab, "stranger").await;
    let service = build_service(&lab, "greeter");
    on_onboarding
        .patch(
            "greeter",
            &PatchParams::apply("test").force(),
            &Patch::Apply(&service),
        )
        .await
        .expect("applied");
    let find_service = async || {
        let found = on_onboarding.get_opt("greeter").await.expect("a response");
        found.map(|service| serde_json::to_value(service).expect("JSON"))
    };
    lab.wait_until("the service is Ready", async || {
        grant_requests(&lab, &workload).await;
        workload.make_available().await;
        let service = find_service().await.unwrap_or_default();
        find_condition(&service, "Ready")["status"] == "True"
    })
    .await;
    assert_eq!(workload.list("apps", "Deployment").await.len(), 1);
    // The requests and the Cluster are on the platform cluster, in `requestNamespace`.
    for kind in ["ClusterRequest", "AccessRequest"] {
        assert_eq!(lab.list(&requests(kind)).await.len(), 1, "{kind}");
    }
    let service = find_service().await.expect("it exists");
    let cluster = service["status"]["cluster"].as_str().expect("a Cluster");
    let (namespace, name) = cluster.split_once('/').expect("namespace and name");
    assert_eq!(namespace, lab.namespace);
    let name = name.to_owned();
    assert!(lab.get(&clusters(), &name).await.is_some());
    lab.host = None;
    on_onboarding
        .delete("greeter", &Default::default())
        .await
        .expect("deleted");
    lab.start_host().await;
    lab.wait_until("the service is gone", async || find_service().await.is_none())
        .await;
    for kind in ["Namespace", "ConfigMap", "Service"] {
        assert!(workload.list("", kind).await.is_empty(), "{kind}");
    }
    assert!(workload.list("apps", "Deployment").await.is_empty());
    for kind in ["ClusterRequest", "AccessRequest"] {
        assert!(lab.list(&requests(kind)).await.is_empty(), "{kind}");
    }
    lab.wait_gone(&clusters(), &name).await;
    let stranger = lab.get(&services(), "stranger").await.expect("it exists");
    assert_eq!(stranger["status"], Value::Null, "{stranger}");
    assert_eq!(stranger["metadata"]["finalizers"], Value::Null);
}
