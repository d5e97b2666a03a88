//! The client against what a real server answered.

use std::cell::RefCell;

use devops_argo_client::{
    ApplicationKey, ArgoServer, OperationProgress, SyncStart, find_progress, operation_start,
};
use ostler_sdk::{
    Context, Encoding, Error, Failure, Lifecycle, SecretKeyRef, Substitution,
    mock::{MockHost, response},
    serde_json::{Value, from_slice, from_str, json},
};

const TEAM: &str = "team-a";
const REPOSITORY: &str = "https://git.example.com/private/apps.git";
const INFO: (&str, &str) = ("deployment", "record-1");

fn exchange(name: &str) -> Value {
    let recording: Value = from_str(include_str!("recording.json")).expect("JSON");
    let exchanges = recording["exchanges"].as_array().expect("exchanges");
    let found = exchanges.iter().find(|exchange| exchange["name"] == name);
    found.expect(name).clone()
}

/// Calls a function with a context, as a hook is.
struct Hook<F>(RefCell<Option<F>>);

impl<F: FnOnce(&Context)> Lifecycle for Hook<F> {
    fn initialize(&self, ctx: &Context) -> Result<(), Error> {
        let call = self.0.take().expect("is called once");
        call(ctx);
        Ok(())
    }
}

/// Has the client send the request of a recorded exchange, and returns what it makes of the answer. The request may have more
/// than the recorded one: the project, without which what is missing is 403, and the fields that the client always sends.
fn play<T>(name: &str, call: impl Fn(&ArgoServer) -> T) -> T {
    let recorded = exchange(name);
    let host = MockHost::new();
    let answer = recorded["response"].clone();
    host.serve(move |_| {
        let status = answer["status"].as_u64().and_then(|s| u16::try_from(s).ok());
        Ok(response(status.expect("a status"), &[], answer["body"].clone()))
    });
    let result = RefCell::new(None);
    let hook = Hook(RefCell::new(Some(|ctx: &Context| {
        *result.borrow_mut() = Some(call(&ArgoServer::new(ctx.upstream("argo"))));
    })));
    host.initialize(&hook).expect("a result");
    let sent = host.sent();
    let [sent] = &*sent else {
        panic!("{name}: {} requests", sent.len());
    };
    let request = &recorded["request"];
    assert_eq!(sent.method.as_str(), request["method"], "{name}");
    let (path, query) = sent.path_and_query.split_once('?').unwrap_or_default();
    let path = if path.is_empty() {
        &sent.path_and_query
    } else {
        path
    };
    let (expected, parameters) = match request["path"].as_str().expect("a path").split_once('?') {
        Some((path, query)) => (path, query),
        None => (request["path"].as_str().expect("a path"), ""),
    };
    assert_eq!(path, expected, "{name}");
    for parameter in parameters.split('&').filter(|p| !p.is_empty()) {
        assert!(
            query.split('&').any(|sent| sent == parameter),
            "{name}: {parameter} in {query}"
        );
    }
    let content_type = sent.headers.iter().find(|header| header.name == "Content-Type");
    let content_type = content_type.map(|header| &*header.value);
    assert_eq!(content_type, request["content_type"].as_str(), "{name}");
    let body = sent
        .body
        .as_deref()
        .map(|body| from_slice::<Value>(body).expect("JSON"));
    assert_contains(name, &body.unwrap_or_default(), &request["body"]);
    result.into_inner().expect("a result")
}

fn assert_contains(name: &str, sent: &Value, recorded: &Value) {
    match recorded.as_object() {
        Some(fields) => fields
            .iter()
            .for_each(|(field, value)| assert_contains(name, &sent[&**field], value)),
        None if recorded.is_null() => {}
        None => assert_eq!(sent, recorded, "{name}"),
    }
}

fn key(name: &str) -> ApplicationKey<'_> {
    ApplicationKey { project: TEAM, name }
}

fn reason<T>(result: Result<T, Failure>) -> String {
    result.err().expect("a failure").reason
}

fn sent_body(name: &str) -> Value {
    exchange(name)["request"]["body"].clone()
}

