//! Helm applications, deployed by Argo CD or by Flux.

use serde_json::{Value, json};

use super::{Provision, Resource};
use crate::{Context, Failure, ObjectMeta};

/// Finalizer with which Argo CD deletes what an Application has deployed before the Application.
const ARGO_FINALIZER: &str = "resources-finalizer.argocd.argoproj.io";

/// A Helm chart and its values, deployed through custom resources of a deployment tool. It is ready when the tool says that
/// everything is deployed and healthy, and gone after the tool has uninstalled it.
pub struct HelmApplication<'a> {
    /// The reconciled object.
    pub owner: &'a ObjectMeta,
    /// Name of the release and of the custom resources.
    pub name: &'a str,
    /// Namespace of the custom resources. Argo CD accepts its own and those that it is configured for.
    pub namespace: &'a str,
    /// Namespace to deploy to. The tool creates it.
    pub target_namespace: &'a str,
    /// URL of the chart repository: `https://…` or `oci://…`.
    pub repository: &'a str,
    /// Name of the chart.
    pub chart: &'a str,
    /// Version of the chart.
    pub version: &'a str,
    /// Values of the chart; an empty object for its defaults.
    pub values: Value,
    /// The tool that deploys it.
    pub driver: HelmDriver<'a>,
}

/// A tool that deploys Helm charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelmDriver<'a> {
    /// Argo CD, with the `AppProject` of the Application.
    ArgoCd {
        /// Name of the `AppProject`.
        project: &'a str,
    },
    /// Flux, version 2.3 or later.
    Flux,
}

impl HelmApplication<'_> {
    /// Builds the custom resources, in the order in which they are applied.
    #[must_use]
    pub fn build(&self) -> Vec<Value> {
        match self.driver {
            HelmDriver::ArgoCd { project } => vec![self.build_argo_application(project)],
            HelmDriver::Flux => vec![self.build_flux_repository(), self.build_flux_release()],
        }
    }

    fn build_argo_application(&self, project: &str) -> Value {
        let mut helm = json!({ "releaseName": self.name });
        if self.has_values() {
            helm["valuesObject"] = self.values.clone();
        }
        json!({
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Application",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "finalizers": [ARGO_FINALIZER],
            },
            "spec": {
                "project": project,
                "source": {
                    // Argo CD expects charts of an OCI registry without the scheme.
                    "repoURL": self.repository.strip_prefix("oci://").unwrap_or(self.repository),
                    "chart": self.chart,
                    "targetRevision": self.version,
                    "helm": helm,
                },
                "destination": {
                    "server": "https://kubernetes.default.svc",
                    "namespace": self.target_namespace,
                },
                "syncPolicy": {
                    "automated": { "prune": true, "selfHeal": true },
                    "syncOptions": ["CreateNamespace=true"],
                },
            },
        })
    }

    fn build_flux_repository(&self) -> Value {
        let mut spec = json!({ "url": self.repository, "interval": "1h" });
        if self.repository.starts_with("oci://") {
            spec["type"] = "oci".into();
        }
        json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1",
            "kind": "HelmRepository",
            "metadata": { "name": self.name, "namespace": self.namespace },
            "spec": spec,
        })
    }

    fn build_flux_release(&self) -> Value {
        let mut spec = json!({
            "interval": "10m",
            "releaseName": self.name,
            "targetNamespace": self.target_namespace,
            "chart": { "spec": {
                "chart": self.chart,
                "version": self.version,
                "sourceRef": { "kind": "HelmRepository", "name": self.name },
            } },
            "install": { "createNamespace": true },
        });
        if self.has_values() {
            spec["values"] = self.values.clone();
        }
        json!({
            "apiVersion": "helm.toolkit.fluxcd.io/v2",
            "kind": "HelmRelease",
            "metadata": { "name": self.name, "namespace": self.namespace },
            "spec": spec,
        })
    }

    fn has_values(&self) -> bool {
        self.values.as_object().is_some_and(|values| !values.is_empty())
    }

    fn list_resources(&self) -> impl DoubleEndedIterator<Item = Resource<'_>> {
        self.build().into_iter().map(|object| {
            let check = match object["kind"].as_str() {
                Some("Application") => read_argo_health,
                Some("HelmRelease") => read_flux_health,
                _ => return Resource::new(self.owner, object),
            };
            Resource::new(self.owner, object).ready_if(check)
        })
    }
}

impl Provision for HelmApplication<'_> {
    fn provision(&self, ctx: &Context) -> Result<(), Failure> {
        self.list_resources()
            .try_for_each(|resource| resource.provision(ctx))
    }

    fn deprovision(&self, ctx: &Context) -> Result<(), Failure> {
        // Flux needs the repository of a release until that is uninstalled.
        let mut reversed = self.list_resources().rev();
        reversed.try_for_each(|resource| resource.deprovision(ctx))
    }
}

/// Reads from an `Application` of Argo CD whether what it describes is deployed and healthy.
///
/// # Errors
/// A wait until then; terminal for an Application that Argo CD refuses (`InvalidSpecError`).
pub fn read_argo_health(application: &Value) -> Result<(), Failure> {
    let status = &application["status"];
    // Before the health: an Application whose chart does not exist is Healthy.
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let error = conditions.find_map(|c| Some((c["type"].as_str().filter(|t| t.ends_with("Error"))?, c)));
    if let Some((kind, condition)) = error {
        let message = text(&condition["message"]);
        return Err(match kind {
            "InvalidSpecError" => Failure::terminal(kind, message),
            _ => Failure::wait(kind, message),
        });
    }
    // The status may still be about the former spec.
    let compared = &status["sync"]["comparedTo"]["source"];
    let source = &application["spec"]["source"];
    let is_old = |field: &&str| compared[*field] != source[*field];
    let is_outdated =
        compared.is_object() && ["repoURL", "chart", "targetRevision", "helm"].iter().any(is_old);
    let (sync, health) = (text(&status["sync"]["status"]), text(&status["health"]["status"]));
    let operation = &status["operationState"];
    let (reason, message) = match (sync, health) {
        _ if is_outdated => ("Provisioning", "Argo CD has not compared the change yet."),
        ("Synced", "Healthy") => return Ok(()),
        _ if matches!(text(&operation["phase"]), "Failed" | "Error") => {
            ("SyncFailed", text(&operation["message"]))
        }
        (_, "Degraded") => ("Degraded", "What was deployed is Degraded."),
        ("Synced", _) => ("Provisioning", "What was deployed is not Healthy yet."),
        _ => ("Provisioning", "The Application is not Synced yet."),
    };
    Err(Failure::wait(reason, message))
}

/// Reads from a `HelmRelease` of Flux whether its current generation is deployed.
///
/// # Errors
/// A wait until then; terminal for a release that Flux does not try any more (`Stalled`).
pub fn read_flux_health(release: &Value) -> Result<(), Failure> {
    let generation = &release["metadata"]["generation"];
    let find = |kind: &str| {
        let mut all = release["status"]["conditions"].as_array().into_iter().flatten();
        all.find(|c| c["type"] == kind && c["observedGeneration"] == *generation)
    };
    if let Some(stalled) = find("Stalled").filter(|c| c["status"] == "True") {
        return Err(Failure::terminal(
            text(&stalled["reason"]),
            text(&stalled["message"]),
        ));
    }
    match find("Ready") {
        Some(ready) if ready["status"] == "True" => Ok(()),
        Some(ready) if ready["status"] == "False" => {
            Err(Failure::wait(text(&ready["reason"]), text(&ready["message"])))
        }
        _ => Err(Failure::wait(
            "Provisioning",
            "Flux has not deployed the release yet.",
        )),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
