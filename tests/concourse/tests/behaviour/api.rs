//! Tokens, roles, pages, versions.

use std::time::Duration;

use concourse_simulator::SimulatorOptions;
use serde_json::{Value, json};

use super::common::{LOGIN, SimulatorClient};
use super::{CONFIG, pipeline, start, start_with, status, trigger, until};

const P: &str = "/api/v1/teams/main/pipelines/p";

async fn get(client: &SimulatorClient, path: &str) -> Value {
    serde_json::from_str(&client.done("GET", path).await).expect("JSON")
}

async fn login(client: &SimulatorClient, password: &str) -> u16 {
    client
        .login(&format!("{LOGIN}{password}"))
        .send()
        .await
        .expect("an answer")
        .status()
        .as_u16()
}

#[tokio::test]
async fn tokens_end_with_their_lifetime() {
    let lifetime = Duration::from_secs(2);
    let (_simulator, client) = start_with(SimulatorOptions {
        token_lifetime: lifetime,
        clock: None,
        ..SimulatorOptions::default()
    })
    .await;
    assert_eq!(status(&client, "GET", "/api/v1/user").await, 200);
    until("the token ended", async || {
        status(&client, "GET", "/api/v1/user").await == 401
    })
    .await;
    assert_eq!(login(&client, "test").await, 200, "there are others");
}

#[tokio::test]
async fn tokens_outlive_password_changes_and_end_on_revocation() {
    let tokens = vec![("fixed".to_owned(), "test".to_owned())];
    let (simulator, client) = start_with(SimulatorOptions {
        tokens,
        clock: None,
        ..SimulatorOptions::default()
    })
    .await;
    simulator.set_password("test", "new");
    assert_eq!(
        status(&client, "GET", "/api/v1/user").await,
        200,
        "a new password ends no token"
    );
    assert_eq!(
        (login(&client, "test").await, login(&client, "new").await),
        (401, 200)
    );
    simulator.expire_tokens();
    assert_eq!(status(&client, "GET", "/api/v1/user").await, 401);
    let fixed = client.with_token(Some("fixed"));
    assert_eq!(status(&fixed, "GET", "/api/v1/user").await, 200);
}

#[tokio::test]
async fn invalid_logins_are_refused() {
    let (simulator, client) = start().await;
    let answer = |request: reqwest::RequestBuilder| async {
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        let body: Value = serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON");
        (status, body["error"].as_str().expect("an error").to_owned())
    };
    let other_grant = client.login("grant_type=refresh_token");
    assert_eq!(
        answer(other_grant).await,
        (400, "unsupported_grant_type".to_owned())
    );
    let anonymous = SimulatorClient::new(&simulator);
    let without_client = anonymous
        .ask("POST", "/sky/issuer/token")
        .body(format!("{LOGIN}test"));
    assert_eq!(answer(without_client).await, (401, "invalid_client".to_owned()));
    let in_the_form = anonymous
        .ask("POST", "/sky/issuer/token")
        .body(format!("client_id=fly&client_secret=Zmx5&{LOGIN}no"));
    assert_eq!(answer(in_the_form).await, (401, "access_denied".to_owned()));
}

#[tokio::test]
async fn token_without_identity_scope_has_no_role() {
    let (_simulator, client) = start().await;
    let login = async |scope: &str| {
        let form = format!("grant_type=password&username=test&password=test&scope={scope}");
        let answer = client.login(&form).send().await.expect("a response");
        let status = answer.status().as_u16();
        let body: Value = serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON");
        (status, body)
    };
    for (scope, description) in [
        ("", "Missing required scope(s) [\"openid\"]."),
        ("openid+teams", "Unrecognized scope(s) [\"teams\"]"),
    ] {
        let (code, body) = login(scope).await;
        assert_eq!((code, &body["error"]), (400, &json!("invalid_request")));
        assert_eq!(body["error_description"], description);
    }
    for (scope, expected) in [("openid", 403), ("openid+federated%3Aid", 200)] {
        let (code, body) = login(scope).await;
        assert_eq!(code, 200, "{body}");
        let client = client.with_token(body["access_token"].as_str());
        assert_eq!(status(&client, "GET", "/api/v1/user").await, 200, "{scope}");
        assert_eq!(
            status(&client, "GET", "/api/v1/teams/main").await,
            expected,
            "{scope}"
        );
    }
}

/// Clients of a viewer of `main`, of a user without a role, and without a login.
async fn others(admin: &SimulatorClient) -> [SimulatorClient; 3] {
    let auth = json!({"auth": {"owner": {"users": ["local:test"]}, "viewer": {"users": ["local:ann"]}}});
    let answer = admin
        .ask("PUT", "/api/v1/teams/main")
        .body(auth.to_string())
        .send()
        .await
        .expect("an answer");
    assert_eq!(answer.status().as_u16(), 200);
    [Some("ann"), Some("bob"), None].map(|user| admin.with_token(user))
}

