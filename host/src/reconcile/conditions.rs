//! Composition of an object's status from a component's result: conditions, transition times and the merge patch.
//!
//! Follows `metav1.Condition` and kstatus: `Ready`, and `Reconciling`/`Stalled` only while they are True.

use serde_json::{Map, Value, json};

use crate::{
    contract::bindings::{
        reconciler::{Failure, Outcome, Resolution},
        types::{Condition, ConditionStatus},
    },
    kube::well_known::{condition_type, object_reason},
};

/// The API server's limit for the message of a condition.
const MAX_MESSAGE_BYTES: usize = 32_768;

/// The API server's limit for the type of a condition.
const MAX_TYPE_BYTES: usize = 316;

/// Status fields that the host writes. Those of a component are ignored.
const HOST_FIELDS: [&str; 2] = ["conditions", "observedGeneration"];

/// Time and generation of a status.
#[derive(Clone, Copy, Debug)]
pub struct StatusContext<'a> {
    /// `metadata.generation` of the object that was reconciled.
    pub generation: i64,
    /// Current time (RFC 3339).
    pub now: &'a str,
}

/// Creates a condition that is True or False.
pub fn condition(kind: &str, status: bool, reason: &str, message: &str) -> Condition {
    Condition {
        type_: kind.into(),
        status: if status {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        },
        reason: reason.into(),
        message: message.into(),
    }
}

/// Checks the type of a condition, a name with or without a domain before it, as `metav1.Condition` does. The text is not repeated:
/// what is no name may be anything.
pub fn check_condition_type(text: &str) -> Result<(), String> {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    let is_part = |c: char| is_end(c) || matches!(c, '-' | '_' | '.');
    let is_name =
        |text: &str| text.starts_with(is_end) && text.ends_with(is_end) && text.chars().all(is_part);
    let (domain, name) = match text.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, text),
    };
    let is_domain =
        |domain: &str| is_name(domain) && !domain.contains(|c: char| c.is_ascii_uppercase() || c == '_');
    if text.len() <= MAX_TYPE_BYTES && is_name(name) && domain.is_none_or(is_domain) {
        return Ok(());
    }
    Err(
        "the type of a condition is not one that Kubernetes allows: use CamelCase, such as WorkerReady"
            .into(),
    )
}

/// The status after an outcome: exactly its conditions, and Ready=True unless it sets Ready. What is stalled is never Ready
/// (kstatus), so Ready has then the reason of Stalled.
pub fn status_after_outcome(
    old: Option<&Value>,
    outcome: &Outcome,
    fields: Option<&Value>,
    moment: StatusContext,
) -> Value {
    let mut conditions = outcome.conditions.clone();
    let is_true = |c: &Condition, kind: &str| c.type_ == kind && c.status == ConditionStatus::True;
    let stalled = conditions
        .iter()
        .find(|c| is_true(c, condition_type::STALLED))
        .cloned();
    if let Some(stalled) = stalled {
        conditions.retain(|c| !is_true(c, condition_type::READY));
        conditions.push(condition(
            condition_type::READY,
            false,
            &stalled.reason,
            &stalled.message,
        ));
    }
    if !conditions.iter().any(|c| c.type_ == condition_type::READY) {
        conditions.push(condition(condition_type::READY, true, object_reason::READY, ""));
    }
    assemble_status(old, &conditions, &[], fields, moment)
}

/// The status after a failure: Ready=False with its reason. Conditions that it doesn't set stay.
pub fn status_after_failure(
    old: Option<&Value>,
    failure: &Failure,
    fields: Option<&Value>,
    moment: StatusContext,
) -> Value {
    let mut conditions = failure.conditions.clone();
    conditions.retain(|c| {
        !matches!(
            &*c.type_,
            condition_type::READY | condition_type::STALLED | condition_type::RECONCILING
        )
    });
    conditions.push(condition(
        condition_type::READY,
        false,
        &failure.reason,
        &failure.message,
    ));
    let parked = matches!(failure.resolution, Resolution::Terminal | Resolution::Denied(_));
    if parked {
        conditions.push(condition(
            condition_type::STALLED,
            true,
            &failure.reason,
            &failure.message,
        ));
    } else {
        conditions.push(condition(
            condition_type::RECONCILING,
            true,
            &failure.reason,
            &failure.message,
        ));
    }
    // Old conditions stay, except those that describe this one failure.
    let kept = old.and_then(|o| o.get("conditions")).and_then(Value::as_array);
    let mut stay: Vec<Value> = kept.into_iter().flatten().cloned().collect();
    stay.retain(|c| {
        !matches!(
            c["type"].as_str(),
            Some(
                condition_type::STALLED
                    | condition_type::RECONCILING
                    | condition_type::PAUSED
                    | condition_type::DELETION_BLOCKED
                    | condition_type::HOT_LOOP
            )
        )
    });
    assemble_status(old, &conditions, &stay, fields, moment)
}

