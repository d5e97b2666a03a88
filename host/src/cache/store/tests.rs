use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::kube::key::Gvk;

fn gvk() -> Gvk {
    Gvk::new("", "v1", "ConfigMap")
}

fn scope(namespace: &str, selector: Option<&str>, projection: Projection) -> Scope {
    Scope {
        gvk: gvk(),
        cluster: "".into(),
        namespace: namespace.into(),
        selector: selector.map(|s| LabelSelector::parse(s).expect("a selector")),
        projection,
    }
}

fn all() -> Scope {
    scope("", None, Projection::Full)
}

fn watching(scopes: &[Scope]) -> Store {
    let store = Store::default();
    for scope in scopes {
        store.open_collection(scope);
    }
    store
}

fn object(name: &str, uid: &str, version: u64) -> (ObjectRef, KubeObject) {
    labelled(name, uid, version, "a")
}

fn labelled(name: &str, uid: &str, version: u64, label: &str) -> (ObjectRef, KubeObject) {
    let json = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"{uid}","resourceVersion":"{version}",
            "labels":{{"l":"{label}"}}}},"data":{{"f":"{label}"}}}}"#
    );
    KubeObject::parse(&gvk(), json.as_bytes()).expect("an object")
}

fn put(store: &Store, name: &str, uid: &str, version: u64) -> Put {
    let (key, object) = object(name, uid, version);
    store.put(&key, object, Projection::Full, VersionSource::Watch)
}

fn names(found: Vec<(ObjectRef, Arc<KubeObject>)>) -> Vec<String> {
    found.iter().map(|(key, _)| key.name.to_string()).collect()
}

#[test]
fn echo_of_a_write_is_unchanged() {
    let store = watching(&[all()]);
    assert!(matches!(put(&store, "a", "1", 5), Put::Changed(_)));
    assert!(matches!(put(&store, "a", "1", 5), Put::Unchanged));
    assert!(matches!(put(&store, "a", "1", 4), Put::Superseded(_)));
    assert!(matches!(put(&store, "a", "1", 6), Put::Changed(_)));
}

#[test]
fn version_that_the_collection_of_its_watch_holds_is_confirmed() {
    let narrow = scope("n", Some("l=a"), Projection::Full);
    let store = watching(&[all(), narrow.clone()]);
    let (key, written) = object("a", "1", 5);
    let relist = |version| {
        let (key, object) = object("a", "1", version);
        store.put(&key, object, Projection::Full, VersionSource::Relist)
    };
    let confirm =
        |scope: &Scope, uid: &str, version| store.confirm_version(scope, &key, &Uid::from(uid), version);
    assert!(!confirm(&all(), "1", 5), "nothing is cached");
    store.put(&key, written, Projection::Full, VersionSource::WriteResponse);
    for (uid, version) in [("1", 4), ("1", 6), ("2", 5), ("1", 0)] {
        assert!(!confirm(&all(), uid, version), "{uid} {version}");
    }
    assert!(confirm(&all(), "1", 5) && confirm(&narrow, "1", 5));
    assert!(
        matches!(relist(5), Put::Unchanged),
        "the watch has delivered all versions before"
    );
    let elsewhere = scope("m", None, Projection::Full);
    store.open_collection(&elsewhere);
    assert!(!confirm(&elsewhere, "1", 5), "another collection holds it");
}

#[test]
fn relist_of_another_content_of_the_cached_version_is_a_change_in_all_collections() {
    let metadata = scope("", None, Projection::Metadata);
    let store = watching(&[all(), metadata.clone()]);
    let put_field = |value: &str, source| {
        let json = format!(
            r#"{{"metadata":{{"name":"a","namespace":"n","uid":"1","resourceVersion":"5"}},"data":{{"f":"{value}"}}}}"#
        );
        let (key, object) = KubeObject::parse(&gvk(), json.as_bytes()).expect("an object");
        store.put(&key, object, Projection::Full, source)
    };
    assert!(matches!(
        put_field("former", VersionSource::Watch),
        Put::Changed(_)
    ));
    assert!(matches!(
        put_field("former", VersionSource::Relist),
        Put::Unchanged
    ));
    assert!(
        matches!(put_field("late", VersionSource::WriteResponse), Put::Unchanged),
        "only a relist shows by which schema an object reads now"
    );
    let Put::Changed(change) = put_field("new", VersionSource::Relist) else {
        panic!("it is a change");
    };
    let intents = (change.old.expect("old").intent, change.new.expect("new").intent);
    assert_ne!(intents.0, intents.1, "it wakes the readers");
    for scope in [all(), metadata] {
        let (_, cached) = store.list(&scope, &ListQuery::default()).remove(0);
        assert_eq!(cached.field_text("data.f"), "new");
    }
}

