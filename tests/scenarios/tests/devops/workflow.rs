//! What the pack does for an event: a deployment until the end of its clean-up, or the set-up of a project until it is deleted.

use std::{collections::BTreeSet, time::Duration};

use ostler::testing::{dispatcher::Cause, key::Gvk, queue::Priority};
use ostler_test_harness::{Lab, find_condition};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    cluster::{certificate, dns_record, ingress, secrets},
    events::take_heartbeats,
    kind,
    pack::{HOST, PackLab, app_project, application},
};

/// Interval in which Jenkins is looked at, in place of the plugin's ten seconds.
const JENKINS_INTERVAL: Duration = Duration::from_millis(50);
/// Secret that the host makes when a plugin first needs the digest of another one.
const DIGEST_KEY_SECRET: &str = "ostler-digest-key";
/// The settings of a project in the order in which they are applied, each with the plural of its kind. Argo CD and Jenkins wait
/// for the first two.
const SETTINGS_IN_ORDER: [(&str, &str); 4] = [
    ("ContainerRegistry", "containerregistries"),
    ("GitCredentials", "gitcredentials"),
    ("ArgoSetting", "argosettings"),
    ("JenkinsSetting", "jenkinssettings"),
];

/// What an event starts. Its ID is the name of the object that it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workflow {
    /// A DeploymentRecord, until its clean-up has ended.
    Deployment,
    /// A DevOpsProject, until it is Ready. Then it is deleted.
    SetUp,
}

impl Workflow {
    /// Prepares what all of them need.
    pub async fn prepare(self, pack: &PackLab) {
        if self == Self::Deployment {
            pack.set_up_project().await;
        }
    }

    /// Publishes the event.
    pub async fn publish(self, pack: &PackLab, id: &str) {
        match self {
            Self::Deployment => pack.publish_deployment(id, 1).await,
            Self::SetUp => pack.publish_project(id).await,
        }
    }

    /// The kind of the object.
    pub fn kind(self) -> Gvk {
        match self {
            Self::Deployment => kind("DeploymentRecord"),
            Self::SetUp => kind("DevOpsProject"),
        }
    }

    /// Has a deployment look at Jenkins sooner than by itself.
    pub fn hasten(self, pack: &PackLab, object: &Value, looked: &mut Instant) {
        let reason = find_condition(object, "Ready")["reason"].clone();
        let is_at_jenkins = ["BuildQueued", "BuildRunning", "BuildUnknown"]
            .iter()
            .any(|r| reason == **r);
        if is_at_jenkins && looked.elapsed() > JENKINS_INTERVAL {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let key = pack.lab.key(&self.kind(), name);
            let dispatcher = &pack.lab.host().services().dispatcher;
            dispatcher.enqueue(&key, Priority::High, Cause::Poll);
            *looked = Instant::now();
        }
    }

    /// Returns whether the object has reached its end.
    pub fn has_ended(self, object: &Value) -> bool {
        let ready = find_condition(object, "Ready");
        match self {
            Self::Deployment => ready["reason"] == "CleanedUp",
            Self::SetUp => ready["status"] == "True",
        }
    }

    /// Checks what has become of the event, and returns what is the same for each event. `before` is what there was before it.
    pub async fn finish(
        self,
        pack: &mut PackLab,
        object: &Value,
        effects: &[String],
        before: &BTreeSet<String>,
    ) -> Value {
        let id = object["metadata"]["name"].as_str().unwrap_or_default();
        match self {
            Self::Deployment => {
                assert_eq!(pack.count_builds(id), 1, "builds of {id}: {effects:#?}");
                assert_eq!(pack.count_syncs(object), 1, "syncs of {id}: {effects:#?}");
                assert_heartbeats(pack, id, effects).await;
                object["status"].clone()
            }
            Self::SetUp => {
                assert_order_of_settings(effects, id);
                let jenkins = &pack.servers.jenkins;
                let items = [id.to_owned(), format!("{id}/alpha"), format!("{id}/alpha/build")];
                assert_eq!(jenkins.items(), items, "{effects:#?}");
                let credentials = jenkins.credentials(id);
                assert_eq!(credentials, ["ostler-git", "registry"], "{effects:#?}");
                let mut states = json!({ "DevOpsProject": object["status"] });
                for (setting, _) in SETTINGS_IN_ORDER {
                    let found = pack.lab.get(&kind(setting), id).await.expect("a setting");
                    states[setting] = found["status"].clone();
                }
                let objects = list_objects(&pack.lab).await;
                states["objects"] = objects.difference(before).cloned().collect();
                delete_project(pack, id, before).await;
                states
            }
        }
    }
}

/// ContainerRegistry and GitCredentials have a result before the others are applied.
fn assert_order_of_settings(effects: &[String], id: &str) {
    let position = |effect: String| {
        let found = effects.iter().position(|other| *other == effect);
        found.unwrap_or_else(|| panic!("{effect} is not among {effects:#?}"))
    };
    let applied = SETTINGS_IN_ORDER.map(|(_, plural)| position(format!("PATCH {plural}/{id}")));
    assert!(applied.is_sorted(), "{effects:#?}");
    for (_, plural) in &SETTINGS_IN_ORDER[..2] {
        let has_result = position(format!("PATCH {plural}/{id}/status"));
        assert!(has_result < applied[2], "{effects:#?}");
    }
}

/// Deletes a project, and waits until there is nothing but what there was before it.
async fn delete_project(pack: &mut PackLab, id: &str, before: &BTreeSet<String>) {
    // A stop that was not reached would hold the deletion up.
    pack.gate.arm(Vec::new());
    if pack.gate.is_closed() {
        pack.start_host().await;
    }
    let lab = &pack.lab;
    lab.delete(&kind("DevOpsProject"), id).await;
    lab.wait_until("the project and its settings are gone", async || {
        lab.get(&kind("DevOpsProject"), id).await.is_none() && list_objects(lab).await == *before
    })
    .await;
    assert!(pack.servers.jenkins.items().is_empty());
    assert!(pack.servers.jenkins.credentials(id).is_empty());
}

/// The phases are in order, and the final state has one message-id, however often it was published.
async fn assert_heartbeats(pack: &PackLab, id: &str, effects: &[String]) {
    let heartbeats = take_heartbeats(&pack.client, id).await;
    let phases = ["initializing", "building", "deploying", "verifying"];
    let reached = heartbeats.iter().map(|(_, body)| {
        phases
            .iter()
            .position(|phase| body["phase"] == **phase)
            .expect("a phase")
    });
    let lines: Vec<String> = heartbeats
        .iter()
        .map(|(message_id, body)| {
            format!(
                "{message_id} {} {} {}",
                body["status"], body["phase"], body["phase_message"]
            )
        })
        .collect();
    assert!(reached.is_sorted(), "{lines:#?} of {effects:#?}");
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

/// The objects that a deployment has, or a project.
pub async fn list_objects(lab: &Lab) -> BTreeSet<String> {
    let pack = [
        "ArgoSetting",
        "ContainerRegistry",
        "GitCredentials",
        "IngressResource",
        "JenkinsSetting",
    ]
    .map(kind);
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
            if name != DIGEST_KEY_SECRET {
                found.insert(format!("{} {name}", gvk.kind));
            }
        }
    }
    found
}
