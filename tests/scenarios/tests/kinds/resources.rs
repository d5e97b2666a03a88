use ostler_test_harness::{
    Lab,
    concourse::{PIPELINE_YAML, kind},
    find_condition, scenario,
    simulator::FaultAction,
};
use serde_json::{Value, json};

use crate::kinds::{person::Person, poll, reconciles, requests};

fn resource(lab: &Lab, spec: Value) -> Value {
    let mut spec = spec;
    spec["pipelineRef"] = json!({"name": "app"});
    lab.pack_object("Resource", "source", spec)
}

/// Starts the pack with a chain and three versions of the resource `source`.
async fn start_with_chain(mut lab: Lab) -> (Lab, Person) {
    lab.start_pack().await;
    lab.apply_chain().await;
    for name in ["a", "b", "c"] {
        let version = json!({"ref": name, "branch": "main"});
        let version = version.as_object().expect("a version").clone();
        assert!(lab.concourse.add_version("platform", "app", "source", version));
    }
    let person = Person::log_in(&lab).await;
    (lab, person)
}

async fn read_pinned_ref(person: &Person) -> Value {
    person.get("/resources/source").await["pinned_version"]["ref"].clone()
}

/// ID of a version, and whether it is enabled.
async fn find_version(person: &Person, name: &str) -> (Value, bool) {
    let found = person
        .get(&format!("/resources/source/versions?filter=ref:{name}"))
        .await;
    (found[0]["id"].clone(), found[0]["enabled"] == true)
}

#[scenario(simulated)]
async fn version_is_pinned_restored_and_unpinned(lab: Lab) {
    let (lab, person) = start_with_chain(lab).await;
    lab.apply(resource(
        &lab,
        json!({"pinnedVersion": {"ref": "b"}, "pinComment": "the last good one"}),
    ))
    .await;
    let ready = lab.wait_ready(&kind("Resource"), "source").await;
    let found = person.get("/resources/source").await;
    assert_eq!(
        (&found["pinned_version"]["ref"], &found["pin_comment"]),
        (&json!("b"), &json!("the last good one"))
    );
    let status = &ready["status"];
    assert_eq!(status["latestVersion"], json!({"ref": "c", "branch": "main"}));
    assert_eq!(status["pinnedVersion"], json!({"ref": "b", "branch": "main"}));
    assert_eq!(status["pinnedVersionID"], find_version(&person, "b").await.0);
    // A user removes the pin, and later pins another version.
    person.put("/resources/source/unpin").await;
    poll(&lab, "Resource", "source").await;
    assert_eq!(read_pinned_ref(&person).await, "b");
    let other = find_version(&person, "c").await.0;
    person
        .put(&format!("/resources/source/versions/{other}/pin"))
        .await;
    poll(&lab, "Resource", "source").await;
    assert_eq!(read_pinned_ref(&person).await, "b");
    lab.patch(
        &kind("Resource"),
        "source",
        json!({"spec": {"pinnedVersion": {"ref": "a"}}}),
    )
    .await;
    lab.wait_until("the other version is pinned", async || {
        read_pinned_ref(&person).await == "a"
    })
    .await;
    lab.apply(resource(&lab, json!({}))).await;
    lab.patch(
        &kind("Resource"),
        "source",
        json!({"spec": {"pinnedVersion": null, "pinComment": null}}),
    )
    .await;
    lab.wait_until("it is not pinned", async || {
        read_pinned_ref(&person).await.is_null()
    })
    .await;
    let ready = lab.wait_ready(&kind("Resource"), "source").await;
    assert_eq!(ready["status"]["pinned"], false);
}

#[scenario(simulated)]
async fn pin_of_another_user_is_kept(lab: Lab) {
    let (lab, person) = start_with_chain(lab).await;
    let theirs = find_version(&person, "a").await.0;
    person
        .put(&format!("/resources/source/versions/{theirs}/pin"))
        .await;
    lab.apply(resource(&lab, json!({}))).await;
    let ready = lab.wait_ready(&kind("Resource"), "source").await;
    assert_eq!(
        (&ready["status"]["pinned"], &ready["status"]["pinOwned"]),
        (&json!(true), &Value::Null)
    );
    lab.delete(&kind("Resource"), "source").await;
    lab.wait_gone(&kind("Resource"), "source").await;
    assert_eq!(read_pinned_ref(&person).await, "a");
}

