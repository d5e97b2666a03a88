//! Coalescing of equal GET requests: one response serves all requests that accept its age (as Go's singleflight does).

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{SendError, UpstreamRequest, UpstreamResponse, conditional::CacheKey};

/// Responses kept per upstream, bytes of one, and bytes of all.
const MAX_RESPONSES: usize = 512;
const MAX_RESPONSE_BYTES: usize = 1 << 20;
const MAX_TOTAL_BYTES: usize = 4 << 20;

/// The last responses to GET requests that may be shared.
#[derive(Default)]
pub struct ResponseCoalescer {
    slots: Mutex<HashMap<CacheKey, Arc<Slot>>>,
    /// Number of requests so far, by which the least recently used response is found.
    uses: AtomicU64,
}

#[derive(Default)]
struct Slot {
    last: tokio::sync::Mutex<Option<SharedResult>>,
    bytes: AtomicUsize,
    last_use: AtomicU64,
}

/// The result of the last request, with the times it was sent and received.
struct SharedResult {
    requested_at: Instant,
    received_at: Instant,
    result: Result<UpstreamResponse, SendError>,
    /// The result also serves requests that arrive later.
    is_reusable: bool,
}

/// The cache key of a request and the age it accepts, from `Cache-Control: max-age`. `None` unless it is a GET without
/// secrets in it.
pub fn parse_max_age(request: &UpstreamRequest) -> Option<(CacheKey, Duration)> {
    if request.method != "GET" || request.body.is_some() || !request.substitutions.is_empty() {
        return None;
    }
    let is_age = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("cache-control");
    let (age, others): (Vec<_>, Vec<_>) = request.headers.iter().partition(is_age);
    let [(_, value)] = age[..] else { return None };
    let seconds = value.trim().strip_prefix("max-age=")?.parse().ok()?;
    let key = CacheKey::new(&request.path_and_query, others)?;
    Some((key, Duration::from_secs(seconds)))
}

impl ResponseCoalescer {
    /// A response not older than `max_age`; `request` is sent only if there is none. Requests that arrive while it is
    /// in flight wait and share its result, also a failure: otherwise all would wait for a server that is down one
    /// after the other.
    pub async fn get_or_request(
        &self,
        key: CacheKey,
        max_age: Duration,
        request: impl Future<Output = Result<UpstreamResponse, SendError>>,
    ) -> Result<UpstreamResponse, SendError> {
        let arrived = Instant::now();
        let slot = {
            let mut all = self.slots.lock();
            if all.len() >= MAX_RESPONSES && !all.contains_key(&key) {
                let idle = all.iter().filter(|(_, slot)| !is_in_use(slot));
                let oldest = idle.min_by_key(|(_, slot)| slot.last_use.load(Ordering::Relaxed));
                if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                    all.remove(&oldest);
                }
            }
            let slot = all.entry(key).or_default().clone();
            let now = self.uses.fetch_add(1, Ordering::Relaxed);
            slot.last_use.store(now, Ordering::Relaxed);
            slot
        };
        let mut result = slot.last.lock().await;
        let is_fresh = result.as_ref().is_some_and(|last| {
            if last.is_reusable {
                arrived.saturating_duration_since(last.requested_at) <= max_age
            } else {
                last.received_at >= arrived
            }
        });
        if !is_fresh {
            *result = None;
            let requested_at = Instant::now();
            let answer = request.await;
            // These are about the call that sent the request, not about the response: others send their own.
            if let Err(SendError::ResponsesTooLarge | SendError::Exhausted(_)) = answer {
                return answer;
            }
            let lasts = |r: &UpstreamResponse| r.status == 200 && r.body.len() <= MAX_RESPONSE_BYTES;
            *result = Some(SharedResult {
                requested_at,
                received_at: Instant::now(),
                is_reusable: answer.as_ref().is_ok_and(lasts),
                result: answer,
            });
        }
        let Some(last) = &*result else {
            return Err(SendError::Unavailable("no answer".into()));
        };
        let answer = last.result.clone();
        // Only this call and the map hold the slot: no request waits for the result.
        if !last.is_reusable && Arc::strong_count(&slot) <= 2 {
            *result = None;
        }
        if !is_fresh {
            let bytes = match &*result {
                Some(last) => last.result.as_ref().map_or(0, |r| r.body.len()),
                None => 0,
            };
            slot.bytes.store(bytes, Ordering::Relaxed);
            self.evict_to_limit(&slot);
        }
        answer
    }

    /// Removes the largest other responses until the total is within the limit.
    fn evict_to_limit(&self, keep: &Arc<Slot>) {
        let mut all = self.slots.lock();
        let bytes = |slot: &Slot| slot.bytes.load(Ordering::Relaxed);
        while all.values().map(|slot| bytes(slot)).sum::<usize>() > MAX_TOTAL_BYTES {
            let others = all
                .iter()
                .filter(|(_, slot)| !Arc::ptr_eq(slot, keep) && !is_in_use(slot));
            let largest = others.max_by_key(|(_, slot)| bytes(slot));
            let Some(key) = largest.map(|(key, _)| key.clone()) else {
                break;
            };
            all.remove(&key);
        }
    }
}

