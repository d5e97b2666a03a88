//! Holds: objects that must not be deleted while others use them, and their notation in metadata.
//!
//! A held object carries one finalizer per holder, `held-by.ostler.dev/UID`, and an annotation of the same
//! name that names the holder. The holder carries the list of objects it holds. That list is written before the
//! first finalizer, so that after a crash in between every finalizer can still be found and released.

use std::collections::BTreeSet;

use crate::kube::{
    key::{Gvk, ObjectRef, is_path_segment},
    object::KubeObject,
    uid::Uid,
    well_known::bookkeeping::{HELD_BY, HOLDS},
};

/// The holder of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The uid of the holder.
    pub uid: Uid,
    /// The holder; none when its annotation is missing or malformed.
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

/// Name of the finalizer and annotation that a holder puts on held objects.
pub fn holder_finalizer(uid: &Uid) -> String {
    format!("{HELD_BY}{uid}")
}

/// Returns true if an object carries the finalizer of this holder.
pub fn is_held_by(object: &KubeObject, uid: &Uid) -> bool {
    object.has_finalizer(&holder_finalizer(uid))
}

/// Returns true if an object has any holder.
pub fn is_held(object: &KubeObject) -> bool {
    object.finalizers().iter().any(|f| f.starts_with(HELD_BY))
}

/// Reads the holders of an object from its finalizers and annotations.
pub fn list_holders(object: &KubeObject) -> Vec<Holder> {
    let marks = object.finalizers().iter().filter_map(|f| f.strip_prefix(HELD_BY));
    marks
        .map(Uid::from)
        .map(|uid| Holder {
            object: object
                .annotation(&holder_finalizer(&uid))
                .and_then(parse_reference),
            uid,
        })
        .collect()
}

/// Maximum number of objects that the annotation of a holder lists, where one reconcile may hold `limit`. A reconcile adds
/// its holds to those of the last that succeeded, which are released only when it succeeds itself.
fn max_listed_holds(limit: u32) -> usize {
    limit.saturating_mul(2) as usize
}

/// Reads the set of objects that an object holds from its annotation, of which as many entries count as the host writes.
/// Whoever may edit the object may write there whatever they like.
pub fn list_held(object: &KubeObject, limit: u32) -> BTreeSet<ObjectRef> {
    let text = object.annotation(HOLDS).unwrap_or_default();
    let entries = text.split(", ").take(max_listed_holds(limit));
    entries.filter_map(parse_reference).collect()
}

/// The annotation of a holder has no room for another object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldsFull;

/// Adds an object to those that an annotation lists. Returns true if it was not among them.
///
/// # Errors
/// The set has as many objects as are read again. One more would keep its finalizer for ever after a crash.
pub fn insert_hold(
    listed: &mut BTreeSet<ObjectRef>,
    held: &ObjectRef,
    limit: u32,
) -> Result<bool, HoldsFull> {
    if listed.len() >= max_listed_holds(limit) && !listed.contains(held) {
        return Err(HoldsFull);
    }
    Ok(listed.insert(held.clone()))
}

/// Formats the annotation for a set of held objects.
pub fn format_holds(held: &BTreeSet<ObjectRef>) -> String {
    held.iter().map(format_reference).collect::<Vec<_>>().join(", ")
}

/// Formats one held object, for example `Team.v1alpha1.concourse-ci.org platform/web`.
pub fn format_reference(object: &ObjectRef) -> String {
    format!("{} {}/{}", object.gvk, object.namespace, object.name)
}

/// Parses the form that [`format_reference`] returns; none if a part is not a name.
pub fn parse_reference(text: &str) -> Option<ObjectRef> {
    let (kind, place) = text.split_once(' ')?;
    let (namespace, name) = place.split_once('/')?;
    // They become parts of paths at the API server.
    let are_names = !name.is_empty() && is_path_segment(namespace) && is_path_segment(name);
    let gvk = are_names.then(|| Gvk::parse(kind)).flatten()?;
    Some(ObjectRef::new(gvk, namespace, name))
}

