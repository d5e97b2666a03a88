//! Counts by the place of the host that causes them, and their limits in files.

use std::{
    array,
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    path::{Path, PathBuf},
};

use crate::workspace_root;

/// Folder of the host's sources.
const HOST_SOURCES: &str = "host/src";

/// Something that is counted.
#[derive(Debug, PartialEq)]
pub struct CountUnit {
    /// Its name in plural.
    pub name: &'static str,
    /// Digits behind the point.
    pub decimals: usize,
    /// Smallest change of a place that is worth a line.
    pub min_change: f64,
}

impl CountUnit {
    /// Blocks of memory.
    pub const BLOCKS: Self = Self {
        name: "blocks",
        decimals: 1,
        min_change: 0.5,
    };
    /// Bytes of memory.
    pub const BYTES: Self = Self {
        name: "bytes",
        decimals: 0,
        min_change: 16.0,
    };
    /// Executed instructions.
    pub const INSTRUCTIONS: Self = Self {
        name: "instructions",
        decimals: 0,
        min_change: 100.0,
    };
}

/// Counts of `N` units by place: a file of the host, or what else does it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaceCounts<const N: usize> {
    units: &'static [CountUnit; N],
    by_place: BTreeMap<String, [f64; N]>,
}

impl<const N: usize> PlaceCounts<N> {
    /// Nothing yet, in these units.
    pub fn new(units: &'static [CountUnit; N]) -> Self {
        Self {
            units,
            by_place: BTreeMap::new(),
        }
    }

    /// Adds counts of a place.
    pub fn add(&mut self, place: &str, counts: [f64; N]) {
        let sum = self.by_place.entry(place.to_owned()).or_insert([0.0; N]);
        *sum = array::from_fn(|unit| sum[unit] + counts[unit]);
    }

    /// The sum of all places.
    pub fn total(&self) -> [f64; N] {
        array::from_fn(|unit| self.by_place.values().map(|counts| counts[unit]).sum())
    }

    /// Compares with the counts in a file, of which the sums may exceed those of the file by a ratio. With `UPDATE_COUNTS=1` it
    /// writes the file.
    ///
    /// # Panics
    /// When a limit is exceeded, with the places that have changed.
    pub fn assert_at_most(&self, path: &Path, ratio: f64) {
        if std::env::var_os("UPDATE_COUNTS").is_some() {
            std::fs::write(path, self.to_text()).expect("the file is written");
            return;
        }
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let before = Self::parse(self.units, &text)
            .unwrap_or_else(|| panic!("{}: UPDATE_COUNTS=1 writes it", path.display()));
        let (now, limit) = (self.total(), before.total());
        println!("{}: {}", path.display(), self.format_counts(now));
        assert!(
            (0..N).all(|unit| now[unit] <= limit[unit] * ratio),
            "{} in all, {} before; what has changed:\n{}",
            self.format_counts(now),
            self.format_counts(limit),
            self.describe_changes(&before)
        );
    }

    fn format_counts(&self, counts: [f64; N]) -> String {
        let each = self.units.iter().zip(counts);
        let each = each.map(|(unit, count)| format!("{count:.*} {}", unit.decimals, unit.name));
        each.collect::<Vec<_>>().join(" of ")
    }

    /// The places with other counts than before, the largest increase first.
    pub fn describe_changes(&self, before: &Self) -> String {
        let places = self.by_place.keys().chain(before.by_place.keys());
        let places: BTreeSet<&String> = places.collect();
        let count = |of: &Self, place: &String| of.by_place.get(place).copied().unwrap_or([0.0; N]);
        let mut changes: Vec<(&String, [f64; N])> = places
            .into_iter()
            .map(|place| {
                let (old, new) = (count(before, place), count(self, place));
                (place, array::from_fn(|unit| new[unit] - old[unit]))
            })
            .collect();
        // By the last unit, which says more than the number of blocks.
        changes.sort_by(|(_, a), (_, b)| b[N - 1].total_cmp(&a[N - 1]));
        let mut text = String::new();
        for (place, change) in changes {
            let mut units = self.units.iter().zip(change);
            if units.any(|(unit, change)| change.abs() >= unit.min_change) {
                for (unit, change) in self.units.iter().zip(change) {
                    let _ = write!(text, "{change:+.*} {} ", unit.decimals, unit.name);
                }
                let _ = writeln!(text, " {place}");
            }
        }
        text
    }

    /// The contents of a file with these counts as limits.
    pub fn to_text(&self) -> String {
        let units = self.units.iter().map(|unit| unit.name);
        let units = units.collect::<Vec<_>>().join(", ");
        let mut text = format!("# Of one repetition or object: {units}, file. UPDATE_COUNTS=1 writes it.\n");
        let mut places: Vec<_> = self.by_place.iter().collect();
        places.sort_by(|a, b| b.1[N - 1].total_cmp(&a.1[N - 1]).then(a.0.cmp(b.0)));
        for (place, counts) in places {
            if counts[N - 1] >= 0.5 {
                for (unit, count) in self.units.iter().zip(counts) {
                    let _ = write!(text, "{count:.*} ", unit.decimals);
                }
                let _ = writeln!(text, "{place}");
            }
        }
        text
    }

    /// Parses the contents of a file; none if it has no counts of these units.
    pub fn parse(units: &'static [CountUnit; N], text: &str) -> Option<Self> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let counts = lines.map(|line| {
            let (mut rest, mut counts) = (line, [0.0; N]);
            for count in &mut counts {
                let (first, others) = rest.split_once(' ')?;
                (*count, rest) = (first.parse().ok()?, others);
            }
            Some((rest.to_owned(), counts))
        });
        let by_place: BTreeMap<_, _> = counts.collect::<Option<_>>()?;
        (!by_place.is_empty()).then_some(Self { units, by_place })
    }
}

/// Returns the folder of the host's sources.
pub fn host_sources() -> PathBuf {
    workspace_root().join(HOST_SOURCES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: [CountUnit; 2] = [CountUnit::BLOCKS, CountUnit::BYTES];

    #[test]
    fn counts_beyond_the_limit_are_reported_by_place() {
        let read = |text: &str| PlaceCounts::parse(&UNITS, text).unwrap();
        let (before, now) = (read("1 100 a\n1 10 b\n"), read("1 100 a\n3 90 c\n"));
        assert_eq!(
            now.describe_changes(&before),
            "+3.0 blocks +90 bytes  c\n-1.0 blocks -10 bytes  b\n"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counts");
        std::fs::write(&path, before.to_text()).unwrap();
        before.assert_at_most(&path, 1.05);
        assert!(std::panic::catch_unwind(|| now.assert_at_most(&path, 1.05)).is_err());
    }

    #[test]
    fn file_without_counts_of_all_units_is_refused() {
        for text in ["", "# only a comment\n", "1 a\n", "1 many a\n"] {
            assert_eq!(PlaceCounts::parse(&UNITS, text), None, "{text:?}");
        }
    }
}
