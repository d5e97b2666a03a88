//! A small client.

use std::time::Duration;

use concourse_simulator::ConcourseSimulator;
use reqwest::{Method, RequestBuilder};
use serde_json::Value;

/// The form of a login, without the password.
pub const LOGIN: &str =
    "grant_type=password&username=test&scope=openid+profile+email+federated%3Aid+groups&password=";

/// A client of one server, with or without a login.
#[derive(Clone)]
pub struct SimulatorClient {
    http: reqwest::Client,
    pub url: String,
    token: Option<String>,
}

impl SimulatorClient {
    pub fn new(simulator: &ConcourseSimulator) -> Self {
        // Fails when another test was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(30))
            .no_proxy()
            .build()
            .expect("a client");
        Self {
            http,
            url: simulator.url().to_owned(),
            token: None,
        }
    }

    /// Logged in as `test`.
    pub async fn logged_in(simulator: &ConcourseSimulator) -> Self {
        let mut client = Self::new(simulator);
        let body = client
            .login(&format!("{LOGIN}test"))
            .send()
            .await
            .expect("an answer")
            .text()
            .await
            .expect("a body");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        client.token = Some(body["access_token"].as_str().expect("a token").to_owned());
        client
    }

    /// The same with another token, or with none.
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self {
            token: token.map(str::to_owned),
            ..self.clone()
        }
    }

    /// A request for a token.
    pub fn login(&self, form: &str) -> RequestBuilder {
        let request = self
            .http
            .post(format!("{}/sky/issuer/token", self.url))
            .basic_auth("fly", Some("Zmx5"));
        request
            .header("content-type", "application/x-www-form-urlencoded")
            .body(form.to_owned())
    }

    /// Any other request.
    pub fn ask(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Saves a new pipeline of the team `main`.
    pub async fn save(&self, name: &str, config: &str) -> Result<u16, reqwest::Error> {
        let request = self.ask("PUT", &format!("/api/v1/teams/main/pipelines/{name}/config"));
        Ok(request
            .header("content-type", "application/x-yaml")
            .body(config.to_owned())
            .send()
            .await?
            .status()
            .as_u16())
    }

    /// Asks for what has to succeed; gives the body.
    pub async fn done(&self, method: &str, path: &str) -> String {
        let answer = self.ask(method, path).send().await.expect("an answer");
        assert!(
            answer.status().is_success(),
            "{method} {path}: {}",
            answer.status()
        );
        answer.text().await.expect("a body")
    }
}

/// Reads an event stream until this is in it, or it breaks.
pub async fn read_until(stream: &mut reqwest::Response, end: &str) -> Result<String, reqwest::Error> {
    let mut text = String::new();
    while !text.contains(end) {
        match stream.chunk().await? {
            Some(chunk) => text.push_str(std::str::from_utf8(&chunk).expect("frames are written whole")),
            None => break,
        }
    }
    Ok(text)
}
