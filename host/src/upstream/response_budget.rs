//! The budget of the responses that one call receives: what is left of its `bytesFromHost`, and of the host's memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::SendError;
use crate::contract::memory_budget::MemoryLease;

/// Maximum time for which a response waits for memory. It occupies one of the upstream's requests meanwhile, for which the
/// call that holds the memory may wait.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes that the responses to one host call may have. The requests of a `send-all` share it, since each alone could be
/// within the limit.
#[derive(Clone, Debug)]
pub struct ResponseBudget(Arc<SharedBudget>);

#[derive(Debug)]
struct SharedBudget {
    left: AtomicUsize,
    exceeded: AtomicBool,
    memory: Arc<MemoryLease>,
}

impl ResponseBudget {
    /// A budget of this many bytes, which are charged to the memory of the call as they arrive.
    pub fn new(bytes: usize, memory: Arc<MemoryLease>) -> Self {
        Self(Arc::new(SharedBudget {
            left: AtomicUsize::new(bytes),
            exceeded: AtomicBool::new(false),
            memory,
        }))
    }

    /// A response did not fit, so the others need not be received either.
    pub fn is_exceeded(&self) -> bool {
        self.0.exceeded.load(Ordering::Relaxed)
    }

    /// The call waits for memory of the host, which is no fault of the upstream.
    pub fn waits_for_memory(&self) -> bool {
        self.0.memory.is_short()
    }
}

/// The bytes of one response. Dropping it returns them to the budget.
#[derive(Debug)]
pub struct ResponseCharge {
    budget: ResponseBudget,
    /// Bytes taken from what is left of `bytesFromHost`.
    taken: usize,
    /// Bytes charged to the memory of the call.
    in_memory: usize,
}

impl ResponseCharge {
    /// A response without any bytes yet.
    pub fn new(budget: ResponseBudget) -> Self {
        Self {
            budget,
            taken: 0,
            in_memory: 0,
        }
    }

    /// Charges bytes before they are kept. It waits for memory of the host.
    pub async fn add(&mut self, bytes: usize) -> Result<(), SendError> {
        let shared = &*self.budget.0;
        let take = |left: usize| left.checked_sub(bytes);
        let relaxed = Ordering::Relaxed;
        if shared.left.fetch_update(relaxed, relaxed, take).is_err() {
            shared.exceeded.store(true, relaxed);
            return Err(SendError::ResponsesTooLarge);
        }
        self.taken += bytes;
        let charge = shared.memory.charge(bytes);
        let charged = tokio::time::timeout(MEMORY_TIMEOUT, charge).await;
        let charged = charged.unwrap_or_else(|_| Err(shared.memory.give_up_charge()));
        charged.map_err(SendError::Exhausted)?;
        self.in_memory += bytes;
        Ok(())
    }

    /// Leaves the bytes charged, and returns their number: the call holds the response from now on.
    pub fn hand_over(mut self) -> usize {
        self.taken = 0;
        std::mem::take(&mut self.in_memory)
    }
}

impl Drop for ResponseCharge {
    fn drop(&mut self) {
        self.budget.0.left.fetch_add(self.taken, Ordering::Relaxed);
        self.budget.0.memory.release(self.in_memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn responses_share_what_is_left_and_return_it_when_dropped() {
        let budget = ResponseBudget::new(10, MemoryLease::unlimited());
        let [mut first, mut second] = [(); 2].map(|()| ResponseCharge::new(budget.clone()));
        first.add(6).await.expect("room");
        assert_eq!(second.add(5).await, Err(SendError::ResponsesTooLarge));
        assert!(budget.is_exceeded());
        drop(first);
        second.add(5).await.expect("the first response is gone");
        assert_eq!(second.hand_over(), 5);
        let mut third = ResponseCharge::new(budget);
        assert_eq!(third.add(6).await, Err(SendError::ResponsesTooLarge));
        third.add(5).await.expect("what is left");
    }
}
