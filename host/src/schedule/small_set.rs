//! A set that is small nearly always: most objects read a few things, and most things are read by few.

use std::{
    collections::{HashSet, hash_set},
    hash::Hash,
    slice,
};

/// Up to so many are looked through faster than hashed, in an eighth of the memory.
const FEW: usize = 8;

/// A set of values, in no order.
#[derive(Clone, Debug)]
pub enum Few<T> {
    /// In a list that is as long as it must be.
    Listed(Vec<T>),
    /// Too many for that. Stays hashed while it is not empty: no back and forth at the border.
    Hashed(Box<HashSet<T>>),
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

impl<T: Eq + Hash> Few<T> {
    /// Puts a value in; gives whether it is new.
    pub fn insert(&mut self, value: T) -> bool {
        match self {
            Self::Hashed(set) => set.insert(value),
            Self::Listed(list) if list.contains(&value) => false,
            Self::Listed(list) if list.len() < FEW => {
                list.reserve_exact(1);
                list.push(value);
                true
            }
            Self::Listed(list) => {
                let mut set: HashSet<T> = list.drain(..).collect();
                set.insert(value);
                *self = Self::Hashed(Box::new(set));
                true
            }
        }
    }

    /// Takes a value out; gives whether it was there.
    pub fn remove(&mut self, value: &T) -> bool {
        match self {
            Self::Hashed(set) => set.remove(value),
            Self::Listed(list) => match list.iter().position(|v| v == value) {
                Some(at) => {
                    list.swap_remove(at);
                    true
                }
                None => false,
            },
        }
    }

    /// Whether the value is there.
    pub fn contains(&self, value: &T) -> bool {
        match self {
            Self::Hashed(set) => set.contains(value),
            Self::Listed(list) => list.contains(value),
        }
    }
}

impl<T> Few<T> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Hashed(set) => set.len(),
            Self::Listed(list) => list.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values, in no order.
    pub fn iter(&self) -> Iter<'_, T> {
        match self {
            Self::Hashed(set) => Iter::Hashed(set.iter()),
            Self::Listed(list) => Iter::Listed(list.iter()),
        }
    }
}

impl<T: Eq + Hash> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut few = Self::default();
        for value in values {
            few.insert(value);
        }
        few
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;
    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

/// The values of a [`Few`].
pub enum Iter<'a, T> {
    /// Of a listed one.
    Listed(slice::Iter<'a, T>),
    /// Of a hashed one.
    Hashed(hash_set::Iter<'a, T>),
}

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = &'a T;
    fn next(&mut self) -> Option<&'a T> {
        match self {
            Self::Listed(list) => list.next(),
            Self::Hashed(set) => set.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(steps in prop::collection::vec((any::<bool>(), 0u8..24), 0..200)) {
            let (mut few, mut set) = (Few::default(), HashSet::new());
            for (put, value) in steps {
                match put {
                    true => prop_assert_eq!(few.insert(value), set.insert(value)),
                    false => prop_assert_eq!(few.remove(&value), set.remove(&value)),
                }
                prop_assert_eq!(few.contains(&value), set.contains(&value));
                prop_assert_eq!((few.len(), few.is_empty()), (set.len(), set.is_empty()));
                prop_assert_eq!(&few.iter().copied().collect::<HashSet<_>>(), &set);
            }
        }
    }
}
