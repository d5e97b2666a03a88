//! Workflow of a plugin author with the real program: the tutorial, a failed build, projects in other languages, and
//! invalid arguments.

mod bad_input;
mod messages;
mod tutorial;

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use kube::api::{DeleteParams, Patch, PatchParams};
use ostler::testing::key::Gvk;
use ostler_test_harness::{Lab, process::host_binary, registry::RegistryProcess, scenario};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Timeout of a step, long enough for a clean build on a slow and busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(900);

#[scenario(real = "CRDs: changes and validation")]
async fn tutorial_in_rust_prints_the_documented_output(lab: Lab) {
    check_tutorial(lab, "rust").await;
}

#[scenario(real = "CRDs: changes and validation")]
async fn tutorial_in_go_prints_the_documented_output(lab: Lab) {
    check_tutorial(lab, "go").await;
}

#[scenario(real = "CRDs: changes and validation")]
async fn tutorial_in_javascript_prints_the_documented_output(lab: Lab) {
    check_tutorial(lab, "js").await;
}

#[scenario(real = "CRDs: changes and validation")]
async fn tutorial_in_python_prints_the_documented_output(lab: Lab) {
    check_tutorial(lab, "python").await;
}

/// Runs the tutorial in a language: `plugin dev` on its own API server, or on the real one. Nothing is left of its kind.
async fn check_tutorial(lab: Lab, language: &str) {
    let terminal = Terminal::new(&format!("tutorial-{language}"));
    let cluster = tutorial::TutorialCluster::of_lab(&lab, terminal.path());
    tokio::task::block_in_place(|| tutorial::run_tutorial(&terminal, language, cluster.as_ref()));
    if cluster.is_some() {
        delete_crd(&lab, &format!("greetings.{}.example.dev", lab.namespace)).await;
    }
}

async fn delete_crd(lab: &Lab, name: &str) {
    let kind = Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let deleted = lab.api(&kind, "").delete(name, &DeleteParams::default()).await;
    deleted.expect("deleted");
}

#[scenario(embedded = "it starts its own")]
async fn new_rust_project_passes_its_checks_and_handles_messages() {
    check_new_project("rust").await;
}

#[scenario(embedded = "it starts its own")]
async fn new_go_project_passes_its_checks_and_handles_messages() {
    check_new_project("go").await;
}

#[scenario(embedded = "it starts its own")]
async fn new_javascript_project_passes_its_checks_and_handles_messages() {
    check_new_project("js").await;
}

#[scenario(embedded = "it starts its own")]
async fn new_python_project_passes_its_checks_and_handles_messages() {
    check_new_project("python").await;
}

/// A terminal in a folder of its own.
struct Terminal {
    folder: PathBuf,
    admin: String,
    /// Held while the folder is in use.
    _lock: File,
}

/// Folder of what cargo compiles in the checkout: with it, the dependencies that a project shares with it are compiled already.
const BUILD_DIR: &str = "{cargo-cache-home}/build/ostler";

impl Terminal {
    fn new(name: &str) -> Self {
        // A port that was free a moment ago: two processes must know it before either binds it.
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let (folder, lock) = claim_folder(name);
        Self {
            folder,
            admin: port.expect("a port").to_string(),
            _lock: lock,
        }
    }

    fn path(&self) -> &Path {
        &self.folder
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut path = vec![host_binary().parent().expect("a folder").to_owned()];
        path.extend(std::env::split_paths(
            &std::env::var_os("PATH").unwrap_or_default(),
        ));
        let mut command = Command::new(program);
        command
            .current_dir(self.path())
            .env("PATH", std::env::join_paths(path).expect("a PATH"))
            .env("OSTLER_ADMIN", &self.admin)
            .env("NO_COLOR", "1")
            .env_remove("CARGO_TARGET_DIR")
            .stdin(Stdio::null());
        // Set by a person who measures a build with an empty cache.
        if std::env::var_os("OSTLER_BUILD_CACHE").is_none() {
            command.env("CARGO_BUILD_BUILD_DIR", BUILD_DIR);
        }
        command
    }

