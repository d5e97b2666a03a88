//! The memory budget: bytes that all running calls together may hold, in guest memories and received responses.
//!
//! A budget has four parts:
//!
//! ```text
//!  free part      FREE_CALL_BYTES for each call: counted by an atomic, never waited for
//!  shared pool    a fair semaphore in chunks; a call that needs more than its free part takes chunks from it
//!  overdraft      for one call at a time, while the pool is empty
//!  messages       bodies that brokers have sent, before and while they are handled
//! ```
//!
//! Calls keep their chunks until they end, and wait while holding some. That cannot deadlock: of the calls that wait, one
//! gets the overdraft, and its holder never waits for memory again. It either ends within the overdraft, or is refused
//! beyond it; both return its chunks to the pool, and the overdraft to the next in line.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use super::{limits::Bytes, message_memory::MessageMemory};

/// Bytes that each call may hold without taking from the shared pool: an instance of a small component.
pub const FREE_CALL_BYTES: usize = 2 << 20;
/// Bytes that a call takes from the pool at once, so that growth page by page seldom takes any.
const CHUNK_BYTES: usize = 1 << 20;
/// Range of the number of concurrent calls, which follows from the free part of the budget.
const MIN_CONCURRENT_CALLS: usize = 8;
const MAX_CONCURRENT_CALLS: usize = 256;
/// Largest overdraft: a call with the largest memory that can be granted, and its responses.
const MAX_OVERDRAFT_BYTES: usize = super::limits::MAX_GRANTED_MEMORY + (64 << 20);

/// Memory that a call could not get from the budget. It says nothing about the component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory budget of the host ({}B) is used up: raise --memory-budget, or lower limits.memory", Bytes(*.total))]
pub struct BudgetExhausted {
    /// Bytes of the whole budget.
    total: usize,
}

/// The memory of all calls of a host.
#[derive(Debug)]
pub struct MemoryBudget {
    total: usize,
    max_calls: u32,
    /// Chunks that any call may take. Its queue is first in, first out.
    pool: Arc<Semaphore>,
    pool_chunks: usize,
    /// The right to the overdraft, of which there is one.
    overdraft: Arc<Semaphore>,
    overdraft_bytes: usize,
    messages: Arc<MessageMemory>,
    usage: Usage,
}

#[derive(Debug, Default)]
struct Usage {
    /// Bytes that calls hold in pool and overdraft.
    used: AtomicUsize,
    /// Calls that wait for memory.
    waiting: AtomicUsize,
}

impl MemoryBudget {
    /// A budget of this many bytes.
    pub fn new(total: usize) -> Self {
        let max_calls = (total / 8 * 3 / FREE_CALL_BYTES).clamp(MIN_CONCURRENT_CALLS, MAX_CONCURRENT_CALLS);
        let overdraft_bytes = (total / 4).min(MAX_OVERDRAFT_BYTES);
        let message_bytes = total / 8;
        let pool_bytes = total.saturating_sub(max_calls * FREE_CALL_BYTES + overdraft_bytes + message_bytes);
        let pool_chunks = (pool_bytes / CHUNK_BYTES).min(Semaphore::MAX_PERMITS);
        Self {
            total,
            max_calls: u32::try_from(max_calls).unwrap_or(u32::MAX),
            pool: Arc::new(Semaphore::new(pool_chunks)),
            pool_chunks,
            overdraft: Arc::new(Semaphore::new(1)),
            overdraft_bytes,
            messages: Arc::new(MessageMemory::new(message_bytes)),
            usage: Usage::default(),
        }
    }

    /// A budget that no call exhausts, for commands that run single calls.
    pub fn unlimited() -> Arc<Self> {
        static UNLIMITED: LazyLock<Arc<MemoryBudget>> =
            LazyLock::new(|| Arc::new(MemoryBudget::new(usize::MAX)));
        UNLIMITED.clone()
    }

    /// The memory of messages.
    pub fn messages(&self) -> &Arc<MessageMemory> {
        &self.messages
    }

    /// Bytes of the whole budget.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Number of concurrent calls whose free parts the budget has room for.
    pub fn max_calls(&self) -> u32 {
        self.max_calls
    }

