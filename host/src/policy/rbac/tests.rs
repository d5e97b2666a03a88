//! Rules that follow from permissions, by example and by property.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::policy::grants::{Access, Grant, PluginGrants, ServiceAccount};

fn parse(yaml: &str) -> Permissions {
    serde_saphyr::from_str(yaml).expect("permissions")
}

fn resource(group: &str, kind: &str, namespaced: bool, has_status: bool) -> ApiResource {
    ApiResource {
        namespaced,
        has_status,
        ..ApiResource::guess(group, kind)
    }
}

fn catalog() -> ResourceCatalog {
    let mut catalog = ResourceCatalog::default();
    for (group, kind, namespaced, has_status) in [
        ("", "ConfigMap", true, false),
        ("", "Secret", true, false),
        ("", "Namespace", false, true),
        ("ci.org", "Team", true, true),
        ("ci.org", "Pipeline", true, true),
        ("ci.org", "Policy", true, false),
        ("ostler.dev", "Cluster", true, true),
        ("ostler.dev", "Upstream", true, true),
    ] {
        catalog.add(resource(group, kind, namespaced, has_status));
    }
    catalog
}

fn team(has_finalizer: bool) -> Vec<ReconciledKind> {
    vec![ReconciledKind {
        gvk: Gvk::new("ci.org", "v1", "Team"),
        has_finalizer,
        has_upgrade: false,
    }]
}

fn derive(yaml: &str, reconciled: &[ReconciledKind], namespaces: &[&str]) -> PluginRights {
    let namespaces: Vec<String> = namespaces.iter().map(|n| (*n).to_owned()).collect();
    PluginRights::derive(RightsRequest {
        permissions: &parse(yaml),
        reconciled,
        handles_messages: false,
        namespaces: &namespaces,
        catalog: &catalog(),
    })
}

/// Rules as `verbs group/resources`.
fn lines(rules: &RuleSet) -> Vec<String> {
    let line = |rule: k8s_openapi::api::rbac::v1::PolicyRule| {
        let words = |words: Option<Vec<String>>| words.unwrap_or_default().join(",");
        format!(
            "{} {}/{}",
            rule.verbs.join(","),
            words(rule.api_groups),
            words(rule.resources)
        )
    };
    rules.to_policy_rules().into_iter().map(line).collect()
}

const TEAM: &str = "
reconciles: [{group: ci.org, kinds: [Team]}]
kubernetes:
- {group: ci.org, kinds: [Pipeline], verbs: [list], namespaces: ['*']}
- {kinds: [ConfigMap], verbs: [get, apply, delete]}
- {group: ostler.dev, kinds: [Upstream], verbs: [get], namespaces: ['*']}
";

#[test]
fn rules_in_a_namespace_follow_from_verbs_of_the_contract() {
    let rights = derive(TEAM, &team(true), &["ci"]);
    assert!(rights.account.cluster.is_empty() && rights.host.cluster.is_empty());
    assert_eq!(
        lines(&rights.account.namespaces["ci"]),
        [
            "get,create,patch,delete /configmaps",
            "get ci.org/teams",
            "list,watch ci.org/pipelines",
            "update ci.org/teams/finalizers",
            "get ostler.dev/upstreams",
        ]
    );
    // Upstreams are among the rules that the host has in every namespace.
    assert_eq!(
        lines(&rights.host.namespaces["ci"]),
        [
            "list,watch /configmaps",
            "list,watch ci.org/pipelines",
            "patch ci.org/teams/status",
            "list,watch,patch ci.org/teams",
        ]
    );
    assert!(rights.impersonates && rights.unserved.is_empty());
}

#[test]
fn rule_of_a_subresource_is_the_account_s_alone() {
    let permissions = "{reconciles: [{group: ci.org, kinds: [Team]}], kubernetes: [{kinds: [ConfigMap/resize], verbs: [patch]}]}";
    let rights = derive(permissions, &team(false), &["ci"]);
    let account = lines(&rights.account.namespaces["ci"]);
    assert!(
        account.contains(&"patch /configmaps/resize".to_owned()),
        "{account:?}"
    );
    let host = lines(&rights.host.namespaces["ci"]);
    assert!(!host.iter().any(|line| line.contains("configmaps")), "{host:?}");
    assert!(rights.unserved.is_empty());
}

#[test]
fn installation_in_all_namespaces_has_the_same_rules_in_the_cluster() {
    let (everywhere, in_ci) = (derive(TEAM, &team(true), &[]), derive(TEAM, &team(true), &["ci"]));
    assert_eq!(everywhere.account.cluster, in_ci.account.namespaces["ci"]);
    assert_eq!(everywhere.host.cluster, in_ci.host.namespaces["ci"]);
    assert!(everywhere.account.namespaces.is_empty() && everywhere.host.namespaces.is_empty());
}