    fn ostler(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(host_binary());
        command.args(arguments).output().expect("ostler runs")
    }

    /// Runs a command that must succeed, and parses its JSON output.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ostler(arguments);
        assert!(output.status.success(), "{arguments:?}\n{}", output_text(&output));
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{arguments:?}: {e}\n{}", output_text(&output)))
    }

    /// Starts a process that ends with the test.
    fn start(&self, command: &mut Command, log: &str) -> Running {
        let log = self.path().join(log);
        let file = std::fs::File::create(&log).expect("a log");
        let errors = file.try_clone().expect("a log");
        let child = command.stdout(file).stderr(errors).spawn().expect("it starts");
        Running { child, log }
    }
}

/// Empties a folder of this name, or of this name and a number while another process of the tests uses that. The same folders again
/// and again, because cargo keeps the builds of each path for ever.
fn claim_folder(name: &str) -> (PathBuf, File) {
    let parent = std::env::temp_dir().join("ostler-author");
    std::fs::create_dir_all(&parent).expect("a folder");
    for number in 0.. {
        let folder = parent.join(format!("{name}-{number}"));
        let lock = File::create(folder.with_extension("lock")).expect("a lock");
        if lock.try_lock().is_ok() {
            if folder.exists() {
                std::fs::remove_dir_all(&folder).expect("an old folder");
            }
            std::fs::create_dir(&folder).expect("a folder");
            return (folder.canonicalize().expect("a path"), lock);
        }
    }
    unreachable!("a number is free")
}

/// The events of this name in the log of `ostler plugin dev --output json`.
fn list_rows(log: &str, what: &str) -> Vec<Value> {
    let rows = log.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    rows.filter(|row| row["what"] == what).collect()
}

fn output_text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// A background process.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn wait_until(&mut self, what: &str, mut holds: impl FnMut(&str) -> bool) {
        let ends = |running: &mut Self| running.child.try_wait().expect("a child").is_some();
        wait_until(what, || {
            assert!(!ends(self), "the process ended\n{}", self.log());
            holds(&self.log())
        });
    }

    /// Interrupts it like Ctrl-C; it must exit successfully.
    fn interrupt(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}\n{}", self.log());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("--- {}\n{}", self.log.display(), self.log());
        }
        // Fails if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(
            began.elapsed() < STEP_TIMEOUT,
            "timed out after {STEP_TIMEOUT:?} waiting until {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[scenario(embedded = "it starts its own")]
fn failed_build_leaves_the_previous_one_serving() {
    let terminal = Terminal::new("swapped");
    terminal.ostler(&["plugin", "new", "swapped", "--kind", "Swap.v1.example.dev"]);
    let mut dev = terminal.start(
        terminal
            .command(host_binary())
            .args(["plugin", "dev", "swapped", "--output", "json"]),
        "dev.log",
    );
    dev.wait_until("the first build serves", |log| {
        list_rows(log, "serves").len() == 1
    });
    let first = list_rows(&dev.log(), "serves").remove(0);
    assert_eq!(
        (&first["reconciles"], &first["errors"]),
        (&1.into(), &0.into()),
        "{first}"
    );

    let source = terminal.path().join("swapped/src/lib.rs");
    let good = std::fs::read_to_string(&source).expect("a source");
    std::fs::write(&source, good.replace("let applied =", "let unused =")).expect("saved");
    dev.wait_until("the build fails", |log| list_rows(log, "failed").len() == 1);
    assert!(
        dev.log().contains("src/lib.rs:"),
        "the compiler's error\n{}",
        dev.log()
    );
    let explained = terminal.json(&["explain", "swap/example", "--output", "json"]);
    assert_eq!(
        explained["state"], "Ready",
        "the previous build serves: {explained}"
    );

    std::fs::write(&source, good.replace("message applied", "text applied")).expect("saved");
    dev.wait_until("the fixed build serves", |log| {
        list_rows(log, "serves").len() == 2
    });
    let second = list_rows(&dev.log(), "serves").remove(1);
    assert_eq!(
        (&second["reconciles"], &second["errors"]),
        (&1.into(), &0.into()),
        "{second}"
    );
    assert!(explained["plugin_digest"].is_string(), "{explained}");
    let again = terminal.json(&["explain", "swap/example", "--output", "json"]);
    assert_ne!(again["plugin_digest"], explained["plugin_digest"], "{again}");
    println!(
        "first build {:.1} s, after a save {:.1} s, swap {} ms",
        first["buildMs"].as_f64().unwrap_or_default() / 1000.0,
        second["buildMs"].as_f64().unwrap_or_default() / 1000.0,
        second["swapMs"]
    );
    dev.interrupt();
}

