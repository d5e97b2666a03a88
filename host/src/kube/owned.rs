//! Owned objects: the label by which they are watched, and on other clusters the inventory of the owner.
//!
//! Each owned object has a label with the UID of its owner. A watch of the objects with this label reports what plugins own and
//! nothing else of the kind.
//!
//! Owner references do not cross clusters, so the owner carries the list of what it owns elsewhere. An entry is written before
//! the first write of its object: after a crash in between, every object can still be found. Only an object with the label is
//! deleted with its owner: the inventory proves nothing, since whoever may edit the owner may write there.

use std::{collections::BTreeSet, sync::LazyLock};

use serde_json::{Value, json};

use crate::kube::{
    key::{Gvk, ObjectRef, display_cluster, is_path_segment, parse_cluster},
    object::KubeObject,
    references::format_reference,
    selector::LabelSelector,
    uid::Uid,
    well_known::bookkeeping::{OWNED_OBJECTS, OWNER, OWNER_UID},
};

/// Maximum number of objects that one object owns on other clusters. All annotations of an object have 256 KiB.
pub const MAX_OWNED_OBJECTS: usize = 500;

/// The inventory has no room for another object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InventoryFull;

/// Reads the inventory of an object, of which as many entries count as the host writes.
pub fn list_owned(owner: &KubeObject) -> BTreeSet<ObjectRef> {
    let text = owner.annotation(OWNED_OBJECTS).unwrap_or_default();
    let entries = text.split(", ").take(MAX_OWNED_OBJECTS);
    entries.filter_map(parse_entry).collect()
}

/// Changes an inventory: removes some entries, then adds one. Returns true if it differs then.
///
/// # Errors
/// There are as many entries as are read again. The object of one more would not be deleted with its owner.
pub fn change_inventory(
    listed: &mut BTreeSet<ObjectRef>,
    added: Option<&ObjectRef>,
    removed: &BTreeSet<ObjectRef>,
) -> Result<bool, InventoryFull> {
    let before = listed.len();
    listed.retain(|entry| !removed.contains(entry));
    let is_shorter = listed.len() < before;
    let Some(added) = added.filter(|added| !listed.contains(added)) else {
        return Ok(is_shorter);
    };
    if listed.len() >= MAX_OWNED_OBJECTS {
        return Err(InventoryFull);
    }
    listed.insert(added.clone());
    Ok(true)
}

/// Formats an inventory.
pub fn format_inventory(owned: &BTreeSet<ObjectRef>) -> String {
    owned.iter().map(format_entry).collect::<Vec<_>>().join(", ")
}

/// Formats one entry, for example `Deployment.v1.apps fleet/east apps/web`.
fn format_entry(owned: &ObjectRef) -> String {
    let cluster = display_cluster(&owned.cluster);
    format!("{} {cluster} {}/{}", owned.gvk, owned.namespace, owned.name)
}

/// Formats the owner in the mark of an object. That of the host's own cluster is named without its cluster.
fn format_owner(owner: &ObjectRef) -> String {
    match &*owner.cluster {
        "" => format_reference(owner),
        cluster => format!("{} {cluster}", format_reference(owner)),
    }
}

fn parse_entry(text: &str) -> Option<ObjectRef> {
    let mut words = text.split(' ');
    let (kind, cluster, place) = (words.next()?, words.next()?, words.next()?);
    let cluster = parse_cluster(cluster)?;
    let (namespace, name) = place.split_once('/')?;
    // They become parts of paths at the API server.
    let are_names = !name.is_empty() && is_path_segment(name) && is_path_segment(namespace);
    let gvk = (are_names && words.next().is_none())
        .then(|| Gvk::parse(kind))
        .flatten()?;
    Some(ObjectRef::new(gvk, namespace, name).with_cluster(&cluster))
}

/// Labels an object with the UID of its owner.
pub fn add_owner_label(object: &mut Value, uid: &Uid) {
    set_metadata(object, "labels", OWNER_UID, uid.to_string());
}

/// Marks an object on another cluster with its owner: by the label, and by an annotation that names it.
pub fn add_mark(object: &mut Value, owner: &ObjectRef, uid: &Uid) {
    add_owner_label(object, uid);
    set_metadata(object, "annotations", OWNER, format_owner(owner));
}

fn set_metadata(object: &mut Value, field: &str, name: &str, value: String) {
    let fields = &mut object["metadata"][field];
    if !fields.is_object() {
        *fields = json!({});
    }
    fields[name] = value.into();
}

/// Removes the marks that a component has written, or has read and written again.
pub fn remove_mark(object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata") else {
        return;
    };
    for (field, name) in [("labels", OWNER_UID), ("annotations", OWNER)] {
        if let Some(fields) = metadata.get_mut(field).and_then(Value::as_object_mut) {
            fields.remove(name);
        }
    }
}