#[test]
fn host_patches_objects_only_for_finalizers_holds_and_a_missing_status_subresource() {
    let reads = "{reconciles: [{group: ci.org, kinds: ['*']}]}";
    let holds =
        "{reconciles: [{group: ci.org, kinds: ['*']}], kubernetes: [{kinds: [ConfigMap], verbs: [hold]}]}";
    let policy = [ReconciledKind {
        gvk: Gvk::new("ci.org", "v1", "Policy"),
        has_finalizer: false,
        has_upgrade: false,
    }];
    for (permissions, reconciled, expected) in [
        (
            reads,
            &team(false)[..],
            vec!["list,watch ci.org/teams", "patch ci.org/teams/status"],
        ),
        (
            reads,
            &team(true),
            vec!["patch ci.org/teams/status", "list,watch,patch ci.org/teams"],
        ),
        (reads, &policy, vec!["list,watch,patch ci.org/policies"]),
        (
            holds,
            &team(false),
            vec![
                "get,list,watch,patch /configmaps",
                "patch ci.org/teams/status",
                "get,list,watch,patch ci.org/teams",
            ],
        ),
    ] {
        let rights = derive(permissions, reconciled, &["ci"]);
        let mut found = lines(&rights.host.namespaces["ci"]);
        let mut expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{permissions}");
    }
}

#[test]
fn kind_that_is_reconciled_in_named_namespaces_has_rules_in_these() {
    let permissions = "
reconciles: [{group: ci.org, kinds: [Team], namespaces: [a, b]}]
kubernetes: [{kinds: [ConfigMap], verbs: [apply], namespaces: [b]}]
";
    for installed in [&["ci"][..], &[]] {
        let rights = derive(permissions, &team(true), installed);
        assert!(rights.account.cluster.is_empty() && rights.host.cluster.is_empty());
        let namespaces: Vec<_> = rights.account.namespaces.keys().collect();
        assert_eq!(namespaces, ["a", "b"]);
        assert_eq!(
            lines(&rights.account.namespaces["b"]),
            [
                "create,patch /configmaps",
                "get ci.org/teams",
                "update ci.org/teams/finalizers"
            ]
        );
        assert_eq!(
            lines(&rights.host.namespaces["a"]),
            ["patch ci.org/teams/status", "list,watch,patch ci.org/teams"]
        );
    }
}

/// `Same` is the namespace of a reconciled object, so that no other namespace needs a rule.
#[test]
fn same_namespace_of_a_kind_that_is_reconciled_in_named_namespaces_has_roles_in_these() {
    let permissions = "
reconciles: [{group: ci.org, kinds: [Team], namespaces: [a]}]
kubernetes: [{kinds: [ConfigMap], verbs: [get, apply]}, {kinds: [Secret], verbs: [apply]}]
";
    for installed in [&["ci"][..], &[]] {
        let rights = derive(permissions, &team(true), installed);
        assert!(rights.account.cluster.is_empty(), "{rights:?}");
        let namespaces: Vec<_> = rights.account.namespaces.keys().collect();
        assert_eq!(namespaces, ["a"]);
        assert_eq!(
            lines(&rights.account.namespaces["a"]),
            [
                "create,patch /secrets",
                "get,create,patch /configmaps",
                "get ci.org/teams",
                "update ci.org/teams/finalizers"
            ]
        );
        // One watch of a host of all namespaces answers the reads.
        let of_host = if installed.is_empty() {
            lines(&rights.host.cluster)
        } else {
            assert!(rights.host.cluster.is_empty(), "{rights:?}");
            lines(&rights.host.namespaces["a"])
        };
        assert_eq!(of_host[0], "list,watch /configmaps");
    }
    // Messages have the namespace of their Upstream.
    let permissions = parse(permissions);
    let rights = PluginRights::derive(RightsRequest {
        permissions: &permissions,
        reconciled: &team(true),
        handles_messages: true,
        namespaces: &[],
        catalog: &catalog(),
    });
    assert!(!rights.account.cluster.is_empty());
}

/// The host writes the labels and annotations that the hook returns as the account of the plugin.
#[test]
fn account_of_a_component_with_an_upgrade_hook_may_patch_its_objects() {
    let mut kinds = team(false);
    kinds[0].has_upgrade = true;
    let rights = derive("reconciles: [{group: ci.org, kinds: [Team]}]", &kinds, &["ci"]);
    assert_eq!(
        lines(&rights.account.namespaces["ci"]),
        ["get,patch ci.org/teams"]
    );
    assert!(rights.impersonates);
}