#[test]
fn project_is_read_created_updated_and_deleted() {
    let read = |name: &str, project: &str| play(name, |argo| argo.read_project(project));
    let live = read("project: get", TEAM).expect("is read").expect("is there");
    assert_eq!(live["metadata"]["name"], TEAM);
    assert_eq!(read("project: missing", "nosuch").expect("is read"), None);
    assert_eq!(
        reason(read("project: missing, by one who may not", "nosuch")),
        "ArgoDenied"
    );

    let create = |name: &str| {
        let project = sent_body(name)["project"].clone();
        play(name, |argo| argo.create_project(&project))
    };
    create("project: create").expect("is created");
    assert_eq!(reason(create("project: another spec, no upsert")), "NotClaimed");

    let update = |name: &str| {
        let sent = sent_body(name)["project"].clone();
        let mut desired = sent.clone();
        desired["metadata"]["resourceVersion"] = Value::Null;
        play(name, |argo| argo.update_project(&sent, &desired))
    };
    update("project: update").expect("is updated");
    assert_eq!(
        reason(update("project: update, stale resourceVersion")),
        "ArgoConflict"
    );

    let delete = |name: &str, project: &str| play(name, |argo| argo.delete_project(project));
    assert_eq!(delete("project: delete", "team-b").expect("is deleted"), None);
    assert_eq!(delete("project: delete again", "team-b").expect("is gone"), None);
    assert_eq!(
        delete("project: delete while used", TEAM)
            .expect("waits")
            .as_deref(),
        Some("project is referenced by 6 applications")
    );
}

#[test]
fn repository_of_a_project_is_read_written_and_deleted() {
    let read = |name: &str, project: &str| play(name, |argo| argo.read_repository(project, REPOSITORY));
    let live = read("repository of a project: get", TEAM)
        .expect("is read")
        .expect("is there");
    assert_eq!(live["project"], TEAM);
    let other = read("repository of a project: get with another project", "default");
    assert_eq!(other.expect("is read"), None);
    let missing = play("repository: missing", |argo| {
        argo.read_repository(TEAM, "https://git.example.com/public/nosuch.git")
    });
    assert_eq!(missing.expect("is read"), None);
    let repository = sent_body("repository of a project");
    let secret = Substitution::key(
        "placeholder",
        SecretKeyRef::new("git", "token"),
        Encoding::JsonString,
    );
    play("repository of a project", |argo| {
        argo.write_repository(&repository, std::slice::from_ref(&secret))
    })
    .expect("is written");
    play("repository of a project: delete", |argo| {
        argo.delete_repository(TEAM, REPOSITORY)
    })
    .expect("is deleted");
}

#[test]
fn application_is_read_created_updated_and_deleted() {
    let read = |name: &str, key: ApplicationKey| play(name, |argo| argo.read_application(key));
    let live = read("application: its state", key("no-path"))
        .expect("is read")
        .expect("is there");
    assert_eq!(live["status"]["conditions"][0]["type"], "ComparisonError");
    let missing = read("application: missing, with a project", key("nosuch"));
    assert_eq!(missing.expect("is read"), None);
    let denied = ApplicationKey {
        project: "default",
        name: "nosuch",
    };
    let denied = read("application: missing, with a project, by one who may not", denied);
    assert_eq!(reason(denied), "ArgoDenied");
    let refreshed = play("application: get, normal refresh", |argo| {
        argo.refresh_application(key("config"))
    });
    assert!(refreshed.expect("is read").is_some());

    let list = |name: &str| play(name, |argo| argo.list_applications("tier", "base"));
    assert_eq!(list("applications: by label").expect("is listed").len(), 1);

    let create = |name: &str| {
        let application = sent_body(name);
        play(name, |argo| argo.create_application(&application))
    };
    create("application: create").expect("is created");
    create("application: no such path, not validated").expect("is created");
    for name in [
        "application: another spec, no upsert",
        "application: other labels, no upsert",
        "delete: create it anew while it is deleted",
    ] {
        assert_eq!(reason(create(name)), "NotClaimed", "{name}");
    }
    assert_eq!(
        reason(create("application: destination not permitted")),
        "ArgoFailed"
    );
    assert_eq!(
        reason(create("application: create without any rights")),
        "ArgoDenied"
    );

    let mut desired = sent_body("application: update, stale resourceVersion");
    desired["metadata"]["labels"] = json!({});
    let project = &desired["spec"]["project"];
    let live = json!({ "metadata": { "labels": { "only": "this" } }, "spec": { "project": project } });
    play("application: update, stale resourceVersion", |argo| {
        let mut desired = desired.clone();
        desired["metadata"]["resourceVersion"] = "1".into();
        argo.update_application(&live, &desired)
    })
    .expect("is updated, with the labels of others");

    let delete = |name: &str, application: &str, project: &str| {
        let key = ApplicationKey {
            project,
            name: application,
        };
        play(name, |argo| argo.delete_application(key))
    };
    delete("delete: cascade (the default)", "web", TEAM).expect("is deleted");
    delete("delete: again, with its project", "config", TEAM).expect("is gone");
    delete("delete: with another project", "config", "default").expect("is gone");
}

