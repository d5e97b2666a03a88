//! The memory that this process may have: the limit of its cgroup (v2 or v1), or the memory of the machine.

use std::path::{Path, PathBuf};

/// Bytes of memory that the process may have; none if neither a cgroup nor the system gives a size.
pub fn memory_limit() -> Option<usize> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let machine = parse_total_memory(&read("/proc/meminfo"));
    let folders = memory_cgroups(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
    let limits = folders
        .iter()
        .filter_map(|(mount, folder)| find_limit(mount, folder));
    // Without a limit v1 gives a number above all memory there can be.
    limits.chain(machine).min()
}

/// The memory of the machine, from `/proc/meminfo`.
fn parse_total_memory(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// The folders of the cgroups that limit the memory, each with its mount point.
fn memory_cgroups(cgroup: &str, mountinfo: &str) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let is_v2 = controllers.is_empty();
        if !is_v2 && !controllers.split(',').any(|c| c == "memory") {
            continue;
        }
        for mount in mountinfo.lines().filter_map(parse_mount) {
            let is_ours = match is_v2 {
                true => mount.kind == "cgroup2",
                false => mount.kind == "cgroup" && mount.options.split(',').any(|o| o == "memory"),
            };
            if is_ours {
                // In a container without a cgroup namespace the path begins with the root of the mount.
                let relative = Path::new(path)
                    .strip_prefix(mount.root)
                    .or(Path::new(path).strip_prefix("/"));
                let point = PathBuf::from(mount.point);
                let folder = relative.map_or_else(|_| point.clone(), |relative| point.join(relative));
                found.push((point, folder));
            }
        }
    }
    found
}

/// A line of `/proc/self/mountinfo`.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

fn parse_mount(line: &str) -> Option<Mount<'_>> {
    let (fields, file_system) = line.split_once(" - ")?;
    let mut fields = fields.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let mut file_system = file_system.split(' ');
    let kind = file_system.next()?;
    Some(Mount {
        root,
        point,
        kind,
        options: file_system.nth(1)?,
    })
}

/// The smallest limit of a cgroup and those that it is in, up to the mount point.
fn find_limit(mount: &Path, folder: &Path) -> Option<usize> {
    let up_to_mount = folder.ancestors().take_while(|f| f.starts_with(mount));
    let limits = up_to_mount.flat_map(|f| ["memory.max", "memory.limit_in_bytes"].map(|file| f.join(file)));
    // `max` is no number, and no limit.
    limits
        .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a limit into a folder that stands for a cgroup.
    fn write_limit(folder: &Path, file: &str, limit: &str) {
        std::fs::create_dir_all(folder).expect("a folder");
        std::fs::write(folder.join(file), limit).expect("a file");
    }

    #[test]
    fn limit_of_a_v2_cgroup_is_the_smallest_above_it() {
        let root = tempfile::tempdir().expect("a folder");
        write_limit(&root.path().join("pods"), "memory.max", "536870912\n");
        write_limit(&root.path().join("pods/host"), "memory.max", "max\n");
        let mountinfo = format!(
            "36 25 0:31 / {} rw,nosuid shared:9 - cgroup2 cgroup2 rw",
            root.path().display()
        );
        let folders = memory_cgroups("0::/pods/host\n", &mountinfo);
        let limits: Vec<_> = folders.iter().map(|(m, f)| find_limit(m, f)).collect();
        assert_eq!(limits, [Some(512 << 20)]);
    }

    #[test]
    fn limit_of_a_v1_cgroup_is_found_with_and_without_its_namespace() {
        let root = tempfile::tempdir().expect("a folder");
        write_limit(&root.path().join("job"), "memory.limit_in_bytes", "268435456\n");
        let mount = |root_of: &str, point: &Path| {
            format!(
                "37 25 0:32 {root_of} {} rw,relatime - cgroup cgroup rw,memory\n\
                 38 25 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
                point.display()
            )
        };
        let cgroup = "4:memory:/job\n3:cpuset:/\n0::/\n";
        for mountinfo in [mount("/", root.path()), mount("/job", &root.path().join("job"))] {
            let folders = memory_cgroups(cgroup, &mountinfo);
            let limits: Vec<_> = folders.iter().map(|(m, f)| find_limit(m, f)).collect();
            assert_eq!(limits, [Some(256 << 20)], "{mountinfo}");
        }
    }

    #[test]
    fn machine_memory_is_read_from_meminfo() {
        assert_eq!(
            parse_total_memory("MemTotal:       1024 kB\nMemFree: 1 kB\n"),
            Some(1 << 20)
        );
        assert!(memory_limit().is_some_and(|bytes| bytes > 16 << 20));
    }
}
