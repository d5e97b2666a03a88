//! Fields that were renamed before the first release.
//!
//! An unknown field is refused. The error alone lists the fields that exist, so it also names the new field where the
//! unknown one is a former name.

/// Former names of fields and the fields that replace them, in Plugin objects, Upstreams, grants files, manifests and
/// recordings.
const RENAMED_FIELDS: &[(&str, &str)] = &[
    ("all", "requireAll"),
    ("asks", "permissions"),
    ("bytesIn", "bytesFromHost"),
    ("bytesOut", "bytesToHost"),
    ("concurrency", "maxConcurrent"),
    ("configMap", "configMapKeyRef"),
    ("cpu", "cpuTime"),
    ("inFlight", "requestsInFlight"),
    ("lifetimeJsonPath", "expirationJsonPath"),
    ("lifetimeSeconds", "expirationSeconds"),
    ("memoBytes", "cacheBytes"),
    ("objects", "listedObjects"),
    ("pace", "reconcile"),
    ("poll", "interval"),
    ("pullSecret", "pullSecretRef"),
    ("secret", "secretKeyRef"),
    ("secretsAreReadable", "readSecrets"),
    ("selector", "labelSelector"),
    ("share", "weight"),
    ("suspended", "suspend"),
    ("wall", "timeout"),
];

/// Adds the new name of a field to the deserialization error that refused its former name.
pub fn explain_unknown_field(error: impl std::fmt::Display) -> String {
    let mut text = error.to_string();
    let former = text
        .split_once("unknown field `")
        .and_then(|(_, rest)| rest.split_once('`'))
        .map(|(name, _)| name.to_owned());
    let renamed = former.and_then(|name| RENAMED_FIELDS.iter().find(|(old, _)| *old == name));
    if let Some((old, new)) = renamed {
        text.push_str(&format!(" (`{old}` was renamed to `{new}`)"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renamed_field_error_names_the_new_field() {
        let text = "unknown field `pace`, expected one of `kubernetes`, `reconcile`";
        assert_eq!(
            explain_unknown_field(text),
            format!("{text} (`pace` was renamed to `reconcile`)")
        );
    }

    #[test]
    fn unknown_field_that_was_never_used_is_left_unchanged() {
        for text in ["unknown field `pase`, expected `reconcile`", "missing field `a`"] {
            assert_eq!(explain_unknown_field(text), text);
        }
    }
}
