//! Expectations of writes: the echo of a reconcile's own write wakes nothing, whether the watch or the response delivers it first.
//!
//! Pure: the dispatcher holds it behind its lock, and queues what it returns.

use std::collections::{HashMap, VecDeque};

use crate::{
    kube::{key::ObjectRef, uid::Uid},
    schedule::queue::Priority,
};

/// Maximum number of fulfilled expectations whose wake-up is still awaited.
const MAX_LATE_ECHOES: usize = 64;

/// The identity of a change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChangeId {
    /// The version that it has made.
    Version(u64),
    /// The uid of the object that it has deleted.
    Deletion(Uid),
}

/// One reason to queue an object.
pub(super) struct WakeUp<C> {
    /// The change; none if nothing identifies it alone.
    pub(super) change: Option<ChangeId>,
    pub(super) priority: Priority,
    pub(super) cause: C,
}

/// What the response to a write has shown of it.
#[derive(Debug, Default)]
pub(super) struct Fulfilment {
    /// The change that it has made.
    pub(super) change: Option<ChangeId>,
    /// True if a watch has stored that change before the response.
    pub(super) is_stored: bool,
}

/// An own write that a watch stored before its response arrived, and has not reported yet: storing and reporting a
/// change is not one step.
struct LateEcho {
    object: ObjectRef,
    change: ChangeId,
    /// The object whose reconcile has written.
    by: ObjectRef,
}

/// A write whose response has not arrived.
struct PendingWrite<C> {
    id: u64,
    /// The object whose reconcile writes.
    by: ObjectRef,
    /// Wake-ups of `by` that the watch triggered meanwhile.
    held: Vec<WakeUp<C>>,
}

/// The writes whose echo must not wake the object that has written. `C` is the cause of a wake-up.
pub(super) struct ExpectedWrites<C> {
    /// Writes without a response yet, by the object that is written.
    pending: HashMap<ObjectRef, Vec<PendingWrite<C>>>,
    /// Own writes that a watch has stored and not reported yet, oldest first.
    late_echoes: VecDeque<LateEcho>,
    next_id: u64,
}

impl<C> ExpectedWrites<C> {
    /// Expects no write.
    pub(super) fn new() -> Self {
        Self {
            pending: HashMap::new(),
            late_echoes: VecDeque::new(),
            next_id: 0,
        }
    }

    /// Adds a write of `object` by the reconcile of `by`, and returns its number.
    pub(super) fn add(&mut self, object: &ObjectRef, by: &ObjectRef) -> u64 {
        self.next_id += 1;
        let write = PendingWrite {
            id: self.next_id,
            by: by.clone(),
            held: Vec::new(),
        };
        self.pending.entry(object.clone()).or_default().push(write);
        self.next_id
    }

    /// Passes on a wake-up of `key` by a change of `changed`, unless it is the late echo of a write, or is held while a write by
    /// `key` is pending that may be its cause.
    pub(super) fn admit(
        &mut self,
        key: &ObjectRef,
        changed: &ObjectRef,
        wake_up: WakeUp<C>,
    ) -> Option<WakeUp<C>> {
        let is_late_echo = |echo: &LateEcho| {
            Some(&echo.change) == wake_up.change.as_ref() && echo.by == *key && echo.object == *changed
        };
        if let Some(at) = self.late_echoes.iter().position(is_late_echo) {
            self.late_echoes.remove(at);
            return None;
        }
        let write = self
            .pending
            .get_mut(changed)
            .and_then(|writes| writes.iter_mut().find(|write| write.by == *key));
        match write {
            Some(write) => {
                write.held.push(wake_up);
                None
            }
            None => Some(wake_up),
        }
    }

