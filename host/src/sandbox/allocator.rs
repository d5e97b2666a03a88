//! Settings of glibc's allocator, and the return of freed memory to the kernel. Other allocators are left alone.

/// Size from which a block is mapped on its own, and thus returned to the kernel when it is freed. By default glibc raises it to the
/// largest block that was freed: of components, which have up to 30 MB.
#[cfg(target_env = "gnu")]
const MIN_MAPPED_BYTES: std::ffi::c_int = 1 << 20;

/// Bounds the memory that the allocator keeps of freed blocks: the number of arenas, among which its threads share the blocks, and the size
/// of blocks that are kept. To be called before the process has more threads than one, since arenas remain.
///
/// Long computations start threads and end them, and with an arena for each the memory that they freed would stay resident. Threads that
/// share an arena wait for its lock.
#[cfg_attr(not(target_env = "gnu"), allow(unused_variables))]
pub fn limit_kept_memory(arenas: usize) {
    #[cfg(target_env = "gnu")]
    {
        // Their values in malloc.h.
        const M_MMAP_THRESHOLD: std::ffi::c_int = -3;
        const M_ARENA_MAX: std::ffi::c_int = -8;
        // Refused only where the size is out of range.
        glibc::mallopt(M_MMAP_THRESHOLD, MIN_MAPPED_BYTES);
        glibc::mallopt(M_ARENA_MAX, arenas.try_into().unwrap_or(std::ffi::c_int::MAX));
    }
}

/// Returns the pages that the allocator keeps of freed blocks to the kernel. By itself glibc returns only those behind the last used
/// block of a heap; the code of a component that was loaded or unloaded leaves tens of thousands of freed blocks among the used ones. It takes
/// milliseconds, in which it locks each heap in turn.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    glibc::malloc_trim(0);
}

/// Functions of malloc.h, as it declares them. A crate for these two would be a dependency more.
#[cfg(target_env = "gnu")]
mod glibc {
    use std::ffi::c_int;

    #[allow(unsafe_code)]
    // SAFETY: both take any values.
    unsafe extern "C" {
        /// Sets a parameter of the allocator.
        pub safe fn mallopt(parameter: c_int, value: c_int) -> c_int;
        /// Returns free pages to the kernel. It takes the bytes that stay behind the last used block.
        pub safe fn malloc_trim(pad: usize) -> c_int;
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