/// Refuses a merge patch that changes the mark of an object: the host would delete it with another owner, or with none. The
/// error names the field.
pub fn check_patched_mark(patch: &Value) -> Result<(), String> {
    for (field, name) in [("labels", OWNER_UID), ("annotations", OWNER)] {
        let keeps_mark = match &patch["metadata"][field] {
            Value::Object(fields) => !fields.contains_key(name),
            // Null removes all of them.
            _ => patch["metadata"].get(field).is_none(),
        };
        if !keeps_mark {
            return Err(format!(
                "metadata.{field} of an object on another cluster must be an object without `{name}`, which the host writes"
            ));
        }
    }
    Ok(())
}

/// The selector of the objects that the host has written as owned.
pub fn owned_selector() -> LabelSelector {
    static SELECTOR: LazyLock<LabelSelector> = LazyLock::new(|| LabelSelector::exists(OWNER_UID));
    SELECTOR.clone()
}

/// Returns true if an object has the label of an owner.
pub fn is_owned(object: &KubeObject) -> bool {
    object.labels.get(OWNER_UID).is_some()
}

/// Returns true if an object has the label of the owner with this UID.
pub fn is_owned_by(object: &KubeObject, uid: &Uid) -> bool {
    object.labels.get(OWNER_UID).is_some_and(|owner| *uid == *owner)
}

/// Checks that an object may become, or stays, an object of this owner. One that another object owns stays that object's,
/// unless that had the same name: then it is gone, since names are unique.
pub fn check_takeover(live: &KubeObject, owner: &ObjectRef, uid: &Uid) -> Result<(), String> {
    let of_namesake = live.annotation(OWNER) == Some(&format_owner(owner));
    match live.labels.get(OWNER_UID) {
        Some(other) if *uid != *other && !of_namesake => Err(format!(
            "another object owns it: {} with uid {other}. If that is gone, remove the label {OWNER_UID} to have it taken over",
            live.annotation(OWNER).unwrap_or("an unknown one")
        )),
        _ => Ok(()),
    }
}

/// The step towards the deletion of an owned object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseStep {
    /// There is nothing to delete: it is gone, or was never taken over, or has another owner by now.
    Release,
    /// It is being deleted.
    Wait,
    /// It has to be deleted.
    Delete,
}

