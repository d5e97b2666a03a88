//! The capabilities of the SDKs: the table in docs/languages.md has a row for each function of the contract, with the name
//! that each SDK gives it, and agrees with the SDKs' sources.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use ostler_builder::contract::resolve_world;
use wit_parser::{Resolve, WorldId, WorldItem};

/// The cell of a function that an SDK does not have.
const ABSENT: &str = "–";

/// Languages in the order of the table's columns.
const LANGUAGES: [Language; 4] = [
    Language::Rust,
    Language::Go,
    Language::JavaScript,
    Language::Python,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Rust,
    Go,
    JavaScript,
    Python,
}

/// A function of the contract.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    interface: String,
    name: String,
    is_import: bool,
}

impl Function {
    fn key(&self) -> String {
        format!("{}.{}", self.interface, self.name)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The functions of a world, of imported and of exported interfaces.
fn list_functions(resolve: &Resolve, world: WorldId) -> Vec<Function> {
    let world = &resolve.worlds[world];
    let sides = [(&world.imports, true), (&world.exports, false)];
    let mut functions = Vec::new();
    for (items, is_import) in sides {
        for item in items.values() {
            let WorldItem::Interface { id, .. } = item else {
                continue;
            };
            let interface = &resolve.interfaces[*id];
            functions.extend(interface.functions.keys().map(|name| Function {
                interface: interface.name.clone().expect("a named interface"),
                name: name.clone(),
                is_import,
            }));
        }
    }
    functions
}

/// The sources of an SDK, without tests and generated bindings.
fn read_sdk(language: Language) -> String {
    let (folder, extension) = match language {
        Language::Rust => ("plugins/sdk/src", "rs"),
        Language::Go => ("plugins/sdk-go", "go"),
        Language::JavaScript => return read("plugins/sdk-js/index.js"),
        Language::Python => return read("plugins/sdk-python/ostler.py"),
    };
    let mut text = String::new();
    for part in ["", "messages", "lifecycle"] {
        let Ok(entries) = fs::read_dir(root().join(folder).join(part)) else {
            continue;
        };
        for entry in entries {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let is_source = path.extension().is_some_and(|e| e == extension);
            if is_source && !name.ends_with("_test.go") && name != "mock.rs" {
                text.push_str(&fs::read_to_string(&path).expect("a source"));
            }
        }
    }
    text
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Converts `read-events` to `readEvents` or `ReadEvents`.
fn camel(name: &str, upper: bool) -> String {
    let words = name.split('-').enumerate();
    words
        .map(|(i, word)| match (i, upper) {
            (0, false) => word.to_owned(),
            _ => word[..1].to_uppercase() + &word[1..],
        })
        .collect()
}

fn snake(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns true if the text has the words, and no longer word in place of the last one.
fn has_words(text: &str, words: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(words).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + words.len()..].chars().next();
        !(before.is_some_and(is_word) || words.ends_with(is_word) && after.is_some_and(is_word))
    })
}

/// Returns true if the SDK calls an imported function, or implements an exported one.
fn covers(language: Language, source: &str, function: &Function) -> bool {
    let Function {
        interface,
        name,
        is_import,
    } = function;
    if *is_import {
        let call = match language {
            Language::Rust => format!("{interface}::{}", snake(name)),
            Language::Go => format!("wit.{}{}", camel(interface, true), camel(name, true)),
            Language::JavaScript => format!("{interface}.{}", camel(name, false)),
            Language::Python => format!("{interface}.{}", snake(name)),
        };
        return has_words(source, &call);
    }
    match language {
        Language::Rust => has_words(source, &format!("fn {}", snake(name))),
        Language::Go => source.contains(&format!(") {}(", camel(name, true))),
        Language::JavaScript => {
            let name = camel(name, false);
            has_words(source, &format!("{name}:")) || has_words(source, &format!("{name}("))
        }
        Language::Python => has_words(source, &format!("def {}(", snake(name))),
    }
}

/// Returns true if an author can use this name of the SDK.
fn defines(language: Language, source: &str, name: &str) -> bool {
    let name = name.rsplit(['.', ':']).next().unwrap_or(name);
    let forms = match language {
        Language::Rust => match name.strip_suffix('!') {
            Some(name) => vec![format!("macro_rules! {name}")],
            None => vec![format!("fn {name}")],
        },
        Language::Go => vec![
            format!("func {name}("),
            format!(") {name}("),
            format!("\t{name} "),
        ],
        Language::JavaScript | Language::Python => Vec::new(),
    };
    let is_in = |text: &str, forms: &[String]| {
        forms
            .iter()
            .any(|form| text.contains(form.as_str()) && (form.ends_with(['(', ' ']) || has_words(text, form)))
    };
    match language {
        Language::Rust | Language::Go => is_in(source, &forms),
        Language::Python => is_in(source, &[format!("def {name}(")]),
        Language::JavaScript => {
            let types = read("plugins/sdk-js/index.d.ts");
            let named = |text: &str| {
                ["(", ":", "?(", "?:", " =", "<"]
                    .iter()
                    .any(|end| has_words(text, &format!("{name}{end}")))
            };
            let in_source = named(source) || has_words(source, &format!("{{ {name}"));
            in_source && named(&types)
        }
    }
}

/// The rows of the table: functions of the contract, each with a cell per language.
fn read_table() -> BTreeMap<String, [String; 4]> {
    let page = read("docs/languages.md");
    let section = page
        .split("\n## Capabilities")
        .nth(1)
        .expect("the section Capabilities");
    let section = section.split("\n## ").next().unwrap_or(section);
    let mut rows = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [function, rust, go, javascript, python] = cells[..] else {
            panic!("{line}: five columns are needed");
        };
        let row = [rust, go, javascript, python].map(str::to_owned);
        let before = rows.insert(function.trim_matches('`').to_owned(), row);
        assert_eq!(before, None, "two rows of {function}");
    }
    rows
}

