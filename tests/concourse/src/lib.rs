//! A Concourse simulator: the HTTP API as recorded from a real server, with fault injection and request counters.
//!
//! Limits: it runs no containers (of a task's script, `echo`, `sleep`, `exit` and `false` are interpreted, everything
//! else succeeds), checks find no versions by themselves, jobs ignore `serial` and `max_in_flight`, and ID tokens have
//! a random signature.

mod api;
mod config;
mod control;
mod counters;
mod faults;
mod page;
mod server;
mod state;
mod task;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use counters::{LoggedRequest, RequestCounters};
pub use faults::{FaultAction, FaultHandle};
use state::{ConcourseModel, Trigger};
pub use state::{SimulatedInstanceVars, SimulatedPipeline, SimulatedTeam, SimulatedTeamAuth};

/// Version that the recorded server reports.
pub const CONCOURSE_VERSION: &str = "0.0.0-dev";
/// Version that its workers report.
pub const WORKER_VERSION: &str = "3.0";

/// Options of a simulator.
#[derive(Clone)]
pub struct SimulatorOptions {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Users: name, password, and true for an admin (an owner of the team `main`).
    pub users: Vec<(String, String, bool)>,
    /// Bearer tokens that never expire, and the names of their users.
    pub tokens: Vec<(String, String)>,
    /// Lifetime of issued tokens.
    pub token_lifetime: Duration,
    /// Interval of the clock that advances builds and workers. With `None` only [`ConcourseSimulator::step`] does.
    pub clock: Option<Duration>,
}

impl Default for SimulatorOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            users: vec![("test".into(), "test".into(), true)],
            tokens: Vec::new(),
            token_lifetime: Duration::from_secs(24 * 60 * 60),
            clock: Some(Duration::from_millis(250)),
        }
    }
}

/// Omits passwords and tokens.
impl fmt::Debug for SimulatorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("listen", &self.listen)
            .field(
                "users",
                &self.users.iter().map(|u| (&u.0, u.2)).collect::<Vec<_>>(),
            )
            .field("tokens", &self.tokens.len())
            .field("token_lifetime", &self.token_lifetime)
            .field("clock", &self.clock)
            .finish()
    }
}

/// State shared by all requests.
struct App {
    model: Mutex<ConcourseModel>,
    /// Changes whenever builds do. Event streams wait for it.
    steps: watch::Sender<()>,
    faults: FaultHandle,
    /// Number of open event streams.
    open_streams: AtomicUsize,
    meter: counters::RequestMeter,
    url: String,
    token_lifetime: Duration,
}

impl App {
    /// Locks the model and sets its time.
    fn model(&self) -> MutexGuard<'_, ConcourseModel> {
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        model.now = unix_time();
        model
    }

    fn step(&self) {
        self.model().advance();
        self.steps.send_replace(());
    }
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A running simulator, stopped when dropped.
pub struct ConcourseSimulator {
    app: Arc<App>,
    server: tokio::task::JoinHandle<()>,
    stop: DropGuard,
}

impl fmt::Debug for ConcourseSimulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator")
            .field("url", &self.app.url)
            .finish_non_exhaustive()
    }
}

