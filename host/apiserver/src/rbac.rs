//! RBAC for impersonated users, service accounts and access reviews. A request of nobody in particular has all rights.

use std::sync::Arc;

use http::HeaderMap;
use ostler_selector::LabelSelector;
use serde_json::{Value, json};

use crate::object::set_field;
use crate::request::{PatchKind, RequestTarget, RequestVerb};
use crate::scale::format_selector;
use crate::state::RequestHandler;
use crate::status::StatusError;
use crate::storage::{GroupResource, StoredKey, StoredObject};

/// Group of roles and bindings.
pub const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// Number of levels of default roles: `admin` aggregates `edit`, which aggregates `view`.
pub const DEFAULT_ROLE_LEVELS: usize = 3;
/// The ClusterRoles that every cluster has, as a list of name, labels, rules, aggregation rule and groups to which they are bound.
const DEFAULT_ROLES: &str = include_str!("rbac/default_roles.yaml");

/// Returns the ClusterRoles that every cluster has, and their ClusterRoleBindings.
pub fn default_roles() -> (Vec<Value>, Vec<Value>) {
    // The file is a part of the program, and its tests read it.
    let declared: Vec<Value> = serde_saphyr::from_str(DEFAULT_ROLES).unwrap_or_default();
    let create = |kind: &str, declared: &Value| {
        json!({
            "apiVersion": format!("{RBAC_GROUP}/v1"), "kind": kind,
            "metadata": {
                "name": declared["name"], "labels": declared["labels"],
                "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
            },
        })
    };
    let roles = declared.iter().map(|declared| {
        let mut role = create("ClusterRole", declared);
        for field in ["rules", "aggregationRule"] {
            set_field(&mut role, field, declared.get(field).cloned());
        }
        role
    });
    let bindings = declared.iter().filter_map(|declared| {
        let groups = declared["groups"].as_array()?.iter();
        let subjects: Value = groups
            .map(|group| json!({"apiGroup": RBAC_GROUP, "kind": "Group", "name": group}))
            .collect();
        let mut binding = create("ClusterRoleBinding", declared);
        binding["roleRef"] = json!({"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": declared["name"]});
        binding["subjects"] = subjects;
        Some(binding)
    });
    (roles.collect(), bindings.collect())
}

/// Gives each aggregated ClusterRole the rules of the roles that it selects, as they are: one that selects an aggregated role has its
/// new rules after the next call. `changed` limits this to roles that the states of a written role concern; empty for all.
pub fn aggregate_roles(api: &RequestHandler, changed: &[&StoredObject]) {
    let resource = GroupResource::new(RBAC_GROUP, "clusterroles");
    let (roles, _) = api.storage.list(&resource, None);
    let is_aggregated = |role: &&Arc<StoredObject>| role.value["aggregationRule"].is_object();
    for role in roles.iter().filter(is_aggregated) {
        let selectors = role.value["aggregationRule"]["clusterRoleSelectors"].as_array();
        let selectors: Vec<LabelSelector> = selectors
            .into_iter()
            .flatten()
            .filter_map(|selector| LabelSelector::parse(&format_selector(selector)).ok())
            .collect();
        let is_selected = |other: &StoredObject| {
            let labels = &other.value["metadata"]["labels"];
            other.key() != role.key() && selectors.iter().any(|selector| selector.matches(labels))
        };
        let is_concerned = |state: &&StoredObject| state.key() == role.key() || is_selected(state);
        if !changed.is_empty() && !changed.iter().any(is_concerned) {
            continue;
        }
        let mut rules: Vec<Value> = Vec::new();
        for part in roles.iter().filter(|other| is_selected(other)) {
            for rule in part.value["rules"].as_array().into_iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
        let rules = if rules.is_empty() {
            Value::Null
        } else {
            rules.into()
        };
        api.adjust_object(&resource, &role.key(), |role| role["rules"] = rules.clone());
    }
}

/// A user with its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestUser {
    /// The user name.
    pub name: String,
    /// Its identity over time; empty if it has none.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
}