/// The names in a cell.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn table_of_capabilities_agrees_with_the_contract_and_the_sdks() {
    let (resolve, world) = resolve_world(&[], "full-plugin").expect("the contract");
    let functions = list_functions(&resolve, world);
    assert!(functions.len() > 30, "{functions:?}");
    let table = read_table();
    let mut problems = Vec::new();
    for row in table
        .keys()
        .filter(|row| !functions.iter().any(|f| f.key() == **row))
    {
        problems.push(format!("`{row}` is no function of the contract: remove its row"));
    }
    let sources = LANGUAGES.map(read_sdk);
    for function in &functions {
        let key = function.key();
        let Some(row) = table.get(&key) else {
            problems.push(format!("`{key}` has no row: add one"));
            continue;
        };
        for (language, (source, cell)) in LANGUAGES.into_iter().zip(sources.iter().zip(row)) {
            let is_listed = cell != ABSENT;
            if is_listed != covers(language, source, function) {
                let remedy = if is_listed {
                    "is listed, but the SDK lacks it"
                } else {
                    "is in the SDK, but not listed"
                };
                problems.push(format!("`{key}` in {language:?}: it {remedy}"));
            }
            if is_listed && names(cell).next().is_none() {
                problems.push(format!("`{key}` in {language:?}: {cell} is no name in backticks"));
            }
            for name in names(cell).filter(|name| !defines(language, source, name)) {
                problems.push(format!(
                    "`{key}` in {language:?}: the SDK does not define `{name}`"
                ));
            }
        }
    }
    assert!(
        problems.is_empty(),
        "docs/languages.md, section Capabilities:\n{}",
        problems.join("\n")
    );
}

#[test]
fn calls_and_definitions_are_recognized_by_whole_words() {
    let send = Function {
        interface: "http".into(),
        name: "send".into(),
        is_import: true,
    };
    assert!(covers(Language::JavaScript, "call(http.send, x)", &send));
    assert!(!covers(Language::JavaScript, "call(http.sendAll, x)", &send));
    assert!(!covers(Language::Go, "wit.HttpSendAll(x)", &send));
    assert!(covers(Language::Rust, "= http::send;", &send));
    assert!(defines(
        Language::Python,
        "  def send_all(self)",
        "Upstream.send_all"
    ));
    assert!(!defines(Language::Python, "  def send_all_of(self)", "send_all"));
    assert!(defines(
        Language::Go,
        "func (u Upstream) SendAll(x)",
        "Upstream.SendAll"
    ));
    assert!(!defines(Language::Rust, "pub fn send_each(", "send"));
}
