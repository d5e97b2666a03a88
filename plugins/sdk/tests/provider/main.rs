//! Service providers: the order of requests and their release, and the calls of the domain.

mod interrupted;
mod table;
mod world;

use ostler_sdk::{Next, Resolution, gvk, prelude::*, serde_json::Value};

use world::{ProviderWorld, access_request, cluster_request};

#[test]
fn clusters_are_requested_in_order_and_waited_for() {
    let world = ProviderWorld::new();
    let failure = world.reconcile().expect_err("the ClusterRequest is not granted");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Wait, "ClusterRequestPending")
    );
    let name = world.request_name();
    assert_eq!(world.host.writes(), [format!("apply ClusterRequest {name}")]);
    let request = world.object(&cluster_request(&name));
    assert_eq!(request["spec"], json!({ "purpose": "workload" }));

    world.grant(&cluster_request(&name));
    let failure = world.reconcile().expect_err("the AccessRequest is not granted");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Wait, "AccessRequestPending")
    );
    let request = world.object(&access_request(&name));
    let rule = json!({ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"] });
    assert_eq!(
        request["spec"],
        json!({ "requestRef": { "name": name, "namespace": "n" }, "token": { "permissions": [{ "rules": [rule] }] } })
    );
    assert!(world.calls().is_empty(), "no cluster yet");

    world.grant(&access_request(&name));
    world.reconcile().expect("is installed");
    assert_eq!(world.calls(), ["create config=true"]);
    assert!(world.copy().is_some());
}

/// The plugin names the Secret, and there is no object of the kind Secret that it could read.
#[test]
fn cluster_names_the_secret_of_the_access_request() {
    let world = ProviderWorld::installed();
    let clusters = world.own_clusters();
    assert_eq!(clusters.len(), 1);
    let secret = json!({ "name": "credentials", "key": "kubeconfig" });
    assert_eq!(clusters[0]["spec"], json!({ "kubeconfigSecretRef": secret }));
    let listed = gvk("", "v1", "Secret").named("n", "credentials");
    assert_eq!(world.host.object(&listed), None);
}

#[test]
fn cluster_in_the_request_namespace_allows_that_of_the_object() {
    let world = ProviderWorld::new();
    world
        .host
        .set_config(json!({ "requestNamespace": "platform", "providerName": "other" }));
    world.put_config_named("other", json!({}));
    world.install();
    let clusters = world.own_clusters();
    assert_eq!(clusters[0]["metadata"]["namespace"], "platform");
    assert_eq!(clusters[0]["spec"]["allowedNamespaces"], json!(["n"]));

    // The object keeps the namespace and the name of its requests.
    world.host.set_config(json!({}));
    world.delete().expect("is removed");
    assert!(world.is_clean(), "{:?}", world.host.writes());
}

#[test]
fn control_plane_and_workload_cluster_do_not_wait_for_each_other() {
    let world = ProviderWorld::with_mcp();
    world.reconcile().expect_err("both wait");
    let kinds: Vec<_> = world
        .host
        .writes()
        .iter()
        .filter_map(|write| write.split(' ').nth(1).map(str::to_owned))
        .collect();
    assert_eq!(kinds, ["AccessRequest", "ClusterRequest"]);
    let mcp = world.requests("AccessRequest").remove(0);
    let expected = json!({ "name": "a", "namespace": "n" });
    assert_eq!(
        mcp["spec"]["requestRef"], expected,
        "the request of the control plane"
    );
    world.install();
    assert_eq!(world.own_clusters().len(), 2);
    world.delete().expect("is removed");
    assert!(world.is_clean());
}

#[test]
fn denied_request_is_terminal_until_it_changes() {
    let world = ProviderWorld::new();
    world.reconcile().expect_err("waits");
    let reference = cluster_request(&world.request_name());
    world.set_status(
        &reference,
        json!({ "phase": "Denied", "message": "Quota is used up." }),
    );
    let failure = world.reconcile().expect_err("is denied");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Terminal, "ClusterRequestDenied")
    );
    assert!(
        failure.message.ends_with("is Denied. Quota is used up."),
        "{}",
        failure.message
    );
    world.install();
    assert!(world.copy().is_some());
}

#[test]
fn grant_of_an_earlier_generation_is_waited_for() {
    let world = ProviderWorld::installed();
    let reference = access_request(&world.request_name());
    let mut request = world.object(&reference);
    request["metadata"]["generation"] = 2.into();
    request["status"]["observedGeneration"] = 1.into();
    world.host.put(request);
    assert_eq!(
        world.reconcile().expect_err("waits").reason,
        "AccessRequestPending"
    );
    let mut request = world.object(&reference);
    request["status"]["observedGeneration"] = 2.into();
    world.host.put(request);
    world.reconcile().expect("is installed");
}

#[test]
fn secret_in_another_namespace_is_refused() {
    let world = ProviderWorld::new();
    world.reconcile().expect_err("waits");
    let name = world.request_name();
    world.grant(&cluster_request(&name));
    world.reconcile().expect_err("waits");
    world.set_status(
        &access_request(&name),
        json!({ "phase": "Granted", "secretRef": { "name": "s", "namespace": "elsewhere" } }),
    );
    let failure = world.reconcile().expect_err("is refused");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Terminal, "SecretInOtherNamespace")
    );
}

