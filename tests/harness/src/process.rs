//! Hosts in processes of their own, which a test can stop and kill.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

use crate::{Lab, PACK_GRANTS, cgroup::MemoryCgroup, compiled_dir, memory_map::list_mappings};

/// A host process, killed when dropped.
pub struct HostProcess {
    child: Child,
    log: PathBuf,
    ready: PathBuf,
}

/// Options of a host process.
#[derive(Clone, Copy, Default)]
pub struct ProcessOptions<'a> {
    /// The grants, instead of those of the pack and the plugin `lifecycle`.
    pub grants: Option<&'a str>,
    /// The control group that it runs in.
    pub cgroup: Option<&'a MemoryCgroup>,
}

/// Memory and CPU time of a host process.
#[derive(Clone, Copy)]
pub struct ProcessUsage {
    /// Resident bytes that belong to no file.
    pub anonymous_bytes: u64,
    /// Resident bytes of files, above all of the binary.
    pub file_bytes: u64,
    /// Time from the start of the machine to that of the process, to 10 ms.
    pub started: Duration,
    /// User and system time of all threads.
    pub cpu_time: Duration,
}

/// Reads lines of a server's output until one says what is looked for, such as the port that it listens on. The rest is read and dropped
/// in the background: the server would block on a full pipe.
pub fn wait_line<T>(server: &str, pipe: impl Read + Send + 'static, find: impl Fn(&str) -> Option<T>) -> T {
    let mut lines = BufReader::new(pipe).lines();
    let mut log = Vec::new();
    let found = loop {
        let Some(Ok(line)) = lines.next() else {
            panic!("{server} does not listen:\n{}", log.join("\n"));
        };
        match find(&line) {
            Some(found) => break found,
            None => log.push(line),
        }
    };
    std::thread::spawn(move || lines.for_each(drop));
    found
}

/// Sends a signal to a process of a test.
pub fn send_signal(process: u32, signal: Signal) {
    let id = Pid::from_raw(process as i32).expect("a process");
    kill_process(id, signal).expect("it runs");
}

/// Returns what a process has used so far.
pub fn read_usage(process: u32) -> ProcessUsage {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}")).expect("it runs");
    let (status, stat) = (read("status"), read("stat"));
    let read_bytes = |field: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(field));
        let kib = value.and_then(|value| value.split_ascii_whitespace().next()?.parse::<u64>().ok());
        kib.expect(field) * 1024
    };
    // The first field after the command is the state.
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_ascii_whitespace()
        .collect();
    let read_time = |field: usize| {
        let ticks: u64 = fields[field].parse().expect("a number");
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    };
    ProcessUsage {
        anonymous_bytes: read_bytes("RssAnon:"),
        file_bytes: read_bytes("RssFile:"),
        cpu_time: read_time(11) + read_time(12),
        started: read_time(19),
    }
}

impl HostProcess {
    /// Starts a host with the default options.
    pub fn start(lab: &Lab, name: &str, arguments: &[&str]) -> Self {
        Self::start_with(lab, name, arguments, ProcessOptions::default())
    }

