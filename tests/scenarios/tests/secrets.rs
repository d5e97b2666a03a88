//! Credentials: rotation takes effect immediately, and no secret leaves the host.

use std::sync::{Arc, Mutex};

use ostler::testing::{dispatcher::Cause, queue::Priority};
use ostler_test_harness::{ADMIN_PASSWORD, Lab, captured_logs, concourse::kind, find_condition, scenario};

const NEW_PASSWORD: &str = "a-rotated-passphrase-of-2026";

#[scenario(simulated)]
async fn rotated_password_is_used_immediately(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply_chain().await;
    lab.concourse.set_password("test", NEW_PASSWORD);
    lab.concourse.expire_tokens();
    lab.host()
        .services()
        .dispatcher
        .enqueue(&lab.key(&kind("Instance"), "ci"), Priority::High, Cause::Poll);
    let failed = lab
        .wait_condition(&kind("Instance"), "ci", "Ready", "False", "AuthenticationFailed")
        .await;
    let message = find_condition(&failed, "Ready")["message"].to_string();
    assert!(message.contains("Invalid username or password"), "{message}");
    let before = lab.wake_causes(&kind("Instance"), "ci").len();
    lab.apply(lab.password_secret(NEW_PASSWORD)).await;
    lab.wait_ready(&kind("Instance"), "ci").await;
    let causes = lab.wake_causes(&kind("Instance"), "ci").split_off(before);
    assert!(
        causes.iter().any(|c| c.to_string().contains("Secret")),
        "woken by {causes:?}"
    );
}

#[scenario(simulated)]
async fn secrets_stay_out_of_memory_logs_objects_and_events(mut lab: Lab) {
    let seen = Arc::new(Mutex::new((0u32, Vec::new())));
    let looking = seen.clone();
    lab.settings.inspect = Some(ostler::testing::engine::Inspector::new(move |memory: &[u8]| {
        let mut seen = looking.lock().expect("lock");
        seen.0 += 1;
        for secret in [
            ADMIN_PASSWORD,
            NEW_PASSWORD,
            "registry-pass-0001",
            "registry-pass-0002",
        ] {
            if memory.windows(secret.len()).any(|w| w == secret.as_bytes()) {
                seen.1.push(secret);
            }
        }
        // Proves that the search works: the memory of every component contains its own name.
        assert!(
            memory.windows(9).any(|w| w == b"concourse"),
            "the memory belongs to the component"
        );
    }));
    lab.start_pack().await;
    lab.apply_chain().await;
    lab.concourse.set_password("test", NEW_PASSWORD);
    lab.concourse.expire_tokens();
    lab.apply(lab.password_secret(NEW_PASSWORD)).await;
    lab.apply(lab.registry_secret("registry-pass-0002")).await;
    lab.wait_until("Concourse has the new value", async || {
        let pipeline = lab.concourse.pipeline("platform", "app").expect("there");
        pipeline.config["resources"][1]["source"]["password"] == "registry-pass-0002"
    })
    .await;
    lab.wait_ready(&kind("Instance"), "ci").await;
    lab.wait_idle().await;
    let (looked, found) = seen.lock().expect("lock").clone();
    assert!(looked >= 5, "{looked} memories searched");
    assert_eq!(found, Vec::<&str>::new(), "secrets in a component's memory");
    let mut texts = vec![("the log", captured_logs())];
    for kind_name in ["Instance", "Team", "Pipeline"] {
        texts.push((kind_name, format!("{:?}", lab.list(&kind(kind_name)).await)));
    }
    let event = ostler::testing::key::Gvk::new("", "v1", "Event");
    texts.push(("the events", format!("{:?}", lab.list(&event).await)));
    for (place, text) in texts {
        for secret in [ADMIN_PASSWORD, NEW_PASSWORD, "registry-pass-000"] {
            assert!(!text.contains(secret), "{secret} in {place}");
        }
    }
}

#[scenario(simulated)]
async fn concurrent_teams_share_one_login(mut lab: Lab) {
    lab.install(&ostler_test_harness::concourse::PACK_COMPONENTS);
    lab.apply(lab.password_secret(ADMIN_PASSWORD)).await;
    lab.apply(lab.instance_object()).await;
    for i in 0..20 {
        let mut team = lab.team_object();
        team["metadata"]["name"] = format!("team-{i}").into();
        lab.apply(team).await;
    }
    lab.start_host().await;
    for i in 0..20 {
        lab.wait_ready(&kind("Team"), &format!("team-{i}")).await;
    }
    assert_eq!(lab.concourse.counters().logins, 1);
}
