//! Memory of messages that the host receives: a connection is read no further than there is room for the next body.
//!
//! AMQP bounds the messages that a broker sends ahead by their number (`prefetch`), not by their bytes, and announces the
//! size of each in the frame before its body. [`MeteredStream`] reads that size as it passes, and takes the bytes from
//! [`MessageShare`] before it passes the body on. Meanwhile the broker waits, as for any slow reader.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

use crate::contract::message_memory::{MessageCharge, MessageShare};

/// Room for a read.
const READ_BYTES: usize = 16 << 10;
/// Type, channel and size before the payload of a frame, and the byte behind it.
const FRAME_HEADER_BYTES: usize = 7;
const FRAME_END_BYTES: usize = 1;
/// Type of a frame with the properties and the size of a message (AMQP 0-9-1, 4.2.6.1).
const CONTENT_HEADER: u8 = 2;
/// Class, weight and body size at the beginning of that frame's payload.
const BODY_SIZE_END: usize = 2 + 2 + 8;

/// The memory of the messages that a connection has announced and no consumer has taken yet, in their order.
#[derive(Clone, Default)]
pub struct AnnouncedMessages(Arc<Mutex<VecDeque<MessageCharge>>>);

impl AnnouncedMessages {
    /// Takes the memory of the next message that was delivered completely. Each message has its own, an empty one too.
    pub fn take_next(&self) -> Option<MessageCharge> {
        self.0.lock().pop_front()
    }
}

/// A position in a stream of AMQP frames. Pure.
#[derive(Debug, Default)]
struct FrameScanner {
    header: [u8; FRAME_HEADER_BYTES],
    /// Bytes of the frame that have passed.
    passed: usize,
    /// Bytes of the announced body size that have passed, in network byte order.
    body_size: u64,
}

impl FrameScanner {
    /// Scans bytes up to the next announced body size, or all of them. Returns how many were scanned.
    fn scan(&mut self, bytes: &[u8]) -> (usize, Option<u64>) {
        let mut scanned = 0;
        while scanned < bytes.len() {
            if self.passed < FRAME_HEADER_BYTES {
                self.header[self.passed] = bytes[scanned];
                self.passed += 1;
                scanned += 1;
                continue;
            }
            let in_payload = self.passed - FRAME_HEADER_BYTES;
            if self.header[0] == CONTENT_HEADER && in_payload < BODY_SIZE_END {
                if in_payload >= BODY_SIZE_END - 8 {
                    self.body_size = self.body_size << 8 | u64::from(bytes[scanned]);
                }
                self.passed += 1;
                scanned += 1;
                if in_payload + 1 == BODY_SIZE_END {
                    return (scanned, Some(std::mem::take(&mut self.body_size)));
                }
                continue;
            }
            let end = FRAME_HEADER_BYTES + self.payload_bytes() + FRAME_END_BYTES;
            let step = (end - self.passed).min(bytes.len() - scanned);
            self.passed += step;
            scanned += step;
            if self.passed == end {
                self.passed = 0;
            }
        }
        (scanned, None)
    }

    fn payload_bytes(&self) -> usize {
        let [_, _, _, size @ ..] = self.header;
        u32::from_be_bytes(size) as usize
    }
}

type Charging = Pin<Box<dyn Future<Output = MessageCharge> + Send>>;

/// A stream from a broker that passes a body on once there is memory for it.
pub struct MeteredStream<S> {
    stream: S,
    memory: Arc<MessageShare>,
    announced: AnnouncedMessages,
    scanner: FrameScanner,
    /// Bytes that were read and not passed on.
    unread: BytesMut,
    charging: Option<Charging>,
}

impl<S> MeteredStream<S> {
    /// A stream whose messages are charged to a memory.
    pub fn new(stream: S, memory: Arc<MessageShare>) -> Self {
        Self {
            stream,
            memory,
            announced: AnnouncedMessages::default(),
            scanner: FrameScanner::default(),
            unread: BytesMut::new(),
            charging: None,
        }
    }

