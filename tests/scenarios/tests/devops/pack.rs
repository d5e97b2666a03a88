//! The whole pack with all its servers, behind a gate.

use std::sync::Arc;

use argocd_simulator::{ApplicationWorld, RepositorySource};
use devops_simulators::{
    git::{GIT_PASSWORD, GIT_USER},
    jenkins::{JENKINS_TOKEN, JENKINS_USER},
};
use kube::api::{Patch, PatchParams};
use ostler::testing::key::Gvk;
use ostler_test_harness::{
    Lab,
    rabbitmq::{RabbitMq, RabbitMqClient},
    registry::{REGISTRY_PASSWORD, REGISTRY_USER, RegistryProcess},
};
use serde_json::{Value, json};

use super::{
    argo_cd::{ArgoCd, MANIFEST},
    cluster::{ClusterControllers, INGRESS_ADDRESS},
    events::{prepare_broker, publish},
    failures::APPLICATION,
    gate::Gate,
    jenkins::Servers,
    kind, prepare, secret,
};

const COMPONENTS: [&str; 8] = [
    "devops/devops-argo",
    "devops/devops-deployment",
    "devops/devops-events",
    "devops/devops-git",
    "devops/devops-ingress",
    "devops/devops-jenkins",
    "devops/devops-project",
    "devops/devops-registry",
];
const DNS_COMPONENTS: [&str; 3] = ["dns/dns-provider", "dns/dns-record", "dns/dns-powerdns"];

/// Zone of the deployments.
pub const ZONE: &str = "example.test";
/// Host of the deployments.
pub const HOST: &str = "app.example.test";
/// Pipeline of the deployments.
pub const PIPELINE: &str = "shop/alpha/build";

/// What the application of the deployments deploys beside its ConfigMap.
pub enum Manifests {
    /// One that the API server refuses.
    Refused,
    /// One that does not become healthy: a Pod where no kubelet runs.
    Unhealthy,
}

/// Name of the Pod that does not become healthy.
const UNHEALTHY_POD: &str = "worker";

/// A lab with a broker, a Jenkins, a git server, a registry, and the other controllers of a cluster.
pub struct PackLab {
    pub lab: Lab,
    /// Stands between the host and the API server, Jenkins and the broker.
    pub gate: Arc<Gate>,
    pub client: RabbitMqClient,
    pub servers: Servers,
    pub argo_cd: ArgoCd,
    registry: RegistryProcess,
    pub cluster: ClusterControllers,
    _rabbitmq: RabbitMq,
}

pub fn application() -> Gvk {
    Gvk::new("argoproj.io", "v1alpha1", "Application")
}

pub fn app_project() -> Gvk {
    Gvk::new("argoproj.io", "v1alpha1", "AppProject")
}

fn unhealthy_pod() -> String {
    let container = json!({ "name": "worker", "image": "registry.example.com/worker" });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": UNHEALTHY_POD },
        "spec": { "restartPolicy": "Never", "containers": [container] } })
    .to_string()
}

impl PackLab {
    /// Starts the servers and a host. Without the DNS pack, DnsRecords become Ready by themselves.
    pub async fn start(mut lab: Lab, has_dns_pack: bool) -> Self {
        let rabbitmq = RabbitMq::shared().await;
        let gate = Arc::new(Gate::default());
        let broker = gate.front_broker(rabbitmq.address()).await;
        let url = rabbitmq.url_at(broker);
        let client = prepare_broker(&mut lab, &rabbitmq, &url).await;
        let (servers, registry) = (Servers::start().await, RegistryProcess::start_private());
        servers.jenkins.observe(gate.clone());
        servers.jenkins.run_builds("SUCCESS");
        let argo_cd = ArgoCd::start(&lab).await;
        let mut components = COMPONENTS.to_vec();
        if has_dns_pack {
            components.extend(DNS_COMPONENTS);
        }
        prepare(&mut lab, &components).await;
        let config = lab.settings.plugins.join("devops-deployment.yaml");
        std::fs::write(config, "settle: 1s\n").expect("written");
        let pack = Self {
            argo_cd,
            cluster: ClusterControllers::start(&lab, !has_dns_pack).await,
            gate,
            client,
            servers,
            registry,
            _rabbitmq: rabbitmq,
            lab,
        };
        for (name, value) in [
            ("git", GIT_PASSWORD),
            ("jenkins", JENKINS_TOKEN),
            ("registry", REGISTRY_PASSWORD),
        ] {
            pack.lab.apply(secret(&pack.lab, name, value)).await;
        }
        pack
    }

    /// Starts a host, behind the gate. One that ran before has ended as in a crash.
    pub async fn start_host(&mut self) {
        self.lab.host = None;
        self.gate.open();
        let client = self.gate.client(self.lab.host_client());
        self.lab.start_host_with(client).await;
    }

    /// Publishes the event of the project `shop`, and waits until it is Ready.
    pub async fn set_up_project(&self) -> Value {
        self.set_up_project_with(&json!({})).await
    }

