//! Counts of allocations, by the file of the host that makes them: the same on every machine, unlike times.

#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::BTreeMap,
    fmt::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ostler::testing::{
    key::Gvk,
    object::KubeObject,
    scope::Projection,
    store::{Put, Store, VersionSource},
};
use serde::Deserialize;

use crate::workspace_root;

/// Frames of a backtrace that are kept. Those of the runtime, the outermost, are of no interest.
const MAX_FRAMES: usize = 60;
/// Folder of the host's sources.
const HOST_SOURCES: &str = "host/src";

static IS_PROFILING: AtomicBool = AtomicBool::new(false);

/// The allocator of a test executable. It asks the profiler only while one runs: that would lock a mutex for each allocation.
pub struct CountingAllocator;

// SAFETY: it adds nothing to the system's allocator, from which that of the profiler has all of its blocks, too.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller's.
        unsafe {
            if IS_PROFILING.load(Ordering::Relaxed) {
                dhat::Alloc.alloc(layout)
            } else {
                System.alloc(layout)
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe {
            if IS_PROFILING.load(Ordering::Relaxed) {
                dhat::Alloc.dealloc(block, layout);
            } else {
                System.dealloc(block, layout);
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as the caller's.
        unsafe {
            if IS_PROFILING.load(Ordering::Relaxed) {
                dhat::Alloc.realloc(block, layout, new_size)
            } else {
                System.realloc(block, layout, new_size)
            }
        }
    }
}

/// Allocations of one repetition of something, or what one object keeps of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocations {
    /// Blocks and bytes by file, or by function where no file of the host is in the backtrace.
    by_site: BTreeMap<String, Count>,
}

/// Blocks and bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Count {
    /// Number of blocks.
    pub blocks: f64,
    /// Their bytes.
    pub bytes: f64,
}

/// The file of the profiler.
#[derive(Deserialize)]
struct Profile {
    /// Points of the program that allocate.
    pps: Vec<Point>,
    /// Frames, as `ADDRESS: FUNCTION (FILE:LINE:COLUMN)`.
    ftbl: Vec<String>,
}

#[derive(Deserialize)]
struct Point {
    /// Bytes that were allocated.
    tb: f64,
    /// Blocks that were allocated.
    tbk: f64,
    /// Bytes that were not freed.
    eb: f64,
    /// Blocks that were not freed.
    ebk: f64,
    /// Indexes of the frames, innermost first.
    fs: Vec<usize>,
}

/// Counts what is allocated while `work` runs, for one of its `repetitions`. What the embedded API server allocates does not count.
///
/// # Panics
/// Where the executable has another allocator, or something else is counted at the same time.
pub async fn count_allocations(repetitions: usize, work: impl Future<Output = ()>) -> Allocations {
    let profile = profile_heap(work).await;
    Allocations::sum(&profile, repetitions, &list_sources(), |point| Count {
        blocks: point.tbk,
        bytes: point.tb,
    })
}

/// Counts what `work` allocates and leaves behind, for one of the `objects` that it makes: the memory that each of them takes.
///
/// # Panics
/// As [`count_allocations`].
pub async fn count_kept_memory(objects: usize, work: impl Future<Output = ()>) -> Allocations {
    let profile = profile_heap(work).await;
    Allocations::sum(&profile, objects, &list_sources(), |point| Count {
        blocks: point.ebk,
        bytes: point.eb,
    })
}

/// Counts the memory that a cached object takes: puts these into a store.
///
/// # Panics
/// As [`count_allocations`]; where an object cannot be parsed, or its kind has no collection in the store.
pub async fn count_cached_objects(store: &Arc<Store>, gvk: &Gvk, objects: &[Vec<u8>]) -> Allocations {
    let (store, gvk, list) = (store.clone(), gvk.clone(), objects.to_vec());
    let put_all = move || {
        for json in list {
            let (key, object) = KubeObject::parse(&gvk, &json).expect("an object");
            let put = store.put(&key, object, Projection::Full, VersionSource::InitialList);
            assert!(matches!(put, Put::Changed(_)), "{key} is cached");
        }
    };
    count_kept_memory(objects.len(), async {
        // On a thread of its own there is no frame of a test in the backtraces.
        let thread = std::thread::spawn(put_all);
        thread.join().expect("all objects are cached");
    })
    .await
}

