//! Deletion of the chain: in any order, with failures, and with the means to override them.

use kube::api::{Patch, PatchParams};
use ostler::testing::{
    annotation::{self, DELETION_POLICY, FORCE_DELETE},
    key::Gvk,
};
use ostler_test_harness::{
    Lab,
    concourse::kind,
    find_condition, greeting_kind, probe, read_component, replace_text, scenario,
    simulator::{ConcourseSimulator, FaultAction, SimulatorOptions},
};
use serde_json::json;

pub fn assert_gone_from_concourse(lab: &Lab) {
    assert_eq!(
        lab.concourse.pipeline("platform", "app").map(|p| p.saves),
        None,
        "the pipeline is gone"
    );
    assert!(lab.concourse.team("platform").is_none(), "the team is gone");
}

async fn start_with_chain(mut lab: Lab) -> Lab {
    lab.start_pack().await;
    lab.apply_chain().await;
    lab
}

#[scenario]
async fn chain_deleted_children_first_is_gone(lab: Lab) {
    let lab = start_with_chain(lab).await;
    for (kind_name, name) in [("Pipeline", "app"), ("Team", "platform"), ("Instance", "ci")] {
        lab.delete(&kind(kind_name), name).await;
        lab.wait_gone(&kind(kind_name), name).await;
    }
    assert_gone_from_concourse(&lab);
    lab.wait_gone(&Gvk::new("ostler.dev", "v1alpha1", "Upstream"), "ci")
        .await;
}

#[scenario(real = "finalizers and garbage collection")]
async fn parents_deleted_first_wait_for_their_children(lab: Lab) {
    let lab = start_with_chain(lab).await;
    lab.delete(&kind("Instance"), "ci").await;
    let waiting = lab
        .wait_condition(&kind("Instance"), "ci", "Ready", "False", "TeamsRemain")
        .await;
    assert!(
        find_condition(&waiting, "Ready")["message"]
            .to_string()
            .contains("platform"),
        "the message names the Team"
    );
    lab.delete(&kind("Team"), "platform").await;
    lab.wait_condition(&kind("Team"), "platform", "Ready", "False", "PipelinesRemain")
        .await;
    lab.delete(&kind("Pipeline"), "app").await;
    for (kind_name, name) in [("Pipeline", "app"), ("Team", "platform"), ("Instance", "ci")] {
        lab.wait_gone(&kind(kind_name), name).await;
    }
    assert_gone_from_concourse(&lab);
}

#[scenario(real = "finalizers and garbage collection")]
async fn chain_deleted_at_once_is_gone(lab: Lab) {
    let lab = start_with_chain(lab).await;
    for (kind_name, name) in [("Instance", "ci"), ("Team", "platform"), ("Pipeline", "app")] {
        lab.delete(&kind(kind_name), name).await;
    }
    for (kind_name, name) in [("Pipeline", "app"), ("Team", "platform"), ("Instance", "ci")] {
        lab.wait_gone(&kind(kind_name), name).await;
    }
    assert_gone_from_concourse(&lab);
}

#[scenario]
async fn pipeline_without_parents_is_orphaned_with_event(lab: Lab) {
    let lab = start_with_chain(lab).await;
    // A user force-deletes the parents: the host removes their finalizers without a cleanup.
    for (kind_name, name) in [("Instance", "ci"), ("Team", "platform")] {
        lab.patch(
            &kind(kind_name),
            name,
            json!({"metadata": {"annotations": {FORCE_DELETE: "true"}}}),
        )
        .await;
        lab.delete(&kind(kind_name), name).await;
        lab.wait_gone(&kind(kind_name), name).await;
    }
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(
        lab.concourse.pipeline("platform", "app").is_some(),
        "its location in Concourse is unknown"
    );
    let events = lab.list(&Gvk::new("", "v1", "Event")).await;
    assert!(
        events
            .iter()
            .any(|e| e["reason"] == "Orphaned" && e["involvedObject"]["kind"] == "Pipeline"),
        "an Event reports it"
    );
}

