//! The distance of the machine's cores, on which the cost of what threads share depends.

use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Instant,
};

/// Number of transfers in both directions of one measurement.
const TRANSFERS: u32 = 200_000;

/// Nanoseconds below which the cores are near each other: within a complex of caches a line takes 25 to 80, between two 200.
pub const NEAR_TRANSFER_NS: f64 = 100.0;

/// Measures the time in nanoseconds in which a cache line with a change of one core reaches another one: two threads take
/// turns. A hypervisor may place the cores of a virtual machine on one or on several complexes of caches, and move them; between
/// complexes a transfer takes several times as long. None on a machine with one core.
pub fn measure_line_transfer() -> Option<f64> {
    if thread::available_parallelism().is_ok_and(|cores| cores.get() == 1) {
        return None;
    }
    let turn = AtomicU32::new(0);
    let take_turns = |parity: u32| {
        for mine in (parity..TRANSFERS).step_by(2) {
            while turn.load(Ordering::Acquire) != mine {
                spin_loop();
            }
            turn.store(mine + 1, Ordering::Release);
        }
    };
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| take_turns(0));
        take_turns(1);
    });
    Some(began.elapsed().as_secs_f64() * 1e9 / f64::from(TRANSFERS))
}
