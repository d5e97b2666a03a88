//! The Concourse pack's kinds and manifests.

use ostler::testing::key::Gvk;
use serde_json::{Value, json};

use crate::Lab;

/// The components of the pack.
pub const COMPONENTS: [&str; 7] = [
    "concourse/concourse-build",
    "concourse/concourse-instance",
    "concourse/concourse-team",
    "concourse/concourse-pipeline",
    "concourse/concourse-job",
    "concourse/concourse-resource",
    "concourse/concourse-worker",
];

/// A kind of the pack.
pub fn kind(kind: &str) -> Gvk {
    Gvk::new("concourse-ci.org", "v1alpha1", kind)
}

/// A pipeline of several jobs and resources, with a variable.
pub const CONFIG: &str = "\
resources:
- name: source
  type: git
  source: {uri: 'https://git.example/app.git', branch: ((branch))}
- name: image
  type: registry-image
  source: {repository: example/app, password: ((registry-password))}
jobs:
- name: test
  plan:
  - {get: source, trigger: true}
  - task: unit
    config:
      platform: linux
      image_resource: {type: registry-image, source: {repository: golang}}
      inputs: [{name: source}]
      run: {path: go, args: [test, ./...]}
- name: build
  plan:
  - {get: source, passed: [test], trigger: true}
  - {put: image, params: {image: source/image.tar}}
groups:
- {name: all, jobs: [test, build]}
";

impl Lab {
    /// An object of the pack.
    pub fn pack(&self, kind: &str, name: &str, spec: Value) -> Value {
        json!({"apiVersion": "concourse-ci.org/v1alpha1", "kind": kind,
                "metadata": {"name": name, "namespace": self.namespace}, "spec": spec})
    }

    /// The Secret with Concourse's password.
    pub fn secret(&self, password: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ci-admin", "namespace": self.namespace},
                "stringData": {"password": password}})
    }

    /// An Instance for this test's simulator.
    pub fn instance(&self) -> Value {
        self.pack("Instance", "ci", json!({"url": self.concourse.url(),
                "auth": {"password": {"username": self.concourse.user(), "passwordRef": {"name": "ci-admin", "key": "password"}}}}))
    }

    /// A Team on it.
    pub fn team(&self) -> Value {
        let owner = format!("local:{}", self.concourse.user());
        self.pack(
            "Team",
            "platform",
            json!({"instanceRef": {"name": "ci"}, "teamName": self.concourse.team_name("platform"),
                    "roles": [{"role": "owner", "users": [owner]}]}),
        )
    }

    /// A Pipeline of that Team, its config in the ConfigMap [`Lab::config`].
    pub fn pipeline(&self) -> Value {
        self.pack(
            "Pipeline",
            "app",
            json!({"teamRef": {"name": "platform"},
                "config": {"configMapRef": {"name": "app-pipeline", "key": "pipeline.yml"}},
                "vars": [{"name": "branch", "value": "main"},
                    {"name": "registry-password", "valueFrom": {"name": "registry", "key": "password"}}]}),
        )
    }

    /// The ConfigMap with the pipeline's config.
    pub fn config(&self, config: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app-pipeline", "namespace": self.namespace},
                "data": {"pipeline.yml": config}})
    }

    /// The Secret of the pipeline's variable.
    pub fn registry(&self, password: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "registry", "namespace": self.namespace},
                "stringData": {"password": password}})
    }

    /// Installs the pack and starts a host.
    pub async fn start_pack(&mut self) {
        self.install(&COMPONENTS);
        self.start_host().await;
    }

    /// Applies the whole chain and waits until it is Ready.
    pub async fn chain(&self) {
        for object in [
            self.secret(self.concourse.password()),
            self.registry("registry-pass-0001"),
            self.config(CONFIG),
            self.instance(),
            self.team(),
            self.pipeline(),
        ] {
            self.apply(object).await;
        }
        self.ready(&kind("Pipeline"), "app").await;
        self.idle().await;
    }
}