#[scenario]
async fn deletion_waits_for_unreachable_concourse_and_names_remedies(mut lab: Lab) {
    if !lab.concourse.is_simulated("Concourse is not to be reached") {
        return;
    }
    lab.settings.deletion_deadline = std::time::Duration::ZERO;
    let lab = start_with_chain(lab).await;
    lab.concourse.faults().set_outage(true);
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_until("the condition names obstacle and remedies", async || {
        let object = lab
            .get(&kind("Pipeline"), "app")
            .await
            .expect("the object still exists");
        let message = find_condition(&object, "DeletionBlocked")["message"].to_string();
        message.contains(DELETION_POLICY) && message.contains(FORCE_DELETE)
    })
    .await;
    assert!(lab.get(&kind("Pipeline"), "app").await.is_some());
    lab.concourse.faults().set_outage(false);
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(lab.concourse.pipeline("platform", "app").is_none());
}

#[scenario]
async fn parked_deletion_names_remedies_at_its_deadline(mut lab: Lab) {
    lab.settings.deletion_deadline = std::time::Duration::from_secs(2);
    lab.start_probe().await;
    lab.apply_probe("p", json!([]), json!([{"do": "park"}])).await;
    lab.wait_ready(&probe::kind(), "p").await;
    lab.delete(&probe::kind(), "p").await;
    lab.wait_until("the condition names the remedies", async || {
        let object = lab.get(&probe::kind(), "p").await.unwrap_or_default();
        let message = find_condition(&object, "DeletionBlocked")["message"].to_string();
        message.contains(DELETION_POLICY) && message.contains(FORCE_DELETE)
    })
    .await;
    lab.patch(&probe::kind(), "p", json!({"spec": {"cleanup": []}}))
        .await;
    lab.wait_gone(&probe::kind(), "p").await;
}

#[scenario]
async fn chain_that_wrote_nothing_is_deleted_without_concourse(mut lab: Lab) {
    if !lab.concourse.is_simulated("Concourse is not to be reached") {
        return;
    }
    lab.start_pack().await;
    lab.concourse.faults().set_outage(true);
    for object in [
        lab.password_secret(lab.concourse.password()),
        lab.instance_object(),
        lab.team_object(),
        lab.pipeline_object(),
    ] {
        lab.apply(object).await;
    }
    lab.wait_condition(&kind("Team"), "platform", "Ready", "False", "InstanceNotReady")
        .await;
    lab.wait_condition(&kind("Pipeline"), "app", "Ready", "False", "TeamNotReady")
        .await;
    for (kind_name, name) in [("Pipeline", "app"), ("Team", "platform"), ("Instance", "ci")] {
        lab.delete(&kind(kind_name), name).await;
        lab.wait_gone(&kind(kind_name), name).await;
    }
}

#[scenario(simulated)]
async fn responses_of_a_proxy_do_not_end_a_deletion(lab: Lab) {
    let lab = start_with_chain(lab).await;
    lab.apply(lab.pack_object(
        "Job",
        "test",
        json!({"pipelineRef": {"name": "app"}, "paused": true}),
    ))
    .await;
    lab.wait_ready(&kind("Job"), "test").await;
    let faults = lab.concourse.faults();
    for (kind_name, name) in [("Job", "test"), ("Pipeline", "app"), ("Team", "platform")] {
        // As an ingress answers that has no backend, or a page for everything.
        faults.fail_next(
            1,
            "*",
            "/api/v1/teams/",
            FaultAction::Proxy(404, "no backend".into()),
        );
        faults.fail_next(
            usize::MAX,
            "*",
            "/api/v1/teams/",
            FaultAction::Proxy(200, "{}".into()),
        );
        lab.delete(&kind(kind_name), name).await;
        lab.wait_until(&format!("the {kind_name} has seen both"), async || {
            let object = lab.get(&kind(kind_name), name).await.expect("it stays");
            let ready = find_condition(&object, "Ready");
            let message = ready["message"].to_string();
            ready["reason"] == "DeleteFailed" && message.contains("HTTP 200")
        })
        .await;
        faults.clear();
        lab.wait_gone(&kind(kind_name), name).await;
    }
    assert_gone_from_concourse(&lab);
}

