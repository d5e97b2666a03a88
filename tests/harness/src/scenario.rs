//! Bounds of a scenario, which the tests of `#[scenario]` run in.

use std::time::Duration;

use tokio::sync::RwLock;

/// Timeout of a whole scenario.
const SCENARIO_TIMEOUT: Duration = Duration::from_mins(10);
/// Timeout of a campaign, of which no run of a change waits.
const CAMPAIGN_TIMEOUT: Duration = Duration::from_hours(2);

/// Held for writing by a scenario that measures latencies, and for reading by all others of the process.
static MACHINE: RwLock<()> = RwLock::const_new(());

/// Runs a scenario and fails it after [`SCENARIO_TIMEOUT`]. A test that hangs would otherwise block the whole suite
/// without a message.
pub async fn run_bounded(scenario: impl Future<Output = ()>) {
    let _shared = MACHINE.read().await;
    run_within(SCENARIO_TIMEOUT, scenario).await;
}

/// Does the same while no other scenario of the process runs: latencies beside another one show that one's load.
pub async fn run_alone(scenario: impl Future<Output = ()>) {
    let _exclusive = MACHINE.write().await;
    run_within(SCENARIO_TIMEOUT, scenario).await;
}

/// Runs a scenario that takes longer than the suite may.
pub async fn run_campaign(scenario: impl Future<Output = ()>) {
    let _shared = MACHINE.read().await;
    run_within(CAMPAIGN_TIMEOUT, scenario).await;
}

async fn run_within(timeout: Duration, scenario: impl Future<Output = ()>) {
    let ended = tokio::time::timeout(timeout, scenario).await;
    ended.unwrap_or_else(|_| panic!("the scenario did not end within {timeout:?}"));
}
