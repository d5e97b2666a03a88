//! Execution of docs/tutorial.md: its blocks are commands and lines that their output must contain.

use std::{process::Command, time::Instant};

use ostler_test_harness::workspace_root;

use crate::author::{Running, Terminal, output_text, wait_until};

/// A block of commands, and the lines that their output must contain.
#[derive(Debug, Default, PartialEq, Eq)]
struct Block {
    commands: String,
    expected: Vec<String>,
    /// Runs in a second terminal, in the background.
    beside: bool,
}

/// Parses the blocks of a page.
fn parse_blocks(page: &str) -> Vec<Block> {
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
        match info.split_once(' ').unwrap_or((info, "")) {
            ("sh", terminal) => blocks.push(Block {
                commands: body.join("\n"),
                expected: Vec::new(),
                beside: !terminal.is_empty(),
            }),
            ("text", _) => blocks.last_mut().expect("commands before their output").expected = body,
            (other, _) => panic!("```{other}: neither commands (sh) nor their output (text)"),
        }
    }
    blocks
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

/// Runs the commands of the page.
pub fn run_tutorial() {
    let page = std::fs::read_to_string(workspace_root().join("docs/tutorial.md")).expect("the tutorial");
    let blocks = parse_blocks(&page);
    assert!(
        blocks.iter().filter(|b| !b.expected.is_empty()).count() >= 5,
        "{blocks:#?}"
    );
    let terminal = Terminal::new("tutorial");
    let mut beside: Option<Running> = None;
    let (began, mut lines) = (Instant::now(), 0);
    for block in &blocks {
        let since = Instant::now();
        lines += block.commands.lines().count();
        if block.beside {
            // `exec` replaces the shell, so that a signal reaches the command itself.
            let commands = format!("exec {}", block.commands);
            beside = Some(terminal.start(&mut bash(&terminal, &commands), "terminal-2.log"));
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
                last = output_text(&bash(&terminal, &block.commands).output().expect("bash"));
                find_missing_line(block, &last).is_none()
            });
        } else {
            let output = bash(&terminal, &block.commands).output().expect("bash");
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
    let source = std::fs::read_to_string(terminal.path().join("hello/src/lib.rs")).expect("a source");
    let code = source.lines().count();
    let typed = format!("{lines} lines are typed, {code} of them the reconciler's");
    println!("{typed}");
    assert!(page.contains(&typed), "the page does not contain: {typed}");
    assert!(lines <= 62, "{typed}");
    beside.expect("a second terminal").interrupt();
}

#[test]
fn page_is_parsed_into_commands_and_output() {
    let page = "# A\n```sh\none\ntwo\n```\n\n```text\nx  y\n```\n```sh terminal 2\nthree\n```\n";
    let found = parse_blocks(page);
    let block = |commands: &str, expected: &[&str], beside| Block {
        commands: commands.into(),
        expected: expected.iter().map(|l| (*l).to_owned()).collect(),
        beside,
    };
    assert_eq!(
        found,
        [block("one\ntwo", &["x  y"], false), block("three", &[], true)]
    );
    assert_eq!(find_missing_line(&found[0], "a\n x     y z"), None);
    assert_eq!(
        find_missing_line(&found[0], "xy").map(String::as_str),
        Some("x  y")
    );
}
