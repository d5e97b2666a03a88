//! The check itself: asked for, and granted.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Access, Grant, KubernetesGrant, Pace, Permissions, SecretGrant, ServiceAccount, UpstreamGrant, Verb,
};
use crate::contract::limits::Limits;

/// What is missing, and on which side.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plugin {plugin} may not {what}: {}", self.missing())]
pub struct Denied {
    plugin: Arc<str>,
    what: String,
    /// The field that would allow it, without where it belongs.
    term: String,
    asked: bool,
    /// Where it would be granted; none where it is.
    grant: Option<Arc<str>>,
}

impl Denied {
    fn missing(&self) -> impl fmt::Display + '_ {
        fmt::from_fn(|f| {
            let term = &self.term;
            if !self.asked {
                write!(f, "its manifest does not ask for it, which would be `asks.{term}")?;
            }
            if !self.asked && self.grant.is_some() {
                f.write_str("; nor is it granted: ")?;
            }
            match &self.grant {
                Some(place) => write!(f, "grant it with `{place}{term}"),
                None => Ok(()),
            }
        })
    }
}

/// What one plugin may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginGrants {
    plugin: Arc<str>,
    /// Where it is granted, as a prefix of fields.
    place: Arc<str>,
    /// None for all that is granted.
    asks: Option<Permissions>,
    grant: Grant,
    granted: Permissions,
    used: Arc<Used>,
}

/// Which entries of what is asked for have been used. A look at a word where they have, and no two are equal or not
/// because of it.
#[derive(Debug, Default)]
struct Used(Box<[AtomicU64]>);

impl Used {
    fn of(permissions: &Permissions) -> Arc<Self> {
        let words = permissions.entries().div_ceil(64);
        Arc::new(Self((0..words).map(|_| AtomicU64::default()).collect()))
    }

