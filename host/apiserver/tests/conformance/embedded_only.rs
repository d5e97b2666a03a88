//! Features of the embedded server only: fault injection, counters, bounded history.

use std::time::Duration;

use ostler_apiserver::{Effect, EmbeddedServer, Match, RequestFault, ServerOptions};
use reqwest::Method;
use serde_json::json;

use crate::lists::WatchEvents;
use crate::target::{ConformanceTarget, Place, embedded, embedded_with};

#[tokio::test]
async fn fault_applies_to_matching_requests() {
    let (server, target) = embedded().await;
    let place = Place::new(&target).await;
    let lists = Match {
        verb: Some("list".into()),
        resource: Some("things".into()),
        ..Match::default()
    };
    let respond = Effect::Respond {
        code: 429,
        retry_after: Some(7),
    };
    server
        .faults()
        .add(RequestFault {
            matches: lists.clone(),
            times: Some(1),
            effect: respond,
        })
        .unwrap();
    let response = target.request(Method::GET, &place.things()).send().await.unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers()["retry-after"].to_str().unwrap()
        ),
        (429, "7")
    );
    target.get(&place.things()).await.expect(200);
    server
        .faults()
        .add(RequestFault {
            matches: lists,
            times: Some(1),
            effect: Effect::Drop,
        })
        .unwrap();
    assert!(target.request(Method::GET, &place.things()).send().await.is_err());
    let creates = Match {
        method: Some("POST".into()),
        ..Match::default()
    };
    server
        .faults()
        .add(RequestFault {
            matches: creates,
            times: Some(1),
            effect: Effect::DropAnswer,
        })
        .unwrap();
    assert!(
        target
            .request(Method::POST, &place.things())
            .header("content-type", "application/json")
            .body(place.thing("a", json!({})).to_string())
            .send()
            .await
            .is_err()
    );
    target.get(&place.path("a")).await.expect(200);
    let fault = json!({"match": {"path": "/things/a$"}, "effect": {"respond": {"code": 503}}});
    target.post("/_ostler/faults", &fault).await.expect(200);
    target.get(&place.path("a")).await.expect(503);
    target.delete("/_ostler/faults", &json!(null)).await.expect(200);
    target.get(&place.path("a")).await.expect(200);
    server.shutdown().await;
}

#[tokio::test]
async fn cut_watch_breaks_and_compaction_expires_versions() {
    let (server, target) = embedded().await;
    let place = Place::new(&target).await;
    place.create(&target, "a", json!({})).await;
    let mut events = WatchEvents::open(&target, &format!("{}?watch=true", place.things())).await;
    events.change().await;
    server.faults().cut_watches();
    assert_eq!(events.next().await, None);

    let list = target
        .get(&format!("{}?limit=1", place.things()))
        .await
        .expect(200);
    place.create(&target, "b", json!({})).await;
    let page = target
        .get(&format!("{}?limit=1", place.things()))
        .await
        .expect(200);
    server.compact();
    let since = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut late = WatchEvents::open(
        &target,
        &format!("{}?watch=true&resourceVersion={since}", place.things()),
    )
    .await;
    let error = late.next().await.unwrap();
    assert_eq!(
        (
            &error["type"],
            &error["object"]["code"],
            &error["object"]["reason"]
        ),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
    let token = page["metadata"]["continue"].as_str().unwrap();
    let expired = target
        .get(&format!("{}?limit=1&continue={token}", place.things()))
        .await
        .expect(410);
    assert_eq!(expired["reason"], "Expired");
    server.shutdown().await;
}

#[tokio::test]
async fn server_started_from_another_one_has_its_objects_and_goes_on_by_itself() {
    let (origin, first) = embedded().await;
    let place = Place::new(&first).await;
    let created = place.create(&first, "a", json!({})).await;
    let server = EmbeddedServer::start_from(ServerOptions::default(), &origin)
        .await
        .unwrap();
    let second = ConformanceTarget::of(&server);
    assert_eq!(second.get(&place.path("a")).await.expect(200), created);
    let list = second.get(&place.things()).await.expect(200);
    let since = list["metadata"]["resourceVersion"].as_str().unwrap();
    let watch = format!("{}?watch=true&resourceVersion={since}", place.things());
    let mut events = WatchEvents::open(&second, &watch).await;
    place.create(&second, "b", json!({})).await;
    assert_eq!(events.change().await, ("ADDED".into(), "b".into()));
    first.get(&place.path("b")).await.expect(404);
    first.delete(&place.path("a"), &json!({})).await.expect(200);
    second.get(&place.path("a")).await.expect(200);
    server.shutdown().await;
    origin.shutdown().await;
}

#[tokio::test]
async fn history_is_bounded() {
    let (server, target) = embedded_with(ServerOptions {
        history: 3,
        ..ServerOptions::default()
    })
    .await;
    let place = Place::new(&target).await;
    let first = place.create(&target, "a", json!({})).await;
    for size in 1..6 {
        target
            .patch("merge", &place.path("a"), &json!({"spec": {"size": size}}))
            .await
            .expect(200);
    }
    let since = first["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = WatchEvents::open(
        &target,
        &format!("{}?watch=true&resourceVersion={since}", place.things()),
    )
    .await;
    assert_eq!(events.next().await.unwrap()["object"]["code"], 410);
    server.shutdown().await;
}

#[tokio::test]
async fn restart_closes_connections_and_keeps_data() {
    let (server, target) = embedded().await;
    let place = Place::new(&target).await;
    place.create(&target, "a", json!({})).await;
    let mut events = WatchEvents::open(&target, &format!("{}?watch=true", place.things())).await;
    events.change().await;
    server.faults().refuse_connections(true);
    assert_eq!(events.next().await, None);
    assert!(target.request(Method::GET, "/version").send().await.is_err());
    server.faults().refuse_connections(false);
    target.get(&place.path("a")).await.expect(200);
    server.shutdown().await;
}

#[tokio::test]
async fn requests_are_counted() {
    let (server, target) = embedded().await;
    let place = Place::new(&target).await;
    server.counters().reset();
    target.get(&place.things()).await.expect(200);
    assert_eq!(
        (server.counters().of("list", "things"), server.counters().writes()),
        (1, 0)
    );
    place.create(&target, "a", json!({})).await;
    target
        .patch(
            "merge",
            &format!("{}/status", place.path("a")),
            &json!({"status": {"x": 1}}),
        )
        .await
        .expect(200);
    assert_eq!(
        (
            server.counters().writes(),
            server.counters().of("patch", "things/status")
        ),
        (2, 1)
    );
    let recent = server.counters().recent_writes();
    assert_eq!(
        (
            recent[0].verb,
            recent[0].path.as_str(),
            recent[0].user_agent.as_str()
        ),
        ("create", place.things().as_str(), "conformance/1")
    );
    let counters = target.get("/_ostler/counters").await.expect(200);
    assert_eq!(counters["writes"], 2);
    server.shutdown().await;
}

#[tokio::test]
async fn server_with_thousands_of_objects_stops_at_once() {
    let (server, target) = embedded().await;
    let place = Place::new(&target).await;
    let creating = (0..4).map(|lane| {
        let (target, place) = (&target, &place);
        async move {
            for index in 0..500 {
                place
                    .create(
                        target,
                        &format!("t-{lane}-{index:04}"),
                        json!({"url": "http://x"}),
                    )
                    .await;
            }
        }
    });
    futures::future::join_all(creating).await;
    let list = target.get(&place.things()).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 2000);
    let stopping = tokio::time::timeout(Duration::from_secs(5), server.shutdown());
    stopping.await.expect("the server stops at once");
}
