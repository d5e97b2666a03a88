//! Selectors of cached objects.

pub use ostler_selector::{FieldSelector, LabelSelector, NAME_PATH};

use crate::kube::object::{KubeObject, Labels};

impl ostler_selector::LabelSet for Labels {
    fn find_label(&self, key: &str) -> Option<&str> {
        self.get(key)
    }
}

impl KubeObject {
    /// Returns true if a field selector selects the object.
    pub fn is_selected_by(&self, fields: &FieldSelector) -> bool {
        let paths: Vec<&str> = fields.paths().collect();
        fields.matches_list(&self.field_texts(&paths))
    }
}
