//! Messages about bad input: each names the file, the field or line, and the remedy.
//!
//! What a plugin does wrong at run time is tested elsewhere: panics and undone builds in this binary, loops in `hostile`,
//! requests without a permission in `grants`, and status fields that the CRD lacks in `status`.

use std::{fs, path::Path};

use ostler_test_harness::scenario;

use crate::author::{Terminal, output_text};

/// Runs a command that must fail with this exit code, and checks that its output has all words.
fn check_message(terminal: &Terminal, arguments: &[&str], words: &[&str]) {
    let output = terminal.ostler(arguments);
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}\n{text}");
    let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    assert!(missing.is_empty(), "{arguments:?}: {missing:?} not in\n{text}");
}

fn write(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("written");
}

/// Files of a project that are wrong before anything is built.
#[scenario(embedded = "it needs no API server")]
fn invalid_project_is_reported_with_file_field_and_remedy() {
    let terminal = Terminal::new("projects");
    let manifest = |text: &str| ("plugin.yaml", text.to_owned());
    let crd = |text: &str| ("crds/x.yaml", text.to_owned());
    let rows = [
        (
            manifest("permissions: {kubernets: []}"),
            &[
                "plugin.yaml",
                "line 1",
                "`kubernets`",
                "expected one of",
                "kubernetes",
            ][..],
        ),
        (
            manifest("permissions:\n  kubernetes:\n  - {kinds: [ConfigMap], verbs: [update]}"),
            &["plugin.yaml", "line 3", "`update`", "expected one of", "patch"],
        ),
        (
            manifest("permissions: {kubernetes: [{kinds: [ConfigMap]}]}"),
            &["plugin.yaml", "line 1", "missing field `verbs`"],
        ),
        (
            manifest("permissions: {kubernetes: [{group: apps/v1, kinds: [Deployment], verbs: [get]}]}"),
            &["plugin.yaml", "permissions.kubernetes", "write \"apps\""],
        ),
        (
            manifest("permissions: ["),
            &["plugin.yaml", "line 1", "expected mapping"],
        ),
        (
            manifest("config: {schema: {type: objekt}}"),
            &[
                "plugin.yaml",
                "config.schema.type",
                "\"objekt\"",
                "write one of object",
            ],
        ),
        (
            crd("apiVersion: v1\nkind: Secret\nmetadata: {name: x}\n"),
            &["crds/x.yaml", "kind: Secret", "put it into samples/"],
        ),
        (
            crd("kind: CustomResourceDefinition\nspec: {names: [\n"),
            &["crds/x.yaml", "is not YAML", "line"],
        ),
        (
            ("samples/x.yaml", "kind: X\nmetadata: {name: x}\n".into()),
            &["samples/x.yaml", "object 1", "apiVersion is missing"],
        ),
    ];
    for (i, ((path, text), words)) in rows.into_iter().enumerate() {
        let name = format!("project-{i}");
        let folder = terminal.path().join(&name);
        write(&folder, "go.mod", "module project\n");
        write(&folder, "plugin.yaml", "permissions: {}\n");
        write(&folder, path, &text);
        check_message(&terminal, &["plugin", "test", &name, "--skip-native"], words);
    }
    let empty = terminal.path().join("empty");
    write(&empty, "go.mod", "module empty\n");
    write(&empty, "plugin.yaml", "");
    check_message(
        &terminal,
        &["plugin", "build", "empty"],
        &["empty/plugin.yaml", "permissions: {}"],
    );
    check_message(
        &terminal,
        &["plugin", "crds", "empty"],
        &[
            "empty",
            "none of its kinds has typed fields",
            "ostler.Reconciler[Spec]",
        ],
    );
    for command in ["explain", "logs"] {
        check_message(
            &terminal,
            &[command, "team"],
            &["\"team\"", "KIND/NAME", "team/platform"],
        );
        let words = [
            "no admin server at",
            &terminal.admin,
            "--admin URL",
            "kubectl ostler",
        ];
        check_message(&terminal, &[command, "team/platform"], &words);
    }
}

/// A machine without the compiler of a language.
#[scenario(embedded = "it needs no API server")]
fn missing_toolchain_is_reported_with_its_package() {
    let terminal = Terminal::new("missing-tools");
    for (marker, text, words) in [
        (
            "Cargo.toml",
            "[package]\nname = \"x\"\n",
            &["cargo", "rustup.rs"][..],
        ),
        ("go.mod", "module x\n", &["`go version`", "golang"]),
        (
            "package.json",
            "{\"name\": \"x\"}",
            &["`node --version`", "apt-get install nodejs"],
        ),
        (
            "pyproject.toml",
            "[project]\nname = \"x\"\n",
            &["`python3", "apt-get install python3"],
        ),
    ] {
        let folder = terminal.path().join(marker.replace('.', "-"));
        write(&folder, marker, text);
        write(&folder, "plugin.yaml", "permissions: {}\n");
        for source in ["src/lib.rs", "main.go", "index.js", "main.py"] {
            write(&folder, source, "");
        }
        let mut command = terminal.command(ostler_test_harness::process::host_binary());
        command
            .args(["plugin", "build"])
            .arg(&folder)
            .env("PATH", terminal.path())
            .env_remove("CARGO");
        let output = command.output().expect("ostler runs");
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(1), "{marker}\n{text}");
        assert!(
            words.iter().all(|word| text.contains(word)),
            "{marker}: {words:?} in\n{text}"
        );
    }
}

