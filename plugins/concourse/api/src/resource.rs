use std::collections::BTreeMap;

use ostler_sdk::{api, resource};

use crate::{ConcourseName, NamedSpec, Reference};

/// Fields of a version, which depend on the type of the resource, such as `ref: 61cbef`.
pub type VersionFields = BTreeMap<String, String>;

/// A resource of a pipeline: its pin, its disabled versions and its checks.
///
/// A new value of the annotation `concourse-ci.org/check-now` triggers one check.
#[resource(
    group = "concourse-ci.org",
    version = "v1alpha1",
    kind = "Resource",
    namespaced,
    status = ResourceStatus,
    shortname = "ccr",
    category = "concourse",
    doc = "A resource of a Concourse pipeline. A new value of the annotation concourse-ci.org/check-now triggers a check.",
    printcolumn(name = "Pipeline", type = "string", json_path = ".spec.pipelineRef.name"),
    printcolumn(name = "Resource", type = "string", json_path = ".status.resolvedName"),
    printcolumn(name = "Pinned", type = "boolean", json_path = ".status.pinned"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Check", type = "string", json_path = ".status.conditions[?(@.type==\"CheckHealthy\")].status", priority = 1),
    printcolumn(name = "LastChecked", type = "date", json_path = ".status.lastChecked", priority = 1),
    printcolumn(name = "WebURL", type = "string", json_path = ".status.webURL", priority = 1),
    printcolumn(name = "Suspended", type = "boolean", json_path = ".spec.suspend", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(
    rule = "has(self.resourceName) == has(oldSelf.resourceName) && (!has(self.resourceName) || self.resourceName == oldSelf.resourceName)",
    message = "resourceName is immutable"
)]
#[validation(
    rule = "self.pipelineRef == oldSelf.pipelineRef",
    message = "pipelineRef is immutable"
)]
#[validation(
    rule = "!has(self.checkInterval) || duration(self.checkInterval) > duration('0s')",
    message = "checkInterval must be a duration such as 1m"
)]
pub struct ResourceSpec {
    /// The Pipeline that contains the resource.
    pub pipeline_ref: Reference,
    /// Name of the resource in Concourse; defaults to the object's name.
    pub resource_name: Option<ConcourseName>,
    /// Version to pin: enough of its fields to identify it. When this is removed, a pin that this object has set is
    /// removed, too; the pin of another user stays.
    #[schemars(extend("minProperties" = 1))]
    pub pinned_version: Option<VersionFields>,
    /// Comment on the pin in Concourse. If unset, the comment on a pin that this object has set is cleared.
    #[schemars(length(max = 512))]
    pub pin_comment: Option<String>,
    /// Versions that no build may use: all that have these fields. A version that is removed from the list is enabled
    /// again, unless another user had disabled it.
    #[schemars(length(max = 32), extend("items" = {
        "type": "object", "minProperties": 1, "additionalProperties": { "type": "string" },
        "description": "Fields that the versions to disable have.",
    }))]
    pub disabled_versions: Vec<VersionFields>,
    /// Interval between checks that this object triggers in addition to Concourse's own; none are triggered if unset.
    /// One below 10s or above 168h counts as that limit.
    #[schemars(extend("type" = "string"))]
    pub check_interval: Option<String>,
    /// Suspends reconciliation of this resource; nothing is changed in Concourse meanwhile.
    #[serde(default)]
    pub suspend: bool,
}

impl NamedSpec for ResourceSpec {
    fn name_override(&self) -> Option<&str> {
        self.resource_name.as_deref()
    }
}

/// Observed state of the resource.
#[api]
#[derive(Default)]
pub struct ResourceStatus {
    /// Name of the resource in Concourse.
    pub resolved_name: Option<String>,
    /// URL of the resource's page.
    #[serde(rename = "webURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "uri"))]
    pub web_url: Option<String>,
    /// Type of the resource.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Time of the last check, triggered by Concourse or by a user.
    #[schemars(extend("format" = "date-time"))]
    pub last_checked: Option<String>,
    /// The newest version.
    pub latest_version: BTreeMap<String, String>,
    /// Indicates whether a version is pinned, by this object, the config or a user.
    pub pinned: Option<bool>,
    /// Indicates whether the pipeline's config pins the version.
    pub pinned_in_config: Option<bool>,
    /// The pinned version.
    pub pinned_version: BTreeMap<String, String>,
    /// ID of that version in Concourse, if spec.pinnedVersion matches it.
    #[serde(rename = "pinnedVersionID", default, skip_serializing_if = "Option::is_none")]
    pub pinned_version_id: Option<i64>,
    /// Indicates whether this object has set the pin, which is then removed when the object is deleted.
    pub pin_owned: Option<bool>,
    /// IDs of the versions that this object has disabled; they are enabled again when it is deleted.
    #[serde(rename = "disabledVersionIDs", default, skip_serializing_if = "Vec::is_empty")]
    pub disabled_version_ids: Vec<i64>,
    /// URL of the server on which this object has set the pin and disabled the versions.
    pub claimed_server: Option<String>,
    /// ID of the build of the last check that ended.
    #[serde(rename = "checkBuildID", default, skip_serializing_if = "Option::is_none")]
    pub check_build_id: Option<i64>,
    /// Status of that build.
    pub check_status: Option<String>,
    /// ID of the build of a running check that this object has triggered.
    #[serde(rename = "runningCheckID", default, skip_serializing_if = "Option::is_none")]
    pub running_check_id: Option<i64>,
    /// Time at which this object last triggered a check.
    #[schemars(extend("format" = "date-time"))]
    pub check_requested: Option<String>,
    /// Value of the annotation concourse-ci.org/check-now that triggered the last check.
    pub check_now: Option<String>,
}
