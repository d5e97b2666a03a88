//! Parsing of requests: verb, target and options.

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderMap;
use ostler_selector::{FieldSelector, LabelSelector};
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::status::StatusError;

/// The target of a path below `/api/v1` or `/apis/GROUP/VERSION`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestTarget {
    /// API group, empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural resource name.
    pub resource: String,
    /// Namespace, if the path has one.
    pub namespace: Option<String>,
    /// Object name, if the path has one.
    pub name: Option<String>,
    /// Subresource, if the path has one.
    pub subresource: Option<String>,
}

impl RequestTarget {
    /// Parses a path; `None` for a path without a resource.
    pub fn parse(path: &str) -> Option<Self> {
        let decoded: Vec<String> = path
            .trim_matches('/')
            .split('/')
            .map(|part| {
                percent_decode_str(part)
                    .decode_utf8()
                    .map(|text| text.into_owned())
            })
            .collect::<Result<_, _>>()
            .ok()?;
        let parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, resource, rest) = match rest {
            ["namespaces", name, sub @ ("status" | "finalize")] => {
                return Some(Self {
                    group: group.into(),
                    version: version.into(),
                    resource: "namespaces".into(),
                    namespace: None,
                    name: Some((*name).into()),
                    subresource: Some((*sub).into()),
                });
            }
            ["namespaces", namespace, resource, rest @ ..] => (Some(*namespace), *resource, rest),
            [resource, rest @ ..] => (None, *resource, rest),
            [] => return None,
        };
        let (name, subresource) = match rest {
            [] => (None, None),
            [name] => (Some(*name), None),
            [name, sub] => (Some(*name), Some(*sub)),
            _ => return None,
        };
        Some(Self {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
            namespace: namespace.map(Into::into),
            name: name.map(Into::into),
            subresource: subresource.map(Into::into),
        })
    }

    /// `resource` or `resource/subresource`.
    pub fn resource_with_subresource(&self) -> String {
        match &self.subresource {
            Some(sub) => format!("{}/{sub}", self.resource),
            None => self.resource.clone(),
        }
    }
}

/// The format of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Kubernetes' strategic merge patch, with lists merged by key.
    Strategic,
    /// Server-side apply.
    Apply,
}

/// The verb of a request, as in RBAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestVerb {
    /// Reads one object.
    Get,
    /// Reads a collection.
    List,
    /// Streams changes.
    Watch,
    /// Creates an object.
    Create,
    /// Replaces an object.
    Update,
    /// Patches or applies an object.
    Patch(PatchKind),
    /// Deletes an object.
    Delete,
    /// Deletes a collection.
    DeleteCollection,
}

impl RequestVerb {
    /// The verb of a request on `target`.
    pub fn from_request(
        method: &http::Method,
        target: &RequestTarget,
        query: &QueryParameters,
        headers: &HeaderMap,
    ) -> Result<Self, StatusError> {
        Ok(match (method.as_str(), &target.name) {
            ("GET", _) if query.is_set("watch") && target.subresource.is_none() => Self::Watch,
            ("GET", Some(_)) => Self::Get,
            ("GET", None) => Self::List,
            ("POST", None) => Self::Create,
            // Subresources such as pods/eviction are created on a name.
            ("POST", Some(_)) if target.subresource.is_some() => Self::Create,
            ("PUT", Some(_)) => Self::Update,
            ("DELETE", Some(_)) => Self::Delete,
            ("DELETE", None) => Self::DeleteCollection,
            ("PATCH", Some(_)) => {
                let kind = headers
                    .get(http::header::CONTENT_TYPE)
                    .and_then(|kind| kind.to_str().ok())
                    .unwrap_or_default();
                Self::Patch(match kind.split(';').next().unwrap_or_default().trim() {
                    "application/json-patch+json" => PatchKind::Json,
                    "application/merge-patch+json" => PatchKind::Merge,
                    "application/strategic-merge-patch+json" => PatchKind::Strategic,
                    "application/apply-patch+yaml" | "application/apply-patch+json" => PatchKind::Apply,
                    _ => {
                        return Err(StatusError::unsupported_media_type(
                            "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml",
                        ));
                    }
                })
            }
            _ => return Err(StatusError::method_not_allowed()),
        })
    }

