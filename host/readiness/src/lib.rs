//! Readiness of the built-in kinds of Kubernetes.
//!
//! Custom resources report their readiness in the condition `Ready`. Built-in kinds do not: a Deployment has `Available`, which
//! stays True during a rollout, a PersistentVolumeClaim has a phase, a ConfigMap has no status at all. The rules follow
//! [kstatus](https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md), and differ from it in two points:
//! a Job is ready when it is complete (kstatus: when it has started), and a Service of the type `LoadBalancer` when it has an
//! address (kstatus: a cluster IP).

use serde_json::Value;

/// API groups of Kubernetes itself. Other groups below `k8s.io` are of custom resources.
const BUILT_IN_GROUPS: [&str; 22] = [
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

/// Cause for which an object of a built-in kind is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    /// The reason in CamelCase, for example `PodsNotAvailable`.
    pub reason: String,
    /// One sentence without the object's name.
    pub message: String,
}

impl NotReady {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// The reason and message of a condition.
    fn from_condition(condition: &Value) -> Self {
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        Self::new(text("reason"), text("message"))
    }
}

/// Returns true for an API group of Kubernetes itself, whose kinds [`check_built_in`] evaluates.
pub fn is_built_in_group(group: &str) -> bool {
    BUILT_IN_GROUPS.contains(&group)
}

/// Checks that an object of a built-in kind is ready for its current generation. A kind without a rule of its own is ready
/// unless its condition `Ready`, if it has one, is not True.
///
/// # Errors
/// The cause for which it is not ready: it is being deleted, its controller has not observed its generation, or the rule of its
/// kind does not hold.
pub fn check_built_in(group: &str, kind: &str, object: &Value) -> Result<(), NotReady> {
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return Err(NotReady::new("Terminating", "it is being deleted"));
    }
    let observed = &object["status"]["observedGeneration"];
    let generation = &object["metadata"]["generation"];
    let has_controller = matches!(
        (group, kind),
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
            | ("policy", "PodDisruptionBudget")
    );
    if observed != generation && (has_controller || !observed.is_null()) {
        return Err(NotReady::new(
            "GenerationNotObserved",
            format!("its controller has not observed generation {generation} yet"),
        ));
    }
    let object = Checked(object);
    match (group, kind) {
        ("apps", "Deployment") => object.check_deployment(),
        ("apps", "StatefulSet") => object.check_stateful_set(),
        ("apps", "DaemonSet") => object.check_daemon_set(),
        ("apps", "ReplicaSet") | ("", "ReplicationController") => object.check_replica_set(),
        ("batch", "Job") => object.check_job(),
        ("", "Pod") => object.check_pod(),
        ("", "Service") => object.check_service(),
        ("", "PersistentVolumeClaim") => object.check_phase(&["Bound"]),
        ("", "PersistentVolume") => object.check_phase(&["Available", "Bound"]),
        ("", "Namespace") => object.check_phase(&["Active"]),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => object.check_crd(),
        ("apiregistration.k8s.io", "APIService") => object.check_condition("Available"),
        ("certificates.k8s.io", "CertificateSigningRequest") => object.check_certificate_request(),
        ("", "Node") => object.check_condition("Ready"),
        _ if object.find_condition("Ready").is_some() => object.check_condition("Ready"),
        _ => Ok(()),
    }
}

struct Checked<'a>(&'a Value);

