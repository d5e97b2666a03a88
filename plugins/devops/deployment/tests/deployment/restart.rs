//! A host that stops after each effect of a deployment, one test per effect: the next host ends with one build, one sync, and
//! the final heartbeat.

use ostler_sdk::serde_json::json;

use crate::world::{DeploymentWorld, application, ingress};

/// Effects of a whole deployment, its clean-up included. A test below fails if there are more.
const EFFECT_COUNT: usize = 10;

fn deploy(stop_after: Option<usize>) -> DeploymentWorld {
    let mut world = DeploymentWorld::new();
    world.host.stop_after(stop_after);
    world.run();
    world.now += 10_800_000;
    world.run();
    world
}

fn assert_deployed_once(world: &DeploymentWorld, step: usize) {
    assert_eq!(
        world.triggers(),
        1,
        "one build, although the host stopped after effect {step}"
    );
    assert_eq!(
        world.operations,
        ["uid-d-1"],
        "one sync, although the host stopped after effect {step}"
    );
    let status = &world.record["status"];
    assert_eq!(status["state"], "success", "{status:#}");
    assert_eq!(status["ttl"]["phase"], "Completed", "{status:#}");
    assert_eq!(status["heartbeat"]["finalConfirmed"], true);
    assert_eq!(world.host.object(&application()), None);
    assert_eq!(world.host.object(&ingress()), None);
    let last = world.heartbeats().pop().expect("a heartbeat");
    assert_eq!(
        (&last["status"], &last["url"]),
        (&json!("success"), &json!("http://app.example.com"))
    );
}

macro_rules! restarts {
    ($($name:ident = $step:literal),+ $(,)?) => {
        $(#[test]
        fn $name() {
            assert_deployed_once(&deploy(Some($step)), $step);
        })+

        #[test]
        fn every_effect_has_a_test() {
            assert_eq!([$($step),+].len(), EFFECT_COUNT);
            let world = deploy(None);
            assert_deployed_once(&world, 0);
            let host = &world.host;
            let changes = host.requests().iter().filter(|r| !r.starts_with("GET")).count();
            let count = changes + host.writes().len() + host.messages().len() + host.checkpoints().len();
            assert_eq!(count, EFFECT_COUNT, "{:?} {:?}", host.requests(), host.writes());
        }
    };
}

restarts! {
    deployment_survives_a_stop_after_effect_1 = 1,
    deployment_survives_a_stop_after_effect_2 = 2,
    deployment_survives_a_stop_after_effect_3 = 3,
    deployment_survives_a_stop_after_effect_4 = 4,
    deployment_survives_a_stop_after_effect_5 = 5,
    deployment_survives_a_stop_after_effect_6 = 6,
    deployment_survives_a_stop_after_effect_7 = 7,
    deployment_survives_a_stop_after_effect_8 = 8,
    deployment_survives_a_stop_after_effect_9 = 9,
    deployment_survives_a_stop_after_effect_10 = 10,
}
