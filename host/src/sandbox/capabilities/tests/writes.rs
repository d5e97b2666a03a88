//! Writes: the watches that they need, and refusals by the API server.

use serde_json::json;

use super::*;
use crate::{
    cache::store::VersionSource,
    kube::selector::{FieldSelector, LabelSelector},
    schedule::dependencies::List,
};

/// A watch of its own would be one of all objects of the kind.
#[tokio::test]
async fn written_object_of_a_list_that_was_read_takes_no_watch_of_its_own() {
    let answer = |request: &::http::Request<kube::client::Body>| match request.uri().path() {
        "/api/v1" => r#"{"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": true}]}"#,
        _ => {
            r#"{"metadata": {"name": "b", "namespace": "a", "uid": "v", "resourceVersion": "7", "labels": {"x": "1"}}}"#
        }
    };
    let service = tower::service_fn(move |request: ::http::Request<kube::client::Body>| {
        let body = axum::body::Body::from(answer(&request));
        async move { Ok::<_, std::io::Error>(::http::Response::new(body)) }
    });
    let client = kube::Client::new(service, "default");
    let gvk = Gvk::new("", "v1", "ConfigMap");
    let list = |label: &str| {
        ReadDependency::List(Box::new(List {
            gvk: gvk.clone(),
            cluster: "".into(),
            namespace: "a".into(),
            labels: Some(LabelSelector::parse(label).expect("a selector")),
            fields: Some(FieldSelector::parse("metadata.name=b").expect("a selector")),
            projection: Projection::Full,
        }))
    };
    let written = ObjectRef::new(gvk.clone(), "a", "b");
    for (label, is_covered) in [("x=1", true), ("x=2", false)] {
        for verb in ["create", "patch", "delete"] {
            let services = build_services(client.clone());
            let read = list(label);
            let scope = read.scope(&services.cache.namespaces);
            services.cache.store.open_collection(&scope);
            let json = br#"{"metadata":{"name":"b","namespace":"a","uid":"v","resourceVersion":"6","labels":{"x":"1"}}}"#;
            let (key, live) = KubeObject::parse(&gvk, json).expect("an object");
            services
                .cache
                .store
                .put(&key, live, Projection::Full, VersionSource::Watch);
            let mut call = build_call(&services, all_permissions(), &all_permissions());
            call.effects.reads.push(read);
            let request = async {
                match verb {
                    "create" => {
                        let labelled = br#"{"apiVersion":"v1","kind":"ConfigMap",
                            "metadata":{"name":"b","namespace":"a","labels":{"x":"1"}}}"#;
                        let options = kubernetes::CreateOptions {
                            cluster: None,
                            owned: false,
                            substitutions: vec![],
                        };
                        let created = kubernetes::Host::create(&mut *call, labelled.to_vec(), options);
                        created.await.map(drop)
                    }
                    "patch" => {
                        let patch = br#"{"data":{"k":"v"}}"#.to_vec();
                        let patched =
                            kubernetes::Host::patch(&mut *call, config_map(), patch, no_preconditions());
                        patched.await.map(drop)
                    }
                    _ => {
                        let options = kubernetes::DeleteOptions {
                            propagation: kubernetes::Propagation::Background,
                            preconditions: no_preconditions(),
                        };
                        kubernetes::Host::delete(&mut *call, config_map(), options).await
                    }
                }
            };
            // One that needs a watch of its own is not synced here.
            let _ = tokio::time::timeout(Duration::from_millis(200), request).await;
            let own = ReadDependency::Object(written.clone(), Projection::Full);
            assert_eq!(!call.effects.reads.contains(&own), is_covered, "{verb} {label}");
            let has_watch = !services.cache.informers.scopes().is_empty();
            assert_eq!(!has_watch, is_covered, "{verb} {label}");
            assert!(!is_covered || call.effects.writes.contains(&written), "{verb}");
        }
    }
}

/// A quota is no missing role: the text must not lead to RBAC.
#[tokio::test]
async fn refusal_by_admission_is_not_called_rbac() {
    let quota = r#"configmaps "b" is forbidden: exceeded quota: objects, requested: configmaps=1, used: configmaps=5, limited: configmaps=5"#;
    let rbac = r#"configmaps is forbidden: User "system:serviceaccount:a:x" cannot create resource "configmaps" in API group "" in the namespace "a""#;
    for (message, prefix) in [(quota, "admission: "), (rbac, "RBAC of the host: ")] {
        let service = tower::service_fn(move |request: ::http::Request<kube::client::Body>| async move {
            let kinds =
                json!({"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": true}]});
            let refusal = json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": message});
            let (code, body) = match request.uri().path() {
                "/api/v1" => (200, kinds),
                _ => (403, refusal),
            };
            let mut response = ::http::Response::new(axum::body::Body::from(body.to_string()));
            *response.status_mut() = ::http::StatusCode::from_u16(code).expect("a code");
            Ok::<_, std::io::Error>(response)
        });
        let services = build_services(kube::Client::new(service, "default"));
        let mut call = build_call(&services, all_permissions(), &all_permissions());
        let options = kubernetes::CreateOptions {
            cluster: None,
            owned: false,
            substitutions: vec![],
        };
        let refused = kubernetes::Host::create(&mut *call, object(), options).await;
        let Err(Error::Denied(text)) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(text, format!("{prefix}{message}"));
        assert!(call.effects.forbidden, "requeued by a timer");
    }
}
