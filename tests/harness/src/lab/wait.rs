//! Functions that wait for a condition.

use std::{convert::Infallible, sync::Mutex, time::Duration};

use ostler::testing::{
    dispatcher::Cause,
    key::{Gvk, ObjectRef},
    queue::Priority,
};
use serde_json::Value;

use super::Lab;
use crate::wait::wait_for;

/// Interval of polls by a test.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

impl Lab {
    /// Waits until `holds` returns true. Panics with the description and the state of all objects after
    /// [`WAIT_TIMEOUT`](crate::WAIT_TIMEOUT).
    pub async fn wait_until<F: Future<Output = bool>>(
        &self,
        description: &str,
        mut holds: impl FnMut() -> F,
    ) {
        let look = || {
            let held = holds();
            async { held.await.then_some(()) }
        };
        wait_for(look, || self.describe_wait(description)).await;
    }

    /// Waits until `holds` returns true, and has objects look at their servers meanwhile, as with [`Lab::poll_objects`].
    pub async fn wait_polling<F: Future<Output = bool>>(
        &self,
        objects: &[ObjectRef],
        description: &str,
        holds: impl FnMut() -> F,
    ) {
        tokio::select! {
            () = self.wait_until(description, holds) => {}
            never = self.poll_objects(objects) => match never {},
        }
    }

    /// Has objects look at their servers again and again, in place of the intervals of their plugins.
    pub async fn poll_objects(&self, objects: &[ObjectRef]) -> Infallible {
        let mut interval = tokio::time::interval(POLL_INTERVAL);
        loop {
            interval.tick().await;
            for key in objects {
                let dispatcher = &self.host().services().dispatcher;
                dispatcher.enqueue(key, Priority::High, Cause::Poll);
            }
        }
    }

    /// Describes what was waited for, and the state of all objects.
    fn describe_wait(&self, description: &str) -> String {
        let facts = self.host.as_ref().map(|h| h.stats().all_objects());
        format!("{description}\n{facts:#?}")
    }

    /// Waits until an object fulfils a condition, and returns it.
    async fn wait_object(
        &self,
        gvk: &Gvk,
        name: &str,
        description: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        let last = Mutex::new(Value::Null);
        let (last, holds) = (&last, &holds);
        let look = || async move {
            let object = self.get(gvk, name).await.unwrap_or_default();
            if holds(&object) {
                return Some(object);
            }
            *last.lock().expect("lock") = object;
            None
        };
        let describe = || {
            let last = last.lock().expect("lock");
            self.describe_wait(&format!("{}/{name} {description}, which is {last}", gvk.kind))
        };
        wait_for(look, describe).await
    }

    /// Waits until an object has a condition with this status and reason for its current generation. Returns the object.
    pub async fn wait_condition(
        &self,
        gvk: &Gvk,
        name: &str,
        condition: &str,
        status: &str,
        reason: &str,
    ) -> Value {
        let description = format!("has {condition}={status} ({reason})");
        self.wait_object(gvk, name, &description, |object| {
            let found = find_condition(object, condition);
            found["status"] == status && found["reason"] == reason && is_current(object, &found)
        })
        .await
    }

    /// Waits until an object is Ready for its current generation. Returns the object.
    pub async fn wait_ready(&self, gvk: &Gvk, name: &str) -> Value {
        self.wait_object(gvk, name, "is Ready", |object| {
            let found = find_condition(object, "Ready");
            found["status"] == "True" && is_current(object, &found)
        })
        .await
    }

    /// Waits until an object is gone.
    pub async fn wait_gone(&self, gvk: &Gvk, name: &str) {
        self.wait_until(&format!("{}/{name} is gone", gvk.kind), async || {
            self.get(gvk, name).await.is_none()
        })
        .await;
    }

    /// Waits for an Event with this reason about an object of this name, with a message that contains this.
    pub async fn wait_event(&self, reason: &str, name: &str, message: &str) {
        self.wait_until(
            &format!("an Event {reason} of {name} says {message:?}"),
            async || {
                let events = self.list(&Gvk::new("", "v1", "Event")).await;
                events.iter().any(|event| {
                    event["reason"] == reason
                        && event["involvedObject"]["name"] == name
                        && event["message"].as_str().is_some_and(|m| m.contains(message))
                })
            },
        )
        .await;
    }

    /// Waits until the host has no reconcile running or due.
    pub async fn wait_idle(&self) {
        let router = &self.host().services().dispatcher;
        self.wait_until("the host is idle", async || router.is_idle())
            .await;
    }
}

/// Returns whether a condition was written for the object's current generation.
fn is_current(object: &Value, condition: &Value) -> bool {
    condition["observedGeneration"] == object["metadata"]["generation"]
}

/// Returns a condition of an object; null when it has none of that type.
pub fn find_condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|c| c["type"] == kind);
    found.cloned().unwrap_or_default()
}
