//! A scheduler and kubelet without containers. It binds pods to a node, reports the statuses of their containers, and removes
//! deleted pods, as the real ones do: so the same test runs on a server with and without nodes.

mod course;
mod step;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api, Client,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams, Preconditions, WatchEvent, WatchParams,
    },
};
use serde_json::{Value, json};
use tokio::{sync::Notify, task::AbortHandle};

use self::step::stopped_report;
pub use self::{
    course::{Course, pod_ip},
    step::{end_with, succeed_with, succeed_with_outputs},
};

/// Label of the pods of Steps.
const LABELS: &str = "steps.ostler.dev/pod=true";

/// Name of the node.
pub const NODE_NAME: &str = "node-1";

/// Pause after a failed request.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The course of a pod that no test has directed.
type ChooseCourse = Box<dyn Fn(&Value) -> Course + Send + Sync>;

/// A running simulator of the pods with a label in one namespace; dropping it stops it.
pub struct Kubelet {
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    nodes: Api<DynamicObject>,
    api: Api<DynamicObject>,
    choose: ChooseCourse,
    /// Courses that a test has directed, by the pod's name.
    directed: Mutex<HashMap<String, Course>>,
    /// Termination message of a process that is stopped with its pod.
    stop_message: String,
    is_silent: AtomicBool,
    changed: Notify,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Kubelet {
    /// Starts with the pods of Steps. `choose` is the course of a pod that is not directed.
    pub fn start(
        client: Client,
        namespace: &str,
        choose: impl Fn(&Value) -> Course + Send + Sync + 'static,
    ) -> Self {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
        let node_resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Node"));
        let shared = Arc::new(Shared {
            nodes: Api::all_with(client.clone(), &node_resource),
            api: Api::namespaced_with(client, namespace, &resource),
            choose: Box::new(choose),
            directed: Mutex::default(),
            stop_message: stopped_report().encode(),
            is_silent: AtomicBool::new(false),
            changed: Notify::new(),
        });
        let task = tokio::spawn(run(shared.clone())).abort_handle();
        Self { shared, task }
    }

    /// Sets the course of the pod of this name.
    pub fn direct(&self, pod: &str, course: Course) {
        self.shared.directed().insert(pod.to_owned(), course);
        self.shared.changed.notify_one();
    }

    /// Looks at the courses of all pods again, since they may depend on the time.
    pub fn refresh(&self) {
        self.shared.changed.notify_one();
    }

    /// Stops all reports and removals, as the loss of the node does, or resumes them.
    pub fn set_silent(&self, is_silent: bool) {
        self.shared.is_silent.store(is_silent, Ordering::Relaxed);
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn directed(&self) -> MutexGuard<'_, HashMap<String, Course>> {
        self.directed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn course(&self, pod: &Value) -> Course {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let directed = self.directed().get(name).cloned();
        directed.unwrap_or_else(|| (self.choose)(pod))
    }
}

/// A pod, and the stages that were reported of it.
struct Tracked {
    pod: Value,
    is_bound: bool,
    reported: Vec<Course>,
    is_removed: bool,
}

/// The pods by their UIDs.
type Pods = BTreeMap<String, Tracked>;

async fn run(shared: Arc<Shared>) {
    let mut pods = Pods::new();
    while let Err(error) = register_node(&shared.nodes).await {
        tracing::warn!(%error, "the node was not registered");
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    loop {
        // Most errors are those of a server that a test has stopped for a while.
        if let Err(error) = follow_pods(&shared, &mut pods).await {
            tracing::warn!(%error, "a pod was not reported");
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// Registers the node, which the simulators of all tests on the server share. The API server looks at what it can allocate before it
/// resizes a pod on it.
async fn register_node(nodes: &Api<DynamicObject>) -> Result<(), kube::Error> {
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE_NAME } });
    let status = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE_NAME },
        "status": { "allocatable": { "cpu": "1000", "memory": "1Ti", "pods": "10000" } } });
    let parameters = PatchParams::apply("kubelet").force();
    nodes.patch(NODE_NAME, &parameters, &Patch::Apply(node)).await?;
    nodes
        .patch_status(NODE_NAME, &parameters, &Patch::Apply(status))
        .await?;
    Ok(())
}

