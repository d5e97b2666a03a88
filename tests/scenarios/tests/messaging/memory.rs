//! The memory of messages: a broker sends ahead no more than the host has room for.

use ostler_test_harness::{
    cgroup::MemoryCgroup,
    process::{HostProcess, ProcessOptions},
    scenario,
};

use super::*;

/// Memory limit of the pod in `deploy/`.
const POD_BYTES: usize = 512 << 20;
/// Messages of a queue, which together are larger than the pod.
const MESSAGE_COUNT: u32 = 48;
const MESSAGE_BYTES: usize = 12 << 20;

#[scenario(embedded = "it measures the host alone")]
async fn host_in_512_mib_survives_messages_of_576_mib(lab: Lab) {
    let Some(cgroup) = MemoryCgroup::create_or_skip(POD_BYTES) else {
        return;
    };
    let rabbitmq = RabbitMq::start().await;
    // The broker itself has room for them: otherwise it would accept no dead letters.
    let room = ["set_vm_memory_high_watermark", "absolute", "4GiB"];
    rabbitmq.control(&room).await;
    let client = rabbitmq.connect().await;
    client.declare_queue(QUEUE).await;
    let body = vec![b'x'; MESSAGE_BYTES];
    for _ in 0..MESSAGE_COUNT {
        client.publish(QUEUE, &body).await;
    }
    lab.apply(secret(&lab, "password", RABBITMQ_PASSWORD)).await;
    lab.apply(broker(&lab, &rabbitmq.url(), None)).await;
    lab.install(&["tests/probe"]);
    let grants = grants(&lab, "[apply, create]", ", prefetch: 64");
    let options = ProcessOptions {
        grants: Some(&grants),
        cgroup: Some(&cgroup),
    };
    let mut process = HostProcess::start_with(&lab, "host", &["--leader-elect=false"], options);
    process.wait_started(&lab).await;
    // None of them is a list of steps.
    let dead_letters = format!("{QUEUE}.dead-letter");
    lab.wait_until("all messages are dead-lettered", async || {
        let is_killed = cgroup.oom_kills() > 0;
        is_killed || client.queue_depth(&dead_letters).await == Some(MESSAGE_COUNT)
    })
    .await;
    println!("peak memory: {} MiB", cgroup.peak_bytes() >> 20);
    assert_eq!(cgroup.oom_kills(), 0, "the kernel has killed the host");
    assert!(process.is_running());
    drop(process);
}

#[scenario]
async fn message_without_room_stays_in_its_queue_and_names_the_budget(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    lab.settings.memory_budget = Some(64 << 20);
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    client.publish(QUEUE, &vec![b'x'; 5 << 20]).await;
    let small = json!([{"do": "ensure", "object": serialize_config_map("small")}]);
    client.publish(QUEUE, &steps(&small)).await;
    lab.wait_until("the reason is reported", async || {
        let state = subscription_stats(&lab).state();
        !state.is_consuming && state.message.contains("--memory-budget")
    })
    .await;
    assert!(lab.get(&config_map(), "small").await.is_none());
    let large = client.take(QUEUE).await;
    assert!(large.is_some_and(|large| large.data.len() == 5 << 20));
    wait_config_map(&lab, "small").await;
    wait_drained(&lab, &rabbitmq).await;
}
