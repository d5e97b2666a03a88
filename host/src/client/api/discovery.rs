//! Discovery of the resources under which kinds are served.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::Deserialize;

use super::{ApiClient, ApiError, ApiTarget, parse_response};
use crate::kube::key::{Gvk, ObjectRef};

/// The resource under which a kind is served.
#[derive(Clone, Debug)]
pub struct ServedResource {
    /// `api/v1` or `apis/GROUP/VERSION`.
    prefix: Arc<str>,
    /// Plural name, as in the path.
    pub plural: Arc<str>,
    /// True if objects live in namespaces.
    pub namespaced: bool,
    /// Subresources that have the form of the object, such as `status`.
    subresources: Arc<[Box<str>]>,
}

impl ServedResource {
    /// Returns whether it has a subresource with the form of the object.
    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|known| **known == *name)
    }

    /// Returns whether it has a status subresource.
    pub fn has_status(&self) -> bool {
        self.has_subresource("status")
    }

    /// Path of the collection; an empty namespace means all of them.
    pub fn collection(&self, namespace: &str) -> String {
        if self.namespaced && !namespace.is_empty() {
            format!("/{}/namespaces/{namespace}/{}", self.prefix, self.plural)
        } else {
            format!("/{}/{}", self.prefix, self.plural)
        }
    }

    /// Path of one object.
    pub fn object(&self, object: &ObjectRef) -> String {
        format!("{}/{}", self.collection(&object.namespace), object.name)
    }
}

/// Time for which a kind that is not served is not looked up again.
const ABSENT_TTL: Duration = Duration::from_secs(2);
/// Minimum age of an entry that an error makes stale. An object that is deleted while its status is written causes the
/// same error, and must not cost a discovery each time.
const MIN_ENTRY_AGE: Duration = Duration::from_secs(1);
/// Maximum number of groups and versions that are remembered without a kind that was looked for.
const MAX_ABSENT_VERSIONS: usize = 1000;

/// The results of discovery. CRDs change while a host runs, so an entry is forgotten when a request shows that it is
/// stale.
#[derive(Default)]
pub(super) struct DiscoveryCache(Mutex<CachedResources>);

#[derive(Default)]
struct CachedResources {
    found: HashMap<Gvk, (ServedResource, Instant)>,
    /// The kinds that a group and version had when another one was looked for.
    absent: HashMap<Arc<str>, (HashSet<Box<str>>, Instant)>,
}

/// The prefix of the paths of a kind: `api/v1` or `apis/GROUP/VERSION`.
fn path_prefix(gvk: &Gvk) -> Arc<str> {
    match &*gvk.group {
        "" => format!("api/{}", gvk.version).into(),
        group => format!("apis/{group}/{}", gvk.version).into(),
    }
}

/// Finds the kind that was meant by one in the plural or with other capitals.
fn find_similar_kind<'a>(mut kinds: impl Iterator<Item = &'a str>, wanted: &str) -> Option<&'a str> {
    let wanted = wanted.to_ascii_lowercase();
    let is_plural_of = |kind: &str| {
        let stem = wanted.strip_prefix(kind.strip_suffix('y').unwrap_or(kind));
        matches!(stem, Some("" | "s" | "es" | "ies"))
    };
    kinds.find(|kind| is_plural_of(&kind.to_ascii_lowercase()))
}

impl DiscoveryCache {
    fn get(&self, gvk: &Gvk, now: Instant) -> Option<Result<ServedResource, ApiError>> {
        let cached = self.0.lock();
        if let Some((resource, _)) = cached.found.get(gvk) {
            return Some(Ok(resource.clone()));
        }
        let (kinds, asked) = cached.absent.get(&*path_prefix(gvk))?;
        let is_absent = now.duration_since(*asked) < ABSENT_TTL && !kinds.contains(&*gvk.kind);
        let similar = || find_similar_kind(kinds.iter().map(|kind| &**kind), &gvk.kind).map(Into::into);
        is_absent.then(|| Err(ApiError::UnknownKind(gvk.clone(), similar())))
    }