#[scenario]
async fn plugin_dev_names_the_plugins_of_the_cluster_that_reconcile_its_kinds(lab: Lab) {
    let group = format!("{}.example.dev", lab.namespace);
    let plugins = lab.api(&Gvk::new("ostler.dev", "v1alpha1", "Plugin"), "");
    let name = |rival: &str| format!("{rival}-{}", lab.namespace);
    for (rival, suspended, kind) in [
        ("active", false, "Hello.v1beta1"),
        ("suspended", true, "Hello.v1"),
        ("other", false, "Bye.v1"),
    ] {
        lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
            "metadata": {"name": name(rival), "labels": {"lab": lab.namespace}},
            "spec": {"source": {"file": "missing.wasm"}, "suspend": suspended}}))
            .await;
        let status = Patch::Merge(json!({"status": {"kinds": [format!("{kind}.{group}")]}}));
        let written = plugins
            .patch_status(&name(rival), &PatchParams::default(), &status)
            .await;
        written.expect("a status");
    }
    let terminal = Terminal::new("contested");
    let kind = format!("Hello.v1.{group}");
    terminal.ostler(&["plugin", "new", "hello", "--kind", &kind]);
    let mut dev = terminal.start(
        terminal
            .command(host_binary())
            .args(["plugin", "dev", "hello", "--output", "json", "--kubeconfig"])
            .arg(&lab.kubeconfig),
        "dev.log",
    );
    tokio::task::block_in_place(|| {
        dev.wait_until("the rival is named", |log| {
            !list_rows(log, "contested").is_empty()
        });
    });
    let rows = list_rows(&dev.log(), "contested");
    let remedy = format!("`kubectl ostler suspend plugin/{}`", name("active"));
    let message = rows[0]["message"].as_str().expect("a text");
    assert!(rows.len() == 1 && message.contains(&remedy), "{rows:?}");
    dev.interrupt();
    for rival in ["active", "suspended", "other"] {
        lab.delete_plugin(&name(rival)).await;
    }
    delete_crd(&lab, &format!("hellos.{group}")).await;
}

