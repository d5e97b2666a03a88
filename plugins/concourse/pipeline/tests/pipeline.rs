//! Tests of the Pipeline reconciler against the in-memory host of the SDK.

use concourse_pipeline::Pipelines;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{
    Condition, Error, Failure, Method, Next, Outcome, Resolution, SecretKeyRef, SecretSource, gvk,
};

/// Header by which a response is recognised as one of Concourse.
const VERSION: &[(&str, &str)] = &[("x-concourse-version", "8.2.5")];
const PATH: &str = "/api/v1/teams/alpha/pipelines/demo";
const CONFIG: &str = "/api/v1/teams/alpha/pipelines/demo/config";
const JOBS: &str = "/api/v1/teams/alpha/pipelines/demo/jobs";
const RESOURCES: &str = "/api/v1/teams/alpha/pipelines/demo/resources";
const INLINE: &str = "jobs:\n- name: hello\n  serial: false\n  plan:\n  - get: src\n\
                      resources:\n- {name: src, type: git, source: {uri: ((uri)), key: ((key))}}\n";

fn pipeline() -> Value {
    json!({
        "metadata": { "name": "demo", "namespace": "apps", "uid": "u1" },
        "spec": {
            "teamRef": { "name": "alpha" },
            "config": { "inline": INLINE },
            "vars": [{ "name": "uri", "value": "https://x" }],
        },
    })
}

fn with(key: &str, value: impl Into<Value>) -> Value {
    let mut pipeline = pipeline();
    pipeline["spec"][key] = value.into();
    pipeline
}

/// `pipeline()` as it is after it was saved.
fn claimed() -> Value {
    let mut object = pipeline();
    object["status"] = json!({ "pipelineID": 3, "resolvedName": "demo", "claimedServer": "http://ci" });
    object
}

/// The object with the status of the last reconcile.
fn after(mut object: Value, outcome: &Outcome) -> Value {
    object["status"] = status(outcome);
    object
}

fn status(outcome: &Outcome) -> Value {
    from_slice(outcome.status.as_deref().expect("has a status")).expect("is JSON")
}

fn shown(paused: bool, public: bool, archived: bool) -> Value {
    json!({
        "id": 3, "name": "demo", "paused": paused, "public": public, "archived": archived,
        "last_updated": 1_795_234_884_u64,
    })
}

fn live() -> Value {
    json!({ "config": {
        "jobs": [{ "name": "hello", "plan": [{ "get": "src" }] }],
        "resources": [{
            "name": "src", "type": "git", "source": { "uri": "https://x", "key": "((key))" },
        }],
    }})
}

fn config(host: &MockHost, version: &str, body: Value) {
    host.answers(
        "GET",
        CONFIG,
        [Ok(response(
            200,
            &[("x-concourse-config-version", version)],
            body,
        ))],
    );
}

fn upstream(url: &str) -> Value {
    json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": { "name": "ci", "namespace": "infra" }, "spec": { "url": url },
    })
}

fn cluster() -> MockHost {
    let host = MockHost::new();
    host.set_response_headers(VERSION);
    host.put(upstream("http://ci"));
    host.put(json!({
        "apiVersion": "concourse-ci.org/v1alpha1", "kind": "Team",
        "metadata": { "name": "alpha", "namespace": "apps" },
        "spec": { "instanceRef": { "name": "ci", "namespace": "infra" } },
        "status": {
            "webURL": "http://ci/teams/alpha", "claimedServer": "http://ci",
            "conditions": [{ "type": "Ready", "status": "True", "reason": "R", "message": "" }],
        },
    }));
    let build = json!({ "id": 9, "status": "failed" });
    host.answer(
        "GET",
        JOBS,
        200,
        json!([{ "name": "hello", "paused": true, "finished_build": build }]),
    );
    let pinned = json!({ "ref": "1" });
    host.answer(
        "GET",
        RESOURCES,
        200,
        json!([{ "name": "src", "type": "git", "pinned_version": pinned }]),
    );
    host
}

/// A host whose Concourse has the pipeline as `pipeline()` specifies it.
fn converged() -> MockHost {
    let host = cluster();
    host.answer("GET", PATH, 200, shown(false, false, false));
    config(&host, "5", live());
    host
}

fn writes(host: &MockHost) -> Vec<String> {
    let all = host.requests().into_iter();
    all.filter(|r| !r.starts_with("GET")).collect()
}

fn failure(host: &MockHost, object: &Value) -> (String, Resolution, String) {
    let Failure {
        reason,
        resolution,
        message,
        ..
    } = host.reconcile(&Pipelines, object).expect_err("fails");
    (reason, resolution, message)
}

