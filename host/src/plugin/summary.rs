//! Permissions of a plugin as short lines of text: requested, granted and missing ones.

use crate::policy::grants::{KubernetesGrant, Permissions, SecretGrant, UpstreamGrant};

/// Permissions, one line each, in the order of [`PluginGrants::used`](crate::policy::grants::PluginGrants::used).
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
            missing: find_missing(asks, granted),
        }
    }
}

/// One line for each entry.
pub fn format_lines(permissions: &Permissions) -> Vec<String> {
    let kubernetes = permissions.kubernetes.iter().map(format_kubernetes);
    let upstreams = permissions.upstreams.iter().map(format_upstream);
    let secrets = permissions.secrets.iter().map(format_secret);
    let events = permissions.events.then(|| "emit Events".to_owned());
    let readable = permissions
        .read_secrets
        .then(|| "read values of Secrets".to_owned());
    kubernetes
        .chain(upstreams)
        .chain(secrets)
        .chain(events)
        .chain(readable)
        .collect()
}

fn format_kubernetes(g: &KubernetesGrant) -> String {
    let verbs: Vec<String> = g.verbs.iter().map(ToString::to_string).collect();
    let group = if g.group.is_empty() {
        String::new()
    } else {
        format!(".{}", g.group)
    };
    let kinds: Vec<String> = g.kinds.iter().map(|k| format!("{k}{group}")).collect();
    format!(
        "{} {}{}",
        verbs.join(","),
        kinds.join(","),
        format_namespaces(&g.namespaces)
    )
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

fn format_secret(g: &SecretGrant) -> String {
    format!(
        "name Secret {}{}",
        g.names.join(","),
        format_namespaces(&g.namespaces)
    )
}

fn has_wildcard(patterns: &[String]) -> bool {
    patterns.iter().any(|p| p == "*")
}

fn format_namespaces(namespaces: &[String]) -> String {
    if has_wildcard(namespaces) {
        String::new()
    } else {
        format!(" in {}", namespaces.join(","))
    }
}

/// Lines of the permissions that no single granted entry covers completely.
fn find_missing(asks: &Permissions, granted: &Permissions) -> Vec<String> {
    let mut missing = Vec::new();
    for ask in &asks.kubernetes {
        let covered = |kind: &String, verb, namespace: &String| {
            granted.kubernetes.iter().any(|g| {
                (g.group == "*" || g.group == ask.group)
                    && g.verbs.contains(verb)
                    && covers(&g.kinds, kind)
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
    for ask in &asks.upstreams {
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
    for ask in &asks.secrets {
        let covered =
            |g: &SecretGrant| covers_all(&g.names, &ask.names) && covers_all(&g.namespaces, &ask.namespaces);
        if !granted.secrets.iter().any(covered) {
            missing.push(format_secret(ask));
        }
    }
    let flags = [
        (asks.events && !granted.events, "emit Events"),
        (
            asks.read_secrets && !granted.read_secrets,
            "read values of Secrets",
        ),
    ];
    missing.extend(
        flags
            .into_iter()
            .filter(|(m, _)| *m)
            .map(|(_, line)| line.to_owned()),
    );
    missing
}

/// True when every pattern asked for is covered by a granted one.
fn covers_all(granted: &[String], asked: &[String]) -> bool {
    asked.iter().all(|a| covers(granted, a))
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
upstreams:
- {names: [ci], methods: [GET], paths: [/api/*]}
- {}
secrets: [{names: [x]}]
events: true
",
        );
        assert_eq!(
            format_lines(&permissions),
            [
                "get,apply ConfigMap",
                "list Team.ci.org,Job.ci.org in a",
                "GET /api/* at upstream ci",
                "* at upstream *",
                "name Secret x",
                "emit Events",
            ]
        );
    }

    #[test]
    fn missing_permissions_are_those_without_a_grant() {
        let asks = parse(
            "
kubernetes: [{kinds: [ConfigMap, Pod], verbs: [get, apply]}, {group: a, kinds: [B], verbs: [list], namespaces: [n]}]
upstreams: [{methods: [GET, PUT], paths: ['/api/*']}]
events: true
",
        );
        let granted = parse(
            "
kubernetes: [{kinds: ['*'], verbs: [get]}, {kinds: [ConfigMap], verbs: [apply]}, {group: '*', kinds: [B], verbs: [list]}]
upstreams: [{methods: ['*'], paths: ['/*']}]
",
        );
        let summary = Summary::new(Some(&asks), &granted);
        assert_eq!(summary.missing, ["apply ConfigMap,Pod", "emit Events"]);
        assert_eq!(summary.requested.len(), 4);
        let same = Summary::new(None, &granted);
        assert_eq!(same.missing, Vec::<String>::new());
        assert_eq!(same.requested, same.granted);
        let narrower = parse("{upstreams: [{methods: [GET], paths: ['/api/*']}]}");
        assert_eq!(Summary::new(Some(&asks), &narrower).missing.len(), 4);
    }
}
