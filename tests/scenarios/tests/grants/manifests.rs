//! The manifests in `deploy/` have the rights that `ostler plugin install` derives from the manifests of the components.

use std::path::PathBuf;

use ostler::testing::{
    grants::{Grants, ServiceAccount},
    plugin::install::{host_objects, render_yaml},
};
use ostler_test_harness::{deploy::render_rights, scenario, workspace_root};
use serde_json::{Value, json};

use crate::observability::ostler;

const UPDATE_COMMAND: &str = "UPDATE_DEPLOY=1 cargo test -p ostler-scenarios grants::manifests";

/// A pack whose rights are a file in `deploy/`.
struct Pack {
    file: &'static str,
    grants: &'static str,
    namespace: &'static str,
    title: &'static str,
}

const PACKS: [Pack; 4] = [
    Pack {
        file: "concourse.yaml",
        grants: "grants.yaml",
        namespace: "ci",
        title: "Concourse pack in the namespace `ci`",
    },
    Pack {
        file: "devops.yaml",
        grants: "devops-grants.yaml",
        namespace: "devops",
        title: "DevOps pack in the namespace `devops`, and in that of Argo CD (`argocd`)",
    },
    Pack {
        file: "dns.yaml",
        grants: "dns-grants.yaml",
        namespace: "dns",
        title: "DNS pack in the namespace `dns`",
    },
    Pack {
        file: "steps.yaml",
        grants: "steps-grants.yaml",
        namespace: "steps",
        title: "steps pack in the namespace `steps`",
    },
];

fn host() -> ServiceAccount {
    ServiceAccount {
        namespace: "ostler-system".into(),
        name: "ostler".into(),
    }
}

fn deploy_path(file: &str) -> PathBuf {
    workspace_root().join("deploy").join(file)
}

fn check_rights(file: &str, title: &str, objects: &[Value]) {
    let expected = format!(
        "# {title}\n# Generated: `{UPDATE_COMMAND}`. The rights follow from the manifests of the components and the grants.\n{}",
        render_yaml(objects)
    );
    check_file(file, &expected);
}

fn check_file(file: &str, expected: &str) {
    let path = deploy_path(file);
    if std::env::var_os("UPDATE_DEPLOY").is_some() {
        std::fs::write(&path, expected).expect("deploy/ is writable");
        return;
    }
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        current == expected,
        "deploy/{file} is not current; run: {UPDATE_COMMAND}"
    );
}

#[scenario(embedded = "it needs no API server")]
async fn manifests_have_the_derived_rights() {
    for pack in PACKS {
        let text = std::fs::read_to_string(deploy_path(pack.grants)).expect("grants");
        let grants = Grants::parse(&text, pack.grants).expect("grants");
        let names: Value = serde_saphyr::from_str(&text).expect("YAML");
        let names = names["plugins"].as_object().expect("plugins").keys();
        // A component is in the folder of its pack, which is the first part of its name.
        let components: Vec<String> = names
            .map(|name| format!("{}/{name}", name.split('-').next().unwrap_or_default()))
            .collect();
        let components: Vec<&str> = components.iter().map(String::as_str).collect();
        let objects = render_rights(&components, &grants, pack.namespace, &host()).await;
        check_rights(pack.file, &format!("The rights of the {}.", pack.title), &objects);
    }
}

/// A template of objects of the chart, which have its labels and are left out unless a value is true.
fn render_template(objects: &[Value], condition: Option<&str>) -> String {
    let yaml = render_yaml(objects);
    assert!(!yaml.contains("{{"), "Helm would take it for an action");
    let own_label = "    app.kubernetes.io/name: ostler\n";
    let mut text = yaml
        .replace(&host().namespace, "{{ .Release.Namespace }}")
        .replace(
            own_label,
            &format!("{own_label}    app.kubernetes.io/managed-by: {{{{ .Release.Service }}}}\n"),
        );
    if let Some(condition) = condition {
        text = format!("{{{{- if .Values.{condition} }}}}\n---\n{text}{{{{- end }}}}\n");
    }
    text
}