#[test]
fn new_pipeline_is_saved_and_unpaused() {
    let host = cluster();
    host.answers(
        "GET",
        PATH,
        [
            Ok(response(404, &[], Value::Null)),
            Ok(response(200, &[], shown(false, false, false))),
        ],
    );
    host.answers(
        "GET",
        CONFIG,
        [
            Ok(response(404, &[], Value::Null)),
            Ok(response(200, &[("x-concourse-config-version", "2")], live())),
        ],
    );
    host.answer("PUT", CONFIG, 201, json!({ "warnings": [{ "message": "odd" }] }));
    host.answer("PUT", &format!("{PATH}/unpause"), 200, Value::Null);
    let outcome = host.reconcile(&Pipelines, &pipeline()).expect("is ready");
    assert_eq!(outcome.next, Next::Poll(Some(300_000)));
    assert_eq!(
        writes(&host),
        [format!("PUT {CONFIG}"), format!("PUT {PATH}/unpause")]
    );
    assert!(
        outcome
            .conditions
            .contains(&Condition::new_true("ConfigWarning", "HasWarnings", "odd"))
    );
    let status = status(&outcome);
    assert_eq!(status["configVersion"], "2");
    assert_eq!(status["lastUpdated"], "2026-11-21T04:21:24Z");
    assert_eq!(status["webURL"], "http://ci/teams/alpha/pipelines/demo");
    assert_eq!(
        status["jobs"],
        json!([{ "name": "hello", "paused": true, "lastBuildStatus": "failed" }])
    );
    assert_eq!(
        status["resources"],
        json!([{ "name": "src", "type": "git", "pinned": true }])
    );
    let sent = host.sent();
    let put = sent.iter().find(|r| r.method == Method::Put).expect("saved");
    assert!(
        put.headers.iter().all(|h| h.name != "X-Concourse-Config-Version"),
        "created"
    );
    let body: Value = from_slice(put.body.as_deref().expect("a body")).expect("is JSON");
    let source = &body["resources"][0]["source"];
    assert_eq!(
        *source,
        json!({ "uri": "https://x", "key": "((key))" }),
        "unknown vars stay"
    );
}

#[test]
fn unchanged_config_is_skipped_in_favor_of_jobs_and_resources() {
    let host = converged();
    let second = |host: &MockHost| {
        host.forget();
        let outcome = host.reconcile(&Pipelines, &pipeline()).expect("is ready");
        let requests = host.requests();
        assert_eq!((requests.len(), writes(host).len()), (2, 0), "{requests:?}");
        assert_eq!(requests[0], format!("GET {PATH}"));
        (requests[1].clone(), status(&outcome))
    };
    let read_at = |host: &MockHost, date: &str, version: &str| {
        let headers = [("x-concourse-config-version", version), ("date", date)];
        host.answers("GET", CONFIG, [Ok(response(200, &headers, live()))]);
    };
    // The config is read as long as another change may carry the same second, by the clock of another node.
    for date in [
        "Sat, 21 Nov 2026 04:21:24 GMT",
        "Sat, 21 Nov 2026 04:23:23 GMT",
        "?",
    ] {
        read_at(&host, date, "5");
        assert_eq!(second(&host).0, format!("GET {CONFIG}"), "{date}");
    }
    read_at(&host, "Sat, 21 Nov 2026 04:23:24 GMT", "5");
    assert_eq!(second(&host).0, format!("GET {CONFIG}"));
    let (path, status) = second(&host);
    assert_eq!(path, format!("GET {JOBS}"));
    assert_eq!(status["jobs"][0]["lastBuildStatus"], "failed");
    assert_eq!(status["resources"][0].get("pinned"), None, "not known yet");
    host.set_now(300_000);
    let (path, status) = second(&host);
    assert_eq!(path, format!("GET {RESOURCES}"));
    assert_eq!(status["resources"][0]["pinned"], true);
    // Concourse has recorded a change.
    let mut changed = shown(false, false, false);
    changed["last_updated"] = 1_795_300_000_u64.into();
    host.answer("GET", PATH, 200, changed);
    assert_eq!(second(&host).0, format!("GET {CONFIG}"));
    // The spec has changed.
    host.answer("PUT", CONFIG, 200, json!({}));
    host.reconcile(&Pipelines, &with("vars", json!([])))
        .expect("is ready");
    assert_eq!(writes(&host)[0], format!("PUT {CONFIG}"));
}

#[test]
fn unchanged_pipeline_costs_two_reads_and_no_write() {
    let host = converged();
    let first = host.reconcile(&Pipelines, &pipeline()).expect("is ready");
    let mut object = after(pipeline(), &first);
    for _ in 0..10 {
        host.forget();
        let outcome = host.reconcile(&Pipelines, &object).expect("is ready");
        assert_eq!(host.requests(), [format!("GET {PATH}"), format!("GET {CONFIG}")]);
        assert_eq!(
            (&outcome.status, &outcome.conditions),
            (&first.status, &first.conditions)
        );
        object = after(object, &outcome);
    }
}

#[test]
fn saved_hash_and_version_prevent_repeated_save() {
    let host = converged();
    host.answer("PUT", CONFIG, 200, json!({}));
    let worded = json!({ "config": { "jobs": [{ "name": "hello", "reworded": "9" }] } });
    config(&host, "6", worded.clone());
    let outcome = host.reconcile(&Pipelines, &pipeline()).expect("is ready");
    assert_eq!(
        writes(&host),
        [format!("PUT {CONFIG}"), format!("PUT {CONFIG}")],
        "it shows the same again, so that is its wording"
    );
    assert_eq!(status(&outcome)["configVersion"], "6");
    host.forget();
    let object = after(pipeline(), &outcome);
    host.reconcile(&Pipelines, &object).expect("is ready");
    assert!(writes(&host).is_empty(), "the hash at this version is known");

    config(&host, "7", worded);
    host.reconcile(&Pipelines, &object).expect("is ready");
    assert_eq!(
        writes(&host)[0],
        format!("PUT {CONFIG}"),
        "another user has saved"
    );
    let version = host.sent().iter().find(|r| r.method == Method::Put).map(|r| {
        let header = r.headers.iter().find(|h| h.name == "X-Concourse-Config-Version");
        header.map(|h| h.value.clone())
    });
    assert_eq!(version, Some(Some("7".into())));
}

