//! Discovery: version, groups, resources, OpenAPI.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::kind::ServedKind;
use crate::openapi;
use crate::registry::KindRegistry;
use crate::status::StatusError;

/// Review resources, which are answered and not stored: (group, plural, kind, namespaced).
pub const REVIEW_RESOURCES: &[(&str, &str, &str, bool)] = &[
    (
        "authentication.k8s.io",
        "selfsubjectreviews",
        "SelfSubjectReview",
        false,
    ),
    ("authentication.k8s.io", "tokenreviews", "TokenReview", false),
    (
        "authorization.k8s.io",
        "localsubjectaccessreviews",
        "LocalSubjectAccessReview",
        true,
    ),
    (
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        false,
    ),
    (
        "authorization.k8s.io",
        "selfsubjectrulesreviews",
        "SelfSubjectRulesReview",
        false,
    ),
    (
        "authorization.k8s.io",
        "subjectaccessreviews",
        "SubjectAccessReview",
        false,
    ),
];

/// Answers a discovery path; `None` for any other path.
pub fn answer_discovery(
    registry: &KindRegistry,
    path: &str,
    address: &str,
) -> Option<Result<Value, StatusError>> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    Some(Ok(match parts.as_slice() {
        [""] => {
            json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]})
        }
        ["version"] => json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.0-ostler", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc",
            "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
        }),
        ["api"] => json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
        }),
        ["apis"] => {
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list_groups(registry).iter().map(group_entry).collect::<Value>()})
        }
        ["apis", name] => match list_groups(registry).get_key_value(*name) {
            Some(found) => {
                let mut value = group_entry(found);
                value["kind"] = "APIGroup".into();
                value["apiVersion"] = "v1".into();
                value
            }
            None => return Some(Err(StatusError::no_such_path())),
        },
        ["api", "v1"] => resource_list(registry, "", "v1"),
        ["apis", name, version] => match list_groups(registry).get(*name) {
            Some(versions) if versions.iter().any(|known| known == version) => {
                resource_list(registry, name, version)
            }
            _ => return Some(Err(StatusError::no_such_path())),
        },
        ["openapi", "v2"] => openapi_v2(registry),
        ["openapi", "v3"] => openapi_index(registry),
        ["openapi", "v3", "api", "v1"] => openapi_v3(registry, "", "v1"),
        ["openapi", "v3", "apis", name, version] => openapi_v3(registry, name, version),
        _ => return None,
    }))
}

/// Named groups with their served versions, preferred first.
fn list_groups(registry: &KindRegistry) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, ..) in REVIEW_RESOURCES {
        groups.insert((*name).into(), vec!["v1".into()]);
    }
    for kind in registry
        .list_kinds()
        .iter()
        .filter(|kind| !kind.resource.group.is_empty())
    {
        let versions = groups.entry(kind.resource.group.clone()).or_default();
        for version in kind.versions.iter().filter(|version| version.served) {
            if !versions.contains(&version.name) {
                versions.push(version.name.clone());
            }
        }
    }
    groups.retain(|_, versions| !versions.is_empty());
    groups
}

fn group_entry((name, versions): (&String, &Vec<String>)) -> Value {
    let entry = |version: &String| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    json!({"name": name, "versions": versions.iter().map(entry).collect::<Value>(), "preferredVersion": entry(&versions[0])})
}

fn served_kinds(registry: &KindRegistry, group: &str, version: &str) -> Vec<Arc<ServedKind>> {
    registry
        .list_kinds()
        .into_iter()
        .filter(|kind| kind.resource.group == group && kind.version(version).is_some())
        .collect()
}

fn resource_list(registry: &KindRegistry, group: &str, version: &str) -> Value {
    let mut list = Vec::new();
    for kind in served_kinds(registry, group, version) {
        let mut resource = json!({
            "name": kind.resource.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind,
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        });
        if !kind.short_names.is_empty() {
            resource["shortNames"] = kind.short_names.clone().into();
        }
        if !kind.categories.is_empty() {
            resource["categories"] = kind.categories.clone().into();
        }
        list.push(resource);
        if kind.version(version).is_some_and(|version| version.status) {
            list.push(json!({
                "name": format!("{}/status", kind.resource.plural), "singularName": "", "namespaced": kind.namespaced,
                "kind": kind.kind, "verbs": ["get", "patch", "update"],
            }));
        }
        if kind
            .version(version)
            .is_some_and(|version| version.scale.is_some())
        {
            list.push(json!({
                "name": format!("{}/scale", kind.resource.plural), "singularName": "", "namespaced": kind.namespaced,
                "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get", "patch", "update"],
            }));
        }
    }
    if (group, version) == ("", "v1") {
        list.push(json!({"name": "pods/log", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["get"]}));
        list.push(json!({
            "name": "serviceaccounts/token", "singularName": "", "namespaced": true, "group": "authentication.k8s.io", "version": "v1",
            "kind": "TokenRequest", "verbs": ["create"],
        }));
        list.push(json!({"name": "pods/resize", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["get", "patch", "update"]}));
    }
    for (_, plural, kind, namespaced) in REVIEW_RESOURCES.iter().filter(|(name, ..)| *name == group) {
        list.push(json!({"name": plural, "singularName": kind.to_lowercase(), "namespaced": namespaced, "kind": kind, "verbs": ["create"]}));
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list})
}

