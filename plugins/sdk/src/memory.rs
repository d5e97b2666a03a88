//! The guest's allocator: memory the component starts with, so that a short call never grows it.
//!
//! Growing costs the host two changes of page protection per call, there and back; the standard
//! library's allocator grows at its very first allocation.

// The one audited place of the SDK; natively it isn't compiled.
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

const PAGE: usize = 1 << 16;
/// What nearly every call gets along with; pages of it that aren't touched cost nothing.
const INITIAL: usize = 4 * PAGE;
/// Growing is dear, so it is done in large steps.
const STEP: usize = 16;

static mut ARENA: [MaybeUninit<u8>; INITIAL] = [MaybeUninit::uninit(); INITIAL];

#[global_allocator]
static ALLOCATOR: TalcSyncCell<Memory, WasmBinning> = TalcSyncCell::new_wasm(Memory { end: None });

/// The arena first, then pages at the end of memory.
#[derive(Debug)]
struct Memory {
    /// Where what is in use ends; none at the start.
    end: Option<NonNull<u8>>,
}

// SAFETY: allocates nothing itself; hands over the arena, which nobody else names, once, and after
// that only pages that it has just grown.
unsafe impl Source for Memory {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        let Some(end) = talc.source.end else {
            talc.source.end = unsafe { talc.claim((&raw mut ARENA).cast(), INITIAL) };
            return talc.source.end.map(|_| ()).ok_or(());
        };
        // The allocator's own header and alignment come on top.
        let needed = (layout.size() + layout.align() + 64).div_ceil(PAGE);
        let base = memory_size::<0>() * PAGE;
        let pages = [needed.max(STEP), needed]
            .into_iter()
            .find(|pages| memory_grow::<0>(*pages) != usize::MAX)
            .ok_or(())?;
        talc.source.end = if end.as_ptr() as usize == base {
            unsafe { Some(talc.extend(end, (base + pages * PAGE) as *mut u8)) }
        } else {
            unsafe { talc.claim(base as *mut u8, pages * PAGE) }
        };
        talc.source.end.map(|_| ()).ok_or(())
    }
}
