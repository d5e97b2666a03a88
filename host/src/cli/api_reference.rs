//! The generated parts of `docs/api.md`, and the tests that compare the page with the code.
//!
//! A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. With the environment variable
//! `UPDATE_API_REFERENCE` the test writes the page instead of comparing it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, Command, CommandFactory};
use kube::CustomResourceExt;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value;

use crate::{
    cluster::spec::Cluster,
    kube::well_known::{self, WellKnown},
    observe::metrics::{
        HostCall, definitions,
        plugin::{RESULT_LABELS, SUPPRESSED_LABELS},
    },
    plugin::{LoadState, spec::PluginObject},
    policy::{grants::Grants, manifest::Manifest},
    upstream::Upstream,
};

/// Limit of the differing lines in a failure.
const MAX_SHOWN_LINES: usize = 20;
/// The command that writes the page.
const UPDATE_COMMAND: &str = "UPDATE_API_REFERENCE=1 cargo test -p ostler --lib api_reference";

/// All parts of the page, by name.
fn render_parts() -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("plugin", render_crd(&PluginObject::crd())),
        ("plugin-states", render_states()),
        ("upstream", render_crd(&Upstream::crd())),
        ("cluster", render_crd(&Cluster::crd())),
        ("grants-file", render_file::<Grants>()),
        ("manifest", render_file::<Manifest>()),
        (
            "annotations",
            render_names(["Annotation", "Value", "Meaning"], well_known::annotation::ALL),
        ),
        (
            "bookkeeping",
            render_names(["Name", "Form", "Meaning"], well_known::bookkeeping::ALL),
        ),
        (
            "conditions",
            render_names(
                ["Type", "Kinds", "Meaning when True"],
                well_known::condition_type::ALL,
            ),
        ),
        (
            "object-reasons",
            render_names(["Reason", "Condition", "Meaning"], well_known::object_reason::ALL),
        ),
        (
            "plugin-reasons",
            render_names(["Reason", "Condition", "Meaning"], well_known::plugin_reason::ALL),
        ),
        (
            "upstream-reasons",
            render_names(
                ["Reason", "Condition", "Meaning"],
                well_known::upstream_reason::ALL,
            ),
        ),
        (
            "event-reasons",
            render_names(["Reason", "Type", "Meaning"], well_known::event_reason::ALL),
        ),
        (
            "error-reasons",
            render_names(["Reason", "", "Meaning"], well_known::error_reason::ALL),
        ),
        (
            "environment",
            render_names(["Variable", "", "Meaning"], well_known::environment::ALL),
        ),
        ("sdk-reasons", render_sdk_reasons()),
        ("metrics", render_metrics()),
        ("metric-labels", render_labels()),
        ("commands", render_commands()),
    ])
}

