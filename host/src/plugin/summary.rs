//! Permissions of a plugin as short lines of text: requested, granted and missing ones.

use crate::policy::grants::{
    HOST_GROUP, KubernetesGrant, MessageGrant, Permissions, ReconcileGrant, SAME_NAMESPACE, SecretGrant,
    UpstreamGrant, covers_topic,
};

/// Permissions, one line each, in the order of
/// [`PluginGrants::used_entries`](crate::policy::grants::PluginGrants::used_entries).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Permissions that the manifest asks for.
    pub requested: Vec<String>,
    /// Permissions that are granted.
    pub granted: Vec<String>,
    /// Permissions that are asked for and not granted completely.
    pub missing: Vec<String>,
}

impl Summary {
    /// Compares what is asked for with what is granted. Without a manifest everything that is granted counts as asked for.
    pub fn new(asks: Option<&Permissions>, granted: &Permissions) -> Self {
        let asks = asks.unwrap_or(granted);
        Self {
            requested: format_lines(asks),
            granted: format_lines(granted),
            missing: find_missing(&ignore_places(asks), granted),
        }
    }
}

/// One line for each entry. The index of a line is that of the entry in `used_entries`.
pub fn format_lines(permissions: &Permissions) -> Vec<String> {
    // Destructured, so that the compiler asks for the lines of a new field.
    let Permissions {
        reconciles,
        kubernetes,
        upstreams,
        messages,
        secrets,
        events,
        read_secrets,
    } = permissions;
    let reconciles = reconciles.iter().map(format_reconcile);
    let kubernetes = kubernetes.iter().map(format_kubernetes);
    let upstreams = upstreams.iter().map(format_upstream);
    let messages = messages.iter().map(format_message);
    let secrets = secrets.iter().map(format_secret);
    let events = events.then(|| "emit Events".to_owned());
    let readable = read_secrets.then(|| "read values of Secrets".to_owned());
    reconciles
        .chain(kubernetes)
        .chain(upstreams)
        .chain(messages)
        .chain(secrets)
        .chain(events)
        .chain(readable)
        .map(|line| escape_controls(&line))
        .collect()
}

/// A text of a component without control characters, which could erase or forge lines of a terminal.
pub fn escape_controls(text: &str) -> String {
    let escape = |c: char| {
        let escaped = c.is_control().then(|| c.escape_default());
        let plain = (!c.is_control()).then_some(c);
        escaped.into_iter().flatten().chain(plain)
    };
    text.chars().flat_map(escape).collect()
}

fn format_reconcile(g: &ReconcileGrant) -> String {
    format!(
        "reconcile {}{}",
        format_kinds(&g.group, &g.kinds),
        format_namespaces(&g.namespaces)
    )
}

fn format_kubernetes(g: &KubernetesGrant) -> String {
    let verbs: Vec<String> = g.verbs.iter().map(ToString::to_string).collect();
    format!(
        "{} {}{}{}",
        verbs.join(","),
        format_kinds(&g.group, &g.kinds),
        format_namespaces(&g.namespaces),
        format_clusters(&g.clusters)
    )
}

fn format_clusters(clusters: &[String]) -> String {
    match clusters {
        [] => String::new(),
        clusters => format!(" on clusters {}", clusters.join(",")),
    }
}

fn format_kinds(group: &str, kinds: &[String]) -> String {
    let group = if group.is_empty() {
        String::new()
    } else {
        format!(".{group}")
    };
    let kinds: Vec<String> = kinds.iter().map(|k| format!("{k}{group}")).collect();
    kinds.join(",")
}

fn format_upstream(g: &UpstreamGrant) -> String {
    let paths = if has_wildcard(&g.paths) {
        String::new()
    } else {
        format!(" {}", g.paths.join(","))
    };
    format!(
        "{}{paths} at upstream {}{}",
        g.methods.join(","),
        g.names.join(","),
        format_namespaces(&g.namespaces)
    )
}

fn format_message(g: &MessageGrant) -> String {
    let keys = if g.routing_keys.iter().any(|key| key == "#") {
        String::new()
    } else {
        format!(" with key {}", g.routing_keys.join(","))
    };
    let exchanges = g.exchanges.iter().map(|exchange| match exchange.as_str() {
        "" => "the default exchange",
        exchange => exchange,
    });
    format!(
        "publish to {}{keys} at upstream {}{}",
        exchanges.collect::<Vec<_>>().join(","),
        g.names.join(","),
        format_namespaces(&g.namespaces)
    )
}

