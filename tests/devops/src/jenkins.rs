//! A Jenkins simulator: folders, pipelines, credentials, the queue and builds, as Jenkins 2.5xx with its folder,
//! credentials and pipeline plugins answers over its remote API.
//!
//! Time passes in steps that a test takes ([`Jenkins::start_queued`], [`Jenkins::finish_build`]), or at each read of a
//! build ([`Jenkins::run_builds`]).

mod api;
mod builds;
mod credentials;
mod items;
mod tree;
mod xml;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use concourse_simulator::FaultHandle;

pub use builds::JenkinsBuild;
use builds::QueueItem;
use items::SimulatedItem;

use crate::{
    Exchange, RequestObserver,
    server::{TestServer, lock},
};

/// User whose API token the simulator accepts.
pub const JENKINS_USER: &str = "ops";
/// API token of that user.
pub const JENKINS_TOKEN: &str = "11aa22bb33cc44dd55ee66ff-token";

/// A running simulator, stopped when dropped.
pub struct Jenkins {
    server: TestServer,
    simulation: Arc<Simulation>,
}

pub(crate) struct Simulation(Mutex<JenkinsModel>);

/// The state of the simulator. The path of an item has no `job` segments: `folder/pipeline`.
pub(crate) struct JenkinsModel {
    token: String,
    items: BTreeMap<String, SimulatedItem>,
    /// XML by folder (empty for the store of Jenkins itself) and id, with the secrets.
    credentials: BTreeMap<(String, String), String>,
    queue: BTreeMap<u64, QueueItem>,
    next_queue_id: u64,
    /// The result of builds that run by themselves.
    automatic: Option<String>,
}

impl Jenkins {
    /// Starts a simulator without items.
    pub async fn start() -> Self {
        let simulation = Arc::new(Simulation(Mutex::new(JenkinsModel {
            token: JENKINS_TOKEN.into(),
            items: BTreeMap::new(),
            credentials: BTreeMap::new(),
            queue: BTreeMap::new(),
            next_queue_id: 1,
            automatic: None,
        })));
        Self {
            server: TestServer::start(simulation.clone()).await,
            simulation,
        }
    }

    /// Returns its URL, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Returns the handle for fault injection.
    pub fn faults(&self) -> &FaultHandle {
        &self.server.faults
    }

    /// Has a test observe the requests from now on.
    pub fn observe(&self, observer: Arc<dyn RequestObserver>) {
        self.server.observe(observer);
    }

    /// Returns the requests since the start or the last [`Jenkins::forget`].
    pub fn requests(&self) -> Vec<Exchange> {
        self.server.requests()
    }

    /// Clears the recorded requests.
    pub fn forget(&self) {
        self.server.forget();
    }

    fn model(&self) -> std::sync::MutexGuard<'_, JenkinsModel> {
        lock(&self.simulation.0)
    }

    /// Changes the API token.
    pub fn set_token(&self, token: &str) {
        self.model().token = token.into();
    }

    /// Returns the paths of all items.
    pub fn items(&self) -> Vec<String> {
        self.model().items.keys().cloned().collect()
    }

    /// Returns the configuration of an item, as it was sent.
    pub fn config(&self, path: &str) -> Option<String> {
        self.model().items.get(path).map(|item| item.config.clone())
    }

    /// Creates or changes an item, as an administrator does.
    ///
    /// # Panics
    /// When Jenkins would refuse it.
    pub fn set_config(&self, path: &str, config: &str) {
        let mut model = self.model();
        let refused = match model.items.contains_key(path) {
            true => model.update_item(path, config).err(),
            false => model.create_item(path, config).err(),
        };
        assert!(refused.is_none(), "Jenkins refuses {path}: {refused:?}");
    }

    /// Deletes an item and what is in it, as an administrator does.
    pub fn delete_item(&self, path: &str) {
        self.model().delete_item(path);
    }

    /// Returns the ids of the credentials of a folder.
    pub fn credentials(&self, folder: &str) -> Vec<String> {
        let model = self.model();
        let ids = model.credentials.keys().filter(|(store, _)| store == folder);
        ids.map(|(_, id)| id.clone()).collect()
    }

    /// Returns credentials as Jenkins stores them, with their secrets.
    pub fn credential(&self, folder: &str, id: &str) -> Option<String> {
        let key = (folder.to_owned(), id.to_owned());
        self.model().credentials.get(&key).cloned()
    }

    /// Stores credentials, as an administrator does.
    pub fn set_credential(&self, folder: &str, id: &str, xml: &str) {
        let key = (folder.to_owned(), id.to_owned());
        self.model().credentials.insert(key, xml.to_owned());
    }

    /// Returns the builds of a pipeline, oldest first.
    pub fn builds(&self, path: &str) -> Vec<JenkinsBuild> {
        let model = self.model();
        let item = model.items.get(path);
        item.into_iter()
            .flat_map(|item| item.builds.values().cloned())
            .collect()
    }

    /// Returns the ids of the queue items that no executor has taken.
    pub fn waiting(&self) -> Vec<u64> {
        let model = self.model();
        let waiting = model.queue.values().filter(|item| item.is_waiting());
        waiting.map(|item| item.id).collect()
    }

    /// Starts the builds of all waiting queue items.
    pub fn start_queued(&self) {
        self.model().start_queued();
    }

    /// Ends a build with a result (`SUCCESS`, `FAILURE`, …).
    pub fn finish_build(&self, path: &str, number: u64, result: &str) {
        self.model().finish_build(path, number, result);
    }

    /// Lets builds run by themselves from now on: each read of a queue item or a build takes one step, up to this
    /// result.
    pub fn run_builds(&self, result: &str) {
        self.model().automatic = Some(result.into());
    }

    /// Ends [`Jenkins::run_builds`]: from now on queue items wait, and builds run, until a test takes the next step.
    pub fn hold_builds(&self) {
        self.model().automatic = None;
    }

    /// Removes the queue items that have left the queue, as Jenkins does after five minutes.
    pub fn expire_queue_items(&self) {
        self.model().queue.retain(|_, item| item.is_waiting());
    }
}
