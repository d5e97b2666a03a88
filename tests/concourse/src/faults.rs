//! Fault injection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use regex::Regex;
use serde::Deserialize;
use tokio::sync::watch;

/// Fault of a request, in place of its response or before it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultAction {
    /// Respond with this status and body, without executing the request.
    Status(u16, String),
    /// Respond with this status and body as a proxy in front of Concourse does: without Concourse's headers, and without
    /// executing the request.
    Proxy(u16, String),
    /// Close the connection without executing the request.
    Drop,
    /// Execute the request and close the connection instead of responding.
    DropAnswer,
    /// Wait for [`FaultHandle::release_hanging`] or [`FaultHandle::clear`], then execute the request.
    Hang,
}

#[derive(Debug)]
struct Rule {
    left: usize,
    method: String,
    path: Regex,
    answer: FaultAction,
}

#[derive(Debug, Default)]
struct Plan {
    rules: Vec<Rule>,
    latency: Duration,
}

#[derive(Debug)]
struct Shared {
    plan: Mutex<Plan>,
    outage: watch::Sender<bool>,
    released: watch::Sender<u64>,
}

/// Handle for fault injection.
#[derive(Debug, Clone)]
pub struct FaultHandle(Arc<Shared>);

impl Default for FaultHandle {
    fn default() -> Self {
        Self(Arc::new(Shared {
            plan: Mutex::default(),
            outage: watch::Sender::new(false),
            released: watch::Sender::new(0),
        }))
    }
}

impl FaultHandle {
    fn lock_plan(&self) -> MutexGuard<'_, Plan> {
        self.0.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Injects `answer` into the next `times` requests with this method (`*` for any) whose path matches the regular
    /// expression.
    ///
    /// # Panics
    /// When `path` is not a valid regular expression.
    pub fn fail_next(&self, times: usize, method: &str, path: &str, answer: FaultAction) {
        self.try_add_rule(times, method, path, answer)
            .expect("a regular expression for the path");
    }

    /// As [`FaultHandle::fail_next`], with an error for an invalid regular expression.
    pub fn try_add_rule(
        &self,
        times: usize,
        method: &str,
        path: &str,
        answer: FaultAction,
    ) -> Result<(), regex::Error> {
        let rule = Rule {
            left: times,
            method: method.to_owned(),
            path: Regex::new(path)?,
            answer,
        };
        self.lock_plan().rules.push(rule);
        Ok(())
    }

    /// Sets the delay before each request is executed.
    pub fn set_latency(&self, latency: Duration) {
        self.lock_plan().latency = latency;
    }

    /// Starts or ends an outage, during which all connections are closed without a response.
    pub fn set_outage(&self, on: bool) {
        self.0.outage.send_replace(on);
    }

    /// Executes the hanging requests. Later requests hang as configured.
    pub fn release_hanging(&self) {
        self.0.released.send_modify(|n| *n += 1);
    }

    /// Removes all faults.
    pub fn clear(&self) {
        *self.lock_plan() = Plan::default();
        self.set_outage(false);
        self.release_hanging();
    }

    /// Takes the fault for a request, which counts it, and the current delay.
    pub fn take_fault(&self, method: &str, path: &str) -> (Option<FaultAction>, Duration) {
        let mut plan = self.lock_plan();
        let matching =
            |r: &&mut Rule| r.left > 0 && (r.method == "*" || r.method == method) && r.path.is_match(path);
        let answer = plan.rules.iter_mut().find(matching).map(|rule| {
            rule.left = if rule.left == usize::MAX {
                usize::MAX
            } else {
                rule.left - 1
            };
            rule.answer.clone()
        });
        plan.rules.retain(|r| r.left > 0);
        (answer, plan.latency)
    }

    /// Returns the state of the outage, as it changes.
    pub fn subscribe_outages(&self) -> watch::Receiver<bool> {
        self.0.outage.subscribe()
    }

    /// Returns a future of the next release. It subscribes in this call, not at the first poll, so that no release is
    /// missed.
    pub fn next_release(&self) -> impl Future<Output = ()> + use<> {
        let mut released = self.0.released.subscribe();
        async move {
            // An error means that the server has ended.
            let _ = released.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_matches_method_and_path_and_is_used_up() {
        let faults = FaultHandle::default();
        faults.fail_next(1, "GET", "^/a", FaultAction::Drop);
        faults.fail_next(usize::MAX, "*", "b$", FaultAction::Hang);
        assert_eq!(faults.take_fault("PUT", "/a").0, None);
        assert_eq!(faults.take_fault("GET", "/x/a").0, None);
        assert_eq!(faults.take_fault("GET", "/a").0, Some(FaultAction::Drop));
        assert_eq!(faults.take_fault("GET", "/a").0, None, "once");
        for _ in 0..3 {
            assert_eq!(faults.take_fault("PUT", "/b").0, Some(FaultAction::Hang));
        }
        assert!(faults.try_add_rule(1, "*", "(", FaultAction::Drop).is_err());
        faults.set_latency(Duration::from_secs(1));
        assert_eq!(faults.take_fault("PUT", "/c"), (None, Duration::from_secs(1)));
        faults.clear();
        assert_eq!(faults.take_fault("PUT", "/b"), (None, Duration::ZERO));
    }
}