/// A request waits for the slot, or has just been served from it.
fn is_in_use(slot: &Arc<Slot>) -> bool {
    Arc::strong_count(slot) > 1
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use futures::future::join_all;

    use super::*;

    const LONG_AGE: Duration = Duration::from_secs(3600);

    fn request(method: &str, header: Option<&str>) -> UpstreamRequest {
        UpstreamRequest {
            method: method.into(),
            path_and_query: "/x".into(),
            headers: header
                .map(|h| ("cache-control".into(), h.into()))
                .into_iter()
                .collect(),
            body: None,
            substitutions: Vec::new(),
            timeout: None,
            budget: None,
        }
    }

    #[test]
    fn max_age_parses_only_shareable_gets() {
        let age = |method, header| parse_max_age(&request(method, header)).map(|(_, age)| age);
        assert_eq!(age("GET", Some("max-age=7")), Some(Duration::from_secs(7)));
        assert_eq!(age("GET", None), None);
        assert_eq!(age("GET", Some("no-cache")), None);
        assert_eq!(age("PUT", Some("max-age=7")), None);
        let with = |name: &str| {
            let mut request = request("GET", Some("max-age=7"));
            request.headers.push((name.into(), "x".into()));
            parse_max_age(&request).map(|(key, _)| key)
        };
        assert!(with("Accept").is_some() && with("Accept") != with("Accept-Language"));
        assert_eq!(with("If-None-Match"), None, "its answer is its own");
    }

    fn key(path: &str) -> CacheKey {
        CacheKey::new(path, []).expect("a key")
    }

    /// A response whose body is its number; it takes one turn of the scheduler.
    async fn ask(count: &AtomicU16, fails: bool) -> Result<UpstreamResponse, SendError> {
        let number = count.fetch_add(1, Ordering::Relaxed) + 1;
        tokio::task::yield_now().await;
        if fails {
            return Err(SendError::Unavailable(number.to_string()));
        }
        Ok(UpstreamResponse {
            status: 200,
            headers: Vec::new(),
            body: vec![u8::try_from(number).expect("few")],
        })
    }

    #[tokio::test]
    async fn concurrent_requests_share_one_response() {
        let (shared, count) = (ResponseCoalescer::default(), AtomicU16::new(0));
        let all =
            join_all((0..20).map(|_| shared.get_or_request(key("/x"), LONG_AGE, ask(&count, false)))).await;
        assert!(all.iter().all(|a| a.as_ref().is_ok_and(|r| r.body == [1])));
        let other = shared
            .get_or_request(key("/y"), LONG_AGE, ask(&count, false))
            .await
            .expect("an answer");
        assert_eq!(other.body, [2], "of another path");
        let now = shared
            .get_or_request(key("/x"), Duration::ZERO, ask(&count, false))
            .await
            .expect("an answer");
        assert_eq!(now.body, [3], "it was too old");
        let again = shared
            .get_or_request(key("/x"), Duration::MAX, ask(&count, false))
            .await
            .expect("an answer");
        assert_eq!(again.body, [3]);
    }

    #[tokio::test]
    async fn failure_is_shared_with_waiting_requests_only() {
        let (shared, count) = (ResponseCoalescer::default(), AtomicU16::new(0));
        let all =
            join_all((0..20).map(|_| shared.get_or_request(key("/x"), LONG_AGE, ask(&count, true)))).await;
        assert!(all.iter().all(Result::is_err));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert!(
            shared
                .get_or_request(key("/x"), LONG_AGE, ask(&count, false))
                .await
                .is_ok()
        );
    }

    #[tokio::test]
    async fn unkept_response_serves_waiting_requests_and_is_dropped() {
        for (status, bytes) in [(503, 1), (200, MAX_RESPONSE_BYTES + 1)] {
            let (shared, count) = (ResponseCoalescer::default(), AtomicU16::new(0));
            let ask = || async {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                let body = vec![0; bytes];
                Ok(UpstreamResponse {
                    status,
                    headers: Vec::new(),
                    body,
                })
            };
            let all = join_all((0..20).map(|_| shared.get_or_request(key("/x"), LONG_AGE, ask()))).await;
            assert!(all.iter().all(|a| a.as_ref().is_ok_and(|r| r.status == status)));
            assert_eq!(count.load(Ordering::Relaxed), 1);
            let slot = shared.slots.lock()[&key("/x")].clone();
            assert!(slot.last.lock().await.is_none(), "nobody needs it");
            shared
                .get_or_request(key("/x"), LONG_AGE, ask())
                .await
                .expect("an answer");
            assert_eq!(count.load(Ordering::Relaxed), 2);
        }
    }

    #[tokio::test]
    async fn total_bytes_stay_within_limit() {
        let shared = ResponseCoalescer::default();
        for n in 0..10 {
            let answer = UpstreamResponse {
                status: 200,
                headers: Vec::new(),
                body: vec![0; MAX_RESPONSE_BYTES],
            };
            let requested_at = shared.get_or_request(key(&format!("/{n}")), LONG_AGE, async { Ok(answer) });
            requested_at.await.expect("an answer");
        }
        let all = shared.slots.lock();
        assert!(all.len() == MAX_TOTAL_BYTES / MAX_RESPONSE_BYTES && all.contains_key(&key("/9")));
    }
}
