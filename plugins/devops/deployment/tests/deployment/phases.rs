//! Each phase of a deployment, and its failures.

use ostler_sdk::{Next, gvk, serde_json::json};

use crate::world::{DeploymentFault, DeploymentWorld, FailingServer, START_MS, application, ingress};

#[test]
fn deployment_is_built_synced_and_gets_its_address() {
    let mut world = DeploymentWorld::new();
    world.run();
    assert_eq!(
        (world.text("/state"), world.text("/phase")),
        ("success".into(), "verifying".into())
    );
    assert_eq!(world.text("/url"), "http://app.example.com");
    assert_eq!(world.text("/sync/revision"), "c0ffee");
    assert_eq!(world.text("/build/result"), "SUCCESS");
    assert_eq!(world.reason(), "Live");
    let sent = world.host.sent();
    let trigger = sent.iter().find(|r| r.body.is_some()).expect("a trigger");
    assert_eq!(
        trigger.body.as_deref(),
        Some(&b"DEPLOYMENT_ID=d-1&REVISION=v1"[..])
    );
    assert_eq!(trigger.upstream.name, "jenkins-shop");
}

#[test]
fn operation_names_the_deployment_and_inherits_nothing() {
    let mut world = DeploymentWorld::new();
    let mut live = world.host.object(&application()).expect("is there");
    live["status"]["operationState"] = json!({"phase": "Succeeded", "operation": {"sync": {"dryRun": true}}});
    world.host.put(live);
    world.record["spec"]
        .as_object_mut()
        .expect("a spec")
        .remove("build");
    world.reconcile();
    let live = world.host.object(&application()).expect("is there");
    assert_eq!(live["status"]["operationState"], json!(null));
    assert_eq!(
        live["operation"]["sync"],
        json!({"prune": true, "revision": "v1"})
    );
    assert_eq!(
        live["operation"]["info"],
        json!([{"name": "ostler-deployment", "value": "uid-d-1"}])
    );
    assert_eq!(
        live["metadata"]["annotations"]["devops.ostler.dev/operations"],
        "uid-d-1"
    );
}

#[test]
fn operation_has_the_sync_options_of_the_application() {
    let mut world = DeploymentWorld::new();
    let mut live = world.host.object(&application()).expect("is there");
    live["spec"]["syncPolicy"] = json!({"syncOptions": ["CreateNamespace=true"]});
    world.host.put(live);
    world.record["spec"]
        .as_object_mut()
        .expect("a spec")
        .remove("build");
    world.reconcile();
    let live = world.host.object(&application()).expect("is there");
    assert_eq!(
        live["operation"]["sync"]["syncOptions"],
        json!(["CreateNamespace=true"])
    );
}

#[test]
fn heartbeats_show_each_phase_and_repeat_after_thirty_seconds() {
    let mut world = DeploymentWorld::new();
    world.results = vec![None; 12];
    world.results.push(Some("SUCCESS"));
    world.run();
    let phases: Vec<String> = world
        .heartbeats()
        .iter()
        .map(|h| h["phase"].as_str().expect("text").to_owned())
        .collect();
    let building = phases.iter().filter(|phase| *phase == "building").count();
    // Twelve looks at intervals of ten seconds.
    assert!((4..=5).contains(&building), "{phases:?}");
    for phase in ["deploying", "verifying"] {
        assert!(phases.iter().any(|p| p == phase), "{phases:?}");
    }
    let (broker, message) = world.host.messages().pop().expect("a heartbeat");
    assert_eq!(
        (&*broker, &*message.exchange, &*message.routing_key),
        ("rabbit", "devops", "heartbeats")
    );
    assert_eq!(
        message.properties.type_.as_deref(),
        Some("DevOpsReconcileJobHeartbeat")
    );
    assert_eq!(message.properties.message_id.as_deref(), Some("uid-d-1:final"));
}