impl RequestUser {
    /// Whoever sends a request without a user.
    pub fn admin() -> Self {
        Self {
            name: "ostler:admin".into(),
            uid: String::new(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
        }
    }

    /// A service account, in its standard groups.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            name: format!("{ACCOUNT_PREFIX}{namespace}:{name}"),
            uid: uid.to_owned(),
            groups: [
                account_groups(namespace).as_slice(),
                &["system:authenticated".into()],
            ]
            .concat(),
        }
    }

    /// The user as in the status of a review.
    pub fn to_user_info(&self) -> Value {
        let mut info = json!({ "username": self.name, "groups": self.groups });
        if !self.uid.is_empty() {
            info["uid"] = self.uid.as_str().into();
        }
        info
    }

    /// The user that the headers impersonate. A service account without explicit groups has its standard groups.
    pub fn from_impersonation(headers: &HeaderMap) -> Option<Self> {
        let text = |value: &http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
        let name = text(headers.get("impersonate-user")?);
        let mut groups: Vec<String> = headers.get_all("impersonate-group").iter().map(text).collect();
        if groups.is_empty()
            && let Some((namespace, _)) = name
                .strip_prefix(ACCOUNT_PREFIX)
                .and_then(|rest| rest.split_once(':'))
        {
            groups.extend(account_groups(namespace));
        }
        groups.push("system:authenticated".into());
        let uid = String::new();
        Some(Self { name, uid, groups })
    }

    /// The user of a SubjectAccessReview.
    pub fn from_review(spec: &Value) -> Self {
        let groups = spec["groups"].as_array().into_iter().flatten();
        Self {
            name: spec["user"].as_str().unwrap_or_default().into(),
            uid: spec["uid"].as_str().unwrap_or_default().into(),
            groups: groups.filter_map(|g| g.as_str().map(Into::into)).collect(),
        }
    }

    fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == "system:masters")
    }

    fn is_subject(&self, subject: &Value, namespace: &str) -> bool {
        let name = subject["name"].as_str().unwrap_or_default();
        match subject["kind"].as_str() {
            Some("User") => name == self.name,
            Some("Group") => self.groups.iter().any(|group| group == name),
            Some("ServiceAccount") => {
                let namespace = subject["namespace"].as_str().unwrap_or(namespace);
                self.name == format!("{ACCOUNT_PREFIX}{namespace}:{name}")
            }
            _ => false,
        }
    }
}

/// The groups of the service accounts of a namespace.
fn account_groups(namespace: &str) -> [String; 2] {
    [
        "system:serviceaccounts".into(),
        format!("system:serviceaccounts:{namespace}"),
    ]
}

/// The attributes of a request that RBAC decides on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRequest {
    /// The verb, as in roles.
    pub verb: String,
    /// API group.
    pub group: String,
    /// Plural, or `plural/subresource`.
    pub resource: String,
    /// Namespace; empty for all.
    pub namespace: String,
    /// Object name; empty for any.
    pub name: String,
}

impl AccessRequest {
    /// The attributes of a request.
    pub fn from_request(target: &RequestTarget, verb: RequestVerb) -> Self {
        Self {
            verb: match verb {
                RequestVerb::Patch(PatchKind::Apply) => "patch",
                verb => verb.as_str(),
            }
            .into(),
            group: target.group.clone(),
            resource: target.resource_with_subresource(),
            namespace: target.namespace.clone().unwrap_or_default(),
            name: target.name.clone().unwrap_or_default(),
        }
    }