#[test]
fn size_follows_each_insertion_replacement_and_removal() {
    let store = watching(&[all(), scope("n", Some("l=a"), Projection::Full)]);
    let length = |label: &str| labelled("a", "1", 5, label).1.json.len();
    let put_label = |version, label| {
        let (key, object) = labelled("a", "1", version, label);
        store.put(&key, object, Projection::Full, VersionSource::Watch);
        let size = store.size();
        (size.objects, size.bytes)
    };
    assert_eq!(put_label(5, "a"), (2, 2 * length("a")), "in both collections");
    assert_eq!(put_label(6, "longer"), (1, length("longer")), "it has left one");
    store.remove_deleted(&object("a", "1", 6).0, &"1".into());
    assert_eq!((store.size().objects, store.size().bytes), (0, 0));
}

#[test]
fn unwatched_object_is_not_cached() {
    let store = watching(&[scope("other", None, Projection::Full)]);
    assert!(matches!(put(&store, "a", "1", 5), Put::Unwatched(_)));
    assert_eq!(store.size().objects, 0);
}

#[test]
fn deleted_object_stays_deleted_and_its_name_can_be_reused() {
    let store = watching(&[all()]);
    put(&store, "a", "1", 5);
    let key = object("a", "1", 0).0;
    assert!(store.remove(&all(), &key, &"other".into(), 7).is_none());
    assert!(
        store.remove(&all(), &key, &"1".into(), 4).is_none(),
        "it is newer than that"
    );
    assert!(store.remove(&all(), &key, &"1".into(), 7).is_some());
    assert!(
        matches!(put(&store, "a", "1", 6), Put::Unchanged),
        "a late echo of the deleted one"
    );
    assert!(matches!(put(&store, "a", "2", 10), Put::Changed(_)));
}

#[test]
fn list_is_ordered_and_paged() {
    let store = watching(&[all()]);
    for (i, name) in ["c", "a", "b"].iter().enumerate() {
        put(&store, name, name, i as u64 + 1);
    }
    let list = |after: Option<&ListKey>, limit| {
        let query = ListQuery {
            namespace: "n",
            after,
            limit: Some(limit),
            ..ListQuery::default()
        };
        names(store.list(&all(), &query))
    };
    assert_eq!(list(None, 2), ["a", "b"]);
    assert_eq!(
        list(
            Some(&ListKey {
                namespace: "n".into(),
                name: "b".into()
            }),
            2
        ),
        ["c"]
    );
}

#[test]
fn overlapping_watches_report_a_change_once_and_both_cache_it() {
    let (x, y) = (
        scope("", Some("l in (a,b)"), Projection::Full),
        scope("", Some("l in (b,c)"), Projection::Full),
    );
    let store = watching(&[x.clone(), y.clone()]);
    let put = |version, label| {
        let (key, object) = labelled("o", "1", version, label);
        store.put(&key, object, Projection::Full, VersionSource::Watch)
    };
    let has = |scope: &Scope| store.list(scope, &ListQuery::default()).len();
    assert!(matches!(put(1, "a"), Put::Changed(_)));
    assert_eq!((has(&x), has(&y)), (1, 0));
    // Seen by the watch of `x`, then by that of `y`.
    assert!(matches!(put(2, "b"), Put::Changed(_)));
    assert!(matches!(put(2, "b"), Put::Unchanged));
    assert_eq!((has(&x), has(&y)), (1, 1));
    assert!(matches!(put(3, "c"), Put::Changed(_)));
    assert_eq!((has(&x), has(&y)), (0, 1), "its labels moved it out");
    let key = labelled("o", "1", 0, "").0;
    assert!(
        store.remove(&x, &key, &"1".into(), 3).is_none(),
        "it remains in the other collection"
    );
    assert!(store.remove(&y, &key, &"1".into(), 4).is_some());
    assert!(
        matches!(put(5, "b"), Put::Changed(_)),
        "its labels moved it in again; it was not restored after a deletion"
    );
}

