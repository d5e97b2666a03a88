//! Bounds on the calls of a plugin that wait for other clusters: clusters that have gone silent take a part of the plugin's
//! concurrency until their circuit breakers open, and not all of it.
//!
//! Clusters that work answer within [`SLOW_CALL_THRESHOLD`], so that their calls never count. A call that waits longer is
//! slow, and needs room among the slow calls of its plugin. Without room it ends with an error, and while a cluster has none,
//! further calls that use it end at once.

use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Time that a call may wait for a cluster without room among the slow calls.
const SLOW_CALL_THRESHOLD: Duration = Duration::from_secs(1);

/// The error of a call for which there is no room among the slow calls of its plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cluster {cluster} is slow: {slow} of {concurrency} concurrent calls of plugin {plugin} already wait for slow clusters, \
     {slow_there} of them for this one, and the others are kept for objects that do not use it"
)]
pub struct TooManySlowCalls {
    cluster: Arc<str>,
    plugin: Arc<str>,
    slow: u32,
    slow_there: u32,
    concurrency: u32,
}

/// The slow calls of all plugins.
#[derive(Default)]
pub struct SlowCalls {
    by_plugin: Mutex<HashMap<Arc<str>, SlowCallCounts>>,
}

/// Numbers of slow calls of one plugin, by cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SlowCallCounts(BTreeMap<Arc<str>, u32>);

impl SlowCallCounts {
    fn total(&self) -> u32 {
        self.0.values().sum()
    }

    fn of_cluster(&self, cluster: &str) -> u32 {
        self.0.get(cluster).copied().unwrap_or(0)
    }

    /// Returns true if one more slow call may wait for a cluster: after that, at least as many of the plugin's concurrent
    /// calls are not slow as are slow there. So one cluster takes half of them, each further one half of the rest, and one
    /// stays. A plugin has room for one slow call at least. A concurrency of 0 is unlimited.
    fn has_room(&self, cluster: &str, concurrency: u32) -> bool {
        let (slow, slow_there) = (self.total() + 1, self.of_cluster(cluster) + 1);
        concurrency == 0 || slow == 1 || slow + slow_there <= concurrency
    }

    fn add(&mut self, cluster: &Arc<str>) {
        *self.0.entry(cluster.clone()).or_default() += 1;
    }

    fn remove(&mut self, cluster: &str) {
        if let Some(count) = self.0.get_mut(cluster) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(cluster);
            }
        }
    }
}

/// The use of a cluster by a call of a plugin.
#[derive(Clone)]
pub struct ClusterWait {
    slow_calls: Arc<SlowCalls>,
    plugin: Arc<str>,
    cluster: Arc<str>,
    concurrency: u32,
    since: Instant,
}

/// A slow call, until it is dropped.
struct SlowCall(ClusterWait);

impl SlowCalls {
    /// Begins the use of a cluster by a plugin with this concurrency.
    ///
    /// # Errors
    /// The cluster has no room for a further slow call.
    pub fn begin_wait(
        self: &Arc<Self>,
        plugin: &Arc<str>,
        cluster: &Arc<str>,
        concurrency: u32,
    ) -> Result<ClusterWait, TooManySlowCalls> {
        let wait = ClusterWait {
            slow_calls: self.clone(),
            plugin: plugin.clone(),
            cluster: cluster.clone(),
            concurrency,
            since: Instant::now(),
        };
        if let Some(counts) = self.by_plugin.lock().get(plugin) {
            wait.check_room(counts)?;
        }
        Ok(wait)
    }
}

impl ClusterWait {
    fn check_room(&self, counts: &SlowCallCounts) -> Result<(), TooManySlowCalls> {
        if counts.has_room(&self.cluster, self.concurrency) {
            return Ok(());
        }
        Err(TooManySlowCalls {
            cluster: self.cluster.clone(),
            plugin: self.plugin.clone(),
            slow: counts.total(),
            slow_there: counts.of_cluster(&self.cluster),
            concurrency: self.concurrency,
        })
    }

    fn begin_slow_call(self) -> Result<SlowCall, TooManySlowCalls> {
        let mut by_plugin = self.slow_calls.by_plugin.lock();
        let counts = by_plugin.entry(self.plugin.clone()).or_default();
        self.check_room(counts)?;
        counts.add(&self.cluster);
        drop(by_plugin);
        Ok(SlowCall(self))
    }
}

impl Drop for SlowCall {
    fn drop(&mut self) {
        let wait = &self.0;
        let mut by_plugin = wait.slow_calls.by_plugin.lock();
        if let Some(counts) = by_plugin.get_mut(&wait.plugin) {
            counts.remove(&wait.cluster);
            if counts.0.is_empty() {
                by_plugin.remove(&wait.plugin);
            }
        }
    }
}

/// The cluster that a call uses at present; none while it uses the host's own. Clones share it, since it is found out while
/// the call runs.
#[derive(Clone, Default)]
pub struct CurrentWait(Arc<Mutex<Option<ClusterWait>>>);

impl CurrentWait {
    /// Begins the use of a cluster.
    pub fn begin(&self, wait: ClusterWait) {
        self.0.lock().get_or_insert(wait);
    }

    /// Restarts the time of the use: the cluster has answered, and the call goes on with the next request.
    pub fn restart(&self) {
        if let Some(wait) = &mut *self.0.lock() {
            wait.since = Instant::now();
        }
    }

    /// Ends the use of the cluster.
    pub fn end(&self) {
        *self.0.lock() = None;
    }

