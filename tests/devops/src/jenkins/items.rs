//! Folders and pipelines.

use std::collections::BTreeMap;

use super::{JenkinsBuild, JenkinsModel, xml};

/// Class of a folder, which is the name of its root element.
pub const FOLDER_CLASS: &str = "com.cloudbees.hudson.plugins.folder.Folder";
/// Name of the root element of a pipeline.
const PIPELINE_ROOT: &str = "flow-definition";
/// Class of a pipeline.
pub const PIPELINE_CLASS: &str = "org.jenkinsci.plugins.workflow.job.WorkflowJob";

/// Characters that no name may have.
const FORBIDDEN_CHARACTERS: &str = "?*/\\%!@#$^&|<>[]:;";

/// A folder or a pipeline.
#[derive(Default)]
pub struct SimulatedItem {
    /// XML, as it was sent.
    pub config: String,
    /// Builds by their numbers.
    pub builds: BTreeMap<u64, JenkinsBuild>,
}

/// A refusal: its status, and the text of `X-Error`.
pub type JenkinsRefusal = (u16, String);

impl SimulatedItem {
    /// The item is a folder.
    pub fn is_folder(&self) -> bool {
        xml::root_name(&self.config).as_deref() == Some(FOLDER_CLASS)
    }

    /// The pipeline does not build.
    pub fn is_disabled(&self) -> bool {
        xml::child_text(&self.config, "disabled").as_deref() == Some("true")
    }
}

impl JenkinsModel {
    /// Creates an item from its XML.
    pub fn create_item(&mut self, path: &str, config: &str) -> Result<(), JenkinsRefusal> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if let Some(character) = name
            .chars()
            .find(|c| FORBIDDEN_CHARACTERS.contains(*c) || c.is_control())
        {
            return Err((400, format!("‘{character}’ is an unsafe character")));
        }
        if name.is_empty() || name == "." || name == ".." || name.ends_with('.') {
            return Err((400, "No name is specified, or it ends with a dot".into()));
        }
        if !parent.is_empty() && !self.items.get(parent).is_some_and(SimulatedItem::is_folder) {
            return Err((404, "Not Found".into()));
        }
        if self.items.contains_key(path) {
            return Err((400, format!("A job already exists with the name ‘{name}’")));
        }
        check_class(config)?;
        let item = SimulatedItem {
            config: config.into(),
            ..SimulatedItem::default()
        };
        self.items.insert(path.into(), item);
        Ok(())
    }

    /// Replaces the configuration of an item, and keeps its builds.
    pub fn update_item(&mut self, path: &str, config: &str) -> Result<(), JenkinsRefusal> {
        let root = check_class(config)?;
        let item = self.items.get_mut(path).ok_or((404, "Not Found".to_owned()))?;
        let before = xml::root_name(&item.config);
        if before.as_ref() != Some(&root) {
            return Err((500, format!("Expecting {before:?} but got {root}")));
        }
        item.config = config.into();
        Ok(())
    }

    /// Deletes an item, with its children, builds and credentials. Returns whether it was there.
    pub fn delete_item(&mut self, path: &str) -> bool {
        let below = format!("{path}/");
        let is_inside = |other: &str| other == path || other.starts_with(&below);
        let found = self.items.contains_key(path);
        self.items.retain(|other, _| !is_inside(other));
        self.credentials.retain(|(folder, _), _| !is_inside(folder));
        for item in self.queue.values_mut().filter(|item| is_inside(&item.job)) {
            item.cancel();
        }
        found
    }
}

/// Checks that Jenkins has the class of a configuration. Returns the name of its root.
fn check_class(config: &str) -> Result<String, JenkinsRefusal> {
    match xml::root_name(config) {
        Some(root) if root == FOLDER_CLASS || root == PIPELINE_ROOT => Ok(root),
        Some(root) => Err((500, format!("CannotResolveClassException: {root}"))),
        None => Err((500, "Failed to parse the configuration".into())),
    }
}