fn format_secret(g: &SecretGrant) -> String {
    let origins = match &g.origins {
        None if g.allows_any_origin() => Some("any origin".to_owned()),
        None => None,
        Some(origins) => {
            let origins: Vec<String> = origins.iter().map(ToString::to_string).collect();
            Some(origins.join(","))
        }
    };
    let is_targeted = !g.target_namespaces.is_empty();
    let targets = is_targeted.then(|| format!("Secrets{}", format_namespaces(&g.target_namespaces)));
    let destinations: Vec<String> = origins.into_iter().chain(targets).collect();
    format!(
        "name Secret {}{} for {}",
        g.names.join(","),
        format_namespaces(&g.namespaces),
        destinations.join(" and ")
    )
}

fn has_wildcard(patterns: &[String]) -> bool {
    patterns.iter().any(|p| p == "*")
}

fn format_namespaces(namespaces: &[String]) -> String {
    if namespaces.is_empty() || has_wildcard(namespaces) {
        return String::new();
    }
    let names = namespaces.iter().map(|n| match n.as_str() {
        SAME_NAMESPACE => "the same namespace",
        name => name,
    });
    format!(" in {}", names.collect::<Vec<_>>().join(","))
}

/// Takes the wildcard from the namespaces in which kinds are to be reconciled. A plugin that could work everywhere misses nothing
/// where the administrator confines it to some namespaces.
fn ignore_places(asks: &Permissions) -> Permissions {
    let mut asks = asks.clone();
    let everywhere = asks
        .reconciles
        .iter_mut()
        .filter(|entry| has_wildcard(&entry.namespaces));
    everywhere.for_each(|entry| entry.namespaces.clear());
    asks
}

/// Lines of the permissions that are not granted completely. A kind to be reconciled in no namespace is needed in any.
pub fn find_missing(asks: &Permissions, granted: &Permissions) -> Vec<String> {
    let Permissions {
        reconciles,
        kubernetes,
        upstreams,
        messages,
        secrets,
        events,
        read_secrets,
    } = asks;
    let mut missing = Vec::new();
    for ask in reconciles {
        let covered = |kind: &String| {
            granted.reconciles.iter().any(|g| {
                covers_kind((&g.group, &g.kinds), (&ask.group, kind))
                    && covers_all(&g.namespaces, &ask.namespaces)
            })
        };
        if !ask.kinds.iter().all(covered) {
            missing.push(format_reconcile(ask));
        }
    }
    for ask in kubernetes {
        let covered = |kind: &String, verb, namespace: &String| {
            granted.kubernetes.iter().any(|g| {
                covers_kind((&g.group, &g.kinds), (&ask.group, kind))
                    && covers_secrets(g, kind, granted.read_secrets)
                    && covers_clusters(&g.clusters, &ask.clusters)
                    && g.verbs.contains(verb)
                    && covers(&g.namespaces, namespace)
            })
        };
        let verbs = ask.verbs.iter().filter(|verb| {
            ask.kinds
                .iter()
                .any(|kind| ask.namespaces.iter().any(|n| !covered(kind, verb, n)))
        });
        let verbs: Vec<_> = verbs.copied().collect();
        if !verbs.is_empty() {
            missing.push(format_kubernetes(&KubernetesGrant { verbs, ..ask.clone() }));
        }
    }
    for ask in upstreams {
        let covered = |g: &UpstreamGrant| {
            covers_all(&g.names, &ask.names)
                && covers_all(&g.namespaces, &ask.namespaces)
                && covers_all(&g.methods, &ask.methods)
                && covers_all(&g.paths, &ask.paths)
        };
        if !granted.upstreams.iter().any(covered) {
            missing.push(format_upstream(ask));
        }
    }
    for ask in messages {
        let covers_keys = |g: &MessageGrant| {
            let covered = |key: &String| g.routing_keys.iter().any(|own| covers_topic(own, key));
            ask.routing_keys.iter().all(covered)
        };
        let covers_exchange = |g: &MessageGrant, exchange: &String| match exchange.as_str() {
            "" => g.exchanges.contains(exchange),
            _ => covers(&g.exchanges, exchange),
        };
        let covered = |g: &MessageGrant| {
            covers_all(&g.names, &ask.names)
                && covers_all(&g.namespaces, &ask.namespaces)
                && ask.exchanges.iter().all(|exchange| covers_exchange(g, exchange))
                && covers_keys(g)
        };
        if !granted.messages.iter().any(covered) {
            missing.push(format_message(ask));
        }
    }
    for ask in secrets {
        let covered = |g: &SecretGrant| {
            covers_all(&g.names, &ask.names)
                && covers_all(&g.namespaces, &ask.namespaces)
                && covers_origins(g, ask)
                && covers_all(&g.target_namespaces, &ask.target_namespaces)
        };
        if !granted.secrets.iter().any(covered) {
            missing.push(format_secret(ask));
        }
    }
    let flags = [
        (*events && !granted.events, "emit Events"),
        (*read_secrets && !granted.read_secrets, "read values of Secrets"),
    ];
    missing.extend(
        flags
            .into_iter()
            .filter(|(m, _)| *m)
            .map(|(_, line)| line.to_owned()),
    );
    missing.iter().map(|line| escape_controls(line)).collect()
}

