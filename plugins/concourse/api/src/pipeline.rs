use ostler_sdk::{api, resource, serde_json::Value};

use crate::{ConfigMapKey, ContainerImage, ReclaimPolicy, Reference, SecretKey};

/// A pipeline: its config, and whether it is paused, exposed and archived.
#[resource(
    group = "concourse-ci.org",
    version = "v1alpha1",
    kind = "Pipeline",
    namespaced,
    status = PipelineStatus,
    shortname = "ccp",
    category = "concourse",
    doc = "A pipeline of a Concourse team.",
    printcolumn(name = "Team", type = "string", json_path = ".spec.teamRef.name"),
    printcolumn(name = "Pipeline", type = "string", json_path = ".status.resolvedName"),
    printcolumn(name = "Paused", type = "boolean", json_path = ".status.paused"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Exposed", type = "boolean", json_path = ".status.exposed", priority = 1),
    printcolumn(name = "Archived", type = "boolean", json_path = ".status.archived", priority = 1),
    printcolumn(name = "Synced", type = "string", json_path = ".status.conditions[?(@.type==\"ConfigSynced\")].status", priority = 1),
    printcolumn(name = "WebURL", type = "string", json_path = ".status.webURL", priority = 1),
    printcolumn(name = "Suspended", type = "boolean", json_path = ".spec.suspend", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(rule = "self.teamRef == oldSelf.teamRef", message = "teamRef is immutable")]
pub struct PipelineSpec {
    /// The Team the pipeline belongs to.
    pub team_ref: Reference,
    /// Name of the pipeline in Concourse; the object's name when there is none. When it changes the pipeline is
    /// renamed, with its builds.
    #[schemars(
        length(min = 1, max = 100),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    )]
    pub pipeline_name: Option<String>,
    /// Instance vars: they tell pipelines of one name apart, and their config can use them as `((vars))`. They
    /// cannot be changed later.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub instance_vars: Value,
    /// Where the config comes from.
    pub config: ConfigSource,
    /// Values for the `((vars))` of the config; others are left to Concourse.
    pub vars: Vec<PipelineVar>,
    /// Whether the pipeline is paused.
    #[serde(default)]
    pub paused: bool,
    /// Whether everybody may see the pipeline.
    #[serde(default)]
    pub exposed: bool,
    /// Whether the pipeline is archived; an archived one is paused, too.
    #[serde(default)]
    pub archived: bool,
    /// What becomes of the pipeline when this object is deleted.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
    /// Stops reconciling this pipeline; what is in Concourse stays as it is.
    #[serde(default)]
    pub suspend: bool,
    /// Image of the resource type that brings in `k8sConfigs`.
    pub k8s_config_image: Option<ContainerImage>,
    /// ConfigMaps and Secrets to bring into the pipeline as resources.
    pub k8s_configs: Vec<K8sConfig>,
}

/// Where a config comes from.
#[api]
#[validation(
    rule = "(has(self.inline) && size(self.inline) > 0 && !has(self.configMapRef)) || ((!has(self.inline) || size(self.inline) == 0) && has(self.configMapRef))",
    message = "exactly one of inline or configMapRef must be set"
)]
pub struct ConfigSource {
    /// The config itself, as YAML.
    pub inline: Option<String>,
    /// A ConfigMap's key that holds the config as YAML.
    pub config_map_ref: Option<ConfigMapKey>,
}

/// The value of one variable.
#[api]
#[validation(
    rule = "(has(self.value) && self.value != '' ? 1 : 0) + (has(self.valueFrom) ? 1 : 0) + (has(self.configMapRef) ? 1 : 0) == 1",
    message = "exactly one of value, valueFrom or configMapRef must be set"
)]
pub struct PipelineVar {
    /// Name of the variable, as between the double parentheses.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Its value.
    pub value: Option<String>,
    /// A Secret's key that holds the value. It reaches Concourse, and nothing else.
    pub value_from: Option<SecretKey>,
    /// A ConfigMap's key that holds the value.
    pub config_map_ref: Option<ConfigMapKey>,
}

/// A ConfigMap or Secret to bring into the pipeline.
#[api]
#[validation(
    rule = "(has(self.configMapRef) && !has(self.secretRef)) || (!has(self.configMapRef) && has(self.secretRef))",
    message = "exactly one of configMapRef or secretRef must be set"
)]
pub struct K8sConfig {
    /// Name of the resource in the pipeline.
    #[schemars(
        length(min = 1, max = 100),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    )]
    pub name: String,
    /// The ConfigMap.
    pub config_map_ref: Option<Reference>,
    /// The Secret.
    pub secret_ref: Option<Reference>,
    /// Whether a change of it triggers the jobs that get it.
    #[serde(default)]
    pub trigger: bool,
}

/// What was found about the pipeline.
#[api]
#[derive(Default)]
pub struct PipelineStatus {
    /// Number of the pipeline in Concourse.
    #[serde(rename = "pipelineID", default, skip_serializing_if = "Option::is_none")]
    pub pipeline_id: Option<i32>,
    /// Name of the pipeline in Concourse.
    pub resolved_name: Option<String>,
    /// Instance vars the pipeline was made with.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub instance_vars: Value,
    /// URL of the pipeline's page.
    #[serde(rename = "webURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "uri"))]
    pub web_url: Option<String>,
    /// SHA-256 of the config as written, with digests in place of secrets.
    pub config_hash: Option<String>,
    /// Concourse's version of the config with that hash.
    pub config_version: Option<String>,
    /// What Concourse had to say about that config.
    pub warnings: Vec<String>,
    /// Whether it is paused.
    pub paused: Option<bool>,
    /// Whether everybody may see it.
    pub exposed: Option<bool>,
    /// Whether it is archived.
    pub archived: Option<bool>,
    /// Who paused it.
    pub paused_by: Option<String>,
    /// When it was paused.
    #[schemars(extend("format" = "date-time"))]
    pub paused_at: Option<String>,
    /// When Concourse last recorded a change of it.
    #[schemars(extend("format" = "date-time"))]
    pub last_updated: Option<String>,
    /// Number of its groups.
    pub group_count: Option<i32>,
    /// Its groups.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub groups: Vec<GroupStatus>,
    /// Its jobs.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub jobs: Vec<JobStatus>,
    /// Its resources.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub resources: Vec<ResourceStatus>,
    /// The resource types it brings.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub resource_types: Vec<ResourceTypeStatus>,
}

/// A group of jobs.
#[api]
pub struct GroupStatus {
    /// Name of the group.
    pub name: String,
    /// Its jobs, or patterns of their names.
    pub jobs: Vec<String>,
    /// Its resources.
    pub resources: Vec<String>,
}

/// A job.
#[api]
pub struct JobStatus {
    /// Name of the job.
    pub name: String,
    /// Whether it is paused, where known.
    pub paused: Option<bool>,
    /// Status of its last finished build, where known.
    pub last_build_status: Option<String>,
}

/// A resource.
#[api]
pub struct ResourceStatus {
    /// Name of the resource.
    pub name: String,
    /// Its type.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Whether a version is pinned, in the config or for a while.
    pub pinned: Option<bool>,
}

/// A resource type.
#[api]
pub struct ResourceTypeStatus {
    /// Name of the type.
    pub name: String,
    /// The type it is made of.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Whether it runs privileged.
    pub privileged: Option<bool>,
    /// Tags of the workers it needs.
    pub tags: Vec<String>,
}
