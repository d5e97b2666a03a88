//! A cache of responses with a validator, for conditional requests (RFC 9111).
//!
//! No response is served without asking: the server confirms each by HTTP 304, so no freshness is computed. The cache
//! belongs to one client with one identity, so `private` responses may be entry.

use std::collections::HashMap;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::UpstreamResponse;

/// Bytes entry per client, and of one response.
const MAX_CACHE_BYTES: usize = 1 << 20;
const MAX_RESPONSE_BYTES: usize = 256 << 10;

/// The key of a response: all parts of a request that a component may vary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey(String);

impl CacheKey {
    /// The key of a request that only reads and sets no condition itself; else `None`.
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

struct CachedResponse {
    response: UpstreamResponse,
    etag: Option<HeaderValue>,
    modified: Option<HeaderValue>,
    last_used: u64,
}

impl CachedResponse {
    fn size_bytes(&self, key: &CacheKey) -> usize {
        let headers = self.response.headers.iter();
        key.0.len() + self.response.body.len() + headers.map(|(n, v)| n.len() + v.len()).sum::<usize>()
    }
}

/// The entry responses of one client.
#[derive(Default)]
pub struct EtagCache {
    entries: HashMap<CacheKey, CachedResponse>,
    bytes: usize,
    use_counter: u64,
}

impl EtagCache {
    /// No response is entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The headers of a conditional request.
    pub fn conditional_headers(&self, key: &CacheKey) -> Vec<(HeaderName, HeaderValue)> {
        let Some(entry) = self.entries.get(key) else {
            return Vec::new();
        };
        let etag = entry.etag.clone().map(|e| (header::IF_NONE_MATCH, e));
        let modified = entry.modified.clone().map(|m| (header::IF_MODIFIED_SINCE, m));
        etag.into_iter().chain(modified).collect()
    }

    /// Handles HTTP 304: returns the entry response, with the newer headers.
    pub fn revalidate_entry(
        &mut self,
        key: &CacheKey,
        newer: &[(String, String)],
    ) -> Option<UpstreamResponse> {
        self.use_counter += 1;
        let entry = self.entries.get_mut(key)?;
        entry.last_used = self.use_counter;
        let before = entry.size_bytes(key);
        let headers = &mut entry.response.headers;
        for (name, _) in newer.iter().filter(|(name, _)| name != "content-length") {
            headers.retain(|(n, _)| n != name);
        }
        headers.extend(newer.iter().filter(|(name, _)| name != "content-length").cloned());
        self.bytes = self.bytes + entry.size_bytes(key) - before;
        Some(entry.response.clone())
    }

    /// Keeps a response if it may be entry. The previous one is outdated in any case.
    pub fn store_response(&mut self, key: CacheKey, headers: &HeaderMap, response: &UpstreamResponse) {
        self.remove_entry(&key);
        let (etag, modified) = (headers.get(header::ETAG), headers.get(header::LAST_MODIFIED));
        if response.status != 200 || (etag.is_none() && modified.is_none()) || !is_storable(headers) {
            return;
        }
        self.use_counter += 1;
        let entry = CachedResponse {
            response: response.clone(),
            etag: etag.cloned(),
            modified: modified.cloned(),
            last_used: self.use_counter,
        };
        let bytes = entry.size_bytes(&key);
        if bytes > MAX_RESPONSE_BYTES {
            return;
        }
        self.bytes += bytes;
        self.entries.insert(key, entry);
        while self.bytes > MAX_CACHE_BYTES {
            let oldest = self
                .entries
                .iter()
                .min_by_key(|(_, k)| k.last_used)
                .map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { break };
            self.remove_entry(&oldest);
        }
    }