#[test]
fn broker_that_refuses_delays_neither_the_deployment_nor_its_time_to_live() {
    let mut world = DeploymentWorld::new();
    world.host.deny("messaging.publish");
    for _ in 0..20 {
        world.reconcile();
        world.react();
        world.now += 10_000;
    }
    assert_eq!(world.text("/state"), "success");
    let outcome = world.reconcile().expect("no stop").expect("an outcome");
    let confirmed = outcome
        .conditions
        .iter()
        .find(|c| c.type_ == "HeartbeatConfirmed");
    assert_eq!(confirmed.expect("a condition").reason, "HeartbeatFailed");
    assert_eq!(outcome.next, Next::After(30_000), "it is sent again");
    assert_eq!(world.text("/ttl/phase"), "Monitoring");
    world.now += 10_800_000;
    for _ in 0..3 {
        world.reconcile();
        world.react();
    }
    assert_eq!(world.text("/ttl/phase"), "Completed");
    assert!(world.heartbeats().is_empty());
    world.host.fail("messaging.publish", None);
    world.reconcile();
    assert_eq!(world.heartbeats().len(), 1);
}

#[test]
fn record_without_a_broker_sends_no_heartbeat() {
    let mut world = DeploymentWorld::new();
    world.record["spec"]
        .as_object_mut()
        .expect("a spec")
        .remove("heartbeat");
    world.run();
    assert_eq!(world.text("/state"), "success");
    assert!(world.heartbeats().is_empty());
}

#[test]
fn settings_are_waited_for() {
    let mut world = DeploymentWorld::new();
    let setting = gvk("devops.ostler.dev", "v1alpha1", "JenkinsSetting").named("team", "shop");
    let object = world.host.object(&setting).expect("is there");
    world.host.remove(&setting);
    let outcome = world.reconcile().expect("no stop").expect("an outcome");
    assert_eq!(
        (world.text("/phase"), world.reason()),
        ("initializing".into(), "JenkinsSettingNotReady".into())
    );
    assert!(
        world.heartbeats().is_empty(),
        "its phase has only just been written"
    );
    assert_eq!(outcome.next, Next::After(1));
    let outcome = world.reconcile().expect("no stop").expect("an outcome");
    assert_eq!(world.heartbeats().len(), 1);
    assert_eq!(outcome.next, Next::After(10_000));
    world.host.put(object);
    world.run();
    assert_eq!(world.text("/state"), "success");
}

#[test]
fn unknown_project_fails_when_its_settings_are_not_there_in_time() {
    let mut world = DeploymentWorld::new();
    world
        .host
        .remove(&gvk("devops.ostler.dev", "v1alpha1", "JenkinsSetting").named("team", "shop"));
    world.record["spec"]["timeouts"] = json!({"initializeSeconds": 60});
    world.run();
    assert_eq!(world.text("/state"), "failed");
    let message = world.text("/phaseMessage");
    assert!(
        message.contains("within 60 s") && message.contains("JenkinsSetting"),
        "{message}"
    );
    let last = world.heartbeats().pop().expect("a heartbeat");
    assert_eq!(
        (&last["status"], &last["phase"]),
        (&json!("failed"), &json!("initializing"))
    );
    assert!(world.host.requests().is_empty());
}

#[test]
fn unknown_application_fails_before_a_build() {
    let mut world = DeploymentWorld::new();
    world.record["spec"]["sync"]["application"] = "x".into();
    world.run();
    assert_eq!(world.text("/state"), "failed");
    assert!(world.text("/phaseMessage").contains("has no application x"));
    assert_eq!(world.triggers(), 0);
}

#[test]
fn build_that_does_not_succeed_ends_the_deployment() {
    for (result, state) in [
        ("FAILURE", "failed"),
        ("UNSTABLE", "failed"),
        ("ABORTED", "terminated"),
    ] {
        let mut world = DeploymentWorld::new();
        world.results = vec![None, Some(result)];
        world.run();
        assert_eq!(
            (world.text("/state"), world.text("/phase")),
            (state.into(), "building".into())
        );
        assert!(world.operations.is_empty());
        let last = world.heartbeats().pop().expect("a heartbeat");
        assert_eq!(
            (&last["status"], &last["phase"]),
            (&json!(state), &json!("building"))
        );
    }
}

