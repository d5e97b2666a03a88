//! Answers that many objects ask for: one request serves all who say how old an answer may be.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use super::{Request, Response, SendError};

/// Answers kept of one upstream at most, and bytes of one.
const ANSWERS: usize = 16;
const BYTES: usize = 1 << 20;

/// The last answers to GETs that may be shared, by path.
#[derive(Default)]
pub struct Shared(Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<Last>>>>>);

/// The last answer, from when it was asked for until when it came.
struct Last {
    asked: Instant,
    came: Instant,
    answer: Result<Response, SendError>,
}

/// How old an answer to this request may be: what `Cache-Control: max-age` says of a GET into which no secrets go.
pub fn max_age(request: &Request) -> Option<Duration> {
    if request.method != "GET" || request.body.is_some() || !request.substitutions.is_empty() {
        return None;
    }
    let mut headers = request.headers.iter();
    let (_, value) = headers.find(|(name, _)| name.eq_ignore_ascii_case("cache-control"))?;
    let seconds = value.trim().strip_prefix("max-age=")?;
    Some(Duration::from_secs(seconds.parse().ok()?))
}

impl Shared {
    /// An answer that is not older than `max_age`, asked for only when there is none. Who comes while it is asked for
    /// waits, and shares the failure, too: else all would wait for a server that is down one after the other.
    pub async fn get(
        &self,
        path: &str,
        max_age: Duration,
        ask: impl Future<Output = Result<Response, SendError>>,
    ) -> Result<Response, SendError> {
        let arrived = Instant::now();
        let cell = {
            let mut all = self.0.lock().expect("lock");
            if all.len() >= ANSWERS && !all.contains_key(path) {
                all.clear();
            }
            all.entry(path.to_owned()).or_default().clone()
        };
        let mut last = cell.lock().await;
        if let Some(last) = &*last {
            let will_do = match &last.answer {
                Ok(_) => last.asked + max_age >= arrived,
                Err(_) => last.came >= arrived,
            };
            if will_do {
                return last.answer.clone();
            }
        }
        let asked = Instant::now();
        let answer = ask.await;
        let kept = answer
            .as_ref()
            .map_or(true, |a| a.status == 200 && a.body.len() <= BYTES);
        *last = kept.then(|| Last {
            asked,
            came: Instant::now(),
            answer: answer.clone(),
        });
        answer
    }
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
        let age = |method, header| max_age(&request(method, header));
        assert_eq!(age("GET", Some("max-age=7")), Some(Duration::from_secs(7)));
        assert_eq!(age("GET", None), None);
        assert_eq!(age("GET", Some("no-cache")), None);
        assert_eq!(age("PUT", Some("max-age=7")), None);
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
        let all = join_all((0..20).map(|_| shared.get("/x", LONG, ask(&count, false)))).await;
        assert!(all.iter().all(|a| a.as_ref().is_ok_and(|r| r.body == [1])));
        let other = shared
            .get("/y", LONG, ask(&count, false))
            .await
            .expect("an answer");
        assert_eq!(other.body, [2], "of another path");
        let now = shared
            .get("/x", Duration::ZERO, ask(&count, false))
            .await
            .expect("an answer");
        assert_eq!(now.body, [3], "it was too old");
        let again = shared
            .get("/x", LONG, ask(&count, false))
            .await
            .expect("an answer");
        assert_eq!(again.body, [3]);
    }

    #[tokio::test]
    async fn a_failure_serves_those_who_wait_and_nobody_else() {
        let (shared, count) = (Shared::default(), AtomicU16::new(0));
        let all = join_all((0..20).map(|_| shared.get("/x", LONG, ask(&count, true)))).await;
        assert!(all.iter().all(Result::is_err));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert!(shared.get("/x", LONG, ask(&count, false)).await.is_ok());
    }
}
