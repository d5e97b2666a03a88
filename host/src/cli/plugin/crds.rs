//! `ostler plugin crds`: the CRDs of a plugin's types, written into its folder.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, bail};
use clap::Args;
use ostler_builder::{Language, progress::BuildStep};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::process::Command;

use super::files::{OBJECT_EXTENSIONS, list_files, read_file};
use crate::cli::ask::OutputFormat;

/// Maximum number of changes that are listed by name.
const MAX_LISTED_CHANGES: usize = 12;

/// Arguments of `ostler plugin crds`.
#[derive(Args)]
#[command(
    after_help = "Exit codes:\n  0  written, or nothing to write\n  1  error, or with --check a file that differs\n  \
                  2  invalid arguments"
)]
pub struct Crds {
    /// Directory of the plugin project.
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Write nothing, and fail if a file differs from the types.
    #[arg(long)]
    check: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

/// A file of `crds/` whose content differs from the types.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ChangedFile {
    /// Its path.
    file: PathBuf,
    /// The changed fields, such as `widget.spec.size added`.
    changes: Vec<String>,
    /// The new content.
    #[serde(skip)]
    text: String,
    /// True unless the file is there and was written by hand.
    #[serde(skip)]
    is_generated: bool,
}

/// First line of generated files, up to the language.
const GENERATED_MARK: &str = "# Generated from the ";

impl Crds {
    /// Generates the CRDs, writes them and prints the changes.
    pub async fn run(self) -> anyhow::Result<()> {
        let step = BuildStep::new("Generating CRDs");
        let generated = generate(&self.folder).await?;
        step.finish("");
        if generated.is_empty() {
            bail!(
                "{}: none of its kinds has typed fields, from which a CRD would be generated: {}",
                self.folder.display(),
                typed_kind_hint(ostler_builder::detect_language(&self.folder)?)
            );
        }
        let changed = compare_files(&self.folder.join("crds"), &generated)?;
        if !self.check {
            write_files(&changed)?;
        }
        match self.output {
            OutputFormat::Json => println!("{}", json!(changed)),
            OutputFormat::Table => {
                for file in &changed {
                    println!("{}: {}", file.file.display(), summarize_changes([file]));
                }
                if changed.is_empty() || !self.check {
                    println!("{} agrees with the types", self.folder.join("crds").display());
                }
            }
        }
        if let (true, Some(first)) = (self.check, changed.first()) {
            bail!(
                "{}: it differs from the types: write it with `ostler plugin crds {}`",
                first.file.display(),
                self.folder.display()
            );
        }
        Ok(())
    }
}

/// The way in which a language declares the fields of a kind.
fn typed_kind_hint(language: Language) -> &'static str {
    match language {
        Language::Rust => "give the struct of its spec #[ostler_sdk::resource(…)]",
        Language::Go => "give ostler.Reconciler[Spec] a struct of the package",
        Language::JavaScript => "define the types <Kind>Spec and <Kind>Status, in JSDoc or TypeScript",
        Language::Python => "give the class of the kind a dataclass as its `spec`",
    }
}

/// Generates the CRDs of a project's types, as file names and texts. A project without typed kinds has none.
async fn generate(folder: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let language = ostler_builder::detect_language(folder)?;
    ostler_builder::sdk::write_sdk(folder)?;
    if language != Language::Rust {
        let folder = folder.to_owned();
        let generating = move || ostler_builder::crds::generate_crds(&folder, &mut |_| {});
        return tokio::task::spawn_blocking(generating).await?;
    }
    let out = tempfile::tempdir().context("a temporary folder")?;
    let command = ostler_builder::rust::crds_command(folder, out.path())?;
    let output = Command::from(command)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("running `cargo test`: is Rust installed? See https://rustup.rs")?;
    if !output.status.success() {
        let log = [output.stdout, output.stderr].concat();
        bail!(
            "{}: generating the CRDs has failed:\n{}",
            folder.display(),
            String::from_utf8_lossy(&log).trim()
        );
    }
    read_files(out.path())
}

