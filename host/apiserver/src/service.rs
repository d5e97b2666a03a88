//! Changes of Services: what an update need not repeat, what goes with the type, and what may not change.

use ostler_schema::FieldError;
use serde_json::{Value, json};

use crate::object::set_field;

/// Fields that a Service has by its addresses.
const ADDRESS_FIELDS: [&str; 5] = [
    "clusterIP",
    "clusterIPs",
    "ipFamilies",
    "ipFamilyPolicy",
    "internalTrafficPolicy",
];

fn has_addresses(spec: &Value) -> bool {
    spec["type"] != "ExternalName"
}

fn has_node_ports(spec: &Value) -> bool {
    matches!(spec["type"].as_str(), Some("NodePort" | "LoadBalancer"))
}

fn has_external_policy(spec: &Value) -> bool {
    has_node_ports(spec)
        || spec["externalIPs"]
            .as_array()
            .is_some_and(|list| !list.is_empty())
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Completes a changed Service: addresses and ports that an update omits stay, and what the new type does not have goes.
pub fn complete_change(object: &mut Value, old: &Value) {
    let spec = &mut object["spec"];
    let old = &old["spec"];
    let keeps_addresses = has_addresses(old) && has_addresses(spec);
    if keeps_addresses {
        for field in ["clusterIP", "clusterIPs"] {
            if is_empty(&spec[field]) && !is_empty(&old[field]) {
                spec[field] = old[field].clone();
            }
        }
    }
    let is_changed = !is_empty(&spec["clusterIP"]) && spec["clusterIP"] != old["clusterIP"];
    if is_changed && (is_empty(&spec["clusterIPs"]) || spec["clusterIPs"] == old["clusterIPs"]) {
        // Clients that know the one address only.
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
    // Endpoints of a headless Service without a selector may be of both families.
    let is_plain = |spec: &Value| spec["clusterIP"] != "None" || is_empty(&spec["selector"]);
    if keeps_addresses {
        for field in ["ipFamilyPolicy", "ipFamilies"] {
            let stays = field == "ipFamilyPolicy" || (is_plain(old) && is_plain(spec));
            if is_empty(&spec[field]) && stays {
                set_field(spec, field, old.get(field).cloned());
            }
        }
    }
    if has_addresses(old) && !has_addresses(spec) {
        drop_unchanged(spec, old, &ADDRESS_FIELDS);
    }
    if has_node_ports(old) && has_node_ports(spec) {
        keep_node_ports(spec, old);
    }
    if has_external_policy(old) && !has_external_policy(spec) {
        drop_unchanged(spec, old, &["externalTrafficPolicy"]);
    }
    if old["type"] == "LoadBalancer" && spec["type"] != "LoadBalancer" {
        drop_unchanged(spec, old, &["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if object["spec"]["type"] != "LoadBalancer" {
        object["status"]["loadBalancer"] = json!({});
    }
}

fn drop_unchanged(spec: &mut Value, old: &Value, fields: &[&str]) {
    for field in fields {
        if spec[*field] == old[*field] || spec[*field].is_null() {
            set_field(spec, field, None);
        }
    }
}

/// Keeps the node ports of ports by their names.
fn keep_node_ports(spec: &mut Value, old: &Value) {
    let before = old["ports"].as_array().cloned().unwrap_or_default();
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        let known = before.iter().find(|known| known["name"] == port["name"]);
        if let Some(known) = known.filter(|_| port["nodePort"].is_null()) {
            set_field(port, "nodePort", known.get("nodePort").cloned());
        }
    }
}

/// Validates the addresses of a changed Service: once set they stay, unless the type changes to one without, or from it.
pub fn validate_change(spec: &Value, old: &Value) -> Vec<FieldError> {
    let is_headless = |spec: &Value| spec["clusterIP"] == "None";
    let stay_headless = is_headless(spec) && is_headless(old);
    if stay_headless && spec["ipFamilyPolicy"] == "RequireDualStack" && !is_empty(&spec["selector"]) {
        let rule = "this cluster is not configured for dual-stack services";
        let mut errors = vec![FieldError::invalid(
            "spec.ipFamilyPolicy",
            &spec["ipFamilyPolicy"],
            rule,
        )];
        if spec["ipFamilies"][1] == "IPv6" {
            let rule = "not configured on this cluster";
            errors.push(FieldError::invalid(
                "spec.ipFamilies[1]",
                &spec["ipFamilies"][1],
                rule,
            ));
        }
        return errors;
    }
    if !has_addresses(spec) || !has_addresses(old) || stay_headless {
        return Vec::new();
    }
    let before = old["clusterIPs"].as_array().into_iter().flatten();
    let mut errors = Vec::new();
    for (index, (address, now)) in before
        .zip(spec["clusterIPs"].as_array().into_iter().flatten())
        .enumerate()
    {
        if address != now {
            let field = format!("spec.clusterIPs[{index}]");
            errors.push(FieldError::invalid(
                &field,
                &spec["clusterIPs"],
                "may not change once set",
            ));
        }
    }
    errors
}

/// Validates that a Service without addresses has none.
pub fn validate_external(spec: &Value) -> Vec<FieldError> {
    let set = ["clusterIPs", "ipFamilies", "ipFamilyPolicy"]
        .into_iter()
        .filter(|field| !is_empty(&spec[*field]));
    set.map(|field| {
        FieldError::forbidden(
            &format!("spec.{field}"),
            "may not be set for ExternalName services",
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(old: Value, new: Value) -> Value {
        let mut object = json!({"spec": new});
        complete_change(&mut object, &json!({"spec": old}));
        object["spec"].clone()
    }

    #[test]
    fn address_that_an_update_omits_stays_and_goes_with_the_type() {
        let old = json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"});
        let kept = change(old.clone(), json!({"type": "ClusterIP"}));
        assert_eq!(
            (&kept["clusterIP"], &kept["clusterIPs"]),
            (&old["clusterIP"], &old["clusterIPs"])
        );
        assert_eq!(validate_change(&kept, &old), []);
        let mut external = old.clone();
        external["type"] = "ExternalName".into();
        assert_eq!(change(old.clone(), external), json!({"type": "ExternalName"}));
        let headless = change(
            old.clone(),
            json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["10.0.0.1"]}),
        );
        assert_eq!(headless["clusterIPs"], json!(["None"]));
        assert_eq!(validate_change(&headless, &old)[0].field, "spec.clusterIPs[0]");
    }

    #[test]
    fn node_port_stays_with_the_name_of_its_port() {
        let old = json!({"type": "NodePort", "ports": [{"name": "a", "nodePort": 30001}, {"name": "b", "nodePort": 30002}]});
        let new = json!({"type": "NodePort", "ports": [{"name": "b"}, {"name": "c"}]});
        let ports = change(old, new)["ports"].clone();
        assert_eq!(ports, json!([{"name": "b", "nodePort": 30002}, {"name": "c"}]));
    }
}
