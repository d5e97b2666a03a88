//! Reconciler of `Plugin` objects: their status, and their deletion. Loading is not part of it: [`crate::rollout`] does
//! that on standbys, too.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    Controller, GuestResult, ReconcileOutcome,
    activation::activate,
    finalized::list_finalized,
    former_builds::{AbandonedObjects, is_finalizer_recorded, list_finalized_kinds},
    name_objects,
};
use crate::{
    cluster::cluster_object,
    contract::bindings::{
        reconciler::{Failure, Next as Then, Outcome, Resolution},
        types::{Condition, ConditionStatus},
    },
    kube::{
        key::ObjectRef,
        object::KubeObject,
        scope::Projection,
        well_known::{
            annotation::{DELETION_POLICY, FORCE_DELETE},
            bookkeeping, condition_type, plugin_reason,
        },
    },
    observe::metrics::ReconcileResult,
    plugin::{
        GrantSummary, HookState, LoadState, Plugin, PluginKind, SlotId, SlotReport, recorded_rollback,
        spec::{CanaryStatus, PluginStatus, RunningBuild},
    },
    reconcile::conditions::condition,
    schedule::{
        dependencies::ReadDependency,
        dispatcher::Cause,
        host_lane::HostLane,
        queue::{Requeue, Work},
    },
};

/// Time that loading may take before the status says `Loading`.
const LOADING_GRACE: Duration = Duration::from_millis(500);
/// Interval of status updates while there is a canary, a trap or a load: their numbers change without an event.
const ACTIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Interval of status updates otherwise.
const IDLE_INTERVAL: Duration = Duration::from_secs(300);
/// Limit of the remaining objects that the status names.
const MAX_NAMED_OBJECTS: usize = 3;
/// One reconcile of a `Plugin` object.
pub(super) struct PluginReconcile<'a> {
    pub controller: &'a Controller,
    pub key: &'a ObjectRef,
    /// State of its load.
    pub report: SlotReport,
    /// The build that serves.
    pub serving: Option<Arc<Plugin>>,
}

impl Controller {
    /// Reconciles a `Plugin` object. Returns none when it is gone.
    pub(super) async fn reconcile_plugin(&self, work: &Work<ObjectRef, Cause>) -> Option<ReconcileOutcome> {
        let key = &work.key;
        // A watch of all Plugins, for those at a home cluster, has the ones of other hosts, too.
        let selector = self.settings.plugin_selector.as_ref();
        let stored = self.services.cache.store.get(key, Projection::Full);
        let Some(object) = stored.filter(|object| selector.is_none_or(|s| s.matches(&object.labels))) else {
            return self.forget_object(key).await;
        };
        let id = SlotId::object(&*key.name);
        // Before the report, which would overwrite the record of another process.
        let change = self
            .registry
            .refresh_rollback_record(&id, recorded_rollback(&object));
        if change.requires_reconcile() {
            let (now, before) = (change.now.as_ref(), change.before.as_ref());
            activate(&self.services, self.settings.workers, now, before);
            self.hooks.on_activate();
        }
        let run = PluginReconcile {
            controller: self,
            key,
            report: self.registry.report(&id).unwrap_or_default(),
            serving: self.registry.serving_in(&id),
        };
        if object.is_deleting() {
            return Some(run.delete(&object).await);
        }
        let dealt = run.report.generation == object.generation;
        if !dealt && !work.causes.contains(&Cause::Retry) {
            // Loading usually takes less than the grace time.
            let again = self.services.dispatcher.now() + LOADING_GRACE;
            return Some(ReconcileOutcome::wait(again, Cause::Retry));
        }
        Some(run.report_state(object, dealt).await)
    }