impl ConcourseSimulator {
    /// Starts a simulator.
    pub async fn start(options: SimulatorOptions) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(options.listen)
            .await
            .with_context(|| format!("listening on {}", options.listen))?;
        let app = Arc::new(App {
            model: Mutex::new(ConcourseModel::new(unix_time(), options.users, options.tokens)),
            steps: watch::Sender::new(()),
            faults: FaultHandle::default(),
            open_streams: AtomicUsize::new(0),
            meter: counters::RequestMeter::default(),
            url: format!("http://{}", listener.local_addr()?),
            token_lifetime: options.token_lifetime,
        });
        let stop = CancellationToken::new();
        let server = tokio::spawn(server::serve(listener, app.clone(), stop.clone()));
        if let Some(period) = options.clock {
            let (app, stop) = (app.clone(), stop.clone());
            tokio::spawn(stop.run_until_cancelled_owned(async move {
                loop {
                    tokio::time::sleep(period).await;
                    app.step();
                }
            }));
        }
        Ok(Self {
            app,
            server,
            stop: stop.drop_guard(),
        })
    }

    /// Returns its URL without a trailing slash.
    pub fn url(&self) -> &str {
        &self.app.url
    }

    /// Returns the handle for fault injection.
    pub fn faults(&self) -> &FaultHandle {
        &self.app.faults
    }

    /// Returns the counters since the start or the last reset.
    pub fn counters(&self) -> RequestCounters {
        self.app.meter.counters()
    }

    /// Resets the counters and clears the request log.
    pub fn reset_counters(&self) {
        self.app.meter.reset();
    }

    /// Returns the logged requests, oldest first.
    pub fn requests(&self) -> Vec<LoggedRequest> {
        self.app.meter.requests()
    }

    /// Returns all teams.
    pub fn teams(&self) -> Vec<SimulatedTeam> {
        self.app.model().teams.clone()
    }

    /// Finds a team by name.
    pub fn team(&self, name: &str) -> Option<SimulatedTeam> {
        self.app.model().team(name).cloned()
    }

    /// Returns the pipelines of a team in their order, including all instances.
    pub fn pipelines(&self, team: &str) -> Vec<SimulatedPipeline> {
        let model = self.app.model();
        let id = model.team(team).map(|t| t.id);
        model
            .pipelines
            .iter()
            .filter(|p| Some(p.team_id) == id)
            .cloned()
            .collect()
    }

    /// Finds a pipeline without instance vars.
    pub fn pipeline(&self, team: &str, name: &str) -> Option<SimulatedPipeline> {
        self.app.model().pipeline(team, name, None).cloned()
    }

    /// Returns the state as `/_sim/state` shows it.
    pub fn state(&self) -> serde_json::Value {
        control::state_json(&self.app.model())
    }

    /// Changes a user's password. Issued tokens stay valid.
    pub fn set_password(&self, user: &str, password: &str) {
        self.app.model().set_password(user, password);
    }

    /// Invalidates every issued token.
    pub fn expire_tokens(&self) {
        self.app.model().expire_tokens();
    }

    /// Advances the clock by one step: pending builds start, running builds and workers advance.
    pub fn step(&self) {
        self.app.step();
    }

    /// Adds a version of a resource, as a check does. Returns false when there is no such resource.
    pub fn add_version(
        &self,
        team: &str,
        pipeline: &str,
        resource: &str,
        version: SimulatedInstanceVars,
    ) -> bool {
        let mut model = self.app.model();
        let Some(id) = model.pipeline(team, pipeline, None).map(|p| p.id) else {
            return false;
        };
        model.add_version(id, resource, version)
    }

    /// Sets the state of a worker (running, stalled, …), which is created if needed.
    pub fn set_worker(&self, name: &str, state: &str) {
        self.app.model().set_worker(name, state);
    }

    /// Assigns a worker to a team. The worker is created if needed.
    pub fn set_worker_team(&self, name: &str, team: &str) {
        self.app.model().set_worker_team(name, team);
    }

    /// Removes a worker, as its own process does when it shuts down.
    pub fn remove_worker(&self, name: &str) {
        self.app.model().workers.retain(|w| w.name != name);
    }

    /// Returns the number of open event streams.
    pub fn open_streams(&self) -> usize {
        self.app.open_streams.load(Ordering::SeqCst)
    }

    /// Triggers a build of a job as a user. Returns `None` when there is no such job.
    pub fn trigger(&self, team: &str, pipeline: &str, job: &str, user: &str) -> Option<u64> {
        let mut model = self.app.model();
        let pipeline = model.pipeline(team, pipeline, None)?.id;
        let job = model
            .jobs
            .iter()
            .find(|j| j.pipeline_id == pipeline && j.name == job)?
            .id;
        model.trigger_build(Trigger::Job(job), Some(user))
    }

    /// Removes a build, as Concourse's build reaper does.
    pub fn forget_build(&self, id: u64) {
        self.app.model().builds.remove(&id);
        self.app.steps.send_replace(());
    }

    /// Stops listening, closes all connections and waits until both are done.
    pub async fn stop(self) {
        drop(self.stop);
        // A panic of the server has already been printed.
        let _ = self.server.await;
    }
}
