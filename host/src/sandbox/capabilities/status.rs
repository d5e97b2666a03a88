//! `status`: checkpoints of the status, for progress that must survive a crash.

use serde_json::Value;
use tracing::instrument;

use super::PluginCall;
use crate::{
    contract::{
        bindings::{status::Host, types::Error},
        limits::Limit,
    },
    observe::metrics::HostCall,
};

impl Host for PluginCall {
    #[instrument(
        name = "status.checkpoint",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn checkpoint(&mut self, fields: Vec<u8>) -> Result<(), Error> {
        self.context.deny_in_hook("status.checkpoint")?;
        let (target, services) = self.begin_host_call(HostCall::StatusCheckpoint)?;
        let (key, given) = (target.key.clone(), target.object.clone());
        // The version that the component has seen, so that a leader whose cache lags behind the checkpoint of the leader
        // before gets a conflict instead of repeating the effect.
        let seen = self.effects.written.clone().unwrap_or(given);
        self.charge_bytes_to_host(fields.len())?;
        if fields.len() > self.limits().status_bytes {
            return Err(self.limit_exceeded(Limit::StatusBytes, "bytes of status fields"));
        }
        let fields: Value =
            serde_json::from_slice(&fields).map_err(|e| Error::Invalid(format!("checkpoint: {e}")))?;
        let Value::Object(mut fields) = fields else {
            return Err(Error::Invalid("checkpoint: a JSON object is expected".into()));
        };
        // The host maintains both: a component sets neither by a checkpoint.
        fields.remove("conditions");
        fields.remove("observedGeneration");
        let api = self.target_api(&services)?;
        let patched = api
            .writer
            .patch_status_of(&key, &seen, &Value::Object(fields))
            .await?;
        self.effects.counts.api_writes += 1;
        self.effects.written = Some(patched);
        self.effects.fresh_term = services.fence.term();
        Ok(())
    }
}
