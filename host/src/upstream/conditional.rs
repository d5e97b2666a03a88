//! Answers that came with a validator, kept to be asked for conditionally (RFC 9111).
//!
//! Nothing is given out unasked: the server says each time whether what is kept is still right, so that no
//! freshness need be computed. It is one client's own, with one identity, so that `private` may be kept.

use std::collections::HashMap;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::Response;

/// Bytes kept per client, and of one answer.
const BYTES: (usize, usize) = (1 << 20, 256 << 10);

/// What decides an answer: all that the component may vary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// The key of a request that only reads and has no condition of its own.
    pub fn new<'a>(
        path_and_query: &str,
        headers: impl IntoIterator<Item = &'a (String, String)>,
    ) -> Option<Self> {
        let mut lines: Vec<String> = Vec::new();
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            if name.starts_with("if-") || name == "range" || name == "cache-control" {
                return None;
            }
            lines.push(format!("{name}: {value}"));
        }
        lines.sort();
        lines.push(path_and_query.to_owned());
        Some(Self(lines.join("\n")))
    }
}

struct Kept {
    response: Response,
    etag: Option<HeaderValue>,
    modified: Option<HeaderValue>,
    used: u64,
}

impl Kept {
    fn bytes(&self, key: &Key) -> usize {
        let headers = self.response.headers.iter();
        key.0.len() + self.response.body.len() + headers.map(|(n, v)| n.len() + v.len()).sum::<usize>()
    }
}

/// The kept answers of one client.
#[derive(Default)]
pub struct Cache {
    kept: HashMap<Key, Kept>,
    bytes: usize,
    clock: u64,
}

impl Cache {
    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The conditions to ask with.
    pub fn conditions(&self, key: &Key) -> Vec<(HeaderName, HeaderValue)> {
        let Some(kept) = self.kept.get(key) else {
            return Vec::new();
        };
        let etag = kept.etag.clone().map(|e| (header::IF_NONE_MATCH, e));
        let modified = kept.modified.clone().map(|m| (header::IF_MODIFIED_SINCE, m));
        etag.into_iter().chain(modified).collect()
    }

    /// The server said that it is still right: what is kept, with the newer headers.
    pub fn confirmed(&mut self, key: &Key, newer: &[(String, String)]) -> Option<Response> {
        self.clock += 1;
        let kept = self.kept.get_mut(key)?;
        kept.used = self.clock;
        let before = kept.bytes(key);
        let headers = &mut kept.response.headers;
        for (name, _) in newer.iter().filter(|(name, _)| name != "content-length") {
            headers.retain(|(n, _)| n != name);
        }
        headers.extend(newer.iter().filter(|(name, _)| name != "content-length").cloned());
        self.bytes = self.bytes + kept.bytes(key) - before;
        Some(kept.response.clone())
    }