/// The templates of the chart that follow from the code: the rights of the host, and the kinds of `ostler.dev`.
#[scenario(embedded = "it needs no API server")]
async fn chart_has_the_derived_rights_and_the_kinds() {
    let (cluster_roles, others): (Vec<Value>, Vec<Value>) = host_objects(&host())
        .into_iter()
        .partition(|object| object["kind"] == "ClusterRole");
    let rights = format!(
        "# The rights of the host, without those for its plugins.\n# Generated: `{UPDATE_COMMAND}`.\n{}{}",
        render_template(&others, None),
        render_template(&cluster_roles, Some("clusterRoles.create"))
    );
    check_file("chart/templates/rbac.yaml", &rights);
    let kinds = ["upstreams", "clusters", "plugins"].map(|kind| {
        let path = workspace_root().join(format!("crds/ostler.dev_{kind}.yaml"));
        let text = std::fs::read_to_string(&path).expect("a CustomResourceDefinition");
        let mut object: Value = serde_saphyr::from_str(&text).expect("YAML");
        object["metadata"]["labels"] = json!({"app.kubernetes.io/name": "ostler"});
        // Helm would delete all objects of the kind with the release.
        object["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
        object
    });
    let text = format!(
        "# The kinds of ostler.dev.\n# Generated: `{UPDATE_COMMAND}`.\n{}",
        render_template(&kinds, Some("crds.install"))
    );
    check_file("chart/templates/crds.yaml", &text);
    let path = workspace_root().join("deploy/alerts.yaml");
    let alerts = std::fs::read_to_string(path).expect("alerts");
    let groups = alerts.lines().filter(|line| !line.starts_with('#'));
    // The alerts have templates of their own.
    let groups = groups.map(|line| format!("  {}\n", line.replace("{{", "{{ \"{{\" }}")));
    let rule = format!(
        "# The alerts of deploy/alerts.yaml.\n# Generated: `{UPDATE_COMMAND}`.\n{PROMETHEUS_RULE}{}{{{{- end }}}}\n",
        groups.collect::<String>()
    );
    check_file("chart/templates/prometheusrule.yaml", &rule);
    let path = workspace_root().join("deploy/dashboard.json");
    let dashboard = std::fs::read_to_string(path).expect("the dashboard");
    // Legends are templates of Grafana.
    let lines = dashboard
        .lines()
        .map(|line| format!("    {}\n", line.replace("{{", "{{ \"{{\" }}")));
    let config_map = format!(
        "# The dashboard of deploy/dashboard.json.\n# Generated: `{UPDATE_COMMAND}`.\n{DASHBOARD}{}{{{{- end }}}}\n",
        lines.collect::<String>()
    );
    check_file("chart/templates/dashboard.yaml", &config_map);
}

/// The template of the ConfigMap with the dashboard, up to its content.
const DASHBOARD: &str = r#"{{- if .Values.dashboard.create }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: ostler-dashboard
  namespace: {{ .Release.Namespace }}
  labels:
    {{- template "ostler.labels" . }}
    {{- with .Values.dashboard.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
data:
  ostler.json: |
"#;

/// The template of the PrometheusRule up to its groups.
const PROMETHEUS_RULE: &str = r#"{{- if .Values.prometheusRule.create }}
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: ostler
  namespace: {{ .Release.Namespace }}
  labels:
    {{- template "ostler.labels" . }}
    {{- with .Values.prometheusRule.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
"#;

/// The kustomize base is what the chart renders with its default values.
#[scenario(embedded = "it needs no API server")]
async fn kustomize_base_is_the_chart_with_default_values() {
    let output = ostler(&["install", "--dry-run"]).await;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let rendered = String::from_utf8(output.stdout).expect("UTF-8");
    let text = format!(
        "# The host and the kinds of ostler.dev, for `kubectl apply -k`.\n# Generated from deploy/chart: `{UPDATE_COMMAND}`.\n{}",
        rendered.replace("managed-by: ostler", "managed-by: kustomize")
    );
    check_file("base/ostler.yaml", &text);
}