    /// Starts a host. It uses the plugin directory `NAME` and `NAME.kubeconfig` of the lab's directory where they exist,
    /// and the lab's own otherwise.
    pub fn start_with(lab: &Lab, name: &str, arguments: &[&str], options: ProcessOptions<'_>) -> Self {
        let at = |suffix: &str| lab.path().join(format!("{name}{suffix}"));
        let (log, ready, grants) = (at(".log"), at(".ready"), at(".grants.yaml"));
        let default_grants = format!("{PACK_GRANTS}{LIFECYCLE_GRANTS}");
        std::fs::write(&grants, options.grants.unwrap_or(&default_grants)).expect("grants written");
        let _ = std::fs::remove_file(&ready);
        let (own, elsewhere) = (at(""), at(".kubeconfig"));
        let kubeconfig = if elsewhere.exists() {
            &elsewhere
        } else {
            &lab.kubeconfig
        };
        let plugins = if own.is_dir() { &own } else { &lab.settings.plugins };
        let output = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log");
        let mut command = match options.cgroup {
            None => Command::new(host_binary()),
            // The shell enters the group before it becomes the host, so that all memory of the host counts.
            Some(cgroup) => {
                let mut shell = Command::new("sh");
                shell
                    .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
                    .arg(cgroup.processes())
                    .arg(host_binary());
                shell
            }
        };
        let child = command
            .arg("run")
            .args(["--allow-network", "127.0.0.1"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--plugin-dir")
            .arg(plugins)
            .arg("--grants")
            .arg(grants)
            .arg("--cache-dir")
            .arg(compiled_dir())
            .arg("--ready-file")
            .arg(&ready)
            .args([
                "--watch-namespace",
                &lab.namespace,
                "--admin-bind-address",
                "127.0.0.1:0",
            ])
            // Without it the host would write the status of other tests' Plugins on a shared server.
            .arg("--plugin-selector")
            .arg(format!("lab={}", lab.namespace))
            .args(arguments)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(output)
            .spawn()
            .expect("the host starts");
        Self { child, log, ready }
    }

    /// Sends a signal to the process.
    pub fn send_signal(&self, signal: Signal) {
        send_signal(self.child.id(), signal);
    }

    /// True while the process has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// Waits until the host is ready: plugins loaded, admin server bound.
    pub async fn wait_started(&self, lab: &Lab) {
        lab.wait_until("the host has started", async || self.ready.exists())
            .await;
    }

    /// Returns the URL of the admin server of the host, which has started.
    pub fn admin_url(&self) -> String {
        self.read_facts()["admin"].as_str().unwrap_or_default().to_owned()
    }

    /// Reads the ready file of the host, which has started: its URLs and process ID.
    pub fn read_facts(&self) -> serde_json::Value {
        let ready = std::fs::read_to_string(&self.ready).expect("the host has started");
        serde_json::from_str(&ready).expect("JSON")
    }

    /// Fetches a metric of the host, which has started; 0 without the series.
    pub async fn fetch_metric(&self, series: &str) -> f64 {
        let url = format!("{}/metrics", self.admin_url());
        let response = reqwest::get(url).await.expect("the admin server answers");
        let text = response.text().await.expect("a text");
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Returns what the process has used so far.
    pub fn read_usage(&self) -> ProcessUsage {
        read_usage(self.child.id())
    }

    /// Lists the files with compiled code of components that the process has mapped into its memory.
    pub fn list_mapped_code(&self) -> BTreeSet<String> {
        let paths = list_mappings(self.child.id())
            .into_iter()
            .map(|mapping| mapping.path);
        paths.filter(|path| path.ends_with(".cwasm")).collect()
    }

    /// Counts the arenas of glibc's allocator, without that of the main thread. The heap of each is at a multiple of 64 MiB, of which a part is
    /// in use and the rest reserved.
    pub fn count_arenas(&self) -> usize {
        const HEAP_BYTES: usize = 64 << 20;
        list_mappings(self.child.id())
            .array_windows()
            .filter(|[used, reserved]| {
                (&*used.permissions, &*reserved.permissions) == ("rw-p", "---p")
                    && used.range.start % HEAP_BYTES == 0
                    && used.range.end == reserved.range.start
                    // The kernel joins what is reserved with an area that follows. A slot for memories of components has gigabytes.
                    && (HEAP_BYTES..2 * HEAP_BYTES).contains(&(reserved.range.end - used.range.start))
            })
            .count()
    }

    /// Waits until the log contains a text.
    pub async fn wait_logged(&self, lab: &Lab, text: &str) {
        lab.wait_until(&format!("the host has logged {text:?}"), async || {
            self.log().contains(text)
        })
        .await;
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the process has exited.
    pub async fn wait_exit(&mut self, lab: &Lab) -> ExitStatus {
        let child = &mut self.child;
        lab.wait_until("the host has exited", || {
            std::future::ready(child.try_wait().expect("a child").is_some())
        })
        .await;
        child.wait().expect("it has exited")
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("--- {}\n{}", self.log.display(), self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Grants of the plugin `lifecycle`, in addition to [`PACK_GRANTS`].
pub const LIFECYCLE_GRANTS: &str = "  lifecycle:
    reconciles:
    - {group: tests.ostler.dev, kinds: ['*']}
    kubernetes:
    - {kinds: [ConfigMap], verbs: [get, apply], namespaces: ['*']}
    upstreams:
    - {methods: [GET], paths: [/*]}
    events: true
";

/// Finds the binary `ostler`: at `OSTLER_BIN`, or in the target directory of this test.
pub fn host_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("OSTLER_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("this test's path");
    let binary = test.ancestors().nth(2).expect("target directory").join("ostler");
    assert!(
        binary.exists(),
        "{} is not built: cargo build -p ostler",
        binary.display()
    );
    binary
}
