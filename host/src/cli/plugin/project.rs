//! A plugin's project folder: requested permissions, CRDs, samples and simulated upstreams.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use ostler_builder::{Language, manifest};
use serde_json::{Value, json};

use super::{
    files::{OBJECT_EXTENSIONS, list_files, read_file},
    simulated_upstream::UpstreamFile,
};
use crate::{
    kube::key::Gvk,
    policy::{grants::Grants, manifest::Manifest},
};

/// A plugin's project folder.
pub struct Project {
    /// Path of the folder.
    pub folder: PathBuf,
    /// Programming language.
    pub language: Language,
    /// Requested permissions.
    pub asks: Value,
    /// CustomResourceDefinitions.
    pub crds: Vec<Document>,
    /// Sample objects.
    pub samples: Vec<Document>,
    /// Simulated upstreams.
    pub upstreams: Vec<UpstreamFile>,
}

/// An object in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The file.
    pub file: PathBuf,
    /// The object.
    pub object: Value,
}

impl Document {
    /// The string at a JSON pointer; empty if there is none.
    pub fn text(&self, pointer: &str) -> &str {
        self.object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The object's kind.
    pub fn gvk(&self) -> Gvk {
        Gvk::from_api_version(self.text("/apiVersion"), self.text("/kind"))
    }

    /// The kinds that a CRD defines.
    pub fn defined_kinds(&self) -> Vec<Gvk> {
        let versions = self.object["spec"]["versions"].as_array().into_iter().flatten();
        let served = versions.filter(|v| v["served"] != false);
        let names = served.filter_map(|v| v["name"].as_str());
        let (group, kind) = (self.text("/spec/group"), self.text("/spec/names/kind"));
        names.map(|version| Gvk::new(group, version, kind)).collect()
    }
}

impl Project {
    /// Reads a folder. Errors name the file, the field and the remedy.
    pub fn read_folder(folder: &Path) -> anyhow::Result<Self> {
        let language = ostler_builder::detect_language(folder)?;
        let crds = read_documents(&folder.join("crds"))?;
        if let Some(other) = crds
            .iter()
            .find(|d| d.text("/kind") != "CustomResourceDefinition")
        {
            bail!(
                "{}: kind: {}, but crds/ has CustomResourceDefinitions only: put it into samples/",
                other.file.display(),
                other.text("/kind")
            );
        }
        Ok(Self {
            folder: folder.to_owned(),
            language,
            asks: read_asks(folder)?,
            crds,
            samples: read_documents(&folder.join("samples"))?,
            upstreams: UpstreamFile::read_all(folder)?,
        })
    }

    /// Grants with all requested permissions.
    pub fn build_grants(&self, plugin: &str) -> anyhow::Result<Grants> {
        let text = json!({ "plugins": { plugin: self.asks } }).to_string();
        Grants::parse(&text, manifest::MANIFEST_FILE).map_err(|e| anyhow::anyhow!("{e}"))
    }

    /// Fails unless the folder defines every kind that the component reconciles.
    pub fn check_kinds_defined(&self, kinds: &[Gvk]) -> anyhow::Result<()> {
        let defined: Vec<_> = self.crds.iter().flat_map(Document::defined_kinds).collect();
        let Some(missing) = kinds.iter().find(|k| !defined.contains(k)) else {
            return Ok(());
        };
        let crds = self.folder.join("crds");
        if defined.is_empty() {
            bail!(
                "{}: no CRD: the plugin reconciles {missing}, which must be defined there",
                crds.display()
            );
        }
        let names: Vec<_> = defined.iter().map(ToString::to_string).collect();
        let similar = self.crds.iter().find(|d| {
            d.text("/spec/names/kind") == &*missing.kind || d.text("/spec/group") == &*missing.group
        });
        let file = similar.map_or(crds, |d| d.file.clone());
        bail!(
            "{}: it defines {}, but the plugin reconciles {missing}: make spec.group, spec.names.kind and \
             spec.versions[].name agree with it",
            file.display(),
            names.join(", ")
        )
    }
}

/// The permissions that a folder's `plugin.yaml` requests.
pub fn read_asks(folder: &Path) -> anyhow::Result<Value> {
    let file = folder.join(manifest::MANIFEST_FILE);
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => bail!(
            "{}: not found: the manifest with the plugin's permissions is missing; begin with `permissions: {{}}`",
            file.display()
        ),
        Err(e) => return Err(e).with_context(|| format!("reading {}", file.display())),
    };
    let parsed = Manifest::parse(&text, &file.display().to_string());
    let manifest = parsed.map_err(|e| anyhow::anyhow!("{e}"))?;
    Ok(serde_json::to_value(manifest.permissions.with_any_origin())?)
}

