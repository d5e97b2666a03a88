//! A deployment that is disturbed at each of its steps: the host ends after an effect, or the event is delivered again. The end
//! is that of one that was not disturbed.

use std::{collections::BTreeSet, time::Duration};

use ostler::testing::{dispatcher::Cause, key::Gvk, queue::Priority};
use ostler_test_harness::{Lab, WAIT_TIMEOUT, find_condition, scenarios};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    cluster::{certificate, dns_record, ingress, secrets},
    events::{EVENTS, take_heartbeats},
    gate::Step,
    kind,
    pack::{HOST, PackLab, app_project, application},
};

scenarios!(
    deployment_survives_a_stop_of_the_host_after_each_effect,
    event_that_is_delivered_again_after_each_effect_has_none,
);

/// Stands for the ID of a deployment in the names of its effects.
const ID_IN_STEPS: &str = "{id}";
/// Interval of looks at the record.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Interval in which Jenkins is looked at, in place of the plugin's ten seconds.
const JENKINS_INTERVAL: Duration = Duration::from_millis(50);
/// Fields of a status that differ from one deployment to the other.
const VARYING_FIELDS: [&str; 11] = [
    "applicationUID",
    "completionTime",
    "expirationTime",
    "finishTime",
    "lastTransitionTime",
    "number",
    "operationID",
    "phaseStartTime",
    "queueID",
    "resourceVersion",
    "triggeredAt",
];

/// Disturbance of a deployment after one of its effects.
#[derive(Clone)]
enum Disturbance {
    None,
    Stop(Step),
    Redelivery(Step),
}

async fn deployment_survives_a_stop_of_the_host_after_each_effect(lab: Lab) {
    disturb_each_step(lab, Disturbance::Stop).await;
}

async fn event_that_is_delivered_again_after_each_effect_has_none(lab: Lab) {
    disturb_each_step(lab, Disturbance::Redelivery).await;
}

/// Deploys without a disturbance, and then once with a disturbance after each effect that a deployment has.
async fn disturb_each_step(lab: Lab, disturbance: fn(Step) -> Disturbance) {
    let mut pack = PackLab::start(lab, false).await;
    pack.start_host().await;
    pack.set_up_project().await;
    let before = list_objects(&pack.lab).await;
    // The first one has effects that no other has, on the Upstream of the broker.
    deploy(&mut pack, "first", Disturbance::None).await;
    let undisturbed = deploy(&mut pack, "second", Disturbance::None).await;
    assert_eq!(list_objects(&pack.lab).await, before);
    let names: Vec<String> = undisturbed
        .effects
        .iter()
        .map(|effect| effect.replace("second", ID_IN_STEPS))
        .collect();
    for (number, step) in Step::list(&names).into_iter().enumerate() {
        let id = format!("d-{number}");
        let own = Step {
            effect: step.effect.replace(ID_IN_STEPS, &id),
            ..step.clone()
        };
        let deployed = deploy(&mut pack, &id, disturbance(own.clone())).await;
        // Several changes of one status may be one write.
        assert!(
            own.is_in(&deployed.effects)
                || step.repetition > 0
                || step.effect.ends_with("settings/shop/status"),
            "{step:?} is not among {:#?}",
            deployed.effects
        );
        assert_eq!(deployed.status, undisturbed.status, "after {step:?}");
        assert_eq!(list_objects(&pack.lab).await, before, "after {step:?}");
    }
}

/// A deployment from its event to the end of its clean-up.
struct Deployed {
    /// The status, without what differs from one deployment to the other.
    status: Value,
    effects: Vec<String>,
}

