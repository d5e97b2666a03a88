//! Execution of docs/tutorial.md: its blocks are commands and lines that their output must contain.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use ostler_test_harness::{Lab, workspace_root};
use serde_json::Value;

use crate::author::{Running, Terminal, output_text, wait_until};

/// Limit of the lines of a reconciler.
const MAX_RECONCILER_LINES: usize = 60;

/// A block of commands, and the lines that their output must contain.
#[derive(Debug, Default, PartialEq, Eq)]
struct Block {
    commands: String,
    expected: Vec<String>,
    /// Runs in a second terminal, in the background.
    beside: bool,
}

/// Parses the blocks of a page for a language: those that name no language, or this one.
fn parse_blocks(page: &str, language: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else {
            continue;
        };
        let body: Vec<_> = lines
            .by_ref()
            .take_while(|l| *l != "```")
            .map(str::to_owned)
            .collect();
        let (kind, of) = info.split_once(' ').unwrap_or((info, ""));
        if !["", "terminal 2", language].contains(&of) {
            assert!(LANGUAGES.contains(&of), "```{info}: this is no language");
            continue;
        }
        match kind {
            "sh" => blocks.push(Block {
                commands: body.join("\n"),
                expected: Vec::new(),
                beside: of == "terminal 2",
            }),
            "text" => blocks.last_mut().expect("commands before their output").expected = body,
            other => panic!("```{other}: neither commands (sh) nor their output (text)"),
        }
    }
    blocks
}

/// The languages of the page.
const LANGUAGES: [&str; 4] = ["rust", "go", "js", "python"];

/// A cluster on which `plugin dev` runs the tutorial instead of on its own API server: its kubeconfig, with a namespace.
pub struct TutorialCluster {
    kubeconfig: PathBuf,
    namespace: String,
}

impl TutorialCluster {
    /// The API server of a lab, if that is a real one.
    pub fn of_lab(lab: &Lab, folder: &Path) -> Option<Self> {
        if lab.embedded.is_some() {
            return None;
        }
        let text = std::fs::read_to_string(&lab.kubeconfig).expect("a kubeconfig");
        let mut config: Value = serde_saphyr::from_str(&text).expect("YAML");
        config["contexts"][0]["context"]["namespace"] = lab.namespace.clone().into();
        let kubeconfig = folder.join("cluster.json");
        std::fs::write(&kubeconfig, config.to_string()).expect("written");
        Some(Self {
            kubeconfig,
            namespace: lab.namespace.clone(),
        })
    }

    /// The page for this cluster, which other tests use as well: its kind has a group of its own.
    fn adapt(&self, page: &str) -> String {
        let dev = "ostler plugin dev hello";
        assert_eq!(page.matches(dev).count(), 1);
        // The test before `plugin dev` runs there, too; the one after it would share the objects with that.
        let test = "ostler plugin test hello";
        assert_eq!(page.matches(test).count(), 2);
        let kubeconfig = self.kubeconfig.display();
        page.replacen(test, &format!("{test} --kubeconfig {kubeconfig}"), 1)
            .replace(dev, &format!("{dev} --kubeconfig {kubeconfig}"))
            .replace("example.dev", &format!("{}.example.dev", self.namespace))
            .replace("default/example", &format!("{}/example", self.namespace))
    }
}

/// A line with its columns separated by one space.
fn squeeze_columns(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The first expected line that the output lacks.
fn find_missing_line<'a>(block: &'a Block, output: &str) -> Option<&'a String> {
    let output: Vec<_> = output.lines().map(squeeze_columns).collect();
    block
        .expected
        .iter()
        .find(|line| !output.iter().any(|o| o.contains(&squeeze_columns(line))))
}

fn bash(terminal: &Terminal, commands: &str) -> Command {
    let mut command = terminal.command("bash");
    command.args(["-euo", "pipefail", "-c", commands]);
    command
}

/// Runs the commands of the page in a language.
pub fn run_tutorial(terminal: &Terminal, language: &str, cluster: Option<&TutorialCluster>) {
    let documented =
        std::fs::read_to_string(workspace_root().join("docs/tutorial.md")).expect("the tutorial");
    let page = cluster.map_or_else(|| documented.clone(), |cluster| cluster.adapt(&documented));
    let blocks = parse_blocks(&page, language);
    assert!(
        blocks.iter().filter(|b| !b.expected.is_empty()).count() >= 5,
        "{blocks:#?}"
    );
    let mut beside: Option<Running> = None;
    let (began, mut lines) = (Instant::now(), 0);
    for block in &blocks {
        let since = Instant::now();
        lines += block.commands.lines().count();
        if block.beside {
            // `exec` replaces the shell, so that a signal reaches the command itself.
            let commands = format!("exec {}", block.commands);
            beside = Some(terminal.start(&mut bash(terminal, &commands), "terminal-2.log"));
        } else if ["ostler explain", "ostler logs"]
            .iter()
            .any(|c| block.commands.starts_with(c))
        {
            // The command in the second terminal takes effect with a delay, so the query is repeated.
            let mut last = String::new();
            wait_until(&format!("{} has {:?}\n", block.commands, block.expected), || {
                if let Some(beside) = &mut beside {
                    assert!(
                        beside.child.try_wait().expect("a child").is_none(),
                        "{}",
                        beside.log()
                    );
                }
                last = output_text(&bash(terminal, &block.commands).output().expect("bash"));
                find_missing_line(block, &last).is_none()
            });
        } else {
            let output = bash(terminal, &block.commands).output().expect("bash");
            let text = output_text(&output);
            assert!(output.status.success(), "{}\n{text}", block.commands);
            if let Some(line) = find_missing_line(block, &text) {
                panic!("{}: no line has {line:?}:\n{text}", block.commands);
            }
        }
        let first = block.commands.lines().next().unwrap_or_default();
        println!("{:>6.1} s  {first}", since.elapsed().as_secs_f64());
    }
    println!("{:>6.1} s  all of it", began.elapsed().as_secs_f64());
    let (name, file, max_lines) = match language {
        "rust" => ("Rust", "src/lib.rs", 62),
        "go" => ("Go", "main.go", 70),
        "js" => ("JavaScript", "index.js", 49),
        _ => ("Python", "main.py", 60),
    };
    let source = std::fs::read_to_string(terminal.path().join("hello").join(file)).expect("a source");
    let code = source.lines().count();
    let row = format!("| {name} | {lines} | {code} |");
    println!("{row}");
    assert!(documented.contains(&row), "the page does not contain: {row}");
    assert!(lines <= max_lines && code <= MAX_RECONCILER_LINES, "{row}");
    beside.expect("a second terminal").interrupt();
}

#[test]
fn page_is_parsed_into_commands_and_output() {
    let page = "# A\n```sh\none\ntwo\n```\n\n```text\nx  y\n```\n```sh terminal 2\nthree\n```\n```sh go\nin go\n```\n\
                ```sh js\nin js\n```\n```text\nsame\n```\n";
    let block = |commands: &str, expected: &[&str], beside| Block {
        commands: commands.into(),
        expected: expected.iter().map(|l| (*l).to_owned()).collect(),
        beside,
    };
    let found = parse_blocks(page, "go");
    assert_eq!(
        found,
        [
            block("one\ntwo", &["x  y"], false),
            block("three", &[], true),
            block("in go", &["same"], false),
        ]
    );
    assert_eq!(parse_blocks(page, "js")[2], block("in js", &["same"], false));
    assert_eq!(find_missing_line(&found[0], "a\n x     y z"), None);
    assert_eq!(
        find_missing_line(&found[0], "xy").map(String::as_str),
        Some("x  y")
    );
}
