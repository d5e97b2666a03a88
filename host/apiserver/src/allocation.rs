//! Fields of stored objects that the API server and its admission allocate, which no manager owns.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

/// Taints of nodes that every pod tolerates for a while.
const TOLERATED_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
/// Seconds for which it does.
const TOLERATION_SECONDS: u32 = 300;

/// Finalizer of claims.
pub const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
/// Annotation of a DaemonSet that clients of its first version read.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Gives a namespace that is not in deletion the finalizer that empties it.
pub fn add_namespace_finalizer(namespace: &mut Value) {
    if namespace["metadata"]["deletionTimestamp"].is_null() && namespace["spec"]["finalizers"].is_null() {
        namespace["spec"]["finalizers"] = json!(["kubernetes"]);
    }
}

/// Gives a pod or a claim its first phase.
pub fn begin_phase(object: &mut Value) {
    if object["status"]["phase"].is_null() {
        object["status"]["phase"] = "Pending".into();
    }
}

/// Sets the annotation of a DaemonSet with the generation of its template, which counts changes of the template only.
pub fn mark_template(object: &mut Value, old: Option<&Value>) {
    let known = |object: &Value| {
        object["metadata"]["annotations"][TEMPLATE_GENERATION]
            .as_str()?
            .parse::<i64>()
            .ok()
    };
    let generation = match old {
        None => known(object).unwrap_or(1),
        Some(old) => {
            let is_changed = old["spec"]["template"] != object["spec"]["template"];
            known(old).unwrap_or(1) + i64::from(is_changed)
        }
    };
    object["metadata"]["annotations"][TEMPLATE_GENERATION] = generation.to_string().into();
}

/// Sets the annotation that a change of a DaemonSet omits to the zero of the field behind it, as which it counts for ownership.
pub fn reset_template_mark(object: &mut Value) {
    if object["metadata"]["annotations"][TEMPLATE_GENERATION].is_null() {
        object["metadata"]["annotations"][TEMPLATE_GENERATION] = "0".into();
    }
}

/// Gives a claim the finalizer that holds it as long as a pod uses it.
pub fn protect_claim(claim: &mut Value) {
    let finalizers = &mut claim["metadata"]["finalizers"];
    match finalizers.as_array_mut() {
        Some(list) if list.iter().any(|one| one == CLAIM_FINALIZER) => {}
        Some(list) => list.push(CLAIM_FINALIZER.into()),
        None => *finalizers = json!([CLAIM_FINALIZER]),
    }
}

/// Gives a Service an address of its own, from 10.96.0.0/12, or none if it wants none.
pub fn allocate_address(spec: &mut Value, allocated: &AtomicU32) {
    if spec["type"] == "ExternalName" {
        return;
    }
    if spec["clusterIP"].as_str().is_none_or(str::is_empty) {
        let number = allocated.fetch_add(1, Ordering::Relaxed) + 1;
        let [_, second, third, fourth] = (number & 0x000f_ffff).to_be_bytes();
        spec["clusterIP"] = format!("10.{}.{third}.{fourth}", 96 + second).into();
    }
    let address = spec["clusterIP"].clone();
    if let Some(fields) = spec.as_object_mut() {
        fields.entry("clusterIPs").or_insert_with(|| json!([address]));
        let has_selector = fields.get("selector").is_some_and(Value::is_object);
        // Endpoints of a headless Service without a selector may be of both families.
        let is_dual = fields
            .get("ipFamilyPolicy")
            .is_none_or(|policy| policy != "SingleStack");
        let (families, policy) = if address == "None" && !has_selector && is_dual {
            (json!(["IPv4", "IPv6"]), "RequireDualStack")
        } else {
            (json!(["IPv4"]), "SingleStack")
        };
        fields.entry("ipFamilies").or_insert(families);
        fields.entry("ipFamilyPolicy").or_insert_with(|| policy.into());
    }
}

/// Completes a pod as admission does, also one that is changed.
pub fn complete_pod(pod: &mut Value) {
    let quality = classify_quality(&pod["spec"]);
    if pod["status"]["qosClass"].is_null() {
        pod["status"]["qosClass"] = quality.into();
    }
    let Some(spec) = pod["spec"].as_object_mut() else {
        return;
    };
    spec.entry("priority").or_insert_with(|| 0.into());
    spec.entry("preemptionPolicy")
        .or_insert_with(|| "PreemptLowerPriority".into());
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(tolerations) = tolerations.as_array_mut() else {
        return;
    };
    for taint in TOLERATED_TAINTS {
        if !tolerations.iter().any(|toleration| toleration["key"] == taint) {
            tolerations.push(json!({
                "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS,
            }));
        }
    }
}

/// The quality of service of a pod: what its containers ask for, and whether that is their limit.
fn classify_quality(spec: &Value) -> &'static str {
    let containers = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|field| spec[field].as_array().into_iter().flatten());
    let (mut asks, mut is_guaranteed) = (false, true);
    for container in containers {
        let resources = &container["resources"];
        for name in ["cpu", "memory"] {
            let (request, limit) = (&resources["requests"][name], &resources["limits"][name]);
            asks |= !request.is_null() || !limit.is_null();
            is_guaranteed &= !limit.is_null() && (request.is_null() || request == limit);
        }
    }
    match (asks, is_guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Gives a Job the selector of its pods, and them its labels.
pub fn select_pods(job: &mut Value) {
    if job["spec"]["manualSelector"] == true || !job["spec"]["selector"].is_null() {
        return;
    }
    let (uid, name) = (job["metadata"]["uid"].clone(), job["metadata"]["name"].clone());
    let labels = &mut job["spec"]["template"]["metadata"]["labels"];
    if labels.is_null() {
        *labels = json!({});
    }
    for prefix in ["", "batch.kubernetes.io/"] {
        labels[format!("{prefix}controller-uid")] = uid.clone();
        labels[format!("{prefix}job-name")] = name.clone();
    }
    // The labels of a Job are those of its pods, unless it has some.
    let labels = labels.clone();
    let own = &mut job["metadata"]["labels"];
    if own.is_null() {
        *own = labels;
    }
    job["spec"]["selector"] = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_gets_an_address_unless_it_wants_none() {
        let allocated = AtomicU32::new(0);
        let allocate = |spec: Value| {
            let mut spec = spec;
            allocate_address(&mut spec, &allocated);
            spec
        };
        assert_eq!(allocate(json!({}))["clusterIP"], "10.96.0.1");
        assert_eq!(allocate(json!({}))["clusterIPs"], json!(["10.96.0.2"]));
        assert_eq!(
            allocate(json!({"clusterIP": "None"}))["clusterIPs"],
            json!(["None"])
        );
        assert_eq!(
            allocate(json!({"type": "ExternalName"})),
            json!({"type": "ExternalName"})
        );
    }

    #[test]
    fn quality_of_a_pod_follows_its_requests_and_limits() {
        let spec = |resources: Value| json!({"containers": [{"resources": resources}]});
        assert_eq!(classify_quality(&spec(json!({}))), "BestEffort");
        assert_eq!(
            classify_quality(&spec(json!({"requests": {"cpu": "1"}}))),
            "Burstable"
        );
        let limits = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(classify_quality(&spec(limits)), "Guaranteed");
    }
}
