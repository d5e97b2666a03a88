//! The wait of all tests: a condition, looked at until it holds or [`WAIT_TIMEOUT`] has passed.

use std::time::{Duration, Instant};

/// Timeout of every single wait in a test. Generous, because a slow machine is not a failure.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Bounds of the interval of looks at a condition. A look is often a request to the API server, which costs the other tests CPU, so
/// they become less frequent.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(5);
const MAX_LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Looks until `look` returns a value, and returns it.
///
/// # Panics
/// After [`WAIT_TIMEOUT`], with what `describe` returns: what was waited for, and what there is instead.
pub async fn wait_for<T, F: Future<Output = Option<T>>>(
    mut look: impl FnMut() -> F,
    describe: impl FnOnce() -> String,
) -> T {
    let began = Instant::now();
    let looking = async {
        loop {
            if let Some(value) = look().await {
                return value;
            }
            // What has been waited for is measured to a quarter.
            let interval = began.elapsed() / 4;
            tokio::time::sleep(interval.clamp(MIN_LOOK_INTERVAL, MAX_LOOK_INTERVAL)).await;
        }
    };
    match tokio::time::timeout(WAIT_TIMEOUT, looking).await {
        Ok(value) => value,
        Err(_) => panic!("timed out after {WAIT_TIMEOUT:?} waiting for {}", describe()),
    }
}
