//! Objects that cannot go while others use them: how that is written on them, and who holds whom.
//!
//! A held object carries one finalizer per holder, `held-by.ostler.dev/UID`, and an annotation of the same
//! name that says who that is. The holder carries the list of what it holds, written before the first
//! finalizer is: whatever happens in between, nothing is held without somebody who knows.

use std::collections::BTreeSet;

use crate::kube::{
    key::{Gvk, ObjectRef},
    object::Object,
};

/// Prefix of the finalizers and annotations of held objects; the holder's uid follows.
pub const HELD_BY: &str = "held-by.ostler.dev/";

/// Annotation of a holder: what it holds, as [`names`] writes it.
pub const HOLDS: &str = "ostler.dev/holds";

/// Who holds an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The uid of the holder.
    pub uid: String,
    /// The holder; none when its annotation is missing or spoiled.
    pub object: Option<ObjectRef>,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.object {
            Some(object) => object.fmt(f),
            None => write!(f, "an object with uid {}", self.uid),
        }
    }
}

/// The finalizer and annotation by which a holder holds.
pub fn mark(uid: &str) -> String {
    format!("{HELD_BY}{uid}")
}

/// Whether an object carries a holder's mark.
pub fn marked(object: &Object, uid: &str) -> bool {
    let mark = mark(uid);
    object.finalizers.iter().any(|f| **f == *mark)
}

/// Whether anybody holds an object.
pub fn held(object: &Object) -> bool {
    object.finalizers.iter().any(|f| f.starts_with(HELD_BY))
}

/// Who holds an object.
pub fn holders(object: &Object) -> Vec<Holder> {
    let marks = object.finalizers.iter().filter_map(|f| f.strip_prefix(HELD_BY));
    marks
        .map(|uid| Holder {
            uid: uid.to_owned(),
            object: object.annotation(&mark(uid)).and_then(parse),
        })
        .collect()
}

/// What an object holds, as its annotation says.
pub fn holds(object: &Object) -> BTreeSet<ObjectRef> {
    let text = object.annotation(HOLDS).unwrap_or_default();
    text.split(", ").filter_map(parse).collect()
}

/// The annotation for a set of held objects.
pub fn names(held: &BTreeSet<ObjectRef>) -> String {
    held.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// `Team.v1alpha1.concourse-ci.org platform/web`: kind and place.
pub fn name(object: &ObjectRef) -> String {
    format!("{} {}/{}", object.gvk, object.namespace, object.name)
}

fn parse(text: &str) -> Option<ObjectRef> {
    let (kind, place) = text.split_once(' ')?;
    let (namespace, name) = place.split_once('/')?;
    let mut parts = kind.splitn(3, '.');
    let (kind, version, group) = (parts.next()?, parts.next()?, parts.next().unwrap_or(""));
    let whole = !kind.is_empty() && !version.is_empty() && !name.is_empty();
    whole.then(|| ObjectRef::new(Gvk::new(group, version, kind), namespace, name))
}

/// The way from what is to be held back to who wants to hold it, along what is held already: with this
/// one more it would be a circle, in which nobody could ever go. `held_by` tells what an object holds.
pub fn circle(
    holder: &ObjectRef,
    held: &ObjectRef,
    held_by: impl Fn(&ObjectRef) -> BTreeSet<ObjectRef>,
) -> Option<Vec<ObjectRef>> {
    let mut seen = BTreeSet::new();
    let mut ways = vec![vec![held.clone()]];
    while let Some(way) = ways.pop() {
        let last = way.last()?;
        if last == holder {
            return Some(way);
        }
        if !seen.insert(last.clone()) {
            continue;
        }
        for next in held_by(last) {
            let mut longer = way.clone();
            longer.push(next);
            ways.push(longer);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef::new(Gvk::new("tests.ostler.dev", "v1", "Thing"), "n", name)
    }

    #[test]
    fn written_and_read_again() {
        let held: BTreeSet<_> = [
            object("a"),
            ObjectRef::new(Gvk::new("", "v1", "Secret"), "n", "s.t"),
            ObjectRef::new(Gvk::new("g.io", "v1", "ClusterThing"), "", "c"),
        ]
        .into();
        let json = format!(
            r#"{{"metadata":{{"name":"x","annotations":{{"{HOLDS}":"{}, nonsense","{}1":"{}"}},
                "finalizers":["other/f","{}1","{}2"]}}}}"#,
            names(&held),
            HELD_BY,
            name(&object("h")),
            HELD_BY,
            HELD_BY,
        );
        let (_, read) = Object::parse(&Gvk::new("", "v1", "ConfigMap"), json.as_bytes()).expect("an object");
        assert_eq!(holds(&read), held);
        let who: Vec<String> = holders(&read).iter().map(ToString::to_string).collect();
        assert_eq!(who, ["Thing/n/h", "an object with uid 2"]);
        assert!(marked(&read, "1") && !marked(&read, "3"));
    }

    #[test]
    fn circles_are_found_however_long() {
        let edges: BTreeMap<&str, Vec<&str>> =
            [("a", vec!["b"]), ("b", vec!["c", "d"]), ("d", vec!["b", "e"])].into();
        let held_by = |o: &ObjectRef| {
            let held = edges.get(&*o.name).into_iter().flatten();
            held.map(|name| object(name)).collect()
        };
        let way = circle(&object("e"), &object("a"), held_by).expect("a circle");
        let names: Vec<&str> = way.iter().map(|o| &*o.name).collect();
        assert_eq!(names, ["a", "b", "d", "e"]);
        assert_eq!(circle(&object("x"), &object("a"), held_by), None);
    }
}
