//! Finalizers of former builds: a Plugin lists the kinds and finalizers of its builds, before objects get them.
//!
//! A build may drop a kind. Its objects keep their finalizer, and nothing reconciles them any more: the Plugin says so, also after a
//! restart, and waits for them when it is deleted. A finalizer that a build renames or drops, but not its kind, is removed by the
//! cleanup of the object (`deletion.rs`).

use std::{collections::BTreeSet, sync::Arc};

use serde_json::json;

use super::{ReconcileOutcome, finalized::list_finalized, name_objects, plugin::PluginReconcile};
use crate::{
    kube::{
        key::{Gvk, display_cluster, parse_cluster},
        object::KubeObject,
        well_known::bookkeeping::{BUILD_FINALIZERS, PLUGIN_FINALIZER},
    },
    plugin::{Plugin, PluginKind},
    schedule::dependencies::ReadDependency,
};

/// Maximum number of objects that a message names for each kind.
const MAX_NAMED_OBJECTS: usize = 3;

/// The finalizer that builds of a plugin give to the objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KindFinalizer {
    /// The kind.
    pub gvk: Gvk,
    /// Namespace and name of the Cluster of the objects; empty for that of the host.
    pub cluster: Arc<str>,
    /// The finalizer.
    pub finalizer: Box<str>,
}

impl KindFinalizer {
    fn of(kind: &PluginKind) -> Option<Self> {
        Some(Self {
            gvk: kind.gvk.clone(),
            cluster: kind.cluster.clone(),
            finalizer: kind.finalizer.clone()?,
        })
    }

    /// Lists those that a Plugin has recorded.
    fn list(plugin: &KubeObject) -> BTreeSet<Self> {
        Self::parse_list(plugin.annotation(BUILD_FINALIZERS).unwrap_or_default())
    }

    /// Reads the value of the annotation.
    pub fn parse_list(text: &str) -> BTreeSet<Self> {
        text.split(", ").filter_map(Self::parse).collect()
    }

    /// Formats an entry, for example `Team.v1alpha1.concourse-ci.org in-cluster concourse-ci.org/team`.
    fn format(&self) -> String {
        format!(
            "{} {} {}",
            self.gvk,
            display_cluster(&self.cluster),
            self.finalizer
        )
    }

    fn parse(entry: &str) -> Option<Self> {
        let mut words = entry.split(' ');
        let (kind, cluster, finalizer) = (words.next()?, words.next()?, words.next()?);
        Some(Self {
            gvk: Gvk::parse(kind)?,
            cluster: parse_cluster(cluster)?,
            finalizer: finalizer.into(),
        })
    }

    /// Returns true if a build reconciles its objects.
    fn is_reconciled_by(&self, plugin: &Plugin) -> bool {
        let mut kinds = plugin.kinds.iter();
        kinds.any(|kind| kind.gvk.is_same_kind(&self.gvk) && kind.cluster == self.cluster)
    }

    /// Its objects, in the namespaces of the build that serves now.
    fn to_kind(&self, plugin: &Plugin) -> PluginKind {
        PluginKind {
            gvk: self.gvk.clone(),
            finalizer: Some(self.finalizer.clone()),
            selector: None,
            phase: false,
            namespaces: plugin.kinds.first().and_then(|kind| kind.namespaces.clone()),
            cluster: self.cluster.clone(),
        }
    }
}

/// What objects of former builds a Plugin has left.
#[derive(Default)]
pub(super) struct AbandonedObjects {
    /// What to say of them; none if there are none.
    pub note: Option<String>,
    /// The lists that were read to find them.
    pub reads: Vec<ReadDependency>,
}

/// Returns true if a Plugin has recorded the finalizer of a kind.
pub(super) fn is_finalizer_recorded(plugin: &KubeObject, kind: &PluginKind) -> bool {
    let Some(finalizer) = KindFinalizer::of(kind) else {
        return true;
    };
    let (entry, text) = (finalizer.format(), plugin.annotation(BUILD_FINALIZERS));
    plugin.has_finalizer(PLUGIN_FINALIZER)
        && text.unwrap_or_default().split(", ").any(|listed| listed == entry)
}

