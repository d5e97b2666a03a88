//! Waits until the host has dealt with a `Plugin` object, and says meanwhile what keeps it.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::Client;

use super::cluster::read_plugin;
use crate::{
    kube::{
        crd::Condition,
        well_known::{condition_type, plugin_reason},
    },
    plugin::spec::PluginStatus,
};

/// Interval between reads of the object.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time in which the host notices what has changed beside the object, such as a file of its plugin directory. A refusal from before the
/// wait is believed only after it: the command is repeated when its cause was mended.
const STALE_REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Remedy where no host has written a status.
const NO_HOST: &str = "no host has dealt with it: is one running, with a --plugin-selector that matches its labels, if it has one?";

/// A `Plugin` object that the host is expected to deal with.
pub struct PluginWait<'a> {
    client: &'a Client,
    name: &'a str,
    deadline: Instant,
    /// The last line about what keeps it.
    reported: String,
}

impl<'a> PluginWait<'a> {
    /// Creates a wait of this length for the `Plugin` of this name.
    pub fn new(client: &'a Client, name: &'a str, timeout: Duration) -> Self {
        Self {
            client,
            name,
            deadline: Instant::now() + timeout,
            reported: String::new(),
        }
    }

    /// Waits until a build serves for a generation of the object, and returns its version.
    ///
    /// # Errors
    /// The host refuses the build, or it does not serve in time. The error has the reason of the host.
    pub async fn until_serving(mut self, generation: i64, digest: &str) -> anyhow::Result<String> {
        let began = Instant::now();
        // The refusal at the first read, if there was one.
        let mut first_refusal = None;
        loop {
            let object = read_plugin(self.client, self.name).await?;
            let object = object.with_context(|| format!("Plugin {} was deleted meanwhile", self.name))?;
            // A status of another generation says nothing about this one.
            let status = object
                .status
                .filter(|status| status.observed_generation >= Some(generation));
            let status = status.unwrap_or_default();
            if let Some(running) = &status.running
                && running.digest == digest
            {
                return Ok(running.version.clone());
            }
            let stalled = find_condition(&status, condition_type::STALLED);
            let is_stalled = stalled.is_some_and(|c| c.status == "True");
            let why = explain_problem(&status);
            let refusal = why.clone().filter(|_| is_stalled);
            let is_stale = *first_refusal.get_or_insert_with(|| refusal.clone()) == refusal
                && began.elapsed() < STALE_REFUSAL_TIMEOUT;
            let is_late = Instant::now() > self.deadline;
            if (is_stalled && !is_stale) || is_late {
                bail!(
                    "Plugin {} does not serve its build {}: {}",
                    self.name,
                    digest.get(..12).unwrap_or(digest),
                    why.as_deref().unwrap_or(NO_HOST)
                );
            }
            if let Some(why) = why.filter(|_| !is_stalled) {
                self.report(&why);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the deleted object is gone.
    ///
    /// # Errors
    /// It is still there after the time.
    pub async fn until_gone(mut self) -> anyhow::Result<()> {
        while let Some(object) = read_plugin(self.client, self.name).await? {
            let status = object.status.unwrap_or_default();
            let ready = find_condition(&status, condition_type::READY);
            if let Some(remaining) = ready.filter(|c| c.reason == plugin_reason::OBJECTS_REMAIN) {
                self.report(&remaining.message);
            }
            if Instant::now() > self.deadline {
                let why = match self.reported.is_empty() {
                    true => NO_HOST,
                    false => "the deletion goes on when nothing needs it any more",
                };
                bail!("Plugin {} is being deleted, and still exists: {why}", self.name);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Prints to standard error what keeps the object, each text once.
    fn report(&mut self, why: &str) {
        if self.reported != why {
            eprintln!("waiting for Plugin {}: {why}", self.name);
            why.clone_into(&mut self.reported);
        }
    }
}

fn find_condition<'a>(status: &'a PluginStatus, kind: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|c| c.kind == kind)
}

/// Reason and message of the condition that keeps it from serving.
fn explain_problem(status: &PluginStatus) -> Option<String> {
    [condition_type::LOADED, condition_type::READY]
        .into_iter()
        .filter_map(|kind| find_condition(status, kind))
        .find(|c| c.status != "True")
        .map(|c| format!("{}: {}", c.reason, c.message))
}
