//! Recordings and traces through the admin server and the command line.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use futures::StreamExt;
use ostler::testing::{
    dispatcher::Cause,
    queue::Priority,
    recording::{format::Recording, trace::TraceLine},
};
use ostler_test_harness::{Lab, process, read_component, scenario};
use serde_json::{Value, json};

use super::{failing_probe, probe, probe_with_steps, start_probe_host};

fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

/// The admin server of the lab's host.
async fn serve_admin(lab: &Lab) -> String {
    let admin = lab.admin();
    let address = admin
        .serve_local("127.0.0.1:0".parse().expect("an address"))
        .await;
    format!("http://{}", address.expect("it binds"))
}

#[scenario]
pub async fn trace_streams_live_host_calls(mut lab: Lab) {
    start_probe_host(&mut lab).await;
    let url = serve_admin(&lab).await;
    let first = json!([{"do": "get", "kind": "ConfigMap", "name": "first"}]);
    lab.apply(probe_with_steps(&lab, "p", first)).await;
    lab.wait_ready(&probe(), "p").await;
    lab.wait_idle().await;
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let path = format!("{url}/trace?kind=probe&name=p&namespace={}", lab.namespace);
    let response = client.get(path).send().await.expect("a response");
    assert!(response.status().is_success());
    // The trace is subscribed before the response head is sent, so this reconcile is not missed.
    lab.host()
        .services()
        .dispatcher
        .enqueue(&lab.key(&probe(), "p"), Priority::High, Cause::Manual);
    let mut body = response.bytes_stream();
    let (mut text, mut lines) = (String::new(), Vec::<TraceLine>::new());
    while !matches!(lines.last(), Some(TraceLine::End { .. })) {
        let chunk = body.next().await.expect("more").expect("bytes");
        text.push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
        while let Some((line, rest)) = text.split_once('\n') {
            if !line.is_empty() {
                lines.push(serde_json::from_str(line).expect("a line"));
            }
            text = rest.to_owned();
        }
    }
    drop(body);
    let Some(TraceLine::Start {
        object,
        plugin,
        causes,
        ..
    }) = lines.first()
    else {
        panic!("{lines:#?}")
    };
    assert_eq!(
        (&**plugin, causes.as_slice()),
        ("probe", &["manual".to_owned()][..])
    );
    assert_eq!(*object, format!("Probe/{}/p", lab.namespace));
    let calls: Vec<_> = lines
        .iter()
        .filter_map(|l| match l {
            TraceLine::Call {
                number,
                function,
                arguments,
                result,
                ..
            } => Some((*number, &**function, arguments, result)),
            _ => None,
        })
        .collect();
    assert!(
        calls.iter().enumerate().all(|(i, call)| call.0 as usize == i + 1),
        "{calls:#?}"
    );
    let get = calls.iter().find(|c| c.1 == "kubernetes.get").expect("the read");
    assert!(
        get.2.starts_with(&format!("ConfigMap/{}/first", lab.namespace)),
        "{}",
        get.2
    );
    assert_eq!(get.3, "ok", "the ConfigMap does not exist");
    let Some(TraceLine::End {
        ended, calls: count, ..
    }) = lines.last()
    else {
        panic!("{lines:#?}")
    };
    assert_eq!((&**ended, *count as usize), ("awaits a change", calls.len()));
    // A closed connection ends its subscription.
    lab.wait_until("there is no follower", async || {
        lab.host()
            .services()
            .dispatcher
            .enqueue(&lab.key(&probe(), "p"), Priority::High, Cause::Manual);
        !lab.host().services().recordings.is_followed()
    })
    .await;
}

/// Runs `ostler` on a blocking thread, because the admin server it queries runs on the test's async threads.
async fn ostler(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(process::host_binary());
    command
        .args(arguments)
        .current_dir(folder)
        .env_remove("OSTLER_ADMIN")
        .stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("it ends")
}

