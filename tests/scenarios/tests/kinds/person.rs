//! A second client of Concourse: a person who changes objects beside the operator, as with fly.

use ostler_test_harness::Lab;
use serde_json::Value;

/// A logged-in user of Concourse.
pub struct Person {
    http: reqwest::Client,
    pipeline: String,
    token: String,
}

impl Person {
    /// Logs in as the admin.
    pub async fn log_in(lab: &Lab) -> Self {
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        let concourse = &lab.concourse;
        let (url, token) = (concourse.url(), concourse.fetch_token().await);
        let team = concourse.team_name("platform");
        Self {
            http,
            pipeline: format!("{url}/api/v1/teams/{team}/pipelines/app"),
            token,
        }
    }

    /// Sends a PUT below the pipeline of the tests.
    pub async fn put(&self, path: &str) {
        let request = self.http.put(self.url(path)).bearer_auth(&self.token);
        let response = request.send().await.expect("a response");
        assert!(response.status().is_success(), "{path}: {}", response.status());
    }

    /// Reads JSON below the pipeline of the tests.
    pub async fn get(&self, path: &str) -> Value {
        let request = self.http.get(self.url(path)).bearer_auth(&self.token);
        let response = request.send().await.expect("a response");
        assert!(response.status().is_success(), "{path}: {}", response.status());
        serde_json::from_slice(&response.bytes().await.expect("a body")).expect("JSON")
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.pipeline)
    }
}
