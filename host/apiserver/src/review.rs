//! Reviews: this server knows no users, so everybody may do everything.

use serde_json::{Value, json};

/// Answers a review of the given kind.
pub fn answer(kind: &str, mut object: Value) -> Value {
    if !object.is_object() {
        object = json!({});
    }
    let user = json!({"username": "ostler:admin", "groups": ["system:masters", "system:authenticated"]});
    object["status"] = match kind {
        "SelfSubjectReview" => json!({"userInfo": user}),
        "TokenReview" => json!({"authenticated": true, "user": user}),
        "SelfSubjectRulesReview" => json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        }),
        _ => json!({"allowed": true, "reason": "everything is allowed here"}),
    };
    object
}
