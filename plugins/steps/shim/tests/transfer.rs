//! Artifacts between two pods, over real connections on loopback.

mod support;

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

use lz4_flex::frame::FrameEncoder;
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};
use steps_protocol::{ContainerReport, ErrorReason};
use support::{Pod, ShimProcess, await_true, peak_memory, source};

/// Size of the artifact whose transfer is measured.
const LARGE_BYTES: u64 = 64 << 20;

/// Memory that each side may use for it, with everything the process itself is.
const MAX_MEMORY_KIB: u64 = 12 << 10;

/// Runs a script that fills the output, and returns the report.
fn produce(pod: &Pod, script: &str) -> ContainerReport {
    let mut config = pod.script(script);
    config.outputs = vec![pod.output()];
    let (output, report) = pod.run(&config);
    assert_eq!(output.status.code(), Some(0), "{report:?}");
    report
}

/// Fetches to the end, and returns the exit code.
fn fetch(pod: &Pod, timeout_seconds: u64) -> Option<i32> {
    let output = pod
        .command("fetch", &pod.fetch_config(timeout_seconds))
        .output()
        .expect("runs");
    output.status.code()
}

fn error_of(pod: &Pod) -> (ErrorReason, String) {
    let error = pod.report().error.expect("an error");
    (error.reason, error.message)
}

/// A proxy that handles each connection with a function, given its number and the streamer's address.
fn proxy(
    to: SocketAddr,
    handle: impl Fn(usize, TcpStream, SocketAddr) + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let address = listener.local_addr().expect("an address");
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let number = counter.fetch_add(1, Ordering::SeqCst);
            handle(number, stream.expect("a connection"), to);
        }
    });
    (address, connections)
}

/// Passes a request on, and at most this many bytes of the response, changed by a function that gets their offset.
fn pass(mut client: TcpStream, to: SocketAddr, max: u64, change: impl Fn(u64, &mut [u8])) {
    let mut request = [0; 4096];
    let size = client.read(&mut request).expect("a request");
    let mut server = TcpStream::connect(to).expect("connects");
    server.write_all(&request[..size]).expect("is passed on");
    let (mut passed, mut buffer) = (0, [0; 4096]);
    while passed < max {
        let Ok(read @ 1..) = server.read(&mut buffer) else {
            return;
        };
        change(passed, &mut buffer[..read]);
        if client.write_all(&buffer[..read]).is_err() {
            return;
        }
        passed += read as u64;
    }
    let _ = client.shutdown(Shutdown::Both);
}

