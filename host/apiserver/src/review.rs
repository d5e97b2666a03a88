//! Authentication and access reviews, decided by [`crate::rbac`].

use http::HeaderMap;
use serde_json::{Value, json};

use crate::api::Api;
use crate::rbac::{self, AccessRequest, User};

/// Answers a review of the given kind.
pub fn answer_review(api: &Api, headers: &HeaderMap, kind: &str, mut object: Value) -> Value {
    if !object.is_object() {
        object = json!({});
    }
    let impersonated = User::from_impersonation(headers);
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
            let about = if spec["user"].is_string() {
                Some(User::from_review(spec))
            } else {
                impersonated
            };
            let access = AccessRequest::from_review(&spec["resourceAttributes"]);
            match about {
                Some(user) if !rbac::is_allowed(api, &user, &access) => {
                    json!({"allowed": false, "reason": "no role that is bound allows it"})
                }
                _ => json!({"allowed": true, "reason": "allowed"}),
            }
        }
    };
    object
}
