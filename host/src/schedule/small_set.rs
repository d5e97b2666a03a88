//! A set that is nearly always small: most objects read a few things, and most things are read by few objects.

use std::{
    collections::{HashSet, hash_set},
    hash::Hash,
    slice,
};

/// Maximum size of the list form: up to it a scan is faster than hashing, in an eighth of the memory.
const MAX_LIST_LEN: usize = 8;

/// A set of values without order.
#[derive(Clone, Debug)]
pub enum SmallSet<T> {
    /// A list without spare capacity.
    List(Vec<T>),
    /// A hash set, used from [`MAX_LIST_LEN`] on. It never turns back into a list, so that a set at the limit does
    /// not alternate.
    // The box keeps the set at the size of a list.
    #[allow(clippy::box_collection)]
    Hash(Box<HashSet<T>>),
}

impl<T> Default for SmallSet<T> {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl<T: Eq + Hash> SmallSet<T> {
    /// Inserts a value and returns true if it was new.
    pub fn insert(&mut self, value: T) -> bool {
        match self {
            Self::Hash(set) => set.insert(value),
            Self::List(list) if list.contains(&value) => false,
            Self::List(list) if list.len() < MAX_LIST_LEN => {
                list.reserve_exact(1);
                list.push(value);
                true
            }
            Self::List(list) => {
                let mut set: HashSet<T> = list.drain(..).collect();
                set.insert(value);
                *self = Self::Hash(Box::new(set));
                true
            }
        }
    }

    /// Removes a value and returns true if it was present.
    pub fn remove(&mut self, value: &T) -> bool {
        match self {
            Self::Hash(set) => set.remove(value),
            Self::List(list) => match list.iter().position(|v| v == value) {
                Some(at) => {
                    list.swap_remove(at);
                    true
                }
                None => false,
            },
        }
    }

    /// Returns true if the value is present.
    pub fn contains(&self, value: &T) -> bool {
        match self {
            Self::Hash(set) => set.contains(value),
            Self::List(list) => list.contains(value),
        }
    }
}

impl<T> SmallSet<T> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Hash(set) => set.len(),
            Self::List(list) => list.len(),
        }
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over all values, in no order.
    pub fn iter(&self) -> Iter<'_, T> {
        match self {
            Self::Hash(set) => Iter::Hash(set.iter()),
            Self::List(list) => Iter::List(list.iter()),
        }
    }
}

impl<T: Eq + Hash> FromIterator<T> for SmallSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut set = Self::default();
        for value in values {
            set.insert(value);
        }
        set
    }
}

impl<'a, T> IntoIterator for &'a SmallSet<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;
    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

/// An iterator over the values of a [`SmallSet`].
pub enum Iter<'a, T> {
    /// Over the list form.
    List(slice::Iter<'a, T>),
    /// Over the hash form.
    Hash(hash_set::Iter<'a, T>),
}

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = &'a T;
    fn next(&mut self) -> Option<&'a T> {
        match self {
            Self::Hash(set) => set.next(),
            Self::List(list) => list.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn small_set_agrees_with_a_hash_set(steps in prop::collection::vec((any::<bool>(), 0u8..24), 0..200)) {
            let (mut small, mut set) = (SmallSet::default(), HashSet::new());
            for (put, value) in steps {
                if put {
                    prop_assert_eq!(small.insert(value), set.insert(value));
                } else {
                    prop_assert_eq!(small.remove(&value), set.remove(&value));
                }
                prop_assert_eq!(small.contains(&value), set.contains(&value));
                prop_assert_eq!((small.len(), small.is_empty()), (set.len(), set.is_empty()));
                prop_assert_eq!(&small.iter().copied().collect::<HashSet<_>>(), &set);
            }
        }
    }
}
