//! The simulators refuse what the providers refuse.

use dns_simulators::{DnsFault, DnsSimulator};
use reqwest::{Client, Method};
use serde_json::{Value, json};

const ZONE: &str = "example.test";
const CLOUDFLARE_ZONE: &str = "/zones/0123456789abcdef0123456789abcdef/dns_records";

async fn send(method: Method, url: &str, authorization: &str, body: Value) -> (u16, Value) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let request = Client::new()
        .request(method, url)
        .header("authorization", authorization);
    let response = request.body(body.to_string()).send().await.expect("a response");
    let status = response.status().as_u16();
    let bytes = response.bytes().await.expect("a body");
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

#[tokio::test]
async fn cloudflare_batch_is_one_transaction() {
    let server = DnsSimulator::start_cloudflare(ZONE, "token").await;
    let url = format!("{}{CLOUDFLARE_ZONE}", server.url());
    let post = |name: &str, kind: &str, content: &str| json!({"type": kind, "name": name, "content": content, "ttl": 1});
    let batch = async |posts: Value| {
        send(
            Method::POST,
            &format!("{url}/batch"),
            "Bearer token",
            json!({"posts": posts}),
        )
        .await
    };
    let (status, body) = batch(json!([
        post("a.example.test", "A", "192.0.2.1"),
        post("a.example.test", "CNAME", "b.example.test")
    ]))
    .await;
    assert_eq!((status, &body["errors"][0]["code"]), (400, &json!(81053)));
    assert!(server.records().is_empty(), "nothing of a refused batch stays");
    assert_eq!(
        batch(json!([post("a.example.test", "A", "192.0.2.1")])).await.0,
        200
    );
    let (status, body) = batch(json!([post("a.example.test", "A", "192.0.2.1")])).await;
    assert_eq!(
        (status, &body["errors"][0]["code"]),
        (400, &json!(81058)),
        "identical"
    );
    let (status, body) = send(
        Method::GET,
        &format!("{url}?name.exact=a.example.test&page=1&per_page=1"),
        "Bearer token",
        Value::Null,
    )
    .await;
    assert_eq!((status, body["result"].as_array().map(Vec::len)), (200, Some(1)));
    let (status, _) = send(Method::GET, &url, "Bearer other", Value::Null).await;
    assert_eq!(status, 403);
}

#[tokio::test]
async fn godaddy_refuses_short_ttl_and_replaces_one_name() {
    let server = DnsSimulator::start_godaddy(ZONE, "k:s").await;
    let url = format!("{}/v1/domains/{ZONE}/records/A/app", server.origin());
    let put = async |ttl: u32| {
        send(
            Method::PUT,
            &url,
            "sso-key k:s",
            json!([{"data": "192.0.2.1", "ttl": ttl}]),
        )
        .await
    };
    let (status, body) = put(599).await;
    assert_eq!((status, &body["code"]), (422, &json!("INVALID_BODY")));
    assert_eq!(put(600).await.0, 200);
    assert_eq!(put(700).await.0, 200);
    assert_eq!(server.records(), ["app A 700 192.0.2.1"]);
    assert_eq!(send(Method::GET, &url, "sso-key k:x", Value::Null).await.0, 401);
    for status in [204, 404] {
        assert_eq!(
            send(Method::DELETE, &url, "sso-key k:s", Value::Null).await.0,
            status
        );
    }
}

#[tokio::test]
async fn faults_and_limits_come_before_the_answer() {
    let server = DnsSimulator::start_godaddy(ZONE, "k:s").await;
    let url = format!("{}/v1/domains/{ZONE}/records/A/app", server.origin());
    let put = async || {
        send(
            Method::PUT,
            &url,
            "sso-key k:s",
            json!([{"data": "192.0.2.1", "ttl": 600}]),
        )
        .await
    };
    server.fail_next(1, "PUT ", DnsFault::Status(503, None, Value::Null));
    assert_eq!(put().await.0, 503);
    assert!(server.records().is_empty());
    server.fail_next(1, "PUT ", DnsFault::LoseResponse);
    assert_eq!(put().await.0, 502);
    assert_eq!(server.records().len(), 1, "it was executed");
    server.set_quota(1, 30);
    assert_eq!(put().await.0, 200);
    let (status, body) = put().await;
    assert_eq!((status, &body["retryAfterSec"]), (429, &json!(30)));
    server.clear_quota();
    assert_eq!(put().await.0, 200);
    assert_eq!(server.take_requests().len(), 5);
}
