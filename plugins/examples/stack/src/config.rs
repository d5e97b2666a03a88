//! The configuration of the plugin, and what a Stack is made of besides its spec.

use ostler_sdk::{prelude::*, provision::HelmDriver};

use crate::{Stack, objects::DEFAULTS_NAME};

/// The configuration (`config` in plugin.yaml).
#[ostler_sdk::api]
pub struct StackConfig {
    /// Namespace of the ConfigMap with the defaults.
    pub defaults_namespace: Option<String>,
    /// Tool that deploys charts.
    pub charts: Option<Charts>,
    /// Place on another cluster where Stacks are registered.
    pub registry: Option<StackRegistry>,
}

/// The place on another cluster where Stacks are registered.
#[ostler_sdk::api]
pub struct StackRegistry {
    /// Namespace and name of the Cluster.
    pub cluster: String,
    /// Namespace there.
    pub namespace: String,
}

/// The tool that deploys charts.
#[ostler_sdk::api]
pub struct Charts {
    driver: Driver,
    /// Namespace of its custom resources.
    pub namespace: String,
    project: Option<String>,
}

#[ostler_sdk::api]
enum Driver {
    #[serde(rename = "ArgoCD")]
    ArgoCd,
    Flux,
}

impl Charts {
    /// The driver of the SDK.
    pub fn driver(&self) -> HelmDriver<'_> {
        match self.driver {
            Driver::ArgoCd => HelmDriver::ArgoCd {
                project: self.project.as_deref().unwrap_or("default"),
            },
            Driver::Flux => HelmDriver::Flux,
        }
    }
}

/// What a Stack is made of besides its spec.
pub struct StackInputs {
    /// Number of Pods where the Stack does not set it.
    pub replicas: u32,
    /// Digest of the value of its Secret; none without one.
    pub secret_digest: Option<String>,
}

impl Default for StackInputs {
    fn default() -> Self {
        Self {
            replicas: 1,
            secret_digest: None,
        }
    }
}

impl StackInputs {
    /// Reads the inputs. A change of one reconciles each Stack that it is for.
    pub fn read(ctx: &Context, stack: &Stack, config: &StackConfig) -> Result<Self, Failure> {
        let mut inputs = Self::default();
        if let Some(namespace) = &config.defaults_namespace {
            let reference = gvk("", "v1", "ConfigMap").named(namespace, DEFAULTS_NAME);
            let found = ctx.get_json(&reference)?.unwrap_or_default();
            let replicas = found["data"]["replicas"]
                .as_str()
                .and_then(|text| text.parse().ok());
            inputs.replicas = replicas.unwrap_or(inputs.replicas);
        }
        if let Some(secret) = &stack.spec.secret {
            inputs.secret_digest = match ctx.secret_digest(&secret.name, &secret.key) {
                Ok(digest) => digest,
                Err(Error::NotFound(_)) => None,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(inputs)
    }
}