#[test]
fn named_namespace_has_rules_of_its_own() {
    let permissions = "
reconciles: [{group: ci.org, kinds: [Team]}]
kubernetes: [{kinds: [Secret], verbs: [apply], namespaces: [deploy]}]
upstreams: [{namespaces: [shared]}]
";
    let rights = derive(permissions, &team(false), &["ci"]);
    // No owner reference crosses namespaces.
    assert_eq!(lines(&rights.account.namespaces["ci"]), ["get ci.org/teams"]);
    assert_eq!(
        lines(&rights.account.namespaces["deploy"]),
        ["create,patch /secrets"]
    );
    // The host has its own rights in each, also where it connects to Upstreams only.
    let watched = ["ci".into()];
    let host: Vec<_> = rights.host_namespaces(&watched).into_iter().collect();
    assert_eq!(host, ["ci", "deploy", "shared"]);
    assert!(rights.host.namespaces["deploy"].is_empty());
}

#[test]
fn host_has_its_role_in_the_namespaces_of_subscriptions() {
    let mut rights = derive(
        "reconciles: [{group: ci.org, kinds: [Team]}]",
        &team(false),
        &["ci"],
    );
    rights.add_upstreams(["queues".to_owned()].iter());
    let watched = ["ci".into()];
    let host: Vec<_> = rights.host_namespaces(&watched).into_iter().collect();
    assert_eq!(host, ["ci", "queues"]);
}

/// A service provider: requests and Clusters here, the service on other clusters.
#[test]
fn permission_on_another_cluster_gives_no_rule_for_its_kinds() {
    let permissions = "
reconciles: [{group: ci.org, kinds: [Team]}]
kubernetes:
- {group: ostler.dev, kinds: [Cluster], verbs: [get, apply, delete], namespaces: [platform]}
- {group: apps, kinds: [Deployment], verbs: [get, apply, delete], namespaces: ['*'], clusters: ['fleet/team-*', 'Same/*']}
";
    let rights = derive(permissions, &team(true), &["ci"]);
    assert_eq!(lines(&rights.account.namespaces["ci"]), ["get ci.org/teams"]);
    assert_eq!(
        lines(&rights.account.namespaces["platform"]),
        ["get,create,patch,delete ostler.dev/clusters"]
    );
    // The inventory of what a Team owns on other clusters is updated in its newest version.
    assert_eq!(
        lines(&rights.host.namespaces["ci"]),
        ["patch ci.org/teams/status", "get,list,watch,patch ci.org/teams"]
    );
    // The host connects to Clusters with its own rights, also to those in a namespace that nothing else is about.
    let watched = ["ci".into()];
    let host: Vec<_> = rights.host_namespaces(&watched).into_iter().collect();
    assert_eq!(host, ["ci", "fleet", "platform"]);
    assert!(rights.host.namespaces["fleet"].is_empty() && rights.host.namespaces["platform"].is_empty());
    assert!(rights.impersonates && rights.unserved.is_empty());

    // Reads alone own nothing, a kind without a finalizer may not, and there is nothing to act as the account for.
    let reads = "kubernetes: [{kinds: [Pod], verbs: [get, list], namespaces: ['*'], clusters: ['*/*']}]";
    let writes = "kubernetes: [{kinds: [Pod], verbs: [apply], namespaces: ['*'], clusters: ['*/*']}]";
    for (permissions, has_finalizer, verbs) in
        [(reads, true, "list,watch,patch"), (writes, false, "list,watch")]
    {
        let rights = derive(permissions, &team(has_finalizer), &[]);
        let expected = format!("{verbs} ci.org/teams");
        assert!(lines(&rights.host.cluster).contains(&expected), "{expected}");
        assert_eq!(lines(&rights.account.cluster), ["get ci.org/teams"]);
        assert!(!rights.impersonates);
    }
}

#[test]
fn host_has_rules_for_upstreams_clusters_their_secrets_rights_and_events() {
    assert_eq!(
        lines(&RuleSet::of_host()),
        [
            "get,list,watch,patch /secrets",
            "create,patch /events",
            "patch ostler.dev/clusters/status,upstreams/status",
            "get,list,watch,patch ostler.dev/clusters,upstreams",
            "get,patch rbac.authorization.k8s.io/roles",
            "get,list,watch,patch rbac.authorization.k8s.io/rolebindings",
        ]
    );
}