    fn insert(&self, gvk: &Gvk, resource: ServedResource, now: Instant) {
        let mut cached = self.0.lock();
        cached.absent.remove(&resource.prefix);
        cached.found.insert(gvk.clone(), (resource, now));
    }

    fn insert_absent(&self, prefix: Arc<str>, kinds: HashSet<Box<str>>, now: Instant) {
        let mut cached = self.0.lock();
        if cached.absent.len() >= MAX_ABSENT_VERSIONS {
            cached
                .absent
                .retain(|_, (_, asked)| now.duration_since(*asked) < ABSENT_TTL);
        }
        if cached.absent.len() < MAX_ABSENT_VERSIONS {
            cached.absent.insert(prefix, (kinds, now));
        }
    }

    /// Forgets the resource of a path if an error shows that it is not served there: HTTP 405, or 404 of something other
    /// than one object. The server answers a missing status subresource like a missing object.
    pub(super) fn forget_stale(&self, path: &str, code: u16, body: &[u8], now: Instant) {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Status {
            details: Details,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Details {
            name: String,
        }
        if !matches!(code, 404 | 405) {
            return;
        }
        let Some(target) = ApiTarget::parse(path) else {
            return;
        };
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        if code == 404 && !status.details.name.is_empty() && target.subresource != "status" {
            return;
        }
        self.0.lock().found.retain(|_, (resource, found)| {
            !target.is_of(&resource.prefix, &resource.plural) || now.duration_since(*found) < MIN_ENTRY_AGE
        });
    }

    fn forget(&self, gvk: &Gvk) {
        self.0.lock().found.remove(gvk);
    }
}

impl ApiClient {
    /// Discovers the resource of a kind. The result is cached until a request shows that it is stale; a kind that is not
    /// served is looked up again after [`ABSENT_TTL`], because its CRD may be installed later.
    pub async fn discover_resource(&self, gvk: &Gvk) -> Result<ServedResource, ApiError> {
        #[derive(Deserialize)]
        struct List {
            resources: Vec<Item>,
        }
        #[derive(Deserialize)]
        struct Item {
            name: String,
            namespaced: bool,
            kind: String,
        }
        if let Some(cached) = self.discovered.get(gvk, Instant::now()) {
            return cached;
        }
        let prefix = path_prefix(gvk);
        let list: List = match self.get(&format!("/{prefix}")).await {
            Ok(bytes) => parse_response(&bytes)?,
            Err(e) if e.code() == 404 => List {
                resources: Vec::new(),
            },
            Err(e) => return Err(e),
        };
        let is_kind = |r: &&Item| *r.kind == *gvk.kind && !r.name.contains('/');
        let Some(item) = list.resources.iter().find(is_kind) else {
            let kinds = || list.resources.iter().map(|r| r.kind.as_str());
            let similar = find_similar_kind(kinds(), &gvk.kind).map(Into::into);
            self.discovered
                .insert_absent(prefix, kinds().map(Into::into).collect(), Instant::now());
            return Err(ApiError::UnknownKind(gvk.clone(), similar));
        };
        let own_form = list.resources.iter().filter(|r| r.kind == item.kind);
        let subresources = own_form.filter_map(|r| r.name.strip_prefix(&item.name)?.strip_prefix('/'));
        let resource = ServedResource {
            prefix,
            plural: item.name.as_str().into(),
            namespaced: item.namespaced,
            subresources: subresources.map(Into::into).collect(),
        };
        self.discovered.insert(gvk, resource.clone(), Instant::now());
        Ok(resource)
    }

    /// Discovers the resource of a kind again, because the cached one did not behave as described.
    pub async fn rediscover_resource(&self, gvk: &Gvk) -> Result<ServedResource, ApiError> {
        self.discovered.forget(gvk);
        self.discover_resource(gvk).await
    }