#[tokio::test]
async fn roles_limit_access() {
    let tokens = ["ann", "bob"]
        .map(|user| (user.to_owned(), user.to_owned()))
        .to_vec();
    let (_simulator, admin) = start_with(SimulatorOptions {
        tokens,
        clock: None,
        ..SimulatorOptions::default()
    })
    .await;
    pipeline(&admin).await;
    let build = trigger(&admin).await;
    let [viewer, other_user, anonymous] = others(&admin).await;
    let shown = format!("/api/v1/builds/{build}");
    for (method, path, expected) in [
        ("GET", P, [200, 403, 401]),
        ("GET", &shown, [200, 403, 401]),
        ("GET", &format!("{P}/config"), [200, 403, 401]),
        ("PUT", &format!("{P}/pause"), [403, 403, 401]),
        ("PUT", &format!("{P}/expose"), [403, 403, 401]),
        ("DELETE", P, [403, 403, 401]),
        ("POST", &format!("{P}/jobs/j/builds"), [403, 403, 401]),
        ("PUT", &format!("{shown}/abort"), [403, 403, 401]),
        ("DELETE", "/api/v1/teams/main", [403, 403, 401]),
        ("PUT", "/api/v1/wall", [403, 403, 401]),
        ("PUT", "/api/v1/workers/w1/prune", [403, 403, 401]),
        ("POST", "/api/v1/workers", [403, 403, 401]),
        ("GET", "/api/v1/info", [200, 200, 200]),
        ("GET", "/api/v1/user", [200, 200, 401]),
    ] {
        for (client, expected) in [&viewer, &other_user, &anonymous].into_iter().zip(expected) {
            assert_eq!(status(client, method, path).await, expected, "{method} {path}");
        }
    }
    admin.done("PUT", &format!("{P}/expose")).await;
    for path in [P, &format!("{P}/jobs/j"), &shown] {
        assert_eq!(status(&anonymous, "GET", path).await, 200, "exposed: {path}");
    }
    assert_eq!(
        get(&anonymous, "/api/v1/pipelines")
            .await
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    assert_eq!(status(&anonymous, "PUT", &format!("{P}/pause")).await, 401);
    assert_eq!(get(&other_user, "/api/v1/teams").await, json!([]));
}

/// The path of the page this answer links to.
fn link(answer: &reqwest::Response, client: &SimulatorClient, rel: &str) -> Option<String> {
    let links = answer
        .headers()
        .get_all("link")
        .iter()
        .map(|l| l.to_str().expect("ASCII"));
    let end = format!(">; rel=\"{rel}\"");
    let mut found = links.filter_map(|l| l.strip_prefix('<')?.strip_suffix(&end)?.strip_prefix(&client.url));
    found.next().map(str::to_owned)
}

/// Follows links of one kind; gives the ids on each page.
async fn walk(client: &SimulatorClient, from: &str, rel: &str) -> (Vec<Vec<u64>>, String) {
    let (mut pages, mut path) = (Vec::new(), from.to_owned());
    loop {
        let answer = client.ask("GET", &path).send().await.expect("an answer");
        let next = link(&answer, client, rel);
        let items: Vec<Value> = serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON");
        pages.push(items.iter().map(|i| i["id"].as_u64().expect("an id")).collect());
        match next {
            Some(next) => path = next,
            None => return (pages, path),
        }
    }
}

#[tokio::test]
async fn builds_are_paged() {
    let (_simulator, client) = start().await;
    pipeline(&client).await;
    for _ in 0..5 {
        trigger(&client).await;
    }
    for list in [
        &format!("{P}/jobs/j/builds"),
        &format!("{P}/builds"),
        "/api/v1/builds",
        "/api/v1/teams/main/builds",
    ] {
        let (older, last) = walk(&client, &format!("{list}?limit=2"), "next").await;
        assert_eq!(older, [vec![5, 4], vec![3, 2], vec![1]], "{list}");
        let (newer, _) = walk(&client, &last, "previous").await;
        assert_eq!(newer, [vec![1], vec![3, 2], vec![5, 4]], "{list}");
        assert_eq!(walk(&client, list, "next").await.0, [[5, 4, 3, 2, 1]], "{list}");
        assert_eq!(
            walk(&client, &format!("{list}?from=2&limit=2"), "previous")
                .await
                .0[0],
            [3, 2],
            "{list}"
        );
    }
}

#[tokio::test]
async fn builds_of_an_instanced_pipeline_are_paged() {
    let (_simulator, client) = start().await;
    let (at, vars) = ("/api/v1/teams/main/pipelines/i", "vars.branch=%22a%20b%22");
    let save = client
        .ask("PUT", &format!("{at}/config?{vars}"))
        .header("content-type", "application/x-yaml");
    assert_eq!(
        save.body(CONFIG)
            .send()
            .await
            .expect("an answer")
            .status()
            .as_u16(),
        201
    );
    for _ in 0..3 {
        client.done("POST", &format!("{at}/jobs/j/builds?{vars}")).await;
    }
    let (pages, _) = walk(&client, &format!("{at}/jobs/j/builds?limit=2&{vars}"), "next").await;
    assert_eq!(pages, [vec![3, 2], vec![1]], "links lead to the same instance");
}

#[tokio::test]
async fn versions_are_pinned_and_disabled() {
    let (simulator, client) = start().await;
    pipeline(&client).await;
    for n in ["1", "2", "3"] {
        let version = json!({"ref": n}).as_object().expect("a map").clone();
        assert!(simulator.add_version("main", "p", "r", version));
    }
    let r = format!("{P}/resources/r");
    let (pages, _) = walk(&client, &format!("{r}/versions?limit=2"), "next").await;
    assert_eq!(pages, [vec![3, 2], vec![1]]);
    let (filtered, _) = walk(&client, &format!("{r}/versions?filter=ref:2"), "next").await;
    assert_eq!(filtered, [[2]]);
    client.done("PUT", &format!("{r}/versions/1/pin")).await;
    let comment = client
        .ask("PUT", &format!("{r}/pin_comment"))
        .body(r#"{"pin_comment": "why"}"#);
    assert_eq!(comment.send().await.expect("an answer").status().as_u16(), 200);
    let shown = get(&client, &r).await;
    assert_eq!(
        (&shown["pinned_version"], &shown["pin_comment"]),
        (&json!({"ref": "1"}), &json!("why"))
    );
    let inputs = format!("{P}/jobs/k/inputs");
    assert_eq!(get(&client, &inputs).await[0]["version"], json!({"ref": "1"}));
    client.done("PUT", &format!("{r}/unpin")).await;
    client.done("PUT", &format!("{r}/versions/3/disable")).await;
    assert_eq!(get(&client, &inputs).await[0]["version"], json!({"ref": "2"}));
    assert_eq!(get(&client, &format!("{r}/versions")).await[0]["enabled"], false);
    client.done("PUT", &format!("{r}/versions/3/enable")).await;
    simulator.step();
    let build = get(&client, "/api/v1/builds?limit=1").await[0]["id"]
        .as_u64()
        .expect("an id");
    let resources = get(&client, &format!("/api/v1/builds/{build}/resources")).await;
    assert_eq!(
        resources["inputs"][0]["version"],
        json!({"ref": "3"}),
        "the newest version triggered the job"
    );
}

#[tokio::test]
async fn check_is_visible_after_it_ended() {
    let (simulator, client) = start().await;
    pipeline(&client).await;
    let r = format!("{P}/resources/r");
    let check = client
        .ask("POST", &format!("{r}/check"))
        .body(r#"{"from": null}"#)
        .send()
        .await
        .expect("an answer");
    assert_eq!(check.status().as_u16(), 201);
    assert!(get(&client, &r).await["last_checked"].is_null());
    simulator.step();
    let shown = get(&client, &r).await;
    assert!(shown["last_checked"].is_u64());
    assert_eq!(
        (&shown["build"]["name"], &shown["build"]["status"]),
        (&json!("check"), &json!("succeeded"))
    );
    assert_eq!(
        get(&client, "/api/v1/builds").await,
        json!([]),
        "checks are not listed"
    );
}

#[tokio::test]
async fn failed_check_reports_the_mock_error() {
    let (simulator, client) = start().await;
    let config = "resources: [{name: r, type: mock, source: {check_failure: no such host}}]\njobs: [{name: j, plan: [{get: r}]}]\n";
    let saved = client
        .ask("PUT", &format!("{P}/config"))
        .header("content-type", "application/x-yaml")
        .body(config);
    assert_eq!(saved.send().await.expect("an answer").status().as_u16(), 201);
    let r = format!("{P}/resources/r");
    let check = client
        .ask("POST", &format!("{r}/check"))
        .body(r#"{"from": null}"#);
    let check = check
        .send()
        .await
        .expect("an answer")
        .text()
        .await
        .expect("a body");
    let check: Value = serde_json::from_str(&check).expect("JSON");
    simulator.step();
    let build = get(&client, &format!("/api/v1/builds/{}", check["id"])).await;
    assert_eq!(build["status"], "failed");
    assert_eq!(get(&client, &r).await["build"]["id"], check["id"]);
}

#[tokio::test]
async fn worker_of_a_team_leaves_by_its_team() {
    let (simulator, client) = start().await;
    simulator.set_worker_team("w2", "main");
    let land = async |team: &str| {
        let asked = client.ask("PUT", "/api/v1/workers/w2/land");
        let answer = asked.body(json!({"team": team}).to_string()).send().await;
        answer.expect("an answer").status().as_u16()
    };
    assert_eq!((land("").await, land("main").await), (400, 200));
    simulator.remove_worker("w2");
    assert_eq!(land("main").await, 404);
}
