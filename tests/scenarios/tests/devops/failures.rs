//! Deployments that fail, by the whole pack: each ends in the phase that it has reached, with a reason, a final heartbeat and an
//! Event.

use std::convert::Infallible;

use ostler::testing::key::{Gvk, ObjectRef};
use ostler_test_harness::{Lab, find_condition, scenario};
use serde_json::json;

use super::{
    cluster::{REFUSAL, certificate, dns_record, ingress},
    events::wait_heartbeat,
    kind,
    pack::{HOST, Manifests, PIPELINE, PackLab, ZONE, application},
    whole::start_with_dns,
};

/// The application of the deployments.
pub const APPLICATION: &str = "shop-alpha";
/// Time to live that does not end in a test.
pub const LONG_TTL_SECONDS: u64 = 10_800;
/// Address of the host that the pack has not set up.
const FOREIGN_ADDRESS: &str = "192.0.2.99";

/// The documented end of a deployment.
struct End<'a> {
    state: &'a str,
    phase: &'a str,
    reason: &'a str,
    /// Parts of the message.
    message: &'a [&'a str],
}

impl<'a> End<'a> {
    fn failed(phase: &'a str, message: &'a [&'a str]) -> Self {
        Self {
            state: "failed",
            phase,
            reason: "Failed",
            message,
        }
    }

    fn terminated(phase: &'a str, message: &'a [&'a str]) -> Self {
        Self {
            state: "terminated",
            phase,
            reason: "Terminated",
            message,
        }
    }
}

pub fn record() -> Gvk {
    kind("DeploymentRecord")
}

/// Has a deployment look at Jenkins and Argo CD again and again.
pub async fn poll(lab: &Lab, id: &str) -> Infallible {
    lab.poll_objects(&[lab.key(&record(), id)]).await
}

/// Waits for a condition, and has deployments polled meanwhile.
pub async fn wait_polled<F: Future<Output = bool>>(
    lab: &Lab,
    ids: &[&str],
    what: &str,
    is_reached: impl FnMut() -> F,
) {
    let records: Vec<ObjectRef> = ids.iter().map(|id| lab.key(&record(), id)).collect();
    lab.wait_polling(&records, what, is_reached).await;
}

/// Waits for a reason of the condition Ready, and has the deployment polled meanwhile.
pub async fn wait_reason(lab: &Lab, id: &str, reason: &str) {
    let record = record();
    tokio::select! {
        _ = lab.wait_condition(&record, id, "Ready", "False", reason) => {}
        never = poll(lab, id) => match never {},
    }
}

/// Sets the time limit of a phase to a second.
pub async fn limit_phase(lab: &Lab, id: &str, field: &str) {
    let patch = json!({ "spec": { "timeouts": { field: 1 } } });
    lab.patch(&record(), id, patch).await;
}

/// Waits until a deployment has ended, and checks all that is documented of its end.
async fn assert_end(pack: &PackLab, id: &str, expected: &End<'_>) {
    let lab = &pack.lab;
    let heartbeat = tokio::select! {
        heartbeat = wait_heartbeat(&pack.client, id, expected.state) => heartbeat,
        never = poll(lab, id) => match never {},
    };
    let message = heartbeat["phase_message"].as_str().unwrap_or_default();
    for part in expected.message {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert_eq!(
        heartbeat,
        json!({ "operation": "heartbeat", "id": id, "status": expected.state, "phase": expected.phase,
            "phase_message": message, "url": null })
    );
    lab.wait_until(&format!("the final heartbeat of {id} is confirmed"), async || {
        let found = lab.get(&record(), id).await.unwrap_or_default();
        found["status"]["heartbeat"]["finalConfirmed"] == true
    })
    .await;
    let ended = lab.get(&record(), id).await.expect("it stays");
    let ready = find_condition(&ended, "Ready");
    assert_eq!(
        (&ready["status"], &ready["reason"], &ready["message"]),
        (&json!("False"), &json!(expected.reason), &json!(message))
    );
    assert_eq!(
        (&ended["status"]["state"], &ended["status"]["phase"]),
        (&json!(expected.state), &json!(expected.phase))
    );
    lab.wait_until(&format!("there is a warning about {id}"), async || {
        let events = lab.list(&Gvk::new("", "v1", "Event")).await;
        events.iter().any(|event| {
            event["involvedObject"]["name"] == id
                && event["type"] == "Warning"
                && event["reason"] == "DeploymentEnded"
                && event["message"] == message
        })
    })
    .await;
}

/// Deletes a deployment, and waits until nothing of it is left.
pub async fn delete(lab: &Lab, id: &str) {
    lab.delete(&record(), id).await;
    let record = record();
    tokio::select! {
        () = lab.wait_gone(&record, id) => {}
        never = poll(lab, id) => match never {},
    }
    for gvk in [kind("IngressResource"), ingress(), dns_record(), certificate()] {
        assert_eq!(lab.get(&gvk, id).await, None, "{} of {id}", gvk.kind);
    }
}

#[scenario(argocd)]
async fn failed_build_or_sync_ends_its_deployment_with_heartbeat_and_event(lab: Lab) {
    let mut pack = PackLab::start(lab, false).await;
    pack.start_host().await;
    pack.set_up_project().await;
    let (lab, jenkins) = (&pack.lab, &pack.servers.jenkins);

    jenkins.run_builds("FAILURE");
    pack.publish_deployment("d-build-failed", LONG_TTL_SECONDS).await;
    let end = End::failed("building", &["Build 1 ended with FAILURE."]);
    assert_end(&pack, "d-build-failed", &end).await;

    jenkins.run_builds("ABORTED");
    pack.publish_deployment("d-build-aborted", LONG_TTL_SECONDS).await;
    let end = End::terminated("building", &["Build 2 was aborted."]);
    assert_end(&pack, "d-build-aborted", &end).await;

    jenkins.hold_builds();
    pack.publish_deployment("d-build-long", LONG_TTL_SECONDS).await;
    wait_reason(lab, "d-build-long", "BuildQueued").await;
    jenkins.start_queued();
    wait_reason(lab, "d-build-long", "BuildRunning").await;
    limit_phase(lab, "d-build-long", "buildSeconds").await;
    let message = ["The build has not ended within 1 s.", "Build 3 is running."];
    assert_end(&pack, "d-build-long", &End::failed("building", &message)).await;
    let results = jenkins.builds(PIPELINE).into_iter().map(|build| build.result);
    let results: Vec<String> = results.flatten().collect();
    assert_eq!(
        results,
        ["FAILURE", "ABORTED", "ABORTED"],
        "the last one is stopped"
    );
    assert!(pack.argo_cd.operations().is_empty());

    // Another user's operation takes the place of one that Argo CD has not begun.
    jenkins.run_builds("SUCCESS");
    pack.argo_cd.pause(APPLICATION, true);
    pack.publish_deployment("d-sync-replaced", LONG_TTL_SECONDS).await;
    wait_reason(lab, "d-sync-replaced", "SyncRunning").await;
    let other =
        json!({ "operation": { "sync": { "prune": false }, "info": [{ "name": "by", "value": "hand" }] } });
    lab.patch(&application(), APPLICATION, other).await;
    let end = End::terminated("deploying", &["Another operation has replaced the sync."]);
    assert_end(&pack, "d-sync-replaced", &end).await;
    pack.argo_cd.pause(APPLICATION, false);
    lab.wait_until("the other operation has ended", async || {
        let live = lab.get(&application(), APPLICATION).await.unwrap_or_default();
        live["status"]["operationState"]["phase"] == "Succeeded"
    })
    .await;

    pack.set_manifests(&Manifests::Refused);
    pack.publish_deployment("d-sync-failed", LONG_TTL_SECONDS).await;
    let message = ["The sync ended with Failed: ", "\"web\" is invalid"];
    assert_end(&pack, "d-sync-failed", &End::failed("deploying", &message)).await;

    pack.set_manifests(&Manifests::Unhealthy);
    pack.publish_deployment("d-degraded", LONG_TTL_SECONDS).await;
    wait_reason(lab, "d-degraded", "ApplicationNotHealthy").await;
    pack.degrade().await;
    lab.wait_until("the application is compared", async || {
        let found = lab.get(&record(), "d-degraded").await.unwrap_or_default();
        let ready = find_condition(&found, "Ready");
        ready["message"] == "The application is Synced and Degraded."
    })
    .await;
    limit_phase(lab, "d-degraded", "verifySeconds").await;
    let message = [
        "The verification has not ended within 1 s.",
        "The application is Synced and Degraded.",
    ];
    assert_end(&pack, "d-degraded", &End::failed("verifying", &message)).await;
    assert_eq!(
        lab.get(&kind("IngressResource"), "d-degraded").await,
        None,
        "it gets no address"
    );

    let syncs = pack.argo_cd.operations();
    assert_eq!(
        syncs.len(),
        3,
        "the other user's, and those of two deployments: {syncs:?}"
    );
    for id in [
        "d-build-failed",
        "d-build-aborted",
        "d-build-long",
        "d-sync-replaced",
        "d-sync-failed",
        "d-degraded",
    ] {
        delete(lab, id).await;
    }
    lab.wait_until("no deployment needs the application", async || {
        lab.get(&application(), APPLICATION).await.is_none()
    })
    .await;
}

/// Waits until the IngressResource of a deployment has this reason and message, and the deployment shows it.
async fn wait_address_fails(lab: &Lab, id: &str, reason: &str, message: &str) {
    lab.wait_until(
        &format!("the address of {id} has {reason}: {message}"),
        async || {
            let found = lab.get(&kind("IngressResource"), id).await.unwrap_or_default();
            let ready = find_condition(&found, "Ready");
            let text = ready["message"].as_str().unwrap_or_default();
            ready["reason"] == reason && text.contains(message)
        },
    )
    .await;
    lab.wait_until(&format!("{id} has the message"), async || {
        let found = lab.get(&record(), id).await.unwrap_or_default();
        let ready = find_condition(&found, "Ready");
        let text = ready["message"].as_str().unwrap_or_default();
        ready["reason"] == "IngressNotReady" && text.contains(message)
    })
    .await;
}

#[scenario(argocd)]
async fn failed_certificate_or_dns_record_ends_its_deployment_with_heartbeat_and_event(lab: Lab) {
    let mut pack = PackLab::start(lab, true).await;
    let dns = start_with_dns(&mut pack).await;
    pack.set_up_project().await;
    let lab = &pack.lab;

    pack.cluster.refuse_certificates(true);
    pack.publish_deployment("d-certificate", LONG_TTL_SECONDS).await;
    wait_address_fails(lab, "d-certificate", "CertificateNotReady", REFUSAL).await;
    limit_phase(lab, "d-certificate", "verifySeconds").await;
    let message = ["The verification has not ended within 1 s.", REFUSAL];
    assert_end(&pack, "d-certificate", &End::failed("verifying", &message)).await;
    assert_eq!(lab.get(&ingress(), "d-certificate").await, None);
    delete(lab, "d-certificate").await;
    pack.cluster.refuse_certificates(false);

    dns.replace(ZONE, HOST, "A", &[FOREIGN_ADDRESS]).await;
    let foreign = dns.record_sets(ZONE).await;
    pack.publish_deployment("d-dns", LONG_TTL_SECONDS).await;
    lab.wait_condition(&dns_record(), "d-dns", "Ready", "False", "ForeignRecord")
        .await;
    let mark = format!("_ostler-a.{HOST}");
    wait_address_fails(lab, "d-dns", "DnsNotReady", &mark).await;
    limit_phase(lab, "d-dns", "verifySeconds").await;
    let message = ["The verification has not ended within 1 s.", &*mark];
    assert_end(&pack, "d-dns", &End::failed("verifying", &message)).await;
    assert_eq!(lab.get(&certificate(), "d-dns").await, None);
    delete(lab, "d-dns").await;
    assert_eq!(
        dns.record_sets(ZONE).await,
        foreign,
        "what others made is left alone"
    );
}
