//! Test functions of a scenario, one per tier.

use std::time::Duration;

use tokio::sync::RwLock;

/// Timeout of a whole scenario.
const SCENARIO_TIMEOUT: Duration = Duration::from_mins(10);

/// Held for writing by a scenario that measures latencies, and for reading by all others of the process.
static MACHINE: RwLock<()> = RwLock::const_new(());

/// Runs a scenario and fails it after [`SCENARIO_TIMEOUT`]. A test that hangs would otherwise block the whole suite
/// without a message.
pub async fn run_bounded(scenario: impl Future<Output = ()>) {
    let _shared = MACHINE.read().await;
    run_within_timeout(scenario).await;
}

/// Does the same while no other scenario of the process runs: latencies beside another one show that one's load.
pub async fn run_alone(scenario: impl Future<Output = ()>) {
    let _exclusive = MACHINE.write().await;
    run_within_timeout(scenario).await;
}

async fn run_within_timeout(scenario: impl Future<Output = ()>) {
    let ended = tokio::time::timeout(SCENARIO_TIMEOUT, scenario).await;
    ended.unwrap_or_else(|_| panic!("the scenario did not end within {SCENARIO_TIMEOUT:?}"));
}

/// Generates an embedded and a real test for each scenario. `hostile:` puts them into the hostile tier; `simulated:`
/// skips them on a real Concourse, because they inject faults or read the simulator's counters; `embedded:` generates no
/// real test, for long scenarios about the host alone; `alone` runs no other scenario beside them.
#[macro_export]
macro_rules! scenarios {
    (alone embedded hostile: $($name:ident),+ $(,)?) => {
        mod alone {
            mod hostile {
                $(use super::super::$name;)+
                $crate::scenarios!(@embedded run_alone $($name),+);
            }
        }
    };
    (alone hostile: $($name:ident),+ $(,)?) => {
        mod alone {
            mod hostile {
                $(use super::super::$name;)+
                $crate::scenarios!(@embedded run_alone $($name),+);
                $crate::scenarios!(@real run_alone $($name),+);
            }
        }
    };
    (embedded hostile: $($name:ident),+ $(,)?) => {
        mod hostile {
            $(use super::$name;)+
            $crate::scenarios!(embedded: $($name),+);
        }
    };
    (hostile: $($name:ident),+ $(,)?) => {
        mod hostile {
            $(use super::$name;)+
            $crate::scenarios!($($name),+);
        }
    };
    (simulated: $($name:ident),+ $(,)?) => {
        mod simulated {
            $(pub async fn $name(lab: $crate::Lab) {
                if lab.concourse.is_simulated("it injects faults or reads counters") {
                    super::$name(lab).await;
                }
            })+
            $crate::scenarios!($($name),+);
        }
    };
    (embedded: $($name:ident),+ $(,)?) => {
        $crate::scenarios!(@embedded run_bounded $($name),+);
    };
    (@embedded $run:ident $($name:ident),+) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::$run(async { super::$name($crate::Lab::embedded().await).await }).await;
            })+
        }
    };
    (@real $run:ident $($name:ident),+) => {
        mod real {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs the real control plane: cargo xtask test real"]
            async fn $name() {
                $crate::$run(async { super::$name($crate::Lab::real().await).await }).await;
            })+
        }
    };
    ($($name:ident),+ $(,)?) => {
        $crate::scenarios!(@embedded run_bounded $($name),+);
        $crate::scenarios!(@real run_bounded $($name),+);
    };
}