#[test]
fn artifact_arrives_with_files_links_and_modes() {
    let (producer, consumer) = (Pod::new(), Pod::new());
    let name = "n".repeat(150);
    let script = format!(
        "mkdir -p deep/er empty; echo content > deep/er/{name}; echo '#!/bin/sh' > tool; chmod 755 tool; \
         ln -s deep/er link; chmod 555 deep/er; chmod 4755 tool"
    );
    let report = produce(&producer, &script);
    let (_streamer, address) = producer.serve("uid-1");
    consumer.set_source(&source("uid-1", address, &report));
    assert_eq!(fetch(&consumer, 30), Some(0));
    let input = consumer.path("in");
    assert_eq!(
        fs::read_to_string(input.join("link").join(&name)).expect("is there"),
        "content\n"
    );
    assert!(input.join("empty").is_dir());
    let mode = |path: &str| {
        fs::metadata(input.join(path))
            .expect("is there")
            .permissions()
            .mode()
            & 0o7777
    };
    assert_eq!((mode("tool"), mode("deep/er")), (0o755, 0o555));
    assert!(consumer.path("root/fetched/in").exists());
    // The entry point starts the process now.
    let mut config = consumer.script("echo ran");
    config.inputs = vec!["in".into()];
    assert_eq!(consumer.run(&config).1.log, "ran\n");
    // The temporary folder is removed by another user than root, too.
    for pod in [input.join("deep/er"), producer.path("out/deep/er")] {
        fs::set_permissions(pod, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
}

#[test]
fn large_artifact_costs_little_memory_on_both_sides() {
    let (producer, consumer) = (Pod::new(), Pod::new());
    // Incompressible: what is not streamed would show.
    let script = format!("head -c {LARGE_BYTES} /dev/urandom > large");
    let mut config = producer.script(&script);
    config.outputs = vec![producer.output()];
    let running = producer.command("run", &config).spawn().expect("starts");
    let packed = watch_memory(running);
    let report = producer.report();
    assert!(report.artifacts[0].bytes >= LARGE_BYTES, "{report:?}");
    let (streamer, address) = producer.serve("uid-1");
    consumer.set_source(&source("uid-1", address, &report));
    let fetcher = consumer
        .command("fetch", &consumer.fetch_config(100))
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    let fetched = watch_memory(fetcher);
    let served = peak_memory(streamer.0.id()).expect("is running");
    assert_eq!(
        fs::metadata(consumer.path("in/large")).expect("is there").len(),
        LARGE_BYTES
    );
    println!("peak memory: packing {packed} KiB, serving {served} KiB, fetching {fetched} KiB");
    for peak in [packed, served, fetched] {
        assert!(peak < MAX_MEMORY_KIB, "{peak} KiB");
    }
}

/// Waits for the end of a process, and returns the most memory that it used.
fn watch_memory(child: std::process::Child) -> u64 {
    let mut running = ShimProcess(child);
    let mut peak = 0;
    await_true("the process ends", || {
        peak = peak.max(peak_memory(running.0.id()).unwrap_or(0));
        running.0.try_wait().expect("its status").is_some()
    });
    assert!(running.0.wait().expect("its status").success());
    assert!(peak > 0);
    peak
}

#[test]
fn token_of_another_step_or_namespace_is_refused() {
    let (producer, consumer) = (Pod::new(), Pod::new());
    let report = produce(&producer, "echo secret > file");
    let (_streamer, address) = producer.serve("uid-1");
    consumer.set_source(&source("uid-2", address, &report));
    assert_eq!(fetch(&consumer, 1), Some(126));
    let (reason, message) = error_of(&consumer);
    assert_eq!(reason, ErrorReason::InputMissing);
    assert!(message.contains("HTTP 401"), "{message}");
    fs::write(consumer.path("key"), KEY_OF_ANOTHER).expect("the key");
    consumer.set_source(&source("uid-1", address, &report));
    assert_eq!(fetch(&consumer, 1), Some(126));
    assert!(error_of(&consumer).1.contains("HTTP 401"));
    assert_eq!(fs::read_dir(consumer.path("in")).expect("a folder").count(), 0);
    // A request without any signature, as anyone in the cluster can send it.
    let mut stream = TcpStream::connect(address).expect("connects");
    stream
        .write_all(b"GET /v1/artifacts/out HTTP/1.1\r\n\r\n")
        .expect("is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}

/// Key of another namespace.
const KEY_OF_ANOTHER: &str = "fedcba9876543210fedcba9876543210";

#[test]
fn short_key_is_refused_by_both_sides() {
    let pod = Pod::new();
    fs::write(pod.path("key"), "guessable").expect("the key");
    assert_eq!(fetch(&pod, 1), Some(126));
    let (reason, message) = error_of(&pod);
    assert_eq!(reason, ErrorReason::ConfigInvalid);
    assert!(
        message.contains("needs 32") && !message.contains("guessable"),
        "{message}"
    );
}

#[test]
fn interrupted_transfer_goes_on_where_it_ended() {
    let (producer, consumer) = (Pod::new(), Pod::new());
    let report = produce(&producer, "head -c 4000000 /dev/urandom > data");
    let (_streamer, address) = producer.serve("uid-1");
    let sent = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&sent);
    // Every connection breaks after one megabyte.
    let (broken, connections) = proxy(address, move |_, client, to| {
        let counter = Arc::clone(&counter);
        thread::spawn(move || {
            pass(client, to, 1_000_000, |_, bytes| {
                counter.fetch_add(bytes.len() as u64, Ordering::SeqCst);
            });
        });
    });
    consumer.set_source(&source("uid-1", broken, &report));
    assert_eq!(fetch(&consumer, 60), Some(0));
    let (expected, found) = (
        fs::read(producer.path("out/data")),
        fs::read(consumer.path("in/data")),
    );
    assert!(expected.expect("data") == found.expect("data"));
    assert!(connections.load(Ordering::SeqCst) >= 4);
    // Bytes that had arrived were not sent again; up to a buffer per connection may have been lost with it.
    assert!(
        sent.load(Ordering::SeqCst) < report.artifacts[0].bytes + 1_000_000,
        "{sent:?}"
    );
}

#[test]
fn corrupted_transfer_is_repeated() {
    let (producer, consumer) = (Pod::new(), Pod::new());
    let report = produce(
        &producer,
        "head -c 300000 /dev/urandom > data; mkdir d; echo x > d/x",
    );
    let (_streamer, address) = producer.serve("uid-1");
    let (broken, _) = proxy(address, |number, client, to| {
        pass(client, to, u64::MAX, |offset, bytes| {
            // In the middle of the data, where neither the tar header nor the frame notices.
            if number == 0 && (100_000..105_000).contains(&offset) {
                bytes[0] ^= 1;
            }
        });
    });
    consumer.set_source(&source("uid-1", broken, &report));
    assert_eq!(fetch(&consumer, 60), Some(0));
    assert!(
        fs::read(producer.path("out/data")).expect("data")
            == fs::read(consumer.path("in/data")).expect("data")
    );
}

#[test]
fn artifact_that_stays_corrupted_ends_the_fetch_and_leaves_nothing() {
    let (producer, consumer) = (Pod::new(), Pod::new());
    let report = produce(&producer, "head -c 300000 /dev/urandom > data");
    // The file itself, as a broken disk has it; its digest is the announced one.
    let packed = producer.path("root/artifacts/out.tar.lz4");
    let mut bytes = fs::read(&packed).expect("is packed");
    bytes[150_000] ^= 1;
    fs::write(&packed, bytes).expect("is written");
    let (_streamer, address) = producer.serve("uid-1");
    consumer.set_source(&source("uid-1", address, &report));
    assert_eq!(fetch(&consumer, 60), Some(126));
    let (reason, message) = error_of(&consumer);
    assert_eq!(reason, ErrorReason::InputCorrupted);
    assert!(message.contains(&report.artifacts[0].digest), "{message}");
    assert!(!consumer.path("root/fetched/in").exists());
}

#[test]
fn address_that_belongs_to_another_step_is_never_used() {
    let (producer, other, consumer) = (Pod::new(), Pod::new(), Pod::new());
    let report = produce(&producer, "echo right > data");
    produce(&other, "echo wrong > data");
    // Same Step UID, as with an earlier pod of it: the signature is right, the artifact is not.
    let (_streamer, address) = producer.serve("uid-1");
    let (_other, wrong) = other.serve("uid-1");
    consumer.set_source(&source("uid-1", wrong, &report));
    let fetcher = consumer
        .command("fetch", &consumer.fetch_config(60))
        .spawn()
        .expect("starts");
    let mut fetcher = ShimProcess(fetcher);
    let (counting, connections) = proxy(wrong, |_, client, to| pass(client, to, u64::MAX, |_, _| {}));
    consumer.set_source(&source("uid-1", counting, &report));
    await_true("the wrong address is asked", || {
        connections.load(Ordering::SeqCst) > 0
    });
    assert_eq!(fs::read_dir(consumer.path("in")).expect("a folder").count(), 0);
    // The annotation follows the producer's pod.
    consumer.set_source(&source("uid-1", address, &report));
    assert!(fetcher.0.wait().expect("ends").success());
    assert_eq!(
        fs::read_to_string(consumer.path("in/data")).expect("data"),
        "right\n"
    );
}

#[test]
fn fetch_waits_for_the_producer_and_follows_a_replaced_artifact() {
    let (first, second, consumer) = (Pod::new(), Pod::new(), Pod::new());
    let lost = produce(&first, "echo first > data");
    let report = produce(&second, "echo second > data");
    let mut fetcher = ShimProcess(
        consumer
            .command("fetch", &consumer.fetch_config(60))
            .spawn()
            .expect("starts"),
    );
    // The first producer's node is gone: nothing answers there.
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let gone = listener.local_addr().expect("an address");
    consumer.set_source(&source("uid-1", gone, &lost));
    drop(listener.accept().expect("is asked"));
    drop(listener);
    let (_streamer, address) = second.serve("uid-1");
    consumer.set_source(&source("uid-1", address, &report));
    assert!(fetcher.0.wait().expect("ends").success());
    assert_eq!(
        fs::read_to_string(consumer.path("in/data")).expect("data"),
        "second\n"
    );
}

#[test]
fn input_that_never_comes_ends_the_fetch_with_its_name() {
    let consumer = Pod::new();
    assert_eq!(fetch(&consumer, 1), Some(126));
    let (reason, message) = error_of(&consumer);
    assert_eq!(reason, ErrorReason::InputMissing);
    assert!(
        message.contains("Input in could not be fetched within 1 s: its producer has no pod."),
        "{message}"
    );
}

#[test]
fn archive_that_leaves_its_directory_is_contained() {
    let (producer, consumer) = (Pod::new(), Pod::new());
    let outside = consumer.path("outside");
    fs::create_dir(&outside).expect("a folder");
    // A link to the outside and a file through it, as only a hostile producer packs them.
    let mut tar = tar::Builder::new(FrameEncoder::new(Vec::new()));
    let mut link = tar::Header::new_gnu();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_size(0);
    tar.append_link(&mut link, "escape", &outside).expect("a link");
    let mut file = tar::Header::new_gnu();
    file.set_size(4);
    file.set_mode(0o644);
    tar.append_data(&mut file, "escape/file", &b"evil"[..])
        .expect("a file");
    let packed = tar
        .into_inner()
        .and_then(|encoder| encoder.finish().map_err(Into::into))
        .expect("is packed");
    let mut report = produce(&producer, "true");
    let digest = Sha256::digest(&packed);
    report.artifacts[0].digest = digest
        .iter()
        .fold("sha256:".into(), |text, byte| format!("{text}{byte:02x}"));
    report.artifacts[0].bytes = packed.len() as u64;
    fs::write(producer.path("root/artifacts/out.tar.lz4"), packed).expect("is written");
    fs::write(
        producer.path("root/artifacts/out.digest"),
        &report.artifacts[0].digest,
    )
    .expect("is written");
    let (_streamer, address) = producer.serve("uid-1");
    consumer.set_source(&source("uid-1", address, &report));
    assert_eq!(fetch(&consumer, 30), Some(126));
    assert_eq!(error_of(&consumer).0, ErrorReason::InputNotUnpacked);
    assert_eq!(fs::read_dir(outside).expect("a folder").count(), 0);
}

/// Connections without a token must not keep consumers out for long, however slowly they send.
#[test]
fn connections_that_send_no_request_are_bounded_in_number_and_time() {
    let (producer, consumer) = (Pod::new(), Pod::new());
    let report = produce(&producer, "echo content > file");
    let (_streamer, address) = producer.serve("uid-1");
    let idle: Vec<TcpStream> = (0..MAX_CONNECTIONS)
        .map(|_| {
            let mut stream = TcpStream::connect(address).expect("connects");
            stream.write_all(b"GET ").expect("is sent");
            stream
        })
        .collect();
    // One more is refused at once.
    let refused = || {
        let mut stream = TcpStream::connect(address).expect("connects");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer.starts_with("HTTP/1.1 503 ")
    };
    await_true("a connection is refused", refused);
    // Each byte begins no new time.
    let mut trickle = idle[0].try_clone().expect("a handle");
    thread::spawn(move || {
        while trickle.write_all(b"x").is_ok() {
            thread::sleep(std::time::Duration::from_millis(200));
        }
    });
    consumer.set_source(&source("uid-1", address, &report));
    assert_eq!(fetch(&consumer, 60), Some(0));
    let mut ended = String::new();
    let _ = (&idle[0]).read_to_string(&mut ended);
    assert!(ended.is_empty() || ended.starts_with("HTTP/1.1 400 "), "{ended}");
}

/// The limit of the streamer.
const MAX_CONNECTIONS: usize = 32;

#[test]
fn sigterm_ends_the_streamer() {
    let pod = Pod::new();
    let (mut streamer, _) = pod.serve("uid-1");
    kill_process(Pid::from_child(&streamer.0), Signal::TERM).expect("the signal is sent");
    assert!(streamer.0.wait().expect("ends").success());
}