    /// Returns whether a deletion of the `Plugin` object of a build waits for its objects of a kind: it has its finalizer and a record
    /// of theirs, or there is no such object, since the build is that of a file. Before, no object gets one: if the `Plugin` were
    /// deleted in between, or its next build did not reconcile the kind, nobody would remove it.
    pub(super) fn is_plugin_protected(&self, plugin: &Plugin, kind: &PluginKind) -> bool {
        if self
            .registry
            .serving_in(&SlotId::object(&**plugin.name()))
            .is_none()
        {
            return true;
        }
        let key = ObjectRef::new(crate::plugin::kind(), "", plugin.name());
        let object = self.services.cache.store.get(&key, Projection::Full);
        object.is_none_or(|object| is_finalizer_recorded(&object, kind))
    }
}

impl PluginReconcile<'_> {
    /// Writes the status of an object that is not being deleted.
    async fn report_state(&self, object: Arc<KubeObject>, dealt: bool) -> ReconcileOutcome {
        let (controller, key, report) = (self.controller, self.key, &self.report);
        let serving = self.serving.as_deref();
        let by: Arc<str> = HostLane::Plugins.name().into();
        let started = Instant::now();
        let (object, abandoned) = match serving {
            Some(plugin) => match self.track_finalizers(object, plugin).await {
                Ok(tracked) => tracked,
                Err(end) => return end,
            },
            None => (object, AbandonedObjects::default()),
        };
        controller.stats.begin_reconcile(key, &by, &report.digest);
        let mut reads = self.read_home_cluster();
        reads.extend(abandoned.reads);
        let problem = serving.and_then(|plugin| controller.find_cluster_problem(plugin));
        let mut conditions = build_conditions(report, serving, dealt);
        if let Some(note) = abandoned.note {
            let remain = condition(
                condition_type::HEALTHY,
                false,
                plugin_reason::OBJECTS_REMAIN,
                &note,
            );
            replace_healthy(&mut conditions, remain);
        }
        if let Some(problem) = problem {
            // Nothing is reconciled meanwhile. It is Unknown: the plugin itself is not at fault.
            let unknown = unknown_condition(condition_type::HEALTHY, problem.reason, &problem.message);
            replace_healthy(&mut conditions, unknown);
        }
        let answer = compose_result(report, serving, conditions, dealt);
        // Waiting means that it is being loaded, which is no error.
        let failure = match &answer {
            GuestResult::Failure(failure) if !matches!(failure.resolution, Resolution::Wait) => Some(failure),
            _ => None,
        };
        if let Some(failure) = failure {
            controller
                .stats
                .record_error(key, &failure.reason, &failure.message);
        }
        let failed = failure.is_some();
        let written = controller.status_of(&by, key).write(&object, &answer).await;
        controller.stats.end_reconcile(key, failed, started.elapsed());
        let is_active = report.canary.is_some() || report.trapping > 0 || !dealt;
        let interval = if is_active { ACTIVE_INTERVAL } else { IDLE_INTERVAL };
        match written {
            Ok(_) => ReconcileOutcome {
                next: Requeue::At(controller.time_after(interval), Cause::Poll),
                reads: Some(reads),
                ..ReconcileOutcome::settled()
            },
            Err(end) => end,
        }
    }

    /// Records the `Cluster` of the home cluster as a dependency of a `Plugin` object, and returns it.
    fn read_home_cluster(&self) -> Vec<ReadDependency> {
        let serving = self.serving.as_deref();
        let cluster = serving.and_then(|plugin| cluster_object(plugin.home_cluster()));
        let reads = Vec::from_iter(cluster.map(|cluster| ReadDependency::Object(cluster, Projection::Full)));
        for read in &reads {
            let dispatcher = &self.controller.services.dispatcher;
            dispatcher.record_read(self.key, read.clone());
        }
        reads
    }

    /// Keeps a deleted `Plugin` object until no object needs the plugin for its cleanup.
    async fn delete(&self, object: &Arc<KubeObject>) -> ReconcileOutcome {
        let (controller, key, report) = (self.controller, self.key, &self.report);
        if !object
            .finalizers()
            .iter()
            .any(|f| **f == *bookkeeping::PLUGIN_FINALIZER)
        {
            return ReconcileOutcome::settled();
        }
        if object.annotation(FORCE_DELETE) == Some("true") {
            warn!(object = %key, annotation = FORCE_DELETE, "removing finalizer without cleanup");
            return controller
                .remove_finalizer(key, object, bookkeeping::PLUGIN_FINALIZER)
                .await;
        }
        let Some(plugin) = self.serving.as_deref() else {
            let note = format!(
                "It does not serve, so its objects can't be cleaned up ({}: {}). Mend it, or annotate it \
                 {FORCE_DELETE}=true to let it go and its objects' finalizers where they are",
                report.reason, report.message
            );
            return self.report_remaining(object, note, Vec::new()).await;
        };
        let kinds = list_finalized_kinds(object, plugin);
        let (left, reads) = match list_finalized(&controller.services, plugin.home_cluster(), &kinds).await {
            Ok(found) => found,
            Err(why) => {
                let note = format!("Its objects can't be listed: {why}");
                return self.report_remaining(object, note, Vec::new()).await;
            }
        };
        if left.is_empty() {
            if !controller.forget_user_kinds(&kinds).await {
                return ReconcileOutcome::retry();
            }
            return controller
                .remove_finalizer(key, object, bookkeeping::PLUGIN_FINALIZER)
                .await;
        }
        if object.annotation(DELETION_POLICY) == Some("Orphan") {
            return self.orphan_objects(plugin, &kinds, left).await;
        }
        // The annotation may have been taken back while the lane was held.
        if plugin.lifecycle {
            controller.hooks.on_activate();
        } else {
            self.controller
                .services
                .dispatcher
                .set_paused(plugin.name(), plugin.suspended);
        }
        let note = format!(
            "{} objects need it for their cleanup ({}). Delete them, or annotate this Plugin {DELETION_POLICY}=Orphan to remove their \
             finalizers without cleanup, or {FORCE_DELETE}=true to remove it and leave them as they are",
            left.len(),
            name_objects(left.iter().map(|(key, _)| key), MAX_NAMED_OBJECTS)
        );
        self.report_remaining(object, note, reads).await
    }

    /// Writes a status that says why a deleted `Plugin` object remains.
    async fn report_remaining(
        &self,
        object: &Arc<KubeObject>,
        note: String,
        reads: Vec<ReadDependency>,
    ) -> ReconcileOutcome {
        let (controller, report, serving) = (self.controller, &self.report, self.serving.as_deref());
        let mut failure = Failure {
            resolution: Resolution::Wait,
            reason: plugin_reason::OBJECTS_REMAIN.into(),
            message: note,
            conditions: Vec::new(),
            status: Some(render_fields(report, serving, true)),
        };
        failure.conditions.extend(build_conditions(report, serving, true));
        let by: Arc<str> = HostLane::Plugins.name().into();
        let writer = controller.status_of(&by, self.key);
        match writer.write(object, &GuestResult::Failure(failure)).await {
            Ok(_) => ReconcileOutcome {
                reads: Some(reads),
                ..ReconcileOutcome::of(Requeue::Wait(
                    controller.time_after(ACTIVE_INTERVAL),
                    Cause::Retry,
                ))
            },
            Err(end) => end,
        }
    }

    /// Removes the plugin's finalizers from all objects without cleanup. The plugin's lane is held meanwhile, since a
    /// reconcile would add them again.
    async fn orphan_objects(
        &self,
        plugin: &Plugin,
        kinds: &[PluginKind],
        left: Vec<(ObjectRef, Arc<KubeObject>)>,
    ) -> ReconcileOutcome {
        self.controller
            .services
            .dispatcher
            .set_paused(plugin.name(), true);
        for (held, of) in left {
            let finalizers: BTreeSet<&str> = kinds.iter().filter_map(|k| k.finalizer.as_deref()).collect();
            let kept: Vec<_> = of
                .finalizers()
                .iter()
                .filter(|f| !finalizers.contains(&***f))
                .cloned()
                .collect();
            if let Err(end) = self.controller.set_finalizers(&held, &of, &kept).await
                && end.result() == ReconcileResult::Error
            {
                return end;
            }
            info!(object = %held, plugin = &**plugin.name(), annotation = DELETION_POLICY, "orphaning object without cleanup");
        }
        // A reconcile that was running when the lane was held may have added a finalizer after the list.
        ReconcileOutcome::wait(
            self.controller.services.dispatcher.now() + LOADING_GRACE,
            Cause::Retry,
        )
    }
}

