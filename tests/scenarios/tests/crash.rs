//! The host is killed at random points and restarted: the final state is the same, and nothing is written twice.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ostler_test_harness::{
    ADMIN_PASSWORD, Lab,
    concourse::{PACK_COMPONENTS, kind},
    process::HostProcess,
    scenario,
};
use serde_json::json;

/// Starts the only host, without leader election: it need not wait for the lease of the killed one.
fn start(lab: &Lab) -> HostProcess {
    HostProcess::start(lab, "host", &["--leader-elect=false"])
}

#[scenario(hostile)]
async fn host_killed_twenty_times_writes_everything_once(lab: Lab) {
    if !lab.concourse.is_simulated("saves are counted") {
        return;
    }
    lab.install(&PACK_COMPONENTS);
    lab.apply(lab.password_secret(ADMIN_PASSWORD)).await;
    lab.apply(lab.instance_object()).await;
    lab.apply(lab.team_object()).await;
    let started = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let mut seed = started.as_nanos() as u64 | 1;
    println!("seed {seed}");
    let mut process = start(&lab);
    lab.wait_ready(&kind("Team"), "platform").await;
    for round in 0..20 {
        let name = format!("p{round}");
        let mut pipeline = lab.pipeline_object();
        pipeline["metadata"]["name"] = json!(name);
        pipeline["spec"]["config"] = json!({"inline": "jobs: [{name: a, plan: [{task: t, config: {platform: linux, run: {path: ls}}}]}]"});
        pipeline["spec"]["vars"] = json!([]);
        lab.apply(pipeline).await;
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        // A random delay, to kill the host at an arbitrary point.
        tokio::time::sleep(Duration::from_micros(seed % 60_000)).await;
        drop(process);
        process = start(&lab);
        lab.wait_ready(&kind("Pipeline"), &name).await;
        let there = lab
            .concourse
            .pipeline("platform", &name)
            .expect("Concourse has it");
        assert_eq!(there.saves, 1, "round {round}: the config was written once");
        assert!(!there.paused);
    }
    assert_eq!(lab.concourse.teams().len(), 2, "main and ours");
    let puts = lab
        .concourse
        .requests()
        .iter()
        .filter(|r| r.method == "PUT" && r.path.ends_with("/teams/platform"))
        .count();
    assert_eq!(puts, 1, "the team was written once");
    for round in 0..20 {
        lab.wait_ready(&kind("Pipeline"), &format!("p{round}")).await;
    }
}
