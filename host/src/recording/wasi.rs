//! Clocks and randomness of components that import WASI, recorded and replayed like host calls.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use rand::{SeedableRng, rngs::StdRng};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder};

use super::format::Wasi;
use crate::kube::hash::encode_hex;

/// Maximum number of recorded readings of each clock.
const MAX_READINGS: usize = 4096;

/// The clocks and the randomness of one component, recorded or replayed.
#[derive(Clone)]
pub struct WasiInputs(Arc<Mutex<ClockState>>);

/// The seed and the clocks.
struct ClockState {
    seed: [u8; 32],
    wall: Readings,
    monotonic: Readings,
    started: Instant,
}

/// The readings of one clock.
#[derive(Default)]
struct Readings {
    values: Vec<u64>,
    /// Index of the next reading of a replay; none in a recording.
    next: Option<usize>,
    cut: bool,
}

impl Readings {
    fn replayed(values: Vec<u64>) -> Self {
        Self {
            values,
            next: Some(0),
            cut: false,
        }
    }

    /// Returns the next recorded reading, or reads the clock. After the last recorded reading each one is a millisecond
    /// later, so that a loop that waits for time to pass ends.
    fn read(&mut self, clock: impl FnOnce() -> Duration) -> u64 {
        let now = match &mut self.next {
            None => u64::try_from(clock().as_nanos()).unwrap_or(u64::MAX),
            Some(next) => match self.values.get(*next) {
                Some(recorded) => {
                    *next += 1;
                    return *recorded;
                }
                None => {
                    *next += 1;
                    self.values.last().copied().unwrap_or(0).saturating_add(1_000_000)
                }
            },
        };
        if self.values.len() < MAX_READINGS {
            self.values.push(now);
        } else if self.next.is_some() {
            self.values = vec![now];
        } else {
            self.cut = true;
        }
        now
    }
}

impl WasiInputs {
    /// Real clocks and randomness, which are recorded. The seed is as secret as the values derived from it: both stay with
    /// the plugin and its recording.
    pub fn recorded() -> Self {
        Self::new(rand::random(), Readings::default(), Readings::default())
    }

    /// Clocks and randomness of a recording. A recording without them, of a build that did not import WASI, yields clocks
    /// that begin at this time.
    pub fn replayed(wasi: Option<&Wasi>, started_ms: u64) -> Self {
        let started = vec![started_ms.saturating_mul(1_000_000)];
        match wasi {
            Some(wasi) => Self::new(
                parse_seed(&wasi.seed),
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
        Self(Arc::new(Mutex::new(ClockState {
            seed,
            wall,
            monotonic,
            started: Instant::now(),
        })))
    }

    /// Installs them in the WASI context of a component.
    pub fn install(&self, wasi: &mut WasiCtxBuilder) {
        let seed = self.0.lock().seed;
        let mut other = seed;
        other[0] ^= 0xff;
        let (first, _) = other.split_at(16);
        wasi.secure_random(StdRng::from_seed(seed))
            .insecure_random(StdRng::from_seed(other))
            .insecure_random_seed(u128::from_le_bytes(first.try_into().unwrap_or_default()))
            .wall_clock(self.clone())
            .monotonic_clock(self.clone());
    }

    /// The readings so far.
    pub fn readings(&self) -> Wasi {
        let state = self.0.lock();
        Wasi {
            seed: encode_hex(&state.seed),
            wall_clock: state.wall.values.clone(),
            monotonic_clock: state.monotonic.values.clone(),
            cut: state.wall.cut || state.monotonic.cut,
        }
    }
}

/// Parses 32 bytes in hexadecimal. A malformed byte is 0.
fn parse_seed(hex: &str) -> [u8; 32] {
    let mut seed = [0; 32];
    for (byte, at) in seed.iter_mut().zip((0..hex.len()).step_by(2)) {
        *byte = hex
            .get(at..at + 2)
            .and_then(|h| u8::from_str_radix(h, 16).ok())
            .unwrap_or(0);
    }
    seed
}

impl HostWallClock for WasiInputs {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn now(&self) -> Duration {
        let since = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Duration::from_nanos(self.0.lock().wall.read(since))
    }
}

impl HostMonotonicClock for WasiInputs {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        let state = &mut *self.0.lock();
        let started = state.started;
        state.monotonic.read(|| started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_repeats_readings_and_then_goes_on() {
        let recorded = WasiInputs::recorded();
        let first: Vec<_> = (0..3).map(|_| HostWallClock::now(&recorded)).collect();
        let ticked: Vec<_> = (0..2).map(|_| HostMonotonicClock::now(&recorded)).collect();
        let readings = recorded.readings();
        let replayed = WasiInputs::replayed(Some(&readings), 0);
        assert_eq!(parse_seed(&readings.seed), recorded.0.lock().seed);
        let again: Vec<_> = (0..3).map(|_| HostWallClock::now(&replayed)).collect();
        assert_eq!(again, first);
        assert_eq!(
            (0..2)
                .map(|_| HostMonotonicClock::now(&replayed))
                .collect::<Vec<_>>(),
            ticked
        );
        // A loop that waits for time to pass ends.
        let after = HostWallClock::now(&replayed);
        assert!(after > first[2] && HostWallClock::now(&replayed) > after);
    }

    #[test]
    fn readings_are_bounded() {
        let recorded = WasiInputs::recorded();
        for _ in 0..MAX_READINGS + 10 {
            HostWallClock::now(&recorded);
        }
        let readings = recorded.readings();
        assert!(readings.wall_clock.len() == MAX_READINGS && readings.cut);
        let replayed = WasiInputs::replayed(None, 1);
        for _ in 0..2 * MAX_READINGS {
            HostWallClock::now(&replayed);
        }
        assert!(replayed.readings().wall_clock.len() <= MAX_READINGS);
    }
}