fn assemble_status(
    old: Option<&Value>,
    conditions: &[Condition],
    stay: &[Value],
    fields: Option<&Value>,
    moment: StatusContext,
) -> Value {
    let before = old.and_then(Value::as_object);
    let mut status: Map<String, Value> = match fields.and_then(Value::as_object) {
        Some(fields) => fields.clone(),
        None => before.cloned().unwrap_or_default(),
    };
    for own in HOST_FIELDS {
        status.remove(own);
    }
    status.values_mut().for_each(remove_nulls);
    status.retain(|_, value| !value.is_null());
    let old_conditions = before.and_then(|b| b.get("conditions")).and_then(Value::as_array);
    let mut list: Vec<Value> = Vec::new();
    for c in conditions {
        if list.iter().any(|l| l["type"] == c.type_) {
            continue;
        }
        let known = old_conditions
            .into_iter()
            .flatten()
            .find(|o| o["type"] == c.type_);
        list.push(render_condition(c, known, moment));
    }
    for c in stay {
        if !list.iter().any(|l| l["type"] == c["type"]) {
            list.push(c.clone());
        }
    }
    // Ready comes first, the others are sorted, so that the order never changes.
    list.sort_by_key(|c| {
        (
            c["type"] != condition_type::READY,
            c["type"].as_str().unwrap_or("").to_owned(),
        )
    });
    status.insert("conditions".into(), Value::Array(list));
    if moment.generation > 0 {
        status.insert("observedGeneration".into(), moment.generation.into());
    }
    Value::Object(status)
}

/// Removes nulls, which a merge patch can't write: the status would differ from the desired one forever.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// A condition in JSON. As in Kubernetes the transition time changes with the status only.
fn render_condition(c: &Condition, old: Option<&Value>, moment: StatusContext) -> Value {
    let status = c.status.as_str();
    let since = old
        .filter(|o| o["status"] == status)
        .and_then(|o| o["lastTransitionTime"].as_str())
        .unwrap_or(moment.now);
    let message: String = if c.message.len() <= MAX_MESSAGE_BYTES {
        c.message.clone()
    } else {
        c.message.chars().take(MAX_MESSAGE_BYTES / 4).collect()
    };
    json!({
        "type": c.type_,
        "status": status,
        "reason": valid_reason(&c.reason),
        "message": message,
        "lastTransitionTime": since,
        "observedGeneration": moment.generation,
    })
}

/// Replaces an invalid reason. The API server requires `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$` and refuses the whole
/// status otherwise.
pub(super) fn valid_reason(text: &str) -> &str {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b',' | b':');
    let valid = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(inner)
        && text.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.len() <= 1024;
    if valid { text } else { object_reason::UNSPECIFIED }
}

/// The phase of an object, computed from its conditions, for kinds that have one.
pub fn compute_phase(status: &Value, deleting: bool) -> &'static str {
    let conditions = status["conditions"].as_array();
    let ready = |c: &Value| c["type"] == condition_type::READY && c["status"] == "True";
    if deleting {
        "Terminating"
    } else if conditions.is_some_and(|all| all.iter().any(ready)) {
        "Ready"
    } else {
        "Progressing"
    }
}

/// The JSON merge patch (RFC 7386) that makes `old` into `new`; none when they are equal.
pub fn merge_patch(old: Option<&Value>, new: &Value) -> Option<Value> {
    let empty = Value::Object(Map::new());
    let old = old.unwrap_or(&empty);
    (old != new).then(|| diff_values(old, new))
}

