//! Deployments by an Argo CD that is reached by its API, against the simulator.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use argocd_simulator::{ArgoRequest, Rest};
use ostler_sdk::{
    Error,
    mock::response,
    serde_json::{Value, from_slice, json},
};

use crate::world::{DeploymentWorld, application};

/// Fate of the next request for a sync.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Answered,
    AnswerLost,
    RequestLost,
}

/// Effects of such a deployment, its clean-up included: two checkpoints, a request and two heartbeats.
const MAX_EFFECTS: usize = 12;

/// A world whose ArgoSetting has a server, and a record without a build and an address.
pub fn start(fate: Fate) -> (DeploymentWorld, Rc<RefCell<Rest>>) {
    let mut world = DeploymentWorld::without_build();
    world.host.remove(&application());
    world.put_argo_setting(
        json!({"url": "https://argocd.example.com", "tokenRef": {"name": "argo", "key": "token"}}),
    );
    let spec = world.record["spec"].as_object_mut().expect("a spec");
    spec.remove("ingress");
    let server = Rc::new(RefCell::new(Rest::new("2026-11-22T07:59:00Z")));
    let project = json!({"project": {"metadata": {"name": "shop"}, "spec": {
        "sourceRepos": ["https://git"], "destinations": [{"server": "*", "namespace": "*"}]}}});
    let web = json!({
        "metadata": {"name": "web", "labels": {"devops.ostler.dev/argo-setting": "uid-ArgoSetting"}},
        "spec": {"project": "shop", "source": {"repoURL": "https://git", "path": "web"},
            "destination": {"server": "https://remote", "namespace": "team"}},
    });
    for (path, body) in [
        ("/api/v1/projects", project),
        ("/api/v1/applications?validate=false", web),
    ] {
        assert_eq!(send(&server, "POST", path, &body).0, 200);
    }
    while server.borrow_mut().advance() {}
    let (served, fate) = (server.clone(), Cell::new(fate));
    let fault = world.argo_fault.clone();
    world.host.serve(move |request| {
        let body: Option<Value> = request
            .body
            .as_deref()
            .map(|body| from_slice(body).expect("JSON"));
        let is_sync = request.path_and_query.ends_with("/sync");
        let fate = if is_sync {
            fate.replace(Fate::Answered)
        } else {
            Fate::Answered
        };
        let lost = Err(Error::Unavailable("the connection was closed".into()));
        if fate == Fate::RequestLost {
            return lost;
        }
        let fault = fault.get();
        if let Some(fault) = fault.filter(|fault| !fault.is_after()) {
            return fault.answer();
        }
        let method = request.method.as_str();
        let (status, body) = send(
            &served,
            method,
            &request.path_and_query,
            &body.unwrap_or_default(),
        );
        if fate == Fate::AnswerLost {
            return lost;
        }
        if let Some(fault) = fault {
            return fault.answer();
        }
        Ok(response(status, &[], body))
    });
    world.server = Some(server.clone());
    (world, server)
}

fn send(server: &RefCell<Rest>, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let reply = server.borrow_mut().answer(ArgoRequest {
        method,
        path,
        content_type: Some("application/json"),
        body,
    });
    (reply.status, reply.body)
}

fn assert_synced_once(world: &DeploymentWorld, server: &RefCell<Rest>, case: &str) {
    assert_eq!(
        world.text("/state"),
        "success",
        "{case}: {:#}",
        world.record["status"]
    );
    let server = server.borrow();
    let operations = server.operations();
    assert_eq!(operations.len(), 1, "{case}: {operations:?}");
    let entry = json!([{"name": "ostler-deployment", "value": "uid-d-1"}]);
    assert_eq!(operations[0].1["info"], entry, "{case}");
    assert_eq!(operations[0].1["sync"]["prune"], true, "{case}");
}

#[test]
fn sync_by_the_api_happens_once_wherever_the_host_stops() {
    for step in 0..MAX_EFFECTS {
        let (mut world, server) = start(Fate::Answered);
        world.host.stop_after((step > 0).then_some(step));
        world.run();
        world.now += 10_800_000;
        world.run();
        let case = format!("stopped after effect {step}");
        assert_synced_once(&world, &server, &case);
        assert_eq!(world.text("/ttl/phase"), "Completed", "{case}");
        let path = "/api/v1/applications/web?project=shop";
        assert_eq!(send(&server, "GET", path, &Value::Null).0, 404, "{case}");
    }
}

#[test]
fn sync_whose_answer_or_request_was_lost_happens_once() {
    for (fate, case) in [
        (Fate::AnswerLost, "the answer was lost"),
        (Fate::RequestLost, "the request was lost"),
    ] {
        let (mut world, server) = start(fate);
        world.run();
        assert_synced_once(&world, &server, case);
    }
}

#[test]
fn lost_request_is_not_sent_again_while_it_may_still_be_carried_out() {
    let (mut world, server) = start(Fate::RequestLost);
    world.reconcile();
    assert!(server.borrow().operations().is_empty());
    world.now += 1_000;
    world.reconcile();
    assert_eq!(world.reason(), "SyncUnknown");
    assert!(server.borrow().operations().is_empty());
    world.run();
    assert_synced_once(&world, &server, "after the time to settle");
}

#[test]
fn operation_of_another_user_is_waited_for_and_one_that_replaces_the_sync_ends_it() {
    let (mut world, server) = start(Fate::Answered);
    let path = "/api/v1/applications/web/sync";
    let body = json!({"project": "shop"});
    assert_eq!(send(&server, "POST", path, &body).0, 200);
    world.reconcile();
    assert_eq!(world.reason(), "OperationInProgress");
    world.react();
    world.react();
    world.reconcile();
    assert_eq!(world.reason(), "SyncRunning");
    world.react();
    world.react();
    // Between two polls the sync has ended, and another one has begun.
    world.now += 2_000;
    world.react();
    assert_eq!(send(&server, "POST", path, &body).0, 200);
    world.reconcile();
    assert_eq!(world.text("/state"), "terminated");
}

#[test]
fn refused_sync_fails_the_deployment() {
    let (mut world, server) = start(Fate::Answered);
    server.borrow_mut().world("web").commits.insert("v1".into(), None);
    world.run();
    assert_eq!(world.text("/state"), "failed");
    assert!(world.text("/phaseMessage").contains("unable to resolve 'v1'"));
}

#[test]
fn sync_that_succeeded_before_another_one_began_is_a_success_if_it_was_seen_to_run() {
    let (mut world, server) = start(Fate::Answered);
    world.reconcile();
    world.now += 1_000;
    world.react();
    world.reconcile();
    assert!(!world.text("/sync/startTime").is_empty(), "it runs");
    for _ in 0..3 {
        world.now += 1_000;
        world.react();
    }
    let body = json!({"project": "shop"});
    assert_eq!(
        send(&server, "POST", "/api/v1/applications/web/sync", &body).0,
        200
    );
    world.reconcile();
    assert_eq!(world.text("/phase"), "verifying", "{:#}", world.record["status"]);
    assert_eq!(world.text("/sync/phase"), "Succeeded");
}
