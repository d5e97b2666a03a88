//! RBAC, for those who are impersonated and in reviews. Whoever impersonates nobody is the administrator.

use http::HeaderMap;
use serde_json::Value;

use crate::api::Api;
use crate::request::{PatchKind, Target, Verb};
use crate::status::ApiError;
use crate::storage::{Key, Resource};

const GROUP: &str = "rbac.authorization.k8s.io";
const ACCOUNT: &str = "system:serviceaccount:";

/// Somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The user name.
    pub name: String,
    /// The groups.
    pub groups: Vec<String>,
}

impl User {
    /// Who is impersonated by these headers. A service account has the groups of one where none are named.
    pub fn impersonated(headers: &HeaderMap) -> Option<Self> {
        let text = |value: &http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
        let name = text(headers.get("impersonate-user")?);
        let mut groups: Vec<String> = headers.get_all("impersonate-group").iter().map(text).collect();
        if groups.is_empty()
            && let Some((namespace, _)) = name.strip_prefix(ACCOUNT).and_then(|rest| rest.split_once(':'))
        {
            groups.push("system:serviceaccounts".into());
            groups.push(format!("system:serviceaccounts:{namespace}"));
        }
        groups.push("system:authenticated".into());
        Some(Self { name, groups })
    }

    /// Whom a SubjectAccessReview is about.
    pub fn reviewed(spec: &Value) -> Self {
        let groups = spec["groups"].as_array().into_iter().flatten();
        Self {
            name: spec["user"].as_str().unwrap_or_default().into(),
            groups: groups.filter_map(|g| g.as_str().map(Into::into)).collect(),
        }
    }

    fn is(&self, subject: &Value, namespace: &str) -> bool {
        let name = subject["name"].as_str().unwrap_or_default();
        match subject["kind"].as_str() {
            Some("User") => name == self.name,
            Some("Group") => self.groups.iter().any(|group| group == name),
            Some("ServiceAccount") => {
                let namespace = subject["namespace"].as_str().unwrap_or(namespace);
                self.name == format!("{ACCOUNT}{namespace}:{name}")
            }
            _ => false,
        }
    }
}

/// What somebody wants to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The verb, as roles name it.
    pub verb: String,
    /// API group.
    pub group: String,
    /// Plural, with the subresource.
    pub resource: String,
    /// Where; empty for everywhere.
    pub namespace: String,
    /// On what; empty for any.
    pub name: String,
}

impl Wish {
    /// What a request wants.
    pub fn of(target: &Target, verb: Verb) -> Self {
        Self {
            verb: match verb {
                Verb::Patch(PatchKind::Apply) => "patch",
                verb => verb.as_str(),
            }
            .into(),
            group: target.group.clone(),
            resource: target.counted_as(),
            namespace: target.namespace.clone().unwrap_or_default(),
            name: target.name.clone().unwrap_or_default(),
        }
    }

    /// What a review asks about.
    pub fn reviewed(attributes: &Value) -> Self {
        let text = |field: &str| attributes[field].as_str().unwrap_or_default().to_owned();
        let resource = match text("subresource") {
            sub if sub.is_empty() => text("resource"),
            sub => format!("{}/{sub}", text("resource")),
        };
        Self {
            verb: text("verb"),
            group: text("group"),
            resource,
            namespace: text("namespace"),
            name: text("name"),
        }
    }

    fn covered_by(&self, rule: &Value) -> bool {
        let has = |field: &str, wanted: &str| {
            let mut all = rule[field].as_array().into_iter().flatten();
            all.any(|item| item == wanted || item == "*")
        };
        let named = rule["resourceNames"].as_array().is_none_or(|names| {
            names.is_empty()
                || names
                    .iter()
                    .any(|name| name == self.name.as_str() && !self.name.is_empty())
        });
        let any_of_sub = self.resource.split_once('/').map(|(_, sub)| format!("*/{sub}"));
        named
            && has("verbs", &self.verb)
            && has("apiGroups", &self.group)
            && (has("resources", &self.resource) || any_of_sub.is_some_and(|any| has("resources", &any)))
    }
}

