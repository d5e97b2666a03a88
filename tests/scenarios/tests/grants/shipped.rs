//! The files of `deploy/`: each plugin works with exactly the rights that they give it, and so does the host.

use std::sync::{Arc, Mutex};

use ostler::testing::{dispatcher::Cause, grants::Grants, key::Gvk};
use ostler_test_harness::{
    Lab, PACK_GRANTS,
    concourse::{PACK_COMPONENTS, PIPELINE_YAML, kind},
    rights::{Rights, bound_rules, client_as_host},
    scenario,
};
use serde_json::{Value, json};

use crate::deletion::{
    assert_gone_from_concourse, delete_credentials_first, delete_namespace, wait_all_gone,
};

/// The rights of the host, and those of the plugins.
const RIGHTS: [&str; 2] = [
    include_str!("../../../../deploy/base/ostler.yaml"),
    include_str!("../../../../deploy/concourse.yaml"),
];
const GRANTS: &str = include_str!("../../../../deploy/grants.yaml");

/// Rules that the chain of this test does not need.
const UNUSED_RULES: &[&str] = &[
    // The client of the Lease is the election's own.
    "ostler create leases.coordination.k8s.io",
    "ostler get leases.coordination.k8s.io",
    "ostler watch leases.coordination.k8s.io",
    "ostler patch leases.coordination.k8s.io",
    // Users of the secure address, of which there are none.
    "ostler create tokenreviews.authentication.k8s.io",
    // Only for an admission plugin that is off by default.
    "concourse-instance update instances/finalizers.concourse-ci.org",
    // Another cluster, of which there is none.
    "ostler get clusters.ostler.dev",
    "ostler patch clusters.ostler.dev",
    "ostler patch clusters/status.ostler.dev",
    // The count of a repeated Event.
    "ostler patch events",
    // An apply that creates the object is authorized for both verbs by the API server itself.
    "concourse-instance create upstreams.ostler.dev",
    // A cleanup looks for the Instance when it cannot reach Concourse.
    "concourse-build get instances.concourse-ci.org",
    "concourse-job get instances.concourse-ci.org",
    "concourse-pipeline get instances.concourse-ci.org",
    "concourse-resource get instances.concourse-ci.org",
    // The server of a pause, a pin or a disabled version, of which there is none.
    "concourse-job get upstreams.ostler.dev",
    "concourse-resource get upstreams.ostler.dev",
    // A plugin may read past the cache, which its manifest does not tell; these do not.
    "ostler impersonate concourse-resource",
    "ostler impersonate concourse-team",
    "ostler impersonate concourse-worker",
    // Another Pipeline object may have the same name in Concourse when one is deleted or renamed.
    "concourse-pipeline list pipelines.concourse-ci.org",
    "concourse-pipeline watch pipelines.concourse-ci.org",
];

const QUICK_JOB: &str = "jobs:
- {name: quick, plan: [{task: t, config: {platform: linux, run: {path: sh, args: [-c, echo hello]}}}]}
";

/// The documents of a file.
fn parse_documents(text: &str) -> Vec<Value> {
    let documents = text
        .split("\n---\n")
        .map(|document| serde_saphyr::from_str(document).expect("YAML"));
    documents.filter(|document: &Value| !document.is_null()).collect()
}

/// The documents of `deploy/` that are about rights, in the namespaces of this test.
fn localize(lab: &Lab) -> Vec<Value> {
    let system = format!("{}-system", lab.namespace);
    let is_right = |document: &Value| {
        let kind = document["kind"].as_str().unwrap_or_default();
        let is_right = kind == "ServiceAccount" || kind.contains("Role");
        // Those of the cluster bind roles that it has itself.
        is_right && document["metadata"]["namespace"] != "kube-system"
    };
    let documents = RIGHTS.into_iter().flat_map(parse_documents);
    let mut documents: Vec<Value> = documents.filter(is_right).collect();
    let move_namespace = |value: &mut Value| {
        if let Some(namespace) = value.get_mut("namespace") {
            *namespace = if *namespace == "ci" {
                lab.namespace.clone()
            } else {
                system.clone()
            }
            .into();
        }
    };
    for document in &mut documents {
        let is_cluster_wide = document["metadata"].get("namespace").is_none();
        move_namespace(&mut document["metadata"]);
        for subject in document
            .get_mut("subjects")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            move_namespace(subject);
        }
        // Other tests use the same cluster.
        let rename = |name: &mut Value| {
            *name = format!("{}-{}", name.as_str().unwrap_or_default(), lab.namespace).into()
        };
        if is_cluster_wide {
            rename(&mut document["metadata"]["name"]);
        }
        if document["roleRef"]["kind"] == "ClusterRole" {
            rename(&mut document["roleRef"]["name"]);
        }
    }
    documents
}