/// A Markdown table; a column without a title is left out.
fn render_table(titles: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let shown = |cells: Vec<String>| -> String {
        let cells = cells
            .into_iter()
            .zip(titles)
            .filter(|(_, title)| !title.is_empty());
        let cells = cells.map(|(cell, _)| cell.replace('|', "\\|"));
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let mut out = shown(titles.iter().map(|title| (*title).to_owned()).collect());
    out.push_str(&shown(vec!["---".to_owned(); titles.len()]).replace(' ', ""));
    rows.into_iter().for_each(|row| out.push_str(&shown(row)));
    out
}

fn render_names(titles: [&str; 3], names: &[WellKnown]) -> String {
    let rows = names.iter().map(|n| {
        vec![
            format!("`{}`", n.name),
            n.values.to_owned(),
            join_lines(n.meaning),
        ]
    });
    render_table(&titles, rows)
}

/// Text of a doc comment on one line.
fn join_lines(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn render_crd(crd: &impl serde::Serialize) -> String {
    let crd = serde_json::to_value(crd).expect("a CRD is JSON");
    let spec = &crd["spec"];
    let version = &spec["versions"][0];
    let mut out = format!(
        "`{}/{}`, kind `{}`, {}, in the category `{}`. Printer columns: ",
        text(&spec["group"]),
        text(&version["name"]),
        text(&spec["names"]["kind"]),
        match text(&spec["scope"]) {
            "Cluster" => "cluster-scoped",
            _ => "namespaced",
        },
        text(&spec["names"]["categories"][0]),
    );
    let columns = version["additionalPrinterColumns"].as_array().expect("columns");
    let columns: Vec<_> = columns
        .iter()
        .map(|column| {
            let wide = if column["priority"] == 1 { " (wide)" } else { "" };
            format!("{}{wide}", text(&column["name"]))
        })
        .collect();
    writeln!(out, "{}.\n", columns.join(", ")).expect("a String");
    let schema = &version["schema"]["openAPIV3Schema"]["properties"];
    let mut rows = Vec::new();
    for root in ["spec", "status"] {
        collect_fields(root, &schema[root], root == "spec", &mut rows);
    }
    out + &render_fields(rows)
}

fn render_file<T: JsonSchema>() -> String {
    let settings = SchemaSettings::openapi3().with(|s| s.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    let mut rows = Vec::new();
    collect_properties("", &schema, &mut rows);
    render_fields(rows)
}

fn render_fields(rows: Vec<Vec<String>>) -> String {
    render_table(&["Field", "Type", "Default", "Meaning"], rows)
}

/// Rows for a field and the fields in it.
fn collect_fields(path: &str, schema: &Value, required: bool, rows: &mut Vec<Vec<String>>) {
    let mut default = match schema.get("default") {
        _ if required => "required".to_owned(),
        Some(Value::Array(items)) if items.len() == 1 => format!("`{}`", text(&items[0])),
        Some(Value::Object(fields)) if fields.is_empty() => String::new(),
        Some(Value::String(text)) if text.is_empty() => String::new(),
        Some(Value::Bool(false)) => String::new(),
        Some(default) => format!("`{default}`"),
        None => String::new(),
    };
    let mut meaning = join_lines(text(&schema["description"]));
    if let Some((before, value)) = split_default(&meaning) {
        default = format!("`{value}`");
        meaning = before.to_owned();
    }
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let rule = text(&rule["message"]);
        write!(meaning, " Validation: {rule}.").expect("a String");
    }
    rows.push(vec![format!("`{path}`"), describe_type(schema), default, meaning]);
    collect_properties(path, schema, rows);
}

/// Splits a sentence such as `Defaults to 5m.` off the end of a description.
fn split_default(meaning: &str) -> Option<(&str, &str)> {
    let (before, value) = meaning.split_once(" Defaults to ")?;
    let value = value.strip_suffix('.')?.trim_matches('`');
    let is_value = !value.contains(['.', ':', ';']) && value.split(' ').count() <= 2;
    is_value.then_some((before, value))
}

/// Rows for the fields in an object, in the items of a list, or in the values of a map.
fn collect_properties(path: &str, schema: &Value, rows: &mut Vec<Vec<String>>) {
    let required: Vec<_> = schema["required"].as_array().into_iter().flatten().collect();
    let dot = if path.is_empty() { "" } else { "." };
    let mut properties = BTreeMap::new();
    collect_variants(schema, &mut properties);
    for (name, field) in properties {
        // The host always writes the required fields of a status.
        let is_required = !path.starts_with("status") && required.iter().any(|r| **r == *name);
        collect_fields(&format!("{path}{dot}{name}"), field, is_required, rows);
    }
    if schema["items"].is_object() {
        collect_properties(&format!("{path}[]"), &schema["items"], rows);
    }
    if schema["additionalProperties"].is_object() {
        collect_properties(&format!("{path}.NAME"), &schema["additionalProperties"], rows);
    }
}

/// The properties of a schema and of its variants.
fn collect_variants<'a>(schema: &'a Value, properties: &mut BTreeMap<&'a str, &'a Value>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let known = properties.entry(name).or_insert(field);
        // The variants of a CRD repeat a property without its schema.
        if known.as_object().is_none_or(serde_json::Map::is_empty) {
            *known = field;
        }
    }
    for variants in ["oneOf", "anyOf", "allOf"] {
        for variant in schema[variants].as_array().into_iter().flatten() {
            collect_variants(variant, properties);
        }
    }
}