async fn profile_heap(work: impl Future<Output = ()>) -> Profile {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("heap.json");
    let profiler = dhat::Profiler::builder()
        .file_name(&path)
        .trim_backtraces(Some(MAX_FRAMES))
        .build();
    let was_profiling = IS_PROFILING.swap(true, Ordering::Relaxed);
    assert!(!was_profiling, "something else is counted at the same time");
    work.await;
    IS_PROFILING.store(false, Ordering::Relaxed);
    drop(profiler);
    let profile = std::fs::read(&path).expect("the profile");
    serde_json::from_slice(&profile).expect("a profile")
}

impl Allocations {
    /// Sums a count of all points by site, divided by a number.
    fn sum(
        profile: &Profile,
        divisor: usize,
        sources: &[String],
        count_point: impl Fn(&Point) -> Count,
    ) -> Self {
        let sites: Vec<Site> = profile
            .ftbl
            .iter()
            .map(|frame| Site::parse(frame, sources))
            .collect();
        let mut by_site: BTreeMap<String, Count> = BTreeMap::new();
        for point in &profile.pps {
            let frames: Vec<&Site> = point.fs.iter().filter_map(|at| sites.get(*at)).collect();
            if frames.iter().any(|site| matches!(site, Site::Test)) {
                continue;
            }
            let of_host = frames.iter().find_map(|site| match site {
                Site::Host(file) => Some(*file),
                _ => None,
            });
            let outermost = || match frames.last() {
                Some(Site::Other(function)) => Some(*function),
                _ => None,
            };
            let site = of_host.or_else(outermost).unwrap_or("unknown");
            let count = by_site.entry(site.to_owned()).or_default();
            let of_point = count_point(point);
            count.blocks += of_point.blocks / divisor as f64;
            count.bytes += of_point.bytes / divisor as f64;
        }
        Self { by_site }
    }

    /// The sum of all sites.
    pub fn total(&self) -> Count {
        self.by_site.values().fold(Count::default(), |sum, count| Count {
            blocks: sum.blocks + count.blocks,
            bytes: sum.bytes + count.bytes,
        })
    }

    /// Compares with the counts in a file, of which blocks and bytes in all may exceed those of the file by a ratio. With
    /// `UPDATE_COUNTS=1` it writes the file.
    ///
    /// # Panics
    /// When a limit is exceeded, with the sites that have changed.
    pub fn assert_at_most(&self, path: &Path, ratio: f64) {
        if std::env::var_os("UPDATE_COUNTS").is_some() {
            std::fs::write(path, self.to_text()).expect("the file is written");
            return;
        }
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let before =
            Self::parse(&text).unwrap_or_else(|| panic!("{}: UPDATE_COUNTS=1 writes it", path.display()));
        let (now, limit) = (self.total(), before.total());
        println!(
            "{}: {:.1} blocks, {:.0} bytes",
            path.display(),
            now.blocks,
            now.bytes
        );
        assert!(
            now.blocks <= limit.blocks * ratio && now.bytes <= limit.bytes * ratio,
            "{:.1} blocks of {:.0} bytes in all, {:.1} of {:.0} before; what has changed:\n{}",
            now.blocks,
            now.bytes,
            limit.blocks,
            limit.bytes,
            self.describe_changes(&before)
        );
    }

    /// The sites with other counts than before, the largest difference first.
    fn describe_changes(&self, before: &Self) -> String {
        let names = self.by_site.keys().chain(before.by_site.keys());
        let names: std::collections::BTreeSet<&String> = names.collect();
        let count = |of: &Self, name: &String| of.by_site.get(name).copied().unwrap_or_default();
        let mut changes: Vec<_> = names
            .into_iter()
            .map(|name| (name, count(before, name), count(self, name)))
            .collect();
        changes.sort_by(|a, b| (b.2.bytes - b.1.bytes).total_cmp(&(a.2.bytes - a.1.bytes)));
        let mut text = String::new();
        for (name, old, new) in changes {
            if (new.blocks - old.blocks).abs() >= 0.5 || (new.bytes - old.bytes).abs() >= 16.0 {
                let _ = writeln!(
                    text,
                    "{:+.1} blocks {:+.0} bytes  {name}",
                    new.blocks - old.blocks,
                    new.bytes - old.bytes
                );
            }
        }
        text
    }