/// Starts a host with the pack and the rights of these documents.
async fn start_with_rights(lab: &mut Lab, documents: &[Value]) -> Arc<Mutex<Rights>> {
    let system = format!("{}-system", lab.namespace);
    lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": system}}))
        .await;
    for document in documents {
        lab.apply(document.clone()).await;
    }
    let grants = GRANTS
        .replace("namespace: ci,", &format!("namespace: {},", lab.namespace))
        .replace("https://ci.example.com", &format!("{:?}", lab.concourse.url()));
    lab.settings.grants = Grants::parse(&grants, "grants.yaml").expect("the shipped grants parse");
    lab.settings.require_service_account = true;
    lab.settings.own_namespace = Some(system);
    lab.install(&PACK_COMPONENTS);
    start_as_host_account(lab).await
}

/// Starts a host with the identity of `deploy/`.
async fn start_as_host_account(lab: &mut Lab) -> Arc<Mutex<Rights>> {
    let rights = Arc::new(Mutex::new(Rights::default()));
    let user = format!("system:serviceaccount:{}-system:ostler", lab.namespace);
    let client = client_as_host(lab.client.clone(), user, rights.clone());
    lab.start_host_with(client).await;
    rights
}

/// Starts a host with the pack and the rights of `deploy/`, which are returned, and applies the chain.
async fn start_chain_with_rights(lab: &mut Lab) -> Vec<Value> {
    let documents = localize(lab);
    start_with_rights(lab, &documents).await;
    lab.apply_chain().await;
    documents
}

/// Deletes the service accounts, roles and bindings of the namespace, and returns them.
async fn delete_rights(lab: &Lab, documents: &[Value]) -> Vec<(Gvk, String)> {
    let here = |document: &&Value| document["metadata"]["namespace"] == lab.namespace;
    let mut deleted = Vec::new();
    for document in documents.iter().filter(here) {
        let word = |value: &Value| value.as_str().expect("a word").to_owned();
        let (kind_name, name) = (word(&document["kind"]), word(&document["metadata"]["name"]));
        let group = if kind_name == "ServiceAccount" {
            ""
        } else {
            "rbac.authorization.k8s.io"
        };
        let gvk = Gvk::new(group, "v1", &kind_name);
        lab.delete(&gvk, &name).await;
        deleted.push((gvk, name));
    }
    deleted
}

async fn wait_objects_and_rights_gone(lab: &Lab, rights: &[(Gvk, String)]) {
    wait_all_gone(lab).await;
    for (gvk, name) in rights {
        lab.wait_gone(gvk, name).await;
    }
}

/// The rights of a namespace are deleted with its objects, which need them for their cleanup.
#[scenario(real = "deletion of a namespace")]
pub async fn namespace_with_shipped_rights_is_deleted_with_all_its_objects(mut lab: Lab) {
    start_chain_with_rights(&mut lab).await;
    delete_namespace(&lab).await;
    assert_gone_from_concourse(&lab);
}

/// The service accounts are gone at once: the API server lets the host act as one that does not exist.
#[scenario(real = "RBAC and impersonation")]
pub async fn rights_deleted_before_the_objects_stay_until_the_cleanup(mut lab: Lab) {
    let documents = start_chain_with_rights(&mut lab).await;
    let rights = delete_rights(&lab, &documents).await;
    delete_credentials_first(&lab).await;
    wait_objects_and_rights_gone(&lab, &rights).await;
}

