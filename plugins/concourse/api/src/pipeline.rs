use ostler_sdk::{
    api, resource,
    serde_json::{Map, Value},
};

use crate::{ConcourseName, ConfigMapKey, ContainerImage, NamedSpec, ReclaimPolicy, Reference, SecretKey};

/// Values of instance vars by name: any JSON.
pub type InstanceVars = Map<String, Value>;

/// A pipeline: its config, pause, visibility and archival.
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
    /// The Team that owns the pipeline.
    pub team_ref: Reference,
    /// Name of the pipeline in Concourse; defaults to the object's name. A change renames the pipeline, which keeps
    /// its builds.
    pub pipeline_name: Option<ConcourseName>,
    /// Instance vars, which distinguish pipelines of the same name and are available to the config as `((vars))`.
    /// They cannot be changed later.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(with = "Value", extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub instance_vars: InstanceVars,
    /// Source of the config.
    pub config: ConfigSource,
    /// Values of `((vars))` in the config; Concourse resolves the others.
    pub vars: Vec<PipelineVar>,
    /// Pauses the pipeline.
    #[serde(default)]
    pub paused: bool,
    /// Makes the pipeline visible without a login.
    #[serde(default)]
    pub exposed: bool,
    /// Archives the pipeline, which also pauses it.
    #[serde(default)]
    pub archived: bool,
    /// Decides whether the pipeline is deleted from Concourse with this object.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
    /// Suspends reconciliation of this pipeline; nothing is changed in Concourse meanwhile.
    #[serde(default)]
    pub suspend: bool,
    /// Image of the resource type that provides `k8sConfigs`.
    pub k8s_config_image: Option<ContainerImage>,
    /// ConfigMaps and Secrets to provide to the pipeline as resources.
    pub k8s_configs: Vec<K8sConfig>,
}

impl NamedSpec for PipelineSpec {
    fn name_override(&self) -> Option<&str> {
        self.pipeline_name.as_deref()
    }
}

/// Source of a config.
#[api]
#[validation(
    rule = "(has(self.inline) && size(self.inline) > 0 && !has(self.configMapRef)) || ((!has(self.inline) || size(self.inline) == 0) && has(self.configMapRef))",
    message = "exactly one of inline or configMapRef must be set"
)]
pub struct ConfigSource {
    /// The config itself, as YAML.
    pub inline: Option<String>,
    /// Key of a ConfigMap that contains the config as YAML.
    pub config_map_ref: Option<ConfigMapKey>,
}

/// A variable and the source of its value.
#[api]
#[validation(
    rule = "(has(self.value) && self.value != '' ? 1 : 0) + (has(self.valueFrom) ? 1 : 0) + (has(self.configMapRef) ? 1 : 0) == 1",
    message = "exactly one of value, valueFrom or configMapRef must be set"
)]
pub struct PipelineVar {
    /// Name of the variable, as written between the double parentheses.
    #[schemars(length(min = 1))]
    pub name: String,
    /// The value itself.
    pub value: Option<String>,
    /// Key of a Secret that contains the value. The host sends it to Concourse only; the plugin never sees it.
    pub value_from: Option<SecretKey>,
    /// Key of a ConfigMap that contains the value.
    pub config_map_ref: Option<ConfigMapKey>,
}

/// A ConfigMap or Secret to provide to the pipeline.
#[api]
#[validation(
    rule = "(has(self.configMapRef) && !has(self.secretRef)) || (!has(self.configMapRef) && has(self.secretRef))",
    message = "exactly one of configMapRef or secretRef must be set"
)]
pub struct K8sConfig {
    /// Name of the resource in the pipeline.
    pub name: ConcourseName,
    /// The ConfigMap.
    pub config_map_ref: Option<Reference>,
    /// The Secret.
    pub secret_ref: Option<Reference>,
    /// Indicates whether a change triggers the jobs that get the resource.
    #[serde(default)]
    pub trigger: bool,
}

/// Observed state of the pipeline.
#[api]
#[derive(Default)]
pub struct PipelineStatus {
    /// ID of the pipeline in Concourse.
    #[serde(rename = "pipelineID", default, skip_serializing_if = "Option::is_none")]
    pub pipeline_id: Option<i32>,
    /// URL of the server on which this object manages the pipeline. It is recorded before the first write; without it,
    /// the deletion of this object sends no request.
    pub claimed_server: Option<String>,
    /// Name of the pipeline in Concourse.
    pub resolved_name: Option<String>,
    /// Instance vars with which the pipeline was created.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(with = "Value", extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub instance_vars: InstanceVars,
    /// URL of the pipeline's page.
    #[serde(rename = "webURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "uri"))]
    pub web_url: Option<String>,
    /// SHA-256 of the config as written and of the digests of its secrets.
    pub config_hash: Option<String>,
    /// Version that Concourse gave the config with that hash.
    pub config_version: Option<String>,
    /// Warnings of Concourse about that config.
    pub warnings: Vec<String>,
    /// Indicates whether the pipeline is paused.
    pub paused: Option<bool>,
    /// Indicates whether the pipeline is visible without a login.
    pub exposed: Option<bool>,
    /// Indicates whether the pipeline is archived.
    pub archived: Option<bool>,
    /// Account that paused the pipeline.
    pub paused_by: Option<String>,
    /// Time at which the pipeline was paused.
    #[schemars(extend("format" = "date-time"))]
    pub paused_at: Option<String>,
    /// Time of the last change that Concourse recorded.
    #[schemars(extend("format" = "date-time"))]
    pub last_updated: Option<String>,
    /// Number of groups.
    pub group_count: Option<i32>,
    /// Groups of jobs.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub groups: Vec<PipelineGroup>,
    /// Jobs of the pipeline.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub jobs: Vec<PipelineJob>,
    /// Resources of the pipeline.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub resources: Vec<PipelineResource>,
    /// Resource types that the config defines.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub resource_types: Vec<PipelineResourceType>,
}

impl PipelineStatus {
    /// Returns whether the object manages a pipeline. Former builds recorded its ID only.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        self.claimed_server.is_some() || self.pipeline_id.is_some()
    }
}

/// A group of jobs.
#[api]
pub struct PipelineGroup {
    /// Name of the group.
    pub name: String,
    /// Names of its jobs, or patterns of names.
    pub jobs: Vec<String>,
    /// Names of its resources.
    pub resources: Vec<String>,
}

/// A job of the pipeline.
#[api]
pub struct PipelineJob {
    /// Name of the job.
    pub name: String,
    /// Indicates whether the job is paused, if known.
    pub paused: Option<bool>,
    /// Status of its last finished build, if known.
    pub last_build_status: Option<String>,
}

/// A resource of the pipeline.
#[api]
pub struct PipelineResource {
    /// Name of the resource.
    pub name: String,
    /// Type of the resource.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Indicates whether a version is pinned, by the config or temporarily.
    pub pinned: Option<bool>,
}

/// A resource type that the config defines.
#[api]
pub struct PipelineResourceType {
    /// Name of the type.
    pub name: String,
    /// Type of the image's resource.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Indicates whether its containers run privileged.
    pub privileged: Option<bool>,
    /// Tags of the workers that can run it.
    pub tags: Vec<String>,
}
