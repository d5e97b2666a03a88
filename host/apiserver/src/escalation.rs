//! Prevention of privilege escalation: whoever writes a role, or binds one, needs the rights that it grants.
//!
//! The verbs `escalate` and `bind` on roles lift this, as on a cluster.

use serde_json::{Value, json};

use crate::kind::ServedKind;
use crate::rbac::{self, AccessRequest, RBAC_GROUP, RequestUser};
use crate::state::RequestHandler;
use crate::status::{ErrorSubject, StatusError};

/// Checks that a user may write a role or binding. `old` is the stored object.
///
/// # Errors
///
/// 403 with the rules that the user lacks, 404 for a binding to a role that does not exist.
pub fn check_escalation(
    api: &RequestHandler,
    user: &RequestUser,
    kind: &ServedKind,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), StatusError> {
    if kind.resource.group != RBAC_GROUP {
        return Ok(());
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (
        text(&object["metadata"]["namespace"]),
        text(&object["metadata"]["name"]),
    );
    let may = |verb: &str, resource: &str, namespace: &str, name: &str| {
        let access = AccessRequest {
            verb: verb.into(),
            group: RBAC_GROUP.into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        rbac::is_allowed(api, user, &access)
    };
    let plural = kind.resource.plural.as_str();
    let is_unchanged =
        |fields: &[&str]| old.is_some_and(|old| fields.iter().all(|field| old[field] == object[field]));
    let rules = match plural {
        "roles" | "clusterroles" => {
            if is_unchanged(&["rules", "aggregationRule"]) || may("escalate", plural, &namespace, &name) {
                return Ok(());
            }
            if object["aggregationRule"].is_object() {
                // The rules of the aggregated roles are not known.
                let all = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
                let paths = json!({"nonResourceURLs": ["*"], "verbs": ["*"]});
                if !find_missing(&[all, paths], &rbac::list_user_rules(api, user, "")).is_empty() {
                    let why = "must have cluster-admin privileges to use an aggregationRule";
                    return Err(StatusError::forbidden(kind.subject(&name), why));
                }
            }
            object["rules"].as_array().cloned().unwrap_or_default()
        }
        "rolebindings" | "clusterrolebindings" => {
            if is_unchanged(&["roleRef", "subjects"]) {
                return Ok(());
            }
            let role = &object["roleRef"];
            let (roles, place) = match role["kind"].as_str() {
                Some("Role") => ("roles", namespace.as_str()),
                _ => ("clusterroles", ""),
            };
            if may("bind", roles, &namespace, &text(&role["name"])) {
                return Ok(());
            }
            rbac::find_rules(api, role, place).ok_or_else(|| {
                StatusError::not_found(ErrorSubject {
                    group: RBAC_GROUP,
                    resource: roles,
                    kind: roles,
                    name: role["name"].as_str().unwrap_or_default(),
                })
            })?
        }
        _ => return Ok(()),
    };
    let missing = find_missing(&rules, &rbac::list_user_rules(api, user, &namespace));
    if missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<String> = missing.iter().map(format_rule).collect();
    let why = format!(
        "user {:?} (groups={:?}) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        user.groups,
        missing.join("\n")
    );
    Err(StatusError::forbidden(kind.subject(&name), why))
}

fn texts<'a>(rule: &'a Value, field: &str) -> Vec<&'a str> {
    rule[field]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Returns the parts of rules that no rule of the user covers. A part has one path, or one group and resource.
fn find_missing(rules: &[Value], held: &[Value]) -> Vec<Value> {
    let is_missing = |part: &Value| {
        let verbs = texts(part, "verbs");
        let lacks = |verb: &&str| !held.iter().any(|rule| covers(rule, part, verb));
        let lacking: Vec<&str> = verbs.into_iter().filter(lacks).collect();
        (!lacking.is_empty()).then(|| {
            let mut part = part.clone();
            part["verbs"] = json!(lacking);
            part
        })
    };
    rules
        .iter()
        .flat_map(split_rule)
        .filter_map(|part| is_missing(&part))
        .collect()
}

/// Splits a rule into parts with one path, or with one group, resource and name.
fn split_rule(rule: &Value) -> Vec<Value> {
    let verbs = &rule["verbs"];
    let paths = texts(rule, "nonResourceURLs");
    let mut parts: Vec<Value> = paths
        .into_iter()
        .map(|path| json!({"nonResourceURLs": [path], "verbs": verbs}))
        .collect();
    let names = texts(rule, "resourceNames");
    for group in texts(rule, "apiGroups") {
        for resource in texts(rule, "resources") {
            let part = json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
            if names.is_empty() {
                parts.push(part);
                continue;
            }
            for name in &names {
                let mut part = part.clone();
                part["resourceNames"] = json!([name]);
                parts.push(part);
            }
        }
    }
    parts
}

/// Returns true if a rule grants a verb of a part.
fn covers(rule: &Value, part: &Value, verb: &str) -> bool {
    let only = |field: &str| texts(part, field).first().copied().unwrap_or_default().to_owned();
    if part["nonResourceURLs"].is_array() {
        return rbac::covers_path(rule, verb, &only("nonResourceURLs"));
    }
    let access = AccessRequest {
        verb: verb.into(),
        group: only("apiGroups"),
        resource: only("resources"),
        namespace: String::new(),
        name: only("resourceNames"),
    };
    access.is_covered_by(rule)
}

/// Formats a part of a rule as the message of a cluster does.
fn format_rule(rule: &Value) -> String {
    let fields = [
        ("APIGroups", "apiGroups"),
        ("Resources", "resources"),
        ("ResourceNames", "resourceNames"),
        ("NonResourceURLs", "nonResourceURLs"),
        ("Verbs", "verbs"),
    ];
    let parts = fields.iter().filter_map(|(title, field)| {
        let quoted: Vec<String> = texts(rule, field)
            .iter()
            .map(|text| format!("{text:?}"))
            .collect();
        (!quoted.is_empty()).then(|| format!("{title}:[{}]", quoted.join(" ")))
    });
    format!("{{{}}}", parts.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rights_are_those_that_no_held_rule_covers() {
        let held = [
            json!({"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "patch"]}),
            json!({"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}),
            json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["*"]}),
            json!({"nonResourceURLs": ["/metrics/*"], "verbs": ["get"]}),
        ];
        for (rule, missing) in [
            (
                json!({"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]}),
                "",
            ),
            (
                json!({"apiGroups": ["apps"], "resources": ["*"], "verbs": ["patch"]}),
                r#"{APIGroups:["apps"], Resources:["*"], Verbs:["patch"]}"#,
            ),
            (
                json!({"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}),
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["list"]} {APIGroups:[""], Resources:["pods/log"], Verbs:["list"]}"#,
            ),
            (
                json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["update"]}),
                "",
            ),
            (
                json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"], "verbs": ["update"]}),
                r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["b"], Verbs:["update"]}"#,
            ),
            (
                json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["update"]}),
                r#"{APIGroups:[""], Resources:["secrets"], Verbs:["update"]}"#,
            ),
            (
                json!({"nonResourceURLs": ["/metrics/cadvisor"], "verbs": ["get"]}),
                "",
            ),
            (
                json!({"nonResourceURLs": ["/version"], "verbs": ["get"]}),
                r#"{NonResourceURLs:["/version"], Verbs:["get"]}"#,
            ),
        ] {
            let found: Vec<String> = find_missing(&[rule], &held).iter().map(format_rule).collect();
            assert_eq!(found.join(" "), missing);
        }
    }
}
