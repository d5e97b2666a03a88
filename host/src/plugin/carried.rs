//! Objects that a component carries: the CustomResourceDefinitions of the kinds that it reconciles, and samples of them.
//!
//! They are custom sections beside the manifest, so that they have the digest and the signatures of the component, whether it comes from a
//! registry or from a file.

use serde_json::Value;

use crate::{
    kube::key::Gvk,
    policy::{
        grants::Permissions,
        manifest::{ManifestError, find_section},
        rbac::ApiResource,
    },
};

/// Name of the custom section of CustomResourceDefinitions: a JSON array.
pub const CRDS_SECTION: &str = "ostler:crds";
/// Name of the custom section of samples: a JSON array.
pub const SAMPLES_SECTION: &str = "ostler:samples";
/// Maximum size of a section. The API server accepts objects of 1.5 MiB.
const MAX_SECTION_BYTES: usize = 2 << 20;

/// A CustomResourceDefinition that a component carries.
#[derive(Clone, Debug, PartialEq)]
pub struct CarriedKind {
    /// Name of the object, as in `teams.concourse-ci.org`.
    pub name: String,
    /// The kind, in its first version.
    pub gvk: Gvk,
    /// The resource that serves it.
    pub resource: ApiResource,
    /// The names of its versions.
    pub versions: Vec<String>,
    /// The object.
    pub definition: Value,
}

/// The reason why what a component carries is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CarriedError {
    /// The sections can't be read.
    #[error(transparent)]
    Section(#[from] ManifestError),
    /// A section is too large.
    #[error("its section `{section}` has {bytes} bytes: {MAX_SECTION_BYTES} at most")]
    TooLarge {
        /// Name of the section.
        section: &'static str,
        /// Its size.
        bytes: usize,
    },
    /// A section is no JSON array.
    #[error("its section `{section}`: {reason}")]
    Invalid {
        /// Name of the section.
        section: &'static str,
        /// The cause.
        reason: String,
    },
    /// An object is no CustomResourceDefinition.
    #[error(
        "it carries {0}, which is no CustomResourceDefinition of apiextensions.k8s.io/v1 with group, names and versions"
    )]
    NotADefinition(String),
    /// Its manifest does not request to reconcile the kind.
    #[error(
        "it carries the CustomResourceDefinition {0}, whose kind its manifest does not request to reconcile"
    )]
    ForeignKind(String),
}

/// Reads the CustomResourceDefinitions of a component.
///
/// # Errors
/// They are invalid, or of kinds that these permissions do not let the plugin reconcile.
pub fn read_kinds(wasm: &[u8], permissions: &Permissions) -> Result<Vec<CarriedKind>, CarriedError> {
    let definitions = read_array(wasm, CRDS_SECTION)?;
    let kinds = definitions.into_iter().map(|definition| {
        let kind = parse_kind(&definition).ok_or_else(|| {
            let name = definition["metadata"]["name"]
                .as_str()
                .unwrap_or("an object without a name");
            CarriedError::NotADefinition(name.to_owned())
        })?;
        match permissions.reconciles.iter().any(|entry| entry.covers(&kind.gvk)) {
            true => Ok(kind),
            false => Err(CarriedError::ForeignKind(kind.name)),
        }
    });
    kinds.collect()
}

/// Reads the samples of a component.
///
/// # Errors
/// The section is invalid.
pub fn read_samples(wasm: &[u8]) -> Result<Vec<Value>, CarriedError> {
    read_array(wasm, SAMPLES_SECTION)
}

fn read_array(wasm: &[u8], section: &'static str) -> Result<Vec<Value>, CarriedError> {
    let Some(bytes) = find_section(wasm, section)? else {
        return Ok(Vec::new());
    };
    if bytes.len() > MAX_SECTION_BYTES {
        return Err(CarriedError::TooLarge {
            section,
            bytes: bytes.len(),
        });
    }
    serde_json::from_slice(bytes).map_err(|e| CarriedError::Invalid {
        section,
        reason: e.to_string(),
    })
}

fn parse_kind(definition: &Value) -> Option<CarriedKind> {
    let is_definition = definition["apiVersion"] == "apiextensions.k8s.io/v1"
        && definition["kind"] == "CustomResourceDefinition";
    let spec = definition.get("spec").filter(|_| is_definition)?;
    let (group, names) = (spec["group"].as_str()?, &spec["names"]);
    let (kind, plural) = (names["kind"].as_str()?, names["plural"].as_str()?);
    let name = definition["metadata"]["name"].as_str()?;
    let versions = spec["versions"].as_array()?;
    let has_status = versions
        .iter()
        .any(|version| version["subresources"].get("status").is_some());
    let versions: Option<Vec<String>> = versions
        .iter()
        .map(|version| Some(version["name"].as_str()?.to_owned()))
        .collect();
    let versions = versions.filter(|versions| !versions.is_empty() && name == format!("{plural}.{group}"))?;
    Some(CarriedKind {
        name: name.to_owned(),
        gvk: Gvk::new(group, &versions[0], kind),
        resource: ApiResource {
            group: group.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            namespaced: spec["scope"] == "Namespaced",
            has_status,
        },
        versions,
        definition: definition.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wasm_encoder::{Component, CustomSection};

    use super::*;

    fn component(section: &str, contents: &str) -> Vec<u8> {
        let mut component = Component::new();
        component.section(&CustomSection {
            name: section.into(),
            data: contents.as_bytes().into(),
        });
        component.finish()
    }

    fn definition(plural: &str) -> Value {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.g.dev")},
            "spec": {"group": "g.dev", "scope": "Namespaced", "names": {"kind": "Thing", "plural": "things"},
                "versions": [{"name": "v1", "subresources": {"status": {}}}, {"name": "v2"}]}})
    }

    fn permissions(kind: &str) -> Permissions {
        serde_saphyr::from_str(&format!("reconciles: [{{group: g.dev, kinds: [{kind}]}}]"))
            .expect("permissions")
    }

    #[test]
    fn kinds_of_a_component_are_read() {
        let wasm = component(CRDS_SECTION, &json!([definition("things")]).to_string());
        let kinds = read_kinds(&wasm, &permissions("Thing")).expect("read");
        assert_eq!(kinds.len(), 1);
        assert_eq!(
            (&*kinds[0].name, &kinds[0].gvk),
            ("things.g.dev", &Gvk::new("g.dev", "v1", "Thing"))
        );
        assert_eq!(kinds[0].versions, ["v1", "v2"]);
        assert!(kinds[0].resource.namespaced && kinds[0].resource.has_status);
        assert_eq!(read_samples(&wasm), Ok(Vec::new()));
        assert_eq!(
            read_kinds(&component("other", "[]"), &permissions("Thing")),
            Ok(Vec::new())
        );
    }

    #[test]
    fn foreign_and_invalid_objects_are_refused_by_name() {
        let read = |contents: Value, kind: &str| {
            let wasm = component(CRDS_SECTION, &contents.to_string());
            read_kinds(&wasm, &permissions(kind))
                .expect_err("refused")
                .to_string()
        };
        assert!(read(json!([definition("things")]), "Other").contains("things.g.dev"));
        let renamed = read(json!([definition("teams")]), "Thing");
        assert!(
            renamed.contains("teams.g.dev, which is no CustomResourceDefinition"),
            "{renamed}"
        );
        let secret = json!([{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}]);
        assert!(read(secret, "Thing").contains("it carries a, which is no"));
        assert!(read(json!({}), "Thing").contains("ostler:crds"));
    }
}