#[test]
fn save_of_another_user_after_own_is_not_taken_for_own() {
    let read =
        |version: &str, body: Value| Ok(response(200, &[("x-concourse-config-version", version)], body));
    let theirs = |name: &str| json!({ "config": { "jobs": [{ "name": name }] } });
    let host = converged();
    host.answer("PUT", CONFIG, 200, json!({}));
    host.answers(
        "GET",
        CONFIG,
        [read("5", theirs("a")), read("7", theirs("b")), read("8", live())],
    );
    let outcome = host.reconcile(&Pipelines, &pipeline()).expect("is ready");
    assert_eq!(writes(&host).len(), 2, "their save is reverted");
    assert_eq!(status(&outcome)["configVersion"], "8");

    // They save after the second one, too: the next reconcile sees it.
    let host = converged();
    host.answer("PUT", CONFIG, 200, json!({}));
    host.answers(
        "GET",
        CONFIG,
        [
            read("5", theirs("a")),
            read("7", theirs("b")),
            read("9", theirs("c")),
        ],
    );
    let outcome = host.reconcile(&Pipelines, &pipeline()).expect("is ready");
    assert_eq!(status(&outcome).get("configVersion"), None);
    host.forget();
    let object = after(pipeline(), &outcome);
    host.reconcile(&Pipelines, &object).expect("is ready");
    assert_eq!(writes(&host)[0], format!("PUT {CONFIG}"));
}

#[test]
fn version_conflict_is_retried_once() {
    const STALE: &str = "failed to save config: comparison with existing config failed during save";
    let host = converged();
    let read = |body: Value| Ok(response(200, &[("x-concourse-config-version", "6")], body));
    let other = || read(json!({ "config": {} }));
    host.answers("GET", CONFIG, [other(), other(), read(live())]);
    let stale = || Ok(response(500, &[], STALE));
    host.answers("PUT", CONFIG, [stale(), Ok(response(200, &[], json!({})))]);
    host.reconcile(&Pipelines, &pipeline()).expect("is ready");
    assert_eq!(writes(&host).len(), 2);

    host.answers("GET", CONFIG, [other()]);
    host.answers("PUT", CONFIG, [stale(), stale()]);
    let (reason, resolution, message) = failure(&host, &pipeline());
    assert_eq!(
        (reason.as_str(), resolution),
        ("SetPipelineFailed", Resolution::Retry)
    );
    assert!(message.contains("comparison"), "{message}");
}

#[test]
fn refused_config_is_terminal_with_concourse_message() {
    let host = converged();
    config(&host, "6", json!({ "config": {} }));
    host.answer(
        "PUT",
        CONFIG,
        400,
        json!({ "errors": ["unknown resource 'nothing'"] }),
    );
    let failure = host.reconcile(&Pipelines, &pipeline()).expect_err("is refused");
    assert_eq!(
        (failure.reason.as_str(), &failure.resolution),
        ("SetPipelineFailed", &Resolution::Terminal)
    );
    assert!(
        failure.message.contains("unknown resource 'nothing'"),
        "{}",
        failure.message
    );
    assert_eq!(failure.conditions[0].type_, "ConfigSynced");

    // The pipeline of another user was not written, so it is not claimed, and a deletion leaves it alone.
    assert!(host.checkpoints().is_empty());
    let mut object = pipeline();
    object["status"] = from_slice(failure.status.as_deref().expect("a status")).expect("is JSON");
    host.forget();
    host.cleanup(&Pipelines, &object).expect("is cleaned up");
    assert!(host.requests().is_empty());
}

#[test]
fn secret_is_substituted_by_placeholder() {
    let host = converged();
    let object = with(
        "vars",
        json!([
            { "name": "uri", "value": "https://x" },
            { "name": "key", "valueFrom": { "name": "git", "key": "id" } },
        ]),
    );
    let (reason, resolution, message) = failure(&host, &object);
    assert_eq!(
        (reason.as_str(), resolution),
        ("ConfigLoadFailed", Resolution::Wait)
    );
    assert!(message.contains("git"), "{message}");

    host.secret("git", "id", "digest-1")
        .answer("PUT", CONFIG, 200, json!({}));
    let outcome = host.reconcile(&Pipelines, &object).expect("is ready");
    let placeholder = {
        let sent = host.sent();
        let put = sent.iter().find(|r| r.method == Method::Put).expect("saved");
        let [secret] = put.substitutions.as_slice() else {
            panic!("one secret")
        };
        assert_eq!(secret.source, SecretSource::Key(SecretKeyRef::new("git", "id")));
        let body = String::from_utf8_lossy(put.body.as_deref().expect("a body")).into_owned();
        assert_eq!(body.matches(&secret.placeholder).count(), 1, "{body}");
        assert!(secret.placeholder.len() >= 16);
        let get = sent.iter().find(|r| r.path_and_query == CONFIG).expect("read");
        assert_eq!(
            get.substitutions, put.substitutions,
            "kept out of the answer as well"
        );
        secret.placeholder.clone()
    };

    // The host redacts the value to the placeholder; then nothing is written.
    let mut body = live();
    body["config"]["resources"][0]["source"]["key"] = placeholder.into();
    config(&host, "8", body.clone());
    host.forget();
    let settled = host
        .reconcile(&Pipelines, &after(object.clone(), &outcome))
        .expect("is ready");
    assert!(writes(&host).is_empty());

    // Another value: the config still contains the old one, which is not redacted.
    host.secret("git", "id", "digest-2");
    let read = |body: Value| Ok(response(200, &[("x-concourse-config-version", "8")], body));
    host.answers("GET", CONFIG, [read(live()), read(body)]);
    host.reconcile(&Pipelines, &after(object, &settled))
        .expect("is ready");
    assert_eq!(writes(&host), [format!("PUT {CONFIG}")]);
}

