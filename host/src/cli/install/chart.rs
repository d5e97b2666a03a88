//! The Helm chart of the host, which is in this binary: `ostler install` renders the same objects as Helm, without it.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use gotmpl::{Template, TemplateError, Value as TemplateValue, to_value};
use ostler_schema::Schema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Templates of objects, and that of the labels, which the others use.
const TEMPLATES: &[(&str, &str)] = &[
    (
        "crds.yaml",
        include_str!("../../../../deploy/chart/templates/crds.yaml"),
    ),
    (
        "configmap.yaml",
        include_str!("../../../../deploy/chart/templates/configmap.yaml"),
    ),
    (
        "dashboard.yaml",
        include_str!("../../../../deploy/chart/templates/dashboard.yaml"),
    ),
    (
        "deployment.yaml",
        include_str!("../../../../deploy/chart/templates/deployment.yaml"),
    ),
    (
        "networkpolicy.yaml",
        include_str!("../../../../deploy/chart/templates/networkpolicy.yaml"),
    ),
    (
        "poddisruptionbudget.yaml",
        include_str!("../../../../deploy/chart/templates/poddisruptionbudget.yaml"),
    ),
    (
        "prometheusrule.yaml",
        include_str!("../../../../deploy/chart/templates/prometheusrule.yaml"),
    ),
    (
        "rbac.yaml",
        include_str!("../../../../deploy/chart/templates/rbac.yaml"),
    ),
    (
        "servicemonitor.yaml",
        include_str!("../../../../deploy/chart/templates/servicemonitor.yaml"),
    ),
    (
        "users.yaml",
        include_str!("../../../../deploy/chart/templates/users.yaml"),
    ),
];
const LABELS: &str = include_str!("../../../../deploy/chart/templates/_labels.tpl");
const CHART: &str = include_str!("../../../../deploy/chart/Chart.yaml");
const DEFAULT_VALUES: &str = include_str!("../../../../deploy/chart/values.yaml");
const SCHEMA: &str = include_str!("../../../../deploy/chart/values.schema.json");

/// Kinds in the order in which their objects are applied, that of Helm; any other kind comes last.
const APPLY_ORDER: [&str; 11] = [
    "NetworkPolicy",
    "PodDisruptionBudget",
    "ServiceAccount",
    "ConfigMap",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "Deployment",
];

/// The release that is rendered.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a> {
    /// Namespace of the host.
    pub namespace: &'a str,
    /// What manages the objects: the value of their label `app.kubernetes.io/managed-by`.
    pub service: &'a str,
}

/// The values that the chart has by itself.
///
/// # Errors
/// The file in this binary is not YAML: a bug.
pub fn default_values() -> anyhow::Result<Value> {
    serde_saphyr::from_str(DEFAULT_VALUES).context("the default values of the chart")
}

