//! Limits of the size of requests and objects, which an API server and its etcd have by default.

use serde_json::Value;

use crate::status::StatusError;

/// Maximum bytes of the body of a request.
const MAX_BODY_BYTES: usize = 3 << 20;
/// Maximum operations of a JSON patch.
const MAX_PATCH_OPERATIONS: usize = 10_000;
/// Maximum bytes of a request to etcd, which has the object and its key.
const MAX_STORED_BYTES: usize = 3 << 19;
/// Bytes of a request to etcd beside the object.
const STORED_OVERHEAD: usize = 256;

/// Checks the length of the body of a request.
///
/// # Errors
/// 413 for more than 3 MiB.
pub fn check_body(length: usize) -> Result<(), StatusError> {
    if length <= MAX_BODY_BYTES {
        return Ok(());
    }
    Err(too_large(&format!("limit is {MAX_BODY_BYTES}")))
}

/// Checks the number of operations of a JSON patch.
///
/// # Errors
/// 413 for more than 10,000.
pub fn check_patch_operations(count: usize) -> Result<(), StatusError> {
    if count <= MAX_PATCH_OPERATIONS {
        return Ok(());
    }
    let why =
        format!("The allowed maximum operations in a JSON patch is {MAX_PATCH_OPERATIONS}, got {count}");
    Err(too_large(&why))
}

/// Checks that etcd would store an object.
///
/// # Errors
/// 500 for one of more than 1.5 MiB.
pub fn check_stored(object: &Value) -> Result<(), StatusError> {
    let mut left = MAX_STORED_BYTES - STORED_OVERHEAD;
    if take_bytes(object, &mut left).is_some() {
        return Ok(());
    }
    Err(StatusError::new(500, "", "etcdserver: request is too large"))
}

fn too_large(why: &str) -> StatusError {
    StatusError::new(
        413,
        "RequestEntityTooLarge",
        format!("Request entity too large: {why}"),
    )
}

/// Takes the bytes of a value as JSON from those that are left; none if it has more.
fn take_bytes(value: &Value, left: &mut usize) -> Option<()> {
    let mut take = |count: usize| {
        *left = left.checked_sub(count)?;
        Some(())
    };
    match value {
        Value::Null | Value::Bool(_) => take(4),
        Value::Number(number) => take(number.to_string().len()),
        // With its quotes and a comma.
        Value::String(text) => take(text.len() + 3),
        Value::Array(items) => {
            take(2)?;
            items.iter().try_for_each(|item| take_bytes(item, left))
        }
        Value::Object(fields) => {
            take(2)?;
            fields.iter().try_for_each(|(name, value)| {
                *left = left.checked_sub(name.len() + 4)?;
                take_bytes(value, left)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn object_of_more_bytes_than_etcd_takes_is_refused() {
        let object = |length: usize| json!({"spec": {"text": "x".repeat(length)}});
        assert_eq!(check_stored(&object(MAX_STORED_BYTES - 1000)), Ok(()));
        assert_eq!(check_stored(&object(MAX_STORED_BYTES)).unwrap_err().code, 500);
        assert_eq!(check_body(MAX_BODY_BYTES + 1).unwrap_err().code, 413);
        assert_eq!(check_patch_operations(MAX_PATCH_OPERATIONS), Ok(()));
    }
}