/// Decides the next step towards the deletion of an owned object.
pub fn next_release_step(live: Option<&KubeObject>, uid: &Uid) -> ReleaseStep {
    match live {
        Some(live) if is_owned_by(live, uid) && live.is_deleting() => ReleaseStep::Wait,
        Some(live) if is_owned_by(live, uid) => ReleaseStep::Delete,
        _ => ReleaseStep::Release,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kube::key::{cluster_name, own_cluster};

    fn object(name: &str) -> ObjectRef {
        let gvk = Gvk::new("apps", "v1", "Deployment");
        ObjectRef::new(gvk, "n", name).with_cluster(&cluster_name("fleet", "east"))
    }

    fn owner() -> ObjectRef {
        ObjectRef::new(Gvk::new("g.io", "v1", "Thing"), "n", "owner")
    }

    fn parse(json: &Value) -> KubeObject {
        let parsed = KubeObject::parse(&Gvk::new("", "v1", "ConfigMap"), json.to_string().as_bytes());
        parsed.expect("an object").1
    }

    fn with_inventory(text: &str) -> KubeObject {
        parse(&json!({"metadata": {"name": "x", "annotations": {OWNED_OBJECTS: text}}}))
    }

    fn name() -> impl Strategy<Value = String> {
        "[a-z0-9]([-a-z0-9.]{0,5}[a-z0-9])?"
    }

    fn key() -> impl Strategy<Value = ObjectRef> {
        let group = prop_oneof![Just(String::new()), "[a-z]{1,4}\\.[a-z]{2}"];
        let namespace = prop_oneof![Just(String::new()), name()];
        (
            group,
            "v[1-3]",
            "[A-Z][a-z]{1,6}",
            prop_oneof![Just(None), (name(), name()).prop_map(Some)],
            namespace,
            name(),
        )
            .prop_map(|(group, version, kind, cluster, namespace, name)| {
                let cluster =
                    cluster.map_or_else(own_cluster, |(namespace, name)| cluster_name(&namespace, &name));
                ObjectRef::new(Gvk::new(&group, &version, &kind), &namespace, &name).with_cluster(&cluster)
            })
    }

    proptest! {
        #[test]
        fn inventory_survives_a_round_trip(owned in prop::collection::btree_set(key(), 0..20)) {
            prop_assert_eq!(list_owned(&with_inventory(&format_inventory(&owned))), owned);
        }

        /// Whatever is added and removed, each object that an add was confirmed for is listed until its removal.
        #[test]
        fn inventory_lists_what_was_added_and_not_removed(
            changes in prop::collection::vec((key(), any::<bool>()), 0..40)
        ) {
            let (mut listed, mut model) = (BTreeSet::new(), BTreeSet::new());
            for (key, is_added) in changes {
                let removed = BTreeSet::from_iter((!is_added).then(|| key.clone()));
                let differs = if is_added { model.insert(key.clone()) } else { model.remove(&key) };
                let changed = change_inventory(&mut listed, is_added.then_some(&key), &removed);
                prop_assert_eq!(changed, Ok(differs));
            }
            prop_assert_eq!(listed, model);
        }
    }

    #[test]
    fn entry_that_is_no_name_is_ignored() {
        for text in [
            "Thing.v1.g.io n/c n/a?x=1",
            "Thing.v1.g.io n/c n/../a",
            "Thing.v1.g.io n/c/d n/a%2f",
            "Thing.v1.g.io n/c n/",
            "Thing.v1.g.io c n/a",
            "Thing.v1.g.io in-cluster/ n/a",
            "Thing.v1.g.io /c n/a",
            "Thing.v1.g.io n/c n/a more",
            "Thing n/c n/a",
            "Thing.v1.g.io n/a",
        ] {
            assert_eq!(parse_entry(text), None, "{text}");
        }
        assert!(parse_entry("Thing.v1.g.io n/c /a").is_some(), "cluster-scoped");
    }

    #[test]
    fn every_entry_that_can_be_added_is_read_again() {
        let mut listed = BTreeSet::new();
        let none = BTreeSet::new();
        for i in 0..MAX_OWNED_OBJECTS {
            assert_eq!(
                change_inventory(&mut listed, Some(&object(&format!("o{i}"))), &none),
                Ok(true)
            );
        }
        assert_eq!(
            change_inventory(&mut listed, Some(&object("o1")), &none),
            Ok(false)
        );
        assert_eq!(
            change_inventory(&mut listed, Some(&object("a")), &none),
            Err(InventoryFull)
        );
        assert_eq!(list_owned(&with_inventory(&format_inventory(&listed))), listed);
        let gone = BTreeSet::from([object("o1")]);
        assert_eq!(change_inventory(&mut listed, Some(&object("a")), &gone), Ok(true));
    }

    #[test]
    fn only_a_marked_object_is_deleted() {
        let mut json = json!({"metadata": {"name": "a", "labels": {"x": "y"}, "annotations": null}});
        let step = |json: &Value| next_release_step(Some(&parse(json)), &"uid-1".into());
        assert_eq!(step(&json), ReleaseStep::Release, "never taken over");
        add_mark(&mut json, &owner(), &"uid-1".into());
        assert_eq!(
            (step(&json), json["metadata"]["labels"]["x"].as_str()),
            (ReleaseStep::Delete, Some("y"))
        );
        json["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(step(&json), ReleaseStep::Wait);
        add_mark(&mut json, &owner(), &"uid-2".into());
        assert_eq!(step(&json), ReleaseStep::Release, "of another owner by now");
        remove_mark(&mut json);
        assert_eq!(json["metadata"]["labels"], json!({"x": "y"}));
        assert_eq!(next_release_step(None, &"uid-1".into()), ReleaseStep::Release);
    }

    #[test]
    fn object_of_another_owner_is_not_taken_over() {
        let mut json = json!({"metadata": {"name": "a"}});
        let check = |json: &Value, name: &str, uid: &Uid| {
            let owner = ObjectRef::new(Gvk::new("g.io", "v1", "Thing"), "n", name);
            check_takeover(&parse(json), &owner, uid)
        };
        assert_eq!(check(&json, "owner", &"uid-1".into()), Ok(()), "owned by none");
        add_mark(&mut json, &owner(), &"uid-1".into());
        assert_eq!(check(&json, "owner", &"uid-1".into()), Ok(()), "its own");
        let refused = check(&json, "other", &"uid-2".into()).expect_err("refused");
        assert!(
            refused.contains("Thing.v1.g.io n/owner with uid uid-1"),
            "{refused}"
        );
        assert_eq!(
            check(&json, "owner", &"uid-2".into()),
            Ok(()),
            "the owner was created again"
        );
        json["metadata"]["annotations"] = Value::Null;
        assert!(
            check(&json, "owner", &"uid-2".into()).is_err(),
            "nobody knows which"
        );
    }

    #[test]
    fn owner_of_the_same_name_on_another_cluster_is_another_owner() {
        let mut json = json!({"metadata": {"name": "a"}});
        let remote = owner().with_cluster(&cluster_name("fleet", "onboarding"));
        add_mark(&mut json, &remote, &"uid-1".into());
        let marked = parse(&json);
        assert_eq!(
            check_takeover(&marked, &remote, &"uid-2".into()),
            Ok(()),
            "created again"
        );
        let refused = check_takeover(&marked, &owner(), &"uid-2".into()).expect_err("refused");
        assert!(refused.contains("n/owner fleet/onboarding"), "{refused}");
    }

    #[test]
    fn patch_of_a_mark_is_refused() {
        for patch in [
            json!({"metadata": {"labels": {OWNER_UID: "u"}}}),
            json!({"metadata": {"labels": {OWNER_UID: null}}}),
            json!({"metadata": {"labels": null}}),
            json!({"metadata": {"annotations": {OWNER: "u"}}}),
            json!({"metadata": {"annotations": null}}),
        ] {
            assert!(check_patched_mark(&patch).is_err(), "{patch}");
        }
        for patch in [json!({"spec": {}}), json!({"metadata": {"labels": {"a": null}}})] {
            assert_eq!(check_patched_mark(&patch), Ok(()), "{patch}");
        }
    }
}
