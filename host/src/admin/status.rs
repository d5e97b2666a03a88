//! Status summary of the host.

use serde::{Deserialize, Serialize};

use super::Admin;
use crate::{
    cache::informer::SyncState,
    kube::{
        key::Gvk,
        scope::{Projection, Scope},
    },
    plugin::{CanaryReport, HookState, LoadState, PluginRegistry, SlotReport, summary::format_lines},
    policy::grants::PluginGrants,
    reconcile::stats::{ObjectStats, RecordedError},
    sandbox::services::Services,
};

/// Maximum number of listed objects that are not Ready; all are counted.
const MAX_LISTED_OBJECTS: usize = 200;
/// Maximum number of listed errors.
const MAX_LISTED_ERRORS: usize = 20;

/// The response of `/status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostStatus {
    /// The host's version.
    pub version: String,
    /// The leases it stands for; none when it runs alone.
    pub leases: Vec<LeaseStatus>,
    /// Error of the grants file, while the grants before it apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants_error: Option<String>,
    /// The component files.
    pub plugins: Vec<ComponentStatus>,
    /// The watches.
    pub watches: Vec<WatchStatus>,
    /// The queue, by plugin.
    pub queue: Vec<QueueStatus>,
    /// Objects due later.
    pub delayed: usize,
    /// Objects that are reconciled, by kind.
    pub objects: Vec<KindStatus>,
    /// Those that are not Ready; the first of them, where there are many.
    pub not_ready: Vec<UnreadyObject>,
    /// The last error of each object that had one, newest first; the first of them, where there are many.
    pub errors: Vec<ObjectError>,
}

/// A lease, and whether this process holds it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// Its name.
    pub name: String,
    /// True if this process holds it.
    pub leads: bool,
}

/// A component file and the plugin in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ComponentStatus {
    /// The plugin's name; the file's until it has been loaded once.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Digest of the build that serves; empty when none does.
    pub digest: String,
    /// State of its newest build.
    pub state: LoadState,
    /// Problem of the newest file.
    pub message: String,
    /// Progress of its life-cycle hooks.
    pub hooks: HookState,
    /// The component file, or `Plugin/NAME`.
    pub file: String,
    /// Digest of the last build that has served well.
    pub last_good: String,
    /// Objects whose last call trapped.
    pub trapping: usize,
    /// The build that serves a part of the objects.
    pub canary: Option<CanaryReport>,
    /// The kinds it reconciles.
    pub kinds: Vec<String>,
    /// The permissions of the build that serves.
    #[serde(default)]
    pub permissions: Vec<PermissionUse>,
}

/// A permission that a plugin asks for and is granted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PermissionUse {
    /// The permission in words.
    pub text: String,
    /// True once this process has seen the plugin use it; none for one that only extends others.
    pub used: Option<bool>,
}

impl From<SlotReport> for ComponentStatus {
    fn from(report: SlotReport) -> Self {
        Self {
            name: report.name,
            version: report.version,
            digest: report.digest,
            state: report.state,
            message: report.message,
            hooks: report.hooks,
            file: report.file,
            last_good: report.last_good,
            trapping: report.trapping,
            canary: report.canary,
            kinds: report.kinds,
            permissions: Vec::new(),
        }
    }
}

/// A watch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WatchStatus {
    /// The kind.
    pub kind: String,
    /// The namespace; empty for all.
    pub namespace: String,
    /// The label selector; empty for all.
    pub selector: String,
    /// True if only metadata is cached.
    pub metadata: bool,
    /// See [`find_watch_state`].
    pub state: String,
    /// Error of a failing watch.
    pub message: String,
}

/// A plugin's part of the queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueueStatus {
    /// The plugin.
    pub plugin: String,
    /// Objects that are due.
    pub due: usize,
    /// Objects being reconciled.
    pub running: usize,
}

/// Objects of a kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KindStatus {
    /// The kind.
    pub kind: String,
    /// All of them.
    pub total: usize,
    /// Those that are Ready.
    pub ready: usize,
}

/// An object that is not Ready, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UnreadyObject {
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for cluster-scoped ones.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Reason of its Ready condition; empty without one.
    pub reason: String,
    /// Message of its Ready condition.
    pub message: String,
    /// Reconciles so far.
    pub reconciles: u64,
}

/// An object's last error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ObjectError {
    /// The object.
    pub object: String,
    /// The error.
    #[serde(flatten)]
    pub error: RecordedError,
}

impl From<ObjectStats> for UnreadyObject {
    fn from(facts: ObjectStats) -> Self {
        Self {
            kind: facts.kind,
            namespace: facts.namespace,
            name: facts.name,
            reason: facts.reason,
            message: facts.message,
            reconciles: facts.reconciles,
        }
    }
}

