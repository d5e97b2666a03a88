//! Kinds and manifests of the Concourse pack.

use ostler::testing::key::Gvk;
use serde_json::{Value, json};

use crate::Lab;

/// Components of the pack.
pub const PACK_COMPONENTS: [&str; 7] = [
    "concourse/concourse-build",
    "concourse/concourse-instance",
    "concourse/concourse-team",
    "concourse/concourse-pipeline",
    "concourse/concourse-job",
    "concourse/concourse-resource",
    "concourse/concourse-worker",
];

/// Returns a kind of the pack.
pub fn kind(kind: &str) -> Gvk {
    Gvk::new("concourse-ci.org", "v1alpha1", kind)
}

/// A pipeline with two jobs, two resources and two variables.
pub const PIPELINE_YAML: &str = "\
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
    /// Builds an object of the pack.
    pub fn pack_object(&self, kind: &str, name: &str, spec: Value) -> Value {
        json!({"apiVersion": "concourse-ci.org/v1alpha1", "kind": kind,
                "metadata": {"name": name, "namespace": self.namespace}, "spec": spec})
    }

    /// Builds the Secret that holds Concourse's password.
    pub fn password_secret(&self, password: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ci-admin", "namespace": self.namespace},
                "stringData": {"password": password}})
    }

    /// Builds an Instance for this test's Concourse.
    pub fn instance_object(&self) -> Value {
        self.pack_object("Instance", "ci", json!({"url": self.concourse.url(),
                "auth": {"password": {"username": self.concourse.user(), "passwordRef": {"name": "ci-admin", "key": "password"}}}}))
    }

    /// Builds a Team on that Instance.
    pub fn team_object(&self) -> Value {
        let owner = format!("local:{}", self.concourse.user());
        self.pack_object(
            "Team",
            "platform",
            json!({"instanceRef": {"name": "ci"}, "teamName": self.concourse.team_name("platform"),
                    "roles": [{"role": "owner", "users": [owner]}]}),
        )
    }

    /// Builds a Pipeline of that Team. Its config is in the ConfigMap of [`Lab::pipeline_config_map`].
    pub fn pipeline_object(&self) -> Value {
        self.pack_object(
            "Pipeline",
            "app",
            json!({"teamRef": {"name": "platform"},
                "config": {"configMapRef": {"name": "app-pipeline", "key": "pipeline.yml"}},
                "vars": [{"name": "branch", "value": "main"},
                    {"name": "registry-password", "valueFrom": {"name": "registry", "key": "password"}}]}),
        )
    }

    /// Builds the ConfigMap that holds the pipeline's config.
    pub fn pipeline_config_map(&self, config: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app-pipeline", "namespace": self.namespace},
                "data": {"pipeline.yml": config}})
    }

    /// Builds the Secret that holds the pipeline's variable.
    pub fn registry_secret(&self, password: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "registry", "namespace": self.namespace},
                "stringData": {"password": password}})
    }

    /// Installs the pack and starts a host.
    pub async fn start_pack(&mut self) {
        self.install(&PACK_COMPONENTS);
        self.start_host().await;
    }

    /// Applies the whole chain and waits until it is Ready and its host has nothing to do.
    pub async fn apply_chain(&self) {
        self.apply_chain_objects().await;
        self.wait_idle().await;
    }

    /// Applies the whole chain and waits until it is Ready.
    pub async fn apply_chain_objects(&self) {
        for object in [
            self.password_secret(self.concourse.password()),
            self.registry_secret("registry-pass-0001"),
            self.pipeline_config_map(PIPELINE_YAML),
            self.instance_object(),
            self.team_object(),
            self.pipeline_object(),
        ] {
            self.apply(object).await;
        }
        self.wait_ready(&kind("Pipeline"), "app").await;
    }
}
