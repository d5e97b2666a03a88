//! The mark in the descriptions of what this pack creates in Jenkins.

use devops_api::JenkinsSetting;

const MARK_PREFIX: &str = "[ostler:";

/// Builds the description of a folder, a pipeline or credentials: for people, and with the mark. The hash tells a
/// configuration that was written from another one.
pub fn describe(setting: &JenkinsSetting, text: &str, hash: &str) -> String {
    let (namespace, name) = (setting.namespace(), setting.name());
    let mark = format!("{MARK_PREFIX}{}:{hash}]", setting.metadata.uid);
    let managed = format!("Managed by the JenkinsSetting {namespace}/{name}. {mark}");
    match text {
        "" => managed,
        text => format!("{text}\n{managed}"),
    }
}

/// The hash in the mark of this setting; none if a description has no mark, or that of another object.
pub fn read_hash<'a>(setting: &JenkinsSetting, description: &'a str) -> Option<&'a str> {
    // The last one: a text may contain anything.
    let (_, mark) = description.rsplit_once(MARK_PREFIX)?;
    let (uid, hash) = mark.strip_suffix(']')?.split_once(':')?;
    (!uid.is_empty() && uid == setting.metadata.uid).then_some(hash)
}
