//! The JSON lines of a watch response.

use std::time::Duration;

use futures::StreamExt;
use http_body_util::BodyExt;
use kube::client::Body;
use tracing::debug;

use crate::client::api::{ApiError, ResponseBounds};

/// The JSON lines of a watch response.
pub(super) struct JsonLines {
    body: http_body_util::BodyDataStream<Body>,
    buffer: Vec<u8>,
    /// Length of the part of the buffer that has been returned.
    consumed: usize,
    /// Length of the part of the buffer that contains no further line end.
    scanned: usize,
    /// Time without a byte after which the connection is given up.
    idle_timeout: Duration,
    /// Maximum size of a line.
    bounds: ResponseBounds,
}

impl JsonLines {
    pub(super) fn new(body: Body, idle_timeout: Duration, bounds: ResponseBounds) -> Self {
        Self {
            body: body.into_data_stream(),
            buffer: Vec::new(),
            consumed: 0,
            scanned: 0,
            idle_timeout,
            bounds,
        }
    }

    /// The next line. A broken or dead connection ends the stream without an error: the next watch resumes from the
    /// last version.
    ///
    /// # Errors
    /// The line is larger than an event may be.
    pub(super) async fn next_line(&mut self) -> Result<Option<&[u8]>, ApiError> {
        loop {
            if let Some(end) = self.buffer[self.scanned..].iter().position(|b| *b == b'\n') {
                let line = self.consumed..self.scanned + end;
                self.consumed = line.end + 1;
                self.scanned = self.consumed;
                return Ok(Some(&self.buffer[line]));
            }
            self.buffer.drain(..std::mem::take(&mut self.consumed));
            self.scanned = self.buffer.len();
            self.bounds.check_event(self.buffer.len())?;
            let Ok(next) = tokio::time::timeout(self.idle_timeout, self.body.next()).await else {
                debug!(idle_timeout = ?self.idle_timeout, "watch without an event or bookmark, its connection counts as dead");
                return Ok(None);
            };
            let Some(Ok(bytes)) = next else {
                return Ok(None);
            };
            self.buffer.extend_from_slice(&bytes);
        }
    }
}
