//! `references`: objects that cannot go while used. Declared, and not offered by this host yet.

use tracing::instrument;

use super::{Call, Named};
use crate::{
    bindings::{references::Host, types},
    metrics::HostCall,
};

impl Host for Call {
    #[instrument(name = "references.hold", target = "spans", level = "trace", skip_all, fields(object = %Named(&r)), err(Debug, level = "trace"))]
    async fn hold(&mut self, r: types::ObjectRef) -> Result<(), types::Error> {
        self.enter(HostCall::ReferencesHold)?;
        let key = self.key(&r)?;
        Err(types::Error::Unsupported(format!(
            "references.hold: this host does not hold objects yet (asked for {key})"
        )))
    }
}