/// True when every pattern asked for is covered by a granted one.
fn covers_all(granted: &[String], asked: &[String]) -> bool {
    asked.iter().all(|a| covers(granted, a))
}

/// A kind asked for is covered. Kinds of the host, with which powers are given, are covered by their names only.
fn covers_kind((granted_group, granted): (&str, &[String]), (group, kind): (&str, &str)) -> bool {
    if group == HOST_GROUP {
        return granted_group == HOST_GROUP && granted.iter().any(|g| g == kind);
    }
    (granted_group == "*" || granted_group == group) && covers(granted, kind)
}

/// A granted entry covers the kind Secret only by its name, or with `readSecrets`.
fn covers_secrets(granted: &KubernetesGrant, kind: &str, read_secrets: bool) -> bool {
    kind != "Secret" || read_secrets || granted.kinds.iter().any(|g| g == kind)
}

/// Every cluster asked for is covered; an entry without clusters is about the home cluster.
fn covers_clusters(granted: &[String], asked: &[String]) -> bool {
    let covers_pair = |asked: &str, granted: &str| match (asked.split_once('/'), granted.split_once('/')) {
        (Some((namespace, name)), Some((granted_namespace, granted_name))) => {
            covers(&[granted_namespace.to_owned()], namespace) && covers(&[granted_name.to_owned()], name)
        }
        // The host's own cluster.
        _ => asked == granted,
    };
    asked.is_empty() == granted.is_empty() && asked.iter().all(|a| granted.iter().any(|g| covers_pair(a, g)))
}

/// A manifest that lists no origins leaves them to the administrator, if it asks for requests at all.
fn covers_origins(granted: &SecretGrant, asked: &SecretGrant) -> bool {
    match (&granted.origins, &asked.origins) {
        (None, None) => granted.allows_any_origin() || !asked.allows_any_origin(),
        (None, Some(_)) => granted.allows_any_origin(),
        (Some(_), None) => true,
        (Some(granted), Some(asked)) => asked.iter().all(|a| granted.iter().any(|g| g.covers(a))),
    }
}

