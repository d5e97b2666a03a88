//! `messaging`: messages to named brokers. Declared, and not offered by this host yet.

use tracing::instrument;

use super::Call;
use crate::{
    contract::bindings::{
        messaging::{Host, Message},
        types::Error,
    },
    observe::metrics::HostCall,
};

impl Host for Call {
    #[instrument(
        name = "messaging.publish",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn publish(&mut self, broker: String, message: Message) -> Result<(), Error> {
        self.enter(HostCall::MessagingPublish)?;
        self.takes(message.body.len())?;
        Err(Error::Unsupported(format!(
            "messaging.publish: this host has no brokers yet (asked for `{broker}`)"
        )))
    }
}
