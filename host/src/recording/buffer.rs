//! A bounded number of recordings; the newest stay.

use std::{collections::VecDeque, sync::Arc};

use super::recorder::Finished;

/// Recordings, oldest first, within bounds of number and bytes.
pub struct Ring {
    count: usize,
    bytes: usize,
    /// Of one object at most: who fails again and again must not push out all others.
    each: usize,
    held: VecDeque<Arc<Finished>>,
    weight: usize,
}

impl Ring {
    /// An empty one for so many recordings, bytes, and recordings of one object.
    pub fn new(count: usize, bytes: usize, each: usize) -> Self {
        Self {
            count,
            bytes,
            each,
            held: VecDeque::new(),
            weight: 0,
        }
    }

    /// Keeps a recording, and lets go of what has no place beside it.
    pub fn push(&mut self, new: Arc<Finished>) {
        let same = |held: &Arc<Finished>| held.key() == new.key();
        if self.held.iter().filter(|held| same(held)).count() >= self.each
            && let Some(oldest) = self.held.iter().position(same)
        {
            self.drop_at(oldest);
        }
        self.weight += new.weight();
        self.held.push_back(new);
        while self.held.len() > self.count || (self.weight > self.bytes && !self.held.is_empty()) {
            self.drop_at(0);
        }
    }

    fn drop_at(&mut self, index: usize) {
        if let Some(gone) = self.held.remove(index) {
            self.weight -= gone.weight();
        }
    }

    /// All of them, oldest first.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = &Arc<Finished>> {
        self.held.iter()
    }

    /// How many there are, and their bytes.
    pub fn size(&self) -> (usize, usize) {
        (self.held.len(), self.weight)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::recorder::tests::finished, *};

    proptest! {
        #[test]
        fn the_newest_stay_within_all_bounds(pushes in prop::collection::vec((0u8..6, 0usize..3000), 0..60)) {
            let mut ring = Ring::new(8, 8 << 10, 2);
            for (object, bytes) in &pushes {
                ring.push(Arc::new(finished(&format!("o{object}"), *bytes)));
                let (count, weight) = ring.size();
                prop_assert!(count <= 8 && weight <= 8 << 10);
                prop_assert_eq!(weight, ring.all().map(|f| f.weight()).sum::<usize>());
                for object in 0..6 {
                    let name = format!("o{object}");
                    prop_assert!(ring.all().filter(|f| *f.key().name == *name).count() <= 2);
                }
                // Each fits by itself, so what came last is there, and last.
                let last = format!("o{object}");
                prop_assert_eq!(ring.all().next_back().map(|f| &*f.key().name), Some(&*last));
            }
        }
    }

    #[test]
    fn what_is_too_large_is_not_kept() {
        let mut ring = Ring::new(8, 1 << 10, 2);
        ring.push(Arc::new(finished("o", 4 << 10)));
        assert_eq!(ring.size(), (0, 0));
    }
}
