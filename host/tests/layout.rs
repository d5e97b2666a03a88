//! Dependencies between the folders of the host point one way.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Folders and root modules from the bottom up, as the table in `lib.rs` lists them from the top down: each may
/// use those before it only.
const STAGES: &[&str] = &[
    "kube",
    "contract",
    "policy",
    "observe",
    "client",
    "upstream",
    "recording",
    "cache",
    "leader",
    "supply",
    "schedule",
    "effect",
    "cluster",
    "sandbox",
    "plugin",
    "settings",
    "reconcile",
    "messages",
    "replay",
    "rollout",
    "plan",
    "host",
    "admin",
    "cli",
];

/// The root modules that a source file refers to by `crate::`, its inline test modules left out.
fn used_modules(source: &str) -> BTreeSet<String> {
    let code: String = source
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default()
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    let mut found = BTreeSet::new();
    for (at, prefix) in code.match_indices("crate::") {
        let tail = &code[at + prefix.len()..];
        match tail.strip_prefix('{') {
            Some(group) => found.extend(first_segments(group)),
            None => found.extend(leading_identifier(tail)),
        }
    }
    found
}

/// The first path segment of each item of a `use` group, given from behind its opening brace.
fn first_segments(group: &str) -> Vec<String> {
    let (mut depth, mut expects_item, mut segments) = (0, true, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => expects_item = true,
            c if depth == 0 && expects_item && c.is_alphabetic() => {
                segments.extend(leading_identifier(&group[at..]));
                expects_item = false;
            }
            _ => {}
        }
    }
    segments
}

fn leading_identifier(text: &str) -> Option<String> {
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

/// Adds the imports of every source file below a folder to those of its root module.
fn collect_imports(
    folder: &Path,
    root: Option<&str>,
    imports: &mut BTreeMap<String, BTreeMap<String, String>>,
) {
    for entry in fs::read_dir(folder).expect("a source folder") {
        let path = entry.expect("a directory entry").path();
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let module = root.unwrap_or(&stem).to_owned();
        if path.is_dir() {
            if stem != "tests" && stem != "templates" {
                collect_imports(&path, Some(&module), imports);
            }
        } else if path.extension().is_some_and(|e| e == "rs") && stem != "tests" {
            let source = fs::read_to_string(&path).expect("a source file");
            let used = imports.entry(module).or_default();
            for name in used_modules(&source) {
                used.entry(name).or_insert_with(|| path.display().to_string());
            }
        }
    }
}

#[test]
fn folders_import_only_folders_below_them() {
    let mut imports = BTreeMap::new();
    collect_imports(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        None,
        &mut imports,
    );
    for module in ["lib", "main", "fuzz"] {
        imports.remove(module);
    }
    let stage = |name: &str| STAGES.iter().position(|s| *s == name);
    let mut wrong = Vec::new();
    for (module, used) in &imports {
        let Some(own) = stage(module) else {
            wrong.push(format!("`{module}` is not in STAGES: give it a place"));
            continue;
        };
        for (name, file) in used {
            if stage(name).is_some_and(|other| other > own) {
                wrong.push(format!("{file}: `{module}` uses `{name}`, which is above it"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        imports.len(),
        STAGES.len(),
        "a stage without sources: {:?}",
        imports.keys()
    );
}

#[test]
fn used_modules_of_nested_groups_are_found() {
    let source = "use crate::{a::{b, c}, d, e::f::{self, g}};\nfn x() { crate::h::i() }\n// crate::comment::x\n\
                  #[cfg(test)]\nmod tests { use crate::z; }";
    let found: Vec<String> = used_modules(source).into_iter().collect();
    assert_eq!(found, ["a", "d", "e", "h"]);
}

/// Collects the files that declare each public type. Generated bindings have the names of the contract.
fn collect_types(folder: &Path, types: &mut BTreeMap<String, BTreeSet<String>>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a directory entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            let is_source =
                !name.starts_with('.') && !["target", "templates", "node_modules"].contains(&&*name);
            if is_source {
                collect_types(&path, types);
            }
        } else if name.ends_with(".rs") && name != "bindings.rs" {
            let source = fs::read_to_string(&path).expect("a source file");
            for declared in source.lines().filter_map(public_type) {
                types
                    .entry(declared)
                    .or_default()
                    .insert(path.display().to_string());
            }
        }
    }
}

/// The name of the type that a line declares with any public visibility.
fn public_type(line: &str) -> Option<String> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(restricted) => restricted.split_once(')')?.1,
        None => rest,
    };
    let (keyword, name) = rest.strip_prefix(' ')?.split_once(' ')?;
    ["struct", "enum", "trait", "type", "union"]
        .contains(&keyword)
        .then(|| leading_identifier(name))?
}

#[test]
fn public_types_of_the_workspace_have_names_of_their_own() {
    let mut types = BTreeMap::new();
    collect_types(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut types);
    assert!(types.len() > 500, "the sources are not read");
    let shared: Vec<_> = types.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(shared.is_empty(), "the name of several public types: {shared:#?}");
}

/// The section of the documentation that says where something is decided.
const DECISIONS: &str = "## Where to find it";
/// Maximum number of files that an answer names.
const MAX_FILES: usize = 2;

#[test]
fn documented_functions_are_in_the_files_that_the_documentation_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("../docs/architecture.md")).expect("the documentation");
    let (_, section) = text.split_once(DECISIONS).expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut functions = 0;
    for row in section.lines().filter(|line| line.starts_with("| ")) {
        let (mut files, mut source) = (0, String::new());
        for word in row.split('`').skip(1).step_by(2) {
            if word.ends_with(".rs") {
                files += 1;
                source = fs::read_to_string(root.join("src").join(word))
                    .unwrap_or_else(|e| panic!("{word}, which docs/architecture.md names: {e}"));
            } else {
                functions += 1;
                assert!(
                    source.contains(&format!("fn {word}(")) || source.contains(&format!("fn {word}<")),
                    "docs/architecture.md names {word} in\n{row}"
                );
            }
        }
        assert!(files <= MAX_FILES, "{row}");
    }
    assert!(functions > 10, "the table is not read");
}
