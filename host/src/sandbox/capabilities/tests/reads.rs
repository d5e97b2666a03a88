//! Reads of one object: the requests that they take, and the watches that they start.

use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::kube::well_known::bookkeeping::OWNER_UID;

/// The object of the API server, for each of its answers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Live {
    Absent,
    Labelled,
    Unlabelled,
    /// It may be listed only.
    Forbidden,
}

impl Live {
    fn object(self) -> serde_json::Value {
        let labels = match self {
            Self::Labelled => json!({OWNER_UID: "u"}),
            _ => json!({}),
        };
        json!({"metadata": {"name": "b", "namespace": "a", "uid": "v", "resourceVersion": "7", "labels": labels}})
    }

    /// The code and body of a response.
    fn answer(self, request: &::http::Request<kube::client::Body>) -> (u16, serde_json::Value) {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let status = |code: u16| json!({"kind": "Status", "code": code, "message": "no"});
        match (request.method().as_str(), path) {
            (_, "/api/v1") => (
                200,
                json!({"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": true}]}),
            ),
            ("GET", "/api/v1/namespaces/a/configmaps/b") => match self {
                Self::Absent => (404, status(404)),
                Self::Forbidden => (403, status(403)),
                _ => (200, self.object()),
            },
            ("GET", _) => {
                let is_listed = match self {
                    Self::Absent => false,
                    Self::Labelled => true,
                    Self::Unlabelled | Self::Forbidden => !query.contains("labelSelector"),
                };
                let items = Vec::from_iter(is_listed.then(|| self.object()));
                (200, json!({"metadata": {"resourceVersion": "9"}, "items": items}))
            }
            _ => (200, Self::Labelled.object()),
        }
    }
}

/// Services of an API server that answers in this way, and the requests that it gets, without those of watches and discovery.
fn build_cluster(live: Live) -> (Arc<Services>, Arc<Mutex<Vec<String>>>) {
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = requests.clone();
    let service = tower::service_fn(move |request: ::http::Request<kube::client::Body>| {
        let seen = seen.clone();
        async move {
            let query = request.uri().query().unwrap_or_default();
            if query.contains("watch=true") {
                std::future::pending::<()>().await;
            }
            let path = request.uri().path();
            if path != "/api/v1" {
                let selector = query.split('&').find(|part| part.starts_with("labelSelector"));
                let selector = selector.map(|s| format!("?{s}")).unwrap_or_default();
                seen.lock().push(format!("{} {path}{selector}", request.method()));
            }
            let (code, body) = live.answer(&request);
            let mut response = ::http::Response::new(axum::body::Body::from(body.to_string()));
            *response.status_mut() = ::http::StatusCode::from_u16(code).expect("a code");
            Ok::<_, std::io::Error>(response)
        }
    });
    (build_services(kube::Client::new(service, "default")), requests)
}

async fn get(call: &mut PluginCall) -> bool {
    let options = kubernetes::GetOptions {
        live: false,
        projection: kubernetes::Projection::Full,
    };
    let read = kubernetes::Host::get(call, config_map(), options).await;
    read.expect("an answer").is_some()
}

const ONE: &str = "GET /api/v1/namespaces/a/configmaps/b";
const OWNED: &str = "GET /api/v1/namespaces/a/configmaps?labelSelector=ostler%2Edev%2Fowner%2Duid";
const ALL: &str = "GET /api/v1/configmaps";

#[tokio::test]
async fn object_that_may_be_a_child_is_looked_up_before_its_kind_is_watched() {
    let read_only: Permissions =
        serde_saphyr::from_str("kubernetes: [{kinds: [ConfigMap], verbs: [get, list, patch, delete]}]")
            .expect("parses");
    for (live, permissions, expected) in [
        (Live::Absent, all_permissions(), vec![ONE]),
        (Live::Labelled, all_permissions(), vec![ONE, OWNED]),
        (Live::Unlabelled, all_permissions(), vec![ONE, ALL]),
        (Live::Forbidden, all_permissions(), vec![ONE, ALL]),
        // What the plugin cannot create is no child.
        (Live::Labelled, read_only, vec![ALL]),
    ] {
        let (services, requests) = build_cluster(live);
        let mut call = build_call(&services, permissions.clone(), &permissions);
        assert_eq!(get(&mut call).await, live != Live::Absent, "{live:?}");
        assert_eq!(*requests.lock(), expected, "{live:?}");
        // The cache answers from now on.
        if live != Live::Absent {
            assert!(get(&mut call).await, "{live:?}");
            assert_eq!(*requests.lock(), expected, "{live:?}");
        }
    }
}

#[tokio::test]
async fn absent_object_is_watched_after_the_call_by_who_may_create_it() {
    let key = ObjectRef::new(Gvk::new("", "v1", "ConfigMap"), "a", "b");
    for creates in [false, true] {
        let (services, _) = build_cluster(Live::Absent);
        let mut call = build_call(&services, all_permissions(), &all_permissions());
        assert!(!get(&mut call).await);
        assert_eq!(services.cache.informers.scopes(), [], "until the call has ended");
        if creates {
            let options = kubernetes::ApplyOptions {
                owned: true,
                ..apply_options(None, vec![])
            };
            let applied = kubernetes::Host::apply(&mut *call, object(), options).await;
            applied.expect("it is applied");
        }
        call.watch_absent_objects();
        let expected = match creates {
            true => ReadDependency::Owned(key.clone(), Projection::Full),
            false => ReadDependency::Object(key.clone(), Projection::Full),
        };
        assert_eq!(call.effects.reads, std::slice::from_ref(&expected));
        let scopes = services.cache.informers.scopes().into_iter();
        let watched: Vec<_> = scopes.map(|(scope, _)| scope).collect();
        assert_eq!(watched, [expected.scope(&services.cache.namespaces)]);
    }
}

/// Reads of absent objects start their watches after the call only, and count while it runs.
#[tokio::test]
async fn absent_objects_count_towards_the_limit_of_watches() {
    let (services, _) = build_cluster(Live::Absent);
    let mut call = build_call(&services, all_permissions(), &all_permissions());
    let limits = PluginLimits {
        watches: 0,
        ..PluginLimits::default()
    };
    call.context.policy = Arc::new(PluginPolicy {
        plugin: call.context.policy.plugin.clone(),
        grants: call.context.policy.grants.clone(),
        config: Vec::new(),
        limits,
    });
    let options = kubernetes::GetOptions {
        live: false,
        projection: kubernetes::Projection::Full,
    };
    let read = kubernetes::Host::get(&mut *call, config_map(), options).await;
    assert!(matches!(read, Err(Error::LimitExceeded(_))), "{read:?}");
}