fn unknown_condition(kind: &str, reason: &str, message: &str) -> Condition {
    Condition {
        status: ConditionStatus::Unknown,
        ..condition(kind, false, reason, message)
    }
}

/// The result from which the status of a `Plugin` object is written.
fn compose_result(
    report: &SlotReport,
    serving: Option<&Plugin>,
    conditions: Vec<Condition>,
    dealt: bool,
) -> GuestResult {
    let status = Some(render_fields(report, serving, dealt));
    match find_problem(report, &conditions, dealt) {
        None => GuestResult::Outcome(Outcome {
            conditions,
            status,
            next: Then::AwaitChange,
        }),
        Some((reason, message, resolution)) => GuestResult::Failure(Failure {
            resolution,
            reason,
            message,
            conditions,
            status,
        }),
    }
}

/// The conditions Loaded, Granted and Healthy, and Unverified where it is True.
fn build_conditions(report: &SlotReport, serving: Option<&Plugin>, dealt: bool) -> Vec<Condition> {
    let loaded = build_loaded(report, serving, dealt);
    let Some(plugin) = serving else {
        let note = "Nothing serves";
        return vec![
            loaded,
            unknown_condition(condition_type::HEALTHY, plugin_reason::NOT_LOADED, note),
        ];
    };
    let unverified = report.unverified.as_ref().map(|(reason, message)| {
        let note =
            format!("{message}. It serves on; components.revokedDigests of the host's grants stops it");
        condition(condition_type::UNVERIFIED, true, reason, &note)
    });
    [loaded, build_granted(plugin), build_healthy(report)]
        .into_iter()
        .chain(unverified)
        .collect()
}

