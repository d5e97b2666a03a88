//! Answers that many objects ask for: one request serves all who say how old an answer may be.

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{Request, Response, SendError, conditional::Key};

/// Answers kept of one upstream at most, bytes of one, and of all.
const ANSWERS: usize = 16;
const BYTES: (usize, usize) = (1 << 20, 4 << 20);

/// The last answers to GETs that may be shared.
#[derive(Default)]
pub struct Shared(Mutex<HashMap<Key, Arc<Cell>>>);

#[derive(Default)]
struct Cell {
    last: tokio::sync::Mutex<Option<Last>>,
    bytes: AtomicUsize,
}

/// The last answer, from when it was asked for until when it came.
struct Last {
    asked: Instant,
    came: Instant,
    answer: Result<Response, SendError>,
    /// Whether it serves those, too, who come after it.
    lasts: bool,
}

/// What is asked for, and how old the answer may be: what `Cache-Control: max-age` says of a GET into which no secrets
/// go.
pub fn max_age(request: &Request) -> Option<(Key, Duration)> {
    if request.method != "GET" || request.body.is_some() || !request.substitutions.is_empty() {
        return None;
    }
    let is_age = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("cache-control");
    let (age, others): (Vec<_>, Vec<_>) = request.headers.iter().partition(is_age);
    let [(_, value)] = age[..] else { return None };
    let seconds = value.trim().strip_prefix("max-age=")?.parse().ok()?;
    let key = Key::new(&request.path_and_query, others)?;
    Some((key, Duration::from_secs(seconds)))
}

impl Shared {
    /// An answer that is not older than `max_age`, asked for only when there is none. Who comes while it is asked for
    /// waits, and shares what comes of it, a failure, too: else all would wait for a server that is down one after the
    /// other.
    pub async fn get(
        &self,
        key: Key,
        max_age: Duration,
        ask: impl Future<Output = Result<Response, SendError>>,
    ) -> Result<Response, SendError> {
        let arrived = Instant::now();
        let cell = {
            let mut all = self.0.lock().expect("lock");
            if all.len() >= ANSWERS && !all.contains_key(&key) {
                all.retain(|_, cell| in_use(cell));
            }
            all.entry(key).or_default().clone()
        };
        let mut held = cell.last.lock().await;
        let will_do = held.as_ref().is_some_and(|last| match last.lasts {
            true => arrived.saturating_duration_since(last.asked) <= max_age,
            false => last.came >= arrived,
        });
        if !will_do {
            *held = None;
            let asked = Instant::now();
            let answer = ask.await;
            let lasts = |r: &Response| r.status == 200 && r.body.len() <= BYTES.0;
            *held = Some(Last {
                asked,
                came: Instant::now(),
                lasts: answer.as_ref().is_ok_and(lasts),
                answer,
            });
        }
        let Some(last) = &*held else {
            return Err(SendError::Unavailable("no answer".into()));
        };
        let answer = last.answer.clone();
        // Besides this one only the map knows it: nobody waits for it any more.
        if !last.lasts && Arc::strong_count(&cell) <= 2 {
            *held = None;
        }
        if !will_do {
            let bytes = match &*held {
                Some(last) => last.answer.as_ref().map_or(0, |r| r.body.len()),
                None => 0,
            };
            cell.bytes.store(bytes, Ordering::Relaxed);
            self.make_room(&cell);
        }
        answer
    }

    /// Forgets the largest of the others until all together are small enough.
    fn make_room(&self, keep: &Arc<Cell>) {
        let mut all = self.0.lock().expect("lock");
        let bytes = |cell: &Cell| cell.bytes.load(Ordering::Relaxed);
        while all.values().map(|cell| bytes(cell)).sum::<usize>() > BYTES.1 {
            let others = all
                .iter()
                .filter(|(_, cell)| !Arc::ptr_eq(cell, keep) && !in_use(cell));
            let largest = others.max_by_key(|(_, cell)| bytes(cell));
            let Some(key) = largest.map(|(key, _)| key.clone()) else {
                break;
            };
            all.remove(&key);
        }
    }
}