    /// The verb's name in counters, faults and RBAC.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch(PatchKind::Apply) => "apply",
            Self::Patch(_) => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    /// Returns true if the verb may change an object.
    pub fn is_write(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// The query string.
#[derive(Debug, Clone, Default)]
pub struct QueryParameters(BTreeMap<String, String>);

impl QueryParameters {
    /// Parses a query string; of a repeated key, the first value counts.
    pub fn parse(query: Option<&str>) -> Self {
        let mut pairs = BTreeMap::new();
        for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            pairs
                .entry(key.into_owned())
                .or_insert_with(|| value.into_owned());
        }
        Self(pairs)
    }

    /// A non-empty value.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .get(key)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// A boolean, parsed as in apimachinery: present and neither `0` nor `false`.
    pub fn is_set(&self, key: &str) -> bool {
        self.0
            .get(key)
            .is_some_and(|value| !matches!(value.to_ascii_lowercase().as_str(), "0" | "false"))
    }

    fn parse_number<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>, StatusError> {
        self.get(key)
            .map(|text| {
                text.parse()
                    .map_err(|_| StatusError::bad_request(format!("invalid value for {key}: \"{text}\"")))
            })
            .transpose()
    }

    /// Returns true for a dry run.
    pub fn is_dry_run(&self) -> Result<bool, StatusError> {
        match self.get("dryRun") {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(other) => Err(StatusError::new(
                422,
                "Invalid",
                format!("dryRun: Unsupported value: \"{other}\": supported values: \"All\""),
            )),
        }
    }

    /// The options of a list or a watch.
    pub fn parse_list_options(&self) -> Result<ListOptions, StatusError> {
        let revision = match self.get("resourceVersion") {
            None => None,
            Some(text) => Some(text.parse().map_err(|_| {
                StatusError::bad_request(format!("invalid resource version \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"))
            })?),
        };
        let revision_match = self.get("resourceVersionMatch").map(str::to_owned);
        Ok(ListOptions {
            labels: LabelSelector::parse(self.get("labelSelector").unwrap_or_default())
                .map_err(|e| StatusError::bad_request(format!("unable to parse requirement: {e}")))?,
            fields: FieldSelector::parse(self.get("fieldSelector").unwrap_or_default())
                .map_err(|e| StatusError::bad_request(format!("invalid selector: {e}")))?,
            limit: self
                .parse_number::<i64>("limit")?
                .and_then(|limit| usize::try_from(limit).ok())
                .filter(|limit| *limit > 0),
            resume: self.get("continue").map(str::to_owned),
            revision,
            exact: revision_match.as_deref() == Some("Exact"),
            revision_match,
            bookmarks: self.is_set("allowWatchBookmarks"),
            initial_events: self
                .0
                .contains_key("sendInitialEvents")
                .then(|| self.is_set("sendInitialEvents")),
            timeout: self.parse_number("timeoutSeconds")?.map(Duration::from_secs),
        })
    }
}

/// The options of a list or a watch.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// `labelSelector`.
    pub labels: LabelSelector,
    /// `fieldSelector`.
    pub fields: FieldSelector,
    /// Page size.
    pub limit: Option<usize>,
    /// PageToken of the next page.
    pub resume: Option<String>,
    /// `resourceVersion`.
    pub revision: Option<u64>,
    /// `resourceVersionMatch=Exact`.
    pub exact: bool,
    /// `resourceVersionMatch` as given.
    pub revision_match: Option<String>,
    /// `allowWatchBookmarks`.
    pub bookmarks: bool,
    /// `sendInitialEvents`, if given.
    pub initial_events: Option<bool>,
    /// `timeoutSeconds`.
    pub timeout: Option<Duration>,
}

impl ListOptions {
    /// Both selectors select the object.
    pub fn selects(&self, object: &Value) -> bool {
        self.labels.matches(&object["metadata"]["labels"]) && self.fields.matches_json(object)
    }
}

/// The representation of objects in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseShape {
    /// The whole object.
    Object,
    /// `PartialObjectMetadata`: metadata only.
    Partial,
    /// `Table`, for `kubectl get`.
    Table,
}

impl ResponseShape {
    /// The first representation of the `Accept` header that this server supports.
    pub fn negotiate(headers: &HeaderMap) -> Result<Self, StatusError> {
        let Some(accept) = headers
            .get(http::header::ACCEPT)
            .and_then(|accept| accept.to_str().ok())
        else {
            return Ok(Self::Object);
        };
        for offer in accept.split(',') {
            let mut parts = offer.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            if !matches!(media, "application/json" | "*/*" | "application/*" | "") {
                continue;
            }
            let options: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
            let known_version = matches!(options.get("v"), Some(&"v1" | &"v1beta1"));
            match options.get("as") {
                None => return Ok(Self::Object),
                Some(&"Table") if known_version => return Ok(Self::Table),
                Some(&("PartialObjectMetadata" | "PartialObjectMetadataList")) if known_version => {
                    return Ok(Self::Partial);
                }
                Some(_) => {}
            }
        }
        Err(StatusError::new(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json, application/yaml",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_parsed_into_target() {
        let pod = RequestTarget::parse("/api/v1/namespaces/a/pods/x/status").unwrap();
        assert_eq!(
            (
                pod.resource.as_str(),
                pod.namespace.as_deref(),
                pod.subresource.as_deref()
            ),
            ("pods", Some("a"), Some("status"))
        );
        let ns = RequestTarget::parse("/api/v1/namespaces/a/finalize").unwrap();
        assert_eq!(
            (
                ns.resource.as_str(),
                ns.name.as_deref(),
                ns.subresource.as_deref()
            ),
            ("namespaces", Some("a"), Some("finalize"))
        );
        let team = RequestTarget::parse("/apis/concourse-ci.org/v1alpha1/teams").unwrap();
        assert_eq!(
            (team.group.as_str(), team.resource.as_str(), team.name),
            ("concourse-ci.org", "teams", None)
        );
        assert_eq!(RequestTarget::parse("/apis/concourse-ci.org/v1alpha1"), None);
        assert_eq!(RequestTarget::parse("/version"), None);
    }

    #[test]
    fn first_supported_media_type_is_negotiated() {
        let accept = |text: &'static str| {
            ResponseShape::negotiate(&HeaderMap::from_iter([(
                http::header::ACCEPT,
                http::HeaderValue::from_static(text),
            )]))
        };
        assert_eq!(
            accept("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
            Ok(ResponseShape::Table)
        );
        assert_eq!(
            accept("application/vnd.kubernetes.protobuf,application/json"),
            Ok(ResponseShape::Object)
        );
        assert_eq!(
            accept("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
            Ok(ResponseShape::Partial)
        );
        assert_eq!(
            accept("application/vnd.kubernetes.protobuf").map_err(|e| e.code),
            Err(406)
        );
    }
}