fn build_loaded(report: &SlotReport, serving: Option<&Plugin>, dealt: bool) -> Condition {
    match report.state {
        LoadState::Failed if dealt => {
            condition(condition_type::LOADED, false, &report.reason, &report.message)
        }
        LoadState::Refused if dealt => {
            let short = report.digest.get(..12).unwrap_or_default();
            let state = if report.stopped {
                "is stopped: its objects wait"
            } else {
                "serves on"
            };
            let note = format!("{}. {} ({short}) {state}", report.message, report.version);
            condition(condition_type::LOADED, false, &report.reason, &note)
        }
        LoadState::Serving | LoadState::Suspended | LoadState::RolledBack if dealt => {
            let states = serving.map(|p| p.notes.join("; ")).unwrap_or_default();
            condition(condition_type::LOADED, true, plugin_reason::LOADED, &states)
        }
        _ => unknown_condition(
            condition_type::LOADED,
            plugin_reason::LOADING,
            "It is being loaded",
        ),
    }
}

fn build_granted(plugin: &Plugin) -> Condition {
    let missing = summarize_grants(plugin).missing;
    if missing.is_empty() {
        return condition(condition_type::GRANTED, true, plugin_reason::ALL_GRANTED, "");
    }
    let missing = missing.join("; ");
    let note = format!("It asks for what spec.grants does not grant: {missing}");
    condition(
        condition_type::GRANTED,
        false,
        plugin_reason::GRANTS_MISSING,
        &note,
    )
}