/// `io.concourse-ci.v1alpha1.Team`: reversed group, version, kind.
fn definition_name(kind: &ServedKind, version: &str) -> String {
    let group = match kind.resource.group.as_str() {
        "" => "api.core".to_owned(),
        group => group.split('.').rev().collect::<Vec<_>>().join("."),
    };
    format!("{group}.{version}.{}", kind.kind)
}

fn described_schema(kind: &ServedKind, version: &str) -> Value {
    let mut schema = kind
        .version(version)
        .map(|version| version.openapi.clone())
        .unwrap_or_else(|| json!({"type": "object"}));
    schema["properties"]["apiVersion"] = json!({"type": "string", "description": "APIVersion defines the versioned schema of this representation of an object."});
    schema["properties"]["kind"] =
        json!({"type": "string", "description": "Kind is the type of this object."});
    schema["properties"]["metadata"] = json!({"type": "object", "description": "Standard object's metadata.", "x-kubernetes-preserve-unknown-fields": true});
    schema["x-kubernetes-group-version-kind"] =
        json!([{"group": kind.resource.group, "version": version, "kind": kind.kind}]);
    schema
}

fn openapi_index(registry: &KindRegistry) -> Value {
    let mut paths = Map::new();
    let url = |path: &str| json!({"serverRelativeURL": format!("/openapi/v3/{path}")});
    paths.insert("api/v1".into(), url("api/v1"));
    for (group, versions) in list_groups(registry) {
        for version in versions {
            let path = format!("apis/{group}/{version}");
            paths.insert(path.clone(), url(&path));
        }
    }
    json!({"paths": paths})
}

fn openapi_v3(registry: &KindRegistry, group: &str, version: &str) -> Value {
    let (mut schemas, mut paths) = (Map::new(), Map::new());
    for kind in served_kinds(registry, group, version) {
        add_definitions(&kind, version, &mut schemas);
        paths.insert(path_of(&kind, version), path_operations(&kind, version));
    }
    json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.36.0-ostler"}, "paths": paths, "components": {"schemas": schemas}})
}

/// Adds the definition of a kind and what it refers to.
fn add_definitions(kind: &ServedKind, version: &str, schemas: &mut Map<String, Value>) {
    let built_in = openapi::find_kind_definition(&kind.resource.group, version, &kind.kind);
    match built_in.filter(|_| !kind.custom) {
        Some(name) => openapi::collect_definitions(name, schemas),
        None => {
            schemas.insert(definition_name(kind, version), described_schema(kind, version));
        }
    }
}

fn path_of(kind: &ServedKind, version: &str) -> String {
    let root = match kind.resource.group.as_str() {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    };
    let namespace = if kind.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    format!("{root}{namespace}/{}/{{name}}", kind.resource.plural)
}

/// Operations with their parameters: kubectl reads here that the server validates fields itself.
fn path_operations(kind: &ServedKind, version: &str) -> Value {
    let parameters: Value = ["dryRun", "fieldManager", "fieldValidation", "force"]
        .iter()
        .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}))
        .collect();
    let gvk = json!({"group": kind.resource.group, "version": version, "kind": kind.kind});
    let operation = |action: &str| {
        json!({
            "x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk, "parameters": parameters,
            "responses": {"200": {"description": "OK"}},
        })
    };
    json!({"get": operation("get"), "put": operation("put"), "patch": operation("patch"), "delete": operation("delete")})
}

fn openapi_v2(registry: &KindRegistry) -> Value {
    let mut definitions = Map::new();
    for kind in registry.list_kinds() {
        for version in kind.versions.iter().filter(|version| version.served) {
            add_definitions(&kind, &version.name, &mut definitions);
        }
    }
    for definition in definitions.values_mut() {
        move_references(definition);
    }
    json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36.0-ostler"}, "paths": {}, "definitions": definitions})
}

/// Lets references of OpenAPI 3 point to where OpenAPI 2 has its definitions.
fn move_references(declared: &mut Value) {
    match declared {
        Value::Object(fields) => {
            for (keyword, value) in fields {
                match value {
                    Value::String(reference) if keyword == "$ref" => {
                        *reference = reference.replace("#/components/schemas/", "#/definitions/");
                    }
                    other => move_references(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(move_references),
        _ => {}
    }
}
