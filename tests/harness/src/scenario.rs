//! Test functions of a scenario, one per tier.

use std::time::Duration;

/// Timeout of a whole scenario.
const SCENARIO_TIMEOUT: Duration = Duration::from_mins(10);

/// Runs a scenario and fails it after [`SCENARIO_TIMEOUT`]. A test that hangs would otherwise block the whole suite
/// without a message.
pub async fn run_bounded(scenario: impl Future<Output = ()>) {
    let ended = tokio::time::timeout(SCENARIO_TIMEOUT, scenario).await;
    ended.unwrap_or_else(|_| panic!("the scenario did not end within {SCENARIO_TIMEOUT:?}"));
}

/// Generates an embedded and a real test for each scenario. `hostile:` puts them into the hostile tier; `simulated:`
/// skips them on a real Concourse, because they inject faults or read the simulator's counters; `embedded:` generates no
/// real test, for long scenarios about the host alone.
#[macro_export]
macro_rules! scenarios {
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
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::run_bounded(async { super::$name($crate::Lab::embedded().await).await }).await;
            })+
        }
    };
    ($($name:ident),+ $(,)?) => {
        $crate::scenarios!(embedded: $($name),+);
        mod real {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs the real control plane: cargo xtask test real"]
            async fn $name() {
                $crate::run_bounded(async { super::$name($crate::Lab::real().await).await }).await;
            })+
        }
    };
}