    /// Removes a write whose response has arrived, or never will. Returns the object that has written, and the held wake-ups that
    /// are no echo of it. If a watch has stored the change before and has not reported it, its wake-up is still to come.
    pub(super) fn remove(
        &mut self,
        object: &ObjectRef,
        id: u64,
        fulfilment: Fulfilment,
    ) -> Option<(ObjectRef, Vec<WakeUp<C>>)> {
        let writes = self.pending.get_mut(object)?;
        let at = writes.iter().position(|write| write.id == id)?;
        let PendingWrite { by, mut held, .. } = writes.swap_remove(at);
        if writes.is_empty() {
            self.pending.remove(object);
        }
        let count = held.len();
        held.retain(|wake_up| fulfilment.change.is_none() || wake_up.change != fulfilment.change);
        let is_reported = held.len() < count;
        if let Some(change) = fulfilment.change
            && fulfilment.is_stored
            && !is_reported
        {
            self.late_echoes.push_back(LateEcho {
                object: object.clone(),
                change,
                by: by.clone(),
            });
            if self.late_echoes.len() > MAX_LATE_ECHOES {
                self.late_echoes.pop_front();
            }
        }
        Some((by, held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::key::Gvk;

    fn object(kind: &str) -> ObjectRef {
        ObjectRef::new(Gvk::new("g", "v1", kind), "n", "o")
    }

    fn change(version: u64) -> WakeUp<u64> {
        WakeUp {
            change: Some(ChangeId::Version(version)),
            priority: Priority::High,
            cause: version,
        }
    }

    fn deletion(uid: &str) -> WakeUp<u64> {
        WakeUp {
            change: Some(ChangeId::Deletion(uid.into())),
            ..change(0)
        }
    }

    fn fulfilled(version: u64, is_stored: bool) -> Fulfilment {
        Fulfilment {
            change: Some(ChangeId::Version(version)),
            is_stored,
        }
    }

    /// The causes of wake-ups.
    fn causes(wake_ups: Vec<WakeUp<u64>>) -> Vec<u64> {
        wake_ups.into_iter().map(|wake_up| wake_up.cause).collect()
    }

    #[test]
    fn wake_ups_before_the_response_are_held_and_the_echo_is_dropped() {
        let (owner, child) = (object("Owner"), object("Child"));
        for (seen, delivered) in [
            (vec![7], vec![]),
            (vec![6, 7], vec![6]),
            (vec![8], vec![8]),
            (vec![], vec![]),
        ] {
            let mut writes = ExpectedWrites::new();
            let id = writes.add(&child, &owner);
            for version in &seen {
                assert!(writes.admit(&owner, &child, change(*version)).is_none(), "held");
                assert!(
                    writes.admit(&object("Other"), &child, change(*version)).is_some(),
                    "of another object"
                );
            }
            let (by, held) = writes.remove(&child, id, fulfilled(7, true)).expect("pending");
            assert_eq!((by, causes(held)), (owner.clone(), delivered), "{seen:?}");
            assert!(writes.remove(&child, id, fulfilled(7, true)).is_none(), "once");
        }
    }

    #[test]
    fn held_wake_ups_of_a_write_without_a_response_are_delivered() {
        let (owner, child) = (object("Owner"), object("Child"));
        let mut writes = ExpectedWrites::new();
        let id = writes.add(&child, &owner);
        assert!(writes.admit(&owner, &child, change(7)).is_none());
        let (_, held) = writes.remove(&child, id, Fulfilment::default()).expect("pending");
        assert_eq!(causes(held), [7]);
        assert!(
            writes.admit(&owner, &child, change(8)).is_some(),
            "nothing is pending"
        );
    }

    #[test]
    fn deletion_is_an_echo_by_its_uid() {
        let (owner, child) = (object("Owner"), object("Child"));
        for (uid, is_echo) in [("u", true), ("predecessor", false)] {
            let mut writes = ExpectedWrites::new();
            let id = writes.add(&child, &owner);
            assert!(writes.admit(&owner, &child, deletion("u")).is_none());
            let fulfilment = Fulfilment {
                change: Some(ChangeId::Deletion(uid.into())),
                is_stored: true,
            };
            let (_, held) = writes.remove(&child, id, fulfilment).expect("pending");
            assert_eq!(held.is_empty(), is_echo, "{uid}");
        }
    }

    #[test]
    fn echo_that_is_reported_after_the_response_is_dropped_once() {
        let (owner, child) = (object("Owner"), object("Child"));
        for (is_stored, reported, is_echo) in [(true, 7, true), (true, 8, false), (false, 7, false)] {
            let mut writes = ExpectedWrites::new();
            let id = writes.add(&child, &owner);
            let _ = writes.remove(&child, id, fulfilled(7, is_stored));
            // The next write is pending by then, which holds what is no echo.
            let next = writes.add(&child, &owner);
            for _ in 0..2 {
                assert!(writes.admit(&owner, &child, change(reported)).is_none());
            }
            let (_, held) = writes
                .remove(&child, next, Fulfilment::default())
                .expect("pending");
            assert_eq!(held.len(), 2 - usize::from(is_echo), "{reported}");
        }
    }

    /// The watch removes an object from the store and reports that in two steps, and the response may come in between.
    #[test]
    fn deletion_that_is_reported_after_the_response_is_an_echo() {
        let (owner, child) = (object("Owner"), object("Child"));
        for (is_stored, reported, is_echo) in [(true, "u", true), (true, "other", false), (false, "u", false)]
        {
            let mut writes = ExpectedWrites::new();
            let id = writes.add(&child, &owner);
            let deleted = Fulfilment {
                change: Some(ChangeId::Deletion("u".into())),
                is_stored,
            };
            let _ = writes.remove(&child, id, deleted);
            let woken = writes.admit(&owner, &child, deletion(reported));
            assert_eq!(woken.is_none(), is_echo, "{is_stored} {reported}");
        }
    }

    #[test]
    fn late_echoes_that_never_come_are_bounded() {
        let (owner, child) = (object("Owner"), object("Child"));
        let mut writes = ExpectedWrites::<u64>::new();
        for version in 1..1_000 {
            let id = writes.add(&child, &owner);
            let _ = writes.remove(&child, id, fulfilled(version, true));
        }
        assert_eq!(writes.late_echoes.len(), MAX_LATE_ECHOES);
        assert!(writes.pending.is_empty());
    }
}