/// A project whose samples need an upstream, which its folder `upstreams/` simulates.
#[scenario(embedded = "it starts its own")]
fn sample_is_reconciled_with_the_responses_of_a_simulated_upstream() {
    let terminal = Terminal::new("upstreams");
    let kind = "Page.v1.example.dev";
    let made = terminal.ostler(&["plugin", "new", "pages", "--kind", kind, "--language", "js"]);
    assert!(made.status.success(), "{}", output_text(&made));
    let folder = terminal.path().join("pages");
    let edit = |file: &str, from: &str, to: &str| messages::replace_once(&folder.join(file), from, to);
    edit(
        "index.js",
        "  // Apply the desired object",
        "  const page = host.upstream(\"site\").get(\"/home\");\n  \
          if (!page.ok) throw retry(\"Unreachable\", `the page was answered with ${page.status}`);\n  // Apply the desired object",
    );
    edit(
        "index.js",
        "data: { message: spec.message }",
        "data: { message: page.text() }",
    );
    edit(
        "index.js",
        "import { awaitChange, plugin,",
        "import { awaitChange, plugin, retry,",
    );
    edit(
        "plugin.yaml",
        "  kubernetes:\n",
        "  upstreams:\n  - {names: [site], methods: [GET], paths: [/home]}\n  kubernetes:\n",
    );
    let respond = |text: &str| {
        std::fs::create_dir_all(folder.join("upstreams")).expect("a folder");
        std::fs::write(folder.join("upstreams/site.yaml"), text).expect("saved");
    };
    // Several responses are returned in turn.
    respond("- {path: /home, status: 503}\n- {path: /home, body: Hello}\n");
    let checks = terminal.json(&["plugin", "test", "pages", "--skip-native", "--output", "json"]);
    let all = checks.as_array().expect("checks");
    assert!(all.iter().all(|check| check["result"] == "passed"), "{checks:#}");
    let mut command = terminal.command(host_binary());
    let mut dev = terminal.start(
        command.args(["plugin", "dev", "pages", "--output", "json"]),
        "dev.log",
    );
    dev.wait_until("the build serves", |log| list_rows(log, "serves").len() == 1);
    respond("- {path: /home, status: 500}\n");
    dev.wait_until("the sample fails", |log| list_rows(log, "applied").len() == 1);
    let row = list_rows(&dev.log(), "applied").remove(0);
    let message = row["message"].to_string();
    // Said by the plugin, or by the host once it asks no more for a moment.
    assert!(
        message.contains("the page was answered with 500") || message.contains("HTTP 500"),
        "{row}"
    );
    respond("- {path: a}\n");
    dev.wait_until("the file is refused", |log| list_rows(log, "wrong").len() == 1);
    let message = list_rows(&dev.log(), "wrong").remove(0)["message"].to_string();
    assert!(message.contains("upstreams/site.yaml: path:"), "{message}");
    respond("- {path: /home, body: Again}\n");
    dev.wait_until("the sample is Ready", |log| list_rows(log, "applied").len() == 2);
    let row = list_rows(&dev.log(), "applied").remove(1);
    assert_eq!(row["message"], "upstreams/", "{row}");
    dev.interrupt();
}

