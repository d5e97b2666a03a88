//! Authentication and access reviews, decided by [`crate::rbac`].

use http::HeaderMap;
use serde_json::{Value, json};

use crate::api::RequestHandler;
use crate::rbac::{self, AccessRequest, RequestUser};
use crate::token;

/// Answers a review of the given kind.
pub fn answer_review(api: &RequestHandler, headers: &HeaderMap, kind: &str, mut object: Value) -> Value {
    if !object.is_object() {
        object = json!({});
    }
    let requester = token::find_requester(api, headers);
    let spec = &object["spec"];
    object["status"] = match kind {
        "SelfSubjectReview" => {
            json!({"userInfo": requester.unwrap_or_else(RequestUser::admin).to_user_info()})
        }
        "TokenReview" => match token::find_user(api, spec["token"].as_str().unwrap_or_default()) {
            Some(user) => json!({
                "authenticated": true,
                "user": user.to_user_info(),
                "audiences": ["https://kubernetes.default.svc"],
            }),
            None => json!({"user": {}, "error": "invalid bearer token"}),
        },
        "SelfSubjectRulesReview" => json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        }),
        _ => {
            let user = if spec["user"].is_string() {
                Some(RequestUser::from_review(spec))
            } else {
                requester
            };
            match user {
                Some(user) if !is_allowed(api, &user, spec) => {
                    json!({"allowed": false})
                }
                _ => json!({"allowed": true, "reason": "allowed"}),
            }
        }
    };
    object
}

fn is_allowed(api: &RequestHandler, user: &RequestUser, spec: &Value) -> bool {
    let path = &spec["nonResourceAttributes"];
    if path.is_object() {
        let text = |field: &str| path[field].as_str().unwrap_or_default();
        return rbac::is_path_allowed(api, user, text("verb"), text("path"));
    }
    let access = AccessRequest::from_review(&spec["resourceAttributes"]);
    rbac::is_allowed(api, user, &access)
}