#[test]
fn missing_config_is_a_wait_and_requests_nothing() {
    let world = ProviderWorld::new();
    world.remove_config();
    let failure = world.reconcile().expect_err("waits");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Wait, "ConfigNotFound")
    );
    assert!(world.host.writes().is_empty());
    world.delete().expect("has nothing to remove");
    assert!(world.calls().is_empty() && world.host.writes().is_empty());
}

#[test]
fn poll_interval_of_the_config_is_the_next_reconcile() {
    let world = ProviderWorld::installed();
    assert_eq!(world.reconcile().expect("is installed").next, Next::AwaitChange);
    world.put_config(json!({ "pollInterval": "1m" }));
    assert_eq!(
        world.reconcile().expect("is installed").next,
        Next::Poll(Some(60_000))
    );
    world.put_config(json!({ "pollInterval": "0s" }));
    assert_eq!(world.reconcile().expect("is installed").next, Next::AwaitChange);
    world.put_config(json!({ "pollInterval": "soon" }));
    let failure = world.reconcile().expect_err("is invalid");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Terminal, "InvalidConfig")
    );
}

#[test]
fn reconcile_of_an_installed_service_writes_nothing() {
    let world = ProviderWorld::installed();
    world.host.forget();
    let checkpoints = world.host.checkpoints().len();
    world.reconcile().expect("is installed");
    assert!(world.host.writes().is_empty(), "{:?}", world.host.writes());
    assert_eq!(world.host.checkpoints().len(), checkpoints);
}

#[test]
fn status_of_the_domain_keeps_the_state_of_the_provider() {
    let world = ProviderWorld::installed();
    let outcome = world.reconcile().expect("is installed");
    let status: Value =
        ostler_sdk::serde_json::from_slice(&outcome.status.expect("the domain sets one")).expect("JSON");
    assert_eq!(status["text"], "hello");
    assert_eq!(status["provider"]["stage"], "Installed");
    assert_eq!(status["provider"]["requestNamespace"], "n");
}

#[test]
fn service_is_removed_before_its_access_in_the_reverse_order() {
    let world = ProviderWorld::installed();
    let name = world.request_name();
    // The finalizer of openmcp keeps it, which the mock does in the foreground only.
    let mut request = world.object(&access_request(&name));
    request["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.host.put(request);
    world.host.forget();
    let failure = world.delete().expect_err("waits for the AccessRequest");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Wait, "Deprovisioning")
    );
    let kinds = |world: &ProviderWorld| -> Vec<String> {
        let writes = world.host.writes();
        writes
            .iter()
            .filter_map(|write| write.split(' ').nth(1).map(str::to_owned))
            .collect()
    };
    assert_eq!(kinds(&world), ["ConfigMap", "Cluster"]);
    world.host.remove(&access_request(&name));
    world.delete().expect("nothing is left");
    assert_eq!(kinds(&world)[2..], ["ClusterRequest"]);
    assert_eq!(
        world.calls(),
        ["create config=true", "delete config=true"],
        "once"
    );
    assert!(world.is_clean());
}

/// The host keeps the Secret until the object is gone, so nothing may wait for it.
#[test]
fn access_request_that_owns_its_secret_is_not_deleted_in_the_foreground() {
    let world = ProviderWorld::installed();
    let reference = access_request(&world.request_name());
    let mut request = world.object(&reference);
    request["metadata"]["uid"] = "request".into();
    world.host.put(request);
    world.host.put(json!({ "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "credentials", "namespace": "n", "finalizers": ["ostler.dev/cluster-protection"],
            "ownerReferences": [{ "apiVersion": "clusters.openmcp.cloud/v1alpha1", "kind": "AccessRequest",
                "name": reference.name, "uid": "request", "controller": true, "blockOwnerDeletion": true }] } }));
    world.delete().expect("nothing waits for the Secret");
    assert!(world.is_clean());
}

/// The original skips the domain's Delete then, and what it has installed stays.
#[test]
fn missing_access_request_is_made_again_for_the_delete_of_the_domain() {
    let world = ProviderWorld::installed();
    let name = world.request_name();
    world.host.remove(&access_request(&name));
    let failure = world.delete().expect_err("waits for the access");
    assert_eq!(failure.reason, "AccessRequestPending");
    assert!(world.copy().is_some());
    world.grant(&access_request(&name));
    world.delete().expect("is removed");
    assert_eq!(world.calls()[1..], ["delete config=true"]);
    assert!(world.copy().is_none() && world.is_clean());
}

