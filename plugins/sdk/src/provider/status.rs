//! The state of a service between reconciles, in the status of its object.

use serde_json::{Value, json};

use crate::{Context, Error, KindSpec, Object, outcome::to_json_bytes, slim};

/// The status of a kind that stands for a service. It has a field `phase` (`Option<String>`), which the host maintains, and a
/// field `provider` ([`ProviderStatus`]), which [`ServiceProvider`](super::ServiceProvider) maintains.
pub trait ServiceStatus {
    /// The field `provider`.
    fn provider(&self) -> Option<&ProviderStatus>;
}

/// State of a service that a cleanup needs.
#[ostler_sdk::api]
#[derive(Default)]
pub struct ProviderStatus {
    /// `Installed` from before the first write on a cluster, `Removed` when nothing is left there.
    pub stage: Option<ServiceStage>,
    /// Name of the provider at the first request.
    pub provider_name: Option<String>,
    /// Namespace of the requests and of the Cluster objects.
    pub request_namespace: Option<String>,
}

/// Stage of a service.
#[ostler_sdk::api]
#[derive(Copy, Eq)]
pub enum ServiceStage {
    /// It may be installed, at least in part.
    Installed,
    /// It is removed, and its clusters may be released.
    Removed,
}

impl ProviderStatus {
    pub(super) fn read<S: KindSpec<Status: ServiceStatus>>(object: &Object<S>) -> Self {
        object.status.provider().cloned().unwrap_or_default()
    }

    pub(super) fn provider_name(&self) -> &str {
        self.provider_name.as_deref().unwrap_or_default()
    }

    pub(super) fn request_namespace(&self) -> &str {
        self.request_namespace.as_deref().unwrap_or_default()
    }

    pub(super) fn checkpoint(&self, ctx: &Context) -> Result<(), Error> {
        ctx.checkpoint(&json!({ "provider": self }))
    }

    /// Adds the state to the status fields of the domain, which replace those before. Without any, all fields stay.
    pub(super) fn keep_in(&self, status: &mut Option<Vec<u8>>) {
        if let Some(bytes) = status
            && let Ok(mut fields @ Value::Object(_)) = slim::value(bytes)
        {
            fields["provider"] = json!(self);
            *bytes = to_json_bytes(&fields);
        }
    }
}
