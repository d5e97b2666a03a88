//! `status`: progress that must survive a crash.

use serde_json::Value;
use tracing::instrument;

use super::Call;
use crate::{
    contract::{
        bindings::{status::Host, types::Error},
        limits::Limit,
    },
    observe::metrics::HostCall,
};

impl Host for Call {
    #[instrument(
        name = "status.checkpoint",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn checkpoint(&mut self, fields: Vec<u8>) -> Result<(), Error> {
        self.reconciling("status.checkpoint")?;
        let (subject, services) = self.enter(HostCall::StatusCheckpoint)?;
        let (key, given) = (subject.key.clone(), subject.object.clone());
        // The version that the component has seen, so that a leader whose cache lags behind the checkpoint of the leader
        // before gets a conflict instead of repeating the effect.
        let seen = self.checkpointed.clone().unwrap_or(given);
        self.takes(fields.len())?;
        if fields.len() > self.terms.limits.status_bytes {
            return Err(self.exceeded(Limit::StatusBytes, "bytes of status fields"));
        }
        let fields: Value =
            serde_json::from_slice(&fields).map_err(|e| Error::Invalid(format!("checkpoint: {e}")))?;
        let Value::Object(mut fields) = fields else {
            return Err(Error::Invalid("checkpoint: a JSON object is expected".into()));
        };
        // The host's own: a plugin can't forge them here either.
        fields.remove("conditions");
        fields.remove("observedGeneration");
        let patched = services
            .writer
            .patch_status_of(&key, &seen, &Value::Object(fields))
            .await?;
        self.counts.api_writes += 1;
        self.checkpointed = Some(patched);
        Ok(())
    }
}
