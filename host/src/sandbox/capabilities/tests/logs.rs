//! Reads of the logs of containers: their permission, their bounds, and the requests.

use parking_lot::Mutex;

use super::*;

/// Bytes of a line, with its end.
const LINE_BYTES: usize = 4 << 10;

/// Services of an API server that has logs of long lines, and the queries that it gets.
fn build_cluster() -> (Arc<Services>, Arc<Mutex<Vec<String>>>) {
    let queries: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = queries.clone();
    let service = tower::service_fn(move |request: ::http::Request<kube::client::Body>| {
        let seen = seen.clone();
        async move {
            let body = match request.uri().path() {
                "/api/v1" => {
                    r#"{"resources": [{"name": "pods", "kind": "Pod", "namespaced": true}]}"#.to_owned()
                }
                path => {
                    assert_eq!(path, "/api/v1/namespaces/a/pods/b/log");
                    let query = request.uri().query().unwrap_or_default().to_owned();
                    let lines = query.split('&').find_map(|part| part.strip_prefix("tailLines="));
                    let lines: usize = lines.and_then(|n| n.parse().ok()).expect("a number");
                    seen.lock().push(query);
                    format!("{}\n", "x".repeat(LINE_BYTES - 1)).repeat(lines)
                }
            };
            Ok::<_, std::io::Error>(::http::Response::new(axum::body::Body::from(body)))
        }
    });
    (build_services(kube::Client::new(service, "default")), queries)
}

async fn read(
    services: &Arc<Services>,
    pod: types::ObjectRef,
    container: Option<&str>,
    lines: u32,
) -> Result<String, Error> {
    let mut call = build_call(services, all_permissions(), &all_permissions());
    let options = kubernetes::LogOptions {
        container: container.map(Into::into),
        tail_lines: lines,
        previous: false,
    };
    kubernetes::Host::read_log(&mut *call, pod, options).await
}

#[tokio::test]
async fn fewer_lines_are_read_where_they_exceed_the_bound() {
    let (services, queries) = build_cluster();
    let log = read(&services, pod(), Some("main"), 100).await.expect("a log");
    assert_eq!(
        *queries.lock(),
        ["tailLines=100&container=main", "tailLines=12&container=main"]
    );
    assert_eq!(log.len(), 12 * LINE_BYTES);
}

#[tokio::test]
async fn invalid_request_for_a_log_is_refused_before_it_is_sent() {
    let (services, queries) = build_cluster();
    for (container, lines) in [(None, 0), (None, 1001), (Some(""), 1), (Some("a&follow=true"), 1)] {
        let refused = read(&services, pod(), container, lines).await;
        assert!(
            matches!(refused, Err(Error::Invalid(_))),
            "{container:?} {lines}: {refused:?}"
        );
    }
    let other = read(&services, config_map(), None, 1).await;
    assert!(matches!(other, Err(Error::Denied(_))), "{other:?}");
    assert_eq!(*queries.lock(), Vec::<String>::new());
}