    /// The memory of the messages of this stream.
    pub fn announced(&self) -> AnnouncedMessages {
        self.announced.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(charging) = &mut this.charging {
            let charge = ready!(charging.as_mut().poll(cx));
            this.charging = None;
            this.announced.0.lock().push_back(charge);
        }
        if this.unread.is_empty() {
            this.unread.reserve(READ_BYTES);
            ready!(poll_read_buf(Pin::new(&mut this.stream), cx, &mut this.unread))?;
        }
        let room = this.unread.len().min(buf.remaining());
        let (scanned, body_size) = this.scanner.scan(&this.unread[..room]);
        if let Some(body_size) = body_size {
            let bytes = usize::try_from(body_size).unwrap_or(usize::MAX);
            let charge = this.memory.charge(bytes).map_err(io::Error::other)?;
            this.charging = Some(Box::pin(charge));
        }
        buf.put_slice(&this.unread[..scanned]);
        this.unread.advance(scanned);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::contract::message_memory::MessageMemory;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![kind, 0, 1];
        frame.extend(u32::try_from(payload.len()).expect("short").to_be_bytes());
        frame.extend(payload);
        frame.push(0xCE);
        frame
    }

    /// The frames of a delivery, with a body in frames of this many bytes.
    fn delivery(body: usize, frame_bytes: usize) -> Vec<u8> {
        let mut header = vec![0, 60, 0, 0];
        header.extend((body as u64).to_be_bytes());
        header.extend([0, 0]);
        let mut frames = frame(1, b"basic.deliver");
        frames.extend(frame(CONTENT_HEADER, &header));
        let body = vec![CONTENT_HEADER; body];
        body.chunks(frame_bytes)
            .for_each(|chunk| frames.extend(frame(3, chunk)));
        frames
    }

    proptest! {
        /// Every announced size is found, however the stream is cut into pieces.
        #[test]
        fn scanner_finds_the_size_of_each_body(
            bodies in prop::collection::vec(0..300usize, 0..10), frame_bytes in 1..100usize, piece in 1..50usize,
        ) {
            let mut stream = frame(8, b"");
            bodies.iter().for_each(|body| stream.extend(delivery(*body, frame_bytes)));
            let (mut scanner, mut found) = (FrameScanner::default(), Vec::new());
            for mut piece in stream.chunks(piece) {
                while !piece.is_empty() {
                    let (scanned, size) = scanner.scan(piece);
                    found.extend(size.map(|size| size as usize));
                    piece = &piece[scanned..];
                }
            }
            prop_assert_eq!(found, bodies);
            prop_assert_eq!(scanner.passed, 0, "at the beginning of a frame");
        }
    }

    #[tokio::test]
    async fn stream_passes_a_body_once_there_is_memory_and_refuses_one_that_never_fits() {
        let memory = Arc::new(MessageMemory::new(64 << 10));
        let (near, mut far) = duplex(1 << 20);
        let mut stream = MeteredStream::new(near, memory.share());
        let announced = stream.announced();
        let limit = memory.max_body_bytes();
        let (first, second) = (delivery(limit, 4096), delivery(limit / 2, 4096));
        far.write_all(&first).await.expect("sent");
        far.write_all(&second).await.expect("sent");
        let mut read = vec![0; first.len()];
        stream.read_exact(&mut read).await.expect("the first message");
        assert_eq!(read, first);
        let charge = announced.take_next().expect("it is charged");
        // The body of the second waits for the memory of the first.
        let mut rest = vec![0; second.len()];
        let reading = tokio::spawn(async move {
            let read = stream.read_exact(&mut rest).await;
            (stream, read.map(|_| rest))
        });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!reading.is_finished() && announced.take_next().is_none());
        drop(charge);
        let (mut stream, read) = reading.await.expect("it ends");
        assert_eq!(read.expect("the second message"), second);
        assert!(announced.take_next().is_some());

        far.write_all(&delivery(limit + 1, 4096)).await.expect("sent");
        let error = stream.read_to_end(&mut Vec::new()).await.expect_err("refused");
        assert!(error.to_string().contains("--memory-budget"), "{error}");
    }
}
