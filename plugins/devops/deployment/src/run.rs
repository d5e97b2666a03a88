//! One reconcile of a deployment: its status as it changes.

use devops_api::{
    ArgoSetting, ArgoSettingSpec, DeploymentPhase, DeploymentRecord, DeploymentRecordSpec,
    DeploymentRecordStatus, DeploymentState, JenkinsSettingSpec, TtlPhase,
};
use ostler_sdk::{Upstream, from_rfc3339, prelude::*, rfc3339};

/// Reason of a failed checkpoint. The effect it precedes has not happened.
pub const CHECKPOINT_FAILED: &str = "CheckpointFailed";

/// Time limits of the phases in seconds, unless the spec has others.
const INITIALIZE_TIMEOUT_SECONDS: i64 = 600;
const BUILD_TIMEOUT_SECONDS: i64 = 3600;
const SYNC_TIMEOUT_SECONDS: i64 = 600;
const VERIFY_TIMEOUT_SECONDS: i64 = 600;

/// One reconcile of a deployment.
pub struct DeploymentRun<'a> {
    pub ctx: &'a Context<'a>,
    pub record: &'a DeploymentRecord,
    /// Start of the reconcile in milliseconds since the Unix epoch. What it has read is not older.
    pub began_at: u64,
    /// The status as it will be written.
    pub status: DeploymentRecordStatus,
}

/// Result of a look at a phase.
pub enum PhaseProgress {
    /// The phase has ended, or the deployment.
    Next,
    /// Something else is waited for.
    Wait { reason: &'static str, message: String },
}

impl PhaseProgress {
    pub fn wait(reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::Wait { reason, message }
    }
}

impl<'a> DeploymentRun<'a> {
    pub fn new(ctx: &'a Context<'a>, record: &'a DeploymentRecord) -> Self {
        Self {
            ctx,
            record,
            began_at: ctx.now(),
            status: record.status.clone(),
        }
    }

    /// Result of the deployment so far.
    pub fn state(&self) -> DeploymentState {
        self.status.state.unwrap_or_default()
    }

    /// ID of the deployment.
    pub fn id(&self) -> &str {
        DeploymentRecordSpec::id(self.record)
    }

    /// Persists the status before an effect that must happen once.
    pub fn checkpoint(&self) -> Result<(), Failure> {
        self.ctx.checkpoint(&self.status).reason(CHECKPOINT_FAILED)
    }

    /// Enters a phase.
    pub fn enter(&mut self, phase: DeploymentPhase, message: &str) {
        self.status.phase = Some(phase);
        self.status.state = Some(DeploymentState::Running);
        self.status.phase_message = Some(message.to_owned());
        self.status.phase_start_time = Some(rfc3339(self.ctx.now() / 1000));
    }

    /// Ends the deployment, in the phase that it has reached.
    pub fn end(&mut self, state: DeploymentState, message: &str) {
        self.status.state = Some(state);
        self.status.phase_message = Some(message.to_owned());
        self.status.completion_time = Some(rfc3339(self.ctx.now() / 1000));
        match state {
            DeploymentState::Success => self.ctx.event("Deployed", message),
            _ => self.ctx.warn("DeploymentEnded", message),
        }
    }

    /// Ends the deployment as failed.
    pub fn fail(&mut self, message: &str) -> Result<PhaseProgress, Failure> {
        self.end(DeploymentState::Failed, message);
        Ok(PhaseProgress::Next)
    }