    /// Runs a call that uses a cluster or may begin to use one.
    ///
    /// # Errors
    /// The call waits for the cluster for longer than [`SLOW_CALL_THRESHOLD`], and there is no room for it. It was dropped.
    pub async fn run<T>(&self, mut call: Pin<&mut impl Future<Output = T>>) -> Result<T, TooManySlowCalls> {
        // Most calls never wait: the state of those that do is in a box.
        if let Poll::Ready(result) = futures::poll!(call.as_mut()) {
            return Ok(result);
        }
        Box::pin(self.run_to_end(call)).await
    }

    async fn run_to_end<T>(
        &self,
        mut call: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, TooManySlowCalls> {
        let mut check_at = Instant::now() + SLOW_CALL_THRESHOLD;
        let slow = loop {
            tokio::select! {
                biased;
                result = &mut call => return Ok(result),
                () = sleep_until(check_at) => {}
            }
            let (now, current) = (Instant::now(), self.0.lock().clone());
            match current {
                Some(wait) if wait.since + SLOW_CALL_THRESHOLD <= now => break wait,
                Some(wait) => check_at = wait.since + SLOW_CALL_THRESHOLD,
                None => check_at = now + SLOW_CALL_THRESHOLD,
            }
        };
        let _slow = slow.begin_slow_call()?;
        Ok(call.await)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::future::join_all;
    use proptest::prelude::*;

    use super::*;

    /// Adds slow calls for a cluster until it has no room.
    fn fill(counts: &mut SlowCallCounts, cluster: &str, concurrency: u32) -> u32 {
        while counts.has_room(cluster, concurrency) {
            counts.add(&cluster.into());
        }
        counts.of_cluster(cluster)
    }

    #[test]
    fn one_silent_cluster_takes_half_of_the_concurrency_and_at_least_one_call() {
        for (concurrency, most) in [(1, 1), (2, 1), (3, 1), (4, 2), (8, 4), (16, 8)] {
            let mut counts = SlowCallCounts::default();
            assert_eq!(fill(&mut counts, "a", concurrency), most, "of {concurrency}");
        }
    }

    #[test]
    fn several_silent_clusters_share_the_rest_and_leave_one_call() {
        let mut counts = SlowCallCounts::default();
        let taken = ["a", "b", "c", "d", "e"].map(|cluster| fill(&mut counts, cluster, 16));
        assert_eq!(taken, [8, 4, 2, 1, 0]);
        assert!(counts.total() < 16);
    }

    proptest! {
        /// In any sequence, one cluster has at most half of the calls, and all have at most all but one.
        #[test]
        fn any_sequence_leaves_calls_for_others(
            concurrency in 1..20u32,
            steps in proptest::collection::vec((0..4usize, any::<bool>()), 1..200),
        ) {
            let clusters: [Arc<str>; 4] = ["a", "b", "c", "d"].map(Into::into);
            let mut counts = SlowCallCounts::default();
            for (index, adds) in steps {
                let cluster = &clusters[index];
                if !adds {
                    counts.remove(cluster);
                } else if counts.has_room(cluster, concurrency) {
                    counts.add(cluster);
                }
                prop_assert!(counts.of_cluster(cluster) <= (concurrency / 2).max(1));
                prop_assert!(counts.total() <= (concurrency - 1).max(1));
            }
        }
    }

    fn wait_for(slow_calls: &Arc<SlowCalls>, cluster: &str) -> Result<CurrentWait, TooManySlowCalls> {
        let current = CurrentWait::default();
        current.begin(slow_calls.begin_wait(&"p".into(), &cluster.into(), 4)?);
        Ok(current)
    }

    #[tokio::test]
    async fn calls_beyond_the_room_end_after_the_threshold_and_further_ones_at_once() {
        let slow_calls = Arc::new(SlowCalls::default());
        let calls: Vec<_> = (0..4)
            .map(|_| wait_for(&slow_calls, "east").expect("nothing is slow yet"))
            .collect();
        let silent = std::future::pending::<()>;
        let running = join_all(
            calls
                .iter()
                .map(async |current| current.run(pin!(silent())).await),
        );
        let mut running = pin!(running);
        // Two calls are still waiting, so that not all have ended.
        let pending = tokio::time::timeout(SLOW_CALL_THRESHOLD * 2, &mut running).await;
        assert!(pending.is_err());
        let refused = wait_for(&slow_calls, "east").err().expect("no room");
        assert_eq!((refused.slow, refused.slow_there), (2, 2));
        assert!(
            refused.to_string().starts_with("cluster east is slow: 2 of 4"),
            "{refused}"
        );
        assert!(wait_for(&slow_calls, "west").is_ok(), "another cluster has room");
    }

    #[tokio::test]
    async fn call_that_goes_on_or_uses_no_cluster_is_not_slow() {
        let slow_calls = Arc::new(SlowCalls::default());
        let at_home = CurrentWait::default();
        let progressing = wait_for(&slow_calls, "east").expect("nothing is slow");
        let pause = SLOW_CALL_THRESHOLD * 2 / 3;
        let steps = async {
            for _ in 0..3 {
                tokio::time::sleep(pause).await;
                progressing.restart();
                assert!(slow_calls.by_plugin.lock().is_empty());
            }
        };
        let (steps, rest) = (pin!(steps), pin!(tokio::time::sleep(pause * 3)));
        let (went_on, stayed) = tokio::join!(progressing.run(steps), at_home.run(rest));
        assert_eq!((went_on, stayed), (Ok(()), Ok(())));
    }

    #[tokio::test]
    async fn slow_call_gives_its_room_back() {
        let slow_calls = Arc::new(SlowCalls::default());
        let slow = wait_for(&slow_calls, "east").expect("nothing is slow");
        let ended = slow
            .run(pin!(tokio::time::sleep(SLOW_CALL_THRESHOLD * 3 / 2)))
            .await;
        assert_eq!(ended, Ok(()));
        assert!(slow_calls.by_plugin.lock().is_empty());
    }
}