/// What the host has protected before is all that the next one has to go by.
#[scenario(real = "RBAC and impersonation", simulated)]
pub async fn rights_deleted_before_a_restart_stay_until_the_cleanup(mut lab: Lab) {
    let documents = start_chain_with_rights(&mut lab).await;
    lab.concourse.faults().set_outage(true);
    let rights = delete_rights(&lab, &documents).await;
    delete_credentials_first(&lab).await;
    lab.wait_until("the cleanup has failed", async || {
        lab.wake_causes(&kind("Pipeline"), "app").contains(&Cause::Retry)
    })
    .await;
    lab.host = None;
    lab.concourse.faults().set_outage(false);
    start_as_host_account(&mut lab).await;
    wait_objects_and_rights_gone(&lab, &rights).await;
}

/// A plugin that has lost its rights cannot clean up. The status says so, and what helps.
#[scenario(real = "RBAC and impersonation")]
pub async fn deletion_after_a_role_was_narrowed_names_the_missing_right(mut lab: Lab) {
    start_chain_with_rights(&mut lab).await;
    let role = Gvk::new("rbac.authorization.k8s.io", "v1", "Role");
    let name = "ostler:concourse-pipeline";
    let rules = lab.get(&role, name).await.expect("the role")["rules"].clone();
    lab.patch(&role, name, json!({"rules": []})).await;
    lab.delete(&kind("Pipeline"), "app").await;
    let denied = lab
        .wait_condition(&kind("Pipeline"), "app", "Ready", "False", "PermissionDenied")
        .await;
    let text = denied["status"].to_string();
    assert!(
        text.contains("concourse-pipeline may not") && text.contains("bind a role"),
        "{text}"
    );
    lab.patch(&role, name, json!({"rules": rules})).await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
}

/// Without objects nothing needs the rights, so that they can be deleted without a host.
#[scenario(real = "RBAC and impersonation")]
pub async fn shipped_rights_are_released_after_the_last_object(mut lab: Lab) {
    start_chain_with_rights(&mut lab).await;
    let bindings = Gvk::new("rbac.authorization.k8s.io", "v1", "RoleBinding");
    let name = "ostler:concourse-team";
    lab.delete(&bindings, name).await;
    let is_there = lab.get(&bindings, name).await.is_some();
    assert!(is_there, "a Team needs it");
    lab.delete(&kind("Pipeline"), "app").await;
    lab.delete(&kind("Team"), "platform").await;
    lab.wait_gone(&kind("Team"), "platform").await;
    lab.wait_gone(&bindings, name).await;
}

/// It has nothing to clean up, since its component was never called.
#[scenario(real = "RBAC and impersonation")]
pub async fn object_without_rights_of_its_plugin_is_deleted_at_once(mut lab: Lab) {
    let is_of_instances = |document: &Value| {
        document["subjects"][0]["name"] == "concourse-instance" && document["kind"] == "RoleBinding"
    };
    let mut documents = localize(&lab);
    documents.retain(|document| !is_of_instances(document));
    start_with_rights(&mut lab, &documents).await;
    lab.apply(lab.password_secret(lab.concourse.password())).await;
    lab.apply(lab.instance_object()).await;
    let denied = lab
        .wait_condition(&kind("Instance"), "ci", "Ready", "False", "PermissionDenied")
        .await;
    assert_eq!(denied["metadata"].get("finalizers"), None, "{denied:#}");
    lab.delete(&kind("Instance"), "ci").await;
    lab.wait_gone(&kind("Instance"), "ci").await;
}