fn describe_type(schema: &Value) -> String {
    if let Some(values) = list_values(schema) {
        return values.join(", ");
    }
    let name = schema["type"].as_str();
    let name = name.or_else(|| schema["type"][0].as_str()).unwrap_or("any");
    let mut out = match (name, text(&schema["format"])) {
        ("array", _) => format!("list of {}", describe_type(&schema["items"])),
        ("object", _) if schema["additionalProperties"].is_object() => "map".to_owned(),
        (_, "date-time") => "time (RFC 3339)".to_owned(),
        (name, _) => name.to_owned(),
    };
    match text(&schema["pattern"]) {
        "" => {}
        "^[0-9]+(Ki|Mi|Gi)?$" => out = "bytes, such as `512Ki` or `64Mi`".to_owned(),
        "^([0-9]+(ms|s|m|h))+$" => out = "duration, such as `500ms` or `1h30m`".to_owned(),
        pattern => write!(out, " matching `{pattern}`").expect("a String"),
    }
    let number = |name: &str| schema[name].as_f64();
    match (number("minimum"), number("maximum")) {
        (Some(min), Some(max)) => write!(out, ", {min} to {max}").expect("a String"),
        (Some(min), None) if min > 0.0 => write!(out, ", {min} or more").expect("a String"),
        _ => {}
    }
    if let Some(max) = number("maxLength") {
        write!(out, ", {max} characters at most").expect("a String");
    }
    out
}

/// The values of an enumeration.
fn list_values(schema: &Value) -> Option<Vec<String>> {
    let plain = schema["enum"].as_array().map(|values| values.iter().collect());
    let described = || {
        let variants = schema["oneOf"].as_array()?;
        variants
            .iter()
            .map(|v| v.get("const").or_else(|| v["enum"].get(0)))
            .collect()
    };
    let values: Vec<&Value> = plain.or_else(described)?;
    let shown = values.into_iter().filter(|v| !v.is_null());
    Some(shown.map(|value| format!("`{}`", text(value))).collect())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn render_states() -> String {
    let schema = schemars::schema_for!(LoadState).to_value();
    let variants = schema["oneOf"].as_array().expect("documented variants");
    let rows = variants.iter().map(|v| {
        vec![
            format!("`{}`", text(&v["const"])),
            join_lines(text(&v["description"])),
        ]
    });
    render_table(&["State", "Meaning"], rows)
}

/// The reasons that the Rust SDK gives failures by itself, from its sources. Those of the other SDKs are the same.
fn render_sdk_reasons() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/sdk/src");
    let mut reasons = BTreeSet::new();
    for file in ["outcome.rs", "guest.rs", "context.rs"] {
        let source = fs::read_to_string(folder.join(file)).expect("a source file");
        let code = source.split("mod tests {").next().unwrap_or_default();
        let code = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//") && line.contains("::"));
        for line in code {
            let literals = line.split('"').skip(1).step_by(2);
            reasons.extend(literals.filter(|l| is_word(l)).map(|l| format!("`{l}`")));
        }
    }
    assert!(
        reasons.len() > 8,
        "the sources of the SDK were not understood: {reasons:?}"
    );
    reasons.into_iter().collect::<Vec<_>>().join(", ") + "."
}

/// True for a word in CamelCase.
fn is_word(literal: &str) -> bool {
    literal.starts_with(|c: char| c.is_ascii_uppercase())
        && literal.bytes().all(|b| b.is_ascii_alphanumeric())
        && literal.bytes().any(|b| b.is_ascii_lowercase())
}

fn render_metrics() -> String {
    let rows = definitions::ALL.iter().map(|(name, kind, labels, help)| {
        let suffix = if *kind == "counter" { "_total" } else { "" };
        vec![
            format!("`{name}{suffix}`"),
            (*kind).to_owned(),
            labels
                .iter()
                .map(|label| format!("`{label}`"))
                .collect::<Vec<_>>()
                .join(", "),
            format!("{help}."),
        ]
    });
    render_table(&["Metric", "Type", "Labels", "Meaning"], rows)
}

