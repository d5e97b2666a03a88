//! Validation beyond the schema of Step.

use ostler_sdk::{Failure, duration};
use steps_api::Step;

use crate::pod::user_id;

/// Length of the longest name of a Step: the pod's name, with the number of the attempt, is its host name.
const MAX_NAME_BYTES: usize = 60;

/// Checks a Step.
///
/// # Errors
/// `InvalidSpec`, which names the field.
pub fn validate(step: &Step) -> Result<(), Failure> {
    let invalid = |message: String| Err(Failure::terminal("InvalidSpec", message));
    let spec = &step.spec;
    if step.name().len() > MAX_NAME_BYTES {
        return invalid(format!(
            "metadata.name must not have more than {MAX_NAME_BYTES} characters."
        ));
    }
    let durations = [
        ("timeout", spec.timeout.as_ref()),
        ("startTimeout", Some(&spec.start_timeout)),
        ("retain", Some(&spec.retain)),
    ];
    for (field, text) in durations {
        if text.is_some_and(|text| duration(text).is_none()) {
            return invalid(format!("spec.{field} must be a duration such as 1h30m."));
        }
    }
    if user_id(spec) == 0 && spec.security_context.run_as_non_root != Some(false) {
        return invalid("spec.securityContext.runAsNonRoot must be false for the user 0.".into());
    }
    let inputs = spec.inputs.iter().map(|input| input.path.as_str());
    let paths: Vec<&str> = inputs
        .chain(spec.outputs.iter().map(|output| output.path.as_str()))
        .collect();
    for (index, path) in paths.iter().enumerate() {
        if is_below(path, "/ostler") || is_below("/var/run/ostler", path) || is_below(path, "/var/run/ostler")
        {
            return invalid(format!(
                "The path {path} of an input or output belongs to the shim: use another one."
            ));
        }
        if ["/dev", "/proc", "/sys", "/etc", "/bin", "/usr", "/lib"].contains(path) {
            return invalid(format!(
                "The path {path} of an input or output would hide the system's: use another one."
            ));
        }
        // Packed with the output, or hidden by its mount.
        if let Some(other) = paths
            .iter()
            .skip(index + 1)
            .find(|other| is_below(path, other) || is_below(other, path))
        {
            return invalid(format!(
                "The paths {path} and {other} of inputs and outputs must not contain each other."
            ));
        }
    }
    Ok(())
}

/// Returns whether a path is a directory or below it.
fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