#[scenario(simulated)]
async fn responses_of_a_proxy_create_nothing(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply(lab.password_secret(lab.concourse.password())).await;
    lab.apply(lab.instance_object()).await;
    lab.wait_ready(&kind("Instance"), "ci").await;
    let page = FaultAction::Proxy(404, "default backend - 404".into());
    lab.concourse
        .faults()
        .fail_next(usize::MAX, "GET", "/api/v1/teams/", page);
    lab.apply(lab.team_object()).await;
    lab.wait_condition(
        &kind("Team"),
        "platform",
        "Ready",
        "False",
        "CreateOrUpdateFailed",
    )
    .await;
    let team = lab.get(&kind("Team"), "platform").await.expect("a Team");
    assert_eq!(team["status"].get("claimedServer"), None, "nothing was written");
    assert!(lab.concourse.team("platform").is_none());
    lab.delete(&kind("Team"), "platform").await;
    lab.wait_gone(&kind("Team"), "platform").await;
}

/// The second server has a team and a pipeline of the same names and IDs, which belong to others.
#[scenario(simulated)]
async fn instance_with_another_url_keeps_pipelines_of_both_servers(lab: Lab) {
    let lab = start_with_chain(lab).await;
    let other = start_second_server().await;
    let mut chain = [lab.instance_object(), lab.team_object(), lab.pipeline_object()];
    for object in &mut chain {
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        object["metadata"]["name"] = format!("other-{name}").into();
    }
    let [instance, team, pipeline] = &mut chain;
    instance["spec"]["url"] = other.url().into();
    team["spec"]["instanceRef"]["name"] = "other-ci".into();
    pipeline["spec"]["teamRef"]["name"] = "other-platform".into();
    pipeline["spec"]["pipelineName"] = "app".into();
    for object in chain {
        lab.apply(object).await;
    }
    lab.wait_ready(&kind("Pipeline"), "other-app").await;
    let first = lab.concourse.pipeline("platform", "app").expect("there");
    let ids = other
        .pipelines("platform")
        .iter()
        .map(|p| p.id)
        .collect::<Vec<_>>();
    assert_eq!(ids, [first.id], "of another user, with the same id");

    // The Team is not reconciled any more, so its status keeps the first server.
    lab.patch(
        &kind("Team"),
        "platform",
        json!({"metadata": {"annotations": {(annotation::PAUSED): "true"}}}),
    )
    .await;
    lab.wait_condition(&kind("Team"), "platform", "Paused", "True", "PausedByAnnotation")
        .await;
    for name in ["other-app", "app"] {
        lab.patch(
            &kind("Pipeline"),
            name,
            json!({"metadata": {"annotations": {(annotation::PAUSED): "true"}}}),
        )
        .await;
        lab.wait_condition(&kind("Pipeline"), name, "Paused", "True", "PausedByAnnotation")
            .await;
    }
    lab.patch(&kind("Instance"), "ci", json!({"spec": {"url": other.url()}}))
        .await;
    lab.wait_until("the Upstream has the other URL", async || {
        let upstream = lab
            .get(&Gvk::new("ostler.dev", "v1alpha1", "Upstream"), "ci")
            .await;
        upstream.is_some_and(|upstream| upstream["spec"]["url"] == other.url())
    })
    .await;
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(lab.concourse.pipeline("platform", "app").is_some());
    assert_eq!(other.pipelines("platform").len(), 1);
    let events = lab.list(&Gvk::new("", "v1", "Event")).await;
    let orphaned = events.iter().find(|e| e["reason"] == "Orphaned");
    let message = orphaned.expect("an Event")["message"].to_string();
    assert!(message.contains(lab.concourse.url()), "{message}");
}

async fn start_second_server() -> ConcourseSimulator {
    let options = SimulatorOptions {
        users: vec![("test".into(), ostler_test_harness::ADMIN_PASSWORD.into(), true)],
        ..SimulatorOptions::default()
    };
    ConcourseSimulator::start(options)
        .await
        .expect("the simulator starts")
}

#[scenario]
async fn suspended_pipeline_can_be_deleted(lab: Lab) {
    let lab = start_with_chain(lab).await;
    lab.patch(&kind("Pipeline"), "app", json!({"spec": {"suspend": true}}))
        .await;
    lab.wait_condition(&kind("Pipeline"), "app", "Ready", "False", "Suspended")
        .await;
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(lab.concourse.pipeline("platform", "app").is_none());
}