    /// Discovers the version of a kind that the server prefers.
    pub async fn discover_preferred(&self, group: &str, kind: &str) -> Result<Gvk, ApiError> {
        if group.is_empty() {
            return Ok(Gvk::new("", "v1", kind));
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Group {
            preferred_version: Version,
        }
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        let bytes = self.get(&format!("/apis/{group}")).await?;
        let found: Group = parse_response(&bytes)?;
        Ok(Gvk::new(group, &found.preferred_version.version, kind))
    }

    /// Discovers the versions of a group that the server serves. None for the core group, which has one, and for a group
    /// that is not served.
    pub async fn discover_versions(&self, group: &str) -> Result<Vec<String>, ApiError> {
        #[derive(Deserialize)]
        struct Group {
            versions: Vec<Version>,
        }
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        if group.is_empty() {
            return Ok(Vec::new());
        }
        match self.get(&format!("/apis/{group}")).await {
            Ok(bytes) => {
                let found: Group = parse_response(&bytes)?;
                Ok(found.versions.into_iter().map(|v| v.version).collect())
            }
            Err(e) if e.code() == 404 => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thing() -> Gvk {
        Gvk::new("g.io", "v1", "Thing")
    }

    fn cache_with_thing(now: Instant) -> DiscoveryCache {
        let cache = DiscoveryCache::default();
        let resource = ServedResource {
            prefix: "apis/g.io/v1".into(),
            plural: "things".into(),
            namespaced: true,
            subresources: ["status".into()].into(),
        };
        cache.insert(&thing(), resource, now);
        cache
    }

    #[test]
    fn entry_is_forgotten_when_its_path_is_not_served_and_not_when_one_object_is_missing() {
        let missing_object = br#"{"code":404,"details":{"name":"a","kind":"things"}}"#;
        let page_not_found = b"404 page not found";
        for (path, code, body, stale) in [
            (
                "/apis/g.io/v1/namespaces/n/things",
                404,
                &page_not_found[..],
                true,
            ),
            ("/apis/g.io/v1/things?watch=true", 405, b"", true),
            (
                "/apis/g.io/v1/namespaces/n/things/a/status",
                404,
                missing_object,
                true,
            ),
            ("/apis/g.io/v1/namespaces/n/things/a", 404, page_not_found, true),
            ("/apis/g.io/v1/namespaces/n/things/a", 404, missing_object, false),
            ("/apis/g.io/v1/namespaces/n/others", 404, page_not_found, false),
            ("/apis/g.io/v2/things", 404, page_not_found, false),
            ("/apis/g.io/v1/things", 403, b"", false),
        ] {
            let start = Instant::now();
            let cache = cache_with_thing(start);
            cache.forget_stale(path, code, body, start + MIN_ENTRY_AGE);
            let forgotten = cache.get(&thing(), start).is_none();
            assert_eq!(forgotten, stale, "{path} {code}");
            let cache = cache_with_thing(start);
            cache.forget_stale(path, code, body, start);
            assert!(cache.get(&thing(), start).is_some(), "just discovered");
        }
    }

    #[test]
    fn kinds_that_are_not_served_are_looked_up_again_after_a_while() {
        let (cache, start) = (DiscoveryCache::default(), Instant::now());
        let look_up = |kind: &str, now| cache.get(&Gvk::new("", "v1", kind), now).map(|r| r.is_ok());
        assert_eq!(look_up("Made-up", start), None);
        cache.insert_absent("api/v1".into(), ["Pod".into()].into(), start);
        assert_eq!(
            look_up("Made-up-too", start),
            Some(false),
            "one response for all kinds of it"
        );
        assert_eq!(look_up("Pod", start), None, "served, and not looked for");
        assert_eq!(look_up("Made-up", start + ABSENT_TTL), None);
    }
}
