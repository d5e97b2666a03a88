//! The host's policy of components: those that may run, whatever a `Plugin` object says.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error};

use crate::kube::well_known::plugin_reason;

/// Components that may run: the part `components` of a grants file. A `Plugin` object can only narrow it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ComponentPolicy {
    /// Public keys in PEM format. If there are any, a component from a registry must be signed by one of them, besides
    /// meeting `spec.verify` of its Plugin.
    #[serde(default)]
    pub trusted_keys: Vec<String>,
    /// Allows components of the plugin directory, which have no signatures. Defaults to true.
    #[serde(default = "default_plugin_files")]
    pub plugin_files: bool,
    /// SHA-256 digests (`sha256:…`) of components, or of their artifacts in a registry, that must not run.
    #[serde(default, deserialize_with = "deserialize_digests")]
    pub revoked_digests: BTreeSet<String>,
}

fn default_plugin_files() -> bool {
    true
}

impl Default for ComponentPolicy {
    fn default() -> Self {
        Self {
            trusted_keys: Vec::new(),
            plugin_files: default_plugin_files(),
            revoked_digests: BTreeSet::new(),
        }
    }
}

/// Parses digests; they are kept without the prefix.
fn deserialize_digests<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let parse = |text: &String| {
        let hex = text.strip_prefix("sha256:").unwrap_or(text).to_ascii_lowercase();
        let valid = hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit());
        valid.then_some(hex).ok_or_else(|| {
            D::Error::custom(format!(
                "`{text}` is no digest: it is sha256: and 64 hexadecimal digits"
            ))
        })
    };
    texts.iter().map(parse).collect()
}

/// The rule of the policy that a component violates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentViolation {
    /// Reason of the condition.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
}

impl ComponentPolicy {
    /// Checks a component by its digest and its source, which is a reference into a registry or a file name.
    pub fn check_component(&self, digest: &str, source: &str) -> Result<(), ComponentViolation> {
        let artifact = source.rsplit_once("@sha256:").map(|(_, digest)| digest);
        let mut digests = [Some(digest), artifact].into_iter().flatten();
        if let Some(revoked) = digests.find(|digest| self.revoked_digests.contains(*digest)) {
            return Err(ComponentViolation {
                reason: plugin_reason::REVOKED,
                message: format!(
                    "sha256:{revoked} is in components.revokedDigests of the host's grants file"
                ),
            });
        }
        // A file name has no slash, and a reference has the registry before one.
        if !self.plugin_files && !source.contains('/') {
            return Err(ComponentViolation {
                reason: plugin_reason::FILE_NOT_ALLOWED,
                message: format!(
                    "{source} is a file, which components.pluginFiles of the host's grants file does not allow: use spec.source.oci"
                ),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "9a7c000000000000000000000000000000000000000000000000000000000001";

    fn parse(json: &str) -> Result<ComponentPolicy, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn revoked_digest_is_refused_as_component_and_as_artifact() {
        let artifact = format!("registry.example/plugin:1@sha256:{DIGEST}");
        let checks = |policy: &ComponentPolicy| {
            [(DIGEST, "a.wasm"), ("00", &*artifact), ("00", "a.wasm")]
                .map(|(digest, source)| policy.check_component(digest, source).map_err(|v| v.reason))
        };
        for list in [
            format!("[\"sha256:{DIGEST}\"]"),
            format!("[\"{}\"]", DIGEST.to_uppercase()),
        ] {
            let policy = parse(&format!("{{\"revokedDigests\": {list}}}")).expect("a policy");
            assert_eq!(checks(&policy), [Err("Revoked"), Err("Revoked"), Ok(())]);
        }
        assert_eq!(checks(&ComponentPolicy::default()), [Ok(()), Ok(()), Ok(())]);
        let why = parse(r#"{"revokedDigests": ["sha256:9a7c"]}"#).expect_err("no digest");
        assert!(why.contains("sha256:9a7c"), "{why}");
    }

    #[test]
    fn file_is_refused_unless_plugin_files_are_allowed() {
        let policy = parse(r#"{"pluginFiles": false}"#).expect("a policy");
        let refused = policy
            .check_component(DIGEST, "a@sha256:b.wasm")
            .expect_err("refused");
        assert_eq!(refused.reason, "FileNotAllowed");
        assert_eq!(
            policy.check_component(DIGEST, &format!("r.example/p@sha256:{DIGEST}")),
            Ok(())
        );
        assert!(parse("{}").expect("a policy").plugin_files);
    }
}