#[test]
fn metadata_only_object_is_not_returned_as_full() {
    let (whole, meta) = (
        scope("m", None, Projection::Full),
        scope("", None, Projection::Metadata),
    );
    let store = watching(&[whole, meta]);
    let (key, object) = object("a", "1", 1);
    assert!(matches!(
        store.put(&key, object, Projection::Metadata, VersionSource::Watch),
        Put::Changed(_)
    ));
    assert!(store.get(&key, Projection::Full).is_none());
    assert!(store.get(&key, Projection::Metadata).is_some());
}

#[test]
fn watch_of_full_objects_reports_changes_for_both_projections() {
    let (whole, meta) = (all(), scope("", None, Projection::Metadata));
    let store = watching(&[whole.clone(), meta.clone()]);
    let put = |version, projection| {
        let (key, object) = object("a", "1", version);
        store.put(&key, object, projection, VersionSource::Watch)
    };
    assert!(matches!(put(1, Projection::Metadata), Put::Unchanged));
    assert!(matches!(put(1, Projection::Full), Put::Changed(_)));
    assert!(matches!(put(2, Projection::Full), Put::Changed(_)));
    assert!(matches!(put(2, Projection::Metadata), Put::Unchanged));
    let key = object("a", "1", 0).0;
    assert!(store.remove(&meta, &key, &"1".into(), 3).is_none());
    assert!(store.remove(&whole, &key, &"1".into(), 3).is_some());
    // And the other way round.
    let (key, other) = object("b", "2", 4);
    store.put(
        &key,
        object("b", "2", 4).1,
        Projection::Metadata,
        VersionSource::Watch,
    );
    store.put(&key, other, Projection::Full, VersionSource::Watch);
    assert!(store.remove(&whole, &key, &"2".into(), 5).is_some());
    assert!(store.remove(&meta, &key, &"2".into(), 5).is_none());
    // The other collection never had the object: readers of its metadata must be woken.
    store.close_collection(&whole);
    let key = object("c", "3", 0).0;
    assert!(matches!(
        store.put(
            &key,
            object("c", "3", 6).1,
            Projection::Metadata,
            VersionSource::Watch
        ),
        Put::Changed(_)
    ));
    store.open_collection(&whole);
    assert!(store.remove(&meta, &key, &"3".into(), 7).is_some());
}

#[test]
fn index_entries_are_removed_with_their_objects() {
    let store = watching(&[all()]);
    for i in 0..100 {
        let (key, object) = labelled(&format!("o{i}"), &i.to_string(), i + 1, &(i % 3).to_string());
        store.put(&key, object, Projection::Full, VersionSource::Watch);
    }
    let labels = LabelSelector::parse("l=1").expect("a selector");
    let query = ListQuery {
        labels: Some(&labels),
        ..ListQuery::default()
    };
    assert_eq!(store.list(&all(), &query).len(), 33);
    for i in 0..100 {
        let key = labelled(&format!("o{i}"), "", 0, "").0;
        store.remove(&all(), &key, &Uid::from(&*i.to_string()), 1000);
    }
    let kinds = store.kinds.read();
    let collection = &kinds.values().next().expect("a kind").collections[0];
    assert!(collection.objects.is_empty());
    let index = collection.indexes.get(&IndexTerm::Label("l".into()));
    assert!(index.expect("an index").is_empty());
}

/// Thousands of reconciles that list their one object by its name each would otherwise search all objects with its label.
#[test]
fn list_by_name_needs_no_index() {
    let store = watching(&[all()]);
    for i in 0..100 {
        put(&store, &format!("o{i}"), &i.to_string(), i + 1);
    }
    let [labels, other] = ["l=a", "l=b"].map(|text| LabelSelector::parse(text).expect("a selector"));
    let fields = FieldSelector::parse("metadata.name=o7").expect("a selector");
    let list = |namespace, labels, after: Option<&str>| {
        let after = after.map(|name| ListKey {
            namespace: "n".into(),
            name: name.into(),
        });
        let query = ListQuery {
            namespace,
            labels: Some(labels),
            fields: Some(&fields),
            after: after.as_ref(),
            limit: None,
        };
        names(store.list(&all(), &query))
    };
    assert_eq!(list("n", &labels, None), ["o7"]);
    assert_eq!(list("n", &labels, Some("o6")), ["o7"]);
    assert_eq!(list("n", &labels, Some("o7")), Vec::<String>::new());
    assert_eq!(list("n", &other, None), Vec::<String>::new());
    assert_eq!(list("m", &labels, None), Vec::<String>::new());
    let has_index = || {
        let kinds = store.kinds.read();
        let collection = &kinds.values().next().expect("a kind").collections[0];
        collection.indexes.get(&IndexTerm::Label("l".into())).is_some()
    };
    assert!(!has_index());
    // Without a namespace the name may be that of several objects.
    assert_eq!(list("", &labels, None), ["o7"]);
    assert!(has_index());
}

