//! The API types of the steps pack (`steps.ostler.dev/v1alpha1`).

#[cfg(not(target_arch = "wasm32"))]
mod crds;
mod security;
mod step;

#[cfg(not(target_arch = "wasm32"))]
pub use crds::crds;
pub use ostler_sdk::{LocalReference, SecretKey};
pub use security::{StepCapabilities, StepSecurityContext};
pub use step::{
    EnvVariable, ImagePullPolicy, PodLostPolicy, PodState, Step, StepArtifact, StepInput, StepOutput,
    StepPhase, StepProcess, StepResources, StepSpec, StepStatus,
};