fn covers(granted: &[String], asked: &str) -> bool {
    granted.iter().any(|g| match g.strip_suffix('*') {
        Some(start) => asked.starts_with(start),
        None => g == asked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kube::key::Gvk,
        policy::grants::{Access, Grant, PluginGrants, Verb},
    };

    fn parse(yaml: &str) -> Permissions {
        serde_saphyr::from_str(yaml).expect("parses")
    }

    #[test]
    fn permissions_format_as_short_lines() {
        let permissions = parse(
            "
kubernetes:
- {kinds: [ConfigMap], verbs: [get, apply]}
- {group: ci.org, kinds: [Team, Job], verbs: [list], namespaces: [a]}
- {kinds: [Pod], verbs: [get], namespaces: ['*'], clusters: [Same/*, fleet/east]}
upstreams:
- {names: [ci], methods: [GET], paths: [/api/*]}
- {namespaces: ['*']}
messages: [{names: [mq], exchanges: [events, ''], routingKeys: [a.*]}, {exchanges: ['*'], namespaces: ['*']}]
secrets: [{names: [x]}, {targetNamespaces: [Same, b]}]
events: true
",
        );
        assert_eq!(
            format_lines(&permissions),
            [
                "get,apply ConfigMap in the same namespace",
                "list Team.ci.org,Job.ci.org in a",
                "get Pod on clusters Same/*,fleet/east",
                "GET /api/* at upstream ci in the same namespace",
                "* at upstream *",
                "publish to events,the default exchange with key a.* at upstream mq in the same namespace",
                "publish to * at upstream *",
                "name Secret x in the same namespace for any origin",
                "name Secret * in the same namespace for Secrets in the same namespace,b",
                "emit Events",
            ]
        );
    }

    /// `Plugin` objects report used permissions as indexes into these lines.
    #[test]
    fn used_entry_is_the_index_of_its_line() {
        let permissions = parse(
            "
reconciles: [{kinds: [A]}, {kinds: [B]}]
kubernetes: [{kinds: [A], verbs: [get]}, {kinds: [B], verbs: [get], namespaces: ['*']}]
upstreams: [{names: [u]}, {names: [v]}]
messages: [{names: [m], exchanges: [e]}, {names: [m], exchanges: [''], routingKeys: [q]}]
secrets: [{names: [s]}, {names: [t], origins: ['https://ci']}]
events: true
readSecrets: true
",
        );
        let lines = format_lines(&permissions);
        let (a, b) = (Gvk::new("", "v1", "A"), Gvk::new("", "v1", "B"));
        let kubernetes = |gvk| Access::Kubernetes {
            verb: Verb::Get,
            gvk,
            namespace: "n",
            cluster: "",
        };
        let upstream = |name| Access::Upstream {
            namespace: "n",
            name,
            method: "GET",
            path: "/",
        };
        let publish = |exchange| Access::Publish {
            namespace: "n",
            name: "m",
            exchange,
            routing_key: "q",
        };
        let secret = |name| Access::Secret {
            namespace: "n",
            name,
            destination: None,
        };
        for (access, line) in [
            (Access::Reconcile { gvk: &a }, "reconcile A"),
            (Access::Reconcile { gvk: &b }, "reconcile B"),
            (kubernetes(&a), "get A in the same namespace"),
            (kubernetes(&b), "get B"),
            (upstream("u"), "* at upstream u in the same namespace"),
            (upstream("v"), "* at upstream v in the same namespace"),
            (publish("e"), "publish to e at upstream m in the same namespace"),
            (
                publish(""),
                "publish to the default exchange with key q at upstream m in the same namespace",
            ),
            (secret("s"), "name Secret s in the same namespace for any origin"),
            (secret("t"), "name Secret t in the same namespace for https://ci"),
            (Access::Events, "emit Events"),
        ] {
            let grant = Grant {
                permissions: permissions.clone(),
                ..Grant::default()
            };
            let grants = PluginGrants::new("p", "", None, grant);
            grants.check_access(&access, "n").expect("granted");
            let used: Vec<_> = grants.used_entries().into_iter().map(|i| &*lines[i]).collect();
            assert_eq!(used, [line]);
        }
    }

    #[test]
    fn permission_on_a_cluster_is_missing_without_a_grant_for_it() {
        let on = |clusters: &str| {
            parse(&format!(
                "kubernetes: [{{kinds: [Pod], verbs: [get], namespaces: ['*']{clusters}}}]"
            ))
        };
        for (asked, granted, missing) in [
            (", clusters: [fleet/east]", "", true),
            ("", ", clusters: ['*/*']", true),
            (
                ", clusters: [fleet/east, fleet/west]",
                ", clusters: [fleet/*]",
                false,
            ),
            (", clusters: [fleet/*]", ", clusters: [fleet/east]", true),
            (", clusters: [Same/x]", ", clusters: ['*/*']", false),
        ] {
            let summary = Summary::new(Some(&on(asked)), &on(granted));
            assert_eq!(!summary.missing.is_empty(), missing, "{asked} {granted}");
        }
    }

    /// A manifest may contain any text, and an administrator decides by the lines.
    #[test]
    fn control_characters_of_a_manifest_are_escaped() {
        let asks = parse(r#"upstreams: [{names: ["\r\e[2K\nno new permissions"]}]"#);
        let line = r"* at upstream \r\u{1b}[2K\nno new permissions in the same namespace";
        let summary = Summary::new(Some(&asks), &Permissions::default());
        assert_eq!(summary.missing, [line]);
        assert_eq!(summary.requested, [line]);
    }

    /// An upgrade that names what a pattern does not grant needs consent.
    #[test]
    fn pattern_covers_neither_secrets_nor_kinds_of_the_host() {
        let everything = "kubernetes: [{group: '*', kinds: ['*'], verbs: [get, apply], namespaces: ['*']}]";
        let named = |group: &str, kind: &str| {
            parse(&format!(
                "kubernetes: [{{group: '{group}', kinds: [{kind}], verbs: [apply], namespaces: ['*']}}]"
            ))
        };
        let missing = |asked: &Permissions, granted: &Permissions| Summary::new(Some(asked), granted).missing;
        for (group, kind) in [
            ("", "Secret"),
            ("ostler.dev", "Upstream"),
            ("ostler.dev", "Cluster"),
        ] {
            let asked = named(group, kind);
            assert_eq!(missing(&asked, &parse(everything)).len(), 1, "{kind}");
            assert_eq!(missing(&asked, &asked), Vec::<String>::new(), "{kind}");
        }
        assert!(missing(&named("apps", "Deployment"), &parse(everything)).is_empty());
        let readable = parse(&format!("{everything}\nreadSecrets: true"));
        assert!(missing(&named("", "Secret"), &readable).is_empty());
        assert!(missing(&parse(everything), &parse(everything)).is_empty());
        let reconciles =
            |group: &str| parse(&format!("reconciles: [{{group: '{group}', kinds: [Upstream]}}]"));
        assert_eq!(missing(&reconciles("ostler.dev"), &reconciles("*")).len(), 1);
    }

    #[test]
    fn missing_permissions_are_those_without_a_grant() {
        let asks = parse(
            "
kubernetes: [{kinds: [ConfigMap, Pod], verbs: [get, apply]}, {group: a, kinds: [B], verbs: [list], namespaces: [n]}]
upstreams: [{methods: [GET, PUT], paths: ['/api/*']}]
messages: [{exchanges: [events], routingKeys: [a.b]}, {exchanges: ['']}, {exchanges: [events], routingKeys: ['#']}]
events: true
",
        );
        let granted = parse(
            "
kubernetes: [{kinds: ['*'], verbs: [get]}, {kinds: [ConfigMap], verbs: [apply]}, {group: '*', kinds: [B], verbs: [list], namespaces: ['*']}]
upstreams: [{methods: ['*'], paths: ['/*']}]
messages: [{exchanges: ['*'], routingKeys: ['a.#']}]
",
        );
        let summary = Summary::new(Some(&asks), &granted);
        assert_eq!(
            summary.missing,
            [
                "apply ConfigMap,Pod in the same namespace",
                "publish to the default exchange at upstream * in the same namespace",
                "publish to events at upstream * in the same namespace",
                "emit Events"
            ]
        );
        assert_eq!(summary.requested.len(), 7);
        let confined =
            parse("{reconciles: [{group: a, kinds: [B], namespaces: [n]}, {group: a, kinds: [C]}]}");
        let everywhere = parse("{reconciles: [{group: a, kinds: [B, C]}]}");
        assert!(Summary::new(Some(&everywhere), &confined).missing.is_empty());
        assert_eq!(find_missing(&everywhere, &confined).len(), 1);
        let elsewhere =
            parse("{reconciles: [{group: a, kinds: [B], namespaces: [m]}, {group: a, kinds: [D]}]}");
        assert_eq!(Summary::new(Some(&elsewhere), &confined).missing.len(), 2);
        let same = Summary::new(None, &granted);
        assert_eq!(same.missing, Vec::<String>::new());
        assert_eq!(same.requested, same.granted);
        let narrower = parse("{upstreams: [{methods: [GET], paths: ['/api/*']}]}");
        assert_eq!(Summary::new(Some(&asks), &narrower).missing.len(), 7);
    }
}