/// The labels of all metrics with their values.
fn render_labels() -> String {
    let list = |values: &[&str]| values.join("`, `");
    let meanings = BTreeMap::from([
        (
            "call",
            format!("host function, such as `{}`", HostCall::KubernetesApply.name()),
        ),
        (
            "code",
            "HTTP status; `<error>` (API server) or `0` (upstream) without a response".to_owned(),
        ),
        (
            "controller",
            "plugin, or `plugins` and `upstreams` for the host's own kinds".to_owned(),
        ),
        ("digest", "SHA-256 digest of the component".to_owned()),
        ("direction", "`to_host` or `from_host`".to_owned()),
        ("host", "host and port of the API server".to_owned()),
        ("kind", "`KIND.VERSION.GROUP`".to_owned()),
        ("limit", "field of `spec.limits` of a Plugin".to_owned()),
        ("method", "HTTP method".to_owned()),
        (
            "name",
            "queue: the same as `controller`; leader election: the Lease".to_owned(),
        ),
        ("operation", format!("`{}`", list(&SUPPRESSED_LABELS))),
        ("plugin", "plugin".to_owned()),
        ("pool", "pool of permits, named by the plugin".to_owned()),
        (
            "priority",
            "`100` for a change by a user, `0` for a retry, poll or timer, `-100` for the list at start-up"
                .to_owned(),
        ),
        ("queue", "queue of a message broker".to_owned()),
        ("ready", "`true` or `false`".to_owned()),
        ("reason", "see the metric".to_owned()),
        (
            "result",
            format!(
                "of a reconcile: `{}`; `requeue` stays 0. For others see the metric",
                list(&RESULT_LABELS)
            ),
        ),
        ("source", "`host` or `plugin`".to_owned()),
        ("state", "see the metric".to_owned()),
        ("upstream", "`NAMESPACE/NAME`; `others` beyond 500".to_owned()),
        ("verb", "HTTP method".to_owned()),
        ("version", "version that the component declares".to_owned()),
    ]);
    let used: BTreeSet<_> = definitions::ALL.iter().flat_map(|d| d.2).copied().collect();
    assert_eq!(
        used,
        meanings.keys().copied().collect(),
        "labels without a meaning, or not used"
    );
    let rows = meanings
        .into_iter()
        .map(|(label, meaning)| vec![format!("`{label}`"), meaning]);
    render_table(&["Label", "Value"], rows)
}

fn render_commands() -> String {
    let mut root = super::Cli::command();
    root.build();
    let mut out = String::new();
    for command in root.get_subcommands().filter(|c| c.get_name() != "help") {
        render_command(command, &mut out);
    }
    out
}

fn render_command(command: &Command, out: &mut String) {
    if command.is_hide_set() {
        return;
    }
    let children: Vec<_> = command
        .get_subcommands()
        .filter(|c| c.get_name() != "help")
        .collect();
    if !children.is_empty() {
        children.iter().for_each(|child| render_command(child, out));
        return;
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let name = command.get_bin_name().expect("a built command");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    writeln!(out, "### `{name}`\n\n{}\n\n    {usage}\n", end_sentence(&about)).expect("a String");
    let shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let rows: Vec<_> = command
        .get_arguments()
        .filter(shown)
        .map(describe_argument)
        .collect();
    if !rows.is_empty() {
        out.push_str(&render_table(&["Argument", "Default", "Meaning"], rows));
        out.push('\n');
    }
    if let Some(after) = command.get_after_help() {
        // One line for each exit code.
        let lines: Vec<_> = after.to_string().lines().map(join_lines).collect();
        let text = lines.join("; ").replacen(":; ", ": ", 1);
        writeln!(out, "{}\n", end_sentence(&text)).expect("a String");
    }
}

fn describe_argument(arg: &Arg) -> Vec<String> {
    let takes_value = arg.get_action().takes_values();
    let value = arg
        .get_value_names()
        .and_then(|names| names.first())
        .map_or_else(|| arg.get_id().as_str().to_uppercase(), ToString::to_string);
    let mut name = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("`-{short}`, `--{long}`"),
        (None, Some(long)) => format!("`--{long}`"),
        (Some(short), None) => format!("`-{short}`"),
        (None, None) => format!("`{value}`"),
    };
    let values: Vec<_> = arg
        .get_possible_values()
        .iter()
        .filter(|v| !v.is_hide_set())
        .map(|v| format!("`{}`", v.get_name()))
        .collect();
    if takes_value && !arg.is_positional() {
        if values.is_empty() {
            write!(name, " `{value}`").expect("a String");
        } else {
            write!(name, " {}", values.join(", ")).expect("a String");
        }
    } else if takes_value && !values.is_empty() {
        write!(name, ": {}", values.join(", ")).expect("a String");
    }
    let defaults: Vec<_> = arg
        .get_default_values()
        .iter()
        .filter(|_| takes_value)
        .map(|d| format!("`{}`", d.to_string_lossy()))
        .collect();
    let default = if arg.is_required_set() {
        "required".to_owned()
    } else {
        defaults.join(", ")
    };
    let help = arg.get_long_help().or(arg.get_help());
    let mut meaning = end_sentence(&help.map(ToString::to_string).unwrap_or_default());
    if matches!(arg.get_action(), ArgAction::Append) && !meaning.contains("repeated") {
        meaning.push_str(" May be repeated.");
    }
    if let Some(variable) = arg.get_env() {
        write!(meaning, " Environment: `{}`.", variable.to_string_lossy()).expect("a String");
    }
    vec![name, default, meaning]
}