#[test]
fn only_different_switches_are_sent() {
    let cases = [
        (with("exposed", true), shown(false, false, false), vec!["expose"]),
        (pipeline(), shown(false, true, false), vec!["hide"]),
        (with("paused", true), shown(false, false, false), vec!["pause"]),
        (pipeline(), shown(true, false, false), vec!["unpause"]),
        (
            with("archived", true),
            shown(false, false, false),
            vec!["archive"],
        ),
        (with("archived", true), shown(true, false, true), vec![]),
        // Visibility applies to archived pipelines, too; the pause waits.
        (with("archived", true), shown(true, true, true), vec!["hide"]),
        // A save reactivates the pipeline and leaves it paused.
        (pipeline(), shown(true, false, true), vec!["config", "unpause"]),
    ];
    for (object, pipeline, verbs) in cases {
        let host = converged();
        let archived = pipeline["archived"] == true;
        host.answer("GET", PATH, 200, pipeline.clone());
        if archived {
            host.answer("GET", CONFIG, 404, Value::Null);
        }
        for verb in ["expose", "hide", "pause", "unpause", "archive", "config"] {
            host.answer("PUT", &format!("{PATH}/{verb}"), 200, Value::Null);
        }
        host.reconcile(&Pipelines, &object).expect("is ready");
        let expected: Vec<_> = verbs.iter().map(|verb| format!("PUT {PATH}/{verb}")).collect();
        assert_eq!(writes(&host), expected, "{pipeline}");
    }
}

#[test]
fn config_is_read_from_config_map() {
    let host = converged();
    let object = with(
        "config",
        json!({ "configMapRef": { "name": "cm", "key": "pipeline.yml" } }),
    );
    let (reason, resolution, _) = failure(&host, &object);
    assert_eq!(
        (reason.as_str(), resolution),
        ("ConfigLoadFailed", Resolution::Wait)
    );
    let map = |data: Value| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "cm", "namespace": "apps" }, "data": data,
        })
    };
    host.put(map(json!({})));
    assert!(failure(&host, &object).2.contains("no key pipeline.yml"));
    host.put(map(json!({ "pipeline.yml": "{{{" })));
    assert_eq!(failure(&host, &object).1, Resolution::Terminal);
    host.put(map(json!({ "pipeline.yml": INLINE })));
    host.reconcile(&Pipelines, &object).expect("is ready");
    assert!(writes(&host).is_empty());
}

#[test]
fn pipeline_waits_for_team_and_skips_when_suspended() {
    let host = MockHost::new();
    let (reason, resolution, _) = failure(&host, &pipeline());
    assert_eq!((reason.as_str(), resolution), ("TeamNotReady", Resolution::Wait));

    let outcome = host.reconcile(&Pipelines, &with("suspend", true)).expect("rests");
    assert_eq!(outcome.conditions[0].reason, "Suspended");
}

const INSTANCE: &str = "?vars.branch=%22main%22&vars.n=2";

/// `pipeline()` with instance vars, and its paths.
fn instanced() -> (Value, impl Fn(&str) -> String) {
    let object = with("instanceVars", json!({ "n": 2, "branch": "main" }));
    (object, |part| format!("{PATH}{part}{INSTANCE}"))
}

#[test]
fn instanced_pipeline_sends_vars_with_every_request() {
    let (mut object, at) = instanced();
    object["spec"]["config"]["inline"] =
        format!("{INLINE}display: {{number: ((n)), text: ((branch))-((n))}}").into();
    let host = cluster();
    let gone = || Ok(response(404, &[], Value::Null));
    let there = |value| Ok(response(200, &[("x-concourse-config-version", "2")], value));
    host.answers("GET", &at(""), [gone(), there(shown(false, true, false))]);
    let mut saved = live();
    saved["config"]["display"] = json!({ "number": 2, "text": "main-2" });
    host.answers("GET", &at("/config"), [gone(), there(saved)]);
    for part in ["/jobs", "/resources"] {
        host.answer("GET", &at(part), 200, json!([]));
    }
    for part in ["/config", "/expose", "/unpause"] {
        host.answer("PUT", &at(part), 201, json!({}));
    }
    object["spec"]["exposed"] = true.into();
    let outcome = host.reconcile(&Pipelines, &object).expect("is ready");
    assert_eq!(
        writes(&host),
        ["/config", "/expose", "/unpause"].map(|part| format!("PUT {}", at(part)))
    );
    let sent: Value = {
        let sent = host.sent();
        let put = sent.iter().find(|r| r.method == Method::Put).expect("saved");
        from_slice(put.body.as_deref().expect("a body")).expect("is JSON")
    };
    assert_eq!(sent["display"], json!({ "number": 2, "text": "main-2" }));
    let status = status(&outcome);
    assert_eq!(
        status["webURL"],
        format!("http://ci/teams/alpha/pipelines/demo{INSTANCE}")
    );
    assert_eq!(status["instanceVars"], json!({ "n": 2, "branch": "main" }));

    let object = after(object, &outcome);
    host.answer("GET", &at(""), 200, shown(false, true, false));
    host.answer("DELETE", &at(""), 204, Value::Null);
    host.cleanup(&Pipelines, &object).expect("is cleaned up");
    // Instance vars are part of a pipeline's identity.
    let mut moved = object.clone();
    moved["spec"]["instanceVars"]["n"] = 3.into();
    let (reason, resolution, message) = failure(&host, &moved);
    assert_eq!(
        (reason.as_str(), resolution),
        ("InvalidSpec", Resolution::Terminal)
    );
    assert!(message.contains("instanceVars"), "{message}");
    host.forget();
    host.cleanup(&Pipelines, &moved).expect("is cleaned up");
    assert_eq!(writes(&host), [format!("DELETE {}", at(""))], "what was made");
}