fn build_healthy(report: &SlotReport) -> Condition {
    let unhealthy = |reason, note: &str| condition(condition_type::HEALTHY, false, reason, note);
    let unknown = |reason, note: &str| unknown_condition(condition_type::HEALTHY, reason, note);
    match &report.hooks {
        _ if report.state == LoadState::Suspended || report.stopped => {
            unknown(plugin_reason::SUSPENDED, "Its objects wait")
        }
        _ if report.state == LoadState::RolledBack => unhealthy(plugin_reason::ROLLED_BACK, &report.message),
        _ if report.trapping > 0 => {
            let (count, trap) = (report.trapping, &report.trap);
            let note = format!("{count} objects trapped at their last call: {trap}");
            unhealthy(plugin_reason::TRAPPING, &note)
        }
        HookState::None | HookState::Done => {
            condition(condition_type::HEALTHY, true, plugin_reason::SERVING, "")
        }
        HookState::Pending => unknown(
            plugin_reason::HOOKS_PENDING,
            "Its hook `initialize` runs, and its objects wait",
        ),
        HookState::Failed(why) => unhealthy(plugin_reason::HOOKS_FAILED, why),
    }
}

/// Replaces the condition Healthy, if it is True.
fn replace_healthy(conditions: &mut [Condition], by: Condition) {
    let mut healthy = conditions.iter_mut();
    let is_healthy =
        |c: &&mut Condition| c.type_ == condition_type::HEALTHY && c.status == ConditionStatus::True;
    if let Some(healthy) = healthy.find(is_healthy) {
        *healthy = by;
    }
}

/// Reason and message why it is not Ready, and the resolution; none when it is Ready.
fn find_problem(
    report: &SlotReport,
    aspects: &[Condition],
    dealt: bool,
) -> Option<(String, String, Resolution)> {
    let of = |kind: &str| {
        let bad = |c: &&Condition| c.type_ == kind && c.status != ConditionStatus::True;
        aspects.iter().find(bad)
    };
    let waits = |c: &Condition| match c.status {
        ConditionStatus::Unknown => Resolution::Wait,
        _ if report.passing || !dealt => Resolution::Retry,
        _ => Resolution::Terminal,
    };
    if let Some(c) = of(condition_type::LOADED).or_else(|| of(condition_type::HEALTHY)) {
        return Some((c.reason.clone(), c.message.clone(), waits(c)));
    }
    let canary = report.canary.as_ref()?;
    let (reason, resolution) = match canary.state {
        LoadState::RolledBack => (plugin_reason::CANARY_ROLLED_BACK, Resolution::Terminal),
        LoadState::Refused | LoadState::Failed => (plugin_reason::CANARY_REFUSED, Resolution::Terminal),
        LoadState::Loading => (plugin_reason::CANARY_LOADING, Resolution::Wait),
        LoadState::Serving | LoadState::Suspended => return None,
    };
    Some((
        reason.into(),
        format!("The canary: {}", canary.message),
        resolution,
    ))
}

fn summarize_grants(plugin: &Plugin) -> GrantSummary {
    let grants = &plugin.policy.grants;
    GrantSummary::new(grants.asks(), grants.granted())
}