    fn to_text(&self) -> String {
        let mut sites: Vec<_> = self.by_site.iter().collect();
        sites.sort_by(|a, b| b.1.bytes.total_cmp(&a.1.bytes).then(a.0.cmp(b.0)));
        let mut text =
            "# Memory of one repetition or object: blocks, bytes, file. UPDATE_COUNTS=1 writes it.\n"
                .to_owned();
        for (name, count) in sites {
            if count.bytes >= 0.5 {
                let _ = writeln!(text, "{:.1} {:.0} {name}", count.blocks, count.bytes);
            }
        }
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let counts = lines.map(|line| {
            let (blocks, rest) = line.split_once(' ')?;
            let (bytes, name) = rest.split_once(' ')?;
            let (blocks, bytes) = (blocks.parse().ok()?, bytes.parse().ok()?);
            Some((name.to_owned(), Count { blocks, bytes }))
        });
        let by_site: BTreeMap<_, _> = counts.collect::<Option<_>>()?;
        (!by_site.is_empty()).then_some(Self { by_site })
    }
}

/// A frame of a backtrace.
#[derive(Debug, PartialEq)]
enum Site<'a> {
    /// A file of the host, below its sources.
    Host(&'a str),
    /// The embedded API server, or the test.
    Test,
    /// A function of something else.
    Other(&'a str),
}

impl<'a> Site<'a> {
    /// Parses a frame, `ADDRESS: FUNCTION (FILE:LINE:COLUMN)`, of whose file the last three parts are there.
    fn parse(frame: &'a str, sources: &'a [String]) -> Self {
        let name = frame.split_once(": ").map_or(frame, |(_, name)| name);
        let (function, place) = name.rsplit_once(" (").unwrap_or((name, ""));
        if ["ostler_apiserver::", "ostler_test_harness::lab", "scenarios::"]
            .iter()
            .any(|own| function.contains(own))
        {
            return Self::Test;
        }
        let file = place.split(':').next().unwrap_or_default();
        let file = file.strip_prefix("src/").unwrap_or(file);
        let is_it = |source: &&String| {
            let rest = source.strip_suffix(file);
            rest.is_some_and(|before| before.is_empty() || before.ends_with('/'))
        };
        match sources.iter().find(is_it).filter(|_| file.contains('/')) {
            Some(source) => Self::Host(source),
            None => Self::Other(function),
        }
    }
}

/// Lists the source files of the host, relative to their folder.
fn list_sources() -> Vec<String> {
    let root = workspace_root().join(HOST_SOURCES);
    let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(name) = path.strip_prefix(&root).ok().and_then(Path::to_str) {
                found.push(name.to_owned());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_counts_for_the_innermost_file_of_the_host() {
        let profile = Profile {
            ftbl: [
                "0x1: alloc::vec::Vec<T>::push (src/vec/mod.rs:1:1)",
                "0x2: <ostler::kube::key::ObjectRef as core::clone::Clone>::clone (src/kube/key.rs:2:2)",
                "0x3: {async_fn#0} (sandbox/capabilities/kubernetes.rs:3:3)",
                "0x4: ostler_apiserver::serve (src/serve.rs:4:4)",
                "0x5: tokio::runtime::park (src/runtime/park.rs:5:5)",
            ]
            .map(str::to_owned)
            .into(),
            pps: vec![
                Point {
                    tb: 20.0,
                    tbk: 2.0,
                    eb: 0.0,
                    ebk: 0.0,
                    fs: vec![0, 1, 2],
                },
                Point {
                    tb: 30.0,
                    tbk: 1.0,
                    eb: 0.0,
                    ebk: 0.0,
                    fs: vec![0, 2],
                },
                Point {
                    tb: 99.0,
                    tbk: 9.0,
                    eb: 0.0,
                    ebk: 0.0,
                    fs: vec![0, 2, 3],
                },
                Point {
                    tb: 8.0,
                    tbk: 1.0,
                    eb: 0.0,
                    ebk: 0.0,
                    fs: vec![0, 4],
                },
            ],
        };
        let sources = ["kube/key.rs", "sandbox/capabilities/kubernetes.rs"].map(str::to_owned);
        let counts = Allocations::sum(&profile, 2, &sources, |point| Count {
            blocks: point.tbk,
            bytes: point.tb,
        });
        assert_eq!(
            counts.to_text().lines().skip(1).collect::<Vec<_>>(),
            [
                "0.5 15 sandbox/capabilities/kubernetes.rs",
                "1.0 10 kube/key.rs",
                "0.5 4 tokio::runtime::park",
            ]
        );
    }

    #[test]
    fn counts_beyond_the_limit_are_reported_by_site() {
        let read = |text: &str| Allocations::parse(text).unwrap();
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
}
