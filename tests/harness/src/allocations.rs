//! Counts of allocations, by the file of the host that makes them: the same on every machine, unlike times.

#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
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

use crate::counts::{CountUnit, PlaceCounts, host_sources};

/// Frames of a backtrace that are kept. Those of the runtime, the outermost, are of no interest.
const MAX_FRAMES: usize = 60;
/// Parts of the names of functions whose allocations are not the host's. The captured log is one block, which doubles at some line of
/// the host: at which one depends on how much other tests have logged.
const TEST_FUNCTIONS: [&str; 4] = [
    "ostler_apiserver::",
    "ostler_test_harness::lab",
    "ostler_test_harness::logs",
    "scenarios::",
];

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
pub type Allocations = PlaceCounts<2>;

const UNITS: [CountUnit; 2] = [CountUnit::BLOCKS, CountUnit::BYTES];

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

/// Counts what is allocated while `work` runs, for one of its `repetitions`. What the embedded API server and the captured log allocate
/// does not count.
///
/// # Panics
/// Where the executable has another allocator, or something else is counted at the same time.
pub async fn count_allocations(repetitions: usize, work: impl Future<Output = ()>) -> Allocations {
    let profile = profile_heap(work).await;
    sum_points(&profile, repetitions, &list_sources(), |point| {
        [point.tbk, point.tb]
    })
}

/// Counts what `work` allocates and leaves behind, for one of the `objects` that it makes: the memory that each of them takes.
///
/// # Panics
/// As [`count_allocations`].
pub async fn count_kept_memory(objects: usize, work: impl Future<Output = ()>) -> Allocations {
    let profile = profile_heap(work).await;
    sum_points(&profile, objects, &list_sources(), |point| [point.ebk, point.eb])
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

/// Sums a count of all points by place, divided by a number.
fn sum_points(
    profile: &Profile,
    divisor: usize,
    sources: &[String],
    count_point: impl Fn(&Point) -> [f64; 2],
) -> Allocations {
    let sites: Vec<Site> = profile
        .ftbl
        .iter()
        .map(|frame| Site::parse(frame, sources))
        .collect();
    let mut sum = Allocations::new(&UNITS);
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
        let place = of_host.or_else(outermost).unwrap_or("unknown");
        sum.add(place, count_point(point).map(|count| count / divisor as f64));
    }
    sum
}

/// A frame of a backtrace.
#[derive(Debug, PartialEq)]
enum Site<'a> {
    /// A file of the host, below its sources.
    Host(&'a str),
    /// The embedded API server, the captured log or the test.
    Test,
    /// A function of something else.
    Other(&'a str),
}

impl<'a> Site<'a> {
    /// Parses a frame, `ADDRESS: FUNCTION (FILE:LINE:COLUMN)`, of whose file the last three parts are there.
    fn parse(frame: &'a str, sources: &'a [String]) -> Self {
        let name = frame.split_once(": ").map_or(frame, |(_, name)| name);
        let (function, place) = name.rsplit_once(" (").unwrap_or((name, ""));
        if TEST_FUNCTIONS.iter().any(|own| function.contains(own)) {
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
    let root = host_sources();
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
    fn allocation_counts_for_the_innermost_file_of_the_host_unless_a_test_makes_it() {
        let profile = Profile {
            ftbl: [
                "0x1: alloc::vec::Vec<T>::push (src/vec/mod.rs:1:1)",
                "0x2: <ostler::kube::key::ObjectRef as core::clone::Clone>::clone (src/kube/key.rs:2:2)",
                "0x3: {async_fn#0} (sandbox/capabilities/kubernetes.rs:3:3)",
                "0x4: ostler_apiserver::serve (src/serve.rs:4:4)",
                "0x5: tokio::runtime::park (src/runtime/park.rs:5:5)",
                "0x6: <ostler_test_harness::logs::Tee as std::io::Write>::write (harness/src/logs.rs:6:6)",
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
                    tb: 880.0,
                    tbk: 1.0,
                    eb: 880.0,
                    ebk: 1.0,
                    fs: vec![0, 5, 2],
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
        let counts = sum_points(&profile, 2, &sources, |point| [point.tbk, point.tb]);
        assert_eq!(
            counts.to_text().lines().skip(1).collect::<Vec<_>>(),
            [
                "0.5 15 sandbox/capabilities/kubernetes.rs",
                "1.0 10 kube/key.rs",
                "0.5 4 tokio::runtime::park",
            ]
        );
    }
}