/// Text on one line, with the full stop that clap removes.
fn end_sentence(text: &str) -> String {
    let text = join_lines(text);
    if text.is_empty() || text.ends_with(['.', ':']) {
        text
    } else {
        format!("{text}.")
    }
}

fn page_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api.md")
}

/// The page with its generated parts replaced. The error names a part that is missing or unknown.
fn replace_parts(page: &str, mut parts: BTreeMap<&str, String>) -> Result<String, String> {
    let mut out = String::with_capacity(page.len());
    let mut rest = page;
    while let Some((before, after)) = rest.split_once("<!-- generated: ") {
        let (name, after) = after.split_once(" -->").ok_or("an open comment")?;
        let (_, after) = after
            .split_once("<!-- end -->")
            .ok_or_else(|| format!("the part `{name}` has no end"))?;
        let part = parts
            .remove(name)
            .ok_or_else(|| format!("the code has no part `{name}`"))?;
        out.push_str(&format!(
            "{before}<!-- generated: {name} -->\n\n{}\n\n<!-- end -->",
            part.trim()
        ));
        rest = after;
    }
    out.push_str(rest);
    match parts.keys().next() {
        Some(missing) => Err(format!("the page has no part `{missing}`")),
        None => Ok(out),
    }
}

#[test]
fn api_reference_matches_code() {
    let page = fs::read_to_string(page_path()).expect("docs/api.md");
    let expected = replace_parts(&page, render_parts()).expect("the parts of docs/api.md");
    if std::env::var_os("UPDATE_API_REFERENCE").is_some() {
        fs::write(page_path(), expected).expect("docs/api.md is writable");
        return;
    }
    let list_missing = |of: &str, from: &str| -> String {
        let known: BTreeSet<_> = from.lines().collect();
        let missing = of
            .lines()
            .filter(|line| !known.contains(line))
            .take(MAX_SHOWN_LINES);
        missing.map(|line| format!("\n  {line}")).collect()
    };
    assert!(
        page == expected,
        "docs/api.md is not current; run: {UPDATE_COMMAND}\nonly in the code:{}\nonly on the page:{}",
        list_missing(&expected, &page),
        list_missing(&page, &expected),
    );
}

#[test]
fn part_that_is_missing_or_unknown_is_named() {
    let parts = || BTreeMap::from([("a", "new".to_owned())]);
    let page = "x <!-- generated: a -->old<!-- end --> y";
    assert_eq!(
        replace_parts(page, parts()).expect("replaced"),
        "x <!-- generated: a -->\n\nnew\n\n<!-- end --> y"
    );
    assert_eq!(
        replace_parts("x", parts()).unwrap_err(),
        "the page has no part `a`"
    );
    let unknown = page.to_owned() + "<!-- generated: b --><!-- end -->";
    assert_eq!(
        replace_parts(&unknown, parts()).unwrap_err(),
        "the code has no part `b`"
    );
}