/// `pipeline()` whose name in Concourse was `old` at the last reconcile.
fn renamed() -> Value {
    let mut object = with("pipelineName", "demo");
    object["status"] = json!({ "pipelineID": 3, "resolvedName": "old" });
    object
}

const OLD: &str = "/api/v1/teams/alpha/pipelines/old";

fn with_id(id: u64) -> Value {
    let mut pipeline = shown(false, false, false);
    pipeline["id"] = id.into();
    pipeline
}

#[test]
fn new_name_renames_owned_pipeline() {
    let host = converged();
    let rename = format!("PUT {OLD}/rename");
    host.answers(
        "GET",
        PATH,
        [
            Ok(response(404, &[], Value::Null)),
            Ok(response(200, &[], with_id(3))),
        ],
    );
    host.answer("GET", OLD, 200, with_id(3));
    host.answer("PUT", &format!("{OLD}/rename"), 200, json!({}));
    let outcome = host.reconcile(&Pipelines, &renamed()).expect("is ready");
    assert_eq!(writes(&host), [rename.as_str()]);
    assert_eq!(status(&outcome)["resolvedName"], "demo");
    assert_eq!(status(&outcome)["pipelineID"], 3);

    // It was renamed before a crash, or it is gone and another one of the name is adopted.
    for (here, there) in [(3, None), (4, None), (4, Some(5))] {
        let host = converged();
        host.answer("GET", PATH, 200, with_id(here));
        match there {
            None => host.answer("GET", OLD, 404, Value::Null),
            Some(id) => host.answer("GET", OLD, 200, with_id(id)),
        };
        host.reconcile(&Pipelines, &renamed()).expect("is ready");
        assert!(writes(&host).is_empty(), "{here} {there:?}");
    }

    let host = converged();
    host.answer("GET", PATH, 200, with_id(4));
    host.answer("GET", OLD, 200, with_id(3));
    let (reason, resolution, message) = failure(&host, &renamed());
    assert_eq!((reason.as_str(), resolution), ("RenameFailed", Resolution::Retry));
    assert!(message.contains("another pipeline demo"), "{message}");
}

#[test]
fn rename_waits_for_other_instances_of_pipeline() {
    let host = converged();
    host.answers(
        "GET",
        PATH,
        [
            Ok(response(404, &[], Value::Null)),
            Ok(response(404, &[], Value::Null)),
            Ok(response(200, &[], with_id(3))),
        ],
    );
    host.answer("GET", OLD, 200, with_id(3));
    host.answer("PUT", &format!("{OLD}/rename"), 200, json!({}));
    let mut other = renamed();
    other["apiVersion"] = "concourse-ci.org/v1alpha1".into();
    other["kind"] = "Pipeline".into();
    other["metadata"]["name"] = "other".into();
    other["metadata"]["uid"] = "u2".into();
    other["spec"]["pipelineName"] = "old".into();
    host.put(other.clone());
    let (reason, resolution, message) = failure(&host, &renamed());
    assert_eq!((reason.as_str(), resolution), ("RenameFailed", Resolution::Wait));
    assert!(message.contains("other"), "{message}");
    assert!(writes(&host).is_empty());
    other["spec"]["pipelineName"] = "demo".into();
    host.put(other);
    host.reconcile(&Pipelines, &renamed()).expect("is ready");
    assert_eq!(writes(&host).len(), 1);
}

#[test]
fn cleanup_deletes_pipeline_under_current_name() {
    let cases = [
        (None, Some(3), Some(PATH)),
        (Some(3), Some(4), Some(OLD)),
        (Some(3), None, Some(OLD)),
        // Destroyed and made anew by another user.
        (Some(9), Some(4), None),
        (None, None, None),
    ];
    for (old_id, new_id, deleted) in cases {
        let host = cluster();
        for (path, id) in [(OLD, old_id), (PATH, new_id)] {
            match id {
                Some(id) => host.answer("GET", path, 200, with_id(id)),
                None => host.answer("GET", path, 404, Value::Null),
            };
            host.answer("DELETE", path, 204, Value::Null);
        }
        host.cleanup(&Pipelines, &renamed()).expect("is cleaned up");
        let expected: Vec<_> = deleted.iter().map(|path| format!("DELETE {path}")).collect();
        assert_eq!(writes(&host), expected, "{old_id:?} {new_id:?}");
    }
    let host = cluster();
    host.answer("GET", OLD, 502, "oops");
    let failure = host.cleanup(&Pipelines, &renamed()).expect_err("it is refused");
    assert_eq!(
        (failure.reason.as_str(), failure.resolution),
        ("DeleteFailed", Resolution::Retry)
    );
}