    fn mark(&self, entry: usize) {
        let bit = 1 << (entry % 64);
        if let Some(word) = self.0.get(entry / 64)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

impl PartialEq for Used {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Used {}

impl PluginGrants {
    /// A plugin that asks for this, and is granted that; `place` is what to put before a field of the grant in an
    /// error (`spec.grants.`). Without asks it asks for all that it is granted.
    pub fn new(plugin: &str, place: &str, asks: Option<Permissions>, grant: Grant) -> Self {
        Self {
            plugin: plugin.into(),
            place: place.into(),
            used: Used::of(asks.as_ref().unwrap_or(&grant.permissions())),
            asks,
            granted: grant.permissions(),
            grant,
        }
    }

    /// The same, with what its manifest asks for.
    pub fn asking(self, asks: Option<Permissions>) -> Self {
        let used = Used::of(asks.as_ref().unwrap_or(&self.granted));
        Self { asks, used, ..self }
    }

    /// Which entries of what it asks for (without asks, of what it is granted) have been used: kubernetes, upstreams
    /// and secrets in their order, then events.
    pub fn used(&self) -> Vec<usize> {
        let marked = |i: &usize| {
            let word = self.used.0.get(i / 64);
            word.is_some_and(|w| w.load(Ordering::Relaxed) & (1 << (i % 64)) != 0)
        };
        (0..self.used.0.len() * 64).filter(marked).collect()
    }

    /// How its reconciles are paced, where something is said.
    pub fn pace(&self) -> Pace {
        self.grant.pace
    }

    /// Who it is to the API server; none for the host itself.
    pub fn service_account(&self) -> Option<&ServiceAccount> {
        self.grant.service_account.as_ref()
    }

    /// What it may use, on a host with these limits.
    pub fn limits(&self, host: &Limits) -> Limits {
        self.grant.limits.over(host)
    }

    /// What its manifest asks for; none without a manifest.
    pub fn asks(&self) -> Option<&Permissions> {
        self.asks.as_ref()
    }

    /// What it is granted, asked for or not.
    pub fn granted(&self) -> &Permissions {
        &self.granted
    }

    /// Whether the plugin itself may see what is in some Secret.
    pub fn reads_secrets(&self) -> bool {
        self.secret_namespaces().next().is_some()
    }

    /// The namespaces, as granted, whose Secrets it may see.
    pub fn secret_namespaces(&self) -> impl Iterator<Item = &str> {
        let asked = self
            .asks
            .as_ref()
            .is_none_or(|asks| asks.shown_secrets().next().is_some());
        let granted = self.granted.shown_secrets().filter(move |_| asked);
        granted.flat_map(|grant| grant.namespaces.iter().map(String::as_str))
    }

    /// Groups and kinds it may hold. A pattern names none.
    pub fn holdable(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named(&[Verb::Hold])
    }

    /// Groups and kinds it may make. A pattern names none.
    pub fn writable(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named(&[Verb::Apply, Verb::Create])
    }

    fn named<'a>(&'a self, verbs: &'a [Verb]) -> impl Iterator<Item = (&'a str, &'a str)> {
        let granting = self.granted.kubernetes.iter();
        let granting = granting.filter(|g| g.verbs.iter().any(|v| verbs.contains(v)));
        let kinds = granting.flat_map(|g| g.kinds.iter().map(|kind| (&*g.group, &**kind)));
        kinds.filter(|(group, kind)| !group.contains('*') && !kind.contains('*'))
    }

    /// The one check. `Err` says what is missing.
    pub fn check(&self, access: &Access<'_>) -> Result<(), Denied> {
        let entry = self.asks.as_ref().unwrap_or(&self.granted).allow(access);
        let granted = match self.asks {
            Some(_) => self.granted.allow(access).is_some(),
            None => entry.is_some(),
        };
        if let (Some(entry), true) = (entry, granted) {
            self.used.mark(entry);
            return Ok(());
        }
        let asked = self.asks.is_none() || entry.is_some();
        let (what, term) = access.words();
        Err(Denied {
            plugin: self.plugin.clone(),
            what,
            term,
            asked,
            grant: (!granted).then(|| self.place.clone()),
        })
    }
}

/// Whether the answer has the object in it.
fn shows(verb: &Verb) -> bool {
    matches!(verb, Verb::Get | Verb::List | Verb::Apply | Verb::Create)
}

impl Permissions {
    /// What shows Secrets.
    fn shown_secrets(&self) -> impl Iterator<Item = &KubernetesGrant> {
        let shown = |g: &&KubernetesGrant| {
            matches!(&*g.group, "" | "*") && covered(&g.kinds, "Secret") && g.verbs.iter().any(shows)
        };
        let readable = self.secrets_are_readable;
        self.kubernetes.iter().filter(move |g| readable && shown(g))
    }

    /// How many things it may say.
    fn entries(&self) -> usize {
        self.kubernetes.len() + self.upstreams.len() + self.secrets.len() + 1
    }

    /// The entry that allows something, if any does.
    fn allow(&self, access: &Access<'_>) -> Option<usize> {
        match *access {
            Access::Kubernetes { verb, gvk, namespace } => {
                let covers = |g: &KubernetesGrant| {
                    (g.group == *gvk.group || g.group == "*")
                        && covered(&g.kinds, &gvk.kind)
                        && g.verbs.contains(&verb)
                        && covered(&g.namespaces, namespace)
                };
                let readable = self.secrets_are_readable || !access.of_secrets();
                self.kubernetes.iter().position(covers).filter(|_| readable)
            }
            Access::Upstream {
                namespace,
                name,
                method,
                path,
            } => {
                let path = path.split('?').next().unwrap_or_default();
                let covers = |g: &UpstreamGrant| {
                    covered(&g.names, name)
                        && covered(&g.namespaces, namespace)
                        && covered(&g.methods, method)
                        && covered(&g.paths, path)
                };
                let found = self.upstreams.iter().position(covers);
                found.map(|i| i + self.kubernetes.len())
            }
            Access::Secret { namespace, name } => {
                let covers = |g: &SecretGrant| covered(&g.names, name) && covered(&g.namespaces, namespace);
                let found = self.secrets.iter().position(covers);
                found.map(|i| i + self.kubernetes.len() + self.upstreams.len())
            }
            Access::Events => self.events.then(|| self.entries() - 1),
        }
    }
}

impl Access<'_> {
    fn of_secrets(&self) -> bool {
        matches!(self, Self::Kubernetes { gvk, .. } if gvk.is_secret())
    }

    /// What it is, and the field that allows it, with the closing backtick.
    fn words(&self) -> (String, String) {
        match *self {
            Self::Kubernetes { verb, gvk, namespace } => {
                let readable = match self.of_secrets() {
                    true => " and `secretsAreReadable: true`",
                    false => "",
                };
                let shown = if namespace.is_empty() { "*" } else { namespace };
                (
                    format!("{verb} {}{}", gvk.kind, place(namespace)),
                    format!(
                        "kubernetes: [{{group: \"{}\", kinds: [{}], verbs: [{verb}], namespaces: [\"{shown}\"]}}]`{readable}",
                        gvk.group, gvk.kind
                    ),
                )
            }
            Self::Upstream {
                namespace,
                name,
                method,
                path,
            } => (
                format!(
                    "{method} {} at upstream {name}{}",
                    path.split('?').next().unwrap_or_default(),
                    place(namespace)
                ),
                format!("upstreams: [{{names: [{name}], namespaces: [{namespace}], methods: [{method}]}}]`"),
            ),
            Self::Secret { namespace, name } => (
                format!("name Secret {name}{}", place(namespace)),
                format!("secrets: [{{names: [{name}], namespaces: [{namespace}]}}]`"),
            ),
            Self::Events => ("emit events".into(), "events: true`".into()),
        }
    }
}

fn place(namespace: &str) -> String {
    if namespace.is_empty() {
        String::new()
    } else {
        format!(" in namespace {namespace}")
    }
}

/// Whether some pattern covers a word: itself, `*`, or a start with `*` at the end.
fn covered(patterns: &[String], word: &str) -> bool {
    patterns
        .iter()
        .any(|p| p == word || p.strip_suffix('*').is_some_and(|start| word.starts_with(start)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::{kube::key::Gvk, policy::grants::Grants};

    const FILE: &str = "
plugins:
  team:
    kubernetes:
    - {group: concourse-ci.org, kinds: [Instance], verbs: [get], namespaces: [a]}
    - {group: '', kinds: [Secret], verbs: [get]}
    upstreams:
    - {names: [ci], methods: [GET], paths: [/api/v1/*]}
";

    fn kubernetes<'a>(verb: Verb, gvk: &'a Gvk, namespace: &'a str) -> Access<'a> {
        Access::Kubernetes { verb, gvk, namespace }
    }

    #[test]
    fn denied_unless_granted_and_says_what_to_grant() {
        let grants = Grants::parse(FILE, "g.yaml").expect("parses");
        let team = grants.of("team");
        let instance = Gvk::new("concourse-ci.org", "v1alpha1", "Instance");
        assert_eq!(team.check(&kubernetes(Verb::Get, &instance, "a")), Ok(()));
        for access in [
            kubernetes(Verb::Get, &instance, "b"),
            kubernetes(Verb::Get, &instance, ""),
            kubernetes(Verb::Delete, &instance, "a"),
            kubernetes(Verb::Get, &Gvk::new("", "v1", "Secret"), "a"),
            Access::Events,
            Access::Secret {
                namespace: "a",
                name: "x",
            },
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
            let text = team.check(&access).expect_err("denied").to_string();
            assert!(
                text.contains("plugin team may not") && text.contains("plugins.team."),
                "{text}"
            );
            assert!(grants.of("other").check(&access).is_err());
        }
        let query = Access::Upstream {
            namespace: "a",
            name: "ci",
            method: "GET",
            path: "/api/v1/x?y=/z",
        };
        assert_eq!(team.check(&query), Ok(()));
    }

    #[test]
    fn pace() {
        let text = "plugins: {team: {pace: {poll: 1h30m, jitter: 5}}}";
        let pace = Grants::parse(text, "g.yaml").expect("parses").of("team").pace();
        assert_eq!(
            (pace.poll, pace.jitter),
            (Some(Duration::from_secs(5400)), Some(5))
        );
        for wrong in ["soon", "0s", "-5m"] {
            let text = format!("plugins: {{team: {{pace: {{poll: {wrong}}}}}}}");
            let error = Grants::parse(&text, "g.yaml").unwrap_err();
            assert!(error.contains("is no time") && error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn networks() {
        let grants = Grants::parse("network: {allow: [10.96.0.0/12, '::1']}", "g.yaml").expect("parses");
        assert!(grants.network.permits("10.96.0.1".parse().expect("an address")));
        let error = Grants::parse("network: {allow: [localhost]}", "g.yaml").unwrap_err();
        assert!(
            error.contains("g.yaml") && error.contains("`localhost` is no network"),
            "{error}"
        );
    }

    #[test]
    fn a_typing_error_is_named() {
        let error = Grants::parse("plugins: {team: {kubernets: []}}", "g.yaml").unwrap_err();
        assert!(error.contains("g.yaml") && error.contains("kubernets"), "{error}");
    }

    #[test]
    fn what_is_used_is_told() {
        let text = "{kubernetes: [{kinds: [A], verbs: [get]}, {kinds: ['*'], verbs: [get]}], upstreams: [{}], events: true}";
        let asks: Permissions = serde_saphyr::from_str(text).expect("parses");
        let grant: Grant =
            serde_saphyr::from_str("{kubernetes: [{kinds: ['*'], verbs: [get]}], events: true}")
                .expect("parses");
        let grants = PluginGrants::new("p", "", Some(asks), grant);
        assert_eq!(grants.used(), [0; 0]);
        let other = Gvk::new("", "v1", "B");
        assert!(grants.check(&kubernetes(Verb::Get, &other, "n")).is_ok());
        assert!(grants.check(&kubernetes(Verb::Hold, &other, "n")).is_err());
        let ungranted = Access::Upstream {
            namespace: "n",
            name: "u",
            method: "GET",
            path: "/",
        };
        assert!(grants.check(&ungranted).is_err());
        assert_eq!(grants.used(), [1], "what was denied is not used");
        let shared = grants.clone();
        assert!(shared.check(&Access::Events).is_ok());
        assert_eq!(grants.used(), [1, 3]);
    }

    #[test]
    fn both_sides_are_needed_and_the_missing_one_is_named() {
        let asks = |text: &str| Some(serde_saphyr::from_str::<Permissions>(text).expect("parses"));
        let team = Grants::parse(FILE, "g.yaml").expect("parses").of("team");
        let instance = Gvk::new("concourse-ci.org", "v1alpha1", "Instance");
        let get = kubernetes(Verb::Get, &instance, "a");
        let all = "{kubernetes: [{group: '*', kinds: ['*'], verbs: [get, list]}], events: true}";
        let asking = team.clone().asking(asks(all));
        assert_eq!(asking.check(&get), Ok(()));
        let ungranted = asking.check(&Access::Events).unwrap_err().to_string();
        assert_eq!(
            ungranted,
            "plugin team may not emit events: grant it with `plugins.team.events: true`"
        );
        let silent = team.asking(asks("{}"));
        let unasked = silent.check(&get).unwrap_err().to_string();
        assert!(
            unasked.contains("its manifest does not ask for it") && !unasked.contains("plugins.team"),
            "{unasked}"
        );
        let neither = silent.check(&Access::Events).unwrap_err().to_string();
        assert!(
            neither.contains("`asks.events: true`") && neither.contains("`plugins.team.events: true`"),
            "{neither}"
        );
    }

    #[test]
    fn secrets_are_readable_when_both_say_so() {
        let readable = "{kubernetes: [{kinds: [Secret], verbs: [get]}], secretsAreReadable: true}";
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
            assert_eq!(grants.reads_secrets(), may, "{asked:?} {granted}");
            let checked = grants.check(&kubernetes(Verb::Get, &secret, "a"));
            assert_eq!(checked.is_ok(), may, "{checked:?}");
        }
    }

    #[test]
    fn mistakes_name_file_and_field() {
        for (entry, words) in [
            (
                "kubernetes: [{kinds: [A], verbs: []}]",
                "kubernetes[0].verbs is empty",
            ),
            ("upstreams: [{}, {methods: []}]", "upstreams[1].methods is empty"),
            ("secrets: [{names: ['']}]", "secrets[0].names is empty"),
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
            prop::sample::select(vec![Verb::Get, Verb::List, Verb::Hold]),
            1..3,
        );
        let kubernetes = (prop::sample::select(vec!["", "g", "*"]), words(), verbs, words()).prop_map(
            move |(group, kinds, verbs, namespaces)| KubernetesGrant {
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
            .prop_map(|(kubernetes, events, secrets_are_readable)| Permissions {
                kubernetes,
                events,
                secrets_are_readable,
                ..Permissions::default()
            })
    }

    proptest! {
        /// What is allowed is allowed by each side alone; and each is read as it was written.
        #[test]
        fn a_conjunction(asks in permissions(), granted in permissions(), group in "g?", kind in prop::sample::select(vec!["a", "ab", "Secret"]), namespace in "[ab]{0,2}") {
            let gvk = Gvk::new(&group, "v1", kind);
            let grant = |p: &Permissions| Grant {
                kubernetes: p.kubernetes.clone(),
                events: p.events,
                secrets_are_readable: p.secrets_are_readable,
                ..Grant::default()
            };
            let both = PluginGrants::new("p", "", Some(asks.clone()), grant(&granted));
            let alone = |p| PluginGrants::new("p", "", None, grant(p));
            for access in [kubernetes(Verb::Get, &gvk, &namespace), kubernetes(Verb::Hold, &gvk, &namespace), Access::Events] {
                let each = [&asks, &granted].map(|p| alone(p).check(&access).is_ok());
                prop_assert_eq!(both.check(&access).is_ok(), each == [true, true]);
            }
            let written = serde_json::to_string(&asks).expect("written");
            prop_assert_eq!(serde_saphyr::from_str::<Permissions>(&written).expect("read"), asks);
        }

        /// Any text is grants or an error that names the file.
        #[test]
        fn any_text(text in "[ -~\n]{0,120}") {
            if let Err(error) = Grants::parse(&text, "g.yaml") {
                prop_assert!(error.starts_with("g.yaml"), "{}", error);
            }
        }
    }
}
