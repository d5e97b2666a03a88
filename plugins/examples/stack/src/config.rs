//! The configuration of the plugin, and the defaults of an administrator.

use ostler_sdk::{duration, prelude::*, provision::HelmDriver};

use crate::objects::DEFAULTS_NAME;

/// The configuration (`config` in plugin.yaml).
#[ostler_sdk::api]
pub struct Config {
    wait_interval: Option<String>,
    /// Namespace of the ConfigMap with the defaults.
    pub defaults_namespace: Option<String>,
    /// Tool that deploys charts.
    pub charts: Option<Charts>,
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

/// Defaults of fields that a Stack does not set.
pub struct Defaults {
    /// Number of Pods.
    pub replicas: u32,
}

impl Default for Defaults {
    fn default() -> Self {
        Self { replicas: 1 }
    }
}

impl Config {
    /// Parses the interval of waits into milliseconds; none for that of the host.
    pub fn parse_interval(&self) -> Result<Option<u64>, Failure> {
        let Some(text) = &self.wait_interval else {
            return Ok(None);
        };
        let interval = duration(text).filter(|interval| *interval > 0);
        let failure = || Failure::terminal("InvalidConfig", "waitInterval is no duration such as 30s");
        interval.map(Some).ok_or_else(failure)
    }

    /// Reads the defaults. A change of the ConfigMap reconciles each Stack.
    pub fn read_defaults(&self, ctx: &Context) -> Result<Defaults, Failure> {
        let mut defaults = Defaults::default();
        if let Some(namespace) = &self.defaults_namespace {
            let reference = gvk("", "v1", "ConfigMap").named(namespace, DEFAULTS_NAME);
            let found = ctx.get_json(&reference)?.unwrap_or_default();
            let replicas = found["data"]["replicas"]
                .as_str()
                .and_then(|text| text.parse().ok());
            defaults.replicas = replicas.unwrap_or(defaults.replicas);
        }
        Ok(defaults)
    }
}
