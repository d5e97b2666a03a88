//! JSON patches ([RFC 6902](https://www.rfc-editor.org/rfc/rfc6902)) as the API server evaluates them: a missing value is null, a
//! replaced field need not exist, an index may count from the end, and the whole object can only be replaced or tested. Libraries that keep
//! to the specification refuse what a cluster accepts.

use serde_json::Value;

/// Applies the operations to an object, in their order.
///
/// # Errors
/// The reason why an operation cannot be applied, with its index.
pub fn apply_operations(object: &mut Value, operations: &[Value]) -> Result<(), String> {
    for (index, operation) in operations.iter().enumerate() {
        apply_operation(object, operation).map_err(|why| format!("operation {index}: {why}"))?;
    }
    Ok(())
}

fn apply_operation(object: &mut Value, operation: &Value) -> Result<(), String> {
    let path = read_pointer(operation, "path");
    let value = || operation["value"].clone();
    match operation["op"].as_str().unwrap_or("unknown") {
        "replace" if path == Ok("") => {
            let new = value();
            if !new.is_object() && !new.is_array() {
                return Err("the value must be an object or a list".into());
            }
            *object = new;
            Ok(())
        }
        "add" => find_container(object, path?)?.add(value()),
        "remove" => find_container(object, path?)?.remove().map(drop),
        "replace" => find_container(object, path?)?.replace(value()),
        "move" => {
            let moved = find_container(object, read_pointer(operation, "from")?)?.remove()?;
            find_container(object, path?)?.add(moved)
        }
        "copy" => {
            let copied = find_container(object, read_pointer(operation, "from")?)?.get()?;
            find_container(object, path?)?.add(copied)
        }
        "test" => {
            let path = path?;
            let found = if path.is_empty() {
                object.clone()
            } else {
                find_container(object, path)?.get()?
            };
            if found == operation["value"] {
                Ok(())
            } else {
                Err(format!("the test of {path:?} has failed"))
            }
        }
        other => Err(format!("unknown operation {other:?}")),
    }
}

fn read_pointer<'a>(operation: &'a Value, field: &str) -> Result<&'a str, String> {
    operation[field]
        .as_str()
        .ok_or_else(|| format!("{field} is missing"))
}

/// A place in an object or a list, which need not be there.
struct Place<'a> {
    container: &'a mut Value,
    key: String,
}

/// Finds the container of what a JSON pointer addresses.
fn find_container<'a>(object: &'a mut Value, pointer: &str) -> Result<Place<'a>, String> {
    let missing = || format!("{pointer:?} addresses nothing");
    let (parents, key) = pointer.rsplit_once('/').ok_or_else(missing)?;
    let decode = |part: &str| part.replace("~1", "/").replace("~0", "~");
    let mut container = object;
    for part in parents.split('/').skip(1) {
        let key = decode(part);
        container = match container {
            Value::Object(fields) => fields.get_mut(&key),
            Value::Array(items) => find_index(&key, items.len()).ok().map(|index| &mut items[index]),
            _ => None,
        }
        .ok_or_else(missing)?;
    }
    if container.is_object() || container.is_array() {
        let key = decode(key);
        Ok(Place { container, key })
    } else {
        Err(missing())
    }
}

/// Finds an index of a list of this length. Negative ones count from the end.
fn find_index(key: &str, length: usize) -> Result<usize, String> {
    let index: isize = key.parse().map_err(|_| format!("{key:?} is not an index"))?;
    let index = if index < 0 {
        length.checked_add_signed(index)
    } else {
        Some(index.unsigned_abs())
    };
    index
        .filter(|index| *index < length)
        .ok_or_else(|| format!("the index {key} is out of range"))
}