#[test]
fn lost_trigger_that_arrived_is_adopted() {
    let mut world = DeploymentWorld::new();
    world.lose_trigger();
    world.reconcile();
    // `react` counts the request as arrived.
    world.react();
    world.run();
    assert_eq!((world.triggers(), world.builds), (1, 1));
    assert_eq!(world.text("/state"), "success");
}

#[test]
fn lost_trigger_that_did_not_arrive_is_sent_again_after_it_has_settled() {
    let mut world = DeploymentWorld::new();
    world.lose_trigger();
    world.reconcile();
    assert_eq!(world.reason(), "BuildRequestFailed");
    world.answer_jenkins();
    world.now += 1_000;
    world.reconcile();
    assert_eq!((world.triggers(), world.reason()), (1, "BuildUnknown".into()));
    world.now += 10_000;
    world.reconcile();
    assert_eq!(world.triggers(), 2);
}

#[test]
fn lost_trigger_settles_from_the_first_answer_and_not_from_the_request() {
    let mut world = DeploymentWorld::new();
    world.lose_trigger();
    world.reconcile();
    // Jenkins hangs for a minute, and works off the request afterwards.
    world.set_fault(Some((FailingServer::Jenkins, DeploymentFault::HangsBefore)));
    world.now += 60_000;
    world.reconcile();
    world.set_fault(None);
    world.reconcile();
    assert_eq!((world.triggers(), world.reason()), (1, "BuildUnknown".into()));
    world.builds = 1;
    world.answer_jenkins();
    world.now += 10_000;
    world.reconcile();
    assert_eq!(
        (world.triggers(), world.text("/build/phase")),
        (1, "Running".into())
    );
}

#[test]
fn refused_trigger_fails_the_deployment() {
    for (status, state) in [
        (400, "failed"),
        (404, "failed"),
        (409, "failed"),
        (503, "running"),
        (403, "running"),
    ] {
        let mut world = DeploymentWorld::new();
        world.refuse_trigger(status);
        world.reconcile();
        assert_eq!(world.text("/state"), state, "HTTP {status}");
        assert!(
            world.text("/phaseMessage").contains("no such parameter"),
            "{}",
            world.text("/phaseMessage")
        );
    }
}

#[test]
fn build_that_takes_too_long_is_stopped() {
    let mut world = DeploymentWorld::new();
    world.results = vec![None];
    world.record["spec"]["timeouts"] = json!({"buildSeconds": 60});
    world.run();
    assert_eq!(world.text("/state"), "failed");
    assert!(world.text("/phaseMessage").contains("within 60 s"));
    assert!(
        world
            .host
            .requests()
            .contains(&"POST /job/shop/job/alpha/job/build/1/stop".to_owned())
    );
}

#[test]
fn sync_waits_while_another_operation_runs() {
    let mut world = DeploymentWorld::without_build();
    let mut live = world.host.object(&application()).expect("is there");
    live["operation"] = json!({"sync": {}, "info": [{"name": "ostler-deployment", "value": "another"}]});
    world.host.put(live);
    world.reconcile();
    assert_eq!(world.reason(), "OperationInProgress");
    assert!(world.host.writes().is_empty());
    world.react();
    world.run();
    assert_eq!(world.operations, ["another", "uid-d-1"]);
    assert_eq!(world.text("/state"), "success");
}

#[test]
fn sync_that_another_operation_replaced_is_terminated_and_not_repeated() {
    let mut world = DeploymentWorld::without_build();
    world.reconcile();
    let mut live = world.host.object(&application()).expect("is there");
    live["operation"] = json!({"sync": {}, "info": [{"name": "ostler-deployment", "value": "another"}]});
    live["metadata"]["resourceVersion"] = "99".into();
    world.host.put(live);
    world.run();
    assert_eq!(world.text("/state"), "terminated");
    assert_eq!(world.operations, ["another"]);
}

