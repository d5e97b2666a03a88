use ostler_sdk::{api, resource};

use crate::{ReclaimPolicy, Reference};

/// A team and who belongs to it.
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
    /// The Instance the team is on.
    pub instance_ref: Reference,
    /// Name of the team in Concourse; the object's name when there is none. It can be given later, which renames
    /// the team, but not changed.
    #[schemars(
        length(min = 1, max = 100),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    )]
    pub team_name: Option<String>,
    /// Who may do what. Concourse wants at least one role with a member.
    pub roles: Vec<TeamRole>,
    /// Allows deleting the team `main`.
    #[serde(default)]
    pub allow_destroy: bool,
    /// What becomes of the team when this object is deleted.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
    /// Stops reconciling this team; what is in Concourse stays as it is.
    #[serde(default)]
    pub suspend: bool,
}

/// The members of one role.
#[api]
pub struct TeamRole {
    /// What its members may do.
    pub role: Role,
    /// Users, as `connector:name`.
    pub users: Vec<String>,
    /// Groups, as `connector:group`.
    pub groups: Vec<String>,
}

/// A role of Concourse.
#[api]
#[serde(rename_all = "kebab-case")]
#[derive(Copy, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Everything, members included.
    Owner,
    /// Everything but members.
    Member,
    /// Runs and pauses, but doesn't change.
    PipelineOperator,
    /// Looks on.
    Viewer,
}

/// What was found about the team.
#[api]
#[derive(Default)]
pub struct TeamStatus {
    /// Number of the team in Concourse.
    #[serde(rename = "teamID", default, skip_serializing_if = "Option::is_none")]
    pub team_id: Option<i32>,
    /// Name of the team in Concourse.
    pub resolved_name: Option<String>,
    /// URL of the team's page.
    #[serde(
        rename = "webURL",
        skip_deserializing,
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub web_url: Option<String>,
    /// When the team was last written.
    #[schemars(extend("format" = "date-time"))]
    pub last_applied: Option<String>,
    /// What Concourse had to say about it then.
    pub warnings: Vec<String>,
}
