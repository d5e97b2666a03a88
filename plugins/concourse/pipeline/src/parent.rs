//! The Team of a Pipeline, of which few fields matter. To read the whole Team as its type would take much of this
//! component's size.

use concourse_api::{NamespacedName, resolve_json};
use ostler_sdk::serde_json::Value;

/// The Team of a Pipeline.
pub struct ParentTeam(Value);

impl ParentTeam {
    /// The Team that was read as JSON.
    pub fn new(team: Value) -> Self {
        Self(team)
    }

    /// Namespace and name of the object.
    pub fn object(&self) -> NamespacedName<'_> {
        let field = |name| self.0["metadata"][name].as_str().unwrap_or_default();
        NamespacedName {
            namespace: field("namespace"),
            name: field("name"),
        }
    }

    /// Name of the team in Concourse.
    pub fn name(&self) -> &str {
        let name = self.0["spec"]["teamName"].as_str();
        name.filter(|name| !name.is_empty()).unwrap_or(self.object().name)
    }

    /// Namespace and name of its Instance.
    pub fn instance(&self) -> NamespacedName<'_> {
        resolve_json(&self.0, "instanceRef")
    }

    /// URL of the team's page.
    pub fn web_url(&self) -> Option<&str> {
        self.0["status"]["webURL"].as_str()
    }
}
