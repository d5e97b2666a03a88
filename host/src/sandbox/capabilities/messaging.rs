//! `messaging`: messages to brokers, which this host does not support yet.

use tracing::instrument;

use super::Call;
use crate::{
    contract::bindings::{
        messaging::{Host, Message},
        types::{Error, UpstreamRef},
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
    async fn publish(&mut self, broker: UpstreamRef, message: Message) -> Result<(), Error> {
        self.begin_host_call(HostCall::MessagingPublish)?;
        self.charge_bytes_to_host(message.body.len())?;
        Err(Error::Unsupported(format!(
            "messaging.publish yet: the message for broker `{}` was not sent",
            broker.name
        )))
    }
}