#[test]
fn requests_that_others_delete_are_used_for_the_delete_of_the_domain() {
    let world = ProviderWorld::installed();
    let name = world.request_name();
    for reference in [access_request(&name), cluster_request(&name)] {
        let mut request = world.object(&reference);
        request["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        world.host.put(request);
    }
    for cluster in world.own_clusters() {
        let mut cluster = cluster.clone();
        cluster["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        world.host.put(cluster);
    }
    assert_eq!(world.reconcile().expect_err("waits").reason, "Deprovisioning");
    world.delete().expect_err("waits for the requests");
    assert_eq!(world.calls()[1..], ["delete config=true"]);
    assert!(world.copy().is_none());
}

/// The original needs the configuration for each deletion, which stalls without it.
#[test]
fn missing_config_does_not_block_the_delete_of_the_domain() {
    let world = ProviderWorld::installed();
    world.remove_config();
    world.delete().expect("is removed");
    assert_eq!(world.calls()[1..], ["delete config=false"]);
    assert!(world.is_clean());
}

#[test]
fn invalid_config_does_not_block_the_delete_of_the_domain() {
    let world = ProviderWorld::installed();
    world.put_config(json!({ "pollInterval": ["not a text"] }));
    world.delete().expect("is removed");
    assert_eq!(world.calls()[1..], ["delete config=false"]);
}

#[test]
fn invalid_configuration_of_the_plugin_does_not_block_the_delete_of_the_domain() {
    let world = ProviderWorld::installed();
    world.host.set_config(json!([]));
    world.delete().expect("is removed");
    assert_eq!(world.calls()[1..], ["delete config=true"]);
    assert!(world.is_clean());
}

#[test]
fn renamed_provider_deletes_with_its_new_config() {
    let world = ProviderWorld::installed();
    world.host.set_config(json!({ "providerName": "renamed" }));
    world.remove_config();
    world.put_config_named("renamed", json!({}));
    world.delete().expect("is removed");
    assert_eq!(world.calls()[1..], ["delete config=true"]);
    assert!(world.is_clean(), "the requests have the name before");
}

#[test]
fn service_that_never_got_its_cluster_is_deleted_without_one() {
    let world = ProviderWorld::new();
    world.reconcile().expect_err("waits");
    world.set_status(
        &cluster_request(&world.request_name()),
        json!({ "phase": "Denied" }),
    );
    world.delete().expect("nothing is installed");
    assert!(world.calls().is_empty());
    assert!(world.is_clean());
}

#[test]
fn failing_delete_of_the_domain_keeps_the_access() {
    let world = ProviderWorld::installed();
    world.fail_delete();
    world.host.forget();
    assert_eq!(world.delete().expect_err("fails").reason, "StillUsed");
    assert!(world.host.writes().is_empty());
}

/// The host deletes owned objects after the cleanup, when the credentials are revoked.
#[test]
fn owned_objects_that_the_domain_leaves_are_deleted_before_the_access() {
    let world = ProviderWorld::installed();
    world.skip_delete();
    world.host.forget();
    world.delete().expect("is removed");
    let writes = world.host.writes();
    assert!(
        writes[0].starts_with("delete ConfigMap a on n/copies-workload-"),
        "{writes:?}"
    );
    assert!(world.copy().is_none() && world.is_clean());
}

#[test]
fn object_of_the_inventory_without_the_mark_stays() {
    let world = ProviderWorld::installed();
    world.skip_delete();
    let cluster = world.cluster_name();
    let mut copy = world.copy().expect("it is installed");
    copy["metadata"]["labels"]["ostler.dev/owner-uid"] = "another".into();
    world.host.put_on(&cluster, copy);
    world.delete().expect("it does not belong to the object");
    assert!(world.copy_on(&cluster).is_some());
}

#[test]
fn request_of_another_owner_is_neither_changed_nor_deleted() {
    let world = ProviderWorld::new();
    world.reconcile().expect_err("waits");
    let reference = cluster_request(&world.request_name());
    let mut foreign = world.object(&reference);
    foreign["metadata"]["labels"] = json!({});
    foreign["metadata"]["annotations"] = json!({});
    world.host.put(foreign.clone());
    let failure = world.reconcile().expect_err("is refused");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Terminal, "NotOwned")
    );
    world.delete().expect("has nothing to remove");
    assert_eq!(world.object(&reference), foreign);
}

#[test]
fn owner_that_was_restored_takes_its_requests_over() {
    let world = ProviderWorld::installed();
    let name = world.request_name();
    world.restore_with_uid("u-2");
    world.reconcile().expect("is installed");
    let request = world.object(&access_request(&name));
    assert_eq!(request["metadata"]["labels"]["provision.ostler.dev/owner"], "u-2");
    let clusters = world.own_clusters();
    assert_eq!(clusters.len(), 1, "the Cluster of the uid before is deleted");
    assert_eq!(
        clusters[0]["metadata"]["labels"]["provision.ostler.dev/owner"],
        "u-2"
    );
    world.delete().expect("is removed");
    assert!(world.is_clean(), "{:?}", world.host.writes());
}

/// A backup may have the status, and the owner be deleted before its first reconcile.
#[test]
fn owner_that_is_deleted_right_after_it_was_restored_leaves_no_cluster() {
    let world = ProviderWorld::installed();
    world.replace_uid("u-2");
    world.delete().expect("is removed");
    assert!(world.is_clean(), "{:?}", world.host.writes());
}