    /// Publishes the event of the project `shop` with other fields of its connections, and waits until it is Ready.
    pub async fn set_up_project_with(&self, connections: &Value) -> Value {
        let mut spec = self.project_spec();
        for (name, fields) in connections.as_object().into_iter().flatten() {
            for (field, value) in fields.as_object().into_iter().flatten() {
                spec[name][field] = value.clone();
            }
        }
        self.publish_project_spec("shop", &spec).await;
        let project = self.lab.wait_ready(&kind("DevOpsProject"), "shop").await;
        self.lab.wait_idle().await;
        project
    }

    /// Publishes the event of a project.
    pub async fn publish_project(&self, name: &str) {
        self.publish_project_spec(name, &self.project_spec()).await;
    }

    async fn publish_project_spec(&self, name: &str, spec: &Value) {
        let event = json!({ "id": name, "project": name, "spec": spec });
        publish(&self.client, "DevOpsInitialize", &event).await;
    }

    fn project_spec(&self) -> Value {
        let key = |name: &str| json!({ "name": name, "key": "value" });
        let credential = json!({ "id": "registry", "username": REGISTRY_USER, "secretRef": key("registry") });
        json!({
            "git": { "url": self.servers.git.repository_url("app"), "username": GIT_USER, "passwordRef": key("git") },
            "registry": { "url": format!("http://{}", self.registry.address()), "username": REGISTRY_USER,
                "passwordRef": key("registry"), "imagePullSecrets": [{ "name": "pull" }] },
            "argo": { "namespace": self.lab.namespace },
            "jenkins": { "url": self.servers.jenkins.url(), "username": JENKINS_USER, "tokenRef": key("jenkins"),
                "credentials": [credential] },
            "environments": [{ "name": "alpha", "destination": { "namespace": self.lab.namespace }, "path": "deploy",
                "pipeline": "build", "temporary": true }],
        })
    }

    /// Publishes the event of a deployment, with the address [`HOST`].
    pub async fn publish_deployment(&self, id: &str, ttl_seconds: u64) {
        self.publish_deployment_at(HOST, id, ttl_seconds).await;
    }

    /// Publishes the event of a deployment with an address of its own.
    pub async fn publish_deployment_at(&self, host: &str, id: &str, ttl_seconds: u64) {
        let ingress = json!({ "host": host,
            "dns": { "zone": ZONE, "providerRef": { "name": "dns" }, "target": { "addresses": [INGRESS_ADDRESS] } },
            "certificate": { "issuerRef": { "name": "letsencrypt" } },
            "backend": { "service": "web", "port": 80 } });
        let event = json!({ "id": id, "project": "shop", "environment": "alpha", "pipeline": "build",
            "ttl_seconds": ttl_seconds, "ingress": ingress });
        publish(&self.client, "DevOpsReconcile", &event).await;
    }

    /// Changes what the application of the deployments deploys.
    pub fn set_manifests(&self, manifests: &Manifests) {
        if self.argo_cd.is_real() {
            let (config, other) = match manifests {
                Manifests::Refused => (MANIFEST.replace("greeting", "no key!"), String::new()),
                Manifests::Unhealthy => (MANIFEST.to_owned(), unhealthy_pod()),
            };
            let files = [("deploy/config.yaml", &*config), ("deploy/worker.yaml", &*other)];
            self.servers.git.commit("app", "main", &files);
            return;
        }
        let world = match manifests {
            Manifests::Refused => ApplicationWorld {
                source: RepositorySource::Refused("configmaps \"web\" is invalid".into()),
                ..ApplicationWorld::default()
            },
            Manifests::Unhealthy => ApplicationWorld {
                health: "Progressing".into(),
                ..ApplicationWorld::default()
            },
        };
        self.argo_cd.set_world(APPLICATION, world);
    }

    /// Has the Pod fail that did not become healthy, as a kubelet reports it.
    pub async fn degrade(&self) {
        if !self.argo_cd.is_real() {
            let degraded = ApplicationWorld {
                health: "Degraded".into(),
                ..ApplicationWorld::default()
            };
            self.argo_cd.set_world(APPLICATION, degraded);
            return;
        }
        let pods = self.lab.api(&Gvk::new("", "v1", "Pod"), &self.lab.namespace);
        let failed = Patch::Merge(json!({ "status": { "phase": "Failed", "message": "it ended with 1" } }));
        pods.patch_status(UNHEALTHY_POD, &PatchParams::default(), &failed)
            .await
            .expect("it is deployed");
    }

    /// Number of builds of a deployment.
    pub fn count_builds(&self, id: &str) -> usize {
        let parameter = ("DEPLOYMENT_ID".to_owned(), id.to_owned());
        let builds = self.servers.jenkins.builds(PIPELINE);
        builds
            .iter()
            .filter(|build| build.parameters.contains(&parameter))
            .count()
    }

    /// Number of syncs of a deployment.
    pub fn count_syncs(&self, record: &Value) -> usize {
        let operations = self.argo_cd.operations();
        let is_own = |entry: &Value| entry["value"] == record["metadata"]["uid"];
        let is_of_record = |operation: &Value| {
            let mut info = operation["info"].as_array().into_iter().flatten();
            info.any(is_own)
        };
        operations
            .iter()
            .filter(|(_, operation)| is_of_record(operation))
            .count()
    }
}
