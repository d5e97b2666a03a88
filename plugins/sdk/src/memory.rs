//! The guest's allocator, which starts with an arena in the component's initial memory, so that a short call never grows
//! the memory.
//!
//! Growing costs the host two changes of page protection per call, which it reverts after the call; the standard library's
//! allocator grows at its first allocation.

// The only unsafe code of the SDK; it is not compiled natively.
#![allow(unsafe_code)]

use core::{
    alloc::Layout,
    arch::wasm32::{memory_grow, memory_size},
    mem::MaybeUninit,
    ptr::NonNull,
};

use talc::{
    base::{Talc, binning::Binning},
    cell::TalcSyncCell,
    source::Source,
    wasm::WasmBinning,
};

const PAGE_SIZE: usize = 1 << 16;
/// Size of the arena, which suffices for nearly every call. Untouched pages cost nothing.
const ARENA_SIZE: usize = 4 * PAGE_SIZE;
/// Minimum number of pages per growth, since growing is expensive.
const MIN_GROWTH_PAGES: usize = 16;

static mut ARENA: [MaybeUninit<u8>; ARENA_SIZE] = [MaybeUninit::uninit(); ARENA_SIZE];

#[global_allocator]
static ALLOCATOR: TalcSyncCell<Memory, WasmBinning> = TalcSyncCell::new_wasm(Memory { end: None });

/// Source of memory: first the arena, then pages at the end of the linear memory.
#[derive(Debug)]
struct Memory {
    /// End of the claimed memory; `None` before the first allocation.
    end: Option<NonNull<u8>>,
}

// SAFETY: it allocates nothing itself. It hands over the arena, which no other code refers to, once, and after that only
// pages that it has just grown.
unsafe impl Source for Memory {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        let Some(end) = talc.source.end else {
            talc.source.end = unsafe { talc.claim((&raw mut ARENA).cast(), ARENA_SIZE) };
            return talc.source.end.map(|_| ()).ok_or(());
        };
        // The allocator's own header and alignment come on top.
        let needed = (layout.size() + layout.align() + 64).div_ceil(PAGE_SIZE);
        let base = memory_size::<0>() * PAGE_SIZE;
        let pages = [needed.max(MIN_GROWTH_PAGES), needed]
            .into_iter()
            .find(|pages| memory_grow::<0>(*pages) != usize::MAX)
            .ok_or(())?;
        talc.source.end = if end.as_ptr() as usize == base {
            unsafe { Some(talc.extend(end, (base + pages * PAGE_SIZE) as *mut u8)) }
        } else {
            unsafe { talc.claim(base as *mut u8, pages * PAGE_SIZE) }
        };
        talc.source.end.map(|_| ()).ok_or(())
    }
}