    /// Bytes that calls hold beyond their free parts.
    pub fn used(&self) -> usize {
        self.usage.used.load(Ordering::Relaxed)
    }

    /// Number of calls that wait for memory.
    pub fn waiting(&self) -> usize {
        self.usage.waiting.load(Ordering::Relaxed)
    }

    /// A lease for a call that begins.
    pub fn lease(self: &Arc<Self>) -> Arc<MemoryLease> {
        Arc::new(MemoryLease {
            budget: self.clone(),
            used: AtomicUsize::new(0),
            covered: AtomicUsize::new(FREE_CALL_BYTES),
            unfinished: AtomicUsize::new(0),
            abandoned: AtomicBool::new(false),
            held: Mutex::default(),
        })
    }

    fn exhausted(&self) -> BudgetExhausted {
        BudgetExhausted { total: self.total }
    }
}

/// The memory of one call. Dropping it returns everything to the budget.
#[derive(Debug)]
pub struct MemoryLease {
    budget: Arc<MemoryBudget>,
    /// Bytes that the call has charged.
    used: AtomicUsize,
    /// Bytes that it may have charged before it needs more from the budget.
    covered: AtomicUsize,
    /// Charges that wait for memory of the budget.
    unfinished: AtomicUsize,
    /// The last charge was cancelled while it waited. One that was granted, refused or given up was not.
    abandoned: AtomicBool,
    /// Charges of one call take from the budget one after the other: concurrent responses share the overdraft.
    held: Mutex<HeldMemory>,
}

#[derive(Debug, Default)]
struct HeldMemory {
    chunks: Option<OwnedSemaphorePermit>,
    overdraft: Option<OwnedSemaphorePermit>,
}

impl MemoryLease {
    /// A lease that never waits, of no call in particular.
    pub fn unlimited() -> Arc<Self> {
        static UNLIMITED: LazyLock<Arc<MemoryLease>> = LazyLock::new(|| MemoryBudget::unlimited().lease());
        UNLIMITED.clone()
    }

    /// Charges bytes that the call is about to hold. It waits while other calls hold what it needs.
    pub async fn charge(&self, bytes: usize) -> Result<(), BudgetExhausted> {
        let used = self
            .used
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes);
        if used <= self.covered.load(Ordering::Relaxed) {
            self.abandoned.store(false, Ordering::Relaxed);
            return Ok(());
        }
        let charge = UnfinishedCharge::new(self, bytes);
        let covered = self.cover_used().await;
        charge.finish(covered.is_ok());
        covered
    }

    /// The error of a charge that the caller has cancelled, and reports to the component: the call goes on.
    pub fn give_up_charge(&self) -> BudgetExhausted {
        self.abandoned.store(false, Ordering::Relaxed);
        self.budget.exhausted()
    }

    /// Takes back a charge. What it took from the budget stays with the call, which may need it again.
    pub fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The call waits for memory, or did when it was abandoned. A refusal ends the wait: what the call does after it is its
    /// own doing.
    pub fn is_short(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed) > 0 || self.abandoned.load(Ordering::Relaxed)
    }

    /// Takes from the budget what the charges of this call need.
    async fn cover_used(&self) -> Result<(), BudgetExhausted> {
        let budget = &*self.budget;
        let mut held = self.held.lock().await;
        let covered = self.covered.load(Ordering::Relaxed);
        let missing = self.used.load(Ordering::Relaxed).saturating_sub(covered);
        if missing == 0 {
            return Ok(());
        }
        if held.overdraft.is_some() {
            // The holder must not wait: everybody else may wait for it.
            return Err(budget.exhausted());
        }
        let chunks = missing.div_ceil(CHUNK_BYTES);
        let wanted = u32::try_from(chunks).map_err(|_| budget.exhausted())?;
        let taken = match budget.pool.clone().try_acquire_many_owned(wanted) {
            Ok(taken) => Some(taken),
            Err(_) => {
                let _waiting = WaitingCall::new(&budget.usage.waiting);
                tokio::select! {
                    biased;
                    // A request for more than the whole pool would wait for ever.
                    Ok(taken) = budget.pool.clone().acquire_many_owned(wanted), if chunks <= budget.pool_chunks =>
                        Some(taken),
                    Ok(overdraft) = budget.overdraft.clone().acquire_owned() => {
                        held.overdraft = Some(overdraft);
                        None
                    }
                    else => return Err(budget.exhausted()),
                }
            }
        };
        let bytes = match taken {
            Some(taken) => {
                match &mut held.chunks {
                    Some(chunks) => chunks.merge(taken),
                    none => *none = Some(taken),
                }
                chunks * CHUNK_BYTES
            }
            None => budget.overdraft_bytes,
        };
        self.covered.fetch_add(bytes, Ordering::Relaxed);
        budget.usage.used.fetch_add(bytes, Ordering::Relaxed);
        if missing > bytes {
            return Err(budget.exhausted());
        }
        Ok(())
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        let taken = self.covered.get_mut().saturating_sub(FREE_CALL_BYTES);
        if taken > 0 {
            self.budget.usage.used.fetch_sub(taken, Ordering::Relaxed);
        }
    }
}

