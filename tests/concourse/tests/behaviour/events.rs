//! Event streams.

use std::time::Duration;

use super::common::read_until;
use super::{pipeline, start, status, trigger};

const END: &str = "event: end\ndata\n\n";

#[tokio::test]
async fn event_stream_follows_build_and_stays_open_after_end() {
    let (simulator, client) = start().await;
    pipeline(&client).await;
    let path = format!("/api/v1/builds/{}/events", trigger(&client).await);
    let mut stream = client.ask("GET", &path).send().await.expect("an answer");
    simulator.step();
    assert!(
        !read_until(&mut stream, "\"started\"")
            .await
            .expect("a stream")
            .contains("event: end")
    );
    simulator.step();
    assert!(
        !read_until(&mut stream, "hello")
            .await
            .expect("a stream")
            .contains("event: end")
    );
    simulator.step();
    assert!(
        read_until(&mut stream, END)
            .await
            .expect("a stream")
            .contains("\"succeeded\"")
    );
    let more = tokio::time::timeout(Duration::from_millis(200), stream.chunk()).await;
    assert!(more.is_err(), "neither more nor an end of the connection");
    simulator.step();
    assert!(
        tokio::time::timeout(Duration::from_millis(50), stream.chunk())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn event_stream_resumes_after_last_event_id() {
    let (simulator, client) = start().await;
    pipeline(&client).await;
    let path = format!("/api/v1/builds/{}/events", trigger(&client).await);
    for _ in 0..3 {
        simulator.step();
    }
    let all = read_until(
        &mut client.ask("GET", &path).send().await.expect("an answer"),
        END,
    )
    .await
    .expect("a stream");
    let frames: Vec<&str> = all.split_inclusive("\n\n").collect();
    assert!(frames.len() > 5, "{all}");
    for last in 0..frames.len() - 1 {
        let request = client.ask("GET", &path).header("last-event-id", last);
        let rest = read_until(&mut request.send().await.expect("an answer"), END)
            .await
            .expect("a stream");
        assert_eq!(rest, frames[last + 1..].concat(), "after {last}");
    }
    for garbage in ["x", "-1", ""] {
        let answer = client
            .ask("GET", &path)
            .header("last-event-id", garbage)
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status().as_u16(), 400, "{garbage:?}");
    }
}

#[tokio::test]
async fn aborted_build_ends_its_streams() {
    let (simulator, client) = start().await;
    pipeline(&client).await;
    let build = trigger(&client).await;
    simulator.step();
    let mut stream = client
        .ask("GET", &format!("/api/v1/builds/{build}/events"))
        .send()
        .await
        .expect("an answer");
    for _ in 0..2 {
        assert_eq!(
            status(&client, "PUT", &format!("/api/v1/builds/{build}/abort")).await,
            204
        );
    }
    simulator.step();
    assert!(
        read_until(&mut stream, END)
            .await
            .expect("a stream")
            .contains("\"aborted\"")
    );
    assert_eq!(
        status(&client, "PUT", &format!("/api/v1/builds/{build}/abort")).await,
        204,
        "when it has ended, too"
    );
}