#[test]
fn k8s_configs_are_injected_as_resources() {
    let inline = "resources:\n- {name: own, type: git}\n- {name: theirs, type: git}\njobs:\n- name: j\n  plan:\n\
                  \x20 - in_parallel: [{get: app}, {get: c, resource: app, passed: [x]}, {get: app, trigger: false}]\n\
                  \x20 - {get: keys}\n  - task: t\n    config: {params: {get: app}}\n  on_failure: {do: [{get: app}]}\n";
    let mut object = with("config", json!({ "inline": inline }));
    object["spec"]["k8sConfigs"] = json!([
        { "name": "app", "configMapRef": { "name": "settings" }, "trigger": true },
        { "name": "keys", "secretRef": { "name": "tls", "namespace": "certs" } },
        { "name": "theirs", "configMapRef": { "name": "not-used" } },
    ]);
    let host = converged();
    host.put(json!({
        "apiVersion": "concourse-ci.org/v1alpha1", "kind": "Instance",
        "metadata": { "name": "ci", "namespace": "infra" }, "spec": { "url": "http://ci", "auth": {} },
    }));
    host.answer("PUT", CONFIG, 200, json!({}));
    let saved = |object: &Value| -> Value {
        host.forget();
        host.reconcile(&Pipelines, object).expect("is ready");
        let sent = host.sent();
        let put = sent.iter().find(|r| r.method == Method::Put).expect("saved");
        from_slice(put.body.as_deref().expect("a body")).expect("is JSON")
    };
    let config = saved(&object);
    let image = "ghcr.io/jakobmoellerdev/concourse-k8s-config-resource";
    assert_eq!(
        config["resource_types"],
        json!([{ "name": "k8s-config", "type": "registry-image", "source": { "repository": image, "tag": "latest" } }])
    );
    let source = |kind: &str, name: &str, namespace: &str| json!({ "kind": kind, "name": name, "namespace": namespace });
    assert_eq!(
        config["resources"],
        json!([
            { "name": "app", "type": "k8s-config", "source": source("ConfigMap", "settings", "apps") },
            { "name": "keys", "type": "k8s-config", "source": source("Secret", "tls", "certs") },
            { "name": "own", "type": "git" },
            { "name": "theirs", "type": "git" },
        ])
    );
    let job = &config["jobs"][0];
    assert_eq!(
        job["plan"],
        json!([
            { "in_parallel": [
                { "get": "app", "trigger": true },
                { "get": "c", "resource": "app", "passed": ["x"], "trigger": true },
                { "get": "app", "trigger": false },
            ]},
            { "get": "keys" },
            { "task": "t", "config": { "params": { "get": "app" } } },
        ])
    );
    assert_eq!(job["on_failure"]["do"][0]["trigger"], true);

    // The image of the Pipeline takes precedence over the image of the Instance.
    host.put(json!({
        "apiVersion": "concourse-ci.org/v1alpha1", "kind": "Instance",
        "metadata": { "name": "ci", "namespace": "infra" },
        "spec": { "url": "http://ci", "auth": {}, "defaults": { "k8sConfigImage": { "repository": "r.example/k", "tag": "v1" } } },
    }));
    assert_eq!(
        saved(&object)["resource_types"][0]["source"],
        json!({ "repository": "r.example/k", "tag": "v1" })
    );
    object["spec"]["k8sConfigImage"] = json!({ "repository": "own.example/k" });
    assert_eq!(
        saved(&object)["resource_types"][0]["source"],
        json!({ "repository": "own.example/k", "tag": "latest" })
    );
    object["spec"]["config"]["inline"] = "resources: 5".into();
    assert_eq!(failure(&host, &object).1, Resolution::Terminal);
}

#[test]
fn var_is_read_from_config_map() {
    let host = converged();
    let object = with(
        "vars",
        json!([{ "name": "uri", "configMapRef": { "name": "urls", "key": "git" } }]),
    );
    assert!(failure(&host, &object).2.contains("urls"));
    host.put(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "urls", "namespace": "apps" }, "data": { "git": "https://x" },
    }));
    host.reconcile(&Pipelines, &object).expect("is ready");
    assert!(writes(&host).is_empty());
}

#[test]
fn invalid_and_failed_responses_are_retried() {
    for answer in [
        Ok(response(200, &[], "<html>")),
        Ok(response(502, &[], "<html>")),
        Ok(response(401, &[], "not authorized")),
        Err(Error::Unavailable("timed out".into())),
    ] {
        let host = converged();
        host.answers("GET", PATH, [answer]);
        let (reason, resolution, _) = failure(&host, &pipeline());
        assert_eq!(
            (reason.as_str(), resolution),
            ("SetPipelineFailed", Resolution::Retry)
        );
        assert!(writes(&host).is_empty());
    }
}