#[test]
fn patterns_cover_neither_secrets_nor_kinds_of_the_host() {
    let all = "kubernetes: [{group: '*', kinds: ['*'], verbs: [get], namespaces: ['*']}]";
    let rights = derive(all, &[], &["ci"]);
    assert_eq!(
        lines(&rights.account.namespaces["ci"]),
        ["get /configmaps", "get ci.org/pipelines,policies,teams"]
    );
    assert_eq!(lines(&rights.account.cluster), ["get /namespaces"]);
    let readable = format!("{all}\nreadSecrets: true");
    let rights = derive(&readable, &[], &["ci"]);
    assert_eq!(
        lines(&rights.account.namespaces["ci"])[0],
        "get /configmaps,secrets"
    );
    // A prefix of namespaces covers those of the installation.
    let prefix = "kubernetes: [{kinds: [ConfigMap], verbs: [get], namespaces: [team-*]}]";
    let rights = derive(prefix, &[], &["team-a", "other"]);
    let namespaces: Vec<_> = rights.account.namespaces.keys().collect();
    assert_eq!(namespaces, ["team-a"]);
    // No single namespace grants a cluster-scoped kind.
    let narrow = "kubernetes: [{kinds: [Namespace], verbs: [get]}]";
    assert_eq!(derive(narrow, &[], &["ci"]).account, ScopedRules::default());
}

/// Grants allow no plugin to write a Plugin. A pod that runs as its account is not checked by them.
#[test]
fn account_may_not_write_plugins() {
    let writes = "kubernetes: [{group: ostler.dev, kinds: [Plugin, Upstream], verbs: [apply, patch, delete, hold], namespaces: ['*']}]";
    let mut catalog = catalog();
    catalog.add(resource("ostler.dev", "Plugin", false, true));
    let derive = |yaml: &str| {
        PluginRights::derive(RightsRequest {
            permissions: &parse(yaml),
            reconciled: &[],
            handles_messages: false,
            namespaces: &[],
            catalog: &catalog,
        })
    };
    assert_eq!(
        lines(&derive(writes).account.cluster),
        ["get,create,patch,delete ostler.dev/upstreams"]
    );
    let reads = writes.replace("[apply, patch, delete, hold]", "[get, list, apply]");
    let rights = derive(&reads);
    assert!(lines(&rights.account.cluster).contains(&"get,list,watch ostler.dev/plugins".to_owned()));
}

#[test]
fn kind_that_is_not_served_is_guessed_and_named() {
    let permissions = "
kubernetes:
- {group: networking.k8s.io, kinds: [Ingress, NetworkPolicy], verbs: [get]}
- {kinds: [Pod], verbs: [get]}
";
    let rights = derive(permissions, &[], &["ci"]);
    assert_eq!(
        lines(&rights.account.namespaces["ci"]),
        ["get /pods", "get networking.k8s.io/ingresses,networkpolicies"]
    );
    let unserved: Vec<_> = rights.unserved.iter().map(String::as_str).collect();
    assert_eq!(
        unserved,
        [
            "Ingress.networking.k8s.io",
            "NetworkPolicy.networking.k8s.io",
            "Pod"
        ]
    );
}

#[test]
fn objects_bind_rules_to_their_subjects() {
    let account = ServiceAccount {
        namespace: "ci".into(),
        name: "team".into(),
    };
    let host = ServiceAccount {
        namespace: "ostler-system".into(),
        name: "ostler".into(),
    };
    let namespaces = ["ci".to_owned()];
    let rights = derive(TEAM, &team(true), &["ci"]);
    let objects = rights_objects(&RightsObjects {
        plugin: "team",
        account: &account,
        host: &host,
        namespaces: &namespaces,
        rights: &rights,
    });
    let names: Vec<String> = objects
        .iter()
        .map(|o| format!("{} {}", o["kind"], o["metadata"]["name"]).replace('"', ""))
        .collect();
    assert_eq!(
        names,
        [
            "ServiceAccount team",
            "Role ostler:team",
            "RoleBinding ostler:team",
            "Role ostler:team:host",
            "RoleBinding ostler:team:host",
            "RoleBinding ostler:team:namespace",
        ]
    );
    assert_eq!(objects[0]["automountServiceAccountToken"], false);
    assert_eq!(
        objects[2]["subjects"][0],
        json!({"kind": "ServiceAccount", "name": "team", "namespace": "ci"})
    );
    assert_eq!(objects[4]["subjects"][0]["name"], "ostler");
    let rules = objects[3]["rules"].as_array().expect("rules");
    assert_eq!(
        rules.last().expect("a rule"),
        &json!({"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["team"],
            "verbs": ["impersonate"]})
    );
    assert_eq!(objects[5]["roleRef"]["name"], "ostler:namespace");
    // By its label an object goes with its plugin.
    let labelled = |o: &serde_json::Value| o["metadata"]["labels"]["ostler.dev/plugin-name"] == "team";
    assert!(objects.iter().all(labelled));
}

