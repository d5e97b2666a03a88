//! Classification of an object that was popped from the queue: what its reconcile does.

use crate::{
    kube::{object::KubeObject, well_known::annotation},
    plugin::PluginKind,
};

/// What a reconcile does with an object, as far as its plugin is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The object is gone: what is known of it is forgotten.
    Forget,
    /// The plugin may not reconcile it. If it is being deleted, it waits for the objects that hold it.
    AwaitHolders,
    /// The hook `initialize` of the build has not succeeded: the objects are about to be held in the queue.
    AwaitHook,
    /// It is not selected, or its kind is not reconciled any more.
    Skip,
    /// It is being deleted, and is cleaned up, whether it is selected or not.
    CleanUp,
    /// An annotation pauses it.
    ReportPaused,
    /// Its fields cannot be read. The component is not called, since it would read an object without them.
    ReportUnreadable,
    /// It gets the finalizer of its kind, and then the component is called.
    AddFinalizer,
    /// The component is called.
    Call,
}

/// An object that was popped from the queue, and what is known of its kind.
pub(super) struct Candidate<'a> {
    /// The object; none if it is not in the cache in full.
    pub object: Option<&'a KubeObject>,
    /// Its metadata is in the cache, at least.
    pub is_cached: bool,
    /// Namespace of the object.
    pub namespace: &'a str,
    /// Its kind, in the build that serves; none if that does not reconcile it.
    pub kind: Option<&'a PluginKind>,
    /// The hooks of the build have succeeded.
    pub is_initialized: bool,
}

/// Decides what a reconcile does. The first case that holds counts: a deletion is not paused, and a paused object gets no finalizer.
pub(super) fn classify(candidate: &Candidate<'_>) -> Action {
    let is_excluded = |kind: &PluginKind| !kind.is_granted_in(candidate.namespace);
    if candidate.is_cached && candidate.kind.is_some_and(is_excluded) {
        return Action::AwaitHolders;
    }
    let Some(object) = candidate.object else {
        return Action::Forget;
    };
    if !candidate.is_initialized {
        return Action::AwaitHook;
    }
    let Some(kind) = candidate.kind else {
        return Action::Skip;
    };
    if object.is_deleting() {
        return Action::CleanUp;
    }
    // An object that has left the selection keeps its finalizer, and is cleaned up when it is deleted.
    if !kind.selects(object) {
        return Action::Skip;
    }
    if object.annotation(annotation::PAUSED) == Some("true") {
        return Action::ReportPaused;
    }
    if object.unreadable().is_some() {
        return Action::ReportUnreadable;
    }
    match kind.finalizer.as_deref() {
        Some(finalizer) if !object.has_finalizer(finalizer) => Action::AddFinalizer,
        _ => Action::Call,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kube::{key::Gvk, selector::LabelSelector};

    const FINALIZER: &str = "tests.ostler.dev/probe";

    fn kind() -> PluginKind {
        PluginKind {
            gvk: Gvk::new("tests.ostler.dev", "v1alpha1", "Probe"),
            finalizer: Some(FINALIZER.into()),
            selector: Some(LabelSelector::parse("team=ci").expect("a selector")),
            phase: false,
            namespaces: Some(vec!["ci".into()]),
            cluster: "".into(),
        }
    }

    fn object(changes: Value) -> KubeObject {
        object_with_spec(changes, json!({}))
    }

    fn object_with_spec(changes: Value, spec: Value) -> KubeObject {
        let mut metadata = json!({"name": "a", "namespace": "ci", "uid": "u", "resourceVersion": "1",
            "labels": {"team": "ci"}, "finalizers": [FINALIZER]});
        for (field, value) in changes.as_object().expect("fields") {
            metadata[field] = value.clone();
        }
        let text = json!({"metadata": metadata, "spec": spec}).to_string();
        KubeObject::parse(&kind().gvk, text.as_bytes())
            .expect("an object")
            .1
    }

    #[test]
    fn object_is_classified_by_its_metadata() {
        let deleting = json!("2026-01-01T00:00:00Z");
        let paused = json!({"ostler.dev/paused": "true"});
        for (changes, action) in [
            (json!({}), Action::Call),
            (json!({"finalizers": []}), Action::AddFinalizer),
            (
                json!({"annotations": {"ostler.dev/paused": "false"}}),
                Action::Call,
            ),
            (json!({"annotations": paused}), Action::ReportPaused),
            (
                json!({"annotations": paused, "finalizers": []}),
                Action::ReportPaused,
            ),
            (json!({"labels": {}}), Action::Skip),
            (json!({"labels": {}, "annotations": paused}), Action::Skip),
            (json!({"deletionTimestamp": deleting}), Action::CleanUp),
            (
                json!({"deletionTimestamp": deleting, "annotations": paused}),
                Action::CleanUp,
            ),
            (
                json!({"deletionTimestamp": deleting, "labels": {}}),
                Action::CleanUp,
            ),
        ] {
            let object = object(changes.clone());
            let candidate = Candidate {
                object: Some(&object),
                is_cached: true,
                namespace: "ci",
                kind: Some(&kind()),
                is_initialized: true,
            };
            assert_eq!(classify(&candidate), action, "{changes}");
        }
    }

    #[test]
    fn object_is_classified_by_its_kind_and_the_cache() {
        let deep = (0..130).fold(json!({}), |inner, _| json!({"deeper": inner}));
        let (kind, nested) = (kind(), object_with_spec(json!({}), deep));
        let object = object(json!({}));
        // In full, its metadata, its namespace, its kind, hooks.
        for (object, is_cached, namespace, kind, is_initialized, action) in [
            (Some(&object), true, "ci", Some(&kind), true, Action::Call),
            (
                Some(&nested),
                true,
                "ci",
                Some(&kind),
                true,
                Action::ReportUnreadable,
            ),
            (Some(&object), true, "ci", Some(&kind), false, Action::AwaitHook),
            (Some(&object), true, "ci", None, true, Action::Skip),
            (
                Some(&object),
                true,
                "other",
                Some(&kind),
                false,
                Action::AwaitHolders,
            ),
            (None, true, "other", Some(&kind), true, Action::AwaitHolders),
            (None, false, "other", Some(&kind), true, Action::Forget),
            (None, true, "ci", Some(&kind), true, Action::Forget),
            (None, false, "ci", None, false, Action::Forget),
        ] {
            let candidate = Candidate {
                object,
                is_cached,
                namespace,
                kind,
                is_initialized,
            };
            assert_eq!(classify(&candidate), action, "{namespace} {kind:?}");
        }
    }
}