/// Puts values into others: fields of mappings one by one, anything else as a whole. Null removes a field.
pub fn merge_values(into: &mut Value, values: Value) {
    match (into, values) {
        (Value::Object(into), Value::Object(fields)) => {
            for (name, value) in fields {
                if value.is_null() {
                    into.remove(&name);
                } else {
                    merge_values(into.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (into, value) => *into = value,
    }
}

/// Checks values by the schema of the chart.
///
/// # Errors
/// Fields that the chart does not have, or invalid ones, each in a line.
pub fn check_values(values: &Value) -> anyhow::Result<()> {
    let schema: Value = serde_json::from_str(SCHEMA).context("the schema of the chart")?;
    let schema = Schema::parse(&schema).context("the schema of the chart")?;
    let unknown = schema.prune(&mut values.clone());
    let unknown = unknown
        .iter()
        .map(|path| format!("{path}: the chart has no such value"));
    let invalid = schema.validate(values).into_iter().map(|error| error.to_string());
    let problems: Vec<String> = unknown.chain(invalid).collect();
    if problems.is_empty() {
        return Ok(());
    }
    bail!("the values are invalid:\n  {}", problems.join("\n  "))
}

/// Renders the objects of a release, in the order in which they are applied.
///
/// # Errors
/// A template can't be executed with these values, or its result is not YAML.
pub fn render_objects(values: &Value, release: Release<'_>) -> anyhow::Result<Vec<Value>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Chart {
        version: String,
        app_version: String,
    }
    let chart: Chart = serde_saphyr::from_str(CHART).context("Chart.yaml")?;
    let data = to_value(&json!({
        "Values": values,
        "Release": {"Namespace": release.namespace, "Service": release.service},
        "Chart": {"Version": chart.version, "AppVersion": chart.app_version},
    }))?;
    let mut objects = Vec::new();
    for (name, text) in TEMPLATES {
        let rendered = render_template(name, text, &data);
        let rendered = rendered.map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&rendered).map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
        objects.extend(documents.into_iter().filter(Value::is_object));
    }
    let order = |object: &Value| {
        let place = APPLY_ORDER.iter().position(|kind| object["kind"] == **kind);
        place.unwrap_or(APPLY_ORDER.len())
    };
    objects.sort_by_key(order);
    Ok(objects)
}

fn render_template(name: &str, text: &str, data: &TemplateValue) -> Result<String, TemplateError> {
    Template::new(name)
        .func("toYaml", |arguments| {
            let yaml = serde_saphyr::to_string(&to_json(argument(arguments, 0)?));
            let yaml = yaml.map_err(|e| TemplateError::Exec(format!("toYaml: {e}")))?;
            Ok(yaml.trim_end().into())
        })
        .func("nindent", |arguments| {
            let width = argument(arguments, 0)?.as_int().unwrap_or_default();
            let indent = " ".repeat(usize::try_from(width).unwrap_or_default());
            let text = argument(arguments, 1)?.to_string();
            let lines: Vec<String> = text.split('\n').map(|line| format!("{indent}{line}")).collect();
            Ok(format!("\n{}", lines.join("\n")).into())
        })
        .func("quote", |arguments| {
            let text = argument(arguments, 0)?.to_string();
            Ok(Value::String(text).to_string().into())
        })
        .parse(LABELS)?
        .parse(text)?
        .execute_to_string(data)
}

fn argument(arguments: &[TemplateValue], index: usize) -> Result<&TemplateValue, TemplateError> {
    let missing = || TemplateError::Exec("an argument is missing".into());
    arguments.get(index).ok_or_else(missing)
}

fn to_json(value: &TemplateValue) -> Value {
    match value {
        TemplateValue::Bool(value) => json!(value),
        TemplateValue::Int(value) => json!(value),
        TemplateValue::Uint(value) => json!(value),
        TemplateValue::Float(value) => json!(value),
        TemplateValue::String(value) => json!(**value),
        TemplateValue::List(items) => items.iter().map(to_json).collect(),
        TemplateValue::Map(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| (name.to_string(), to_json(value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        _ => Value::Null,
    }
}

/// The objects of the chart by kind and name, for what is to be deleted: those that other values render, too.
pub fn list_all_objects(release: Release<'_>) -> anyhow::Result<Vec<Value>> {
    let mut values = default_values()?;
    let switches = [
        "serviceMonitor",
        "prometheusRule",
        "podDisruptionBudget",
        "networkPolicy",
        "clusterRoles",
    ];
    let switched_on: BTreeMap<&str, Value> = switches.map(|name| (name, json!({"create": true}))).into();
    merge_values(&mut values, json!(switched_on));
    merge_values(&mut values, json!({"crds": {"install": true}}));
    render_objects(&values, release)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASE: Release<'_> = Release {
        namespace: "ostler-system",
        service: "ostler",
    };

    fn render(values: Value) -> Vec<Value> {
        let mut all = default_values().expect("values");
        merge_values(&mut all, values);
        check_values(&all).expect("valid");
        render_objects(&all, RELEASE).expect("rendered")
    }

    fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
        let mut objects = objects.iter();
        objects.find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
    }

    #[test]
    fn default_values_render_a_deployment_that_pod_security_admits() {
        let objects = render(json!({}));
        let deployment = find(&objects, "Deployment", "ostler").expect("a Deployment");
        assert_eq!(objects.last(), Some(deployment), "it is applied last");
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        let container = &pod["containers"][0];
        assert_eq!(
            container["image"],
            format!("ostler:{}", env!("CARGO_PKG_VERSION"))
        );
        assert_eq!(
            container["securityContext"]["capabilities"]["drop"],
            json!(["ALL"])
        );
        assert_eq!(container.get("env"), None);
        assert_eq!(find(&objects, "ServiceMonitor", "ostler"), None);
        for object in &objects {
            let labels = &object["metadata"]["labels"];
            assert_eq!(labels["app.kubernetes.io/name"], "ostler", "{object:#}");
            assert_eq!(labels["app.kubernetes.io/managed-by"], "ostler", "{object:#}");
        }
    }

    #[test]
    fn values_reach_arguments_environment_and_files() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let objects = render(json!({
            "replicaCount": 3,
            "image": {"repository": "registry.example.org/ostler", "digest": digest},
            "watchNamespaces": ["ci", "demo"],
            "grants": {"network": {"allow": ["10.96.0.0/12"]}},
            "certificateAuthorities": "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n",
            "proxy": {"url": "http://proxy.example.org:3128", "exclude": "10.96.0.1"},
            "nodeSelector": {"disk": "ssd"},
            "resources": {"limits": {"memory": "1Gi"}},
        }));
        let deployment = find(&objects, "Deployment", "ostler").expect("a Deployment");
        assert_eq!(deployment["spec"]["replicas"], 3);
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["nodeSelector"], json!({"disk": "ssd"}));
        let container = &pod["containers"][0];
        assert_eq!(
            container["image"],
            format!("registry.example.org/ostler@{digest}")
        );
        assert_eq!(container["resources"]["limits"]["memory"], "1Gi");
        let arguments = container["args"].as_array().expect("arguments");
        assert!(
            arguments.contains(&json!("--watch-namespace=demo")),
            "{arguments:?}"
        );
        let variables = container["env"].as_array().expect("variables");
        let names: Vec<&Value> = variables.iter().map(|variable| &variable["name"]).collect();
        assert_eq!(
            names,
            ["SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "NO_PROXY"]
        );
        let files = &find(&objects, "ConfigMap", "ostler").expect("files")["data"];
        let grants: Value =
            serde_saphyr::from_str(files["grants.yaml"].as_str().expect("text")).expect("YAML");
        assert_eq!(
            grants,
            json!({"network": {"allow": ["10.96.0.0/12"]}, "plugins": {}})
        );
        let authorities = files["authorities.pem"].as_str().expect("text");
        assert!(
            authorities.starts_with("-----BEGIN CERTIFICATE-----\nAA==\n"),
            "{authorities}"
        );
    }

    #[test]
    fn switches_leave_objects_out_and_add_them() {
        let off = render(
            json!({"crds": {"install": false}, "clusterRoles": {"create": false},
            "podDisruptionBudget": {"create": false}, "networkPolicy": {"create": false}}),
        );
        let kinds: Vec<&Value> = off.iter().map(|object| &object["kind"]).collect();
        for kind in [
            "CustomResourceDefinition",
            "ClusterRole",
            "PodDisruptionBudget",
            "NetworkPolicy",
        ] {
            assert!(!kinds.contains(&&json!(kind)), "{kind} in {kinds:?}");
        }
        let labelled = json!({"create": true, "labels": {"release": "main"}});
        let monitored = render(json!({"serviceMonitor": labelled, "prometheusRule": labelled}));
        let rule = find(&monitored, "PrometheusRule", "ostler").expect("a rule");
        assert_eq!(rule["metadata"]["labels"]["release"], "main");
        let alert = &rule["spec"]["groups"][0]["rules"][1]["annotations"]["summary"];
        assert_eq!(alert, "No host leads with the Lease {{ $labels.name }}.");
        let monitor = find(&monitored, "ServiceMonitor", "ostler").expect("a monitor");
        assert_eq!(monitor["metadata"]["labels"]["release"], "main");
        let all = list_all_objects(RELEASE).expect("rendered");
        for object in off.iter().chain(&monitored) {
            let name = object["metadata"]["name"].as_str().expect("a name");
            assert!(
                find(&all, object["kind"].as_str().expect("a kind"), name).is_some(),
                "{name}"
            );
        }
    }

    #[test]
    fn unknown_and_invalid_values_are_named() {
        let mut values = default_values().expect("values");
        merge_values(
            &mut values,
            json!({"replicas": 3, "replicaCount": "three", "image": {"tagg": "x"}, "logFormat": "xml"}),
        );
        let error = check_values(&values).expect_err("invalid").to_string();
        for words in [
            "replicas: the chart has no such value",
            "image.tagg",
            "replicaCount",
            "logFormat",
        ] {
            assert!(error.contains(words), "{words} in {error}");
        }
        assert!(!error.contains("resources"), "{error}");
    }

    #[test]
    fn values_are_merged_field_by_field_and_removed_by_null() {
        let mut values = json!({"a": {"b": 1, "c": [1]}, "d": 1});
        merge_values(
            &mut values,
            json!({"a": {"b": 2, "c": [2]}, "d": null, "e": {"f": 1}}),
        );
        assert_eq!(values, json!({"a": {"b": 2, "c": [2]}, "e": {"f": 1}}));
    }
}