#[scenario]
async fn paused_pipeline_can_be_deleted(lab: Lab) {
    let lab = start_with_chain(lab).await;
    lab.patch(
        &kind("Pipeline"),
        "app",
        json!({"metadata": {"annotations": {(annotation::PAUSED): "true"}}}),
    )
    .await;
    lab.wait_condition(&kind("Pipeline"), "app", "Paused", "True", "PausedByAnnotation")
        .await;
    lab.patch(&kind("Pipeline"), "app", json!({"spec": {"exposed": true}}))
        .await;
    lab.wait_condition(&kind("Pipeline"), "app", "Paused", "True", "PausedByAnnotation")
        .await;
    lab.wait_idle().await;
    assert!(
        !lab.concourse.pipeline("platform", "app").expect("there").public,
        "nothing is applied"
    );
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(lab.concourse.pipeline("platform", "app").is_none());
}

#[scenario]
async fn reclaim_policy_orphan_keeps_pipeline(lab: Lab) {
    let lab = start_with_chain(lab).await;
    lab.patch(
        &kind("Pipeline"),
        "app",
        json!({"spec": {"reclaimPolicy": "Orphan"}}),
    )
    .await;
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(lab.concourse.pipeline("platform", "app").is_some());
}

#[scenario]
async fn deletion_policy_annotation_keeps_pipeline(lab: Lab) {
    if !lab.concourse.is_simulated("Concourse is not to be reached") {
        return;
    }
    let lab = start_with_chain(lab).await;
    lab.concourse.faults().set_outage(true);
    lab.patch(
        &kind("Pipeline"),
        "app",
        json!({"metadata": {"annotations": {DELETION_POLICY: "Orphan"}}}),
    )
    .await;
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
}

#[scenario(real = "finalizers and garbage collection")]
async fn force_delete_annotation_removes_object_with_event(lab: Lab) {
    if !lab.concourse.is_simulated("Concourse is not to be reached") {
        return;
    }
    let lab = start_with_chain(lab).await;
    lab.concourse.faults().set_outage(true);
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_until("it is being deleted", async || {
        lab.get(&kind("Pipeline"), "app")
            .await
            .is_some_and(|o| o["metadata"]["deletionTimestamp"].is_string())
    })
    .await;
    lab.patch(
        &kind("Pipeline"),
        "app",
        json!({"metadata": {"annotations": {FORCE_DELETE: "true"}}}),
    )
    .await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    let events = lab.list(&Gvk::new("", "v1", "Event")).await;
    assert!(events.iter().any(|e| e["reason"] == "ForceDeleted"));
}

/// The host keeps `status.phase` for a kind that requests it.
#[scenario]
async fn phase_reports_progress_ready_and_termination(mut lab: Lab) {
    lab.start_probe().await;
    let phase = async |phase: &str| {
        lab.wait_until(&format!("the phase is {phase}"), async || {
            lab.get(&probe::kind(), "p")
                .await
                .is_some_and(|o| o["status"]["phase"] == phase)
        })
        .await;
    };
    lab.apply_probe("p", json!([{"do": "yield"}]), json!([{"do": "park"}]))
        .await;
    phase("Progressing").await;
    lab.patch(&probe::kind(), "p", json!({"spec": {"steps": []}}))
        .await;
    phase("Ready").await;
    lab.delete(&probe::kind(), "p").await;
    phase("Terminating").await;
    lab.patch(&probe::kind(), "p", json!({"spec": {"cleanup": []}}))
        .await;
    lab.wait_gone(&probe::kind(), "p").await;
}