/// An edit of a new project's source.
struct Edit {
    /// The text that is replaced.
    good: &'static str,
    /// Its replacement, which the compiler refuses.
    bad: &'static str,
    /// Parts of the message.
    words: &'static [&'static str],
}

#[scenario(embedded = "it starts its own")]
fn rust_project_with_finalizer_reports_invalid_source_and_cleans_up() {
    let edits = [Edit {
        good: "ctx.delete(&map)",
        bad: "ctx.dlete(&map)",
        words: &["src/lib.rs:", "dlete"],
    }];
    check_sources("rust", "src/lib.rs", &edits);
}

#[scenario(embedded = "it starts its own")]
fn go_project_with_finalizer_reports_invalid_source_and_cleans_up() {
    let edits = [Edit {
        good: "err := ostler.Apply(",
        bad: "err := ostler.Aply(",
        words: &["main.go:", "Aply"],
    }];
    check_sources("go", "main.go", &edits);
}

#[scenario(embedded = "it starts its own")]
fn javascript_project_with_finalizer_reports_invalid_source_and_cleans_up() {
    let edits = [
        Edit {
            good: "import { awaitChange, plugin,",
            bad: "import { awaitChange, parkd, plugin,",
            words: &["parkd", "ostler/index.js"],
        },
        Edit {
            good: "  host.apply({",
            bad: "  host.apply(({",
            words: &["/index.js:"],
        },
    ];
    check_sources("js", "index.js", &edits);
}

#[scenario(embedded = "it starts its own")]
fn python_project_with_finalizer_reports_invalid_source_and_cleans_up() {
    let edits = [Edit {
        good: "def reconcile(self, object, host):",
        bad: "def reconcile(self, object, host)",
        words: &["main.py\", line", "SyntaxError"],
    }];
    check_sources("python", "main.py", &edits);
}

/// Checks a new project with a finalizer: edits that the compiler refuses, and the checks of the sound project, one of which is
/// that nothing is left of a deleted sample.
fn check_sources(language: &str, source: &str, edits: &[Edit]) {
    let terminal = Terminal::new(&format!("finalized-{language}"));
    // Its own name: the tests share a target directory, in which cargo tells packages apart by their names.
    let name = format!("finalized-in-{language}");
    let kind = "Thing.v1.example.dev";
    let arguments = [
        "plugin",
        "new",
        &name,
        "--kind",
        kind,
        "--language",
        language,
        "--finalizer",
    ];
    let made = terminal.ostler(&arguments);
    assert!(made.status.success(), "{}", output_text(&made));
    let folder = terminal.path().join(&name);
    let sound = fs::read_to_string(folder.join(source)).expect("a source");
    for Edit { good, bad, words } in edits {
        assert!(sound.contains(good), "{good} in\n{sound}");
        write(&folder, source, &sound.replace(good, bad));
        check_message(&terminal, &["plugin", "build", &name], words);
    }
    write(&folder, source, &sound);
    check_changed_types(&terminal, &name, language, source);
    let checks = terminal.json(&["plugin", "test", &name, "--output", "json"]);
    let all = checks.as_array().expect("checks");
    assert!(
        all.len() >= 6 && all.iter().all(|check| check["result"] == "passed"),
        "{checks:#}"
    );
}

/// Types that are newer than the CRD.
fn check_changed_types(terminal: &Terminal, name: &str, language: &str, source: &str) {
    let folder = terminal.path().join(name);
    let sound = fs::read_to_string(folder.join(source)).expect("a source");
    let (field, more) = match language {
        "rust" => (
            "    /// Text of the ConfigMap.\n",
            "    /// Its size.\n    pub size: Option<u32>,\n    /// Text of the ConfigMap.\n",
        ),
        "go" => (
            "\t// Text of the ConfigMap.\n",
            "\t// Its size.\n\tSize uint32 `json:\"size,omitempty\"`\n\t// Text of the ConfigMap.\n",
        ),
        "js" => (
            " * @property {string} message",
            " * @property {number} [size] Its size. {@asType integer}\n * @property {string} message",
        ),
        _ => (
            "    \"\"\"Text of the ConfigMap.\"\"\"\n",
            "    \"\"\"Text of the ConfigMap.\"\"\"\n    size: int | None = None\n    \"\"\"Its size.\"\"\"\n",
        ),
    };
    assert_eq!(sound.matches(field).count(), 1, "{field} in\n{sound}");
    write(&folder, source, &sound.replace(field, more));
    let file = format!("{name}/crds/example.dev_things.yaml");
    check_message(
        terminal,
        &["plugin", "crds", name, "--check"],
        &[
            &file,
            "thing.spec.size added",
            &format!("ostler plugin crds {name}"),
        ],
    );
    let written = terminal.json(&["plugin", "crds", name, "--output", "json"]);
    assert_eq!(
        written[0]["changes"],
        serde_json::json!(["thing.spec.size added"]),
        "{written}"
    );
    let crd = fs::read_to_string(folder.join("crds/example.dev_things.yaml")).expect("a CRD");
    assert!(crd.contains("size:"), "{crd}");
    let again = terminal.json(&["plugin", "crds", name, "--check", "--output", "json"]);
    assert_eq!(again, serde_json::json!([]));
}
