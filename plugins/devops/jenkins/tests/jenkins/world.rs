//! A Jenkins simulator and a real git server, to which the in-memory host of the SDK sends the requests of a reconcile.

use devops_jenkins::SettingsReconciler;
use devops_simulators::{
    git::{GIT_PASSWORD, GIT_USER, GitServer},
    jenkins::{JENKINS_TOKEN, JENKINS_USER, Jenkins},
};
use ostler_sdk::bindings::ostler::plugin::http::Request;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{Encoding, Error, Failure, Outcome, SecretSource};
use tokio::runtime::Runtime;

/// Values of the Secrets, which only the server may see.
pub const SECRETS: [(&str, &str); 2] = [("git", GIT_PASSWORD), ("registry", "pass<&>word-0042")];

pub const DEFINITION: &str = "pipelines:\n- name: build\n  description: Builds <it> & 'that'\n  agent: linux\n  \
    parameters: [{name: TAG, default: latest}]\n  environment: {GREETING: \"it's ${here}\"}\n  \
    credentials: [{id: registry-login, variable: REGISTRY}]\n  stages:\n  - name: Test\n    \
    steps: [\"make 'test'\"]\n";

/// The servers, the host, and the object with its last status.
pub struct JenkinsWorld {
    pub jenkins: Jenkins,
    pub git: GitServer,
    pub host: MockHost,
    pub setting: Value,
    runtime: Runtime,
}

impl JenkinsWorld {
    pub fn new() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let (jenkins, git) =
            runtime.block_on(async { (Jenkins::start().await, GitServer::start_private().await) });
        git.create_repository("app");
        git.commit("app", "main", &[("ci/devops.yaml", DEFINITION), ("README", "x")]);
        let repository = git.repository_url("app");
        let host = MockHost::new();
        host.put(json!({
            "apiVersion": "devops.ostler.dev/v1alpha1", "kind": "GitCredentials",
            "metadata": { "name": "app", "namespace": "shop" },
            "spec": { "url": repository, "username": GIT_USER, "passwordRef": { "name": "git", "key": "k" } },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }));
        for (secret, value) in SECRETS {
            host.secret(secret, "k", &format!("digest of {}", value.len()));
        }
        let setting = json!({
            "metadata": { "name": "ci", "namespace": "shop", "uid": "u-1" },
            "spec": {
                "url": jenkins.url(),
                "username": JENKINS_USER,
                "tokenRef": { "name": "jenkins", "key": "k" },
                "project": "shop",
                "environments": ["alpha", "production"],
                "git": { "credentialsRef": { "name": "app" }, "path": "ci/devops.yaml" },
                "credentials": [{ "id": "registry-login", "username": "robot",
                    "secretRef": { "name": "registry", "key": "k" } }],
            },
        });
        let server = jenkins.url().to_owned();
        host.serve(move |request| forward(request, &server, &repository));
        Self {
            jenkins,
            git,
            host,
            setting,
            runtime,
        }
    }

    /// Reconciles, and stores the status as the host does.
    pub fn reconcile(&mut self) -> Result<Outcome, Failure> {
        let _entered = self.runtime.enter();
        let checkpoints = self.host.checkpoints().len();
        let result = self.host.reconcile(&SettingsReconciler, &self.setting);
        for fields in &self.host.checkpoints()[checkpoints..] {
            for (name, value) in fields.as_object().expect("fields") {
                self.setting["status"][name] = value.clone();
            }
        }
        if let Ok(outcome) = &result {
            self.setting["status"] = from_slice(outcome.status.as_deref().expect("a status")).expect("JSON");
        }
        result
    }

    pub fn succeed(&mut self) -> Outcome {
        self.reconcile()
            .unwrap_or_else(|failure| panic!("{}: {}", failure.reason, failure.message))
    }

    pub fn fail(&mut self, reason: &str) -> Failure {
        let failure = self.reconcile().expect_err("fails");
        assert_eq!(failure.reason, reason, "{}", failure.message);
        failure
    }

    pub fn cleanup(&self) -> Result<Outcome, Failure> {
        self.host.cleanup(&SettingsReconciler, &self.setting)
    }

    /// The requests to Jenkins that are no reads.
    pub fn jenkins_writes(&self) -> Vec<String> {
        let requests = self
            .jenkins
            .requests()
            .into_iter()
            .filter(|request| request.method != "GET");
        requests
            .map(|request| format!("{} {}", request.method, request.target))
            .collect()
    }
}

/// Sends a request with the credentials of its Upstream, and with its secrets in their places.
fn forward(
    request: &Request,
    jenkins: &str,
    repository: &str,
) -> Result<ostler_sdk::bindings::ostler::plugin::http::Response, Error> {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let (base, user, password) = match request.upstream.name.as_str() {
        "jenkins-ci" => (jenkins, JENKINS_USER, JENKINS_TOKEN),
        "git-app" => (repository, GIT_USER, GIT_PASSWORD),
        other => panic!("an unknown Upstream {other}"),
    };
    let pair = BASE64_STANDARD.encode(format!("{user}:{password}"));
    let mut sent = ureq::http::Request::builder()
        .method(request.method.as_str())
        .uri(format!("{base}{}", request.path_and_query))
        .header("authorization", format!("Basic {pair}"));
    for header in &request.headers {
        sent = sent.header(&header.name, &header.value);
    }
    let mut body = request.body.clone().unwrap_or_default();
    for substitution in &request.substitutions {
        let SecretSource::Key(key) = &substitution.source else {
            panic!("a pair")
        };
        let (_, value) = SECRETS
            .iter()
            .find(|(name, _)| *name == key.name)
            .expect("a known Secret");
        assert_eq!(substitution.encoding, Encoding::Xml);
        let value = value
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        body = String::from_utf8(body)
            .expect("text")
            .replace(&substitution.placeholder, &value)
            .into_bytes();
    }
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .build();
    let agent: ureq::Agent = agent.into();
    let unavailable = |error: ureq::Error| Error::Unavailable(error.to_string());
    let mut answer = agent
        .run(sent.body(body).expect("a request"))
        .map_err(unavailable)?;
    let headers: Vec<(String, String)> = answer
        .headers()
        .iter()
        .map(|(name, value)| {
            (
                name.to_string(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        })
        .collect();
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    let mut response = response(answer.status().as_u16(), &headers, Value::Null);
    response.body = answer.body_mut().read_to_vec().map_err(unavailable)?;
    Ok(response)
}
