//! Control groups that limit the memory of a host process.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// A control group with a limit of memory and no swap; removed when dropped, after its processes have ended.
pub struct MemoryCgroup {
    folder: PathBuf,
    is_v2: bool,
}

impl MemoryCgroup {
    /// Creates a control group, or reports that the test is skipped. Root can always make one, so that it fails for root.
    pub fn create_or_skip(bytes: usize) -> Option<Self> {
        match Self::create(bytes) {
            Ok(group) => Some(group),
            Err(why) if rustix::process::geteuid().is_root() => {
                panic!(
                    "no control group with a limit of memory can be made: {why}; mount cgroup v2 or v1 writable"
                )
            }
            Err(why) => {
                // Not by `eprintln!`, whose output a test that passes does not show.
                let note = format!("SKIPPED: only root can limit the memory of a process: {why}\n");
                std::io::stderr().write_all(note.as_bytes()).expect("stderr");
                None
            }
        }
    }

    /// Creates a control group below the root of the hierarchy, v2 or v1. The error says why there can be none.
    fn create(bytes: usize) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
        let mut why = String::from("no cgroup file system is mounted");
        for line in mounts.lines() {
            let Some((fields, file_system)) = line.split_once(" - ") else {
                continue;
            };
            let point = Path::new(fields.split(' ').nth(4).unwrap_or_default());
            let is_v2 = file_system.starts_with("cgroup2 ");
            let options = file_system.rsplit(' ').next().unwrap_or_default();
            let is_v1 = file_system.starts_with("cgroup ") && options.split(',').any(|o| o == "memory");
            if !is_v1 && !is_v2 {
                continue;
            }
            match Self::create_below(point, is_v2, bytes) {
                Ok(group) => return Ok(group),
                Err(e) => why = format!("{}: {e}", point.display()),
            }
        }
        Err(why)
    }

    fn create_below(mount: &Path, is_v2: bool, bytes: usize) -> std::io::Result<Self> {
        if is_v2 {
            // Fails where the memory controller belongs to v1.
            fs::write(mount.join("cgroup.subtree_control"), "+memory")?;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = mount.join(format!("ostler-test-{}-{number}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = Self { folder, is_v2 };
        let limit = if is_v2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        fs::write(group.folder.join(limit), bytes.to_string())?;
        // Systems without swap have no such file.
        let (swap, value) = match is_v2 {
            true => ("memory.swap.max", "0".to_owned()),
            false => ("memory.memsw.limit_in_bytes", bytes.to_string()),
        };
        let _ = fs::write(group.folder.join(swap), value);
        Ok(group)
    }

    /// The file that takes the ids of processes.
    pub fn processes(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// The largest use of memory so far, page cache included.
    pub fn peak_bytes(&self) -> usize {
        let file = if self.is_v2 {
            "memory.peak"
        } else {
            "memory.max_usage_in_bytes"
        };
        let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Number of processes that the kernel has killed because the memory was used up.
    pub fn oom_kills(&self) -> usize {
        let file = if self.is_v2 {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        let text = fs::read_to_string(self.folder.join(file)).expect("the cgroup exists");
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|n| n.trim().parse().ok())
            .expect("a count of kills")
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}