/// The status without its conditions, as JSON.
fn render_fields(report: &SlotReport, serving: Option<&Plugin>, dealt: bool) -> Vec<u8> {
    let summary = serving.map(summarize_grants).unwrap_or_default();
    let short = |digest: &str| digest.get(..12).unwrap_or_default().to_owned();
    let used = serving
        .map(|p| p.policy.grants.used_entries())
        .unwrap_or_default();
    let used = used.into_iter().filter_map(|i| summary.requested.get(i).cloned());
    let status = PluginStatus {
        state: Some(if dealt { report.state } else { LoadState::Loading }),
        running: serving.map(|p| RunningBuild {
            version: p.version.clone(),
            digest: p.digest.clone(),
            short_digest: short(&p.digest),
            source: p.source.clone(),
        }),
        last_good_digest: Some(report.last_good.clone()).filter(|d| !d.is_empty()),
        rolled_back: report.rollback.clone(),
        kinds: report.kinds.clone(),
        used: used.collect(),
        requested: summary.requested,
        granted: summary.granted,
        canary: report.canary.as_ref().map(|c| CanaryStatus {
            version: c.version.clone(),
            digest: c.digest.clone(),
            state: c.state,
            message: c.message.clone(),
            objects: c.objects.clone(),
            reconciled: c.reconciled,
            failing: c.failing,
        }),
        ..PluginStatus::default()
    };
    serde_json::to_value(status)
        .unwrap_or(Value::Null)
        .to_string()
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::CanaryReport;

    fn report(state: LoadState) -> SlotReport {
        SlotReport {
            state,
            digest: "0123456789abcdef".into(),
            version: "1.2.3".into(),
            ..SlotReport::default()
        }
    }

    /// Ok when it is Ready, the reason and message otherwise.
    fn check_ready(report: &SlotReport) -> Result<(), (String, String)> {
        let aspects = vec![condition(condition_type::LOADED, true, "Loaded", "")];
        let aspects = match report.state {
            LoadState::Serving => aspects,
            _ => super::build_conditions(report, None, true),
        };
        match find_problem(report, &aspects, true) {
            None => Ok(()),
            Some((reason, message, _)) => Err((reason, message)),
        }
    }

    #[test]
    fn refused_build_is_not_ready_and_names_the_serving_one() {
        assert_eq!(check_ready(&report(LoadState::Serving)), Ok(()));
        let refused = |state| SlotReport {
            reason: "InvalidConfig".into(),
            message: "config.url: Required value".into(),
            ..report(state)
        };
        let (reason, message) = check_ready(&refused(LoadState::Failed)).unwrap_err();
        assert_eq!(reason, "InvalidConfig");
        assert!(!message.contains("serves on"), "{message}");
        let (reason, message) = check_ready(&refused(LoadState::Refused)).unwrap_err();
        assert_eq!(reason, "InvalidConfig");
        assert!(
            message.contains("config.url") && message.contains("1.2.3 (0123456789ab) serves on"),
            "{message}"
        );
    }

    #[test]
    fn plugin_whose_home_cluster_is_away_waits_and_names_it() {
        let message = "Cluster fleet/onboarding does not exist";
        let serving = report(LoadState::Serving);
        let aspects = |reason: &str, healthy: bool| {
            vec![
                condition(condition_type::LOADED, true, "Loaded", ""),
                condition(condition_type::HEALTHY, healthy, reason, ""),
            ]
        };
        for (before, healthy, reason) in [
            ("Serving", true, "ClusterNotFound"),
            ("Trapping", false, "Trapping"),
        ] {
            let mut aspects = aspects(before, healthy);
            let unknown =
                unknown_condition(condition_type::HEALTHY, plugin_reason::CLUSTER_NOT_FOUND, message);
            replace_healthy(&mut aspects, unknown);
            let found = find_problem(&serving, &aspects, true).expect("it is not Ready");
            assert_eq!(found.0, reason);
            assert_eq!(matches!(found.2, Resolution::Wait), healthy, "{reason}");
        }
    }

    #[test]
    fn canary_that_does_not_serve_is_not_ready() {
        for (state, reason) in [
            (LoadState::Serving, None),
            (LoadState::RolledBack, Some("CanaryRolledBack")),
            (LoadState::Refused, Some("CanaryRefused")),
        ] {
            let canary = CanaryReport {
                state,
                message: "3 of its 10 objects fail".into(),
                ..CanaryReport::default()
            };
            let report = SlotReport {
                canary: Some(canary),
                ..report(LoadState::Serving)
            };
            assert_eq!(
                check_ready(&report).err().map(|(reason, _)| reason).as_deref(),
                reason
            );
        }
    }
}
