//! Faults on demand: what a server does when it is not well.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use regex::Regex;
use serde::Deserialize;
use tokio::sync::watch;

/// What a request meets instead of, or besides, its answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// This status and body; the request is not carried out.
    Status(u16, String),
    /// The connection closes; the request is not carried out.
    Drop,
    /// The request is carried out, but the connection closes instead of the answer.
    DropAnswer,
    /// Nothing, until [`Faults::release`] or [`Faults::clear`]; then it is carried out.
    Hang,
}

#[derive(Debug)]
struct Rule {
    left: usize,
    method: String,
    path: Regex,
    answer: Answer,
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

/// The handle faults are arranged with.
#[derive(Debug, Clone)]
pub struct Faults(Arc<Shared>);

impl Default for Faults {
    fn default() -> Self {
        Self(Arc::new(Shared {
            plan: Mutex::default(),
            outage: watch::Sender::new(false),
            released: watch::Sender::new(0),
        }))
    }
}

impl Faults {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next `times` requests with this method (`*` for any) whose path this regular expression finds meet `answer`.
    ///
    /// # Panics
    /// When `path` is no regular expression.
    pub fn fail_next(&self, times: usize, method: &str, path: &str, answer: Answer) {
        self.try_fail_next(times, method, path, answer)
            .expect("a regular expression for the path");
    }

    /// As [`Faults::fail_next`], for an expression that may be none.
    pub fn try_fail_next(
        &self,
        times: usize,
        method: &str,
        path: &str,
        answer: Answer,
    ) -> Result<(), regex::Error> {
        let rule = Rule {
            left: times,
            method: method.to_owned(),
            path: Regex::new(path)?,
            answer,
        };
        self.plan().rules.push(rule);
        Ok(())
    }

    /// Every request waits this long before it is carried out.
    pub fn latency(&self, latency: Duration) {
        self.plan().latency = latency;
    }

    /// While there is an outage every connection closes without an answer, those that are open too.
    pub fn outage(&self, on: bool) {
        self.0.outage.send_replace(on);
    }

    /// Lets hanging requests go on; the next ones hang as arranged.
    pub fn release(&self) {
        self.0.released.send_modify(|n| *n += 1);
    }

    /// All is well again.
    pub fn clear(&self) {
        *self.plan() = Plan::default();
        self.outage(false);
        self.release();
    }

    /// What this request meets, counting it; and how long it waits.
    pub(crate) fn meet(&self, method: &str, path: &str) -> (Option<Answer>, Duration) {
        let mut plan = self.plan();
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

    pub(crate) fn outages(&self) -> watch::Receiver<bool> {
        self.0.outage.subscribe()
    }

    /// Waits for the next release; what it waits for is fixed by this call, not by the first poll.
    pub(crate) fn released(&self) -> impl Future<Output = ()> + use<> {
        let mut released = self.0.released.subscribe();
        async move {
            // It ends with the server, too.
            let _ = released.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_and_matched() {
        let faults = Faults::default();
        faults.fail_next(1, "GET", "^/a", Answer::Drop);
        faults.fail_next(usize::MAX, "*", "b$", Answer::Hang);
        assert_eq!(faults.meet("PUT", "/a").0, None);
        assert_eq!(faults.meet("GET", "/x/a").0, None);
        assert_eq!(faults.meet("GET", "/a").0, Some(Answer::Drop));
        assert_eq!(faults.meet("GET", "/a").0, None, "once");
        for _ in 0..3 {
            assert_eq!(faults.meet("PUT", "/b").0, Some(Answer::Hang));
        }
        assert!(faults.try_fail_next(1, "*", "(", Answer::Drop).is_err());
        faults.latency(Duration::from_secs(1));
        assert_eq!(faults.meet("PUT", "/c"), (None, Duration::from_secs(1)));
        faults.clear();
        assert_eq!(faults.meet("PUT", "/b"), (None, Duration::ZERO));
    }
}
