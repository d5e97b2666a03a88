//! The memory of messages that brokers send ahead, before and while they are handled.
//!
//! It is a part of the memory budget of its own: calls that need memory never wait for messages, which wait for calls.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::Bytes;

/// Unit in which memory is taken.
const CHUNK_BYTES: usize = 1 << 10;
/// Copies of a body while its message is handled: as it was received, and for the handler.
const BODY_COPIES: usize = 2;

/// Shares of which one subscription has one.
const SHARES: u32 = 4;

/// A message that never fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a message of {}B waits in the queue, and the host has room for {}B: raise --memory-budget, or remove it",
    Bytes(*.body),
    Bytes(*.max)
)]
pub struct MessageTooLarge {
    /// Bytes of the body.
    body: usize,
    /// Bytes of the largest body.
    max: usize,
}

/// The memory of all messages of a host.
#[derive(Debug)]
pub struct MessageMemory {
    /// Chunks that no message holds. Its queue is first in, first out.
    free: Arc<Semaphore>,
    chunks: u32,
}

/// The memory that the messages of one subscription may hold: a quarter of all, so that no plugin whose messages wait holds
/// up those of the others.
#[derive(Debug)]
pub struct MessageShare {
    memory: Arc<MessageMemory>,
    free: Arc<Semaphore>,
    chunks: u32,
}

/// The memory of one message. Dropping it returns it.
#[derive(Debug)]
pub struct MessageCharge {
    _of_share: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl MessageMemory {
    /// A memory of this many bytes.
    pub fn new(bytes: usize) -> Self {
        let chunks = u32::try_from(bytes / CHUNK_BYTES).unwrap_or(u32::MAX);
        Self {
            free: Arc::new(Semaphore::new(chunks as usize)),
            chunks,
        }
    }

    /// Bytes of the largest body that fits.
    pub fn max_body_bytes(&self) -> usize {
        self.chunks as usize * CHUNK_BYTES / BODY_COPIES
    }

    /// A share for one subscription.
    pub fn share(self: &Arc<Self>) -> Arc<MessageShare> {
        let chunks = self.chunks / SHARES;
        Arc::new(MessageShare {
            memory: self.clone(),
            free: Arc::new(Semaphore::new(chunks as usize)),
            chunks,
        })
    }
}

impl MessageShare {
    /// Charges the body of a message that is about to be received, once other messages have left room for it. One that is
    /// larger than the share is received alone. Fails at once for one that never fits.
    pub fn charge(
        &self,
        body: usize,
    ) -> Result<impl Future<Output = MessageCharge> + Send + use<>, MessageTooLarge> {
        let max = self.memory.max_body_bytes();
        if body > max {
            return Err(MessageTooLarge { body, max });
        }
        let chunks = u32::try_from((body * BODY_COPIES).div_ceil(CHUNK_BYTES)).unwrap_or(u32::MAX);
        let chunks = chunks.min(self.memory.chunks);
        let of_share = self.free.clone().acquire_many_owned(chunks.min(self.chunks));
        let of_all = self.memory.free.clone().acquire_many_owned(chunks);
        Ok(async move {
            MessageCharge {
                _of_share: of_share.await.expect("it is never closed"),
                _of_all: of_all.await.expect("it is never closed"),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn share_leaves_room_for_the_messages_of_others() {
        let memory = Arc::new(MessageMemory::new(1 << 20));
        let [first, second] = [memory.share(), memory.share()];
        let charge = |share: &MessageShare, body| share.charge(body).expect("it fits").now_or_never();
        let quarter = (1 << 20) / SHARES as usize / BODY_COPIES;
        let held = charge(&first, quarter).expect("there is room");
        assert!(charge(&first, 1).is_none(), "its share is used up");
        assert!(charge(&second, quarter).is_some());
        drop(held);
        // A message that is larger than the share takes all of it.
        let held = charge(&first, memory.max_body_bytes()).expect("there is room");
        assert!(charge(&first, 1).is_none() && charge(&second, 1).is_none());
        drop(held);
        assert!(charge(&second, 1).is_some());
        let error = first
            .charge(memory.max_body_bytes() + 1)
            .err()
            .expect("too large");
        assert!(error.to_string().contains("--memory-budget"), "{error}");
    }
}