#[scenario(simulated)]
async fn pin_in_config_takes_precedence(lab: Lab) {
    let (lab, person) = start_with_chain(lab).await;
    let pinning = PIPELINE_YAML.replace("type: git\n", "type: git\n  version: {ref: a}\n");
    lab.apply(lab.pipeline_config_map(&pinning)).await;
    lab.wait_until("the config pins", async || read_pinned_ref(&person).await == "a")
        .await;
    lab.apply(resource(&lab, json!({"pinnedVersion": {"ref": "b"}})))
        .await;
    let refused = lab
        .wait_condition(&kind("Resource"), "source", "Ready", "False", "PinFailed")
        .await;
    let message = find_condition(&refused, "Ready")["message"].to_string();
    assert!(message.contains("config pins {ref: a}"), "{message}");
    lab.wait_idle().await;
    assert!(
        !requests(&lab, "/pin").iter().any(|r| r.starts_with("PUT")),
        "no pin is attempted"
    );
    lab.apply(lab.pipeline_config_map(PIPELINE_YAML)).await;
    lab.wait_ready(&kind("Resource"), "source").await;
    assert_eq!(read_pinned_ref(&person).await, "b");
}

#[scenario(simulated)]
async fn versions_are_disabled_and_enabled_again(lab: Lab) {
    let (lab, person) = start_with_chain(lab).await;
    let theirs = find_version(&person, "c").await.0;
    person
        .put(&format!("/resources/source/versions/{theirs}/disable"))
        .await;
    let spec = json!({"disabledVersions": [{"ref": "b"}, {"ref": "c"}, {"ref": "none"}]});
    lab.apply(resource(&lab, spec)).await;
    let ready = lab.wait_ready(&kind("Resource"), "source").await;
    assert!(!find_version(&person, "b").await.1 && find_version(&person, "a").await.1);
    let message = find_condition(&ready, "Ready")["message"].to_string();
    assert!(message.contains("No version matches {ref: none}"), "{message}");
    let ours = find_version(&person, "b").await.0;
    assert_eq!(ready["status"]["disabledVersionIDs"], json!([ours]));
    person
        .put(&format!("/resources/source/versions/{ours}/enable"))
        .await;
    poll(&lab, "Resource", "source").await;
    assert!(!find_version(&person, "b").await.1, "drift is reverted");
    lab.apply(resource(&lab, json!({"disabledVersions": []}))).await;
    lab.wait_until("the owned version is enabled again", async || {
        find_version(&person, "b").await.1
    })
    .await;
    lab.wait_ready(&kind("Resource"), "source").await;
    assert!(
        !find_version(&person, "c").await.1,
        "the version that another user disabled stays disabled"
    );
}

#[scenario(simulated)]
async fn check_now_annotation_starts_and_follows_check(lab: Lab) {
    let (lab, _) = start_with_chain(lab).await;
    lab.apply(resource(&lab, json!({}))).await;
    lab.wait_condition(
        &kind("Resource"),
        "source",
        "CheckHealthy",
        "Unknown",
        "CheckPending",
    )
    .await;
    let ask = |value: &str| json!({"metadata": {"annotations": {"concourse-ci.org/check-now": value}}});
    lab.patch(&kind("Resource"), "source", ask("1")).await;
    let checked = lab
        .wait_condition(
            &kind("Resource"),
            "source",
            "CheckHealthy",
            "True",
            "CheckSucceeded",
        )
        .await;
    assert_eq!(checked["status"]["checkNow"], "1");
    assert!(checked["status"]["lastChecked"].is_string());
    let checks = || requests(&lab, "/resources/source/check").len();
    for _ in 0..3 {
        poll(&lab, "Resource", "source").await;
    }
    assert_eq!(checks(), 1, "once for each value");
    let failing = PIPELINE_YAML.replace(
        "type: git\n  source: {",
        "type: mock\n  source: {check_failure: 'no such host', ",
    );
    lab.apply(lab.pipeline_config_map(&failing)).await;
    lab.wait_until("Concourse has the config", async || {
        let pipeline = lab.concourse.pipeline("platform", "app").expect("there");
        pipeline.config["resources"][0]["type"] == "mock"
    })
    .await;
    lab.patch(&kind("Resource"), "source", ask("2")).await;
    lab.wait_condition(
        &kind("Resource"),
        "source",
        "CheckHealthy",
        "False",
        "CheckFailed",
    )
    .await;
    lab.wait_ready(&kind("Resource"), "source").await;
    assert_eq!(checks(), 2);
}

