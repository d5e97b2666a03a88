//! Object lookup by an abbreviated kind and name.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    kube::key::{Gvk, ObjectRef},
    policy::rbac::ApiResource,
};

/// The query for an object.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Question {
    /// `Team`, `team`, or `Team.v1alpha1.example.org` for an ambiguous kind.
    pub kind: String,
    /// Namespace; optional if the name is unique.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl Question {
    /// Returns true for the kind: `team`, `Team`, `Team.concourse-ci.org`, `Team.v1alpha1.concourse-ci.org`, or `teams` and
    /// `teams.concourse-ci.org` as kubectl has it.
    fn is_kind(&self, gvk: &Gvk) -> bool {
        let same = |full: &str| full.eq_ignore_ascii_case(&self.kind);
        let plural = ApiResource::guess(&gvk.group, &gvk.kind).plural;
        let names = [&*gvk.kind, &plural];
        names
            .iter()
            .any(|name| same(name) || same(&format!("{name}.{}", gvk.group)))
            || same(&gvk.to_string())
    }

    /// Returns true for an object of the namespace, if there is one, or of no namespace.
    pub fn is_in_namespace(&self, key: &ObjectRef) -> bool {
        let namespace = self.namespace.as_deref();
        namespace.is_none_or(|namespace| key.namespace.is_empty() || *key.namespace == *namespace)
    }

    /// Keeps the objects of the kind. The error lists the kinds that there are.
    pub fn filter_kind(&self, keys: &[ObjectRef]) -> Result<Vec<ObjectRef>, String> {
        let kinds: BTreeSet<&Gvk> = keys.iter().map(|key| &key.gvk).collect();
        let matching: BTreeSet<&Gvk> = kinds.iter().copied().filter(|gvk| self.is_kind(gvk)).collect();
        if !matching.is_empty() {
            let of_kind = keys.iter().filter(|key| matching.contains(&key.gvk));
            return Ok(of_kind.cloned().collect());
        }
        let kinds: BTreeSet<String> = kinds.iter().map(ToString::to_string).collect();
        Err(if kinds.is_empty() {
            "there are no objects that this host reconciles".into()
        } else {
            format!(
                "there are no objects of kind `{}` that this host reconciles; there are {}",
                self.kind,
                format_names(kinds)
            )
        })
    }

    /// Finds the matching object among all reconciled ones.
    pub fn find(&self, keys: &[ObjectRef]) -> Result<ObjectRef, String> {
        let Question {
            kind,
            namespace,
            name,
        } = self;
        let of_kind = self.filter_kind(keys)?;
        let named: Vec<_> = of_kind.iter().filter(|k| *k.name == **name).collect();
        let here: Vec<_> = named.iter().filter(|k| self.is_in_namespace(k)).collect();
        match here.as_slice() {
            [one] => Ok((***one).clone()),
            [first, second, ..] if first.gvk != second.gvk => {
                let kinds = here.iter().map(|k| k.gvk.to_string()).collect();
                Err(format!(
                    "`{kind}` names several kinds: use one of {}",
                    format_names(kinds)
                ))
            }
            [_, ..] => {
                let namespaces = here.iter().map(|k| k.namespace.to_string()).collect();
                Err(format!(
                    "there is a {kind}/{name} in several namespaces: choose one of {} with -n",
                    format_names(namespaces)
                ))
            }
            [] => {
                let place = namespace
                    .as_ref()
                    .map(|n| format!(" in namespace `{n}`"))
                    .unwrap_or_default();
                let others = match named.is_empty() {
                    false => format!(
                        "there is one in {}",
                        format_names(named.iter().map(|k| k.namespace.to_string()).collect())
                    ),
                    true => format!(
                        "there are {}",
                        format_names(of_kind.iter().map(|k| k.to_string()).collect())
                    ),
                };
                Err(format!("there is no {kind}/{name}{place}; {others}"))
            }
        }
    }
}

fn format_names(items: BTreeSet<String>) -> String {
    const MAX_SHOWN_NAMES: usize = 10;
    let more = items.len().saturating_sub(MAX_SHOWN_NAMES);
    let mut text = items
        .into_iter()
        .take(MAX_SHOWN_NAMES)
        .collect::<Vec<_>>()
        .join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(kind: &str, namespace: Option<&str>, name: &str) -> Question {
        Question {
            kind: kind.into(),
            namespace: namespace.map(Into::into),
            name: name.into(),
        }
    }

    #[test]
    fn question_finds_object_or_lists_candidates() {
        let team = |group: &str, namespace: &str, name: &str| {
            ObjectRef::new(Gvk::new(group, "v1", "Team"), namespace, name)
        };
        let keys = [
            team("a.dev", "x", "one"),
            team("a.dev", "x", "two"),
            team("a.dev", "y", "two"),
            team("b.dev", "x", "three"),
            team("a.dev", "x", "three"),
        ];
        let ask =
            |kind: &str, namespace: Option<&str>, name: &str| question(kind, namespace, name).find(&keys);
        assert_eq!(ask("team", None, "one"), Ok(keys[0].clone()));
        assert_eq!(ask("Team.v1.a.dev", Some("y"), "two"), Ok(keys[2].clone()));
        assert_eq!(ask("Team.b.dev", None, "three"), Ok(keys[3].clone()));
        assert_eq!(ask("teams.b.dev", None, "three"), Ok(keys[3].clone()));
        assert_eq!(ask("teams", None, "one"), Ok(keys[0].clone()));
        for (kind, namespace, name, words) in [
            ("teem", None, "one", "there are Team.v1.a.dev, Team.v1.b.dev"),
            ("team", None, "two", "choose one of x, y"),
            ("team", None, "three", "use one of Team.v1.a.dev, Team.v1.b.dev"),
            ("team", Some("z"), "two", "there is one in x, y"),
            ("team", None, "four", "Team/x/one"),
        ] {
            let error = ask(kind, namespace, name).expect_err("not found");
            assert!(error.contains(words), "{error}");
        }
        assert!(question("team", None, "a").find(&[]).is_err());
    }
}
