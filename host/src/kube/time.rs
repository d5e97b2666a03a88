//! Wall-clock time as Kubernetes writes it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use k8s_openapi::jiff::Timestamp;

/// The current time with a resolution of one second, as in `metav1.Time`.
pub fn now_rfc3339() -> String {
    format_rfc3339(SystemTime::now())
}

/// Formats a time with a resolution of one second, as in `metav1.Time`.
pub fn format_rfc3339(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    Timestamp::from_second(i64::try_from(seconds).unwrap_or(0))
        .map_or_else(|_| String::new(), |t| t.to_string())
}

/// Seconds since an RFC 3339 time; none if the text is not one.
pub fn seconds_since(rfc3339: &str) -> Option<u64> {
    let then: Timestamp = rfc3339.parse().ok()?;
    u64::try_from(Timestamp::now().as_second() - then.as_second()).ok()
}

/// Returns a number that differs between all calls in this process, and with high probability between processes.
pub fn unique_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos() as u64);
    nanos.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))
}
