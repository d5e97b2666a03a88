//! Clocks and randomness of components that import WASI: as everything else, on the tape.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rand::{SeedableRng, rngs::StdRng};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder};

use super::format::Wasi;
use crate::kube::hash::encode_hex;

/// Readings of each clock that are kept.
const READINGS: usize = 4096;

/// What a component with WASI is told, recorded or replayed.
#[derive(Clone)]
pub struct Surroundings(Arc<Mutex<State>>);

struct State {
    seed: [u8; 32],
    wall: Readings,
    monotonic: Readings,
    started: Instant,
}

#[derive(Default)]
struct Readings {
    known: Vec<u64>,
    /// The next one of a replay; none while it is recorded.
    next: Option<usize>,
    cut: bool,
}

impl Readings {
    fn replayed(known: Vec<u64>) -> Self {
        Self {
            known,
            next: Some(0),
            cut: false,
        }
    }

    /// The next reading: of the tape, or of the clock. Who looks more often than the tape knows sees time go on.
    fn read(&mut self, clock: impl FnOnce() -> Duration) -> u64 {
        let now = match &mut self.next {
            None => u64::try_from(clock().as_nanos()).unwrap_or(u64::MAX),
            Some(next) => match self.known.get(*next) {
                Some(recorded) => {
                    *next += 1;
                    return *recorded;
                }
                None => {
                    *next += 1;
                    self.known.last().copied().unwrap_or(0).saturating_add(1_000_000)
                }
            },
        };
        match self.known.len() < READINGS {
            true => self.known.push(now),
            false if self.next.is_some() => self.known = vec![now],
            false => self.cut = true,
        }
        now
    }
}

impl Surroundings {
    /// The real ones, recorded. The seed is as secret as what is made of it: both stay with the plugin and its tape.
    pub fn recorded() -> Self {
        Self::new(rand::random(), Readings::default(), Readings::default())
    }

    /// Those of a recording, or where it has none (the build before used no WASI) such ones from this time on.
    pub fn replayed(wasi: Option<&Wasi>, started_ms: u64) -> Self {
        let started = vec![started_ms.saturating_mul(1_000_000)];
        match wasi {
            Some(wasi) => Self::new(
                seed(&wasi.seed),
                Readings::replayed(wasi.wall_clock.clone()),
                Readings::replayed(wasi.monotonic_clock.clone()),
            ),
            None => Self::new(
                [0; 32],
                Readings::replayed(started),
                Readings::replayed(Vec::new()),
            ),
        }
    }

    fn new(seed: [u8; 32], wall: Readings, monotonic: Readings) -> Self {
        Self(Arc::new(Mutex::new(State {
            seed,
            wall,
            monotonic,
            started: Instant::now(),
        })))
    }

    /// Has a component see these.
    pub fn surround(&self, wasi: &mut WasiCtxBuilder) {
        let seed = self.0.lock().expect("lock").seed;
        let mut other = seed;
        other[0] ^= 0xff;
        let [a, ..] = u128s(&other);
        wasi.secure_random(StdRng::from_seed(seed))
            .insecure_random(StdRng::from_seed(other))
            .insecure_random_seed(a)
            .wall_clock(self.clone())
            .monotonic_clock(self.clone());
    }

    /// What was told so far.
    pub fn heard(&self) -> Wasi {
        let state = self.0.lock().expect("lock");
        Wasi {
            seed: encode_hex(&state.seed),
            wall_clock: state.wall.known.clone(),
            monotonic_clock: state.monotonic.known.clone(),
            cut: state.wall.cut || state.monotonic.cut,
        }
    }
}

fn u128s(seed: &[u8; 32]) -> [u128; 1] {
    let mut first = [0; 16];
    first.copy_from_slice(&seed[..16]);
    [u128::from_le_bytes(first)]
}

/// 32 bytes in hexadecimal; what is none of them is 0.
fn seed(hex: &str) -> [u8; 32] {
    let mut seed = [0; 32];
    for (byte, at) in seed.iter_mut().zip((0..hex.len()).step_by(2)) {
        *byte = hex
            .get(at..at + 2)
            .and_then(|h| u8::from_str_radix(h, 16).ok())
            .unwrap_or(0);
    }
    seed
}

impl HostWallClock for Surroundings {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn now(&self) -> Duration {
        let since = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Duration::from_nanos(self.0.lock().expect("lock").wall.read(since))
    }
}

impl HostMonotonicClock for Surroundings {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        let state = &mut *self.0.lock().expect("lock");
        let started = state.started;
        state.monotonic.read(|| started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_is_told_the_same_and_then_goes_on() {
        let recorded = Surroundings::recorded();
        let told: Vec<_> = (0..3).map(|_| HostWallClock::now(&recorded)).collect();
        let ticked: Vec<_> = (0..2).map(|_| HostMonotonicClock::now(&recorded)).collect();
        let heard = recorded.heard();
        let replayed = Surroundings::replayed(Some(&heard), 0);
        assert_eq!(seed(&heard.seed), recorded.0.lock().unwrap().seed);
        let again: Vec<_> = (0..3).map(|_| HostWallClock::now(&replayed)).collect();
        assert_eq!(again, told);
        assert_eq!(
            (0..2)
                .map(|_| HostMonotonicClock::now(&replayed))
                .collect::<Vec<_>>(),
            ticked
        );
        // A loop that waits for time to pass ends.
        let after = HostWallClock::now(&replayed);
        assert!(after > told[2] && HostWallClock::now(&replayed) > after);
    }

    #[test]
    fn readings_are_bounded() {
        let recorded = Surroundings::recorded();
        for _ in 0..READINGS + 10 {
            HostWallClock::now(&recorded);
        }
        let heard = recorded.heard();
        assert!(heard.wall_clock.len() == READINGS && heard.cut);
        let replayed = Surroundings::replayed(None, 1);
        for _ in 0..2 * READINGS {
            HostWallClock::now(&replayed);
        }
        assert!(replayed.heard().wall_clock.len() <= READINGS);
    }
}
