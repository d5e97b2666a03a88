//! `ostler suspend` and `ostler resume`: the reconciliation of an object, or of all objects of a plugin.

use clap::Args;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{ask::NamespaceArguments, connection::HostAddress, object_api::find_api};
use crate::{
    admin::explain::ObjectExplanation,
    kube::well_known::{COMMAND_FIELD_MANAGER, annotation},
    plugin,
};

/// Arguments of `ostler suspend` and `ostler resume`.
///
/// The command writes the annotation `ostler.dev/paused` of an object, or the field `spec.suspend` of a Plugin, with your own rights at the
/// cluster of the kubeconfig.
#[derive(Args)]
#[command(
    after_help = "Exit codes:\n  0  the objects were written\n  1  object or host not found, or you may not change the object"
)]
pub struct SuspendCommand {
    #[command(flatten)]
    objects: NamespaceArguments,
    #[command(flatten)]
    server: HostAddress,
}

impl SuspendCommand {
    /// Suspends or resumes the objects.
    pub async fn run(self, suspend: bool) -> anyhow::Result<()> {
        let host = self.server.connect().await?;
        let client = kube::Client::try_from(self.server.cluster.context.load().await?)?;
        let parameters = PatchParams {
            field_manager: Some(COMMAND_FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        for named in self.objects.queries() {
            // The host knows the kind and the namespace.
            let (object, query) = named?;
            let found: ObjectExplanation = host.get("/explain", &query).await?;
            let api = find_api(&client, &found.kind, &found.namespace).await?;
            let is_plugin = found.kind == plugin::kind().to_string();
            let patch = Patch::Merge(build_patch(is_plugin, suspend));
            api.patch(&found.name, &parameters, &patch).await?;
            println!("{object} {}", if suspend { "suspended" } else { "resumed" });
        }
        Ok(())
    }
}

/// The merge patch of a Plugin, or of any other object.
fn build_patch(is_plugin: bool, suspend: bool) -> Value {
    match is_plugin {
        true => json!({"spec": {"suspend": suspend}}),
        false => json!({"metadata": {"annotations": {annotation::PAUSED: suspend.then_some("true")}}}),
    }
}