proptest! {
    /// A list returns the same objects in the same order with and without an index, by label or field, paged or not.
    #[test]
    fn index_agrees_with_a_search(
        steps in prop::collection::vec((0..90u8, 0..4u8, any::<bool>()), 60..400),
        asked in 0..4u8, page in 1..7usize,
    ) {
        let store = watching(&[all()]);
        let labels = LabelSelector::parse(&format!("l={asked}")).expect("a selector");
        let fields = FieldSelector::parse(&format!("data.f={asked}")).expect("a selector");
        let by_label = ListQuery { labels: Some(&labels), ..ListQuery::default() };
        let by_field = ListQuery { fields: Some(&fields), ..ListQuery::default() };
        let mut model: BTreeMap<String, u8> = BTreeMap::new();
        for (version, (name, label, remove)) in steps.into_iter().enumerate() {
            let (key, object) = labelled(&name.to_string(), &name.to_string(), version as u64 + 1, &label.to_string());
            if remove {
                store.remove(&all(), &key, &Uid::from(&*name.to_string()), version as u64 + 1);
                model.remove(&name.to_string());
            } else {
                store.put(&key, object, Projection::Full, VersionSource::Watch);
                model.insert(name.to_string(), label);
            }
            if version == 100 {
                // From here on with indexes.
                store.list(&all(), &by_label);
                store.list(&all(), &by_field);
            }
        }
        let expected: Vec<String> = model.iter().filter(|(_, l)| **l == asked).map(|(n, _)| n.clone()).collect();
        prop_assert_eq!(&names(store.list(&all(), &by_label)), &expected);
        prop_assert_eq!(&names(store.list(&all(), &by_field)), &expected);
        let mut paged = Vec::new();
        let mut after: Option<ListKey> = None;
        loop {
            let found = store.list(&all(), &ListQuery { after: after.as_ref(), limit: Some(page), ..by_label.clone() });
            let Some((last, _)) = found.last() else { break };
            after = Some(ListKey { namespace: last.namespace.clone(), name: last.name.clone() });
            paged.extend(names(found));
        }
        prop_assert_eq!(paged, expected);
    }
}

#[test]
fn late_echo_does_not_restore_an_object_that_left_a_selector() {
    let store = Store::default();
    let scope = scope("", Some("app=x"), Projection::Full);
    store.open_collection(&scope);
    let of = |version: u64| {
        let json = format!(
            r#"{{"metadata":{{"name":"a","namespace":"n","uid":"u","resourceVersion":"{version}","labels":{{"app":"x"}}}}}}"#
        );
        KubeObject::parse(&scope.gvk, json.as_bytes()).expect("an object")
    };
    let (key, first) = of(1);
    assert!(matches!(
        store.put(&key, first, Projection::Full, VersionSource::Watch),
        Put::Changed(_)
    ));
    assert!(store.remove(&scope, &key, &"u".into(), 2).is_some());
    assert!(matches!(
        store.put(&key, of(2).1, Projection::Full, VersionSource::Watch),
        Put::Unwatched(_)
    ));
    assert!(store.get(&key, Projection::Full).is_none());
    // It may come into it again.
    assert!(matches!(
        store.put(&key, of(3).1, Projection::Full, VersionSource::Watch),
        Put::Changed(_)
    ));
}

#[test]
fn lists_by_made_up_fields_build_a_bounded_number_of_indexes() {
    let store = watching(&[all()]);
    for i in 0..100 {
        let (key, object) = labelled(&format!("o{i}"), &i.to_string(), i + 1, "1");
        store.put(&key, object, Projection::Full, VersionSource::Watch);
    }
    for i in 0..200 {
        let fields = FieldSelector::parse(&format!("data.made-up-{i}=")).expect("a selector");
        let query = ListQuery {
            fields: Some(&fields),
            ..ListQuery::default()
        };
        assert_eq!(store.list(&all(), &query).len(), 100, "{i}");
    }
    assert_eq!(store.size().indexes, 8);
}

