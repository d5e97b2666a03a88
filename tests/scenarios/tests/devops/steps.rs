//! Deployments, and the set-up of a project, that are disturbed at each of their steps: the host ends after an effect, or the
//! event is delivered again. The end is that of one that was not disturbed.

use std::{collections::BTreeSet, time::Duration};

use ostler_test_harness::{Lab, WAIT_TIMEOUT, scenario};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    events::EVENTS,
    gate::{EVENT_ACKNOWLEDGEMENT, EffectStep, replace_uids, take_due},
    pack::PackLab,
    workflow::{Workflow, list_objects},
};

/// Stands for the ID of an event in the names of its effects.
const ID_IN_STEPS: &str = "{id}";
/// Number of labs that share the steps.
const LABS: usize = 4;
/// Interval of looks at the object.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Fields of a status that differ from one event to the other. A pipeline's configuration has the name of its project.
const VARYING_FIELDS: [&str; 13] = [
    "applicationUID",
    "completionTime",
    "configHash",
    "expirationTime",
    "finishTime",
    "lastTransitionTime",
    "number",
    "operationID",
    "phaseStartTime",
    "queueID",
    "resourceVersion",
    "startTime",
    "triggeredAt",
];

/// Disturbances after some of the effects of an event.
#[derive(Clone, Default)]
struct Disturbance {
    /// The host stops after these.
    stops: Vec<EffectStep>,
    /// The event is delivered again after these.
    redeliveries: Vec<EffectStep>,
}

impl Disturbance {
    /// Its steps that are among the effects of every event. Several changes of one status may be one write.
    fn list_certain_steps(&self) -> Vec<EffectStep> {
        let steps = self.stops.iter().chain(&self.redeliveries);
        let is_certain =
            |step: &&EffectStep| step.repetition == 0 && !step.effect.ends_with("settings/shop/status");
        steps.filter(is_certain).cloned().collect()
    }

    fn stop(stops: Vec<EffectStep>) -> Self {
        Self {
            stops,
            ..Self::default()
        }
    }

    fn redeliver(redeliveries: Vec<EffectStep>) -> Self {
        Self {
            redeliveries,
            ..Self::default()
        }
    }
}

#[scenario(argocd)]
async fn deployment_survives_stops_of_the_host_after_all_its_effects(lab: Lab) {
    disturb_all_steps(lab, Workflow::Deployment, Disturbance::stop).await;
}

#[scenario(argocd)]
async fn event_that_is_delivered_again_after_all_effects_has_none(lab: Lab) {
    disturb_all_steps(lab, Workflow::Deployment, Disturbance::redeliver).await;
}

#[scenario(argocd)]
async fn set_up_survives_stops_of_the_host_after_all_its_effects(lab: Lab) {
    disturb_all_steps(lab, Workflow::SetUp, Disturbance::stop).await;
}

#[scenario(argocd)]
async fn event_of_a_project_that_is_delivered_again_after_all_effects_has_none(lab: Lab) {
    disturb_all_steps(lab, Workflow::SetUp, Disturbance::redeliver).await;
}

#[scenario(campaign = "takes minutes: see docs/devops/figures.md")]
async fn deployment_survives_a_stop_of_the_host_after_each_effect(lab: Lab) {
    disturb_each_step(lab, Workflow::Deployment, Disturbance::stop).await;
}

#[scenario(campaign = "takes minutes: see docs/devops/figures.md")]
async fn event_that_is_delivered_again_after_each_effect_has_none(lab: Lab) {
    disturb_each_step(lab, Workflow::Deployment, Disturbance::redeliver).await;
}

#[scenario(campaign = "takes minutes: see docs/devops/figures.md")]
async fn set_up_survives_a_stop_of_the_host_after_each_effect(lab: Lab) {
    disturb_each_step(lab, Workflow::SetUp, Disturbance::stop).await;
}

#[scenario(campaign = "takes minutes: see docs/devops/figures.md")]
async fn event_of_a_project_that_is_delivered_again_after_each_effect_has_none(lab: Lab) {
    disturb_each_step(lab, Workflow::SetUp, Disturbance::redeliver).await;
}

/// Publishes one event, with a disturbance after each effect that it has.
async fn disturb_all_steps(lab: Lab, workflow: Workflow, disturb: fn(Vec<EffectStep>) -> Disturbance) {
    let mut pack = PackLab::start(lab, false).await;
    let model = Model::observe(&mut pack, workflow).await;
    model.compare(&mut pack, "e-1", &model.steps, disturb).await;
}

/// Publishes an event for each effect that it has once, with a disturbance after it. The labs share the work, because the pack
/// is idle most of the time.
async fn disturb_each_step(lab: Lab, workflow: Workflow, disturb: fn(Vec<EffectStep>) -> Disturbance) {
    let mut labs = vec![lab];
    while labs.len() < LABS {
        labs.push(labs[0].another().await);
    }
    let run = async |(first, lab): (usize, Lab)| {
        let mut pack = PackLab::start(lab, false).await;
        let model = Model::observe(&mut pack, workflow).await;
        for (number, step) in model.steps.iter().enumerate().skip(first).step_by(LABS) {
            let steps = std::slice::from_ref(step);
            model
                .compare(&mut pack, &format!("e-{number}"), steps, disturb)
                .await;
        }
    };
    futures::future::join_all(labs.into_iter().enumerate().map(run)).await;
}

