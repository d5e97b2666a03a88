//! Permissions of a plugin as short lines of text: requested, granted and missing ones.

use crate::policy::grants::{Permissions, has_wildcard};

/// Permissions, one line each, in the order of
/// [`PluginGrants::used_entries`](crate::policy::grants::PluginGrants::used_entries).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantSummary {
    /// Permissions that the manifest asks for.
    pub requested: Vec<String>,
    /// Permissions that are granted.
    pub granted: Vec<String>,
    /// Permissions that are asked for and not granted completely.
    pub missing: Vec<String>,
}

impl GrantSummary {
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

/// One line for each entry. The index of a line is that of the entry in
/// [`PluginGrants::used_entries`](crate::policy::grants::PluginGrants::used_entries).
pub fn format_lines(permissions: &Permissions) -> Vec<String> {
    let lines = permissions.entries().map(ToString::to_string);
    lines.map(|line| escape_controls(&line)).collect()
}

/// Lines of the permissions that are not granted completely. A kind to be reconciled in no namespace is needed in any.
pub fn find_missing(asks: &Permissions, granted: &Permissions) -> Vec<String> {
    let lines = asks.entries().filter_map(|entry| entry.find_missing(granted));
    lines.map(|line| escape_controls(&line)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kube::key::Gvk,
        policy::grants::{Access, Grant, GrantVerb, PluginGrants},
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
            verb: GrantVerb::Get,
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
            let summary = GrantSummary::new(Some(&on(asked)), &on(granted));
            assert_eq!(!summary.missing.is_empty(), missing, "{asked} {granted}");
        }
    }

    /// A manifest may contain any text, and an administrator decides by the lines.
    #[test]
    fn control_characters_of_a_manifest_are_escaped() {
        let asks = parse(r#"upstreams: [{names: ["\r\e[2K\nno new permissions"]}]"#);
        let line = r"* at upstream \r\u{1b}[2K\nno new permissions in the same namespace";
        let summary = GrantSummary::new(Some(&asks), &Permissions::default());
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
        let missing =
            |asked: &Permissions, granted: &Permissions| GrantSummary::new(Some(asked), granted).missing;
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
        let summary = GrantSummary::new(Some(&asks), &granted);
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
        assert!(GrantSummary::new(Some(&everywhere), &confined).missing.is_empty());
        assert_eq!(find_missing(&everywhere, &confined).len(), 1);
        let elsewhere =
            parse("{reconciles: [{group: a, kinds: [B], namespaces: [m]}, {group: a, kinds: [D]}]}");
        assert_eq!(GrantSummary::new(Some(&elsewhere), &confined).missing.len(), 2);
        let same = GrantSummary::new(None, &granted);
        assert_eq!(same.missing, Vec::<String>::new());
        assert_eq!(same.requested, same.granted);
        let narrower = parse("{upstreams: [{methods: [GET], paths: ['/api/*']}]}");
        assert_eq!(GrantSummary::new(Some(&asks), &narrower).missing.len(), 7);
    }
}