async fn deploy(pack: &mut PackLab, id: &str, disturbance: Disturbance) -> Deployed {
    let mut redelivery = None;
    match disturbance {
        Disturbance::None => pack.gate.arm(None),
        Disturbance::Stop(step) => pack.gate.arm(Some(step)),
        Disturbance::Redelivery(step) => {
            pack.gate.arm(None);
            redelivery = Some(step);
        }
    }
    pack.publish_deployment(id, 1).await;
    let (started, mut looked) = (Instant::now(), Instant::now());
    let record = loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        if pack.gate.is_closed() {
            pack.start_host().await;
        }
        if redelivery
            .take_if(|step| step.is_in(&pack.gate.effects()))
            .is_some()
        {
            pack.publish_deployment(id, 1).await;
        }
        let record = pack
            .lab
            .get(&kind("DeploymentRecord"), id)
            .await
            .unwrap_or_default();
        let reason = find_condition(&record, "Ready")["reason"].clone();
        let dispatcher = &pack.lab.host().services().dispatcher;
        let is_at_jenkins = ["BuildQueued", "BuildRunning", "BuildUnknown"]
            .iter()
            .any(|r| reason == **r);
        if is_at_jenkins && looked.elapsed() > JENKINS_INTERVAL {
            let key = pack.lab.key(&kind("DeploymentRecord"), id);
            dispatcher.enqueue(&key, Priority::High, Cause::Poll);
            looked = Instant::now();
        }
        let is_due = redelivery
            .as_ref()
            .is_some_and(|step| step.is_in(&pack.gate.effects()));
        if reason == "CleanedUp" && dispatcher.is_idle() && !pack.gate.is_closed() && !is_due {
            break record;
        }
        assert!(
            started.elapsed() < WAIT_TIMEOUT,
            "{id} has not ended: {:#?} {record:#}",
            pack.gate.effects()
        );
    };
    let effects = pack.gate.effects();
    assert_eq!(pack.count_builds(id), 1, "builds of {id}: {effects:#?}");
    assert_eq!(pack.count_syncs(&record), 1, "syncs of {id}: {effects:#?}");
    assert_heartbeats(pack, id).await;
    pack.lab
        .wait_until("all events are handled", async || {
            pack.client.queue_depth(EVENTS).await == Some(0)
        })
        .await;
    let dead_letters = pack.client.queue_depth("devops-events.dead-letter").await;
    assert_eq!(dead_letters.unwrap_or_default(), 0);
    let mut status = record["status"].clone();
    normalize(&mut status, id);
    Deployed { status, effects }
}

/// The phases are in order, and the final state has one message-id, however often it was published.
async fn assert_heartbeats(pack: &PackLab, id: &str) {
    let heartbeats = take_heartbeats(&pack.client, id).await;
    let phases = ["initializing", "building", "deploying", "verifying"];
    let reached = heartbeats.iter().map(|(_, body)| {
        phases
            .iter()
            .position(|phase| body["phase"] == **phase)
            .expect("a phase")
    });
    assert!(reached.is_sorted(), "{heartbeats:#?}");
    let is_final = |(_, body): &&(String, Value)| body["status"] != "running";
    let finals: Vec<_> = heartbeats.iter().filter(is_final).collect();
    let ids: BTreeSet<_> = finals.iter().map(|(message_id, _)| message_id).collect();
    assert_eq!(ids.len(), 1, "{heartbeats:#?}");
    for (_, body) in finals {
        assert_eq!(body["status"], "success");
        assert_eq!(body["url"], format!("https://{HOST}"));
    }
    let last = heartbeats.last().expect("a heartbeat");
    assert_eq!(last.1["status"], "success", "{heartbeats:#?}");
}

/// Removes what differs from one deployment to the other.
fn normalize(value: &mut Value, id: &str) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !VARYING_FIELDS.contains(&name.as_str()) && name != "startTime");
            fields.values_mut().for_each(|value| normalize(value, id));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| normalize(value, id)),
        Value::String(text) => *text = text.replace(id, "ID"),
        _ => {}
    }
}

/// The objects that a deployment has, or its settings.
async fn list_objects(lab: &Lab) -> BTreeSet<String> {
    let pack = ["ArgoSetting", "IngressResource", "JenkinsSetting"].map(kind);
    let upstream = Gvk::new("ostler.dev", "v1alpha1", "Upstream");
    let others = [
        application(),
        app_project(),
        certificate(),
        dns_record(),
        ingress(),
        secrets(),
        upstream,
    ];
    let mut found = BTreeSet::new();
    for gvk in pack.iter().chain(&others) {
        for object in lab.list(gvk).await {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            found.insert(format!("{} {name}", gvk.kind));
        }
    }
    found
}
