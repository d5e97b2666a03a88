//! What a plugin asks for, is granted and has used, in lines for people.

use crate::policy::grants::{KubernetesGrant, Permissions, SecretGrant, UpstreamGrant};

/// What may be done, one line each, in the order in which [`PluginGrants::used`](crate::policy::grants::PluginGrants::used) counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Of what the manifest asks for.
    pub requested: Vec<String>,
    /// Of what is granted.
    pub granted: Vec<String>,
    /// What is asked for and not wholly granted.
    pub missing: Vec<String>,
}

impl Summary {
    /// Of what is asked for and what is granted; without asks all that is granted is.
    pub fn new(asks: Option<&Permissions>, granted: &Permissions) -> Self {
        let asks = asks.unwrap_or(granted);
        Self {
            requested: lines(asks),
            granted: lines(granted),
            missing: missing(asks, granted),
        }
    }
}

/// One line for each entry.
pub fn lines(permissions: &Permissions) -> Vec<String> {
    let kubernetes = permissions.kubernetes.iter().map(kubernetes);
    let upstreams = permissions.upstreams.iter().map(upstream);
    let secrets = permissions.secrets.iter().map(secret);
    let events = permissions.events.then(|| "emit Events".to_owned());
    let readable = permissions
        .secrets_are_readable
        .then(|| "see what is in Secrets".to_owned());
    kubernetes
        .chain(upstreams)
        .chain(secrets)
        .chain(events)
        .chain(readable)
        .collect()
}

fn kubernetes(g: &KubernetesGrant) -> String {
    let verbs: Vec<String> = g.verbs.iter().map(ToString::to_string).collect();
    let group = if g.group.is_empty() {
        String::new()
    } else {
        format!(".{}", g.group)
    };
    let kinds: Vec<String> = g.kinds.iter().map(|k| format!("{k}{group}")).collect();
    format!("{} {}{}", verbs.join(","), kinds.join(","), within(&g.namespaces))
}

fn upstream(g: &UpstreamGrant) -> String {
    let paths = if everything(&g.paths) {
        String::new()
    } else {
        format!(" {}", g.paths.join(","))
    };
    format!(
        "{}{paths} at upstream {}{}",
        g.methods.join(","),
        g.names.join(","),
        within(&g.namespaces)
    )
}

fn secret(g: &SecretGrant) -> String {
    format!("name Secret {}{}", g.names.join(","), within(&g.namespaces))
}

fn everything(patterns: &[String]) -> bool {
    patterns.iter().any(|p| p == "*")
}

fn within(namespaces: &[String]) -> String {
    match everything(namespaces) {
        true => String::new(),
        false => format!(" in {}", namespaces.join(",")),
    }
}

/// The lines of what is asked for and not wholly covered by one entry of what is granted.
fn missing(asks: &Permissions, granted: &Permissions) -> Vec<String> {
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
            missing.push(kubernetes(&KubernetesGrant { verbs, ..ask.clone() }));
        }
    }
    for ask in &asks.upstreams {
        let covered = |g: &UpstreamGrant| {
            all(&g.names, &ask.names)
                && all(&g.namespaces, &ask.namespaces)
                && all(&g.methods, &ask.methods)
                && all(&g.paths, &ask.paths)
        };
        if !granted.upstreams.iter().any(covered) {
            missing.push(upstream(ask));
        }
    }
    for ask in &asks.secrets {
        let covered = |g: &SecretGrant| all(&g.names, &ask.names) && all(&g.namespaces, &ask.namespaces);
        if !granted.secrets.iter().any(covered) {
            missing.push(secret(ask));
        }
    }
    let flags = [
        (asks.events && !granted.events, "emit Events"),
        (
            asks.secrets_are_readable && !granted.secrets_are_readable,
            "see what is in Secrets",
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

/// Whether everything that one of these patterns covers is covered by one of those.
fn all(granted: &[String], asked: &[String]) -> bool {
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
    fn short_lines() {
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
            lines(&permissions),
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
    fn what_is_missing() {
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