/// Whether somebody waits for it, or has just got it.
fn in_use(cell: &Arc<Cell>) -> bool {
    Arc::strong_count(cell) > 1
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use futures::future::join_all;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn request(method: &str, header: Option<&str>) -> Request {
        Request {
            method: method.into(),
            path_and_query: "/x".into(),
            headers: header
                .map(|h| ("cache-control".into(), h.into()))
                .into_iter()
                .collect(),
            body: None,
            substitutions: Vec::new(),
            timeout: None,
        }
    }

    #[test]
    fn only_who_says_so_shares() {
        let age = |method, header| max_age(&request(method, header)).map(|(_, age)| age);
        assert_eq!(age("GET", Some("max-age=7")), Some(Duration::from_secs(7)));
        assert_eq!(age("GET", None), None);
        assert_eq!(age("GET", Some("no-cache")), None);
        assert_eq!(age("PUT", Some("max-age=7")), None);
        let with = |name: &str| {
            let mut request = request("GET", Some("max-age=7"));
            request.headers.push((name.into(), "x".into()));
            max_age(&request).map(|(key, _)| key)
        };
        assert!(with("Accept").is_some() && with("Accept") != with("Accept-Language"));
        assert_eq!(with("If-None-Match"), None, "its answer is its own");
    }

    fn key(path: &str) -> Key {
        Key::new(path, []).expect("a key")
    }

    /// Answers that count; each takes a moment.
    async fn ask(count: &AtomicU16, fails: bool) -> Result<Response, SendError> {
        let number = count.fetch_add(1, Ordering::Relaxed) + 1;
        tokio::task::yield_now().await;
        match fails {
            true => Err(SendError::Unavailable(number.to_string())),
            false => Ok(Response {
                status: 200,
                headers: Vec::new(),
                body: vec![u8::try_from(number).expect("few")],
            }),
        }
    }

    #[tokio::test]
    async fn one_request_serves_many() {
        let (shared, count) = (Shared::default(), AtomicU16::new(0));
        let all = join_all((0..20).map(|_| shared.get(key("/x"), LONG, ask(&count, false)))).await;
        assert!(all.iter().all(|a| a.as_ref().is_ok_and(|r| r.body == [1])));
        let other = shared
            .get(key("/y"), LONG, ask(&count, false))
            .await
            .expect("an answer");
        assert_eq!(other.body, [2], "of another path");
        let now = shared
            .get(key("/x"), Duration::ZERO, ask(&count, false))
            .await
            .expect("an answer");
        assert_eq!(now.body, [3], "it was too old");
        let again = shared
            .get(key("/x"), Duration::MAX, ask(&count, false))
            .await
            .expect("an answer");
        assert_eq!(again.body, [3]);
    }

    #[tokio::test]
    async fn a_failure_serves_those_who_wait_and_nobody_else() {
        let (shared, count) = (Shared::default(), AtomicU16::new(0));
        let all = join_all((0..20).map(|_| shared.get(key("/x"), LONG, ask(&count, true)))).await;
        assert!(all.iter().all(Result::is_err));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert!(shared.get(key("/x"), LONG, ask(&count, false)).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_no_answer_to_keep_serves_those_who_wait_and_is_let_go() {
        for (status, bytes) in [(503, 1), (200, BYTES.0 + 1)] {
            let (shared, count) = (Shared::default(), AtomicU16::new(0));
            let ask = || async {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                let body = vec![0; bytes];
                Ok(Response {
                    status,
                    headers: Vec::new(),
                    body,
                })
            };
            let all = join_all((0..20).map(|_| shared.get(key("/x"), LONG, ask()))).await;
            assert!(all.iter().all(|a| a.as_ref().is_ok_and(|r| r.status == status)));
            assert_eq!(count.load(Ordering::Relaxed), 1);
            let cell = shared.0.lock().expect("lock")[&key("/x")].clone();
            assert!(cell.last.lock().await.is_none(), "nobody needs it");
            shared.get(key("/x"), LONG, ask()).await.expect("an answer");
            assert_eq!(count.load(Ordering::Relaxed), 2);
        }
    }

    #[tokio::test]
    async fn its_bytes_are_bounded() {
        let shared = Shared::default();
        for n in 0..10 {
            let answer = Response {
                status: 200,
                headers: Vec::new(),
                body: vec![0; BYTES.0],
            };
            let asked = shared.get(key(&format!("/{n}")), LONG, async { Ok(answer) });
            asked.await.expect("an answer");
        }
        let all = shared.0.lock().expect("lock");
        assert!(all.len() == BYTES.1 / BYTES.0 && all.contains_key(&key("/9")));
    }
}
