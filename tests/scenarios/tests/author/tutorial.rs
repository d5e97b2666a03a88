//! docs/tutorial.md, run: its blocks are commands, and what must be in their output.

use std::{process::Command, time::Instant};

use ostler_test_harness::workspace_root;

use crate::{Running, Terminal, said, until};

/// A block of commands, and the lines that its output must have.
#[derive(Debug, Default, PartialEq, Eq)]
struct Block {
    commands: String,
    expected: Vec<String>,
    /// In another terminal, where it goes on.
    beside: bool,
}

/// The blocks of a page.
fn blocks(page: &str) -> Vec<Block> {
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

/// A line with its columns one space apart.
fn squeezed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Of the lines expected, one that isn't there.
fn missing<'a>(block: &'a Block, output: &str) -> Option<&'a String> {
    let output: Vec<_> = output.lines().map(squeezed).collect();
    block
        .expected
        .iter()
        .find(|line| !output.iter().any(|o| o.contains(&squeezed(line))))
}

fn bash(terminal: &Terminal, commands: &str) -> Command {
    let mut command = terminal.command("bash");
    command.args(["-euo", "pipefail", "-c", commands]);
    command
}

/// Runs the page.
pub fn run() {
    let page = std::fs::read_to_string(workspace_root().join("docs/tutorial.md")).expect("the tutorial");
    let blocks = blocks(&page);
    assert!(
        blocks.iter().filter(|b| !b.expected.is_empty()).count() >= 5,
        "{blocks:#?}"
    );
    let terminal = Terminal::new();
    let mut beside: Option<Running> = None;
    let (began, mut lines) = (Instant::now(), 0);
    for block in &blocks {
        let since = Instant::now();
        lines += block.commands.lines().count();
        if block.beside {
            // One process, so that what ends it is not the shell's business.
            let commands = format!("exec {}", block.commands);
            beside = Some(terminal.start(&mut bash(&terminal, &commands), "terminal-2.log"));
        } else if block.commands.starts_with("ostler explain") {
            // What the other terminal does takes a moment, which a person would wait.
            let mut last = String::new();
            until(&format!("{} has {:?}\n", block.commands, block.expected), || {
                if let Some(beside) = &mut beside {
                    assert!(
                        beside.child.try_wait().expect("a child").is_none(),
                        "{}",
                        beside.log()
                    );
                }
                last = said(&bash(&terminal, &block.commands).output().expect("bash"));
                missing(block, &last).is_none()
            });
        } else {
            let output = bash(&terminal, &block.commands).output().expect("bash");
            let text = said(&output);
            assert!(output.status.success(), "{}\n{text}", block.commands);
            if let Some(line) = missing(block, &text) {
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
    assert!(page.contains(&typed), "the page does not say so: {typed}");
    assert!(lines <= 60, "{typed}");
    beside.expect("a second terminal").end();
}

#[test]
fn a_page_is_blocks_of_commands_and_output() {
    let page = "# A\n```sh\none\ntwo\n```\n\n```text\nx  y\n```\n```sh terminal 2\nthree\n```\n";
    let found = blocks(page);
    let block = |commands: &str, expected: &[&str], beside| Block {
        commands: commands.into(),
        expected: expected.iter().map(|l| (*l).to_owned()).collect(),
        beside,
    };
    assert_eq!(
        found,
        [block("one\ntwo", &["x  y"], false), block("three", &[], true)]
    );
    assert_eq!(missing(&found[0], "a\n x     y z"), None);
    assert_eq!(missing(&found[0], "xy").map(String::as_str), Some("x  y"));
}