    /// Keeps an answer if it may be kept; what was kept before is not right any more.
    pub fn take(&mut self, key: Key, headers: &HeaderMap, response: &Response) {
        self.forget(&key);
        let (etag, modified) = (headers.get(header::ETAG), headers.get(header::LAST_MODIFIED));
        if response.status != 200 || (etag.is_none() && modified.is_none()) || !storable(headers) {
            return;
        }
        self.clock += 1;
        let kept = Kept {
            response: response.clone(),
            etag: etag.cloned(),
            modified: modified.cloned(),
            used: self.clock,
        };
        let bytes = kept.bytes(&key);
        if bytes > BYTES.1 {
            return;
        }
        self.bytes += bytes;
        self.kept.insert(key, kept);
        while self.bytes > BYTES.0 {
            let oldest = self
                .kept
                .iter()
                .min_by_key(|(_, k)| k.used)
                .map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { break };
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(gone) = self.kept.remove(key) {
            self.bytes -= gone.bytes(key);
        }
    }
}

/// Whether the server lets an answer be kept. What it varies by is in the key, but for `*`.
fn storable(headers: &HeaderMap) -> bool {
    let words = |name: HeaderName| {
        let values = headers.get_all(name).into_iter();
        let words = values.flat_map(|v| v.to_str().unwrap_or("*").split(','));
        words.map(|w| w.trim().to_ascii_lowercase()).collect::<Vec<_>>()
    };
    !words(header::CACHE_CONTROL).iter().any(|w| w == "no-store")
        && !words(header::VARY).iter().any(|w| w == "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &[u8]) -> Response {
        Response {
            status: 200,
            headers: vec![
                ("x".into(), "1".into()),
                ("content-length".into(), body.len().to_string()),
            ],
            body: body.to_vec(),
        }
    }

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let lines = lines
            .iter()
            .map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)));
        lines.collect()
    }

    fn key(path: &str) -> Key {
        Key::new(path, []).expect("a key")
    }

    #[test]
    fn asked_for_by_its_validator_and_given_when_confirmed() {
        let mut cache = Cache::default();
        cache.take(
            key("/a"),
            &headers(&[("etag", "\"1\""), ("last-modified", "then")]),
            &answer(b"body"),
        );
        let names: Vec<_> = cache.conditions(&key("/a")).into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, [header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE]);
        assert!(cache.conditions(&key("/b")).is_empty());
        let newer = [
            ("x".to_owned(), "2".to_owned()),
            ("content-length".to_owned(), "0".to_owned()),
        ];
        let given = cache.confirmed(&key("/a"), &newer).expect("kept");
        assert_eq!((given.status, &*given.body), (200, &b"body"[..]));
        assert!(
            given.headers.contains(&("x".into(), "2".into()))
                && given.headers.contains(&("content-length".into(), "4".into()))
        );
        // Another answer, without a validator: what was kept is gone.
        cache.take(key("/a"), &headers(&[]), &answer(b"other"));
        assert!(cache.conditions(&key("/a")).is_empty() && cache.bytes == 0);
    }

    #[test]
    fn what_may_not_be_kept_is_not() {
        let mut cache = Cache::default();
        for lines in [
            &[("etag", "1"), ("cache-control", "private, No-Store")][..],
            &[("etag", "1"), ("vary", "accept, *")],
            &[("cache-control", "max-age=60")],
        ] {
            cache.take(key("/a"), &headers(lines), &answer(b"x"));
            assert!(cache.kept.is_empty(), "{lines:?}");
        }
        let mut gone = answer(b"x");
        gone.status = 404;
        cache.take(key("/a"), &headers(&[("etag", "1")]), &gone);
        assert!(cache.kept.is_empty());
        cache.take(
            key("/a"),
            &headers(&[
                ("etag", "1"),
                ("cache-control", "private, max-age=0"),
                ("vary", "accept"),
            ]),
            &answer(b"x"),
        );
        assert_eq!(cache.kept.len(), 1);
        let own = |name: &str| Key::new("/a", &[(name.into(), "x".into())]);
        assert!(own("If-None-Match").is_none() && own("Range").is_none());
        assert_ne!(own("Accept"), Some(key("/a")), "varied by a header");
    }

    #[test]
    fn its_bytes_are_bounded_and_the_least_used_goes() {
        let mut cache = Cache::default();
        let etag = headers(&[("etag", "1")]);
        cache.take(key("/huge"), &etag, &answer(&vec![0; BYTES.1 + 1]));
        assert!(cache.kept.is_empty());
        cache.take(key(&format!("/?{}", "q".repeat(BYTES.1))), &etag, &answer(b""));
        assert!(cache.kept.is_empty(), "what is asked for counts, too");
        for i in 0..20 {
            cache.take(key(&format!("/{i}")), &etag, &answer(&vec![0; BYTES.1 / 2]));
            cache.confirmed(&key("/0"), &[]);
            assert!(cache.bytes <= BYTES.0);
            assert_eq!(
                cache.bytes,
                cache.kept.iter().map(|(k, v)| v.bytes(k)).sum::<usize>()
            );
        }
        assert!(cache.kept.contains_key(&key("/0")) && !cache.kept.contains_key(&key("/1")));
    }
}