/// Runs the pack with the identities and rights of `deploy/`: no request is refused, and no rule is without use.
#[scenario(real = "RBAC and impersonation")]
pub async fn shipped_roles_are_exactly_what_the_pack_needs(mut lab: Lab) {
    if !lab.concourse.is_simulated("it sets workers") {
        return;
    }
    let documents = localize(&lab);
    let rights = start_with_rights(&mut lab, &documents).await;
    let _lock = lab.lock_plugin("concourse-team").await;
    // The grants of one plugin are in its Plugin object.
    let team = json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
        "metadata": {"name": "concourse-team", "labels": {"lab": lab.namespace}},
        "spec": {"source": {"file": "concourse-team.wasm"},
            "serviceAccount": {"namespace": lab.namespace, "name": "concourse-team"},
            "grants": {
                "reconciles": [{"group": "concourse-ci.org", "kinds": ["Team"]}],
                "kubernetes": [
                    {"group": "concourse-ci.org", "kinds": ["Instance"], "verbs": ["get"]},
                    {"group": "concourse-ci.org", "kinds": ["Pipeline"], "verbs": ["list"], "namespaces": ["*"]},
                    {"group": "ostler.dev", "kinds": ["Upstream"], "verbs": ["get"]}],
                "upstreams": [{"methods": ["GET", "PUT", "DELETE"], "paths": ["/api/v1/teams/*"]}],
                "events": true}}});
    lab.apply(team).await;
    lab.concourse.set_worker("worker-1", "running");
    lab.apply_chain().await;
    // A job whose builds succeed.
    let config = PIPELINE_YAML
        .replace("jobs:\n", QUICK_JOB)
        .replace("[test, build]", "[test, build, quick]");
    lab.apply(lab.pipeline_config_map(&config)).await;
    for (kind_name, name, spec) in [
        (
            "Job",
            "quick",
            json!({"pipelineRef": {"name": "app"}, "successfulBuildsHistoryLimit": 1}),
        ),
        ("Resource", "source", json!({"pipelineRef": {"name": "app"}})),
        ("Worker", "worker-1", json!({"instanceRef": {"name": "ci"}})),
    ] {
        lab.apply(lab.pack_object(kind_name, name, spec)).await;
        lab.wait_ready(&kind(kind_name), name).await;
    }
    for name in ["one", "two"] {
        lab.apply(lab.pack_object("Build", name, json!({"jobRef": {"name": "quick"}})))
            .await;
        lab.wait_until("builds beyond the limit are deleted", async || {
            let done = lab.get(&kind("Build"), name).await;
            done.is_none_or(|b| b["status"]["concourseStatus"] == "succeeded")
        })
        .await;
    }
    lab.wait_gone(&kind("Build"), "one").await;
    let short = json!({"jobRef": {"name": "quick"}, "ttlSecondsAfterFinished": 1});
    lab.apply(lab.pack_object("Build", "short", short)).await;
    lab.wait_gone(&kind("Build"), "short").await;
    for (kind_name, name) in [
        ("Worker", "worker-1"),
        // With its Job and its Resource.
        ("Pipeline", "app"),
        ("Team", "platform"),
        ("Instance", "ci"),
    ] {
        lab.delete(&kind(kind_name), name).await;
        lab.wait_gone(&kind(kind_name), name).await;
    }
    let plugins = lab.api(&ostler::testing::plugin::kind(), "");
    plugins
        .delete("concourse-team", &kube::api::DeleteParams::default())
        .await
        .expect("deleted");
    lab.wait_until("the Plugin is gone", async || {
        plugins
            .get_opt("concourse-team")
            .await
            .expect("an answer")
            .is_none()
    })
    .await;
    lab.wait_idle().await;

    let bound = bound_rules(&documents);
    let unused = UNUSED_RULES.iter().map(|r| (*r).to_owned()).collect();
    rights.lock().expect("lock").assert_exact(&bound, &unused);
}

#[test]
fn grants_of_tests_are_those_of_the_deployment() {
    let parse = |text: &str| serde_saphyr::from_str::<Value>(text).expect("YAML");
    let (mut shipped, mut tested) = (parse(GRANTS), parse(PACK_GRANTS));
    let plugins = shipped["plugins"].as_object_mut().expect("plugins");
    assert_eq!(plugins.len(), 7);
    for (name, grant) in plugins {
        let fields = grant.as_object_mut().expect("fields");
        let account = fields
            .remove("serviceAccount")
            .expect("each plugin has an account");
        assert_eq!(account, json!({"namespace": "ci", "name": name}));
    }
    let examples = tested["plugins"]
        .as_object_mut()
        .expect("plugins")
        .remove("greeting");
    assert!(examples.is_some());
    for grants in [&mut shipped, &mut tested] {
        for (_, grant) in grants["plugins"].as_object_mut().expect("plugins") {
            for secret in grant
                .get_mut("secrets")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                assert!(secret["origins"].take().is_array(), "{secret}");
            }
        }
    }
    assert_eq!(shipped, tested);
}