#[test]
fn empty_list_is_null() {
    // The recorded list has no selector.
    let host = MockHost::new();
    host.serve(|_| {
        Ok(response(
            200,
            &[],
            exchange("applications: none")["response"]["body"].clone(),
        ))
    });
    let hook = Hook(RefCell::new(Some(|ctx: &Context| {
        let listed = ArgoServer::new(ctx.upstream("argo")).list_applications("tier", "base");
        assert_eq!(listed.expect("is listed"), Vec::<Value>::new());
    })));
    host.initialize(&hook).expect("is called");
}

fn start(name: &str, application: &str, revision: Option<&str>) -> Result<SyncStart, Failure> {
    let sync = devops_argo_client::Sync {
        info: INFO,
        revision,
        prune: true,
    };
    play(name, |argo| argo.start_sync(key(application), &sync))
}

#[test]
fn sync_is_started_waits_or_is_refused() {
    let started = |name| start(name, "config", None).expect("an answer");
    assert_eq!(started("sync"), SyncStart::Started);
    assert_eq!(started("sync: with prune"), SyncStart::Started);
    for (name, application) in [
        ("hook: sync at once again", "hook"),
        ("hook: sync while it runs", "hook"),
        ("window: sync refused", "config"),
        ("delete: sync while it is deleted", "web"),
    ] {
        let answer = start(name, application, None).expect("an answer");
        assert!(matches!(answer, SyncStart::Waiting(_)), "{name}: {answer:?}");
    }
    for (name, revision) in [
        ("sync: bad revision", "nosuch"),
        ("sync: automatic, other revision", "v1"),
    ] {
        let answer = start(name, "config", Some(revision)).expect("an answer");
        assert!(matches!(answer, SyncStart::Refused(_)), "{name}: {answer:?}");
    }
    let missing = start("sync: missing application, with a project", "nosuch", None);
    assert_eq!(missing.expect("an answer"), SyncStart::Missing);
}

#[test]
fn operation_is_terminated_once() {
    let terminate =
        |name: &str, application: &str| play(name, |argo| argo.terminate_operation(key(application)));
    assert!(terminate("hook: terminate", "hook").expect("an answer"));
    assert!(terminate("hook: terminate again", "hook").expect("an answer"));
    assert!(!terminate("hook: terminate what is over", "hook").expect("an answer"));
    assert!(!terminate("operation: terminate when none is", "config").expect("an answer"));
}

#[test]
fn lost_answer_is_resolved_by_what_the_application_shows() {
    let state = |name: &str| exchange(name)["response"]["body"].clone();
    let before = state("sync: state after the dry run");
    let start_before = operation_start(&before);
    assert_eq!(
        find_progress(&before, INFO, start_before),
        OperationProgress::Unseen
    );
    let after = state("sync: state after it");
    let OperationProgress::Ended {
        phase,
        revision,
        finished_at,
        ..
    } = find_progress(&after, INFO, start_before)
    else {
        panic!("the operation is not recognized");
    };
    assert_eq!(
        (phase, revision),
        ("Succeeded", after["status"]["sync"]["revision"].as_str())
    );
    assert!(!finished_at.is_empty());
    let later = state("sync: state after the missing commit");
    assert_eq!(
        find_progress(&later, INFO, start_before),
        OperationProgress::Replaced
    );
    // An operation that waits for its retry has an end and runs.
    let mut retried = state("bad: waits for the retry");
    retried["status"]["operationState"]["operation"]["info"] = json!([{ "name": INFO.0, "value": INFO.1 }]);
    assert!(retried["status"]["operationState"]["finishedAt"].is_string());
    assert_eq!(find_progress(&retried, INFO, None), OperationProgress::Running);
    // One that is written and not taken, and one of another user.
    let waiting = |value: &str| json!({ "operation": { "info": [{ "name": INFO.0, "value": value }] } });
    assert_eq!(
        find_progress(&waiting(INFO.1), INFO, None),
        OperationProgress::Running
    );
    assert_eq!(
        find_progress(&waiting("other"), INFO, None),
        OperationProgress::Replaced
    );
    assert_eq!(find_progress(&json!({}), INFO, None), OperationProgress::Unseen);
}

#[test]
fn token_that_is_refused_and_a_page_of_a_proxy_are_failures() {
    let read = |status: u16, body: Value| {
        let host = MockHost::new();
        host.serve(move |_| Ok(response(status, &[], body.clone())));
        let result = RefCell::new(None);
        let hook = Hook(RefCell::new(Some(|ctx: &Context| {
            *result.borrow_mut() = Some(ArgoServer::new(ctx.upstream("argo")).read_application(key("web")));
        })));
        host.initialize(&hook).expect("is called");
        reason(result.into_inner().expect("a result"))
    };
    let refused = exchange("applications without a token")["response"]["body"].clone();
    assert_eq!(read(401, refused), "AuthenticationFailed");
    // A 404 that is not of the API does not mean that the application is gone.
    assert_eq!(read(404, json!("404 page not found")), "ArgoFailed");
}