/// A charge that waits for the budget. One that is cancelled, by a drop of its future, is taken back.
struct UnfinishedCharge<'a> {
    lease: &'a MemoryLease,
    bytes: usize,
    is_cancelled: bool,
}

impl<'a> UnfinishedCharge<'a> {
    fn new(lease: &'a MemoryLease, bytes: usize) -> Self {
        lease.unfinished.fetch_add(1, Ordering::Relaxed);
        Self {
            lease,
            bytes,
            is_cancelled: true,
        }
    }

    /// Ends the charge, which is taken back unless it was granted.
    fn finish(mut self, granted: bool) {
        self.is_cancelled = false;
        if granted {
            self.bytes = 0;
        }
    }
}

impl Drop for UnfinishedCharge<'_> {
    fn drop(&mut self) {
        self.lease.release(self.bytes);
        self.lease.abandoned.store(self.is_cancelled, Ordering::Relaxed);
        self.lease.unfinished.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a call that waits, also if its future is dropped.
struct WaitingCall<'a>(&'a AtomicUsize);

impl<'a> WaitingCall<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::{StreamExt, stream::FuturesUnordered};
    use proptest::prelude::*;

    use super::*;

    const MIB: usize = 1 << 20;

    fn budget(mib: usize) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget::new(mib * MIB))
    }

    #[tokio::test]
    async fn parts_of_the_budget_never_exceed_it() {
        for mib in [1, 16, 64, 256, 1000, 4096, 100_000] {
            let budget = budget(mib);
            let free = budget.max_calls as usize * FREE_CALL_BYTES;
            let messages = 2 * budget.messages.max_body_bytes();
            let parts = free + budget.pool_chunks * CHUNK_BYTES + budget.overdraft_bytes + messages;
            let least = MIN_CONCURRENT_CALLS * FREE_CALL_BYTES;
            assert!(
                parts <= budget.total.max(least + budget.total / 8 * 3),
                "{budget:?}"
            );
        }
        assert_eq!(budget(256).max_calls(), 48);
    }

    #[tokio::test]
    async fn free_part_takes_nothing_and_a_dropped_lease_returns_everything() {
        let budget = budget(256);
        let lease = budget.lease();
        lease.charge(FREE_CALL_BYTES).await.expect("the free part");
        assert_eq!(budget.used(), 0);
        lease.charge(10 * MIB + 1).await.expect("room");
        assert_eq!(budget.used(), 11 * MIB);
        lease.release(10 * MIB);
        lease.charge(10 * MIB).await.expect("it is covered");
        assert_eq!(budget.used(), 11 * MIB);
        drop(lease);
        assert_eq!(
            (budget.used(), budget.pool.available_permits()),
            (0, budget.pool_chunks)
        );
    }

    /// Two calls that together hold the pool and both want more would wait for each other for ever.
    #[tokio::test]
    async fn calls_that_hold_the_pool_and_want_more_all_end() {
        let budget = budget(256);
        let calls: FuturesUnordered<_> = (0..16)
            .map(|_| {
                let budget = budget.clone();
                async move {
                    let lease = budget.lease();
                    for _ in 0..60 {
                        lease.charge(MIB).await?;
                        tokio::task::yield_now().await;
                        assert!(budget.used() + 48 * FREE_CALL_BYTES <= budget.total);
                    }
                    Ok::<_, BudgetExhausted>(())
                }
            })
            .collect();
        let all = tokio::time::timeout(Duration::from_secs(60), calls.collect::<Vec<_>>());
        let ended = all.await.expect("no deadlock");
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        assert_eq!((budget.used(), budget.waiting()), (0, 0));
    }

    #[tokio::test]
    async fn call_larger_than_the_budget_is_refused_and_holds_up_nobody() {
        let budget = budget(64);
        let large = budget.lease();
        let other = budget.lease();
        other.charge(FREE_CALL_BYTES + 4 * MIB).await.expect("room");
        let refused = tokio::time::timeout(Duration::from_secs(5), large.charge(200 * MIB)).await;
        let refused = refused.expect("no wait").expect_err("too large");
        assert!(refused.to_string().contains("--memory-budget"), "{refused}");
        assert!(!large.is_short(), "it does not wait any more");
        drop(large);
        assert_eq!(budget.overdraft.available_permits(), 1);
        assert_eq!(budget.used(), 4 * MIB, "of the other call");
    }

    #[tokio::test]
    async fn cancelled_wait_leaves_no_charge() {
        let budget = budget(64);
        let [first, second, third] = [(); 3].map(|()| budget.lease());
        first
            .charge(FREE_CALL_BYTES + budget.pool_chunks * CHUNK_BYTES)
            .await
            .expect("the pool");
        second.charge(FREE_CALL_BYTES + MIB).await.expect("the overdraft");
        let waiting = tokio::time::timeout(Duration::from_millis(20), third.charge(FREE_CALL_BYTES + MIB));
        assert!(waiting.await.is_err() && third.is_short());
        assert_eq!((budget.waiting(), third.used.load(Ordering::Relaxed)), (0, 0));
        drop(first);
        third
            .charge(FREE_CALL_BYTES + MIB)
            .await
            .expect("it is free again");
        assert!(!third.is_short());
    }

    /// A call that goes on after a refusal and then times out has not waited for memory.
    #[tokio::test]
    async fn call_is_short_only_while_it_waits_or_was_cancelled() {
        let budget = budget(64);
        let [holder, call] = [(); 2].map(|()| budget.lease());
        let all = FREE_CALL_BYTES + budget.pool_chunks * CHUNK_BYTES;
        holder.charge(all).await.expect("the pool");
        holder.charge(MIB).await.expect("the overdraft");
        let waiting = tokio::time::timeout(Duration::from_millis(20), call.charge(all));
        assert!(
            waiting.await.is_err() && call.is_short(),
            "cancelled while it waited"
        );
        let refused = call.give_up_charge();
        assert!(refused.to_string().contains("--memory-budget"), "{refused}");
        assert!(!call.is_short(), "the component has the error");
        let waiting = tokio::time::timeout(Duration::from_millis(20), call.charge(all));
        assert!(waiting.await.is_err() && call.is_short());
        call.charge(1).await.expect("its free part");
        assert!(!call.is_short(), "the last charge was met");
        let refused = holder.charge(budget.total()).await;
        assert!(refused.is_err() && !holder.is_short(), "refused without a wait");
    }

    proptest! {
        /// Any calls, however they grow and end: what they hold never exceeds the budget, and all come to an end.
        #[test]
        fn any_calls_stay_within_the_budget_and_end(
            calls in prop::collection::vec(prop::collection::vec(0usize..40 * MIB, 1..8), 1..24),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.expect("a runtime").block_on(async {
                let budget = budget(128);
                let running: FuturesUnordered<_> = calls
                    .into_iter()
                    .map(|growths| {
                        let budget = budget.clone();
                        async move {
                            let lease = budget.lease();
                            for bytes in growths {
                                if lease.charge(bytes).await.is_err() {
                                    break;
                                }
                                assert!(budget.used() <= budget.pool_chunks * CHUNK_BYTES + budget.overdraft_bytes);
                                tokio::task::yield_now().await;
                            }
                        }
                    })
                    .collect();
                let all = tokio::time::timeout(Duration::from_secs(60), running.collect::<Vec<_>>());
                all.await.expect("no deadlock");
                assert_eq!((budget.used(), budget.waiting()), (0, 0));
            });
        }
    }
}
