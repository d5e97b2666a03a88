//! The CustomResourceDefinitions and samples of a plugin, embedded as sections of its component: they are installed and signed with it.
//!
//! The builder only checks that they are YAML; the host validates them.

use std::{fs, io::ErrorKind, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

/// Name of the custom section of CustomResourceDefinitions.
pub const CRDS_SECTION: &str = "ostler:crds";
/// Name of the custom section of samples.
pub const SAMPLES_SECTION: &str = "ostler:samples";

/// Reads the sections of a project, each a JSON array: the CustomResourceDefinitions of its folder `crds/`, and the samples of these
/// kinds of its folder `samples/`. Other samples stay in the project, since Secrets may be among them.
///
/// # Errors
/// When a file is not YAML.
pub fn read_sections(folder: &Path) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let definitions = read_documents(&folder.join("crds"))?;
    let mut samples = read_documents(&folder.join("samples"))?;
    samples.retain(|sample| {
        definitions
            .iter()
            .any(|definition| is_of_kind(sample, definition))
    });
    let sections = [(CRDS_SECTION, definitions), (SAMPLES_SECTION, samples)];
    let sections = sections
        .into_iter()
        .filter(|(_, documents)| !documents.is_empty());
    Ok(sections
        .map(|(section, documents)| (section, Value::Array(documents).to_string().into_bytes()))
        .collect())
}

fn is_of_kind(object: &Value, definition: &Value) -> bool {
    let group = object["apiVersion"]
        .as_str()
        .and_then(|version| version.split_once('/'));
    let spec = &definition["spec"];
    group.is_some_and(|(group, _)| spec["group"] == group) && object["kind"] == spec["names"]["kind"]
}

/// Reads the documents of all YAML files in a folder, in the order of their names. A folder that does not exist has none.
///
/// # Errors
/// When a file is not YAML.
pub fn read_documents(folder: &Path) -> Result<Vec<Value>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(|| format!("reading {}", folder.display())),
    };
    let mut files = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|e| e == "yaml" || e == "yml"));
    files.sort();
    let mut documents = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let found: Vec<Value> = serde_saphyr::from_multiple(&text)
            .map_err(|e| anyhow::anyhow!("{} is not YAML: {e}", file.display()))?;
        documents.extend(found.into_iter().filter(|document| !document.is_null()));
    }
    Ok(documents)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sections_have_the_kinds_and_the_samples_of_these_kinds() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_sections(folder.path()).unwrap(), []);
        for name in ["crds", "samples"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(read_sections(folder.path()).unwrap(), []);
        let definition = json!({"kind": "CustomResourceDefinition", "spec": {"group": "g.dev", "names": {"kind": "Thing"}}});
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("crds/b.yaml", &definition.to_string());
        write("crds/c.txt", "no: yaml");
        write(
            "samples/a.yml",
            "---\napiVersion: g.dev/v1\nkind: Thing\n---\napiVersion: v1\nkind: Secret\n---\n",
        );
        let sections = read_sections(folder.path()).unwrap();
        let parse = |bytes: &[u8]| -> Value { serde_json::from_slice(bytes).unwrap() };
        assert_eq!(
            (sections[0].0, parse(&sections[0].1)),
            (CRDS_SECTION, json!([definition]))
        );
        let sample = json!([{"apiVersion": "g.dev/v1", "kind": "Thing"}]);
        assert_eq!((sections[1].0, parse(&sections[1].1)), (SAMPLES_SECTION, sample));
        write("samples/d.yaml", "d: [\n");
        let error = format!("{:#}", read_sections(folder.path()).unwrap_err());
        assert!(error.contains("d.yaml is not YAML"), "{error}");
    }
}