#[scenario]
async fn object_that_left_the_selection_is_cleaned_up_when_deleted(mut lab: Lab) {
    lab.start_probe().await;
    let selected = Gvk::new("tests.ostler.dev", "v1alpha1", "SelectedProbe");
    let object = |tier: &str| {
        json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "SelectedProbe", "spec": {},
            "metadata": {"name": "p", "namespace": lab.namespace, "labels": {"tier": tier}}})
    };
    lab.apply(object("a")).await;
    lab.wait_ready(&selected, "p").await;
    lab.apply(object("b")).await;
    lab.wait_idle().await;
    let left = lab.get(&selected, "p").await.expect("the object");
    assert_eq!(
        left["metadata"]["finalizers"],
        json!(["tests.ostler.dev/selected"]),
        "it has not been cleaned up"
    );
    lab.delete(&selected, "p").await;
    lab.wait_gone(&selected, "p").await;
    let events = lab.list(&Gvk::new("", "v1", "Event")).await;
    assert!(
        events.iter().any(|e| e["reason"] == "CleanedUp"),
        "the component cleaned up"
    );
}

/// Finalizer of the example `greeting`, and one that another build of it may have.
const GREETING_FINALIZER: &str = "examples.ostler.dev/greeting";
const RENAMED_FINALIZER: &str = "examples.ostler.dev/welcomes";

/// The host knows its own finalizers by the managers of the fields, which is why those of others stay.
#[scenario(real = "managed fields of finalizers")]
async fn finalizer_that_a_build_has_renamed_is_removed_after_the_cleanup(mut lab: Lab) {
    let greeting = greeting_kind();
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    for name in ["cleaned", "forced"] {
        lab.apply(
            json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
            "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"name": "you"}}),
        )
        .await;
        lab.wait_ready(&greeting, name).await;
    }
    let greetings = lab.api(&greeting, &lab.namespace);
    let patch = async |name: &str, metadata: serde_json::Value| {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let patched = greetings.patch(name, &PatchParams::default(), &patch).await;
        patched.expect("patched");
    };
    let finalizers = [GREETING_FINALIZER, "example.com/foreign"];
    patch("cleaned", json!({ "finalizers": finalizers })).await;
    patch("forced", json!({"annotations": {FORCE_DELETE: "true"}})).await;
    lab.host = None;
    for name in ["cleaned", "forced"] {
        lab.delete(&greeting, name).await;
    }

    let wasm = replace_text(
        &read_component("examples/greeting"),
        GREETING_FINALIZER,
        RENAMED_FINALIZER,
    );
    lab.install_bytes("greeting", &wasm);
    lab.start_host().await;
    lab.wait_gone(&greeting, "forced").await;
    lab.wait_until("only the finalizer of another is left", async || {
        let object = lab.get(&greeting, "cleaned").await.expect("it is kept");
        object["metadata"]["finalizers"] == json!(["example.com/foreign"])
    })
    .await;
    lab.wait_event("Farewell", "cleaned", "").await;
    lab.wait_event("ForceDeleted", "forced", "").await;
    patch("cleaned", json!({"finalizers": null})).await;
    lab.wait_gone(&greeting, "cleaned").await;
}

/// Finalizer of an Upstream that is in use, and of its Secrets.
pub const UPSTREAM_PROTECTION: &str = "ostler.dev/upstream-protection";
/// More Upstreams than the host reconciles concurrently.
const MANY_UPSTREAMS: u32 = 40;

async fn start_with_protected_chain(lab: Lab) -> Lab {
    let lab = start_with_chain(lab).await;
    let upstream = Gvk::new("ostler.dev", "v1alpha1", "Upstream");
    let secret = Gvk::new("", "v1", "Secret");
    for (kind, name) in [(&upstream, "ci"), (&secret, "ci-admin")] {
        lab.wait_until(&format!("{name} is protected"), async || {
            let object = lab.get(kind, name).await.unwrap_or_default();
            object["metadata"]["finalizers"]
                .to_string()
                .contains(UPSTREAM_PROTECTION)
        })
        .await;
    }
    lab
}

/// Deletes everything like a namespace controller: what is needed last goes first.
pub async fn delete_credentials_first(lab: &Lab) {
    lab.delete(&Gvk::new("", "v1", "Secret"), "ci-admin").await;
    lab.delete(&Gvk::new("ostler.dev", "v1alpha1", "Upstream"), "ci")
        .await;
    for (kind_name, name) in [("Instance", "ci"), ("Team", "platform"), ("Pipeline", "app")] {
        lab.delete(&kind(kind_name), name).await;
    }
}

