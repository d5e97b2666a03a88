//! A Concourse simulator: the HTTP API as recorded from a real server, with
//! faults on demand and counters of what was asked.
//!
//! What it does not do: it runs no containers (a task's `echo`, `sleep`, `exit`
//! and `false` are understood, all else succeeds), checks find no versions by
//! themselves, jobs know no `serial` or `max_in_flight`, and the ID token that
//! comes with an access token is not signed by anybody.

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

pub use counters::{Counters, Request};
pub use faults::{Answer, Faults};
pub use state::{Auth, InstanceVars, Pipeline, Team};
use state::{Model, Trigger};

/// The version the recorded server says it is.
pub const VERSION: &str = "0.0.0-dev";
/// The version of its workers.
pub const WORKER_VERSION: &str = "3.0";

/// How a simulator starts.
#[derive(Clone)]
pub struct Options {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Users: name, password, whether an admin (an owner of `main`).
    pub users: Vec<(String, String, bool)>,
    /// Bearer tokens that always count, and whose they are.
    pub tokens: Vec<(String, String)>,
    /// How long tokens last that are given out.
    pub token_lifetime: Duration,
    /// How often the clock of builds and workers steps; `None`: only by [`Simulator::step`].
    pub clock: Option<Duration>,
}

impl Default for Options {
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

/// Without passwords and tokens.
impl fmt::Debug for Options {
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

/// What all requests share.
struct App {
    model: Mutex<Model>,
    /// Moves when builds do: event streams wait for it.
    steps: watch::Sender<()>,
    faults: Faults,
    /// Event streams that clients listen to now.
    open_streams: AtomicUsize,
    meter: counters::Meter,
    url: String,
    token_lifetime: Duration,
}

impl App {
    /// The model at the present time.
    fn model(&self) -> MutexGuard<'_, Model> {
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        model.now = now();
        model
    }

    fn step(&self) {
        self.model().step();
        self.steps.send_replace(());
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A running simulator; it stops when dropped.
pub struct Simulator {
    app: Arc<App>,
    server: tokio::task::JoinHandle<()>,
    stop: DropGuard,
}

impl fmt::Debug for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator")
            .field("url", &self.app.url)
            .finish_non_exhaustive()
    }
}

impl Simulator {
    /// Starts one.
    pub async fn start(options: Options) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(options.listen)
            .await
            .with_context(|| format!("listening on {}", options.listen))?;
        let app = Arc::new(App {
            model: Mutex::new(Model::new(now(), options.users, options.tokens)),
            steps: watch::Sender::new(()),
            faults: Faults::default(),
            open_streams: AtomicUsize::new(0),
            meter: counters::Meter::default(),
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

    /// Its URL, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.app.url
    }

    /// Faults to arrange.
    pub fn faults(&self) -> &Faults {
        &self.app.faults
    }

    /// How much was asked since the start or the last reset.
    pub fn counters(&self) -> Counters {
        self.app.meter.counters()
    }

    /// Counts from nothing again, and forgets the log.
    pub fn reset_counters(&self) {
        self.app.meter.reset();
    }

    /// The latest requests, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.app.meter.requests()
    }

    /// The teams.
    pub fn teams(&self) -> Vec<Team> {
        self.app.model().teams.clone()
    }

    /// A team by name.
    pub fn team(&self, name: &str) -> Option<Team> {
        self.app.model().team(name).cloned()
    }

    /// The pipelines of a team in their order, all instances.
    pub fn pipelines(&self, team: &str) -> Vec<Pipeline> {
        let model = self.app.model();
        let id = model.team(team).map(|t| t.id);
        model
            .pipelines
            .iter()
            .filter(|p| Some(p.team_id) == id)
            .cloned()
            .collect()
    }

    /// A pipeline without instance vars.
    pub fn pipeline(&self, team: &str, name: &str) -> Option<Pipeline> {
        self.app.model().pipeline(team, name, None).cloned()
    }

    /// Everything, as `/_sim/state` shows it.
    pub fn state(&self) -> serde_json::Value {
        control::state(&self.app.model())
    }

    /// Changes a user's password; tokens that were given out stay good.
    pub fn set_password(&self, user: &str, password: &str) {
        self.app.model().set_password(user, password);
    }

    /// Ends every token that was given out.
    pub fn expire_tokens(&self) {
        self.app.model().expire_tokens();
    }

    /// A step of the clock: pending builds start, running ones and workers get on.
    pub fn step(&self) {
        self.app.step();
    }

    /// A version of a resource is found; false when there is no such resource.
    pub fn add_version(&self, team: &str, pipeline: &str, resource: &str, version: InstanceVars) -> bool {
        let mut model = self.app.model();
        let Some(id) = model.pipeline(team, pipeline, None).map(|p| p.id) else {
            return false;
        };
        model.add_version(id, resource, version)
    }

    /// Puts a worker into a state (running, stalled, …); one that is not there appears.
    pub fn set_worker(&self, name: &str, state: &str) {
        self.app.model().set_worker(name, state);
    }

    /// Gives a worker to a team; one that is not there appears.
    pub fn set_worker_team(&self, name: &str, team: &str) {
        self.app.model().set_worker_team(name, team);
    }

    /// Takes a worker away, as one does that is deleted by its own process.
    pub fn remove_worker(&self, name: &str) {
        self.app.model().workers.retain(|w| w.name != name);
    }

    /// Event streams that clients listen to now.
    pub fn open_streams(&self) -> usize {
        self.app.open_streams.load(Ordering::SeqCst)
    }

    /// A user begins a build of a job; none when there is no such job.
    pub fn trigger(&self, team: &str, pipeline: &str, job: &str, user: &str) -> Option<u64> {
        let mut model = self.app.model();
        let pipeline = model.pipeline(team, pipeline, None)?.id;
        let job = model
            .jobs
            .iter()
            .find(|j| j.pipeline_id == pipeline && j.name == job)?
            .id;
        model.trigger(Trigger::Job(job), Some(user))
    }

    /// Concourse forgets a build, as when it is reaped.
    pub fn forget_build(&self, id: u64) {
        self.app.model().builds.remove(&id);
        self.app.steps.send_replace(());
    }

    /// Stops listening, closes all connections, and waits until that is done.
    pub async fn stop(self) {
        drop(self.stop);
        // A panic of the server was printed where it happened.
        let _ = self.server.await;
    }
}