/// The kinds whose objects may have a finalizer of a build of this Plugin: those of the build that serves, and of former ones.
pub(super) fn list_finalized_kinds(object: &KubeObject, plugin: &Plugin) -> Vec<PluginKind> {
    let mut kinds = plugin.kinds.clone();
    let current: BTreeSet<_> = plugin.kinds.iter().filter_map(KindFinalizer::of).collect();
    let former = KindFinalizer::list(object).into_iter();
    kinds.extend(
        former
            .filter(|former| !current.contains(former))
            .map(|former| former.to_kind(plugin)),
    );
    kinds
}

impl PluginReconcile<'_> {
    /// Records the finalizers of the build that serves in its Plugin, with the Plugin's own finalizer, and finds the objects that have
    /// the finalizer of a former build and whose kind this one does not reconcile. Kinds without such objects are forgotten.
    /// Returns the newest version of the Plugin.
    pub(super) async fn track_finalizers(
        &self,
        object: Arc<KubeObject>,
        plugin: &Plugin,
    ) -> Result<(Arc<KubeObject>, AbandonedObjects), ReconcileOutcome> {
        let mut recorded = KindFinalizer::list(&object);
        let mut object = object;
        if !plugin
            .kinds
            .iter()
            .all(|kind| is_finalizer_recorded(&object, kind))
        {
            recorded.extend(plugin.kinds.iter().filter_map(KindFinalizer::of));
            object = self.write_finalizers(&object, &recorded).await?;
        }
        let dropped = recorded.iter().filter(|former| !former.is_reconciled_by(plugin));
        let dropped: Vec<KindFinalizer> = dropped.cloned().collect();
        let (mut notes, mut reads, mut is_forgotten) = (Vec::new(), Vec::new(), false);
        for former in &dropped {
            let (gvk, finalizer) = (&former.gvk, &former.finalizer);
            let kinds = [former.to_kind(plugin)];
            match list_finalized(&self.controller.services, plugin.home_cluster(), &kinds).await {
                Ok((left, _)) if left.is_empty() => {
                    is_forgotten |= recorded.remove(former);
                }
                Ok((left, read)) => {
                    reads.extend(read);
                    let names = name_objects(left.iter().map(|(key, _)| key), MAX_NAMED_OBJECTS);
                    notes.push(format!("{names} with the finalizer {finalizer}"));
                }
                Err(why) => notes.push(format!("{gvk} can't be listed: {why}")),
            }
        }
        if is_forgotten {
            object = self.write_finalizers(&object, &recorded).await?;
        }
        let note = (!notes.is_empty()).then(|| {
            format!(
                "A former build has reconciled kinds that this one does not, so nothing cleans up: {}. Deploy a build that reconciles \
                 them and delete the objects, or remove the finalizers",
                notes.join("; ")
            )
        });
        Ok((object, AbandonedObjects { note, reads }))
    }

    async fn write_finalizers(
        &self,
        object: &KubeObject,
        recorded: &BTreeSet<KindFinalizer>,
    ) -> Result<Arc<KubeObject>, ReconcileOutcome> {
        let mut finalizers = object.finalizers().to_vec();
        if !object.has_finalizer(PLUGIN_FINALIZER) {
            finalizers.push(PLUGIN_FINALIZER.into());
        }
        let entries: Vec<String> = recorded.iter().map(KindFinalizer::format).collect();
        let metadata =
            json!({"finalizers": finalizers, "annotations": {BUILD_FINALIZERS: entries.join(", ")}});
        let writer = &self.controller.services.api.writer;
        let written = writer.patch_metadata(None, self.key, object, metadata).await;
        self.controller.settle_finalizers(self.key, written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::key::cluster_name;

    #[test]
    fn record_of_finalizers_survives_a_round_trip_and_garbage_is_left_out() {
        let entries = ["", "fleet/east"].map(|cluster| KindFinalizer {
            gvk: Gvk::new("tests.ostler.dev", "v1alpha1", "Probe"),
            cluster: match cluster.split_once('/') {
                Some((namespace, name)) => cluster_name(namespace, name),
                None => cluster.into(),
            },
            finalizer: "tests.ostler.dev/probe".into(),
        });
        let text = entries.each_ref().map(KindFinalizer::format).join(", ");
        let record = format!("{text}, , Probe, Probe.v1 in-cluster, ../x.v1 in-cluster f");
        let json = json!({"metadata": {"name": "probe", "annotations": {BUILD_FINALIZERS: record}}});
        let (_, plugin) =
            KubeObject::parse(&crate::plugin::kind(), json.to_string().as_bytes()).expect("an object");
        assert_eq!(KindFinalizer::list(&plugin), BTreeSet::from(entries));
    }
}
