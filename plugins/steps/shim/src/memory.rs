//! Processes of the container that the kernel ended for their use of memory. With cgroup v1 the shim survives that, and the
//! kubelet does not always report it.

use std::fs;

/// Files with the counter, of cgroup v2 and v1, as a container sees its own group.
const COUNTER_PATHS: [&str; 2] = [
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
];

/// Number of processes that the kernel has ended; 0 where it cannot be read.
pub fn count_oom_kills() -> u64 {
    let text = COUNTER_PATHS
        .iter()
        .find_map(|path| fs::read_to_string(path).ok());
    parse_oom_kills(&text.unwrap_or_default())
}

fn parse_oom_kills(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_is_read_from_both_versions_of_cgroups() {
        assert_eq!(
            parse_oom_kills("low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n"),
            2
        );
        assert_eq!(
            parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
            1
        );
        assert_eq!(parse_oom_kills(""), 0);
    }
}