/// The state of a watch: `synced`, `listing`, `failing` (before its first list, or after it), or `narrowed` where RBAC allows the kind in some namespaces only, no plugin
/// reconciles it in all of them, and it is watched in those that are read.
pub fn find_watch_state(
    scope: &Scope,
    synced: &SyncState,
    services: &Services,
    registry: &PluginRegistry,
) -> &'static str {
    let is_of_all_namespaces = || {
        let plugin = registry.find_by_kind(&scope.gvk);
        let kinds = plugin.iter().flat_map(|plugin| &plugin.kinds);
        let mut kinds = kinds.filter(|kind| kind.gvk == scope.gvk);
        kinds.any(|kind| kind.namespaces.is_none())
    };
    match synced {
        SyncState::Synced => "synced",
        SyncState::Pending => "listing",
        SyncState::Refused(_) if services.cache.namespaces.is_narrowed(scope) && !is_of_all_namespaces() => {
            "narrowed"
        }
        SyncState::Failed(_) | SyncState::Refused(_) | SyncState::Interrupted(_) => "failing",
    }
}

impl Admin {
    fn describe_plugins(&self) -> Vec<ComponentStatus> {
        let serving = self.registry.serving();
        let kinds = self.stats.count_by_kind();
        let describe = |report: SlotReport| {
            let build = serving.iter().find(|build| **build.name() == *report.name);
            let grants = build.map(|build| &build.policy.grants);
            let permissions = grants.map(|grants| list_permissions(grants, kinds.keys()));
            ComponentStatus {
                permissions: permissions.unwrap_or_default(),
                ..report.into()
            }
        };
        self.registry.reports().into_iter().map(describe).collect()
    }

    /// The current status of the host.
    pub fn status(&self) -> HostStatus {
        let services = &self.services;
        let (lanes, delayed) = services.dispatcher.lanes();
        let mut watches: Vec<_> = services.list_watches();
        watches.sort_by(|a, b| (&a.0.gvk, &a.0.namespace).cmp(&(&b.0.gvk, &b.0.namespace)));
        HostStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            leases: self
                .lease
                .iter()
                .map(|name| LeaseStatus {
                    name: name.to_string(),
                    leads: services.fence.term().is_some(),
                })
                .collect(),
            grants_error: self.registry.grants_error(),
            plugins: self.describe_plugins(),
            watches: watches
                .into_iter()
                .map(|(scope, synced)| WatchStatus {
                    kind: scope.gvk.to_string(),
                    namespace: match &*scope.cluster {
                        "" => scope.namespace.to_string(),
                        cluster => format!("{cluster}:{}", scope.namespace),
                    },
                    selector: scope
                        .selector
                        .as_ref()
                        .map(ToString::to_string)
                        .unwrap_or_default(),
                    metadata: scope.projection == Projection::Metadata,
                    state: find_watch_state(&scope, &synced, services, &self.registry).into(),
                    message: match synced {
                        SyncState::Failed(why) | SyncState::Refused(why) | SyncState::Interrupted(why) => why,
                        _ => String::new(),
                    },
                })
                .collect(),
            queue: lanes
                .into_iter()
                .map(|lane| QueueStatus {
                    plugin: lane.name.to_string(),
                    due: lane.due.iter().map(|(_, n)| n).sum(),
                    running: lane.in_flight,
                })
                .collect(),
            delayed,
            objects: self
                .stats
                .count_by_kind()
                .into_iter()
                .map(|(gvk, objects)| KindStatus {
                    kind: gvk.to_string(),
                    total: objects.total,
                    ready: objects.ready,
                })
                .collect(),
            not_ready: self
                .stats
                .list_not_ready(MAX_LISTED_OBJECTS)
                .into_iter()
                .map(Into::into)
                .collect(),
            errors: self
                .stats
                .list_errors(MAX_LISTED_ERRORS)
                .into_iter()
                .map(|(key, error)| ObjectError {
                    object: key.to_string(),
                    error,
                })
                .collect(),
        }
    }
}

/// The permissions of a plugin, and whether it has used them. One to reconcile is used if there are objects of its kinds.
fn list_permissions<'a>(
    grants: &PluginGrants,
    kinds: impl Iterator<Item = &'a Gvk> + Clone,
) -> Vec<PermissionUse> {
    let permissions = grants.asks().unwrap_or(grants.granted());
    let used = grants.used_entries();
    let lines = format_lines(permissions);
    // The last line, which is no entry.
    let extension = permissions.read_secrets.then(|| lines.len() - 1);
    let is_used = |index: usize| match permissions.reconciles.get(index) {
        Some(reconciles) => Some(kinds.clone().any(|gvk| reconciles.covers(gvk))),
        None if Some(index) == extension => None,
        None => Some(used.contains(&index)),
    };
    let describe = |(index, text)| PermissionUse {
        text,
        used: is_used(index),
    };
    lines.into_iter().enumerate().map(describe).collect()
}