    /// Waits for the settings, and finds the application among them.
    pub fn initialize(&mut self) -> Result<PhaseProgress, Failure> {
        let namespace = self.record.namespace();
        if let Some(build) = &self.record.spec.build {
            self.ctx
                .require_ready::<JenkinsSettingSpec>(namespace, &build.setting_ref.name)
                .reason("JenkinsSettingNotReady")?;
        }
        let sync = &self.record.spec.sync;
        let Some(setting) = self.argo_setting()? else {
            let message = format!("ArgoSetting {} does not exist.", sync.setting_ref.name);
            return Ok(PhaseProgress::wait("ArgoSettingNotReady", message));
        };
        if !setting
            .spec
            .applications
            .iter()
            .any(|a| a.name == sync.application)
        {
            let message = format!(
                "ArgoSetting {} has no application {}, which spec.sync.application names.",
                sync.setting_ref.name, sync.application
            );
            return self.fail(&message);
        }
        if self.record.spec.build.is_some() {
            self.enter(DeploymentPhase::Building, "Starting the build.");
        } else {
            self.enter(DeploymentPhase::Deploying, "Starting the sync.");
        }
        Ok(PhaseProgress::Next)
    }

    /// The ArgoSetting; none if it does not exist. It need not be Ready, which another application of it may prevent.
    pub fn argo_setting(&self) -> Result<Option<ArgoSetting>, Failure> {
        let name = &self.record.spec.sync.setting_ref.name;
        self.ctx
            .get::<ArgoSettingSpec>(self.record.namespace(), name)
            .reason("ArgoSettingNotReady")
    }

    /// The Jenkins server.
    pub fn jenkins(&self, setting: &str) -> Upstream<'a> {
        self.ctx.upstream(&devops_api::jenkins_upstream(setting))
    }

    /// The message for a phase that has exceeded its time limit.
    pub fn exceeded_limit(&self) -> Option<String> {
        let timeouts = &self.record.spec.timeouts;
        let (what, limit) = match self.status.phase? {
            // The settings may be applied later than the record, which an event creates without a look at them.
            DeploymentPhase::Initializing => (
                "wait for the settings",
                timeouts.initialize_seconds.unwrap_or(INITIALIZE_TIMEOUT_SECONDS),
            ),
            DeploymentPhase::Building => ("build", timeouts.build_seconds.unwrap_or(BUILD_TIMEOUT_SECONDS)),
            DeploymentPhase::Deploying => ("sync", timeouts.sync_seconds.unwrap_or(SYNC_TIMEOUT_SECONDS)),
            DeploymentPhase::Verifying => (
                "verification",
                timeouts.verify_seconds.unwrap_or(VERIFY_TIMEOUT_SECONDS),
            ),
        };
        let start = from_rfc3339(self.status.phase_start_time.as_deref()?)?;
        let elapsed = (self.ctx.now() / 1000).saturating_sub(start);
        let last = self.status.phase_message.as_deref().unwrap_or_default();
        (elapsed >= u64::try_from(limit).unwrap_or_default())
            .then(|| format!("The {what} has not ended within {limit} s. {last}"))
    }

    /// Records that nothing of the deployment is left.
    pub fn finish_ttl(&mut self) {
        if let Some(ttl) = &mut self.status.ttl {
            ttl.phase = TtlPhase::Completed;
            ttl.step = None;
        }
        self.status.url = None;
    }

    /// The condition of a deployment that has ended.
    pub fn ready_condition(&self) -> Condition {
        let message = self.status.phase_message.clone().unwrap_or_default();
        let ttl = self.status.ttl.as_ref().map(|ttl| ttl.phase).unwrap_or_default();
        match (self.state(), ttl) {
            (_, TtlPhase::Cleanup) => {
                Condition::new_false("Ready", "CleanupPending", "The time to live has ended.")
            }
            (_, TtlPhase::Completed) => {
                let message = "The time to live has ended, and nothing of the deployment is left.";
                Condition::new_false("Ready", "CleanedUp", message)
            }
            (DeploymentState::Success, TtlPhase::Monitoring) => Condition::new_true("Ready", "Live", message),
            (DeploymentState::Failed, TtlPhase::Monitoring) => {
                Condition::new_false("Ready", "Failed", message)
            }
            (DeploymentState::Terminated, TtlPhase::Monitoring) => {
                Condition::new_false("Ready", "Terminated", message)
            }
            (DeploymentState::Running, TtlPhase::Monitoring) => {
                Condition::new_false("Ready", "Running", message)
            }
        }
    }
}
