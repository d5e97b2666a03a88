//! The security context of a step's process. The defaults meet the Pod Security Standard *restricted*.

use ostler_sdk::api;

/// Security options of the process's container. What is not set is restricted.
#[api]
#[derive(Default)]
#[validation(
    rule = "!has(self.privileged) || !self.privileged || (has(self.allowPrivilegeEscalation) && self.allowPrivilegeEscalation)",
    message = "privileged needs allowPrivilegeEscalation: true"
)]
#[validation(
    rule = "!has(self.runAsUser) || self.runAsUser != 0 || (has(self.runAsNonRoot) && !self.runAsNonRoot)",
    message = "runAsUser 0 needs runAsNonRoot: false"
)]
pub struct StepSecurityContext {
    /// User ID of the process; defaults to 65532.
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub run_as_user: Option<i64>,
    /// Group ID of the process; defaults to the user ID.
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub run_as_group: Option<i64>,
    /// Refuses to run as root; defaults to true.
    pub run_as_non_root: Option<bool>,
    /// Lets the process gain privileges, as with sudo; defaults to false.
    pub allow_privilege_escalation: Option<bool>,
    /// Runs the process with the privileges of the node; defaults to false.
    pub privileged: Option<bool>,
    /// Makes the root file system read-only; defaults to false.
    pub read_only_root_filesystem: Option<bool>,
    /// Capabilities; all are dropped by default.
    pub capabilities: Option<StepCapabilities>,
}

/// Linux capabilities.
#[api]
#[derive(Default)]
pub struct StepCapabilities {
    /// Capabilities to add, such as NET_BIND_SERVICE.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub add: Vec<String>,
}