/// Saves of a project in Python: the interpreter is compiled again only when a module imports something new from elsewhere.
#[scenario(embedded = "it starts its own")]
fn python_session_compiles_the_interpreter_once_for_many_saves() {
    let terminal = Terminal::new("quick");
    let made = terminal.ostler(&[
        "plugin",
        "new",
        "quick",
        "--kind",
        "Note.v1.example.dev",
        "--language",
        "python",
    ]);
    assert!(made.status.success(), "{}", output_text(&made));
    let folder = terminal.path().join("quick");
    let mut command = terminal.command(host_binary());
    let mut dev = terminal.start(
        command.args(["plugin", "dev", "quick", "--output", "json"]),
        "dev.log",
    );
    dev.wait_until("the first build serves", |log| {
        list_rows(log, "serves").len() == 1
    });
    let quick = folder.join("target/plugins/quick/quick.wasm");
    let interpreter = || {
        let metadata = std::fs::metadata(&quick).expect("the interpreter");
        metadata.modified().expect("a time")
    };
    let message = |terminal: &Terminal| {
        let explained = terminal.json(&["explain", "note/example", "--output", "json"]);
        explained.to_string()
    };
    let first = interpreter();
    let main = folder.join("main.py");
    let good = std::fs::read_to_string(&main).expect("a source");
    let edit = |from: &str, to: &str| {
        assert_eq!(good.matches(from).count(), 1, "{from} in\n{good}");
        good.replace(from, to)
    };

    // A module of the plugin's own, in a package.
    std::fs::create_dir_all(folder.join("texts")).expect("a folder");
    std::fs::write(folder.join("texts/words.py"), "WORD = \"kept\"\n").expect("saved");
    std::fs::write(folder.join("texts/__init__.py"), "from .words import WORD\n").expect("saved");
    let split = edit("message applied: ", "message {WORD}: ").replacen(
        "\nfrom ostler ",
        "\nfrom texts import WORD\nfrom ostler ",
        1,
    );
    std::fs::write(&main, &split).expect("saved");
    dev.wait_until("the changed build serves", |_| {
        message(&terminal).contains("message kept")
    });
    assert_eq!(interpreter(), first, "the same interpreter");

    let line = "        ready = true_condition(";
    let raise = format!("        if object.name:\n            raise ValueError(f\"no {{WORD}}\")\n{line}");
    let raised = split.replacen(line, &raise, 1);
    assert_ne!(raised, split, "{split}");
    std::fs::write(&main, &raised).expect("saved");
    let number = 1 + raised
        .lines()
        .position(|line| line.contains("raise ValueError"))
        .expect("a line");
    let trap = format!("ValueError: no kept (/0/main.py:{number})");
    dev.wait_until("the exception and its place are reported", |log| {
        log.contains(&trap)
    });
    assert_eq!(interpreter(), first, "the same interpreter");

    // A module of the standard library, which is not there at run time unless the interpreter has it.
    let dated = split
        .replacen("\nfrom texts ", "\nimport calendar\nfrom texts ", 1)
        .replace("message {WORD}: ", "message {calendar.MONDAY}: ");
    std::fs::write(&main, &dated).expect("saved");
    dev.wait_until("the build with the module serves", |_| {
        message(&terminal).contains("message 0")
    });
    assert_ne!(interpreter(), first, "another interpreter");

    // A file that the module reads when it is imported: the whole build does so.
    std::fs::write(folder.join("texts/word.txt"), "read").expect("saved");
    let reading = "import pathlib\nWORD = (pathlib.Path(__file__).parent / \"word.txt\").read_text()\n";
    std::fs::write(folder.join("texts/words.py"), reading).expect("saved");
    std::fs::write(&main, &split).expect("saved");
    dev.wait_until("the whole build serves", |_| {
        message(&terminal).contains("message read")
    });
    dev.interrupt();
}

#[scenario(embedded = "it starts its own")]
fn panic_in_a_goroutine_has_text_file_and_line() {
    let terminal = Terminal::new("goroutine");
    let kind = "Routine.v1.example.dev";
    let made = terminal.ostler(&["plugin", "new", "routine", "--kind", kind, "--language", "go"]);
    assert!(made.status.success(), "{}", output_text(&made));
    let source = terminal.path().join("routine/main.go");
    let good = std::fs::read_to_string(&source).expect("a source");
    let first = "\tname := object.Metadata.Name\n";
    assert_eq!(good.matches(first).count(), 1, "{good}");
    for (panics, message) in [
        ("panic(\"there must be a host\")", "there must be a host"),
        (
            "println([]int{}[len(name)-len(name)])",
            "runtime error: index out of range [0] with length 0",
        ),
    ] {
        let goroutine = format!(
            "{first}\tdone := make(chan bool)\n\tgo func() {{\n\t\tdefer close(done)\n\t\t{panics}\n\t}}()\n\t<-done\n"
        );
        let broken = good.replace(first, &goroutine);
        let line = 1 + broken
            .lines()
            .position(|line| line.trim() == panics)
            .expect("the panic");
        std::fs::write(&source, broken).expect("saved");
        let output = terminal.ostler(&["plugin", "test", "routine", "--skip-native", "--timeout", "10s"]);
        let text = output_text(&output);
        let expected = format!("{message} (routine/main.go:{line})");
        assert!(
            !output.status.success() && text.contains(&expected),
            "{expected} in\n{text}"
        );
    }
}