/// The lines of the host's sources with their places, without tests, comments and the tables of names themselves.
fn read_source_lines(folder: &Path, lines: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a source folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "tests" && name != "templates" {
                read_source_lines(&path, lines);
            }
        } else if name.ends_with(".rs")
            && ![
                "tests.rs",
                "fuzz.rs",
                "well_known.rs",
                "definitions.rs",
                "api_reference.rs",
            ]
            .contains(&&*name)
        {
            let source = fs::read_to_string(&path).expect("a source file");
            let tests = [
                "#[cfg(test)]\nmod tests {",
                "#[cfg(test)]\npub(super) mod tests {",
            ];
            let end = tests
                .iter()
                .find_map(|tests| source.find(tests))
                .unwrap_or(source.len());
            let code = &source[..end];
            for (i, line) in code.lines().enumerate() {
                if !line.trim_start().starts_with("//") {
                    lines.push((format!("{}:{}", path.display(), i + 1), line.to_owned()));
                }
            }
        }
    }
}

/// Prefixes of the names of metrics.
const METRIC_PREFIXES: [&str; 5] = [
    "ostler_",
    "controller_runtime_",
    "workqueue_",
    "rest_client_",
    "leader_election_",
];

/// Words in CamelCase that the host's sources contain as literals and that are no reasons.
const OTHER_WORDS: [&str; 10] = [
    "ConfigMap",
    "CustomResourceDefinition",
    "DeleteOptions",
    "PascalCase",
    "PluginObject",
    "PluginStatus",
    "RoleBinding",
    "SecretRef",
    "ServiceAccount",
    "UpstreamStatus",
];

/// The problem of a string literal that spells a public name which has to be declared in a table.
fn find_stray_name(place: &str, line: &str, literal: &str) -> Option<&'static str> {
    if line.contains("jsonPath") {
        return None;
    }
    let reports = ["reconcile", "plugin", "rollout", "supply", "upstream", "effect"];
    let reports = reports.iter().any(|stage| {
        let stage = format!("src/{stage}");
        place.contains(&format!("{stage}/")) || place.contains(&format!("{stage}.rs"))
    });
    let at = format!("\"{literal}\"");
    let follows = |before: &str| line.contains(&format!("{before}{at}"));
    let humps = literal.bytes().filter(u8::is_ascii_uppercase).count();
    let is_word = is_word(literal);
    let reason_positions = [
        "LoadError::new(",
        "reason: ",
        "condition(",
        "record_error(key, ",
        "HealthFact::new(true, ",
        "HealthFact::new(false, ",
    ];
    if is_word && reason_positions.iter().any(|before| follows(before)) {
        return Some("a reason or condition type: declare it in kube/well_known.rs");
    }
    if is_word
        && humps > 1
        && reports
        && !OTHER_WORDS.contains(&literal)
        && !place.contains("plugin/state.rs")
    {
        return Some("like a reason: declare it in kube/well_known.rs, or in OTHER_WORDS if it is none");
    }
    let is_key = literal.contains("ostler.dev/")
        && !literal.starts_with("ostler.dev/v")
        && !["ostler.dev/", "ostler.dev/{component}"].contains(&literal);
    if is_key {
        return Some("an annotation or finalizer: declare it in kube/well_known.rs");
    }
    let reads = ["env = ", "env::var(", "env::var_os(", "var_os(", "try_from_env("];
    let is_target = follows("target_env = ");
    if reads.iter().any(|before| follows(before)) && !is_target && literal != "HOME" {
        return Some("an environment variable: declare it in kube/well_known.rs");
    }
    let is_metric =
        METRIC_PREFIXES.iter().any(|prefix| literal.starts_with(prefix)) && literal != "ostler_plugin_{name}";
    is_metric.then_some("like a metric: declare it in observe/metrics/definitions.rs")
}

#[test]
fn public_names_are_declared_in_tables_only() {
    let mut lines = Vec::new();
    read_source_lines(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut lines);
    assert!(lines.len() > 20_000, "the sources were not found");
    let mut stray = Vec::new();
    for (place, line) in &lines {
        for literal in line.split('"').skip(1).step_by(2) {
            if let Some(problem) = find_stray_name(place, line, literal) {
                stray.push(format!("{place}: \"{literal}\" is {problem}"));
            }
        }
    }
    assert!(stray.is_empty(), "{}", stray.join("\n"));
}