impl Place<'_> {
    /// Reads the value: null for a field that is not there.
    fn get(&self) -> Result<Value, String> {
        match &*self.container {
            Value::Array(items) => Ok(items[find_index(&self.key, items.len())?].clone()),
            other => Ok(other.get(&self.key).cloned().unwrap_or_default()),
        }
    }

    fn add(self, value: Value) -> Result<(), String> {
        match self.container {
            Value::Array(items) if self.key == "-" => items.push(value),
            Value::Array(items) => items.insert(find_index(&self.key, items.len() + 1)?, value),
            other => other[self.key] = value,
        }
        Ok(())
    }

    fn replace(self, value: Value) -> Result<(), String> {
        match self.container {
            Value::Array(items) => {
                let index = find_index(&self.key, items.len())?;
                items[index] = value;
            }
            other => other[self.key] = value,
        }
        Ok(())
    }

    fn remove(self) -> Result<Value, String> {
        match self.container {
            Value::Array(items) => Ok(items.remove(find_index(&self.key, items.len())?)),
            other => other
                .as_object_mut()
                .and_then(|fields| fields.remove(&self.key))
                .ok_or_else(|| format!("there is no field {:?}", self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn operation_changes_what_its_pointer_addresses() {
        for (operation, expected) in [
            (
                json!({"op": "add", "path": "/m/x~1y", "value": 1}),
                json!({"m": {"a": 1, "x/y": 1}, "l": [1, 2]}),
            ),
            (
                json!({"op": "add", "path": "/l/-", "value": 3}),
                json!({"m": {"a": 1}, "l": [1, 2, 3]}),
            ),
            (
                json!({"op": "add", "path": "/l/-1", "value": 3}),
                json!({"m": {"a": 1}, "l": [1, 2, 3]}),
            ),
            (
                json!({"op": "add", "path": "/l/0", "value": 3}),
                json!({"m": {"a": 1}, "l": [3, 1, 2]}),
            ),
            (
                json!({"op": "add", "path": "/m/b"}),
                json!({"m": {"a": 1, "b": null}, "l": [1, 2]}),
            ),
            (
                json!({"op": "replace", "path": "/m/b", "value": 2}),
                json!({"m": {"a": 1, "b": 2}, "l": [1, 2]}),
            ),
            (
                json!({"op": "remove", "path": "/l/-1"}),
                json!({"m": {"a": 1}, "l": [1]}),
            ),
            (
                json!({"op": "move", "from": "/m/a", "path": "/l/1"}),
                json!({"m": {}, "l": [1, 1, 2]}),
            ),
            (
                json!({"op": "copy", "from": "/l/1", "path": "/m/b"}),
                json!({"m": {"a": 1, "b": 2}, "l": [1, 2]}),
            ),
            (
                json!({"op": "test", "path": "/m/absent", "value": null}),
                json!({"m": {"a": 1}, "l": [1, 2]}),
            ),
        ] {
            let mut object = json!({"m": {"a": 1}, "l": [1, 2]});
            apply_operations(&mut object, std::slice::from_ref(&operation)).unwrap();
            assert_eq!(object, expected, "{operation}");
        }
    }

    #[test]
    fn operation_that_addresses_nothing_is_refused() {
        for operation in [
            json!({"op": "add", "path": "", "value": {}}),
            json!({"op": "add", "path": "/absent/a", "value": 1}),
            json!({"op": "add", "path": "/m/a/b", "value": 1}),
            json!({"op": "add", "path": "/l/3", "value": 1}),
            json!({"op": "replace", "path": "/l/2", "value": 1}),
            json!({"op": "replace", "path": "/l/x", "value": 1}),
            json!({"op": "remove", "path": "/m/absent"}),
            json!({"op": "copy", "from": "", "path": "/m/b"}),
            json!({"op": "test", "path": "/absent/below"}),
            json!({"op": "test", "path": "/m/a", "value": 2}),
            json!({"op": "odd", "path": "/m/a"}),
            json!({"op": "remove"}),
        ] {
            let mut object = json!({"m": {"a": 1}, "l": [1, 2]});
            let applied = apply_operations(&mut object, std::slice::from_ref(&operation));
            assert!(applied.is_err(), "{operation}");
        }
    }
}