/// Commands in the folders of two projects, whose sessions choose their own addresses.
#[scenario(embedded = "it starts its own")]
fn commands_in_a_project_ask_its_running_session() {
    let terminal = Terminal::new("sessions");
    let start = |name: &str, kind: &str| {
        let arguments = ["plugin", "new", name, "--kind", kind, "--language", "js"];
        let made = terminal.ostler(&arguments);
        assert!(made.status.success(), "{}", output_text(&made));
        let mut command = terminal.command(host_binary());
        command.args(["plugin", "dev", name]).env_remove("OSTLER_ADMIN");
        terminal.start(&mut command, &format!("{name}.log"))
    };
    let mut sessions = [
        start("first", "First.v1.example.dev"),
        start("second", "Second.v1.example.dev"),
    ];
    for session in &mut sessions {
        session.wait_until("the build serves", |log| log.contains(" serves "));
    }
    for (project, other) in [("first", "second"), ("second", "first")] {
        let run = |arguments: &[&str]| {
            let mut command = terminal.command(host_binary());
            let folder = terminal.path().join(project);
            // An empty variable is none.
            command
                .args(arguments)
                .current_dir(folder)
                .env("OSTLER_ADMIN", "");
            let output = command.output().expect("ostler runs");
            (output.status.code(), output_text(&output))
        };
        let object = format!("{project}/example");
        let (code, text) = run(&["explain", &object]);
        assert!(code == Some(0) && text.contains("Ready"), "{text}");
        let (code, text) = run(&["explain", &format!("{other}/example")]);
        assert!(code == Some(1) && text.contains("no objects of kind"), "{text}");
        let (code, text) = run(&["plan"]);
        assert_eq!(code, Some(0), "nothing would change\n{text}");
        let sample = format!("samples/{project}.yaml");
        let (_, kind) = project.split_at(1);
        let changed = terminal.path().join("changed.yaml");
        let source = std::fs::read_to_string(terminal.path().join(project).join(&sample)).expect("a sample");
        std::fs::write(&changed, source.replace("Hello", "Changed")).expect("written");
        let (code, text) = run(&["plan", "-f", changed.to_str().expect("a path")]);
        let line = format!("{kind}/default/example");
        let words = [
            "+  message: Changed",
            "# ConfigMap/default/example is changed by",
            &line,
        ];
        assert!(
            code == Some(1) && words.iter().all(|word| text.contains(word)),
            "{text}"
        );
        let (code, text) = run(&["record", &object, "--now", "--file", "recording.json"]);
        assert_eq!(code, Some(0), "{text}");
        let (code, text) = run(&["replay", "recording.json"]);
        assert!(code == Some(0) && text.contains("same"), "{text}");
    }
    for session in sessions {
        session.interrupt();
    }
    assert!(!terminal.path().join("first/.ostler/dev.json").exists());
}

