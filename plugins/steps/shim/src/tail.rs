//! The end of what the process writes, kept while it passes on to the container's log.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    sync::{Arc, Mutex, PoisonError},
};

/// Size of the buffer between process and log.
const COPY_BYTES: usize = 16 * 1024;

/// The last bytes of the log.
#[derive(Clone)]
pub struct Tail {
    bytes: Arc<Mutex<VecDeque<u8>>>,
    max: usize,
}

impl Tail {
    /// A tail of at most this many bytes.
    pub fn new(max: usize) -> Self {
        Self {
            bytes: Arc::default(),
            max,
        }
    }

    fn push(&self, data: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let data = &data[data.len().saturating_sub(self.max)..];
        let excess = (bytes.len() + data.len()).saturating_sub(self.max);
        bytes.drain(..excess);
        bytes.extend(data);
    }

    /// The text of the tail. A character whose beginning is cut off is left out.
    pub fn text(&self) -> String {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = bytes.make_contiguous();
        let cut = bytes
            .iter()
            .take(3)
            .take_while(|byte| (0x80..0xc0).contains(*byte))
            .count();
        String::from_utf8_lossy(&bytes[cut..]).into_owned()
    }

    /// Copies all that a process writes. A log that cannot be written to does not block the process.
    pub fn copy(&self, mut from: impl Read, mut to: impl Write) {
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => {
                    self.push(&buffer[..read]);
                    let _ = to.write_all(&buffer[..read]).and_then(|()| to.flush());
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_keeps_the_last_bytes_and_passes_all_on() {
        let tail = Tail::new(5);
        let mut log = Vec::new();
        tail.copy("abc".as_bytes(), &mut log);
        assert_eq!(tail.text(), "abc");
        tail.copy("defg".as_bytes(), &mut log);
        assert_eq!(tail.text(), "cdefg");
        tail.copy("0123456789".as_bytes(), &mut log);
        assert_eq!(tail.text(), "56789");
        assert_eq!(log, b"abcdefg0123456789");
        let tail = Tail::new(5);
        tail.copy("€€".as_bytes(), &mut log);
        assert_eq!(tail.text(), "€");
        let none = Tail::new(0);
        none.copy("x".as_bytes(), &mut log);
        assert_eq!(none.text(), "");
    }
}