    fn remove_entry(&mut self, key: &CacheKey) {
        if let Some(gone) = self.entries.remove(key) {
            self.bytes -= gone.size_bytes(key);
        }
    }
}

/// The server permits to keep the response. Headers that it varies by are in the key, except for `*`.
fn is_storable(headers: &HeaderMap) -> bool {
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

    fn answer(body: &[u8]) -> UpstreamResponse {
        UpstreamResponse {
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

    fn key(path: &str) -> CacheKey {
        CacheKey::new(path, []).expect("a key")
    }

    #[test]
    fn kept_response_is_revalidated_and_replaced() {
        let mut cache = EtagCache::default();
        cache.store_response(
            key("/a"),
            &headers(&[("etag", "\"1\""), ("last-modified", "then")]),
            &answer(b"body"),
        );
        let names: Vec<_> = cache
            .conditional_headers(&key("/a"))
            .into_iter()
            .map(|(n, _)| n)
            .collect();
        assert_eq!(names, [header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE]);
        assert!(cache.conditional_headers(&key("/b")).is_empty());
        let newer = [
            ("x".to_owned(), "2".to_owned()),
            ("content-length".to_owned(), "0".to_owned()),
        ];
        let given = cache.revalidate_entry(&key("/a"), &newer).expect("kept");
        assert_eq!((given.status, &*given.body), (200, &b"body"[..]));
        assert!(
            given.headers.contains(&("x".into(), "2".into()))
                && given.headers.contains(&("content-length".into(), "4".into()))
        );
        // A response without a validator replaces and removes the entry one.
        cache.store_response(key("/a"), &headers(&[]), &answer(b"other"));
        assert!(cache.conditional_headers(&key("/a")).is_empty() && cache.bytes == 0);
    }

    #[test]
    fn unstorable_responses_are_not_kept() {
        let mut cache = EtagCache::default();
        for lines in [
            &[("etag", "1"), ("cache-control", "private, No-Store")][..],
            &[("etag", "1"), ("vary", "accept, *")],
            &[("cache-control", "max-age=60")],
        ] {
            cache.store_response(key("/a"), &headers(lines), &answer(b"x"));
            assert!(cache.entries.is_empty(), "{lines:?}");
        }
        let mut gone = answer(b"x");
        gone.status = 404;
        cache.store_response(key("/a"), &headers(&[("etag", "1")]), &gone);
        assert!(cache.entries.is_empty());
        cache.store_response(
            key("/a"),
            &headers(&[
                ("etag", "1"),
                ("cache-control", "private, max-age=0"),
                ("vary", "accept"),
            ]),
            &answer(b"x"),
        );
        assert_eq!(cache.entries.len(), 1);
        let own = |name: &str| CacheKey::new("/a", &[(name.into(), "x".into())]);
        assert!(own("If-None-Match").is_none() && own("Range").is_none());
        assert_ne!(own("Accept"), Some(key("/a")), "varied by a header");
    }

    #[test]
    fn size_is_bounded_and_least_used_entry_is_evicted() {
        let mut cache = EtagCache::default();
        let etag = headers(&[("etag", "1")]);
        cache.store_response(key("/huge"), &etag, &answer(&vec![0; MAX_RESPONSE_BYTES + 1]));
        assert!(cache.entries.is_empty());
        cache.store_response(
            key(&format!("/?{}", "q".repeat(MAX_RESPONSE_BYTES))),
            &etag,
            &answer(b""),
        );
        assert!(cache.entries.is_empty(), "what is asked for counts, too");
        for i in 0..20 {
            cache.store_response(
                key(&format!("/{i}")),
                &etag,
                &answer(&vec![0; MAX_RESPONSE_BYTES / 2]),
            );
            cache.revalidate_entry(&key("/0"), &[]);
            assert!(cache.bytes <= MAX_CACHE_BYTES);
            assert_eq!(
                cache.bytes,
                cache.entries.iter().map(|(k, v)| v.size_bytes(k)).sum::<usize>()
            );
        }
        assert!(cache.entries.contains_key(&key("/0")) && !cache.entries.contains_key(&key("/1")));
    }
}