#[scenario(embedded = "it starts its own")]
fn rolled_back_build_is_explained_and_undone_at_once() {
    let terminal = Terminal::new("taken");
    terminal.ostler(&["plugin", "new", "taken", "--kind", "Taken.v1.example.dev"]);
    let mut dev = terminal.start(
        terminal
            .command(host_binary())
            .args(["plugin", "dev", "taken", "--output", "json"]),
        "dev.log",
    );
    dev.wait_until("the first build serves", |log| {
        list_rows(log, "serves").len() == 1
    });

    // It panics on an object that comes later, so that no recording refuses it.
    let source = terminal.path().join("taken/src/lib.rs");
    let good = std::fs::read_to_string(&source).expect("a source");
    let first = "    ctx.apply_owned(&json!({";
    let panics = "    assert!(object.name() != \"boom\", \"there must be\\na host\");\n";
    let line = 1 + good
        .lines()
        .position(|line| line == first)
        .expect("the first statement");
    std::fs::write(&source, good.replace(first, &[panics, first].concat())).expect("saved");
    dev.wait_until("the second build serves", |log| {
        list_rows(log, "serves").len() == 2
    });
    let boom = "apiVersion: example.dev/v1\nkind: Taken\nmetadata: {name: boom}\nspec: {message: x}\n";
    std::fs::write(terminal.path().join("taken/samples/boom.yaml"), boom).expect("saved");
    dev.wait_until("it is rolled back", |log| {
        list_rows(log, "rolled back").len() == 1
    });
    let message = list_rows(&dev.log(), "rolled back").remove(0)["message"].to_string();
    let panicked = format!("there must be a host (src/lib.rs:{line})");
    assert!(
        message.contains("was rolled back") && message.contains(&panicked),
        "{panicked} in {message}"
    );

    let undone = Instant::now();
    std::fs::write(&source, &good).expect("saved");
    dev.wait_until("the undone change serves", |log| {
        list_rows(log, "serves").len() == 3
    });
    println!(
        "the undone change serves after {:.1} s",
        undone.elapsed().as_secs_f64()
    );
    let explained = terminal.json(&["explain", "taken/boom", "--output", "json"]);
    assert_eq!(explained["state"], "Ready", "{explained}");

    // Now there is a recording of the object, with which it would panic.
    std::fs::write(&source, good.replace(first, &[panics, first].concat())).expect("saved");
    dev.wait_until("the build is refused", |log| list_rows(log, "refused").len() == 1);
    let message = list_rows(&dev.log(), "refused").remove(0)["message"].to_string();
    assert!(message.contains(&panicked), "{panicked} in {message}");
    std::fs::write(&source, good.replace("message applied", "text applied")).expect("saved");
    dev.wait_until("a later build serves", |log| list_rows(log, "serves").len() == 4);
    dev.interrupt();
}

/// Creates a project in each language, and runs its checks. Returns them built, with a handler that also publishes.
async fn check_new_project(language: &str) {
    let terminal = Terminal::new(&format!("new-{language}"));
    let project = tokio::task::block_in_place(|| build_new_project(&terminal, language));
    messages::check_handler(&project).await;
    // The command is the same for all, and compiles the component each time: an interpreter takes a minute.
    if language == "rust" {
        check_deployment(&terminal, &project.name).await;
    }
}

/// Deploys a project to a cluster, and again. The tag is the version of the plugin.
async fn check_deployment(terminal: &Terminal, project: &str) {
    let lab = Lab::embedded().await;
    let registry = RegistryProcess::start_public();
    lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ostler-system"}}))
        .await;
    let repository = format!("{}/plugins/{project}", registry.address());
    let kubeconfig = lab.kubeconfig.to_str().expect("a path");
    let command = [
        "plugin",
        "deploy",
        project,
        &repository,
        "--namespace",
        "deployed",
        "--create-namespace",
    ];
    let deploy = || {
        let output = terminal.ostler(&[&command[..], &["--no-wait", "--kubeconfig", kubeconfig]].concat());
        assert!(output.status.success(), "{}", output_text(&output));
        output_text(&output)
    };
    let text = tokio::task::block_in_place(deploy);
    let reference = format!("{repository}:0.1.0@sha256:");
    assert!(
        text.contains(&reference) && text.contains("Namespace deployed applied"),
        "{text}"
    );
    let plugins = lab.api(&ostler::testing::plugin::kind(), "");
    let plugin = plugins.get(project).await.expect("the Plugin");
    let pinned = plugin.data["spec"]["source"]["oci"]["reference"].as_str();
    assert!(
        pinned.is_some_and(|pinned| pinned.starts_with(&reference)),
        "{pinned:?}"
    );
    let text = tokio::task::block_in_place(deploy);
    assert!(
        text.contains("was there already") && text.contains("no new permissions"),
        "{text}"
    );
}