    /// The `resourceAttributes` of a review.
    pub fn from_review(attributes: &Value) -> Self {
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

    /// Returns true if a rule of a role allows the access.
    pub fn is_covered_by(&self, rule: &Value) -> bool {
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

/// Returns true if a role bound to the user allows the access.
pub fn is_allowed(api: &RequestHandler, user: &RequestUser, access: &AccessRequest) -> bool {
    find_grant(api, user, access).is_some()
}

/// Returns why the user has the access, as in the status of a review; empty for the administrator. `None` if it has not.
pub fn find_grant(api: &RequestHandler, user: &RequestUser, access: &AccessRequest) -> Option<String> {
    if user.is_master() {
        return Some(String::new());
    }
    let namespace = Some(access.namespace.as_str()).filter(|namespace| !namespace.is_empty());
    let of_namespace = namespace
        .into_iter()
        .flat_map(|namespace| list_bound_rules(api, user, Some(namespace)));
    let mut bound = list_bound_rules(api, user, None).chain(of_namespace);
    let found = bound.find(|bound| access.is_covered_by(&bound.rule))?;
    Some(found.describe())
}

/// Returns why the user may send requests with this verb to a path that stands for no resource. `None` if it may not.
pub fn find_path_grant(api: &RequestHandler, user: &RequestUser, verb: &str, path: &str) -> Option<String> {
    if user.is_master() {
        return Some(String::new());
    }
    let found = list_bound_rules(api, user, None).find(|bound| covers_path(&bound.rule, verb, path))?;
    Some(found.describe())
}

/// Returns true if a rule allows requests with this verb to a path that stands for no resource.
pub fn covers_path(rule: &Value, verb: &str, path: &str) -> bool {
    let has = |field: &str, matches: &dyn Fn(&str) -> bool| {
        let mut all = rule[field].as_array().into_iter().flatten();
        all.any(|item| item.as_str().is_some_and(matches))
    };
    let is_path = |pattern: &str| match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => path == pattern,
    };
    has("verbs", &|item| item == verb || item == "*") && has("nonResourceURLs", &is_path)
}

/// A rule of a role that is bound to a user.
struct BoundRule {
    rule: Value,
    binding: Arc<StoredObject>,
    /// The subject of the binding that is the user.
    subject: Value,
}

impl BoundRule {
    /// Describes by what the user has the rule.
    fn describe(&self) -> String {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (binding, role) = (&self.binding.value, &self.binding.value["roleRef"]);
        let (name, namespace) = (
            text(&binding["metadata"]["name"]),
            text(&binding["metadata"]["namespace"]),
        );
        let binding = if namespace.is_empty() {
            format!("ClusterRoleBinding {name:?}")
        } else {
            format!("RoleBinding {:?}", format!("{name}/{namespace}"))
        };
        let kind = text(&self.subject["kind"]);
        let mut subject = text(&self.subject["name"]);
        if kind == "ServiceAccount" {
            let own = text(&self.subject["namespace"]);
            subject = format!("{subject}/{}", if own.is_empty() { namespace } else { own });
        }
        format!(
            "RBAC: allowed by {binding} of {} {:?} to {kind} {subject:?}",
            text(&role["kind"]),
            text(&role["name"]),
        )
    }
}

/// Iterates over the rules of all roles that are bound to the user in a namespace, or in all of them. Roles are read when their turn
/// comes, since a request mostly needs the first ones.
fn list_bound_rules<'a>(
    api: &'a RequestHandler,
    user: &RequestUser,
    namespace: Option<&'a str>,
) -> impl Iterator<Item = BoundRule> + use<'a> {
    let bindings = list_bindings(api, user, namespace).into_iter();
    bindings.flat_map(move |(binding, subject)| {
        let role = &binding.value["roleRef"];
        let of_role = find_rules(api, role, namespace.unwrap_or_default()).unwrap_or_default();
        of_role.into_iter().map(move |rule| BoundRule {
            rule,
            binding: binding.clone(),
            subject: subject.clone(),
        })
    })
}

/// Returns the bindings of the user in a namespace, or in all of them, each with the subject that is the user.
fn list_bindings(
    api: &RequestHandler,
    user: &RequestUser,
    namespace: Option<&str>,
) -> Vec<(Arc<StoredObject>, Value)> {
    let plural = match namespace {
        Some(_) => "rolebindings",
        None => "clusterrolebindings",
    };
    let (bindings, _) = api
        .storage
        .list(&GroupResource::new(RBAC_GROUP, plural), namespace);
    let place = namespace.unwrap_or_default();
    let bound = bindings.into_iter().filter_map(|binding| {
        let mut subjects = binding.value["subjects"].as_array().into_iter().flatten();
        let subject = subjects.find(|subject| user.is_subject(subject, place))?.clone();
        Some((binding, subject))
    });
    bound.collect()
}

/// Returns why a user lacks a right that a binding may have been meant to give: the bound roles that do not exist. Empty if all do.
pub fn describe_absent_roles(api: &RequestHandler, user: &RequestUser, namespace: &str) -> String {
    let mut bindings = list_bindings(api, user, None);
    if !namespace.is_empty() {
        bindings.extend(list_bindings(api, user, Some(namespace)));
    }
    let absent = bindings.iter().filter_map(|(binding, _)| {
        let role = &binding.value["roleRef"];
        let place = binding.value["metadata"]["namespace"]
            .as_str()
            .unwrap_or_default();
        if find_rules(api, role, place).is_some() {
            return None;
        }
        let kind = role["kind"].as_str().unwrap_or_default().to_lowercase();
        let name = role["name"].as_str().unwrap_or_default();
        Some(format!("{kind}.{RBAC_GROUP} {name:?} not found"))
    });
    let absent: Vec<String> = absent.collect();
    match absent.as_slice() {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        several => format!("RBAC: [{}]", several.join(", ")),
    }
}

/// Returns the rules that a user has in a namespace.
pub fn list_user_rules(api: &RequestHandler, user: &RequestUser, namespace: &str) -> Vec<Value> {
    let bound = [None, Some(namespace)]
        .into_iter()
        .flat_map(|namespace| list_bound_rules(api, user, namespace));
    bound.map(|bound| bound.rule).collect()
}

