//! The table of scenarios in docs/development.md, from the attributes in the sources.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use syn::{Attribute, Item, Meta};

use crate::arguments::ScenarioArguments;

/// Comments around the table.
const BEGIN: &str = "<!-- begin of the scenarios -->\n";
const END: &str = "<!-- end of the scenarios -->\n";
/// Command that writes the table.
const UPDATE_COMMAND: &str = "UPDATE_SCENARIOS=1 cargo test -p ostler-test-macros";

fn workspace_root() -> PathBuf {
    // This crate is in tests/harness/macros.
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(3).expect("a workspace").to_owned()
}

/// Lists the scenarios below a folder of sources, with their modules as `prefix`.
fn list_scenarios(folder: &Path, prefix: &str, found: &mut Vec<(String, ScenarioArguments)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let stem = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let module = format!("{prefix}{stem}::");
        if path.is_dir() {
            list_scenarios(&path, &module, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            let file = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            for item in file.items {
                let Item::Fn(function) = item else { continue };
                let is_scenario = |attribute: &&Attribute| attribute.path().is_ident("scenario");
                if let Some(attribute) = function.attrs.iter().find(is_scenario) {
                    let arguments = match &attribute.meta {
                        Meta::Path(_) => ScenarioArguments::default(),
                        _ => attribute.parse_args().expect("arguments of a scenario"),
                    };
                    found.push((format!("{module}{}", function.sig.ident), arguments));
                }
            }
        }
    }
}

/// Renders the scenarios for which a reason is given.
fn render(scenarios: &[(String, ScenarioArguments)]) -> String {
    let mut text = String::from("| scenario | runs | because |\n|---|---|---|\n");
    for (name, arguments) in scenarios {
        let rows = [
            (&arguments.real, "on the real API server, too"),
            (&arguments.real_only, "on the real API server only"),
            (&arguments.embedded, "on the embedded API server only"),
            (&arguments.node_only, "on a node only"),
            (&arguments.campaign, "in `test all` only"),
        ];
        for (reason, runs) in rows {
            if let Some(reason) = reason {
                text.push_str(&format!("| `{name}` | {runs} | {reason} |\n"));
            }
        }
    }
    text
}

#[test]
fn documented_scenarios_are_those_of_the_sources() {
    let root = workspace_root();
    let mut scenarios = Vec::new();
    list_scenarios(&root.join("tests/scenarios/tests"), "", &mut scenarios);
    scenarios.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(scenarios.len() > 400, "{} scenarios are found", scenarios.len());
    let names: BTreeSet<_> = scenarios.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), scenarios.len(), "two scenarios have one name");
    let page = root.join("docs/development.md");
    let text = fs::read_to_string(&page).expect("the page");
    let (before, rest) = text.split_once(BEGIN).expect("the begin of the table");
    let (table, after) = rest.split_once(END).expect("the end of the table");
    let current = render(&scenarios);
    if std::env::var_os("UPDATE_SCENARIOS").is_some() {
        fs::write(&page, [before, BEGIN, &current, END, after].concat()).expect("written");
        return;
    }
    assert!(
        table == current,
        "the scenarios in docs/development.md are not current; run: {UPDATE_COMMAND}"
    );
}
