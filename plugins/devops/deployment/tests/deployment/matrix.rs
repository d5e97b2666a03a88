//! Each way in which Jenkins, the broker, and Argo CD by its API fail, from each step of a deployment on, for a while or for ever.
//! What is promised of a deployment is stated once and holds in every cell.

use ostler_sdk::{Next, rfc3339, serde_json::json};

use crate::{
    server::{self, Fate},
    world::{DeploymentFault, DeploymentWorld, FailingServer, HANG_MS, START_MS, application},
};

/// Reconciles before the failure begins: the last one is after the end of the deployment.
const STEPS: std::ops::Range<usize> = 0..9;
/// Durations of a failure in milliseconds; none for one that never ends.
const DURATIONS: [Option<u64>; 3] = [Some(15_000), Some(120_000), None];
/// Limit of each phase in seconds.
const PHASE_SECONDS: u64 = 600;
/// Time to live in seconds.
const TTL_SECONDS: u64 = 1200;
/// Time that may pass between a time at which something is due and the reconcile that does it.
const LATENESS_MS: u64 = 30_000 + HANG_MS;
/// Bound of the reconciles of a cell.
const MAX_RECONCILES: usize = 2000;

#[derive(Clone, Copy, Debug)]
struct Cell {
    server: FailingServer,
    fault: DeploymentFault,
    step: usize,
    duration: Option<u64>,
    /// Deletes the record two reconciles after the failure has begun.
    deletes: bool,
}

/// What happened in a cell.
struct Course {
    world: DeploymentWorld,
    fault_began_at: u64,
    deleted_at: Option<u64>,
    ended_at: Option<u64>,
    /// Time at which nothing of the deployment was left, or the record was gone.
    cleaned_at: Option<u64>,
}

fn run(cell: Cell) -> Course {
    let mut world = match cell.server {
        FailingServer::Jenkins | FailingServer::Broker => DeploymentWorld::new(),
        FailingServer::Argo => server::start(Fate::Answered).0,
    };
    world.results = vec![None, None, Some("SUCCESS")];
    world.record["spec"]["timeouts"] = json!({ "buildSeconds": PHASE_SECONDS });
    world.record["spec"]["ttlSeconds"] = TTL_SECONDS.into();
    let mut course = Course {
        world,
        fault_began_at: 0,
        deleted_at: None,
        ended_at: None,
        cleaned_at: None,
    };
    for look in 0..MAX_RECONCILES {
        let world = &mut course.world;
        if look == cell.step {
            world.set_fault(Some((cell.server, cell.fault)));
            course.fault_began_at = world.now;
        }
        let is_over = cell
            .duration
            .is_some_and(|duration| world.now >= course.fault_began_at + duration);
        if look > cell.step && is_over && world.fault.is_some() {
            world.set_fault(None);
        }
        if cell.deletes && look == cell.step + 2 {
            world.record["metadata"]["deletionTimestamp"] = rfc3339(world.now / 1000).into();
            course.deleted_at = Some(world.now);
            world.react();
        }
        let result = world.reconcile().expect("no stop");
        if course.ended_at.is_none() && !world.text("/completionTime").is_empty() {
            course.ended_at = Some(world.now);
        }
        let is_gone = course.deleted_at.is_some() && result.is_ok();
        if course.cleaned_at.is_none() && (is_gone || world.text("/ttl/phase") == "Completed") {
            course.cleaned_at = Some(world.now);
        }
        // What a failure has left undone is done after it.
        let is_settled = is_gone || (course.cleaned_at.is_some() && course.deleted_at.is_none());
        let is_idle = matches!(&result, Ok(outcome) if outcome.next == Next::AwaitChange);
        world.react();
        // What is never given up is waited for without an end.
        let is_kept = course
            .ended_at
            .is_some_and(|at| world.now > at + (TTL_SECONDS + 600) * 1000);
        if is_kept || is_settled && (is_gone || is_idle || cell.duration.is_none()) {
            return course;
        }
        world.now = match result {
            Ok(outcome) => match outcome.next {
                Next::After(milliseconds) => world.now + milliseconds,
                Next::At(time) => world.now.max(time),
                Next::Poll(_) => world.now + 10_000,
                Next::AwaitChange => world.now + 30_000,
            },
            Err(_) => world.now + 30_000,
        };
    }
    course
}