/// Returns the generated files of a project that differ from its types. Files that were written by hand are not among them, and a
/// project that has no others is not even asked for its types.
pub async fn find_outdated(folder: &Path) -> anyhow::Result<Vec<ChangedFile>> {
    let crds = folder.join("crds");
    let files = read_files(&crds)?;
    if !files.is_empty() && !files.iter().any(|(_, text)| text.starts_with(GENERATED_MARK)) {
        return Ok(Vec::new());
    }
    let mut changed = compare_files(&crds, &generate(folder).await?)?;
    changed.retain(|file| file.is_generated);
    Ok(changed)
}

/// Writes the generated files of a project that differ from its types, and returns them.
///
/// # Errors
/// As [`find_outdated`], or a file that can't be written.
pub async fn update(folder: &Path) -> anyhow::Result<Vec<ChangedFile>> {
    let changed = find_outdated(folder).await?;
    write_files(&changed)?;
    Ok(changed)
}

/// Writes the changed files.
fn write_files(changed: &[ChangedFile]) -> anyhow::Result<()> {
    for file in changed {
        ostler_builder::replace_file(&file.file, file.text.as_bytes())?;
    }
    Ok(())
}

/// The changes of all files on one line.
pub fn summarize_changes<'a>(files: impl IntoIterator<Item = &'a ChangedFile>) -> String {
    let all: Vec<&str> = files.into_iter().flat_map(|f| &f.changes).map(|c| &**c).collect();
    let shown = all.iter().take(MAX_LISTED_CHANGES).copied().collect::<Vec<_>>();
    match all.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The files of a folder as name and text, in the order of their names.
fn read_files(folder: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let files = list_files(folder, &OBJECT_EXTENSIONS)?;
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok((name.into_owned(), read_file(&path)?))
    };
    files.into_iter().map(read).collect()
}

/// Compares generated files with those of a folder. A CRD that is in a file of another name stays there.
fn compare_files(folder: &Path, generated: &[(String, String)]) -> anyhow::Result<Vec<ChangedFile>> {
    let mut there = Vec::new();
    for (name, text) in read_files(folder)? {
        let file = folder.join(name);
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(&text).with_context(|| format!("{} is not YAML", file.display()))?;
        there.push((file, text, objects));
    }
    let mut changed = Vec::new();
    for (name, text) in generated {
        let crd: Value = serde_saphyr::from_str(text).with_context(|| format!("the generated {name}"))?;
        let is_same = |object: &Value| object["metadata"]["name"] == crd["metadata"]["name"];
        let found = there.iter().find(|(_, _, objects)| objects.iter().any(is_same));
        let is_generated = found.is_none_or(|(_, before, _)| before.starts_with(GENERATED_MARK));
        let (file, changes) = match found {
            Some((_, before, _)) if before == text => continue,
            Some((file, _, objects)) if objects.len() == 1 => (file.clone(), list_changes(&objects[0], &crd)),
            Some((file, ..)) => bail!(
                "{}: it has several objects, and {} among them: keep that in a file of its own, such as {name}",
                file.display(),
                crd["metadata"]["name"]
            ),
            None => (folder.join(name), vec![format!("{} added", kind_name(&crd))]),
        };
        changed.push(ChangedFile {
            file,
            changes,
            text: text.clone(),
            is_generated,
        });
    }
    Ok(changed)
}

/// The name of a CRD's kind in changes: `widget`.
fn kind_name(crd: &Value) -> String {
    let singular = &crd["spec"]["names"]["singular"];
    singular.as_str().unwrap_or("kind").to_owned()
}

