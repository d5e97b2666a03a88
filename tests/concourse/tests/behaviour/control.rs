//! `/_sim/…`

use serde_json::{Value, json};

use super::common::SimulatorClient;
use super::{pipeline, start, status, trigger};

/// Asks without a token; gives status and body.
async fn control(client: &SimulatorClient, method: &str, path: &str, body: Value) -> (u16, Value) {
    let request = client.with_token(None).ask(method, &format!("/_sim/{path}"));
    let request = if body.is_null() {
        request
    } else {
        request
            .header("content-type", "application/json")
            .body(body.to_string())
    };
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    (
        status,
        serde_json::from_str(&answer.text().await.expect("a body")).unwrap_or_default(),
    )
}

#[tokio::test]
async fn faults_are_added_listed_and_cleared() {
    let (simulator, client) = start().await;
    let path = "/api/v1/info";
    for (answer, expected) in [
        (json!({"status": [502, ""]}), Some(502)),
        (json!("drop"), None),
        (json!("drop_answer"), None),
    ] {
        let fault = json!({"times": 1, "method": "GET", "path": "/info$", "answer": answer});
        assert_eq!(control(&client, "POST", "faults", fault).await.0, 204);
        let answer = client.ask("GET", path).send().await;
        assert_eq!(answer.ok().map(|a| a.status().as_u16()), expected, "{expected:?}");
    }
    let all = json!({"path": "/info$", "answer": {"status": [500, ""]}});
    assert_eq!(control(&client, "POST", "faults", all).await.0, 204);
    assert_eq!(
        (
            status(&client, "GET", path).await,
            status(&client, "GET", path).await
        ),
        (500, 500)
    );
    assert_eq!(control(&client, "DELETE", "faults", Value::Null).await.0, 204);
    assert_eq!(status(&client, "GET", path).await, 200);
    for (wrong, expected) in [
        (json!({"path": "(", "answer": "drop"}), 400),
        (json!({"path": "x", "answer": "explode"}), 422),
        (json!({"path": "x", "answer": "drop", "tmies": 1}), 422),
    ] {
        assert_eq!(
            control(&client, "POST", "faults", wrong.clone()).await.0,
            expected,
            "{wrong}"
        );
    }
    assert_eq!(
        control(&client, "POST", "outage", json!({"on": true})).await.0,
        204
    );
    client.ask("GET", path).send().await.expect_err("no answer");
    assert_eq!(
        control(&client, "POST", "outage", json!({"on": false})).await.0,
        204,
        "in reach all the time"
    );
    assert_eq!(status(&client, "GET", path).await, 200);
    let (code, counters) = control(&client, "GET", "counters", Value::Null).await;
    assert_eq!(
        (code, &counters["reads"]),
        (200, &json!(simulator.counters().reads))
    );
    assert_eq!(
        control(&client, "GET", "requests", Value::Null)
            .await
            .1
            .as_array()
            .map(Vec::len),
        Some(7)
    );
    assert_eq!(control(&client, "DELETE", "counters", Value::Null).await.0, 204);
    assert_eq!(simulator.counters(), Default::default());
}

#[tokio::test]
async fn control_endpoints_step_and_change_state() {
    let (_simulator, client) = start().await;
    pipeline(&client).await;
    trigger(&client).await;
    for _ in 0..3 {
        assert_eq!(control(&client, "POST", "step", Value::Null).await.0, 204);
    }
    let version = json!({"team": "main", "pipeline": "p", "resource": "r", "version": {"ref": "x"}});
    assert_eq!(control(&client, "POST", "version", version).await.0, 204);
    let nowhere = json!({"team": "main", "pipeline": "p", "resource": "no", "version": {}});
    assert_eq!(control(&client, "POST", "version", nowhere).await.0, 404);
    for (name, state) in [("w1", "stalled"), ("w2", "running")] {
        assert_eq!(
            control(&client, "POST", "worker", json!({"name": name, "state": state}))
                .await
                .0,
            204
        );
    }
    assert_eq!(
        control(
            &client,
            "POST",
            "password",
            json!({"user": "test", "password": "new"})
        )
        .await
        .0,
        204
    );
    let (_, state) = control(&client, "GET", "state", Value::Null).await;
    assert_eq!(state["teams"][0]["pipelines"][0]["name"], "p");
    assert_eq!(
        (&state["builds"][0]["status"], &state["builds"][1]["status"]),
        (&json!("succeeded"), &json!("pending"))
    );
    assert_eq!(
        (&state["workers"][0]["state"], &state["workers"][1]["name"]),
        (&json!("stalled"), &json!("w2"))
    );
    assert!(!state.to_string().contains("new"), "no credentials");
    assert_eq!(control(&client, "DELETE", "tokens", Value::Null).await.0, 204);
    assert_eq!(status(&client, "GET", "/api/v1/user").await, 401);
}