fn diff_values(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return new.clone();
    };
    let mut patch = Map::new();
    for key in old.keys().filter(|k| !new.contains_key(*k)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        match old.get(key) {
            Some(before) if before == value => {}
            Some(before @ Value::Object(_)) if value.is_object() => {
                drop(patch.insert(key.clone(), diff_values(before, value)))
            }
            _ => drop(patch.insert(key.clone(), value.clone())),
        }
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::contract::bindings::reconciler::Next;

    const MOMENT: StatusContext = StatusContext {
        generation: 3,
        now: "2026-01-02T03:04:05Z",
    };

    fn outcome(conditions: Vec<Condition>) -> Outcome {
        Outcome {
            conditions,
            status: None,
            next: Next::AwaitChange,
        }
    }

    fn failure(resolution: Resolution) -> Failure {
        Failure {
            resolution,
            reason: "TeamNotReady".into(),
            message: "m".into(),
            conditions: vec![],
            status: None,
        }
    }

    fn find<'a>(status: &'a Value, kind: &str) -> &'a Value {
        let list = status["conditions"].as_array().expect("conditions");
        list.iter().find(|c| c["type"] == kind).unwrap_or(&Value::Null)
    }

    #[test]
    fn types_are_those_of_metav1_condition() {
        for (text, is_type) in [
            ("Ready", true),
            ("a.example/Worker-Ready", true),
            ("Quota_Exceeded", true),
            ("503", true),
            ("not a type", false),
            ("A.Example/Ready", false),
            ("a/b/C", false),
            ("Ready-", false),
            ("", false),
        ] {
            assert_eq!(check_condition_type(text).is_ok(), is_type, "{text}");
        }
        assert!(check_condition_type(&"a".repeat(317)).is_err());
    }

    #[test]
    fn stalled_outcome_is_not_ready() {
        let stalled = condition(condition_type::STALLED, true, "QuotaExceeded", "no room");
        let ready = condition(condition_type::READY, true, "Ready", "");
        for conditions in [vec![stalled.clone()], vec![ready, stalled]] {
            let status = status_after_outcome(None, &outcome(conditions), None, MOMENT);
            let ready = &status["conditions"][0];
            assert_eq!(
                (&ready["type"], &ready["status"]),
                (&json!("Ready"), &json!("False")),
                "{status}"
            );
            assert_eq!(ready["reason"], "QuotaExceeded");
            assert_eq!(status["conditions"].as_array().map(Vec::len), Some(2));
        }
    }

    #[test]
    fn outcome_without_ready_condition_is_ready() {
        let status = status_after_outcome(
            None,
            &outcome(vec![condition("Synced", true, "Yes", "")]),
            None,
            MOMENT,
        );
        assert_eq!(find(&status, "Ready")["status"], "True");
        assert_eq!(status["conditions"][0]["type"], "Ready");
        assert_eq!(status["observedGeneration"], 3);
    }

    #[test]
    fn transition_time_changes_with_the_status_only() {
        let first = status_after_outcome(None, &outcome(vec![]), None, MOMENT);
        let later = StatusContext {
            generation: 4,
            now: "2027-01-01T00:00:00Z",
        };
        let second = status_after_outcome(Some(&first), &outcome(vec![]), None, later);
        assert_eq!(find(&second, "Ready")["lastTransitionTime"], MOMENT.now);
        assert_eq!(find(&second, "Ready")["observedGeneration"], 4);
        let third = status_after_failure(Some(&second), &failure(Resolution::Retry), None, later);
        assert_eq!(find(&third, "Ready")["lastTransitionTime"], later.now);
        assert_eq!(find(&third, "Reconciling")["status"], "True");
    }

    #[test]
    fn outcome_replaces_conditions_and_failure_keeps_them() {
        let first = status_after_outcome(
            None,
            &outcome(vec![condition("Synced", true, "Yes", "")]),
            None,
            MOMENT,
        );
        let failed = status_after_failure(Some(&first), &failure(Resolution::Terminal), None, MOMENT);
        assert_eq!(find(&failed, "Synced")["status"], "True");
        assert_eq!(find(&failed, "Stalled")["reason"], "TeamNotReady");
        let well = status_after_outcome(Some(&failed), &outcome(vec![]), None, MOMENT);
        assert_eq!(
            (find(&well, "Synced"), find(&well, "Stalled")),
            (&Value::Null, &Value::Null)
        );
    }

    #[test]
    fn host_fields_from_a_component_are_ignored() {
        let forged = json!({"conditions": [{"type": "Ready"}], "observedGeneration": 99, "id": 1});
        let status = status_after_outcome(
            None,
            &outcome(vec![condition("X", true, "not a reason!", "")]),
            Some(&forged),
            MOMENT,
        );
        assert_eq!(
            (&status["observedGeneration"], &status["id"]),
            (&json!(3), &json!(1))
        );
        assert_eq!(find(&status, "X")["reason"], "Unspecified");
    }

    #[test]
    fn nulls_from_a_component_are_removed() {
        let fields = json!({"a": null, "b": {"c": null, "d": 1}});
        let status = status_after_outcome(None, &outcome(vec![]), Some(&fields), MOMENT);
        assert_eq!((status.get("a"), &status["b"]), (None, &json!({"d": 1})));
    }

    fn value() -> impl Strategy<Value = Value> {
        // No nulls: a merge patch cannot say them, and a status has none.
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::hash_map("[a-c]", inner, 0..3)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    fn object() -> impl Strategy<Value = Value> {
        prop::collection::hash_map("[a-d]", value(), 0..4)
            .prop_map(|m| Value::Object(m.into_iter().collect()))
    }

    fn merge(target: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            return *target = patch.clone();
        };
        if !target.is_object() {
            *target = json!({});
        }
        for (key, value) in patch {
            match value {
                Value::Null => drop(target.as_object_mut().expect("an object").remove(key)),
                value => merge(
                    target
                        .as_object_mut()
                        .expect("an object")
                        .entry(key)
                        .or_insert(Value::Null),
                    value,
                ),
            }
        }
    }

    proptest! {
        #[test]
        fn merge_patch_applied_to_old_gives_new(old in object(), new in object()) {
            match merge_patch(Some(&old), &new) {
                None => prop_assert_eq!(&old, &new),
                Some(patch) => {
                    let mut merged = old.clone();
                    merge(&mut merged, &patch);
                    prop_assert_eq!(merged, new);
                }
            }
        }
    }
}