#[test]
fn cleanup_deletes_pipeline_or_reports_orphan() {
    let cluster = || {
        let host = cluster();
        host.answer("GET", PATH, 200, shown(false, false, false));
        host
    };
    for status in [204, 404] {
        let host = cluster();
        host.answer("DELETE", PATH, status, Value::Null);
        let outcome = host.cleanup(&Pipelines, &claimed()).expect("is cleaned up");
        assert_eq!(outcome.next, Next::AwaitChange);
        assert_eq!(writes(&host), [format!("DELETE {PATH}")]);
    }
    let host = cluster();
    host.answer("DELETE", PATH, 500, "oops");
    let failure = host.cleanup(&Pipelines, &claimed()).expect_err("is retried");
    assert_eq!(failure.resolution, Resolution::Retry);

    host.forget();
    let mut orphaned = claimed();
    orphaned["spec"]["reclaimPolicy"] = "Orphan".into();
    host.cleanup(&Pipelines, &orphaned).expect("is cleaned up");
    assert!(host.requests().is_empty());
    host.remove(&gvk("concourse-ci.org", "v1alpha1", "Team").named("apps", "alpha"));
    host.cleanup(&Pipelines, &claimed()).expect("is cleaned up");
    assert!(host.events().iter().all(|(reason, _)| reason == "Orphaned"));
    assert_eq!(host.events().len(), 2);
}

#[test]
fn claim_is_recorded_before_first_write() {
    let host = cluster();
    host.answer("GET", PATH, 404, Value::Null);
    host.answer("GET", CONFIG, 404, Value::Null);
    host.answers("PUT", CONFIG, [Err(Error::Unavailable("timed out".into()))]);
    host.reconcile(&Pipelines, &pipeline()).expect_err("is lost");
    let claim = json!({
        "claimedServer": "http://ci", "resolvedName": "demo", "instanceVars": {}, "pipelineID": null,
    });
    assert_eq!(host.checkpoints(), std::slice::from_ref(&claim));

    // The pipeline may have been made, so it is deleted.
    let mut object = pipeline();
    object["status"] = claim;
    host.forget();
    host.answer("DELETE", PATH, 204, Value::Null);
    host.cleanup(&Pipelines, &object).expect("is cleaned up");
    assert_eq!(host.requests(), [format!("DELETE {PATH}")]);
}

#[test]
fn unclaimed_pipeline_is_deleted_without_request() {
    let host = cluster();
    // Not even the Team is needed.
    host.remove(&gvk("concourse-ci.org", "v1alpha1", "Team").named("apps", "alpha"));
    let outcome = host.cleanup(&Pipelines, &pipeline()).expect("is cleaned up");
    assert_eq!(outcome.next, Next::AwaitChange);
    assert!(host.requests().is_empty() && host.events().is_empty());
}

#[test]
fn pipeline_of_another_server_is_claimed_anew_and_not_deleted() {
    let mut object = claimed();
    object["status"]["claimedServer"] = "http://before".into();
    let host = cluster();
    host.cleanup(&Pipelines, &object).expect("is cleaned up");
    assert!(host.requests().is_empty());
    let (reason, note) = &host.events()[0];
    assert_eq!(reason, "Orphaned");
    assert!(
        note.contains("pipeline demo") && note.contains("http://before"),
        "{note}"
    );

    let host = converged();
    let outcome = host.reconcile(&Pipelines, &object).expect("is ready");
    assert!(writes(&host).is_empty());
    assert_eq!(status(&outcome)["claimedServer"], "http://ci");
    assert_eq!(host.events()[0].0, "Orphaned");
}

#[test]
fn server_of_the_upstream_counts_and_not_the_one_the_team_has_recorded() {
    // The Instance's URL was changed, and the Team is not reconciled yet.
    let host = cluster();
    host.put(upstream("http://later"));
    host.cleanup(&Pipelines, &claimed()).expect("is cleaned up");
    assert!(
        host.requests().is_empty(),
        "a pipeline there has the id by chance"
    );
    assert_eq!(host.events()[0].0, "Orphaned");

    host.answer("GET", PATH, 404, Value::Null);
    host.answer("GET", CONFIG, 404, Value::Null);
    host.answers("PUT", CONFIG, [Err(Error::Unavailable("timed out".into()))]);
    host.reconcile(&Pipelines, &claimed()).expect_err("is lost");
    assert_eq!(host.checkpoints()[0]["claimedServer"], "http://later");
}

#[test]
fn saved_version_of_another_server_does_not_prevent_save() {
    let host = converged();
    host.answer("PUT", CONFIG, 200, json!({}));
    let other = json!({ "config": { "jobs": [{ "name": "other" }] } });
    config(&host, "6", other.clone());
    let outcome = host.reconcile(&Pipelines, &pipeline()).expect("is ready");
    let mut object = after(pipeline(), &outcome);
    assert_eq!(object["status"]["configVersion"], "6");
    object["status"]["claimedServer"] = "http://before".into();
    host.forget();
    host.reconcile(&Pipelines, &object).expect("is ready");
    assert_eq!(writes(&host)[0], format!("PUT {CONFIG}"));
}

#[test]
fn response_of_a_proxy_does_not_end_a_deletion() {
    for (method, status, body) in [
        ("GET", 404, Value::Null),
        ("GET", 200, json!({ "id": 8 })),
        ("DELETE", 404, "default backend - 404".into()),
        ("DELETE", 200, "<html>".into()),
        ("DELETE", 204, Value::Null),
    ] {
        let host = cluster();
        host.answer("GET", PATH, 200, shown(false, false, false));
        host.set_response_headers(&[]).answer(method, PATH, status, body);
        let failure = host.cleanup(&Pipelines, &claimed()).expect_err("is retried");
        assert_eq!(
            (failure.reason.as_str(), failure.resolution),
            ("DeleteFailed", Resolution::Retry),
            "{method} {status}"
        );
    }
}