/// Whether the roles bound to somebody allow it.
pub fn allows(api: &Api, user: &User, wish: &Wish) -> bool {
    if user.groups.iter().any(|group| group == "system:masters") {
        return true;
    }
    let bound = |plural: &str, namespace: Option<&str>| {
        let (bindings, _) = api.storage.list(&Resource::new(GROUP, plural), namespace);
        let of_user = move |binding: &Value, place: &str| {
            let mut subjects = binding["subjects"].as_array().into_iter().flatten();
            subjects.any(|subject| user.is(subject, place))
        };
        let place = namespace.unwrap_or_default();
        bindings.into_iter().any(|binding| {
            of_user(&binding.value, place) && rules(api, &binding.value["roleRef"], place, wish)
        })
    };
    bound("clusterrolebindings", None)
        || (!wish.namespace.is_empty() && bound("rolebindings", Some(&wish.namespace)))
}

fn rules(api: &Api, role: &Value, namespace: &str, wish: &Wish) -> bool {
    let (plural, namespace) = match role["kind"].as_str() {
        Some("Role") => ("roles", namespace),
        _ => ("clusterroles", ""),
    };
    let key = Key::new(namespace, role["name"].as_str().unwrap_or_default());
    let Some(role) = api.storage.get(&Resource::new(GROUP, plural), &key) else {
        return false;
    };
    let mut rules = role.value["rules"].as_array().into_iter().flatten();
    rules.any(|rule| wish.covered_by(rule))
}

/// Refuses a request of somebody who may not make it, in Kubernetes' words.
pub fn check(api: &Api, user: &User, wish: &Wish) -> Result<(), ApiError> {
    if allows(api, user, wish) {
        return Ok(());
    }
    let Wish {
        verb,
        group,
        resource,
        namespace,
        name,
    } = wish;
    let subject = match name.is_empty() {
        true => resource.clone(),
        false => format!("{resource} {name:?}"),
    };
    let place = match namespace.is_empty() {
        true => "at the cluster scope".to_owned(),
        false => format!("in the namespace {namespace:?}"),
    };
    Err(ApiError::new(
        403,
        "Forbidden",
        format!(
            "{subject} is forbidden: User {:?} cannot {verb} resource {resource:?} in API group {group:?} {place}",
            user.name
        ),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wish(verb: &str, resource: &str, name: &str) -> Wish {
        Wish {
            verb: verb.into(),
            group: String::new(),
            resource: resource.into(),
            namespace: "a".into(),
            name: name.into(),
        }
    }

    #[test]
    fn rules_cover_what_they_name() {
        let rule =
            json!({"apiGroups": [""], "resources": ["configmaps", "*/status"], "verbs": ["get", "list"]});
        assert!(wish("get", "configmaps", "x").covered_by(&rule));
        assert!(wish("get", "pods/status", "x").covered_by(&rule));
        assert!(!wish("get", "pods", "x").covered_by(&rule));
        assert!(!wish("get", "configmaps/scale", "x").covered_by(&rule));
        assert!(!wish("delete", "configmaps", "x").covered_by(&rule));
        let named = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "resourceNames": ["x"]});
        assert!(wish("get", "configmaps", "x").covered_by(&named));
        assert!(!wish("get", "configmaps", "y").covered_by(&named));
        assert!(!wish("list", "configmaps", "").covered_by(&named));
    }

    #[test]
    fn a_service_account_has_its_groups() {
        let mut headers = HeaderMap::new();
        assert_eq!(User::impersonated(&headers), None);
        let name = "system:serviceaccount:ci:builder";
        headers.insert("impersonate-user", name.parse().unwrap());
        let user = User::impersonated(&headers).unwrap();
        let groups = [
            "system:serviceaccounts",
            "system:serviceaccounts:ci",
            "system:authenticated",
        ];
        assert_eq!(user.groups, groups);
        assert!(user.is(
            &json!({"kind": "ServiceAccount", "name": "builder", "namespace": "ci"}),
            ""
        ));
        assert!(user.is(&json!({"kind": "ServiceAccount", "name": "builder"}), "ci"));
        assert!(!user.is(&json!({"kind": "ServiceAccount", "name": "builder"}), "other"));
        assert!(!user.is(&json!({"kind": "User", "name": "builder"}), "ci"));
    }
}