/// The differences of two CRDs, by field.
fn list_changes(before: &Value, after: &Value) -> Vec<String> {
    let name = kind_name(after);
    let mut changes = Vec::new();
    let versions = |crd: &Value| crd["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let (old, new) = (versions(before), versions(after));
    let several = old.len() > 1 || new.len() > 1;
    for version in &new {
        let path = match version["name"].as_str() {
            Some(version) if several => format!("{name} {version}: {name}"),
            _ => name.clone(),
        };
        match old.iter().find(|v| v["name"] == version["name"]) {
            None => changes.push(format!("{name} version {} added", version["name"])),
            Some(then) => {
                let schema = |v: &Value| v["schema"]["openAPIV3Schema"].clone();
                compare_schemas(&path, &schema(then), &schema(version), &mut changes);
                for (field, word) in [
                    ("additionalPrinterColumns", "printer columns"),
                    ("subresources", "subresources"),
                ] {
                    if then[field] != version[field] {
                        changes.push(format!("{path} {word} changed"));
                    }
                }
            }
        }
    }
    for version in old.iter().filter(|v| !new.iter().any(|n| n["name"] == v["name"])) {
        changes.push(format!("{name} version {} removed", version["name"]));
    }
    for field in ["names", "scope", "group"] {
        if before["spec"][field] != after["spec"][field] {
            changes.push(format!("{name} {field} changed"));
        }
    }
    if changes.is_empty() {
        changes.push(format!("{name} formatted"));
    }
    changes
}

/// Adds the differences of two schemas, descending into objects, lists and maps.
fn compare_schemas(path: &str, before: &Value, after: &Value, changes: &mut Vec<String>) {
    let own = |schema: &Value| {
        let mut own = schema.as_object().cloned().unwrap_or_default();
        for inner in ["properties", "description"] {
            own.remove(inner);
        }
        for inner in ["items", "additionalProperties"] {
            if own.get(inner).is_some_and(Value::is_object) {
                own.insert(inner.into(), json!({}));
            }
        }
        // Which fields are required is reported at the fields.
        own.remove("required");
        own
    };
    if own(before) != own(after) {
        changes.push(format!("{path} changed"));
    } else if before["description"] != after["description"] {
        changes.push(format!("{path} description changed"));
    }
    let required = |schema: &Value, name: &str| {
        let names = schema["required"].as_array();
        names.is_some_and(|names| names.iter().any(|n| n == name))
    };
    let names = |schema: &Value| -> BTreeSet<String> {
        let properties = schema["properties"].as_object();
        properties
            .map(|p| p.keys().cloned().collect())
            .unwrap_or_default()
    };
    let (old, new) = (names(before), names(after));
    for name in old.union(&new) {
        let field = format!("{path}.{name}");
        match (old.contains(name), new.contains(name)) {
            (false, true) if required(after, name) => changes.push(format!("{field} added (required)")),
            (false, true) => changes.push(format!("{field} added")),
            (true, false) => changes.push(format!("{field} removed")),
            _ => {
                match (required(before, name), required(after, name)) {
                    (false, true) => changes.push(format!("{field} is required now")),
                    (true, false) => changes.push(format!("{field} is optional now")),
                    _ => {}
                }
                let at = |schema: &Value| schema["properties"][name].clone();
                compare_schemas(&field, &at(before), &at(after), changes);
            }
        }
    }
    for (inner, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if before[inner].is_object() && after[inner].is_object() {
            compare_schemas(&format!("{path}{suffix}"), &before[inner], &after[inner], changes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn crd(spec: Value) -> Value {
        json!({
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.a.dev"},
            "spec": {
                "names": {"singular": "widget"},
                "versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"properties": {"spec": spec}}}}],
            },
        })
    }

    #[test]
    fn changed_fields_are_named() {
        let text = json!({"type": "string"});
        let before = crd(json!({
            "properties": {"a": text, "b": text, "c": text, "d": {"items": {"properties": {"x": text}}}},
            "required": ["a"],
        }));
        let after = crd(json!({
            "properties": {
                "a": text,
                "b": {"type": "integer"},
                "d": {"items": {"properties": {"x": text, "y": text}}},
                "size": text,
                "sum": text,
            },
            "required": ["sum"],
        }));
        assert_eq!(
            list_changes(&before, &after),
            [
                "widget.spec.a is optional now",
                "widget.spec.b changed",
                "widget.spec.c removed",
                "widget.spec.d[].y added",
                "widget.spec.size added",
                "widget.spec.sum added (required)",
            ]
        );
        let mut described = before.clone();
        described["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["a"]
            ["description"] = "A.".into();
        described["spec"]["names"]["shortNames"] = json!(["w"]);
        assert_eq!(
            list_changes(&before, &described),
            ["widget.spec.a description changed", "widget names changed"]
        );
    }

    #[test]
    fn changes_are_written_to_the_file_that_has_the_crd() {
        let folder = tempfile::tempdir().unwrap();
        let crds = folder.path().join("crds");
        let yaml = |spec: Value| serde_json::to_string(&crd(spec)).unwrap();
        let generated = [(
            "a.dev_widgets.yaml".to_owned(),
            yaml(json!({"properties": {"size": {}}})),
        )];
        let new = compare_files(&crds, &generated).unwrap();
        assert_eq!(
            (summarize_changes(&new), &new[0].file),
            ("widget added".into(), &crds.join("a.dev_widgets.yaml"))
        );
        fs::create_dir(&crds).unwrap();
        fs::write(crds.join("mine.yaml"), yaml(json!({}))).unwrap();
        let changed = compare_files(&crds, &generated).unwrap();
        assert_eq!(summarize_changes(&changed), "widget.spec.size added");
        write_files(&changed).unwrap();
        assert_eq!(
            fs::read_to_string(crds.join("mine.yaml")).unwrap(),
            generated[0].1
        );
        assert_eq!(compare_files(&crds, &generated).unwrap(), []);
        let two = format!("{}\n---\n{}", yaml(json!({})), r#"{"kind": "Other"}"#);
        fs::write(crds.join("mine.yaml"), two).unwrap();
        let error = compare_files(&crds, &generated).unwrap_err().to_string();
        assert!(
            error.contains("mine.yaml: it has several objects") && error.contains("a.dev_widgets.yaml"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn crd_that_was_written_by_hand_is_not_updated() {
        let folder = tempfile::tempdir().unwrap();
        let module = "package p\n\ntype ThingSpec struct {\n\tName string `json:\"name\"`\n}\n\n\
                      var _ = ostler.Reconciler[ThingSpec]{APIVersion: \"a.dev/v1\", Kind: \"Thing\"}\n";
        fs::write(folder.path().join("go.mod"), "module p\n").unwrap();
        fs::write(folder.path().join("main.go"), module).unwrap();
        let written = update(folder.path()).await.unwrap();
        assert_eq!(summarize_changes(&written), "thing added");
        let file = folder.path().join("crds/a.dev_things.yaml");
        let generated = fs::read_to_string(&file).unwrap();
        assert!(generated.starts_with(GENERATED_MARK), "{generated}");

        fs::write(&file, generated.replace("Things", "Other")).unwrap();
        fs::write(folder.path().join("main.go"), module.replace("name", "title")).unwrap();
        let written = update(folder.path()).await.unwrap();
        assert_eq!(
            summarize_changes(&written),
            "thing.spec.name removed, thing.spec.title added (required)"
        );
        let by_hand = fs::read_to_string(&file)
            .unwrap()
            .split_once('\n')
            .unwrap()
            .1
            .to_owned();
        fs::write(&file, &by_hand).unwrap();
        fs::write(folder.path().join("main.go"), module).unwrap();
        assert_eq!(update(folder.path()).await.unwrap(), []);
        assert_eq!(fs::read_to_string(&file).unwrap(), by_hand);
    }
}
