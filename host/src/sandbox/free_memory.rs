//! Return of freed memory to the kernel.

/// Returns the pages that the allocator keeps of freed blocks to the kernel. By itself glibc returns only those behind the last used
/// block of a heap; the code of a component that was loaded or unloaded leaves tens of thousands of freed blocks among the used ones. It takes
/// milliseconds, in which it locks each heap in turn. Allocators other than glibc's are left alone.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    {
        // A crate for this one function would be a dependency more.
        #[allow(unsafe_code)]
        // SAFETY: this is its declaration in malloc.h. It takes the bytes that stay behind the last used block.
        unsafe extern "C" {
            safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Anonymous memory of this process that is resident, in KiB.
    fn read_anonymous_memory() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        line.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn freed_blocks_among_used_ones_are_returned_to_the_kernel() {
        const BLOCK_BYTES: usize = 8 << 10;
        let mut blocks: Vec<Vec<u8>> = (0..8 << 10).map(|_| vec![1; BLOCK_BYTES]).collect();
        // Before they are freed: another test of this process may call it as soon as they are.
        let before = read_anonymous_memory();
        let mut index = 0;
        blocks.retain(|_| {
            index += 1;
            index % 256 == 0
        });
        release_free_memory();
        let after = read_anonymous_memory();
        assert!(after + (32 << 10) < before, "{before} KiB before, {after} after");
        assert!(blocks.iter().all(|block| block == &[1; BLOCK_BYTES]));
    }
}
