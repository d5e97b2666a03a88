//! The manifests in `deploy/` have the rights that `ostler plugin install` derives from the manifests of the components.

use std::path::PathBuf;

use ostler::testing::{
    grants::{Grants, ServiceAccount},
    plugin::install::{host_objects, render_yaml},
};
use ostler_test_harness::{deploy::render_rights, scenario, workspace_root};
use serde_json::Value;

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

fn check_file(file: &str, title: &str, objects: &[Value]) {
    let expected = format!(
        "# {title}\n# Generated: `{UPDATE_COMMAND}`. The rights follow from the manifests of the components and the grants.\n{}",
        render_yaml(objects)
    );
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
    check_file(
        "rbac.yaml",
        "The rights of the host, without those for its plugins.",
        &host_objects(&host()),
    );
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
        check_file(pack.file, &format!("The rights of the {}.", pack.title), &objects);
    }
}
