//! The client on the simulator of the API server, over a whole life of an application.

use std::{cell::RefCell, rc::Rc};

use argocd_simulator::{ArgoRequest, Rest};
use devops_argo_client::{
    ApplicationKey, ArgoServer, OperationProgress, Sync, SyncStart, find_progress, operation_start,
};
use ostler_sdk::{
    Context, Error, Lifecycle,
    mock::{MockHost, response},
    serde_json::{Value, from_slice, json},
};

const OWNER: &str = "devops.ostler.dev/argo-setting";
const WEB: ApplicationKey = ApplicationKey {
    project: "shop",
    name: "web",
};
const SYNC: Sync = Sync {
    info: ("ostler-deployment", "d-1"),
    revision: None,
    prune: true,
};

/// Calls a function with a context, as a hook is.
struct Hook<F>(RefCell<Option<F>>);

impl<F: FnOnce(&Context)> Lifecycle for Hook<F> {
    fn initialize(&self, ctx: &Context) -> Result<(), Error> {
        let call = self.0.take().expect("is called once");
        call(ctx);
        Ok(())
    }
}

/// Runs a test with a client and the server that it reaches.
fn run(test: impl FnOnce(&ArgoServer, &RefCell<Rest>)) {
    let server = Rc::new(RefCell::new(Rest::new("2026-11-22T08:30:00Z")));
    let host = MockHost::new();
    let served = server.clone();
    host.serve(move |request| {
        let body = request
            .body
            .as_deref()
            .map(|body| from_slice(body).expect("JSON"));
        let content_type = request.headers.iter().find(|h| h.name == "Content-Type");
        let reply = served.borrow_mut().answer(ArgoRequest {
            method: request.method.as_str(),
            path: &request.path_and_query,
            content_type: content_type.map(|header| &*header.value),
            body: &body.unwrap_or_default(),
        });
        Ok(response(reply.status, &[], reply.body))
    });
    let hook = Hook(RefCell::new(Some(|ctx: &Context| {
        test(&ArgoServer::new(ctx.upstream("argo")), &server);
    })));
    host.initialize(&hook).expect("is called");
}

fn settle(server: &RefCell<Rest>) {
    while server.borrow_mut().advance() {}
}

fn project(owner: &str) -> Value {
    json!({
        "metadata": { "name": "shop", "labels": { OWNER: owner } },
        "spec": {
            "sourceRepos": ["https://git.example.com/apps.git"],
            "destinations": [{ "server": "https://remote.example.com", "namespace": "shop" }],
        },
    })
}

fn application(labels: Value) -> Value {
    json!({
        "metadata": { "name": "web", "labels": labels },
        "spec": {
            "project": "shop",
            "source": { "repoURL": "https://git.example.com/apps.git", "path": "web", "targetRevision": "main" },
            "destination": { "server": "https://remote.example.com", "namespace": "shop" },
        },
    })
}

fn read(argo: &ArgoServer) -> Value {
    argo.read_application(WEB).expect("is read").expect("is there")
}

#[test]
fn application_is_synced_once_and_deleted_before_its_project() {
    run(|argo, server| {
        argo.create_project(&project("uid-1")).expect("is created");
        let repository =
            json!({ "repo": "https://git.example.com/apps.git", "project": "shop", "name": "apps-uid-1" });
        argo.write_repository(&repository, &[]).expect("is written");
        argo.create_application(&application(json!({ OWNER: "uid-1" })))
            .expect("is created");
        settle(server);
        assert_eq!(
            argo.list_applications(OWNER, "uid-1").expect("is listed").len(),
            1
        );

        let before = read(argo);
        let start_before = operation_start(&before).map(str::to_owned);
        let progress = |live: &Value| {
            let found = find_progress(live, SYNC.info, start_before.as_deref());
            format!("{found:?}")
        };
        assert_eq!(progress(&before), "Unseen");
        // Its answer is lost: it is not sent again, since the application shows it.
        argo.start_sync(WEB, &SYNC).expect("an answer");
        assert_eq!(progress(&read(argo)), "Running");
        let again = argo.start_sync(WEB, &SYNC).expect("an answer");
        assert!(matches!(again, SyncStart::Waiting(_)), "{again:?}");
        settle(server);
        let live = read(argo);
        let found = find_progress(&live, SYNC.info, start_before.as_deref());
        assert!(
            matches!(
                found,
                OperationProgress::Ended {
                    phase: "Succeeded",
                    ..
                }
            ),
            "{found:?}"
        );

        assert!(
            argo.delete_project("shop").expect("an answer").is_some(),
            "in use"
        );
        argo.delete_application(WEB).expect("is deleted");
        settle(server);
        assert_eq!(argo.read_application(WEB).expect("is read"), None);
        argo.delete_repository("shop", "https://git.example.com/apps.git")
            .expect("is deleted");
        assert_eq!(argo.delete_project("shop").expect("is deleted"), None);
        assert_eq!(argo.read_project("shop").expect("is read"), None);
    });
}

#[test]
fn claim_is_read_back_since_a_create_shows_the_labels_of_the_project() {
    run(|argo, server| {
        argo.create_project(&project("uid-1")).expect("is created");
        let foreign = application(json!({ "team": "other" }));
        argo.create_application(&foreign).expect("is created");
        settle(server);
        // The same create by another user succeeds, and is not a claim.
        argo.create_application(&foreign).expect("exists with this spec");
        assert_eq!(read(argo)["metadata"]["labels"], json!({ "team": "other" }));
        let refused = argo.create_application(&application(json!({ OWNER: "uid-1" })));
        assert_eq!(refused.expect_err("belongs to another").reason, "NotClaimed");
    });
}
