use std::collections::BTreeMap;

use ostler_sdk::{api, resource};

use crate::Reference;

/// A version, as the type of the resource has it: `ref: 61cbef`.
pub type Version = BTreeMap<String, String>;

/// A resource of a pipeline: its pin, its disabled versions, and how it is checked.
///
/// A new value of the annotation `concourse-ci.org/check-now` has it checked once.
#[resource(
    group = "concourse-ci.org",
    version = "v1alpha1",
    kind = "Resource",
    namespaced,
    status = ResourceObservation,
    shortname = "ccr",
    category = "concourse",
    doc = "A resource of a Concourse pipeline. A new value of the annotation concourse-ci.org/check-now has it checked.",
    printcolumn(name = "Pipeline", type = "string", json_path = ".spec.pipelineRef.name"),
    printcolumn(name = "Resource", type = "string", json_path = ".status.resolvedName"),
    printcolumn(name = "Pinned", type = "boolean", json_path = ".status.pinned"),
    printcolumn(name = "Healthy", type = "string", json_path = ".status.conditions[?(@.type==\"CheckHealthy\")].status"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "LastChecked", type = "date", json_path = ".status.lastChecked"),
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
    rule = "!has(self.checkInterval) || (duration(self.checkInterval) >= duration('10s') && duration(self.checkInterval) <= duration('168h'))",
    message = "checkInterval must be between 10s and 168h"
)]
pub struct ResourceSpec {
    /// The Pipeline the resource belongs to.
    pub pipeline_ref: Reference,
    /// Name of the resource in Concourse; the object's name when there is none.
    #[schemars(
        length(min = 1, max = 100),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    )]
    pub resource_name: Option<String>,
    /// The version to pin it to: as many fields as tell it from the others. When this is taken away, the pin that
    /// this object has set goes; one that somebody else has set stays.
    #[schemars(extend("minProperties" = 1))]
    pub pinned_version: Option<Version>,
    /// Why it is pinned, as Concourse shows it. Of a pin that this object has set none clears it.
    #[schemars(length(max = 512))]
    pub pin_comment: Option<String>,
    /// Versions that no build may use: all that have these fields. One that is taken from here is enabled again,
    /// unless somebody else had disabled it.
    #[schemars(length(max = 32), extend("items" = {
        "type": "object", "minProperties": 1, "additionalProperties": { "type": "string" },
        "description": "The fields that tell which versions are meant.",
    }))]
    pub disabled_versions: Vec<Version>,
    /// How often this object has it checked, between 10s and 168h, beside Concourse's own checks; never when there
    /// is none.
    #[schemars(extend("type" = "string"))]
    pub check_interval: Option<String>,
    /// Stops reconciling this resource; what is in Concourse stays as it is.
    #[serde(default)]
    pub suspend: bool,
}

/// What was found about the resource.
#[api]
#[derive(Default)]
pub struct ResourceObservation {
    /// Name of the resource in Concourse.
    #[serde(skip_deserializing)]
    pub resolved_name: Option<String>,
    /// URL of the resource's page.
    #[serde(
        rename = "webURL",
        skip_deserializing,
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("format" = "uri"))]
    pub web_url: Option<String>,
    /// Type of the resource.
    #[serde(
        rename = "type",
        skip_deserializing,
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub kind: Option<String>,
    /// When it was last checked, by whomever.
    #[schemars(extend("format" = "date-time"))]
    #[serde(skip_deserializing)]
    pub last_checked: Option<String>,
    /// The newest version.
    #[serde(skip_deserializing)]
    pub latest_version: BTreeMap<String, String>,
    /// Whether it is pinned, by whomever.
    #[serde(skip_deserializing)]
    pub pinned: Option<bool>,
    /// Whether it is its config that pins it.
    #[serde(skip_deserializing)]
    pub pinned_in_config: Option<bool>,
    /// The version it is pinned to.
    pub pinned_version: BTreeMap<String, String>,
    /// Number of that version in Concourse, when spec.pinnedVersion names it.
    #[serde(rename = "pinnedVersionID", default, skip_serializing_if = "Option::is_none")]
    pub pinned_version_id: Option<i64>,
    /// Whether the pin is this object's; then it goes with it.
    pub pin_owned: Option<bool>,
    /// Numbers of the versions this object has disabled; they are enabled again when it is deleted.
    #[serde(rename = "disabledVersionIDs", default, skip_serializing_if = "Vec::is_empty")]
    pub disabled_version_ids: Vec<i64>,
    /// Number of the build of the last check that ended.
    #[serde(rename = "checkBuildID", default, skip_serializing_if = "Option::is_none")]
    pub check_build_id: Option<i64>,
    /// Status of that build.
    pub check_status: Option<String>,
    /// Number of the build of the check that this object has asked for, while it runs.
    #[serde(rename = "runningCheckID", default, skip_serializing_if = "Option::is_none")]
    pub running_check_id: Option<i64>,
    /// When this object last asked for a check.
    #[schemars(extend("format" = "date-time"))]
    pub check_requested: Option<String>,
    /// The value of the annotation concourse-ci.org/check-now that was acted upon last.
    pub check_now: Option<String>,
}