#[test]
fn sync_that_succeeded_before_another_operation_took_the_slot_is_a_success() {
    let mut world = DeploymentWorld::without_build();
    world.reconcile();
    let mut live = world.host.object(&application()).expect("is there");
    let initiator = live["operation"]["initiatedBy"].clone();
    // The operation has run, and the deployment of another record was faster to see it.
    live["status"]["history"] = json!([
        {"id": 0, "revision": "0ff1ce", "deployedAt": "2026-11-22T07:00:00Z", "initiatedBy": {"username": "a person"}},
        {"id": 1, "revision": "c0ffee", "deployedAt": "2026-11-22T08:00:01Z", "initiatedBy": initiator},
    ]);
    live["operation"] = json!({"sync": {}, "info": [{"name": "ostler-deployment", "value": "another"}]});
    live["status"]["operationState"] = json!(null);
    live["metadata"]["resourceVersion"] = "99".into();
    world.host.put(live);
    world.run();
    assert_eq!(world.text("/state"), "success");
    assert_eq!(world.text("/sync/revision"), "c0ffee");
    assert_eq!(world.operations, ["another"], "it is not repeated");
}

#[test]
fn deployment_whose_revision_is_replaced_before_it_is_verified_is_terminated() {
    for (revision, deployed_at, state) in [
        ("0ff1ce", "2026-11-22T09:00:00Z", "terminated"),
        // The same once more, as another deployment of it does.
        ("c0ffee", "2026-11-22T09:00:00Z", "success"),
    ] {
        let mut world = DeploymentWorld::without_build();
        world.health = "Progressing";
        while world.text("/phase") != "verifying" {
            world.reconcile();
            world.react();
        }
        let mut live = world.host.object(&application()).expect("is there");
        live["status"]["history"] = json!([
            {"id": 0, "revision": "c0ffee", "deployedAt": "2026-11-22T08:00:01Z"},
            {"id": 1, "revision": revision, "deployedAt": deployed_at},
        ]);
        world.host.put(live);
        world.health = "Healthy";
        world.react();
        world.run();
        assert_eq!(world.text("/state"), state, "{revision}");
        let message = world.text("/phaseMessage");
        assert!(state == "success" || message.contains(revision), "{message}");
    }
}

#[test]
fn operation_that_was_not_taken_is_removed_with_its_deployment() {
    for is_deleted in [false, true] {
        let mut world = DeploymentWorld::without_build();
        world.record["spec"]["timeouts"] = json!({"syncSeconds": 30});
        // The controller is down: nobody reacts.
        world.reconcile();
        let written = world.host.object(&application()).expect("is there");
        assert!(written["operation"].is_object());
        if is_deleted {
            world.record["metadata"]["deletionTimestamp"] = "2026-11-22T08:00:04Z".into();
        }
        for _ in 0..4 {
            world.now += 10_000;
            world.reconcile();
        }
        assert_ne!(world.text("/state"), "running");
        let live = world.host.object(&application()).expect("is there");
        assert_eq!(live["operation"], json!(null), "deleted: {is_deleted}");
        assert_eq!(world.record["status"]["sync"]["withdrawn"], true);
    }
}

#[test]
fn operation_of_another_deployment_is_not_withdrawn() {
    let mut world = DeploymentWorld::without_build();
    world.reconcile();
    let mut live = world.host.object(&application()).expect("is there");
    let another = json!({"sync": {}, "info": [{"name": "ostler-deployment", "value": "another"}]});
    live["status"]["operationState"] = json!({"phase": "Succeeded", "operation": live["operation"]});
    live["operation"] = another.clone();
    world.host.put(live);
    world.record["metadata"]["deletionTimestamp"] = "2026-11-22T08:00:04Z".into();
    world.reconcile();
    let live = world.host.object(&application()).expect("is there");
    assert_eq!(live["operation"], another);
}