/// Returns the rules of a role; `None` if there is no such role.
pub fn find_rules(api: &RequestHandler, role: &Value, namespace: &str) -> Option<Vec<Value>> {
    let (plural, namespace) = match role["kind"].as_str() {
        Some("Role") => ("roles", namespace),
        _ => ("clusterroles", ""),
    };
    let key = StoredKey::new(namespace, role["name"].as_str().unwrap_or_default());
    let role = api.storage.get(&GroupResource::new(RBAC_GROUP, plural), &key)?;
    Some(role.value["rules"].as_array().cloned().unwrap_or_default())
}

/// Fails with 403 Forbidden and Kubernetes' message if no role allows the access.
pub fn check_access(
    api: &RequestHandler,
    user: &RequestUser,
    access: &AccessRequest,
) -> Result<(), StatusError> {
    if is_allowed(api, user, access) {
        return Ok(());
    }
    let AccessRequest {
        verb,
        group,
        resource,
        namespace,
        name,
    } = access;
    let subject = if name.is_empty() {
        resource.clone()
    } else {
        format!("{resource} {name:?}")
    };
    let place = if namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {namespace:?}")
    };
    let absent = match describe_absent_roles(api, user, namespace) {
        absent if absent.is_empty() => absent,
        absent => format!(": {absent}"),
    };
    Err(StatusError::new(
        403,
        "Forbidden",
        format!(
            "{subject} is forbidden: User {:?} cannot {verb} resource {resource:?} in API group {group:?} {place}{absent}",
            user.name
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access_request(verb: &str, resource: &str, name: &str) -> AccessRequest {
        AccessRequest {
            verb: verb.into(),
            group: String::new(),
            resource: resource.into(),
            namespace: "a".into(),
            name: name.into(),
        }
    }

    #[test]
    fn rule_covers_only_named_verbs_resources_and_objects() {
        let rule =
            json!({"apiGroups": [""], "resources": ["configmaps", "*/status"], "verbs": ["get", "list"]});
        assert!(access_request("get", "configmaps", "x").is_covered_by(&rule));
        assert!(access_request("get", "pods/status", "x").is_covered_by(&rule));
        assert!(!access_request("get", "pods", "x").is_covered_by(&rule));
        assert!(!access_request("get", "configmaps/scale", "x").is_covered_by(&rule));
        assert!(!access_request("delete", "configmaps", "x").is_covered_by(&rule));
        let named = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "resourceNames": ["x"]});
        assert!(access_request("get", "configmaps", "x").is_covered_by(&named));
        assert!(!access_request("get", "configmaps", "y").is_covered_by(&named));
        assert!(!access_request("list", "configmaps", "").is_covered_by(&named));
    }

    #[test]
    fn impersonated_service_account_has_its_groups() {
        let mut headers = HeaderMap::new();
        assert_eq!(RequestUser::from_impersonation(&headers), None);
        let name = "system:serviceaccount:ci:builder";
        headers.insert("impersonate-user", name.parse().unwrap());
        let user = RequestUser::from_impersonation(&headers).unwrap();
        let groups = [
            "system:serviceaccounts",
            "system:serviceaccounts:ci",
            "system:authenticated",
        ];
        assert_eq!(user.groups, groups);
        assert!(user.is_subject(
            &json!({"kind": "ServiceAccount", "name": "builder", "namespace": "ci"}),
            ""
        ));
        assert!(user.is_subject(&json!({"kind": "ServiceAccount", "name": "builder"}), "ci"));
        assert!(!user.is_subject(&json!({"kind": "ServiceAccount", "name": "builder"}), "other"));
        assert!(!user.is_subject(&json!({"kind": "User", "name": "builder"}), "ci"));
    }

    #[test]
    fn default_roles_aggregate_those_that_they_select() {
        let api = RequestHandler::new(crate::storage::Storage::new(100).0);
        let resource = GroupResource::new(RBAC_GROUP, "clusterroles");
        let rules = |name: &str| {
            let role = api.storage.get(&resource, &StoredKey::new("", name));
            role.map_or(0, |role| role.value["rules"].as_array().map_or(0, Vec::len))
        };
        let (roles, bindings) = default_roles();
        assert_eq!((roles.len(), bindings.len()), (10, 4));
        assert_eq!(rules("cluster-admin"), 2);
        assert!(rules("view") > 5, "{}", rules("view"));
        let counts = ["view", "edit", "admin"].map(rules);
        assert!(counts.is_sorted_by(|one, next| one < next), "{counts:?}");
    }
}
