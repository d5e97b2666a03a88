//! A scenario, in every tier it belongs to.

use std::time::Duration;

/// What a scenario has at most, all its waits together.
const SCENARIO: Duration = Duration::from_mins(10);

/// Fails a scenario that never ends: what hangs holds up all that come after it, and says nothing.
pub async fn bounded(scenario: impl Future<Output = ()>) {
    let ended = tokio::time::timeout(SCENARIO, scenario).await;
    ended.unwrap_or_else(|_| panic!("it has not ended after {SCENARIO:?}"));
}

/// Generates an embedded and a real test for each scenario; `hostile:` puts them into the hostile tier,
/// and those that are `simulated:` need a Concourse that does as the test says.
#[macro_export]
macro_rules! scenarios {
    (hostile: $($name:ident),+ $(,)?) => {
        mod hostile {
            $(use super::$name;)+
            $crate::scenarios!($($name),+);
        }
    };
    (simulated: $($name:ident),+ $(,)?) => {
        mod simulated {
            $(pub async fn $name(lab: $crate::Lab) {
                if lab.concourse.simulated("faults, or what is counted") {
                    super::$name(lab).await;
                }
            })+
            $crate::scenarios!($($name),+);
        }
    };
    ($($name:ident),+ $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::bounded(async { super::$name($crate::Lab::embedded().await).await }).await;
            })+
        }
        mod real {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs the real control plane: cargo xtask test real"]
            async fn $name() {
                $crate::bounded(async { super::$name($crate::Lab::real().await).await }).await;
            })+
        }
    };
}