/// The objects of a folder's files, in the order of file names.
fn read_documents(folder: &Path) -> anyhow::Result<Vec<Document>> {
    let mut all = Vec::new();
    for file in list_files(folder, &OBJECT_EXTENSIONS)? {
        all.extend(parse_documents(&file, &read_file(&file)?)?);
    }
    Ok(all)
}

fn parse_documents(file: &Path, text: &str) -> anyhow::Result<Vec<Document>> {
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(text).with_context(|| format!("{} is not YAML", file.display()))?;
    let mut documents = Vec::new();
    for (i, object) in objects.into_iter().filter(|o| !o.is_null()).enumerate() {
        let document = Document {
            file: file.to_owned(),
            object,
        };
        for field in ["/apiVersion", "/kind", "/metadata/name"] {
            if document.text(field).is_empty() {
                let field = field[1..].replace('/', ".");
                bail!("{}: object {}: {field} is missing", file.display(), i + 1);
            }
        }
        documents.push(document);
    }
    Ok(documents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(files: &[(&str, &str)]) -> (tempfile::TempDir, anyhow::Result<Project>) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let project = Project::read_folder(folder.path());
        (folder, project)
    }

    const CRD: &str = "kind: CustomResourceDefinition
apiVersion: apiextensions.k8s.io/v1
metadata: {name: xs.a.dev}
spec: {group: a.dev, names: {kind: X}, versions: [{name: v1, served: true}, {name: v0, served: false}]}
";

    #[test]
    fn invalid_project_is_reported_with_file_and_remedy() {
        let sound = [("Cargo.toml", ""), ("plugin.yaml", "permissions: {}")];
        for (files, words) in [
            (
                &[("Cargo.toml", "")][..],
                ["plugin.yaml: not found", "begin with"],
            ),
            (
                &[("Cargo.toml", ""), ("plugin.yaml", "permissions: [")],
                ["plugin.yaml", "line 1"],
            ),
            (
                &[
                    ("Cargo.toml", ""),
                    ("plugin.yaml", "permissions: {kubernets: []}"),
                ],
                ["plugin.yaml", "kubernets"],
            ),
            (
                &[sound[0], sound[1], ("samples/x.yaml", "kind: X\n---\n")],
                ["samples/x.yaml: object 1", "apiVersion is missing"],
            ),
            (
                &[sound[0], sound[1], ("samples/x.yaml", "a: [")],
                ["samples/x.yaml", "not YAML"],
            ),
            (
                &[
                    sound[0],
                    sound[1],
                    (
                        "crds/x.yaml",
                        "{apiVersion: v1, kind: Secret, metadata: {name: x}}",
                    ),
                ],
                ["crds/x.yaml: kind: Secret", "samples/"],
            ),
        ] {
            let (_folder, project) = project(files);
            let error = format!("{:#}", project.err().expect(words[0]));
            assert!(
                words.iter().all(|w| error.contains(w)),
                "{error}\nexpected: {words:?}"
            );
        }
    }

    #[test]
    fn kind_without_crd_is_named() {
        let files = [
            ("Cargo.toml", ""),
            ("plugin.yaml", "permissions: {}"),
            ("crds/x.yaml", CRD),
        ];
        let (_folder, project_with) = project(&files);
        let with = project_with.unwrap();
        with.check_kinds_defined(&[Gvk::new("a.dev", "v1", "X")]).unwrap();
        let error = with
            .check_kinds_defined(&[Gvk::new("a.dev", "v0", "X")])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("crds/x.yaml: it defines X.v1.a.dev") && error.contains("reconciles X.v0.a.dev"),
            "{error}"
        );
        let (_folder, without) = project(&files[..2]);
        let error = without
            .unwrap()
            .check_kinds_defined(&[Gvk::new("a.dev", "v1", "X")])
            .unwrap_err();
        assert!(error.to_string().contains("crds: no CRD"), "{error}");
    }

    #[test]
    fn requested_permissions_are_granted() {
        let asks = "permissions: {kubernetes: [{kinds: [ConfigMap], verbs: [apply]}], events: true}";
        let (_folder, project) = project(&[("go.mod", ""), ("plugin.yaml", asks)]);
        let project = project.unwrap();
        assert_eq!(project.language, Language::Go);
        let grants = project.build_grants("mine").unwrap();
        assert!(
            grants
                .grants_for("mine")
                .check_access(&crate::policy::grants::Access::Events, "")
                .is_ok()
        );
        assert!(
            grants
                .grants_for("other")
                .check_access(&crate::policy::grants::Access::Events, "")
                .is_err()
        );
    }
}