#[scenario]
pub async fn record_and_replay_commands_report_differences(mut lab: Lab) {
    start_probe_host(&mut lab).await;
    let url = serve_admin(&lab).await;
    let run = async |arguments: &[&str]| {
        let output = ostler(lab.path(), arguments).await;
        (
            output.status.code(),
            text_of(output.stdout),
            text_of(output.stderr),
        )
    };
    let (code, text, error) = run(&["record", "--admin", &url]).await;
    assert_eq!(code, Some(0), "{error}");
    assert!(text.contains("nothing is recorded"), "{text}");
    lab.apply(failing_probe(&lab, "bad")).await;
    lab.wait_condition(&probe(), "bad", "Ready", "False", "Requested")
        .await;
    lab.wait_idle().await;
    let (_, table, _) = run(&["record", "--admin", &url]).await;
    assert!(
        table.contains("Probe/") && table.contains("terminal: Requested"),
        "{table}"
    );
    let (_, list, _) = run(&["record", "--admin", &url, "-o", "json"]).await;
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(
        (&list[0]["plugin"], &list[0]["replayable"]),
        (&json!("probe"), &json!(true))
    );
    // `--now` requests a reconcile and writes its recording to a file.
    let (code, _, error) = run(&[
        "record",
        "probe/bad",
        "-n",
        &lab.namespace,
        "--now",
        "--file",
        "r.json",
        "--admin",
        &url,
    ])
    .await;
    assert!(
        code == Some(0) && error.contains("r.json: reconcile of Probe/"),
        "{error}"
    );
    let recording = std::fs::read_to_string(lab.path().join("r.json")).expect("a file");
    assert!(
        recording.contains(r#""kind": "Recording""#) && recording.contains("manual"),
        "{recording}"
    );
    // The recorded build is found by its digest.
    let plugins = lab.settings.plugins.display().to_string();
    let (code, text, error) = run(&["replay", "r.json", "--plugin-dir", &plugins]).await;
    assert_eq!(code, Some(0), "{text}{error}");
    assert!(
        text.contains("same: terminal: Requested") && !text.contains('\x1b'),
        "{text}"
    );
    // A different component.
    let greeting = lab.path().join("greeting.wasm");
    std::fs::write(&greeting, read_component("examples/greeting")).expect("written");
    let (code, text, _) = run(&["replay", "r.json", "--plugin", "greeting.wasm"]).await;
    assert!(code == Some(1) && text.contains("differs"), "{text}");
    let (code, json, _) = run(&["replay", "r.json", "--plugin", "greeting.wasm", "-o", "json"]).await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert!(
        code == Some(1) && json["same"] == false && !json["differences"].as_array().unwrap().is_empty(),
        "{json}"
    );
    // Recordings that cannot be replayed. A truncated one is refused, since a divergence could not be located.
    std::fs::write(lab.path().join("bad.json"), "{}").expect("written");
    let mut cut: Value = serde_json::from_str(&recording).expect("JSON");
    cut["cut"] = json!(true);
    std::fs::write(lab.path().join("cut.json"), cut.to_string()).expect("written");
    for (arguments, words) in [
        (vec!["replay", "nothing.json"], "nothing.json: No such file"),
        (
            vec!["replay", "bad.json"],
            "bad.json: kind: it is ``, not `Recording`",
        ),
        (
            vec!["replay", "r.json", "--plugin-dir", "."],
            "set --plugin-dir to its folder",
        ),
        (vec!["replay", "r.json", "--plugin", "r.json"], "r.json: "),
        (
            vec!["replay", "cut.json", "--plugin-dir", &plugins],
            "cut.json: recording",
        ),
        (
            vec!["replay", "cut.json", "--plugin", "greeting.wasm"],
            "is cut off after",
        ),
    ] {
        let (code, _, error) = run(&arguments).await;
        assert!(code == Some(2) && error.contains(words), "{arguments:?}: {error}");
    }
    // The last kept recording is written to standard output.
    let (code, last, error) = run(&["record", "probe/bad", "--last", "--admin", &url]).await;
    assert_eq!(code, Some(0), "{error}");
    assert!(
        Recording::parse(&last, "-")
            .expect("a recording")
            .ended
            .contains("Requested")
    );
    let (code, _, error) = run(&["record", "probe/unknown", "--admin", &url]).await;
    assert!(code == Some(1) && error.contains("unknown"), "{error}");
}