/// Creates, checks and builds a project. With messages, because a project without is the tutorial's in Rust, and the example's
/// in each other language.
fn build_new_project(terminal: &Terminal, language: &str) -> messages::BuiltProject {
    let name = format!("in-{language}");
    let kind = format!("{}Thing.v1.example.dev", language.to_uppercase());
    let arguments = ["plugin", "new", &name, "--kind", &kind, "--language", language];
    let made = terminal.ostler(&[&arguments[..], &["--messages"]].concat());
    assert!(made.status.success(), "{}", output_text(&made));
    let began = Instant::now();
    let checks = terminal.json(&["plugin", "test", &name, "--output", "json"]);
    let all = checks.as_array().expect("checks");
    assert!(
        all.len() >= 6 && all.iter().all(|c| c["result"] == "passed"),
        "{checks:#}"
    );
    messages::add_publish(&terminal.path().join(&name), language);
    messages::add_hooks(&terminal.path().join(&name), language);
    let built = terminal.json(&["plugin", "build", &name, "--output", "json"]);
    let component = built["path"].as_str().expect("a path");
    let inspected = terminal.json(&["plugin", "inspect", component, "--output", "json"]);
    assert_eq!(inspected["messages"], true, "{inspected:#}");
    let size = all
        .iter()
        .find(|c| c["check"] == "build")
        .map(|c| c["message"].to_string());
    println!(
        "{language}: {} in {:.1} s",
        size.unwrap_or_default(),
        began.elapsed().as_secs_f64()
    );
    messages::BuiltProject {
        folder: terminal.path().join(&name),
        component: terminal.path().join(component),
        has_hooks: language != "rust",
        kind: kind.split('.').next().expect("a kind").to_owned(),
        name,
    }
}

#[scenario(embedded = "it needs no API server")]
fn invalid_arguments_are_reported_with_file_and_remedy() {
    let terminal = Terminal::new("arguments");
    let write = |path: &str, text: &str| {
        let path = terminal.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("written");
    };
    write("taken/file", "");
    write(
        "bare/Cargo.toml",
        "[package]\nname = \"bare\"\nversion = \"0.1.0\"\nedition = \"2024\"\n",
    );
    write("typing/go.mod", "module typing\n");
    write("typing/plugin.yaml", "permissions: {kubernets: []}\n");
    write("core.wasm", "\0asm\u{1}\0\0\0");
    for (arguments, code, words) in [
        (
            &["plugin", "new", "taken", "--kind", "X.v1.example.dev"][..],
            1,
            &["taken: it exists already", "--directory"][..],
        ),
        (
            &["plugin", "new", "Big", "--kind", "X.v1.example.dev"],
            2,
            &["a-z", "my-plugin"],
        ),
        (
            &["plugin", "new", "x", "--kind", "X"],
            2,
            &["Kind.version.group", "Greeting.v1alpha1.example.dev"],
        ),
        (
            &[
                "plugin",
                "new",
                "x",
                "--kind",
                "X.v1.example.dev",
                "--language",
                "cobol",
            ],
            2,
            &["cobol", "python"],
        ),
        (&["plugin", "build", "nowhere"], 1, &["nowhere: no such folder"]),
        (
            &["plugin", "build", "."],
            1,
            &["no plugin", "Cargo.toml", "ostler plugin new"],
        ),
        (
            &["plugin", "build", "bare"],
            1,
            &["bare/plugin.yaml: not found", "permissions: {}"],
        ),
        (
            &["plugin", "test", "typing"],
            1,
            &["typing/plugin.yaml", "kubernets"],
        ),
        (
            &["plugin", "inspect", "core.wasm"],
            1,
            &["core.wasm", "a core module, not a component"],
        ),
        (&["plugin", "inspect", "nothing.wasm"], 1, &["nothing.wasm"]),
    ] {
        let output = terminal.ostler(arguments);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{text}");
        assert!(
            words.iter().all(|w| text.contains(w)),
            "{arguments:?}: {words:?} in\n{text}"
        );
    }
    for shell in ["bash", "zsh", "fish"] {
        let output = terminal.ostler(&["completion", shell]);
        assert!(
            output.status.success() && output_text(&output).contains("OSTLER_COMPLETE"),
            "{shell}"
        );
    }
}
