//! An open connection to a broker: its idle channels, its loss and its end.

use std::{
    io,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use futures::StreamExt;
use lapin::{Channel, Connection, options::ConfirmSelectOptions};
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connect::OpenConnection;

/// Code and time limit of an orderly close.
pub const CLOSE_SUCCESS: u16 = 200;
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit of the wait for the reason of a loss.
const LOSS_TIMEOUT: Duration = Duration::from_secs(1);

/// An open connection with its idle channels.
pub struct Link {
    connection: Connection,
    /// Channels with confirms, each used by one publish at a time: an error of AMQP closes the whole channel, and would
    /// fail the messages of other plugins on it.
    publishers: Mutex<Vec<Channel>>,
    /// Cancelled when the connection is lost or given up.
    lost: CancellationToken,
    /// Why it was lost, redacted.
    loss: OnceLock<String>,
    /// Cancelled when the connection has ended: the broker has returned its messages to their queues, unless it does not
    /// respond.
    ended: CancellationToken,
    /// Cuts the connection when nothing uses it any more, even if the broker does not respond.
    _cut: DropGuard,
}

impl Link {
    /// Takes a connection that was opened. `on_loss` is called when it is lost, unless nobody uses it by then.
    pub fn start(
        opened: OpenConnection,
        on_loss: impl FnOnce(&Arc<Self>, &lapin::Error) + Send + 'static,
    ) -> Arc<Self> {
        let OpenConnection { connection, cut, .. } = opened;
        let events = connection.events_listener();
        let link = Arc::new(Self {
            connection,
            publishers: Mutex::default(),
            lost: CancellationToken::new(),
            loss: OnceLock::new(),
            ended: CancellationToken::new(),
            _cut: cut.drop_guard(),
        });
        tokio::spawn(Self::watch_loss(Arc::downgrade(&link), events, on_loss));
        link
    }

    async fn watch_loss(
        link: Weak<Self>,
        events: impl futures::Stream<Item = lapin::Event>,
        on_loss: impl FnOnce(&Arc<Self>, &lapin::Error),
    ) {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let Some(link) = link.upgrade() else { return };
            if let lapin::Event::Error(error) = event
                && !link.connection.status().connected()
            {
                return on_loss(&link, &error);
            }
        }
    }

    /// Records why the connection was lost, redacted.
    pub fn record_loss(&self, why: &str) {
        let _ = self.loss.set(why.to_owned());
        self.lost.cancel();
        self.ended.cancel();
    }

    /// The AMQP connection.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits until the connection is lost or given up.
    pub async fn wait_lost(&self) {
        self.lost.cancelled().await;
    }

    /// Why the connection, which has ended, was lost.
    pub async fn describe_loss(&self) -> &str {
        // The consumer may notice it first.
        let _ = tokio::time::timeout(LOSS_TIMEOUT, self.lost.cancelled()).await;
        self.loss.get().map_or("the connection was lost", |why| why)
    }

    /// Gives the connection up: by the close of AMQP first, which keeps the broker's log clean. It is cut when the link is
    /// dropped.
    pub fn close(self: Arc<Self>) {
        self.lost.cancel();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    let closing = self.connection.close(CLOSE_SUCCESS, "closed".into());
                    let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
                    self.ended.cancel();
                });
            }
            Err(_) => self.ended.cancel(),
        }
    }

    /// Awaits an operation of lapin until the connection is lost, which is the error `ConnectionAborted`. lapin never resolves
    /// an acknowledgement that it took after its last command.
    pub async fn await_until_lost<T>(
        &self,
        operation: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<T, lapin::Error> {
        await_until_cancelled(&self.lost, operation).await
    }

    /// Waits until the connection, which is lost or given up, has ended.
    pub async fn wait_end(&self) {
        self.ended.cancelled().await;
    }

    /// Keeps a channel, on which nothing is outstanding, for the next publish.
    pub fn return_publisher(&self, channel: Channel) {
        self.publishers.lock().push(channel);
    }

    /// The connection works, as far as is known.
    pub fn is_open(&self) -> bool {
        self.connection.status().connected() && !self.lost.is_cancelled()
    }

    /// An idle channel with confirms, or a new one.
    pub async fn take_publisher(&self) -> Result<Channel, lapin::Error> {
        let idle = self.publishers.lock().pop();
        if let Some(channel) = idle.filter(|channel| channel.status().connected()) {
            return Ok(channel);
        }
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }
}

/// Awaits an operation until the token is cancelled, which is the error `ConnectionAborted`.
async fn await_until_cancelled<T>(
    token: &CancellationToken,
    operation: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, lapin::Error> {
    tokio::select! {
        // Biased: an operation that has succeeded did so, also if the connection was lost since.
        biased;
        result = operation => result,
        () = token.cancelled() => Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::broker::connect::describe_error;

    #[tokio::test]
    async fn operation_that_never_resolves_ends_with_the_connection() {
        let lost = CancellationToken::new();
        let done = await_until_cancelled(&lost, std::future::ready(Ok(true))).await;
        assert!(done.expect("it succeeded"));
        lost.cancel();
        let stuck = std::future::pending::<Result<bool, lapin::Error>>();
        let error = await_until_cancelled(&lost, stuck)
            .await
            .expect_err("the connection is lost");
        assert_eq!(describe_error(&error), "connection aborted");
        let done = await_until_cancelled(&lost, std::future::ready(Ok(true))).await;
        assert!(done.expect("it had succeeded before the loss was noticed"));
    }
}
