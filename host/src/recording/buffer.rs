//! A buffer of recordings, bounded by number and bytes. The oldest are evicted first.

use std::{collections::VecDeque, sync::Arc};

use super::recorder::RecordedCall;

/// Recordings, oldest first.
pub struct RecordingBuffer {
    max_count: usize,
    max_bytes: usize,
    /// An object that keeps failing must not evict the recordings of all others.
    max_per_object: usize,
    /// Each with the hash of its object: every reconcile looks for those of its object, and the recordings themselves are in
    /// the caches of other processors.
    recordings: VecDeque<(u64, Arc<RecordedCall>)>,
    bytes: usize,
}

impl RecordingBuffer {
    /// An empty buffer with these limits.
    pub fn new(max_count: usize, max_bytes: usize, max_per_object: usize) -> Self {
        Self {
            max_count,
            max_bytes,
            max_per_object,
            recordings: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Adds a recording, and evicts old ones until all limits are met. Returns those that were evicted, which take a while to
    /// free: the caller may hold a lock.
    #[must_use = "it is to be dropped without the lock of the buffer"]
    pub fn push(&mut self, new: Arc<RecordedCall>) -> Vec<Arc<RecordedCall>> {
        let hash = new.key().hash_value();
        let is_of_object = |(of, other): &(u64, Arc<RecordedCall>)| *of == hash && other.key() == new.key();
        let of_object = self.recordings.iter().filter(|other| is_of_object(other)).count();
        let mut evicted = Vec::new();
        if of_object >= self.max_per_object
            && let Some(oldest) = self.recordings.iter().position(is_of_object)
        {
            evicted.extend(self.remove_at(oldest));
        }
        self.bytes += new.bytes();
        self.recordings.push_back((hash, new));
        while self.recordings.len() > self.max_count
            || (self.bytes > self.max_bytes && !self.recordings.is_empty())
        {
            evicted.extend(self.remove_at(0));
        }
        evicted
    }

    fn remove_at(&mut self, index: usize) -> Option<Arc<RecordedCall>> {
        let (_, removed) = self.recordings.remove(index)?;
        self.bytes -= removed.bytes();
        Some(removed)
    }

    /// The recordings, oldest first.
    pub fn recordings(&self) -> impl DoubleEndedIterator<Item = &Arc<RecordedCall>> {
        self.recordings.iter().map(|(_, recorded)| recorded)
    }

    /// The number of recordings and their bytes.
    pub fn size(&self) -> (usize, usize) {
        (self.recordings.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::recorder::tests::recorded_call, *};

    proptest! {
        #[test]
        fn newest_recordings_stay_within_all_limits(pushes in prop::collection::vec((0u8..6, 0usize..3000), 0..60)) {
            let mut buffer = RecordingBuffer::new(8, 8 << 10, 2);
            for (object, bytes) in &pushes {
                drop(buffer.push(Arc::new(recorded_call(&format!("o{object}"), *bytes))));
                let (count, total) = buffer.size();
                prop_assert!(count <= 8 && total <= 8 << 10);
                prop_assert_eq!(total, buffer.recordings().map(|f| f.bytes()).sum::<usize>());
                for object in 0..6 {
                    let name = format!("o{object}");
                    prop_assert!(buffer.recordings().filter(|f| *f.key().name == *name).count() <= 2);
                }
                // Each one fits by itself, so the last one pushed is the newest in the buffer.
                let last = format!("o{object}");
                prop_assert_eq!(buffer.recordings().next_back().map(|f| &*f.key().name), Some(&*last));
            }
        }
    }

    #[test]
    fn recording_larger_than_the_buffer_is_dropped() {
        let mut buffer = RecordingBuffer::new(8, 1 << 10, 2);
        let evicted = buffer.push(Arc::new(recorded_call("o", 4 << 10)));
        assert_eq!(evicted.len(), 1);
        assert_eq!(buffer.size(), (0, 0));
    }
}
