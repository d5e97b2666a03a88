use ostler_sdk::{api, resource};

use crate::{ConcourseName, NamedSpec, ReclaimPolicy, Reference};

/// A team and its members.
#[resource(
    group = "concourse-ci.org",
    version = "v1alpha1",
    kind = "Team",
    namespaced,
    status = TeamStatus,
    shortname = "cct",
    category = "concourse",
    doc = "A team of a Concourse server.",
    printcolumn(name = "Instance", type = "string", json_path = ".spec.instanceRef.name"),
    printcolumn(name = "Team", type = "string", json_path = ".status.resolvedName"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "ID", type = "integer", json_path = ".status.teamID", priority = 1),
    printcolumn(name = "WebURL", type = "string", json_path = ".status.webURL", priority = 1),
    printcolumn(name = "Suspended", type = "boolean", json_path = ".spec.suspend", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(
    rule = "!has(oldSelf.teamName) || (has(self.teamName) && self.teamName == oldSelf.teamName)",
    message = "teamName is immutable"
)]
#[validation(
    rule = "self.instanceRef == oldSelf.instanceRef",
    message = "instanceRef is immutable"
)]
pub struct TeamSpec {
    /// The Instance that hosts the team.
    pub instance_ref: Reference,
    /// Name of the team in Concourse; defaults to the object's name. It can be set later, which renames the team, but
    /// not changed.
    pub team_name: Option<ConcourseName>,
    /// Members by role. Concourse requires at least one role with a member.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["role"]))]
    pub roles: Vec<TeamRole>,
    /// Allows the deletion of the team `main`.
    #[serde(default)]
    pub allow_destroy: bool,
    /// Decides whether the team is deleted from Concourse with this object.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
    /// Suspends reconciliation of this team; nothing is changed in Concourse meanwhile.
    #[serde(default)]
    pub suspend: bool,
}

impl NamedSpec for TeamSpec {
    fn name_override(&self) -> Option<&str> {
        self.team_name.as_deref()
    }
}

/// The members of one role.
#[api]
#[validation(
    rule = "(has(self.users) && size(self.users) > 0) || (has(self.groups) && size(self.groups) > 0)",
    message = "at least one user or group must be set"
)]
pub struct TeamRole {
    /// The role.
    pub role: RoleName,
    /// Users, as `connector:name`.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub users: Vec<String>,
    /// Groups, as `connector:group`.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub groups: Vec<String>,
}

/// A role of Concourse.
#[api]
#[serde(rename_all = "kebab-case")]
#[derive(Copy, Eq, PartialOrd, Ord)]
pub enum RoleName {
    /// Full access, including the members of the team.
    Owner,
    /// Full access to pipelines, without the members of the team.
    Member,
    /// May run and pause pipelines, but not change them.
    PipelineOperator,
    /// Read access.
    Viewer,
}

/// Observed state of the team.
#[api]
#[derive(Default)]
pub struct TeamStatus {
    /// ID of the team in Concourse.
    #[serde(rename = "teamID", default, skip_serializing_if = "Option::is_none")]
    pub team_id: Option<i32>,
    /// URL of the server on which this object manages the team. It is recorded before the first write; without it, the
    /// deletion of this object sends no request.
    pub claimed_server: Option<String>,
    /// Name of the team in Concourse.
    pub resolved_name: Option<String>,
    /// URL of the team's page.
    #[serde(rename = "webURL", default, skip_serializing_if = "Option::is_none")]
    pub web_url: Option<String>,
    /// Time at which the team was last written.
    #[schemars(extend("format" = "date-time"))]
    pub last_applied: Option<String>,
    /// Warnings of Concourse about that write.
    pub warnings: Vec<String>,
}

impl TeamStatus {
    /// Returns whether the object manages a team. Former builds recorded its ID only.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        self.claimed_server.is_some() || self.team_id.is_some()
    }
}
