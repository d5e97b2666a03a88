//! The runtime of the process: a thread for each core.

use std::{hint::black_box, io, sync::mpsc, thread};

use tokio::runtime::{Builder, Runtime};

use crate::sandbox::allocator;

/// Starts the threads of the runtime, and bounds the memory that the allocator keeps for them. To be called while the process has one thread.
///
/// # Errors
/// If the kernel refuses a thread.
pub fn start_runtime() -> io::Result<Runtime> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // The main thread has the first arena.
    allocator::limit_kept_memory(1 + cores);
    let (started, starts) = mpsc::channel();
    let runtime = Builder::new_multi_thread()
        .worker_threads(cores)
        .enable_all()
        .on_thread_start(move || {
            drop(black_box(Box::new(0_u8)));
            // Refused once those that are waited for have started.
            let _ = started.send(());
        })
        .build()?;
    // A thread takes an arena with its first allocation. Those of other threads come after it and share them: if one had taken an
    // arena before, two workers could share theirs, and wait for each other in each reconcile.
    starts.iter().take(cores).for_each(drop);
    Ok(runtime)
}