/// An event without disturbances.
struct Model {
    workflow: Workflow,
    /// The objects before it and after it.
    objects: BTreeSet<String>,
    steps: Vec<EffectStep>,
    state: Value,
}

impl Model {
    async fn observe(pack: &mut PackLab, workflow: Workflow) -> Self {
        pack.start_host().await;
        workflow.prepare(pack).await;
        let objects = list_objects(&pack.lab).await;
        // The first one has effects that no other has, on the Upstream of the broker.
        run(pack, workflow, "m-1", &objects, Disturbance::default()).await;
        let undisturbed = run(pack, workflow, "m-2", &objects, Disturbance::default()).await;
        assert_eq!(list_objects(&pack.lab).await, objects);
        let effects = undisturbed.effects.iter();
        let names: Vec<String> = effects.map(|effect| effect.replace("m-2", ID_IN_STEPS)).collect();
        Self {
            workflow,
            objects,
            steps: EffectStep::list(&names),
            state: undisturbed.state,
        }
    }

    /// Publishes an event with a disturbance after each of these steps. The end is that of the model.
    async fn compare(
        &self,
        pack: &mut PackLab,
        id: &str,
        steps: &[EffectStep],
        disturb: fn(Vec<EffectStep>) -> Disturbance,
    ) {
        let of_id = |step: &EffectStep| EffectStep {
            effect: step.effect.replace(ID_IN_STEPS, id),
            ..step.clone()
        };
        let own: Vec<EffectStep> = steps.iter().map(of_id).collect();
        let ended = run(pack, self.workflow, id, &self.objects, disturb(own.clone())).await;
        assert_eq!(ended.state, self.state, "after {own:?}");
        assert_eq!(list_objects(&pack.lab).await, self.objects, "after {own:?}");
    }
}

/// The end of an event.
struct Ended {
    /// The state, without what differs from one event to the other.
    state: Value,
    effects: Vec<String>,
}

/// Publishes an event, and disturbs what it starts until that has ended.
async fn run(
    pack: &mut PackLab,
    workflow: Workflow,
    id: &str,
    before: &BTreeSet<String>,
    disturbance: Disturbance,
) -> Ended {
    let certain = disturbance.list_certain_steps();
    let mut redeliveries = disturbance.redeliveries;
    pack.gate.arm(disturbance.stops);
    workflow.publish(pack, id).await;
    let mut published = 1;
    let (mut disturbed, mut looked) = (Instant::now(), Instant::now());
    let object = loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        if pack.gate.is_closed() {
            pack.start_host().await;
            disturbed = Instant::now();
        }
        for _ in take_due(&mut redeliveries, &pack.gate.effects()) {
            workflow.publish(pack, id).await;
            published += 1;
            disturbed = Instant::now();
        }
        let object = pack.lab.get(&workflow.kind(), id).await.unwrap_or_default();
        workflow.hasten(pack, &object, &mut looked);
        let effects = pack.gate.effects();
        let is_due = redeliveries.iter().any(|step| step.is_in(&effects));
        let is_idle = pack.lab.host().services().dispatcher.is_idle();
        // A host that has just started is idle, too.
        let missing: Vec<&EffectStep> = certain.iter().filter(|step| !step.is_in(&effects)).collect();
        let has_ended = workflow.has_ended(&object) && is_idle && !pack.gate.is_closed() && !is_due;
        if has_ended && missing.is_empty() && is_handled(pack, published).await {
            break object;
        }
        assert!(
            disturbed.elapsed() < WAIT_TIMEOUT,
            "{id} has not ended: {effects:#?} without {missing:#?} {object:#}"
        );
    };
    let effects = pack.gate.effects();
    let dead_letters = pack.client.queue_depth("devops-events.dead-letter").await;
    assert_eq!(dead_letters.unwrap_or_default(), 0);
    let mut state = workflow.finish(pack, &object, &effects, before).await;
    normalize(&mut state, id);
    Ended { state, effects }
}

/// Returns whether as many events have been acknowledged as were published, and none waits.
async fn is_handled(pack: &PackLab, published: usize) -> bool {
    let effects = pack.gate.effects();
    let acknowledged = effects.iter().filter(|effect| **effect == EVENT_ACKNOWLEDGEMENT);
    acknowledged.count() >= published && pack.client.queue_depth(EVENTS).await == Some(0)
}

/// Removes what differs from one event to the other.
fn normalize(value: &mut Value, id: &str) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !VARYING_FIELDS.contains(&name.as_str()));
            fields.values_mut().for_each(|value| normalize(value, id));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| normalize(value, id)),
        Value::String(text) => *text = replace_uids(text).replace(id, "ID"),
        _ => {}
    }
}