/// The promises that a course breaks.
fn find_broken_promises(cell: Cell, course: &Course) -> Vec<String> {
    let world = &course.world;
    let mut broken = Vec::new();
    let mut check = |holds: bool, promise: &str| {
        if !holds {
            broken.push(promise.to_owned());
        }
    };
    let state = world.text("/state");
    let builds = usize::from(!world.record["spec"]["build"].is_null());
    check(
        world.builds <= builds && world.count_syncs() <= 1,
        "one build and one sync",
    );
    check(
        state != "success" || world.builds == builds && world.count_syncs() == 1,
        "a success has a build and a sync",
    );
    check(course.ended_at.is_some(), "it ends");
    // What Argo CD has deployed is never given up.
    let may_stay = cell.server == FailingServer::Argo && cell.duration.is_none();
    check(course.cleaned_at.is_some() || may_stay, "it is cleaned up");
    check(
        world.host.object(&application()).is_none(),
        "the application goes",
    );
    let Some(ended_at) = course.ended_at else {
        return broken;
    };
    let cleaned_at = course.cleaned_at.unwrap_or_default();
    if let Some(deleted_at) = course.deleted_at {
        check(ended_at <= deleted_at + LATENESS_MS, "a deletion ends it");
        let limit = cell.duration.map_or(600_000, |duration| duration.min(600_000));
        check(
            cleaned_at <= deleted_at + limit + 2 * LATENESS_MS,
            "the record goes when the server is back, or after ten minutes",
        );
    } else {
        let limit = course.fault_began_at.max(START_MS) + PHASE_SECONDS * 1000 + 2 * LATENESS_MS;
        check(ended_at <= limit, "it ends within the limit of the phase");
        let expires_at = ended_at + TTL_SECONDS * 1000;
        check(
            cleaned_at <= expires_at + 4 * LATENESS_MS,
            "the time to live goes on",
        );
        let is_short = cell.duration.is_some_and(|d| d < PHASE_SECONDS * 1000);
        check(
            !is_short || state == "success",
            "it succeeds when the server is back in time",
        );
    }
    // One that has just been triggered ends by itself where Jenkins does not come back.
    let is_left =
        world.builds > world.stopped && state != "success" && world.text("/build/phase") != "Completed";
    check(
        !is_left || cell.duration.is_none(),
        "its build is stopped when Jenkins is back",
    );
    if cell.server == FailingServer::Broker {
        let is_told = world
            .heartbeats()
            .last()
            .is_some_and(|last| last["status"] == state);
        check(
            is_told || cell.duration.is_none(),
            "the last heartbeat is sent when the broker is back",
        );
        check(state == "success" || cell.deletes, "a broker fails no deployment");
        return broken;
    }
    let heartbeats = world.heartbeats();
    let is_told = heartbeats.last().is_some_and(|last| last["status"] == state);
    check(is_told, "the last heartbeat has the final state");
    let running = heartbeats
        .iter()
        .filter(|heartbeat| heartbeat["status"] == "running")
        .count();
    let times = &world.heartbeat_times[..(running + 1).min(heartbeats.len())];
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    check(
        gaps.max().unwrap_or_default() <= LATENESS_MS,
        "a heartbeat every 30 s until the last",
    );
    check(
        times.last().is_some_and(|last| *last <= ended_at + LATENESS_MS),
        "the last heartbeat follows the end",
    );
    broken
}

#[test]
fn deployment_keeps_its_promises_whenever_and_however_a_server_fails() {
    let mut count = 0;
    let mut broken = Vec::new();
    for server in [FailingServer::Jenkins, FailingServer::Broker, FailingServer::Argo] {
        for fault in DeploymentFault::ALL {
            for step in STEPS {
                for duration in DURATIONS {
                    for deletes in [false, true] {
                        let cell = Cell {
                            server,
                            fault,
                            step,
                            duration,
                            deletes,
                        };
                        count += 1;
                        let course = run(cell);
                        for promise in find_broken_promises(cell, &course) {
                            broken.push(format!("{promise}: {cell:?}"));
                        }
                    }
                }
            }
        }
    }
    let total = broken.len();
    broken.truncate(20);
    assert!(
        broken.is_empty(),
        "{total} broken promises in {count} cells:\n{}",
        broken.join("\n")
    );
}
