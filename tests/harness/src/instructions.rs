//! Counts of instructions, by the file of the host that executes or calls them.
//!
//! Few virtual machines have the processor's counters, so a thread is single-stepped: with its trap flag set, the processor has the
//! kernel send SIGTRAP before each instruction, and the handler records where the thread is. That slows the thread down by four orders
//! of magnitude, but neither noise nor other threads change the counts.

#![allow(unsafe_code)]

mod call_stack;
mod process_code;

use std::{
    arch::asm,
    ffi::c_void,
    fs,
    future::poll_fn,
    hint::spin_loop,
    mem,
    path::PathBuf,
    pin::pin,
    ptr,
    sync::{
        Once,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use self::{
    call_stack::{ThreadStep, sum_steps},
    process_code::{ProcessCode, ProcessMemory},
};
use crate::counts::{CountUnit, PlaceCounts};

/// Instructions of something.
pub type Instructions = PlaceCounts<1>;

const UNITS: [CountUnit; 1] = [CountUnit::INSTRUCTIONS];

/// Instructions that are recorded: several times those of a reconcile.
const MAX_STEPS: usize = 1 << 22;
/// The trap flag of the processor.
const TRAP_FLAG: u64 = 0x100;
/// Name of the threads that interrupt components after some time.
const EPOCH_THREAD: &str = "epoch\n";

/// Where the thread is before an instruction.
struct RecordedStep {
    instruction: AtomicUsize,
    stack: AtomicUsize,
}

/// The recorded steps. A handler of a signal must not allocate.
static STEPS: [RecordedStep; MAX_STEPS] = [const {
    RecordedStep {
        instruction: AtomicUsize::new(0),
        stack: AtomicUsize::new(0),
    }
}; MAX_STEPS];
static STEP_COUNT: AtomicUsize = AtomicUsize::new(0);
static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static PAUSED_THREADS: AtomicUsize = AtomicUsize::new(0);

/// Counts what `work` executes while it is polled. The C library does not count: its functions differ
/// by processor. `work` must not start threads, nor may its thread be in a signal handler.
///
/// # Panics
/// Where something else is counted at the same time.
pub async fn count_instructions(work: impl Future<Output = ()>) -> Instructions {
    install_handler();
    let was_counting = IS_COUNTING.swap(true, Ordering::SeqCst);
    assert!(!was_counting, "something else is counted at the same time");
    STEP_COUNT.store(0, Ordering::SeqCst);
    let counting = CountInProgress;
    pause_epochs();
    let mut work = pin!(work);
    poll_fn(|context| {
        let _stepping = SingleStep::start();
        work.as_mut().poll(context)
    })
    .await;
    drop(counting);
    let recorded = STEPS.get(..STEP_COUNT.load(Ordering::SeqCst));
    let steps = recorded
        .expect("the steps are recorded")
        .iter()
        .map(|step| ThreadStep {
            instruction: step.instruction.load(Ordering::Relaxed),
            stack: step.stack.load(Ordering::Relaxed),
        });
    let memory = ProcessMemory::read();
    let mut code = ProcessCode::read(&memory);
    let find_owner = |address| code.find_owner(address);
    sum_steps(steps, find_owner, |stack| memory.find_start(stack))
}

/// A count in progress. Threads that are paused go on when it is dropped.
struct CountInProgress;

impl Drop for CountInProgress {
    fn drop(&mut self) {
        IS_COUNTING.store(false, Ordering::SeqCst);
    }
}

/// Single-steps this thread until it is dropped.
struct SingleStep;

impl SingleStep {
    fn start() -> Self {
        // SAFETY: it sets a flag of this thread, and the handler is installed.
        unsafe {
            asm!("pushfq", "or qword ptr [rsp], {flag}", "popfq", flag = const TRAP_FLAG);
        }
        Self
    }
}

impl Drop for SingleStep {
    fn drop(&mut self) {
        // SAFETY: it clears a flag of this thread.
        unsafe {
            asm!("pushfq", "and qword ptr [rsp], {mask}", "popfq", mask = const !(TRAP_FLAG as i64));
        }
    }
}

fn install_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: all fields may be zero, and the handler does only what a handler may.
        let installed = unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = on_trap;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(libc::SIGTRAP, &raw const action, ptr::null_mut())
        };
        assert_eq!(installed, 0, "SIGTRAP is handled");
    });
}

/// Records the instruction that comes next, or pauses the thread that was sent the signal by [`pause_epochs`].
extern "C" fn on_trap(_signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both.
    let (cause, registers) = unsafe {
        let context = context.cast::<libc::ucontext_t>();
        ((*info).si_code, (*context).uc_mcontext.gregs)
    };
    if cause == libc::SI_TKILL {
        PAUSED_THREADS.fetch_add(1, Ordering::SeqCst);
        while IS_COUNTING.load(Ordering::SeqCst) {
            // SAFETY: a handler may sleep.
            unsafe { libc::usleep(1000) };
        }
        PAUSED_THREADS.fetch_sub(1, Ordering::SeqCst);
        return;
    }
    if let Some(step) = STEPS.get(STEP_COUNT.fetch_add(1, Ordering::Relaxed)) {
        let register = |number: i32| registers[number as usize] as usize;
        step.instruction.store(register(libc::REG_RIP), Ordering::Relaxed);
        step.stack.store(register(libc::REG_RSP), Ordering::Relaxed);
    }
}

/// Pauses the threads that interrupt components, whose calls take ten thousand times as long, until nothing is counted.
fn pause_epochs() {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads of this process");
    let mut paused: Vec<PathBuf> = tasks.map(|task| task.expect("a thread").path()).collect();
    paused.retain(|task| {
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        let id = task.file_name().and_then(|id| id.to_str()?.parse().ok());
        name == EPOCH_THREAD && id.is_some_and(send_trap)
    });
    // One of an engine that was dropped may end meanwhile.
    let is_paused = || {
        let running = paused.iter().filter(|task| task.exists()).count();
        PAUSED_THREADS.load(Ordering::SeqCst) >= running
    };
    while !is_paused() {
        spin_loop();
    }
}

/// Sends SIGTRAP to a thread of this process. Returns false if it has ended.
fn send_trap(thread: libc::pid_t) -> bool {
    // SAFETY: the signal has a handler.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGTRAP) };
    sent == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes two instructions this number of times.
    fn count_down(from: u64) {
        // SAFETY: it changes a register only.
        unsafe {
            asm!("2:", "dec {n}", "jnz 2b", n = inout(reg) from => _);
        }
    }

    #[tokio::test]
    async fn every_instruction_counts_once() {
        let count = async |from| count_instructions(async { count_down(from) }).await.total()[0];
        let (few, many) = (count(1000).await, count(3000).await);
        assert_eq!(many - few, 4000.0);
    }
}
