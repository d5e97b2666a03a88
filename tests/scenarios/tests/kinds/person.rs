//! A person who uses Concourse beside the operator, as with its command line.

use ostler_test_harness::Lab;
use serde_json::Value;

/// Somebody who is logged in.
pub struct Person {
    http: reqwest::Client,
    pipeline: String,
    token: String,
}

impl Person {
    /// Logs in.
    pub async fn of(lab: &Lab) -> Self {
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        let concourse = &lab.concourse;
        let (url, user, password) = (concourse.url(), concourse.user(), concourse.password());
        let body = format!("grant_type=password&username={user}&scope=openid&password={password}");
        let request = http
            .post(format!("{url}/sky/issuer/token"))
            .basic_auth("fly", Some("Zmx5"))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body);
        let answer = request.send().await.expect("an answer");
        let answer: Value = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
        let token = answer["access_token"].as_str().expect("a token").to_owned();
        let team = concourse.team_name("platform");
        Self {
            http,
            pipeline: format!("{url}/api/v1/teams/{team}/pipelines/app"),
            token,
        }
    }

    /// Does something to what is in the pipeline of the tests.
    pub async fn put(&self, path: &str) {
        let request = self.http.put(self.at(path)).bearer_auth(&self.token);
        let answer = request.send().await.expect("an answer");
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
    }

    /// Looks at what is in the pipeline of the tests.
    pub async fn get(&self, path: &str) -> Value {
        let request = self.http.get(self.at(path)).bearer_auth(&self.token);
        let answer = request.send().await.expect("an answer");
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON")
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.pipeline)
    }
}