/// Lists and watches the pods until the watch ends.
async fn follow_pods(shared: &Shared, pods: &mut Pods) -> Result<(), kube::Error> {
    let listed = shared.api.list(&ListParams::default().labels(LABELS)).await?;
    let version = listed.metadata.resource_version.unwrap_or_default();
    let mut present = HashSet::new();
    for pod in listed.items {
        present.extend(pod.metadata.uid.clone());
        track(pods, pod);
    }
    pods.retain(|uid, _| present.contains(uid));
    let parameters = WatchParams::default().labels(LABELS);
    let mut events = shared.api.watch(&parameters, &version).await?.boxed();
    for tracked in pods.values_mut() {
        advance(shared, tracked).await?;
    }
    loop {
        tokio::select! {
            event = events.next() => match event.transpose()? {
                Some(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => {
                    let uid = track(pods, pod);
                    if let Some(tracked) = pods.get_mut(&uid) {
                        advance(shared, tracked).await?;
                    }
                }
                Some(WatchEvent::Deleted(pod)) => {
                    pods.remove(pod.metadata.uid.as_deref().unwrap_or_default());
                }
                Some(WatchEvent::Bookmark(_)) => {}
                Some(WatchEvent::Error(_)) | None => return Ok(()),
            },
            () = shared.changed.notified() => {
                for tracked in pods.values_mut() {
                    advance(shared, tracked).await?;
                }
            }
        }
    }
}

/// Stores the latest version of a pod. Returns its UID.
fn track(pods: &mut Pods, pod: DynamicObject) -> String {
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let pod = serde_json::to_value(pod).unwrap_or_default();
    let is_bound = pod["spec"]["nodeName"].is_string();
    match pods.get_mut(&uid) {
        Some(tracked) => {
            tracked.pod = pod;
            tracked.is_bound |= is_bound;
        }
        None => {
            let new = Tracked {
                pod,
                is_bound,
                reported: Vec::new(),
                is_removed: false,
            };
            pods.insert(uid.clone(), new);
        }
    }
    uid
}

/// Reports the stages of a pod's course that were not reported yet, and removes it if it is deleted.
async fn advance(shared: &Shared, tracked: &mut Tracked) -> Result<(), kube::Error> {
    if tracked.is_removed || shared.is_silent.load(Ordering::Relaxed) {
        return Ok(());
    }
    if tracked.pod["metadata"]["deletionTimestamp"].is_string() {
        return remove(shared, tracked).await;
    }
    for stage in shared.course(&tracked.pod).stages() {
        // The main container waits only after the init container has ended, which the API server lets no status take back.
        let is_initialized = tracked.reported.iter().any(|s| matches!(s, Course::Waiting(..)));
        if tracked.reported.contains(&stage) || (is_initialized && stage == Course::Initializing) {
            continue;
        }
        if stage.is_bound() && !tracked.is_bound {
            ignore_missing(bind(shared, &tracked.pod).await)?;
            tracked.is_bound = true;
        }
        report(shared, &tracked.pod, &stage).await?;
        tracked.reported.push(stage);
    }
    Ok(())
}

/// Stops the containers of a deleted pod, and removes it. One without a node is removed by the API server.
async fn remove(shared: &Shared, tracked: &mut Tracked) -> Result<(), kube::Error> {
    if tracked.is_bound {
        if tracked.reported.last() == Some(&Course::Running) {
            report(
                shared,
                &tracked.pod,
                &Course::Ended(143, shared.stop_message.clone()),
            )
            .await?;
        }
        let metadata = &tracked.pod["metadata"];
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: metadata["uid"].as_str().map(Into::into),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let name = metadata["name"].as_str().unwrap_or_default();
        ignore_missing(shared.api.delete(name, &parameters).await.map(drop))?;
    }
    tracked.is_removed = true;
    Ok(())
}

/// Binds a pod to the node, as the scheduler does.
async fn bind(shared: &Shared, pod: &Value) -> Result<(), kube::Error> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
        "target": { "apiVersion": "v1", "kind": "Node", "name": NODE_NAME } });
    let parameters = PostParams::default();
    let bound = shared
        .api
        .create_subresource::<_, Value>("binding", name, &parameters, &binding);
    bound.await.map(drop)
}

/// Reports the status of a pod at a stage.
async fn report(shared: &Shared, pod: &Value, stage: &Course) -> Result<(), kube::Error> {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    // Another pod may have the name by now.
    let patch = json!({ "metadata": { "uid": pod["metadata"]["uid"] }, "status": stage.status(pod, &now) });
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
    let patched = shared.api.patch_status(name, &parameters, &patch).await;
    ignore_missing(patched.map(drop))
}

/// The pod is gone, another one has its name, or it is bound already.
fn ignore_missing(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other,
    }
}
