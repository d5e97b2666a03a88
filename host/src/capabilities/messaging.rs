//! `messaging`: messages to named brokers. Declared, and not offered by this host yet.

use super::Call;
use crate::bindings::{
    messaging::{Host, Message},
    types::Error,
};

impl Host for Call {
    async fn publish(&mut self, broker: String, _: Message) -> Result<(), Error> {
        self.enter()?;
        Err(Error::Unsupported(format!(
            "messaging.publish: this host has no brokers yet (asked for `{broker}`)"
        )))
    }
}