#[test]
fn declared_names_are_used() {
    let mut lines = Vec::new();
    read_source_lines(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut lines);
    let code: String = lines.into_iter().map(|(_, line)| line + "\n").collect();
    let words: BTreeSet<&str> = code
        .split(|character: char| !character.is_alphanumeric() && character != '_')
        .collect();
    let groups = [
        ("annotation", well_known::annotation::ALL),
        ("bookkeeping", well_known::bookkeeping::ALL),
        ("condition_type", well_known::condition_type::ALL),
        ("object_reason", well_known::object_reason::ALL),
        ("plugin_reason", well_known::plugin_reason::ALL),
        ("upstream_reason", well_known::upstream_reason::ALL),
        ("event_reason", well_known::event_reason::ALL),
        ("error_reason", well_known::error_reason::ALL),
        ("environment", well_known::environment::ALL),
    ];
    for (group, names) in groups {
        for name in names {
            // These are imported by name. The compiler refuses an import that is not used.
            let imported = matches!(group, "annotation" | "bookkeeping") && words.contains(name.constant);
            assert!(
                imported || code.contains(&format!("{group}::{}", name.constant)),
                "{group}::{} ({}) is not used any more",
                name.constant,
                name.name
            );
        }
    }
}

/// The words in code of the guides, with the page each is on.
fn read_guide_words() -> Vec<(String, String)> {
    let mut words = Vec::new();
    for entry in fs::read_dir(page_path().parent().expect("docs/")).expect("docs/") {
        let path = entry.expect("an entry").path();
        let page = path.file_name().expect("a name").to_string_lossy().into_owned();
        if page.ends_with(".md") && page != "api.md" {
            let text = fs::read_to_string(&path).expect("a page");
            let code = text.split('`').skip(1).step_by(2);
            let separators = |c: char| !(c.is_ascii_alphanumeric() || "_./-".contains(c));
            for word in code.flat_map(|code| code.split(separators)) {
                words.push((page.clone(), word.trim_end_matches('.').to_owned()));
            }
        }
    }
    words
}

#[test]
fn metrics_and_annotations_of_the_guides_exist() {
    let mut known = BTreeSet::new();
    for (name, kind, _, _) in definitions::ALL {
        known.insert((*name).to_owned());
        known.insert(format!("{name}_total"));
        if *kind == "histogram" {
            known.extend(["bucket", "sum", "count"].map(|suffix| format!("{name}_{suffix}")));
        }
    }
    for names in [well_known::annotation::ALL, well_known::bookkeeping::ALL] {
        known.extend(names.iter().map(|n| n.name.to_owned()));
    }
    let words = read_guide_words();
    // The Rust crate, the Python modules and the Go module of the SDKs.
    known.extend(
        [
            "ostler_sdk",
            "ostler_provider",
            "ostler_provision",
            "ostler.dev/sdk",
            "ostler.dev/sdk/messages",
            "ostler.dev/sdk/ostlertest",
            "ostler_testing",
            "ostler_testing.py",
        ]
        .map(str::to_owned),
    );
    let is_name = |word: &str| {
        let is_metric = METRIC_PREFIXES.iter().any(|prefix| word.starts_with(prefix));
        let is_version = word.starts_with("ostler.dev/v");
        is_metric || word.starts_with("ostler.dev/") && !is_version
    };
    let names: Vec<_> = words.iter().filter(|(_, word)| is_name(word)).collect();
    assert!(names.len() > 20, "the guides were not understood: {names:?}");
    let unknown: Vec<_> = names.iter().filter(|(_, word)| !known.contains(word)).collect();
    assert!(
        unknown.is_empty(),
        "names that do not exist, by page: {unknown:?}"
    );
}

#[test]
fn stray_names_are_found() {
    let find = |place: &str, line: &str| {
        let literal = line.split('"').nth(1).expect("a literal");
        find_stray_name(place, line, literal).is_some()
    };
    assert!(find("src/cli/x.rs:1", r#"LoadError::new("Broken", e)"#));
    assert!(find("src/reconcile/x.rs:1", r#"let reason = "VeryBroken";"#));
    assert!(find("src/cache/x.rs:1", r#"object.annotation("ostler.dev/new")"#));
    assert!(find("src/cache/x.rs:1", r#"std::env::var_os("OSTLER_NEW")"#));
    assert!(find(
        "src/cache/x.rs:1",
        r#"registry.register("ostler_new", help, metric)"#
    ));
    assert!(!find("src/cli/x.rs:1", r#"println!("Hello")"#));
    assert!(!find("src/supply/x.rs:1", r#"kind: "ConfigMap""#));
}