/// Finds the cycle that a new hold would close: the path from `held` along existing holds to `holder`. The objects of
/// a cycle could never be deleted. `held_by` returns the objects that an object holds.
pub fn find_cycle(
    holder: &ObjectRef,
    held: &ObjectRef,
    held_by: impl Fn(&ObjectRef) -> BTreeSet<ObjectRef>,
) -> Option<Vec<ObjectRef>> {
    let mut visited = BTreeSet::new();
    let mut paths = vec![vec![held.clone()]];
    while let Some(path) = paths.pop() {
        let last = path.last()?;
        if last == holder {
            return Some(path);
        }
        if !visited.insert(last.clone()) {
            continue;
        }
        for next in held_by(last) {
            let mut extended = path.clone();
            extended.push(next);
            paths.push(extended);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef::new(Gvk::new("tests.ostler.dev", "v1", "Thing"), "n", name)
    }

    #[test]
    fn hold_annotations_survive_a_round_trip() {
        let held: BTreeSet<_> = [
            object("a"),
            ObjectRef::new(Gvk::new("", "v1", "Secret"), "n", "s.t"),
            ObjectRef::new(Gvk::new("g.io", "v1", "ClusterThing"), "", "c"),
        ]
        .into();
        let json = format!(
            r#"{{"metadata":{{"name":"x","annotations":{{"{HOLDS}":"{}, nonsense","{}1":"{}"}},
                "finalizers":["other/f","{}1","{}2"]}}}}"#,
            format_holds(&held),
            HELD_BY,
            format_reference(&object("h")),
            HELD_BY,
            HELD_BY,
        );
        let (_, read) =
            KubeObject::parse(&Gvk::new("", "v1", "ConfigMap"), json.as_bytes()).expect("an object");
        assert_eq!(list_held(&read, 100), held);
        assert_eq!(list_held(&read, 1).len(), 2, "no more than the host writes");
        let found: Vec<String> = list_holders(&read).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["Thing/n/h", "an object with uid 2"]);
        assert!(is_held_by(&read, &"1".into()) && !is_held_by(&read, &"3".into()));
    }

    /// The holds of the last reconcile that succeeded, and those of one that has replaced all of them and then fails.
    #[test]
    fn every_hold_that_can_be_added_is_read_again() {
        let limit = 3;
        let mut listed = BTreeSet::new();
        for i in (0..6).rev() {
            assert_eq!(
                insert_hold(&mut listed, &object(&format!("o{i}")), limit),
                Ok(true)
            );
        }
        assert_eq!(insert_hold(&mut listed, &object("o1"), limit), Ok(false));
        assert_eq!(insert_hold(&mut listed, &object("a"), limit), Err(HoldsFull));
        let json =
            json!({"metadata": {"name": "x", "annotations": {HOLDS: format_holds(&listed)}}}).to_string();
        let (_, read) =
            KubeObject::parse(&Gvk::new("", "v1", "ConfigMap"), json.as_bytes()).expect("an object");
        assert_eq!(list_held(&read, limit), listed);
    }

    #[test]
    fn hold_that_is_no_name_is_ignored() {
        for text in [
            "Thing.v1.g.io n/a?x=1",
            "Thing.v1.g.io n/../a",
            "Thing.v1.g.io n/a%2f",
            "Thing.v1/x.g.io n/a",
            "Thing.v1.g.io n/",
            "Thing n/a",
        ] {
            assert_eq!(parse_reference(text), None, "{text}");
        }
        assert!(
            parse_reference("Thing.v1.g.io n/a").is_some() && parse_reference("Thing.v1.g.io /a").is_some()
        );
    }

    #[test]
    fn cycle_of_several_holds_is_found() {
        let edges: BTreeMap<&str, Vec<&str>> =
            [("a", vec!["b"]), ("b", vec!["c", "d"]), ("d", vec!["b", "e"])].into();
        let held_by = |o: &ObjectRef| {
            let held = edges.get(&*o.name).into_iter().flatten();
            held.map(|name| object(name)).collect()
        };
        let path = find_cycle(&object("e"), &object("a"), held_by).expect("a cycle");
        let names: Vec<&str> = path.iter().map(|o| &*o.name).collect();
        assert_eq!(names, ["a", "b", "d", "e"]);
        assert_eq!(find_cycle(&object("x"), &object("a"), held_by), None);
    }
}