#[scenario(simulated)]
async fn unchanged_resource_costs_two_reads_and_no_write_per_poll(lab: Lab) {
    let (lab, _) = start_with_chain(lab).await;
    lab.apply(resource(&lab, json!({"pinnedVersion": {"ref": "b"}})))
        .await;
    lab.wait_ready(&kind("Resource"), "source").await;
    lab.wait_idle().await;
    lab.concourse.reset_counters();
    let (before, writes) = (reconciles(&lab, "Resource", "source"), lab.api_writes());
    for _ in 0..10 {
        poll(&lab, "Resource", "source").await;
    }
    let polls = reconciles(&lab, "Resource", "source") - before;
    let asked = requests(&lab, "/resources/source").len() as u64;
    assert!(
        polls >= 10 && asked == 2 * polls,
        "{asked} requests in {polls} polls"
    );
    assert_eq!(lab.concourse.counters().writes, 0, "writes to Concourse");
    assert_eq!(lab.api_writes(), writes, "writes to the API server");
}

#[scenario(simulated)]
async fn resource_in_archived_pipeline_waits_without_requests(lab: Lab) {
    let (lab, person) = start_with_chain(lab).await;
    lab.apply(resource(&lab, json!({}))).await;
    lab.wait_ready(&kind("Resource"), "source").await;
    lab.patch(&kind("Pipeline"), "app", json!({"spec": {"archived": true}}))
        .await;
    lab.patch(
        &kind("Resource"),
        "source",
        json!({"spec": {"pinnedVersion": {"ref": "b"}}}),
    )
    .await;
    lab.wait_condition(&kind("Resource"), "source", "Ready", "False", "PipelineArchived")
        .await;
    lab.wait_ready(&kind("Pipeline"), "app").await;
    lab.wait_idle().await;
    lab.concourse.reset_counters();
    for _ in 0..10 {
        poll(&lab, "Resource", "source").await;
    }
    assert!(
        requests(&lab, "/resources/source").is_empty(),
        "HTTP 409 causes no retries"
    );
    lab.patch(&kind("Pipeline"), "app", json!({"spec": {"archived": false}}))
        .await;
    lab.wait_ready(&kind("Resource"), "source").await;
    assert_eq!(read_pinned_ref(&person).await, "b");
}

#[scenario(simulated)]
async fn pin_with_lost_response_stays_owned(lab: Lab) {
    let (lab, person) = start_with_chain(lab).await;
    lab.concourse
        .faults()
        .fail_next(1, "PUT", "/pin$", FaultAction::DropAnswer);
    lab.apply(resource(&lab, json!({"pinnedVersion": {"ref": "b"}})))
        .await;
    lab.wait_ready(&kind("Resource"), "source").await;
    assert_eq!(requests(&lab, "/pin").len(), 1, "the first request set the pin");
    lab.delete(&kind("Resource"), "source").await;
    lab.wait_gone(&kind("Resource"), "source").await;
    assert_eq!(
        read_pinned_ref(&person).await,
        Value::Null,
        "the owner of the pin is known"
    );
}

#[scenario(simulated)]
async fn deletion_undoes_pin_and_disabled_versions(lab: Lab) {
    let (lab, person) = start_with_chain(lab).await;
    lab.apply(resource(
        &lab,
        json!({"pinnedVersion": {"ref": "b"}, "disabledVersions": [{"ref": "a"}]}),
    ))
    .await;
    lab.wait_ready(&kind("Resource"), "source").await;
    lab.patch(&kind("Resource"), "source", json!({"spec": {"suspend": true}}))
        .await;
    lab.wait_condition(&kind("Resource"), "source", "Ready", "False", "Suspended")
        .await;
    assert_eq!(
        (read_pinned_ref(&person).await, find_version(&person, "a").await.1),
        (json!("b"), false)
    );
    lab.delete(&kind("Resource"), "source").await;
    lab.wait_gone(&kind("Resource"), "source").await;
    assert_eq!(
        (read_pinned_ref(&person).await, find_version(&person, "a").await.1),
        (Value::Null, true)
    );
}