#[test]
fn operation_state_that_nobody_ends_blocks_no_deployment() {
    let mut world = DeploymentWorld::without_build();
    let mut live = world.host.object(&application()).expect("is there");
    // Another user has removed the field of a running operation.
    live["status"]["operationState"] = json!({"phase": "Running", "operation": {"sync": {}}});
    world.host.put(live);
    world.run();
    assert_eq!(world.text("/state"), "success");
}

#[test]
fn missing_grant_fails_the_deployment_within_its_time() {
    let mut world = DeploymentWorld::new();
    world.host.deny("kubernetes.patch");
    world.run();
    assert_eq!(world.text("/state"), "failed");
    let message = world.text("/phaseMessage");
    assert!(
        message.contains("within 600 s") && message.contains("kubernetes.patch"),
        "{message}"
    );
    assert_eq!(world.heartbeats().pop().expect("a heartbeat")["status"], "failed");
}

#[test]
fn failed_sync_fails_the_deployment() {
    for result in ["Failed", "Error"] {
        let mut world = DeploymentWorld::new();
        world.sync_result = result;
        world.run();
        assert_eq!(
            (world.text("/state"), world.text("/phase")),
            ("failed".into(), "deploying".into())
        );
        assert_eq!(world.host.object(&ingress()), None);
    }
}

#[test]
fn application_that_stays_degraded_fails_the_deployment_after_its_time() {
    let mut world = DeploymentWorld::new();
    world.health = "Degraded";
    world.run();
    assert_eq!(
        (world.text("/state"), world.text("/phase")),
        ("failed".into(), "verifying".into())
    );
    assert!(
        world.text("/phaseMessage").contains("Synced and Degraded"),
        "{}",
        world.text("/phaseMessage")
    );
}

#[test]
fn ingress_of_another_user_fails_the_deployment_and_stays() {
    let mut world = DeploymentWorld::new();
    let foreign = json!({"apiVersion": "devops.ostler.dev/v1alpha1", "kind": "IngressResource",
        "metadata": {"name": "d-1", "namespace": "team", "uid": "u"}, "spec": {}});
    world.host.put(foreign.clone());
    world.run();
    assert_eq!(world.text("/state"), "failed");
    world.now += 10_800_000;
    world.run();
    assert_eq!(world.text("/ttl/phase"), "Completed");
    assert_eq!(world.host.object(&ingress()), Some(foreign));
}

#[test]
fn time_to_live_counts_from_the_end_by_the_wall_clock() {
    let mut world = DeploymentWorld::new();
    world.run();
    let outcome = world.reconcile().expect("no stop").expect("an outcome");
    let end = ostler_sdk::from_rfc3339(&world.text("/completionTime")).expect("a time");
    assert!(end * 1000 >= START_MS);
    assert_eq!(outcome.next, Next::At((end + 10_800) * 1000));
    assert_eq!(
        world.text("/ttl/expirationTime"),
        ostler_sdk::rfc3339(end + 10_800)
    );
    assert!(world.host.object(&application()).is_some());
}

#[test]
fn deployment_without_time_to_live_stays() {
    let mut world = DeploymentWorld::new();
    world.record["spec"]["ttlSeconds"] = 0.into();
    world.run();
    assert_eq!(
        world.record["status"]["ttl"],
        json!({"phase": "Monitoring", "startTime": world.text("/completionTime")})
    );
}

#[test]
fn clean_up_takes_the_application_before_the_address() {
    let mut world = DeploymentWorld::new();
    world.run();
    world.now += 10_800_000;
    world.reconcile();
    assert_eq!(world.text("/ttl/phase"), "Cleanup");
    // ArgoSetting has not deleted it yet.
    let wait = world.reconcile().expect("no stop").expect("an outcome");
    assert_eq!(
        (world.reason(), world.text("/ttl/step")),
        ("CleanupPending".into(), "Applications".into())
    );
    assert_eq!(wait.next, Next::After(30_000));
    assert!(world.host.object(&ingress()).is_some());
    world.react();
    let mut live = world.host.object(&ingress()).expect("is there");
    for (reason, step) in [
        ("IngressRemains", "Ingress"),
        ("DnsRemains", "Dns"),
        ("CertificateRemains", "Certificates"),
    ] {
        live["metadata"]["deletionTimestamp"] = "2026-11-22T12:00:00Z".into();
        live["status"]["conditions"][0] = json!({"type": "Ready", "status": "False", "reason": reason});
        world.host.put(live.clone());
        world.reconcile();
        assert_eq!(world.text("/ttl/step"), step);
    }
    world.host.remove(&ingress());
    world.run();
    assert_eq!(
        (world.text("/ttl/phase"), world.reason()),
        ("Completed".into(), "CleanedUp".into())
    );
}

