//! Random choices.

use fastrand::Rng;
use serde_json::Value;

/// Choices of a generator.
pub trait Choose {
    /// Returns a random item of a list that is not empty.
    fn choose<T: Clone>(&mut self, items: &[T]) -> T;

    /// Returns true in this many cases of a hundred.
    fn percent(&mut self, percent: u32) -> bool;
}

impl Choose for Rng {
    fn choose<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.usize(..items.len())].clone()
    }

    fn percent(&mut self, percent: u32) -> bool {
        self.u32(..100) < percent
    }
}

/// Sets a field of an object.
pub fn insert(object: &mut Value, field: &str, value: impl Into<Value>) {
    if let Value::Object(fields) = object {
        fields.insert(field.to_owned(), value.into());
    }
}

/// Returns the JSON pointers of all values below a value, itself excluded.
pub fn list_pointers(value: &Value) -> Vec<String> {
    let mut pointers = Vec::new();
    collect_pointers(value, &mut String::new(), &mut pointers);
    pointers
}

fn collect_pointers(value: &Value, pointer: &mut String, pointers: &mut Vec<String>) {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, below)| (name.replace('~', "~0").replace('/', "~1"), below))
            .collect(),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, below)| (index.to_string(), below))
            .collect(),
        _ => Vec::new(),
    };
    for (segment, below) in below {
        let length = pointer.len();
        pointer.push('/');
        pointer.push_str(&segment);
        pointers.push(pointer.clone());
        collect_pointers(below, pointer, pointers);
        pointer.truncate(length);
    }
}

/// Removes the value at a JSON pointer. Returns false if there is none.
pub fn remove_at(value: &mut Value, pointer: &str) -> bool {
    let Some((parent, last)) = pointer.rsplit_once('/') else {
        return false;
    };
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) => fields
            .remove(&last.replace("~1", "/").replace("~0", "~"))
            .is_some(),
        Some(Value::Array(items)) => match last.parse::<usize>() {
            Ok(index) if index < items.len() => {
                items.remove(index);
                true
            }
            _ => false,
        },
        _ => false,
    }
}
