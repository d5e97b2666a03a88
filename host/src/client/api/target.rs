//! Targets of requests to the API server: parsed paths and queries.

/// An object or a collection, as a path names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiTarget {
    /// `/api/VERSION` or `/apis/GROUP/VERSION`.
    prefix: String,
    /// Plural name of the kind.
    pub plural: String,
    /// Empty for cluster-scoped objects, and for lists of all namespaces.
    pub namespace: String,
    /// Empty for a collection.
    pub name: String,
    /// Empty for the object itself.
    pub subresource: String,
    /// Decoded parameters.
    query: Vec<(String, String)>,
}

impl ApiTarget {
    /// Parses a path with its query; none if it names no resource.
    pub fn parse(path: &str) -> Option<Self> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        let (prefix, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => (format!("/api/{version}"), rest),
            ["apis", group, version, rest @ ..] => (format!("/apis/{group}/{version}"), rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", _, "status" | "finalize"] => ("", rest),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            _ => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return None,
        };
        Some(Self {
            prefix,
            plural: plural.into(),
            namespace: namespace.into(),
            name: name.into(),
            subresource: subresource.into(),
            query: parse_query(query),
        })
    }

    /// A parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| &**value)
    }

    /// Returns true for a resource with this prefix (`apis/GROUP/VERSION`) and plural name.
    pub(super) fn is_of(&self, prefix: &str, plural: &str) -> bool {
        self.prefix.strip_prefix('/') == Some(prefix) && self.plural == plural
    }

    /// Returns true for Secrets.
    pub fn is_secret(&self) -> bool {
        self.plural == "secrets" && self.prefix == "/api/v1"
    }

    /// Returns true for Events, which report changes and are not state themselves.
    pub fn is_event(&self) -> bool {
        self.plural == "events"
            && matches!(
                self.prefix.trim_start_matches('/'),
                "api/v1" | "apis/events.k8s.io/v1"
            )
    }

    /// Path of the collection the object is in.
    pub fn collection(&self) -> String {
        match &*self.namespace {
            "" => format!("{}/{}", self.prefix, self.plural),
            namespace => format!("{}/namespaces/{namespace}/{}", self.prefix, self.plural),
        }
    }

    /// Path of an object of the collection.
    pub fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.collection())
    }

    /// Returns true if this collection contains the other target.
    pub fn contains(&self, other: &Self) -> bool {
        self.prefix == other.prefix
            && self.plural == other.plural
            && (self.namespace.is_empty() || self.namespace == other.namespace)
    }
}

fn parse_query(query: &str) -> Vec<(String, String)> {
    form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

/// Returns true if a write is a dry run: it says so in the one place where the server looks.
pub fn is_dry_run(method: &str, path: &str, body: &[u8]) -> bool {
    let is_all = |value: &serde_json::Value| *value == serde_json::json!(["All"]);
    match method {
        // The server ignores the query of a deletion that has a body.
        "DELETE" => serde_json::from_slice::<serde_json::Value>(body).is_ok_and(|o| is_all(&o["dryRun"])),
        _ => {
            let query = path.split_once('?').map_or("", |(_, query)| query);
            let pairs = parse_query(query);
            let mut values = pairs.iter().filter(|(key, _)| key == "dryRun");
            values.next().is_some_and(|(_, value)| value == "All") && values.next().is_none()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_parses_into_object_or_collection() {
        for (path, collection, name, subresource) in [
            (
                "/api/v1/namespaces/a/pods/b",
                "/api/v1/namespaces/a/pods",
                "b",
                "",
            ),
            ("/api/v1/namespaces/a", "/api/v1/namespaces", "a", ""),
            ("/api/v1/namespaces/a/status", "/api/v1/namespaces", "a", "status"),
            ("/api/v1/pods?limit=5", "/api/v1/pods", "", ""),
            (
                "/apis/g.io/v1/namespaces/a/teams/t/status?fieldManager=x",
                "/apis/g.io/v1/namespaces/a/teams",
                "t",
                "status",
            ),
            ("/apis/g.io/v1/things/t", "/apis/g.io/v1/things", "t", ""),
        ] {
            let target = ApiTarget::parse(path).expect(path);
            assert_eq!(
                (&*target.collection(), &*target.name, &*target.subresource),
                (collection, name, subresource),
                "{path}"
            );
        }
        for path in ["/api/v1", "/apis/g.io/v1", "/healthz", "", "/apis/g.io"] {
            assert_eq!(ApiTarget::parse(path), None, "{path}");
        }
        let list = ApiTarget::parse("/api/v1/pods?labelSelector=a%3Db%2Cc&limit=5").expect("a list");
        assert_eq!(list.parameter("labelSelector"), Some("a=b,c"));
        assert!(list.contains(&ApiTarget::parse("/api/v1/namespaces/a/pods/b").expect("a pod")));
        assert!(!list.contains(&ApiTarget::parse("/api/v1/namespaces/a/services/b").expect("a service")));
    }

    #[test]
    fn dry_run_is_recognized_only_where_the_server_looks_for_it() {
        for (method, path, body, is) in [
            ("POST", "/api/v1/pods?dryRun=All", "{}", true),
            ("PATCH", "/api/v1/pods/a?fieldManager=x&dryRun=All", "{}", true),
            ("PATCH", "/api/v1/pods/dryRun=All", "{}", false),
            ("PATCH", "/api/v1/pods/a?dryRun=all", "{}", false),
            ("PATCH", "/api/v1/pods/a?x=dryRun%3DAll", "{}", false),
            ("PATCH", "/api/v1/pods/a?dryRun=&dryRun=All", "{}", false),
            ("POST", "/api/v1/pods", r#"{"dryRun":["All"]}"#, false),
            ("DELETE", "/api/v1/pods/a", r#"{"dryRun":["All"]}"#, true),
            ("DELETE", "/api/v1/pods/a?dryRun=All", "{}", false),
            ("DELETE", "/api/v1/pods/a?dryRun=All", "", false),
        ] {
            assert_eq!(
                is_dry_run(method, path, body.as_bytes()),
                is,
                "{method} {path} {body}"
            );
        }
    }
}