#[test]
fn application_that_another_deployment_needs_is_not_waited_for() {
    let mut world = DeploymentWorld::new();
    world.run();
    let mut other = world.record.clone();
    other["metadata"] = json!({"name": "d-2", "namespace": "team", "uid": "uid-d-2"});
    world.host.put(other);
    world.now += 10_800_000;
    world.reconcile();
    world.reconcile();
    assert_eq!(world.host.object(&ingress()), None, "its own address is deleted");
    assert!(world.host.object(&application()).is_some());
}

#[test]
fn permanent_application_stays_after_the_time_to_live() {
    let mut world = DeploymentWorld::new();
    let setting = gvk("devops.ostler.dev", "v1alpha1", "ArgoSetting").named("team", "shop");
    let mut object = world.host.object(&setting).expect("is there");
    object["spec"]["applications"][0]["lifetime"] = "Permanent".into();
    world.host.put(object);
    world.run();
    world.now += 10_800_000;
    world.reconcile();
    world.reconcile();
    world.reconcile();
    assert_eq!(world.text("/ttl/phase"), "Completed");
    assert!(world.host.object(&application()).is_some());
}

#[test]
fn deleted_record_cancels_what_runs_and_cleans_up() {
    let mut world = DeploymentWorld::new();
    world.results = vec![None];
    for _ in 0..3 {
        world.reconcile();
        world.react();
        world.now += 10_000;
    }
    assert_eq!(world.text("/phase"), "building");
    world.record["metadata"]["deletionTimestamp"] = "2026-11-22T08:06:04Z".into();
    world.react();
    world.run();
    assert!(
        world
            .host
            .requests()
            .contains(&"POST /job/shop/job/alpha/job/build/1/stop".to_owned())
    );
    let last = world.heartbeats().pop().expect("a heartbeat");
    assert_eq!(last["status"], "terminated");
    assert_eq!(world.host.object(&application()), None);
}

#[test]
fn build_whose_stop_was_answered_by_a_proxy_is_stopped_again() {
    let mut world = DeploymentWorld::new();
    world.results = vec![None];
    for _ in 0..3 {
        world.reconcile();
        world.react();
    }
    assert_eq!(world.text("/build/phase"), "Running");
    world.record["metadata"]["deletionTimestamp"] = "2026-11-22T08:06:04Z".into();
    // Jenkins is back right after the answer of the proxy.
    world.host.set_response_headers(&[]);
    let stop = "/job/shop/job/alpha/job/build/1/stop";
    world.host.answer("POST", stop, 200, "<html>");
    world.reconcile().expect("no stop").expect_err("is not stopped");
    assert_eq!(world.text("/build/phase"), "Running");
    world.answer_jenkins();
    world.react();
    world.run();
    assert_eq!(world.text("/build/phase"), "Cancelled");
    let stops = world
        .host
        .requests()
        .into_iter()
        .filter(|request| request.ends_with("/1/stop"));
    assert_eq!(stops.count(), 2);
}

#[test]
fn deleted_record_terminates_its_running_sync() {
    let mut world = DeploymentWorld::without_build();
    world.reconcile();
    world.react();
    world.reconcile();
    world.record["metadata"]["deletionTimestamp"] = "2026-11-22T08:06:04Z".into();
    world.reconcile();
    let live = world.host.object(&application()).expect("is there");
    assert_eq!(live["status"]["operationState"]["phase"], "Terminating");
}