#[test]
fn response_of_a_proxy_neither_creates_nor_confirms_a_pipeline() {
    for (path, status) in [(PATH, 404), (PATH, 200), (CONFIG, 404)] {
        let host = converged();
        host.set_response_headers(&[])
            .answer("GET", path, status, shown(false, false, false));
        let (reason, resolution, message) = failure(&host, &pipeline());
        assert_eq!(
            (reason.as_str(), resolution),
            ("SetPipelineFailed", Resolution::Retry)
        );
        assert!(message.contains("X-Concourse-Version"), "{message}");
        assert!(writes(&host).is_empty() && host.checkpoints().is_empty());
    }
    // Of a save it is not known whether it has reached Concourse, so the claim stays.
    for status in [200, 404] {
        let host = cluster();
        host.answer("GET", PATH, 404, Value::Null);
        host.answer("GET", CONFIG, 404, Value::Null);
        host.set_response_headers(&[])
            .answer("PUT", CONFIG, status, json!({}));
        let failure = host.reconcile(&Pipelines, &pipeline()).expect_err("is retried");
        assert_eq!(failure.resolution, Resolution::Retry);
        assert_eq!((host.checkpoints().len(), failure.status), (1, None));
    }
}

#[test]
fn claim_without_pipeline_does_not_lock_instance_vars() {
    let (object, at) = instanced();
    let mut claimed = object.clone();
    claimed["status"] = json!({
        "claimedServer": "http://ci", "resolvedName": "demo", "instanceVars": { "n": 1 }, "pipelineID": null,
    });
    let claimed_path = format!("{PATH}?vars.n=1");
    let host = cluster();
    host.answer("GET", &claimed_path, 404, Value::Null);
    host.answer("GET", &at(""), 404, Value::Null);
    host.answer("GET", &at("/config"), 404, Value::Null);
    host.answers(
        "PUT",
        &at("/config"),
        [Err(Error::Unavailable("timed out".into()))],
    );
    let (reason, ..) = failure(&host, &claimed);
    assert_eq!(reason, "SetPipelineFailed");
    assert_eq!(
        host.checkpoints()[0]["instanceVars"],
        json!({ "n": 2, "branch": "main" }),
        "the pipeline is claimed anew"
    );

    // A rename that was not recorded any more: the claimed pipeline has the new name.
    let mut renamed = claimed.clone();
    renamed["status"]["resolvedName"] = "old".into();
    renamed["status"]["pipelineID"] = 3.into();
    let host = cluster();
    host.answer("GET", &format!("{OLD}?vars.n=1"), 404, Value::Null);
    host.answer("GET", &claimed_path, 200, with_id(3));
    assert_eq!(failure(&host, &renamed).0, "InvalidSpec");

    // The save whose response was lost has created it.
    let host = cluster();
    host.answer("GET", &claimed_path, 200, with_id(3));
    let (reason, resolution, message) = failure(&host, &claimed);
    assert_eq!(
        (reason.as_str(), resolution),
        ("InvalidSpec", Resolution::Terminal)
    );
    assert!(message.contains("instanceVars"), "{message}");
}

#[test]
fn name_changed_before_the_id_is_known_renames_pipeline() {
    let mut object = renamed();
    object["status"] = json!({ "claimedServer": "http://ci", "resolvedName": "old", "pipelineID": null });
    let host = converged();
    host.answers(
        "GET",
        PATH,
        [
            Ok(response(404, &[], Value::Null)),
            Ok(response(200, &[], with_id(3))),
        ],
    );
    host.answer("GET", OLD, 200, with_id(3));
    host.answer("PUT", &format!("{OLD}/rename"), 200, json!({}));
    host.reconcile(&Pipelines, &object).expect("is ready");
    assert_eq!(writes(&host), [format!("PUT {OLD}/rename")]);

    // The first save never arrived.
    let host = converged();
    host.answer("GET", OLD, 404, Value::Null);
    host.reconcile(&Pipelines, &object).expect("is ready");
    assert!(writes(&host).is_empty());
}

#[test]
fn denied_deletion_of_claimed_pipeline_stays() {
    let host = cluster();
    host.answers("GET", PATH, [Err(Error::Denied("not allowed".into()))]);
    let failure = host.cleanup(&Pipelines, &claimed()).expect_err("is denied");
    assert!(matches!(failure.resolution, Resolution::Denied(_)), "{failure:?}");
}

#[test]
fn jobs_and_resources_in_namespace_are_deleted_first() {
    let host = cluster();
    for (kind, name, namespace) in [
        ("Job", "unit", "apps"),
        ("Resource", "src", "apps"),
        ("Job", "elsewhere", "other"),
    ] {
        host.put(json!({
            "apiVersion": "concourse-ci.org/v1alpha1", "kind": kind,
            "metadata": { "name": name, "namespace": namespace, "uid": name },
            "spec": { "pipelineRef": { "name": "demo", "namespace": "apps" } },
        }));
    }
    let failure = host.cleanup(&Pipelines, &claimed()).expect_err("waits");
    assert_eq!(
        (failure.reason.as_str(), failure.resolution),
        ("DependentsRemain", Resolution::Wait)
    );
    assert_eq!(host.writes(), ["delete Job unit"]);
    host.cleanup(&Pipelines, &claimed()).expect_err("waits");
    assert_eq!(host.writes(), ["delete Job unit", "delete Resource src"]);
    assert!(host.requests().is_empty());

    host.answer("GET", PATH, 200, shown(false, false, false));
    host.answer("DELETE", PATH, 204, Value::Null);
    host.cleanup(&Pipelines, &claimed()).expect("is cleaned up");
}
