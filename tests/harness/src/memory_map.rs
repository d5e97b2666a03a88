//! What a process has mapped into its memory: proc_pid_maps(5).

use std::{fmt::Display, fs, ops::Range};

/// A range of addresses of a process.
#[derive(Debug)]
pub(crate) struct MemoryMapping {
    pub range: Range<usize>,
    /// Such as `rw-p`.
    pub permissions: String,
    /// The file that is mapped, a name of the kernel such as `[heap]`, or nothing.
    pub path: String,
}

/// Lists the mappings of a process, in the order of their addresses. It is given by its number, or is this one as `self`.
pub(crate) fn list_mappings(process: impl Display) -> Vec<MemoryMapping> {
    let text = fs::read_to_string(format!("/proc/{process}/maps")).expect("the process runs");
    text.lines().filter_map(MemoryMapping::parse).collect()
}

impl MemoryMapping {
    /// Parses a line: `START-END PERMISSIONS OFFSET DEVICE INODE PATH`.
    pub fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |digits: &str| usize::from_str_radix(digits, 16).ok();
        Some(Self {
            range: hex(start)?..hex(end)?,
            permissions: fields.next()?.to_owned(),
            path: fields.nth(3).unwrap_or_default().to_owned(),
        })
    }
}