pub async fn wait_all_gone(lab: &Lab) {
    for (kind_name, name) in [("Pipeline", "app"), ("Team", "platform"), ("Instance", "ci")] {
        lab.wait_gone(&kind(kind_name), name).await;
    }
    lab.wait_gone(&Gvk::new("ostler.dev", "v1alpha1", "Upstream"), "ci")
        .await;
    lab.wait_gone(&Gvk::new("", "v1", "Secret"), "ci-admin").await;
    assert_gone_from_concourse(lab);
}

#[scenario]
async fn credentials_deleted_first_stay_until_the_cleanup(lab: Lab) {
    let lab = start_with_protected_chain(lab).await;
    delete_credentials_first(&lab).await;
    wait_all_gone(&lab).await;
}

#[scenario]
async fn restart_in_the_middle_of_a_deletion_leaves_nothing_behind(lab: Lab) {
    if !lab.concourse.is_simulated("Concourse is not to be reached") {
        return;
    }
    let mut lab = start_with_protected_chain(lab).await;
    lab.concourse.faults().set_outage(true);
    delete_credentials_first(&lab).await;
    lab.wait_until("the cleanup has failed", async || {
        lab.wake_causes(&kind("Pipeline"), "app")
            .contains(&ostler::testing::dispatcher::Cause::Retry)
    })
    .await;
    lab.host = None;
    lab.concourse.faults().set_outage(false);
    lab.start_host().await;
    wait_all_gone(&lab).await;
}

#[scenario(real = "deletion of a namespace")]
async fn namespace_deletion_leaves_nothing_in_concourse(lab: Lab) {
    let lab = start_with_protected_chain(lab).await;
    delete_namespace(&lab).await;
    assert_gone_from_concourse(&lab);
}

/// Applies more Upstreams than the host checks concurrently, each at a server that accepts connections and never ends a
/// handshake, and waits until the reconciler has come to all of them.
async fn apply_silent_upstreams(lab: &Lab) -> std::net::TcpListener {
    let upstream = Gvk::new("ostler.dev", "v1alpha1", "Upstream");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let names: Vec<String> = (0..MANY_UPSTREAMS).map(|i| format!("silent-{i}")).collect();
    for name in &names {
        lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
            "metadata": {"name": name, "namespace": lab.namespace},
            "spec": {"url": format!("https://{address}"), "timeoutSeconds": 300, "connectTimeoutSeconds": 300}}))
            .await;
    }
    lab.wait_until("the reconciler of Upstreams is busy", async || {
        names
            .iter()
            .all(|name| !lab.wake_causes(&upstream, name).is_empty())
    })
    .await;
    silent
}

/// The reconciler of Upstreams is busy, so that it protects nothing before the first write.
#[scenario(real = "deletion of a namespace")]
async fn namespace_deleted_at_the_first_write_leaves_nothing_in_concourse(mut lab: Lab) {
    lab.start_pack().await;
    let silent = apply_silent_upstreams(&lab).await;
    for object in [
        lab.password_secret(lab.concourse.password()),
        lab.instance_object(),
        lab.team_object(),
    ] {
        lab.apply(object).await;
    }
    lab.wait_until("the first write", async || {
        lab.concourse.team("platform").is_some()
    })
    .await;
    // The handshakes fail, and the reconciler is free again.
    drop(silent);
    delete_namespace(&lab).await;
    assert_gone_from_concourse(&lab);
}

/// The health check of each would take five minutes.
#[scenario]
async fn upstreams_of_a_silent_server_delay_no_deletion_of_others(lab: Lab) {
    let lab = start_with_protected_chain(lab).await;
    let silent = apply_silent_upstreams(&lab).await;
    delete_credentials_first(&lab).await;
    wait_all_gone(&lab).await;
    drop(silent);
}

pub async fn delete_namespace(lab: &Lab) {
    let namespaces = lab.api(&Gvk::new("", "v1", "Namespace"), "");
    namespaces
        .delete(&lab.namespace, &kube::api::DeleteParams::default())
        .await
        .expect("deletion is accepted");
    lab.wait_until("the namespace is gone", async || {
        namespaces
            .get_opt(&lab.namespace)
            .await
            .expect("an answer")
            .is_none()
    })
    .await;
}