/// The uninstallation of one plugin deletes nothing that another one in the same namespaces needs.
#[test]
fn plugins_in_the_same_namespaces_share_no_object() {
    let host = ServiceAccount {
        namespace: "ostler-system".into(),
        name: "ostler".into(),
    };
    // The host connects to Upstreams in `shared` for one, and for the other it reads objects there.
    let [upstreams, objects] = [
        "upstreams: [{namespaces: [shared]}]",
        "kubernetes: [{kinds: [ConfigMap], verbs: [get], namespaces: [shared]}]",
    ];
    for namespaces in [&["ci"][..], &[]] {
        let installed: Vec<String> = namespaces.iter().map(|n| (*n).to_owned()).collect();
        let keys = |plugin: &str, permissions: &str| -> Vec<String> {
            let account = ServiceAccount {
                namespace: "ci".into(),
                name: plugin.into(),
            };
            let rights = derive(permissions, &team(true), namespaces);
            let objects = rights_objects(&RightsObjects {
                plugin,
                account: &account,
                host: &host,
                namespaces: &installed,
                rights: &rights,
            });
            let key = |o: &serde_json::Value| {
                let metadata = &o["metadata"];
                format!("{} {} {}", o["kind"], metadata["namespace"], metadata["name"])
            };
            objects.iter().map(key).collect()
        };
        let (one, other) = (keys("one", upstreams), keys("other", objects));
        assert!(one.iter().all(|key| !other.contains(key)), "{one:?} {other:?}");
    }
}

proptest! {
    /// Whatever a grant allows in a namespace of the installation, RBAC allows to the account, and the host may watch.
    #[test]
    fn granted_access_has_a_rule(
        kinds in prop::sample::subsequence(vec!["ConfigMap", "Secret", "Pod"], 1..=3),
        verbs in prop::sample::subsequence(vec!["get", "list", "apply", "create", "patch", "delete"], 1..=6),
        patterns in prop::sample::subsequence(vec!["Same", "*", "ci", "c*", "other"], 1..=5),
        namespace in prop::sample::select(vec!["ci", "cd", "other"]),
    ) {
        let permissions: Permissions = serde_json::from_value(json!({
            "kubernetes": [{"kinds": kinds, "verbs": verbs, "namespaces": patterns}], "readSecrets": true,
        })).expect("permissions");
        let installed = ["ci".to_owned(), "cd".to_owned()];
        let rights = PluginRights::derive(RightsRequest {
            permissions: &permissions, reconciled: &[], handles_messages: false, namespaces: &installed, catalog: &catalog(),
        });
        let grant = Grant { permissions, ..Grant::default() };
        let grants = PluginGrants::new("p", "", None, grant);
        let needed = |verb| match verb {
            GrantVerb::Get | GrantVerb::Hold => Verbs::GET,
            GrantVerb::List => Verbs::LIST | Verbs::WATCH,
            GrantVerb::Apply => Verbs::CREATE | Verbs::PATCH,
            GrantVerb::Create => Verbs::CREATE,
            GrantVerb::Patch => Verbs::PATCH,
            GrantVerb::Delete => Verbs::DELETE,
        };
        for kind in ["ConfigMap", "Secret", "Pod"] {
            let plural = ApiResource::guess("", kind).plural;
            let rules = rights.account.namespaces.get(namespace).cloned().unwrap_or_default();
            for verb in [GrantVerb::Get, GrantVerb::List, GrantVerb::Apply, GrantVerb::Create, GrantVerb::Patch, GrantVerb::Delete] {
                let access = Access::Kubernetes { verb, gvk: &Gvk::new("", "v1", kind), namespace, cluster: "" };
                // Only objects in the namespaces of the installation are reconciled.
                let own = if installed.contains(&namespace.to_owned()) { namespace } else { "ci" };
                let is_granted = grants.check_access(&access, own).is_ok();
                let is_installed = own == namespace || patterns.contains(&namespace);
                if is_granted && is_installed {
                    prop_assert_eq!(rules.verbs("", &plural) | needed(verb), rules.verbs("", &plural), "{:?}", access);
                    let host = rights.host.namespaces.get(namespace).cloned().unwrap_or_default();
                    let host_verbs = host.verbs("", &plural) | RuleSet::of_host().verbs("", &plural);
                    prop_assert_eq!(host_verbs | Verbs::LIST | Verbs::WATCH, host_verbs);
                }
            }
        }
    }
}
