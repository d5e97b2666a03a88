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
    gate::{Step, take_due},
    kind,
    pack::{HOST, PackLab, app_project, application},
};

// On both API servers, one deployment is disturbed by all its steps.
scenarios!(
    deployment_survives_stops_of_the_host_after_all_its_effects,
    event_that_is_delivered_again_after_all_effects_has_none,
);

/// A deployment for each step, which takes minutes.
mod each {
    mod embedded {
        use super::super::{Disturbance, Lab, disturb_each_step};
        use ostler_test_harness::run_bounded;

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn deployment_survives_a_stop_of_the_host_after_each_effect() {
            run_bounded(disturb_each_step(Lab::embedded, Disturbance::stop)).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn event_that_is_delivered_again_after_each_effect_has_none() {
            run_bounded(disturb_each_step(Lab::embedded, Disturbance::redeliver)).await;
        }
    }

    // Not `real`, whose ignored tests are run with that tier.
    mod real_server {
        use super::super::{Disturbance, Lab, disturb_each_step};
        use ostler_test_harness::run_bounded;

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "takes minutes, and needs the real control plane: see docs/devops.md"]
        async fn deployment_survives_a_stop_of_the_host_after_each_effect() {
            run_bounded(disturb_each_step(Lab::real, Disturbance::stop)).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "takes minutes, and needs the real control plane: see docs/devops.md"]
        async fn event_that_is_delivered_again_after_each_effect_has_none() {
            run_bounded(disturb_each_step(Lab::real, Disturbance::redeliver)).await;
        }
    }
}

/// Stands for the ID of a deployment in the names of its effects.
const ID_IN_STEPS: &str = "{id}";
/// Number of labs that share the steps.
const LABS: usize = 4;
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

/// Disturbances of a deployment after some of its effects.
#[derive(Clone, Default)]
struct Disturbance {
    /// The host stops after these.
    stops: Vec<Step>,
    /// The event is delivered again after these.
    redeliveries: Vec<Step>,
}

impl Disturbance {
    fn stop(stops: Vec<Step>) -> Self {
        Self {
            stops,
            ..Self::default()
        }
    }

    fn redeliver(redeliveries: Vec<Step>) -> Self {
        Self {
            redeliveries,
            ..Self::default()
        }
    }
}

async fn deployment_survives_stops_of_the_host_after_all_its_effects(lab: Lab) {
    disturb_all_steps(lab, Disturbance::stop).await;
}

async fn event_that_is_delivered_again_after_all_effects_has_none(lab: Lab) {
    disturb_all_steps(lab, Disturbance::redeliver).await;
}

/// Deploys once with a disturbance after each effect that a deployment has.
async fn disturb_all_steps(lab: Lab, disturb: fn(Vec<Step>) -> Disturbance) {
    let mut pack = PackLab::start(lab, false).await;
    let model = Model::observe(&mut pack).await;
    model.compare(&mut pack, "d-1", &model.steps, disturb).await;
}

/// Deploys for each effect that a deployment has once, with a disturbance after it. The labs share the work, because a
/// deployment is idle most of its time.
async fn disturb_each_step<F: Future<Output = Lab>>(
    start_lab: fn() -> F,
    disturb: fn(Vec<Step>) -> Disturbance,
) {
    let run = async |first: usize| {
        let mut pack = PackLab::start(start_lab().await, false).await;
        let model = Model::observe(&mut pack).await;
        for (number, step) in model.steps.iter().enumerate().skip(first).step_by(LABS) {
            let steps = std::slice::from_ref(step);
            model
                .compare(&mut pack, &format!("d-{number}"), steps, disturb)
                .await;
        }
    };
    futures::future::join_all((0..LABS).map(run)).await;
}

/// A deployment without disturbances.
struct Model {
    /// The objects before it and after it.
    objects: BTreeSet<String>,
    steps: Vec<Step>,
    status: Value,
}

impl Model {
    async fn observe(pack: &mut PackLab) -> Self {
        pack.start_host().await;
        pack.set_up_project().await;
        let objects = list_objects(&pack.lab).await;
        // The first one has effects that no other has, on the Upstream of the broker.
        deploy(pack, "first", Disturbance::default()).await;
        let undisturbed = deploy(pack, "second", Disturbance::default()).await;
        assert_eq!(list_objects(&pack.lab).await, objects);
        let effects = undisturbed.effects.iter();
        let names: Vec<String> = effects
            .map(|effect| effect.replace("second", ID_IN_STEPS))
            .collect();
        Self {
            objects,
            steps: Step::list(&names),
            status: undisturbed.status,
        }
    }

    /// Deploys with a disturbance after each of these steps. The end is that of the model.
    async fn compare(
        &self,
        pack: &mut PackLab,
        id: &str,
        steps: &[Step],
        disturb: fn(Vec<Step>) -> Disturbance,
    ) {
        let of_id = |step: &Step| Step {
            effect: step.effect.replace(ID_IN_STEPS, id),
            ..step.clone()
        };
        let own: Vec<Step> = steps.iter().map(of_id).collect();
        let deployed = deploy(pack, id, disturb(own.clone())).await;
        for step in &own {
            // Several changes of one status may be one write.
            assert!(
                step.is_in(&deployed.effects)
                    || step.repetition > 0
                    || step.effect.ends_with("settings/shop/status"),
                "{step:?} is not among {:#?}",
                deployed.effects
            );
        }
        assert_eq!(deployed.status, self.status, "after {own:?}");
        assert_eq!(list_objects(&pack.lab).await, self.objects, "after {own:?}");
    }
}

/// A deployment from its event to the end of its clean-up.
struct Deployed {
    /// The status, without what differs from one deployment to the other.
    status: Value,
    effects: Vec<String>,
}

async fn deploy(pack: &mut PackLab, id: &str, disturbance: Disturbance) -> Deployed {
    let mut redeliveries = disturbance.redeliveries;
    pack.gate.arm(disturbance.stops);
    pack.publish_deployment(id, 1).await;
    let (mut disturbed, mut looked) = (Instant::now(), Instant::now());
    let record = loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        if pack.gate.is_closed() {
            pack.start_host().await;
            disturbed = Instant::now();
        }
        for _ in take_due(&mut redeliveries, &pack.gate.effects()) {
            pack.publish_deployment(id, 1).await;
            disturbed = Instant::now();
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
        let effects = pack.gate.effects();
        let is_due = redeliveries.iter().any(|step| step.is_in(&effects));
        if reason == "CleanedUp" && dispatcher.is_idle() && !pack.gate.is_closed() && !is_due {
            break record;
        }
        assert!(
            disturbed.elapsed() < WAIT_TIMEOUT,
            "{id} has not ended: {effects:#?} {record:#}"
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
