//! Faults and counters.

use std::time::{Duration, Instant};

use concourse_simulator::FaultAction;

use super::common::{LOGIN, read_until};
use super::{CONFIG, pipeline, start, status, trigger, until};

#[tokio::test]
async fn fault_replaces_response_by_status() {
    let (simulator, client) = start().await;
    simulator
        .faults()
        .fail_next(2, "PUT", "/config$", FaultAction::Status(503, "busy".into()));
    let path = "/api/v1/teams/main/pipelines/p/config";
    let put = || {
        client
            .ask("PUT", path)
            .header("content-type", "application/x-yaml")
            .body(CONFIG)
            .send()
    };
    for _ in 0..2 {
        let answer = put().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 503);
        assert_eq!(
            answer.headers()["x-concourse-version"],
            concourse_simulator::CONCOURSE_VERSION
        );
        assert_eq!(answer.text().await.expect("a body"), "busy");
        assert!(simulator.pipeline("main", "p").is_none(), "it is not carried out");
    }
    assert_eq!(put().await.expect("an answer").status().as_u16(), 201);
    assert_eq!(simulator.pipeline("main", "p").expect("a pipeline").saves, 1);
}

#[tokio::test]
async fn fault_of_a_proxy_lacks_headers_of_concourse() {
    let (simulator, client) = start().await;
    simulator.faults().fail_next(
        1,
        "*",
        "/info$",
        FaultAction::Proxy(404, "default backend - 404".into()),
    );
    let ask = || client.ask("GET", "/api/v1/info").send();
    let answer = ask().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 404);
    assert!(answer.headers().get("x-concourse-version").is_none());
    let answer = ask().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 200);
    assert!(answer.headers().get("x-concourse-version").is_some());
}

#[tokio::test]
async fn fault_drops_connection_before_or_after_execution() {
    let (simulator, client) = start().await;
    simulator
        .faults()
        .fail_next(1, "*", "/config$", FaultAction::Drop);
    client.save("p", CONFIG).await.expect_err("no answer");
    assert!(simulator.pipeline("main", "p").is_none());
    simulator
        .faults()
        .fail_next(1, "*", "/config$", FaultAction::DropAnswer);
    client.save("p", CONFIG).await.expect_err("no answer");
    assert_eq!(
        simulator.pipeline("main", "p").expect("it was carried out").saves,
        1
    );
    assert_eq!(
        client.save("p", CONFIG).await.expect("an answer"),
        500,
        "as the client could not know"
    );
    let seen: Vec<_> = simulator.requests().into_iter().map(|r| r.status).collect();
    assert_eq!(seen, [None, None, Some(500)]);
}

#[tokio::test]
async fn fault_hangs_until_released() {
    let (simulator, client) = start().await;
    simulator
        .faults()
        .fail_next(usize::MAX, "PUT", "/config$", FaultAction::Hang);
    for name in ["a", "b"] {
        let request = tokio::spawn({
            let client = client.clone();
            async move { client.save(name, CONFIG).await }
        });
        let path = format!("/{name}/config");
        until("the request came", async || {
            simulator.requests().iter().any(|r| r.path.ends_with(&path))
        })
        .await;
        assert_eq!(status(&client, "GET", "/api/v1/info").await, 200, "others go on");
        assert!(simulator.pipeline("main", name).is_none() && !request.is_finished());
        if name == "a" {
            simulator.faults().release_hanging()
        } else {
            simulator.faults().clear()
        }
        assert_eq!(request.await.expect("no panic").expect("an answer"), 201);
    }
    assert_eq!(
        client.save("c", CONFIG).await.expect("an answer"),
        201,
        "all was cleared"
    );
}

#[tokio::test]
async fn fault_delays_responses() {
    let (simulator, client) = start().await;
    let wait = Duration::from_millis(80);
    simulator.faults().set_latency(wait);
    let began = Instant::now();
    assert_eq!(status(&client, "GET", "/api/v1/info").await, 200);
    assert!(began.elapsed() >= wait);
}

#[tokio::test]
async fn outage_closes_open_connections() {
    let (simulator, client) = start().await;
    pipeline(&client).await;
    let build = trigger(&client).await;
    simulator.step();
    let mut stream = client
        .ask("GET", &format!("/api/v1/builds/{build}/events"))
        .send()
        .await
        .expect("an answer");
    read_until(&mut stream, "\"started\"").await.expect("a stream");
    simulator.faults().set_outage(true);
    read_until(&mut stream, "event: end").await.expect_err("it broke");
    let before = simulator.counters();
    client.save("q", CONFIG).await.expect_err("no answer");
    client
        .ask("GET", "/api/v1/info")
        .send()
        .await
        .expect_err("no answer");
    assert_eq!(simulator.counters(), before, "an outage counts no requests");
    assert!(simulator.pipeline("main", "q").is_none());
    simulator.faults().set_outage(false);
    assert_eq!(client.save("q", CONFIG).await.expect("an answer"), 201);
}

#[tokio::test]
async fn all_connections_close_with_the_server() {
    let (simulator, client) = start().await;
    pipeline(&client).await;
    let build = trigger(&client).await;
    let mut stream = client
        .ask("GET", &format!("/api/v1/builds/{build}/events"))
        .send()
        .await
        .expect("an answer");
    simulator.stop().await;
    stream.chunk().await.expect_err("it broke");
    assert!(
        client
            .ask("GET", "/api/v1/info")
            .send()
            .await
            .expect_err("the server is closed")
            .is_connect()
    );
}

#[tokio::test]
async fn requests_are_counted_and_logged() {
    let (simulator, client) = start().await;
    pipeline(&client).await;
    simulator
        .faults()
        .fail_next(1, "GET", "/teams/main$", FaultAction::Status(500, String::new()));
    assert_eq!(status(&client, "GET", "/api/v1/teams/main").await, 500);
    assert_eq!(status(&client, "GET", "/api/v1/teams/main?secret=1").await, 200);
    assert_eq!(status(&client, "GET", "/api/v1/nothing").await, 501);
    client
        .login(&format!("{LOGIN}wrong"))
        .send()
        .await
        .expect("an answer");
    let counters = simulator.counters();
    assert_eq!((counters.reads, counters.writes, counters.logins), (3, 2, 1));
    let routes: Vec<_> = counters
        .routes
        .iter()
        .map(|(route, n)| (route.as_str(), *n))
        .collect();
    let expected = [
        ("GET (unknown)", 1),
        ("GET /api/v1/teams/{team}", 2),
        ("POST /sky/issuer/token", 1),
        ("PUT /api/v1/teams/{team}/pipelines/{pipeline}/config", 1),
        ("PUT /api/v1/teams/{team}/pipelines/{pipeline}/unpause", 1),
    ];
    assert_eq!(routes, expected);
    let log = simulator.requests();
    let seen: Vec<_> = log
        .iter()
        .map(|r| (r.method.as_str(), r.query.as_deref(), r.status))
        .collect();
    let expected = [
        ("PUT", None, Some(201)),
        ("PUT", None, Some(200)),
        ("GET", None, Some(500)),
        ("GET", Some("secret=1"), Some(200)),
        ("GET", None, Some(501)),
        ("POST", None, Some(401)),
    ];
    assert_eq!(seen, expected);
    simulator.reset_counters();
    assert_eq!(
        (simulator.counters(), simulator.requests().len()),
        (Default::default(), 0)
    );
}
