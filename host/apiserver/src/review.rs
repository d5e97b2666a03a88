//! Reviews: the administrator may do everything; others, what the roles bound to them allow.

use http::HeaderMap;
use serde_json::{Value, json};

use crate::api::Api;
use crate::rbac::{self, User, Wish};

/// Answers a review of the given kind.
pub fn answer(api: &Api, headers: &HeaderMap, kind: &str, mut object: Value) -> Value {
    if !object.is_object() {
        object = json!({});
    }
    let impersonated = User::impersonated(headers);
    let user = match &impersonated {
        Some(user) => json!({"username": user.name, "groups": user.groups}),
        None => json!({"username": "ostler:admin", "groups": ["system:masters", "system:authenticated"]}),
    };
    object["status"] = match kind {
        "SelfSubjectReview" => json!({"userInfo": user}),
        "TokenReview" => json!({"authenticated": true, "user": user}),
        "SelfSubjectRulesReview" => json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        }),
        _ => {
            let spec = &object["spec"];
            let about = match spec["user"].is_string() {
                true => Some(User::reviewed(spec)),
                false => impersonated,
            };
            let wish = Wish::reviewed(&spec["resourceAttributes"]);
            match about {
                Some(user) if !rbac::allows(api, &user, &wish) => {
                    json!({"allowed": false, "reason": "no role that is bound allows it"})
                }
                _ => json!({"allowed": true, "reason": "allowed"}),
            }
        }
    };
    object
}