impl<'a> Checked<'a> {
    fn status(&self) -> &'a Value {
        &self.0["status"]
    }

    /// A count in the status, which controllers omit if it is 0.
    fn count(&self, field: &str) -> i64 {
        self.status()[field].as_i64().unwrap_or(0)
    }

    fn desired_replicas(&self) -> i64 {
        self.0["spec"]["replicas"].as_i64().unwrap_or(1)
    }

    fn find_condition(&self, kind: &str) -> Option<&'a Value> {
        let conditions = self.status()["conditions"].as_array()?;
        conditions.iter().find(|c| c["type"] == kind)
    }

    fn find_true_condition(&self, kind: &str) -> Option<&'a Value> {
        self.find_condition(kind).filter(|c| c["status"] == "True")
    }

    fn check_condition(&self, kind: &str) -> Result<(), NotReady> {
        match self.find_condition(kind) {
            Some(condition) if condition["status"] == "True" => Ok(()),
            Some(condition) => Err(NotReady::from_condition(condition)),
            None => Err(NotReady::new(
                "ConditionMissing",
                format!("it has no condition {kind} yet"),
            )),
        }
    }

    fn check_phase(&self, ready: &[&str]) -> Result<(), NotReady> {
        match self.status()["phase"].as_str() {
            Some(phase) if ready.contains(&phase) => Ok(()),
            Some(phase) => Err(NotReady::new(phase, format!("its phase is {phase}"))),
            None => Err(NotReady::new("PhaseMissing", "it has no phase yet")),
        }
    }

    /// Requires that a count of pods has reached another.
    fn require_count(&self, field: &str, desired: i64, reason: &str, done: &str) -> Result<(), NotReady> {
        let count = self.count(field);
        if count >= desired {
            return Ok(());
        }
        Err(NotReady::new(
            reason,
            format!("{count} of {desired} pods are {done}"),
        ))
    }

    /// Requires that no more pods are left than there should be.
    fn require_no_excess(&self, desired: i64) -> Result<(), NotReady> {
        let excess = self.count("replicas") - desired;
        if excess <= 0 {
            return Ok(());
        }
        Err(NotReady::new(
            "PodsNotRemoved",
            format!("{excess} old pods are not removed yet"),
        ))
    }

    fn check_deployment(&self) -> Result<(), NotReady> {
        if let Some(progressing) = self.find_condition("Progressing")
            && progressing["reason"] == "ProgressDeadlineExceeded"
        {
            return Err(NotReady::from_condition(progressing));
        }
        if let Some(failure) = self.find_true_condition("ReplicaFailure") {
            return Err(NotReady::from_condition(failure));
        }
        let desired = self.desired_replicas();
        self.require_count("replicas", desired, "PodsNotCreated", "created")?;
        self.require_count("updatedReplicas", desired, "PodsNotUpdated", "updated")?;
        self.require_no_excess(desired)?;
        self.require_count("availableReplicas", desired, "PodsNotAvailable", "available")?;
        self.require_count("readyReplicas", desired, "PodsNotReady", "ready")?;
        match self.find_condition("Available") {
            Some(_) => self.check_condition("Available"),
            None => Ok(()),
        }
    }

    fn check_stateful_set(&self) -> Result<(), NotReady> {
        let strategy = &self.0["spec"]["updateStrategy"];
        // Its pods are updated when their administrator deletes them.
        if strategy["type"] == "OnDelete" {
            return Ok(());
        }
        let desired = self.desired_replicas();
        self.require_count("replicas", desired, "PodsNotCreated", "created")?;
        self.require_count("readyReplicas", desired, "PodsNotReady", "ready")?;
        self.require_no_excess(desired)?;
        let partition = strategy["rollingUpdate"]["partition"].as_i64().unwrap_or(0);
        if partition > 0 {
            let updated = (desired - partition).max(0);
            return self.require_count("updatedReplicas", updated, "PodsNotUpdated", "updated");
        }
        if self.status()["currentRevision"] != self.status()["updateRevision"] {
            let updated = self.count("updatedReplicas");
            return Err(NotReady::new(
                "PodsNotUpdated",
                format!("{updated} of {desired} pods are updated"),
            ));
        }
        Ok(())
    }

    fn check_daemon_set(&self) -> Result<(), NotReady> {
        let Some(desired) = self.status()["desiredNumberScheduled"].as_i64() else {
            return Err(NotReady::new("PodsNotScheduled", "its pods are not counted yet"));
        };
        self.require_count("currentNumberScheduled", desired, "PodsNotScheduled", "scheduled")?;
        if self.0["spec"]["updateStrategy"]["type"] != "OnDelete" {
            self.require_count("updatedNumberScheduled", desired, "PodsNotUpdated", "updated")?;
        }
        self.require_count("numberAvailable", desired, "PodsNotAvailable", "available")?;
        self.require_count("numberReady", desired, "PodsNotReady", "ready")
    }

    fn check_replica_set(&self) -> Result<(), NotReady> {
        if let Some(failure) = self.find_true_condition("ReplicaFailure") {
            return Err(NotReady::from_condition(failure));
        }
        let desired = self.desired_replicas();
        self.require_count("fullyLabeledReplicas", desired, "PodsNotCreated", "created")?;
        self.require_count("availableReplicas", desired, "PodsNotAvailable", "available")?;
        self.require_count("readyReplicas", desired, "PodsNotReady", "ready")?;
        self.require_no_excess(desired)
    }

    fn check_job(&self) -> Result<(), NotReady> {
        if let Some(failed) = self.find_true_condition("Failed") {
            return Err(NotReady::from_condition(failed));
        }
        if self.find_true_condition("Complete").is_some() {
            return Ok(());
        }
        if let Some(suspended) = self.find_true_condition("Suspended") {
            return Err(NotReady::from_condition(suspended));
        }
        let (succeeded, active, failed) = (
            self.count("succeeded"),
            self.count("active"),
            self.count("failed"),
        );
        Err(NotReady::new(
            "JobNotComplete",
            format!("it is not complete: {active} pods active, {succeeded} succeeded, {failed} failed"),
        ))
    }

    /// A pod that has succeeded is ready, as with kstatus.
    fn check_pod(&self) -> Result<(), NotReady> {
        let phase = self.status()["phase"].as_str();
        if phase == Some("Succeeded") {
            return Ok(());
        }
        if let Some(waiting) = self.find_failing_container() {
            return Err(waiting);
        }
        if phase == Some("Failed") {
            let reason = self.status()["reason"].as_str().unwrap_or("Failed");
            let message = self.status()["message"].as_str().unwrap_or("its phase is Failed");
            return Err(NotReady::new(reason, message));
        }
        match self.find_condition("PodScheduled") {
            Some(scheduled) if scheduled["status"] == "False" => Err(NotReady::from_condition(scheduled)),
            _ => self.check_condition("Ready"),
        }
    }

    /// A container that waits for another reason than its start, for example `CrashLoopBackOff`.
    fn find_failing_container(&self) -> Option<NotReady> {
        let fields = ["initContainerStatuses", "containerStatuses"];
        let containers = fields
            .iter()
            .filter_map(|field| self.status()[*field].as_array())
            .flatten();
        containers.into_iter().find_map(|container| {
            let waiting = &container["state"]["waiting"];
            let reason = waiting["reason"].as_str()?;
            let name = container["name"].as_str().unwrap_or_default();
            let message = waiting["message"].as_str().unwrap_or("it waits");
            (!matches!(reason, "ContainerCreating" | "PodInitializing"))
                .then(|| NotReady::new(reason, format!("container {name}: {message}")))
        })
    }

    fn check_service(&self) -> Result<(), NotReady> {
        let spec = &self.0["spec"];
        if spec["type"] != "LoadBalancer" {
            return Ok(());
        }
        let has_items = |value: &Value| value.as_array().is_some_and(|items| !items.is_empty());
        if has_items(&spec["externalIPs"]) || has_items(&self.status()["loadBalancer"]["ingress"]) {
            return Ok(());
        }
        Err(NotReady::new(
            "AddressPending",
            "its load balancer has no address yet",
        ))
    }

    fn check_crd(&self) -> Result<(), NotReady> {
        match self.find_condition("NamesAccepted") {
            Some(accepted) if accepted["status"] == "False" => Err(NotReady::from_condition(accepted)),
            _ => self.check_condition("Established"),
        }
    }

    fn check_certificate_request(&self) -> Result<(), NotReady> {
        for refused in ["Denied", "Failed"] {
            if let Some(condition) = self.find_true_condition(refused) {
                return Err(NotReady::from_condition(condition));
            }
        }
        match self.status()["certificate"].as_str() {
            Some(certificate) if !certificate.is_empty() => Ok(()),
            _ => Err(NotReady::new(
                "CertificatePending",
                "its certificate is not issued yet",
            )),
        }
    }
}

#[cfg(test)]
mod tests;
