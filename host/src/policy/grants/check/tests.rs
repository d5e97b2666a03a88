use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::policy::{
    grants::{Grants, SecretDestination},
    origin::Origin,
};

const FILE: &str = "
plugins:
  team:
    kubernetes:
    - {group: concourse-ci.org, kinds: [Instance], verbs: [get], namespaces: [a]}
    - {group: '', kinds: [Secret], verbs: [get]}
    upstreams:
    - {names: [ci], methods: [GET], paths: [/api/v1/*]}
";

fn kubernetes<'a>(verb: GrantVerb, gvk: &'a Gvk, namespace: &'a str) -> Access<'a> {
    Access::Kubernetes {
        verb,
        gvk,
        namespace,
        cluster: "",
    }
}

#[test]
fn entry_is_about_the_own_cluster_or_about_those_that_it_names() {
    let file = "
plugins:
  p:
    kubernetes:
    - {kinds: [Pod], verbs: [get], namespaces: ['*']}
    - {kinds: [ConfigMap], verbs: [get], namespaces: ['*'], clusters: [Same/mcp-*, fleet/east]}
    - {kinds: [Secret], verbs: [get], namespaces: [x], clusters: ['*/*']}
";
    let grants = Grants::parse(file, "g.yaml").expect("parses");
    let p = grants.grants_for("p");
    for (kind, cluster, granted) in [
        ("Pod", "", true),
        ("Pod", "fleet/east", false),
        ("ConfigMap", "", false),
        ("ConfigMap", "fleet/east", true),
        ("ConfigMap", "fleet/west", false),
        ("ConfigMap", "own/mcp-1", true),
        ("ConfigMap", "own/other", false),
        ("ConfigMap", "foreign/mcp-1", false),
    ] {
        let gvk = Gvk::new("", "v1", kind);
        let access = Access::Kubernetes {
            verb: GrantVerb::Get,
            gvk: &gvk,
            namespace: "n",
            cluster,
        };
        let checked = p.check_access(&access, "own");
        assert_eq!(checked.is_ok(), granted, "{kind} {cluster:?}: {checked:?}");
        if let Err(e) = checked {
            assert_eq!(
                e.to_string().contains(&format!("clusters: [{cluster}]")),
                !cluster.is_empty(),
                "{e}"
            );
        }
    }
    for (cluster, granted) in [("", false), ("any/where", true)] {
        let metadata = Access::SecretMetadata {
            namespace: "x",
            cluster,
        };
        assert_eq!(p.check_access(&metadata, "own").is_ok(), granted, "{cluster:?}");
    }
    for invalid in ["east", "/east", "fleet/", "a/b/c", ""] {
        let file = format!(
            "plugins: {{p: {{kubernetes: [{{kinds: [Pod], verbs: [get], clusters: ['{invalid}']}}]}}}}"
        );
        let why = Grants::parse(&file, "g.yaml")
            .expect_err("no cluster")
            .to_string();
        assert!(why.contains("kubernetes[0].clusters"), "{why}");
    }
}

#[test]
fn subresource_is_granted_by_its_name_alone() {
    let file = "
plugins:
  p:
    kubernetes:
    - {kinds: ['*'], verbs: [get, list, apply, create, patch, delete]}
    - {kinds: [Pod/resize], verbs: [patch]}
";
    let grants = Grants::parse(file, "g.yaml").expect("parses");
    let p = grants.grants_for("p");
    for (kind, subresource, namespace, granted) in [
        ("Pod", "resize", "own", true),
        ("Pod", "resize", "foreign", false),
        ("Pod", "ephemeralcontainers", "own", false),
        ("Job", "resize", "own", false),
    ] {
        let gvk = Gvk::new("", "v1", kind);
        let access = Access::Subresource {
            verb: GrantVerb::Patch,
            gvk: &gvk,
            subresource,
            namespace,
            cluster: "",
        };
        let checked = p.check_access(&access, "own");
        assert_eq!(checked.is_ok(), granted, "{kind}/{subresource}: {checked:?}");
        if let Err(e) = checked {
            let entry = format!("kinds: [{kind}/{subresource}], verbs: [patch]");
            assert!(e.to_string().contains(&entry), "{e}");
        }
    }
    for (kind, verb) in [
        ("Pod/status", "patch"),
        ("Pod/", "patch"),
        ("Pod/*", "patch"),
        ("Pod/a/b", "patch"),
        ("Pod/resize", "get"),
        ("Pod/log", "patch"),
    ] {
        let file = format!("plugins: {{p: {{kubernetes: [{{kinds: ['{kind}'], verbs: [{verb}]}}]}}}}");
        let why = Grants::parse(&file, "g.yaml")
            .expect_err("no subresource")
            .to_string();
        assert!(why.contains("kubernetes[0].kinds"), "{why}");
    }
}

#[test]
fn message_is_granted_by_exchange_and_routing_key() {
    let file = "
plugins:
  p:
    messages:
    - {names: [mq], exchanges: [events, audit-*], routingKeys: [order.*, 'stock.#']}
    - {names: [mq], exchanges: [''], routingKeys: [replies]}
    - {names: [any], exchanges: ['*']}
";
    let grants = Grants::parse(file, "g.yaml").expect("parses");
    let p = grants.grants_for("p");
    for (name, exchange, routing_key, granted) in [
        ("mq", "events", "order.created", true),
        ("mq", "audit-2026", "stock", true),
        ("mq", "events", "order.created.again", false),
        ("mq", "events", "replies", false),
        ("mq", "other", "order.created", false),
        ("mq", "", "replies", true),
        ("mq", "", "order.created", false),
        ("any", "whatever", "a.b.c", true),
        ("any", "", "a", false),
    ] {
        let access = Access::Publish {
            namespace: "n",
            name,
            exchange,
            routing_key,
        };
        let checked = p.check_access(&access, "n");
        assert_eq!(
            checked.is_ok(),
            granted,
            "{name} {exchange:?} {routing_key}: {checked:?}"
        );
        if let Err(denied) = checked {
            let remedy = format!("exchanges: [{exchange:?}], routingKeys: [{routing_key:?}]");
            assert!(denied.to_string().contains(&remedy), "{denied}");
        }
    }
}

#[test]
fn access_without_grant_is_denied_with_remedy() {
    let grants = Grants::parse(FILE, "g.yaml").expect("parses");
    let team = grants.grants_for("team");
    let instance = Gvk::new("concourse-ci.org", "v1alpha1", "Instance");
    assert_eq!(
        team.check_access(&kubernetes(GrantVerb::Get, &instance, "a"), "a"),
        Ok(())
    );
    for access in [
        kubernetes(GrantVerb::Get, &instance, "b"),
        kubernetes(GrantVerb::Get, &instance, ""),
        kubernetes(GrantVerb::Delete, &instance, "a"),
        kubernetes(GrantVerb::Get, &Gvk::new("", "v1", "Secret"), "a"),
        Access::Events,
        Access::Secret {
            namespace: "a",
            name: "x",
            destination: None,
        },
        Access::Reconcile { gvk: &instance },
        Access::Upstream {
            namespace: "a",
            name: "ci",
            method: "PUT",
            path: "/api/v1/x",
        },
        Access::Upstream {
            namespace: "a",
            name: "ci",
            method: "GET",
            path: "/sky",
        },
    ] {
        let text = team.check_access(&access, "a").expect_err("denied").to_string();
        assert!(
            text.contains("plugin team may not") && text.contains("plugins.team."),
            "{text}"
        );
        assert!(grants.grants_for("other").check_access(&access, "a").is_err());
    }
    let query = Access::Upstream {
        namespace: "a",
        name: "ci",
        method: "GET",
        path: "/api/v1/x?y=/z",
    };
    assert_eq!(team.check_access(&query, "a"), Ok(()));
}

fn granted(yaml: &str) -> PluginGrants {
    let grant = serde_saphyr::from_str::<Grant>(yaml).expect("parses");
    PluginGrants::new("p", "", None, grant)
}

#[test]
fn default_namespace_is_that_of_the_reconciled_object() {
    let grants = granted(
        "{kubernetes: [{kinds: [A], verbs: [get]}, {kinds: [B], verbs: [get], namespaces: [Same, 'shared-*']}], upstreams: [{}], secrets: [{origins: ['*']}]}",
    );
    let [a, b] = ["A", "B"].map(|kind| Gvk::new("", "v1", kind));
    let upstream = |namespace| Access::Upstream {
        namespace,
        name: "u",
        method: "GET",
        path: "/",
    };
    let secret = |namespace| Access::Secret {
        namespace,
        name: "s",
        destination: None,
    };
    for (access, own, allowed) in [
        (kubernetes(GrantVerb::Get, &a, "n"), "n", true),
        (kubernetes(GrantVerb::Get, &a, "m"), "n", false),
        // Neither all namespaces nor a cluster-scoped object is the namespace of a cluster-scoped object.
        (kubernetes(GrantVerb::Get, &a, ""), "", false),
        (kubernetes(GrantVerb::Get, &a, ""), "n", false),
        (kubernetes(GrantVerb::Get, &a, "n"), "", false),
        (kubernetes(GrantVerb::Get, &b, "n"), "n", true),
        (kubernetes(GrantVerb::Get, &b, "shared-x"), "n", true),
        (kubernetes(GrantVerb::Get, &b, "other"), "n", false),
        (upstream("n"), "n", true),
        (upstream("m"), "n", false),
        (secret("n"), "n", true),
        (secret("m"), "n", false),
    ] {
        assert_eq!(
            grants.check_access(&access, own).is_ok(),
            allowed,
            "{access:?} {own}"
        );
    }
}

#[test]
fn secret_is_allowed_for_granted_origins_only() {
    let grants =
        granted("{secrets: [{names: [s], origins: ['https://ci.example.com', 'http://127.0.0.1:*']}]}");
    let check = |url: &str| {
        let origin = Origin::of_url(url).expect("an origin");
        let access = Access::Secret {
            namespace: "n",
            name: "s",
            destination: Some(SecretDestination::Origin(&origin)),
        };
        grants.check_access(&access, "n").map_err(|e| e.to_string())
    };
    assert_eq!(check("https://ci.example.com/api"), Ok(()));
    assert_eq!(check("http://127.0.0.1:8080"), Ok(()));
    let why = check("https://attacker.dev").expect_err("denied");
    assert!(
        why.contains("name Secret s in namespace n for https://attacker.dev")
            && why.contains(
                "`secrets: [{names: [s], namespaces: [Same], origins: [\"https://attacker.dev\"]}]`"
            ),
        "{why}"
    );
    assert!(check("http://ci.example.com").is_err());
}

#[test]
fn secret_is_written_into_objects_of_granted_namespaces_only() {
    let origins = "{names: [s], origins: ['*']}";
    let check = |secrets: &str, target, url: Option<&str>| {
        let origin = url.map(|url| Origin::of_url(url).expect("an origin"));
        let destination = origin.as_ref().map_or(
            SecretDestination::Object { namespace: target },
            SecretDestination::Origin,
        );
        let access = Access::Secret {
            namespace: "n",
            name: "s",
            destination: Some(destination),
        };
        granted(&format!("{{secrets: [{secrets}]}}"))
            .check_access(&access, "n")
            .map_err(|e| e.to_string())
    };
    let why = check(origins, "n", None).expect_err("origins are no objects");
    assert!(
        why.contains("name Secret s in namespace n for Secrets in namespace n")
            && why.contains("`secrets: [{names: [s], namespaces: [Same], targetNamespaces: [Same]}]`"),
        "{why}"
    );
    let targets = "{names: [s], targetNamespaces: [Same, 'apps-*']}";
    assert_eq!(check(targets, "n", None), Ok(()));
    assert_eq!(check(targets, "apps-1", None), Ok(()));
    assert!(check(targets, "other", None).is_err());
    assert!(check(targets, "", None).is_err(), "no cluster-scoped object");
    // Such an entry leaves no origin to the administrator.
    assert!(check(targets, "n", Some("https://ci.example.com")).is_err());
    let both = "{names: [s], origins: ['https://ci.example.com'], targetNamespaces: [Same]}";
    assert_eq!(check(both, "n", None), Ok(()));
    assert_eq!(check(both, "n", Some("https://ci.example.com")), Ok(()));
    assert!(check(both, "n", Some("https://other.example.com")).is_err());
}

#[test]
fn kinds_of_the_host_are_granted_by_name_and_plugins_never_for_writes() {
    let wide = granted(
        "{kubernetes: [{group: '*', kinds: ['*'], verbs: [get, apply, create, patch, delete, hold], namespaces: ['*']}, {group: ostler.dev, kinds: ['*', 'Up*'], verbs: [get, apply], namespaces: ['*']}]}",
    );
    let named = granted(
        "{kubernetes: [{group: ostler.dev, kinds: [Upstream, Plugin], verbs: [get, apply, create, patch, delete, hold], namespaces: ['*']}]}",
    );
    let [upstream, plugin, other] = [
        ("ostler.dev", "Upstream"),
        ("ostler.dev", "Plugin"),
        ("examples.ostler.dev", "Greeting"),
    ]
    .map(|(group, kind)| Gvk::new(group, "v1", kind));
    for verb in [
        GrantVerb::Apply,
        GrantVerb::Create,
        GrantVerb::Patch,
        GrantVerb::Delete,
        GrantVerb::Hold,
    ] {
        let denied = named
            .check_access(&kubernetes(verb, &plugin, ""), "")
            .expect_err("denied");
        assert!(denied.to_string().contains("no grant allows it"), "{denied}");
        assert!(wide.check_access(&kubernetes(verb, &plugin, ""), "").is_err());
        assert!(wide.check_access(&kubernetes(verb, &upstream, "n"), "").is_err());
        assert!(wide.check_access(&kubernetes(verb, &other, "n"), "").is_ok());
        assert!(named.check_access(&kubernetes(verb, &upstream, "n"), "").is_ok());
    }
    assert!(
        wide.check_access(&kubernetes(GrantVerb::Get, &plugin, ""), "")
            .is_err()
    );
    assert!(
        named
            .check_access(&kubernetes(GrantVerb::Get, &plugin, ""), "")
            .is_ok()
    );
}

#[test]
fn kinds_are_reconciled_in_namespaces_of_both_sides() {
    let asks = |text: &str| Some(serde_saphyr::from_str::<Permissions>(text).expect("parses"));
    let grants =
        granted("{reconciles: [{group: g, kinds: [A], namespaces: [j, m]}, {group: g, kinds: ['B*']}]}");
    let [a, b, c] = ["A", "B", "C"].map(|kind| Gvk::new("g", "v1", kind));
    assert_eq!(
        grants.reconciled_namespaces(&a),
        Some(vec!["j".into(), "m".into()])
    );
    assert_eq!(grants.reconciled_namespaces(&b), None);
    assert!(grants.check_access(&Access::Reconcile { gvk: &c }, "").is_err());
    let narrower = grants.with_asks(asks(
        "{reconciles: [{group: g, kinds: ['*'], namespaces: [m, k]}]}",
    ));
    assert_eq!(narrower.reconciled_namespaces(&a), Some(vec!["m".into()]));
    assert_eq!(
        narrower.reconciled_namespaces(&b),
        Some(vec!["m".into(), "k".into()])
    );
    let silent = narrower.with_asks(asks("{}"));
    let why = silent
        .check_access(&Access::Reconcile { gvk: &a }, "")
        .expect_err("denied")
        .to_string();
    assert!(
        why.contains("may not reconcile A")
            && why.contains("`permissions.reconciles: [{group: \"g\", kinds: [A]}]`"),
        "{why}"
    );
}

#[test]
fn pace_parses_durations_and_refuses_others() {
    let text = "plugins: {team: {reconcile: {interval: 1h30m, jitter: 5}}}";
    let settings = Grants::parse(text, "g.yaml")
        .expect("parses")
        .grants_for("team")
        .reconcile();
    assert_eq!(
        (settings.interval, settings.jitter),
        (Some(Duration::from_secs(5400)), Some(5))
    );
    for wrong in ["soon", "0s", "-5m"] {
        let text = format!("plugins: {{team: {{reconcile: {{interval: {wrong}}}}}}}");
        let error = Grants::parse(&text, "g.yaml").unwrap_err();
        assert!(
            error.contains("is not a duration") && error.contains(wrong),
            "{error}"
        );
    }
    for wrong in [-1, 101, 1000] {
        let text = format!("plugins: {{team: {{reconcile: {{jitter: {wrong}}}}}}}");
        let error = Grants::parse(&text, "g.yaml").unwrap_err();
        assert!(error.contains(&format!("{wrong} is not a percentage")), "{error}");
    }
}

#[test]
fn network_grant_parses_and_names_invalid_entry() {
    let grants = Grants::parse("network: {allow: [10.96.0.0/12, '::1']}", "g.yaml").expect("parses");
    assert!(grants.network.permits("10.96.0.1".parse().expect("an address")));
    let error = Grants::parse("network: {allow: [localhost]}", "g.yaml").unwrap_err();
    assert!(
        error.contains("g.yaml") && error.contains("`localhost` is no network"),
        "{error}"
    );
}

#[test]
fn unknown_field_is_named() {
    let error = Grants::parse("plugins: {team: {kubernets: []}}", "g.yaml").unwrap_err();
    assert!(error.contains("g.yaml") && error.contains("kubernets"), "{error}");
}

#[test]
fn checked_access_marks_entry_as_used() {
    let text = "{kubernetes: [{kinds: [A], verbs: [get]}, {kinds: ['*'], verbs: [get]}], upstreams: [{}], events: true}";
    let asks: Permissions = serde_saphyr::from_str(text).expect("parses");
    let grant: Grant =
        serde_saphyr::from_str("{kubernetes: [{kinds: ['*'], verbs: [get]}], events: true}").expect("parses");
    let grants = PluginGrants::new("p", "", Some(asks), grant);
    assert_eq!(grants.used_entries(), [0; 0]);
    let other = Gvk::new("", "v1", "B");
    assert!(
        grants
            .check_access(&kubernetes(GrantVerb::Get, &other, "a"), "a")
            .is_ok()
    );
    assert!(
        grants
            .check_access(&kubernetes(GrantVerb::Hold, &other, "n"), "a")
            .is_err()
    );
    let ungranted = Access::Upstream {
        namespace: "n",
        name: "u",
        method: "GET",
        path: "/",
    };
    assert!(grants.check_access(&ungranted, "a").is_err());
    assert_eq!(grants.used_entries(), [1], "what was denied is not used");
    let shared = grants.clone();
    assert!(shared.check_access(&Access::Events, "a").is_ok());
    assert_eq!(grants.used_entries(), [1, 3]);
}

#[test]
fn missing_side_is_named() {
    let asks = |text: &str| Some(serde_saphyr::from_str::<Permissions>(text).expect("parses"));
    let team = Grants::parse(FILE, "g.yaml").expect("parses").grants_for("team");
    let instance = Gvk::new("concourse-ci.org", "v1alpha1", "Instance");
    let get = kubernetes(GrantVerb::Get, &instance, "a");
    let all = "{kubernetes: [{group: '*', kinds: ['*'], verbs: [get, list]}], events: true}";
    let asking = team.clone().with_asks(asks(all));
    assert_eq!(asking.check_access(&get, "a"), Ok(()));
    let ungranted = asking.check_access(&Access::Events, "a").unwrap_err().to_string();
    assert_eq!(
        ungranted,
        "plugin team may not emit events: grant it with `plugins.team.events: true`"
    );
    let silent = team.with_asks(asks("{}"));
    let unasked = silent.check_access(&get, "a").unwrap_err().to_string();
    assert!(
        unasked.contains("its manifest does not ask for it") && !unasked.contains("plugins.team"),
        "{unasked}"
    );
    let followed = Grants::parse("plugins: {team: {events: true}}", "g.yaml").expect("parses");
    let followed = followed.grants_for("team").with_asks(asks("{events: true}"));
    assert_eq!(
        followed.check_access(&get, "a").unwrap_err().to_string(),
        "plugin team may not get Instance in namespace a: its manifest does not ask for it: add \
         `permissions.kubernetes: [{group: \"concourse-ci.org\", kinds: [Instance], verbs: [get], namespaces: [Same]}]` to plugin.yaml"
    );
    let neither = silent.check_access(&Access::Events, "a").unwrap_err().to_string();
    assert!(
        neither.contains("`permissions.events: true`") && neither.contains("`plugins.team.events: true`"),
        "{neither}"
    );
}

#[test]
fn read_secrets_only_if_asked_and_granted() {
    let readable = "{kubernetes: [{kinds: [Secret], verbs: [get]}], readSecrets: true}";
    let closed = "{kubernetes: [{kinds: ['*'], verbs: [get]}]}";
    let parse = |text: &str| serde_saphyr::from_str::<Permissions>(text).expect("parses");
    let secret = Gvk::new("", "v1", "Secret");
    for (asked, granted, may) in [
        (Some(readable), readable, true),
        (None, readable, true),
        (Some(readable), closed, false),
        (Some(closed), readable, false),
        (None, closed, false),
    ] {
        let grant = serde_saphyr::from_str::<Grant>(granted).expect("parses");
        let grants = PluginGrants::new("p", "spec.grants.", asked.map(parse), grant);
        assert_eq!(grants.can_read_secrets(), may, "{asked:?} {granted}");
        let checked = grants.check_access(&kubernetes(GrantVerb::Get, &secret, "a"), "a");
        assert_eq!(checked.is_ok(), may, "{checked:?}");
    }
}

#[test]
fn secrets_are_written_by_entries_that_name_them_without_being_readable() {
    let secret = Gvk::new("", "v1", "Secret");
    let all = "[get, list, apply, create, patch, delete, hold]";
    for (kinds, verbs, is_covered) in [
        ("[Secret]", all, true),
        ("['*']", all, false),
        ("['Sec*']", all, false),
        ("[Secret]", "[list]", false),
    ] {
        let text = format!("{{kubernetes: [{{kinds: {kinds}, verbs: {verbs}}}]}}");
        let grant = serde_saphyr::from_str::<Grant>(&text).expect("parses");
        let grants = PluginGrants::new("p", "spec.grants.", None, grant);
        let is_allowed = |verb| grants.check_access(&kubernetes(verb, &secret, "a"), "a").is_ok();
        for verb in [GrantVerb::Apply, GrantVerb::Create, GrantVerb::Delete] {
            assert_eq!(is_allowed(verb), is_covered, "{text}: {verb}");
        }
        let metadata = grants.check_access(
            &Access::SecretMetadata {
                namespace: "a",
                cluster: "",
            },
            "a",
        );
        assert_eq!(metadata.is_ok(), is_covered, "{text}");
        let elsewhere = grants.check_access(
            &Access::SecretMetadata {
                namespace: "b",
                cluster: "",
            },
            "a",
        );
        assert!(elsewhere.is_err(), "{text}");
        for verb in [GrantVerb::Get, GrantVerb::List, GrantVerb::Patch, GrantVerb::Hold] {
            assert!(!is_allowed(verb), "{text}: {verb}");
        }
        assert!(!grants.can_read_secrets() && !grants.shows_secret_values());
    }
}

#[test]
fn mistake_names_file_and_field() {
    for (entry, words) in [
        (
            "kubernetes: [{kinds: [A], verbs: []}]",
            "kubernetes[0].verbs is empty",
        ),
        ("upstreams: [{}, {methods: []}]", "upstreams[1].methods is empty"),
        ("secrets: [{names: ['']}]", "secrets[0].names is empty"),
        ("secrets: [{names: [a]}]", "secrets[0].origins is missing"),
        ("secrets: [{origins: []}]", "secrets[0].origins is empty"),
        (
            "secrets: [{targetNamespaces: ['']}]",
            "secrets[0].targetNamespaces has an empty name",
        ),
        (
            "secrets: [{targetNamespaces: []}]",
            "secrets[0].origins is missing",
        ),
        ("reconciles: [{kinds: []}]", "reconciles[0].kinds is empty"),
        (
            "reconciles: [{kinds: [A], namespaces: ['a*']}]",
            "reconciles[0].namespaces has \"a*\"",
        ),
        (
            "reconciles: [{kinds: [A], namespaces: [Same]}]",
            "reconciles[0].namespaces has \"Same\"",
        ),
        ("limits: {memory: 5Gi}", "limits.memory is 5Gi"),
        (
            "serviceAccount: {namespace: a, name: \"b\\r\\nX: y\"}",
            "serviceAccount.name",
        ),
    ] {
        let error = Grants::parse(&format!("plugins: {{p: {{{entry}}}}}"), "g.yaml").unwrap_err();
        assert!(
            error.starts_with("g.yaml: plugins.p.") && error.contains(words),
            "{error}"
        );
    }
}

fn permissions() -> impl Strategy<Value = Permissions> {
    let words = || prop::collection::vec(prop::sample::select(vec!["a", "b", "a*", "*", "Secret"]), 1..3);
    let strings = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let verbs = prop::collection::vec(
        prop::sample::select(vec![GrantVerb::Get, GrantVerb::List, GrantVerb::Hold]),
        1..3,
    );
    let kubernetes = (prop::sample::select(vec!["", "g", "*"]), words(), verbs, words()).prop_map(
        move |(group, kinds, verbs, namespaces)| KubernetesGrant {
            clusters: Vec::new(),
            group: group.into(),
            kinds: strings(kinds),
            verbs,
            namespaces: strings(namespaces),
        },
    );
    (
        prop::collection::vec(kubernetes, 0..3),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(kubernetes, events, read_secrets)| Permissions {
            kubernetes,
            events,
            read_secrets,
            ..Permissions::default()
        })
}

proptest! {
    /// An access is allowed if each side alone allows it; permissions survive a round trip.
    #[test]
    fn access_needs_both_sides(asks in permissions(), granted in permissions(), group in "g?", kind in prop::sample::select(vec!["a", "ab", "Secret"]), namespace in "[ab]{0,2}") {
        let gvk = Gvk::new(&group, "v1", kind);
        let grant = |p: &Permissions| Grant {
            permissions: p.clone(),
            ..Grant::default()
        };
        let both = PluginGrants::new("p", "", Some(asks.clone()), grant(&granted));
        let alone = |p| PluginGrants::new("p", "", None, grant(p));
        for access in [kubernetes(GrantVerb::Get, &gvk, &namespace), kubernetes(GrantVerb::Hold, &gvk, &namespace), Access::Events] {
            let each = [&asks, &granted].map(|p| alone(p).check_access(&access, "a").is_ok());
            prop_assert_eq!(both.check_access(&access, "a").is_ok(), each == [true, true]);
        }
        let written = serde_json::to_string(&asks).expect("written");
        prop_assert_eq!(serde_saphyr::from_str::<Permissions>(&written).expect("read"), asks);
    }

    /// Arbitrary text is parsed, or refused with an error that names the file.
    #[test]
    fn arbitrary_text_is_parsed_or_refused(text in "[ -~\n]{0,120}") {
        if let Err(error) = Grants::parse(&text, "g.yaml") {
            prop_assert!(error.starts_with("g.yaml"), "{}", error);
        }
    }
}

#[test]
fn home_cluster_is_that_of_entries_without_clusters_and_same_is_the_namespace_of_its_cluster() {
    let grants = granted(
        "{cluster: fleet/onboarding, kubernetes: [{kinds: [Near], verbs: [get]}, \
         {kinds: [Far], verbs: [get], clusters: [in-cluster]}, \
         {kinds: [Other], verbs: [get], clusters: ['*/*', Same/east]}], upstreams: [{}], secrets: [{origins: ['*']}]}",
    );
    assert_eq!(&**grants.home_cluster(), "fleet/onboarding");
    let [near, far, other] = ["Near", "Far", "Other"].map(|kind| Gvk::new("", "v1", kind));
    let on = |gvk, cluster, namespace| Access::Kubernetes {
        verb: GrantVerb::Get,
        gvk,
        namespace,
        cluster,
    };
    let upstream = |namespace| Access::Upstream {
        namespace,
        name: "u",
        method: "GET",
        path: "/",
    };
    let secret = |namespace| Access::Secret {
        namespace,
        name: "s",
        destination: None,
    };
    for (access, allowed) in [
        (on(&near, "fleet/onboarding", "team"), true),
        (on(&near, "", "team"), false),
        (on(&near, "", "fleet"), false),
        (on(&near, "fleet/east", "team"), false),
        (on(&far, "", "fleet"), true),
        // A namespace of that name on the host's own cluster is another one.
        (on(&far, "", "team"), false),
        (on(&far, "fleet/onboarding", "team"), false),
        (on(&other, "fleet/onboarding", "team"), true),
        (on(&other, "fleet/east", "team"), true),
        (on(&other, "", "fleet"), false),
        (upstream("fleet"), true),
        (upstream("team"), false),
        (secret("fleet"), true),
        (secret("team"), false),
    ] {
        assert_eq!(
            grants.check_access(&access, "team").is_ok(),
            allowed,
            "{access:?}"
        );
    }
    let denied = grants.check_access(&on(&near, "", "fleet"), "team");
    let text = denied.expect_err("denied").to_string();
    assert!(
        text.contains("get Near in namespace fleet on the host's own cluster")
            && text.contains("namespaces: [Same], clusters: [in-cluster]}]"),
        "{text}"
    );
    let own = granted("{kubernetes: [{kinds: [Far], verbs: [get], clusters: [in-cluster]}]}");
    assert!(own.check_access(&on(&far, "", "team"), "team").is_ok());
    assert!(!own.has_clusters() && grants.has_clusters());
}

#[test]
fn home_cluster_that_is_no_namespace_and_name_is_refused() {
    for cluster in [
        "onboarding",
        "fleet/",
        "/onboarding",
        "a/b/c",
        "in-cluster",
        "Same/x",
        "../x",
    ] {
        let text = format!("{{plugins: {{p: {{cluster: {cluster:?}}}}}}}");
        let why = Grants::parse(&text, "grants.yaml").expect_err(cluster);
        assert!(why.contains("plugins.p.cluster"), "{why}");
    }
    assert!(Grants::parse("{plugins: {p: {cluster: fleet/onboarding}}}", "grants.yaml").is_ok());
}