#[test]
fn confirmed_deletion_is_reported_once_and_never_undone() {
    let (whole, meta) = (all(), scope("", None, Projection::Metadata));
    let store = watching(&[whole.clone(), meta.clone()]);
    let (key, _) = object("a", "1", 1);
    for projection in [Projection::Full, Projection::Metadata] {
        store.put(&key, object("a", "1", 1).1, projection, VersionSource::Watch);
    }
    let change = store.remove_deleted(&key, &"1".into()).expect("it was there");
    assert!(change.old.is_some() && change.new.is_none());
    assert!(store.remove_deleted(&key, &"1".into()).is_none());
    // The watches lag behind.
    let late = store.put(
        &key,
        object("a", "1", 3).1,
        Projection::Full,
        VersionSource::Watch,
    );
    assert!(matches!(late, Put::Unchanged), "{late:?}");
    assert!(
        store.remove(&whole, &key, &"1".into(), 5).is_none()
            && store.remove(&meta, &key, &"1".into(), 5).is_none()
    );
    // Another object may take the name, and the deletion of the first does not concern it.
    let next = store.put(
        &key,
        object("a", "2", 6).1,
        Projection::Full,
        VersionSource::Watch,
    );
    assert!(matches!(next, Put::Changed(_)), "{next:?}");
    assert!(store.remove_deleted(&key, &"1".into()).is_none());
    assert!(store.get(&key, Projection::Full).is_some());
}

#[test]
fn state_without_a_resource_version_replaces_the_one_before() {
    let scope = all();
    let store = watching(std::slice::from_ref(&scope));
    let state = |usage: &str| {
        let json = format!(r#"{{"metadata":{{"name":"a","namespace":"n"}},"usage":"{usage}"}}"#);
        KubeObject::parse(&scope.gvk, json.as_bytes()).expect("an object")
    };
    let put = |usage| {
        let (key, object) = state(usage);
        store.put(&key, object, Projection::Full, VersionSource::Relist)
    };
    assert!(matches!(put("1"), Put::Changed(_)));
    assert!(matches!(put("1"), Put::Unchanged));
    assert!(matches!(put("2"), Put::Changed(_)));
    let (key, _) = state("");
    assert_eq!(
        store
            .get(&key, Projection::Full)
            .expect("cached")
            .field_text("usage"),
        "2"
    );
}

/// Objects of metrics.k8s.io have neither a UID nor a version.
#[test]
fn deletion_of_an_object_without_uid_does_not_hide_the_others() {
    let store = watching(&[all()]);
    let put = |name: &str| {
        let json = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n"}}}}"#);
        let (key, object) = KubeObject::parse(&gvk(), json.as_bytes()).expect("an object");
        (
            store.put(&key, object, Projection::Full, VersionSource::Relist),
            key,
        )
    };
    let (_, gone) = put("gone");
    assert!(store.remove(&all(), &gone, &"".into(), u64::MAX).is_some());
    assert!(matches!(put("next"), (Put::Changed(_), _)));
}

#[test]
fn deletion_shown_by_relists_is_reported_once() {
    let (whole, meta) = (all(), scope("", None, Projection::Metadata));
    let store = watching(&[whole.clone(), meta.clone()]);
    let (key, _) = object("a", "1", 1);
    for projection in [Projection::Full, Projection::Metadata] {
        store.put(&key, object("a", "1", 1).1, projection, VersionSource::Watch);
    }
    // Both watches relist, at different versions.
    assert!(store.remove(&whole, &key, &"1".into(), 5).is_some());
    assert!(store.remove(&meta, &key, &"1".into(), 7).is_none());
}

/// The first list of a watch reports no object that a narrower one has cached: who needs all of them asks for their keys.
#[test]
fn object_of_a_narrower_watch_is_no_change_and_among_the_keys() {
    let narrow = scope("n", Some("l=a"), Projection::Full);
    let store = watching(&[narrow.clone(), scope("n", None, Projection::Metadata)]);
    assert!(matches!(put(&store, "a", "1", 5), Put::Changed(_)));
    store.open_collection(&all());
    let (key, again) = object("a", "1", 5);
    let listed = store.put(&key, again, Projection::Full, VersionSource::InitialList);
    assert!(matches!(listed, Put::Unchanged));
    let (other, object) = labelled("b", "2", 6, "b");
    let listed = store.put(&other, object, Projection::Full, VersionSource::InitialList);
    assert!(matches!(listed, Put::Changed(_)));
    let keys = |scope: &Scope| Vec::from_iter(store.cached_keys(scope));
    assert_eq!(keys(&all()), [key.clone(), other]);
    assert_eq!(keys(&narrow), [key]);
    assert_eq!(keys(&scope("other", None, Projection::Full)), []);
}
