//! Progress of an operation, by the application that shows it.

use ostler_sdk::serde_json::Value;

/// Progress of an operation that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// The application is as it was before the request, which has not arrived yet, or never will.
    Unseen,
    /// It runs, or waits to be taken, or to be retried.
    Running,
    /// It has ended.
    Ended {
        /// `Succeeded`, `Failed` or `Error`.
        phase: &'a str,
        /// Message of Argo CD.
        message: &'a str,
        /// Commit that was synced.
        revision: Option<&'a str>,
        /// Time of the end.
        finished_at: &'a str,
    },
    /// Another operation has begun since. Whether this one ran before is not known.
    Replaced,
}

/// Start of the operation that an application shows, to be recorded before a sync is requested; none if there was none.
#[must_use]
pub fn operation_start(application: &Value) -> Option<&str> {
    application["status"]["operationState"]["startedAt"].as_str()
}

/// Finds the progress of an operation by its info, among what the application shows. `start_before` is the start of the
/// operation that was there before the request.
#[must_use]
pub fn find_progress<'a>(
    application: &'a Value,
    info: (&str, &str),
    start_before: Option<&str>,
) -> Progress<'a> {
    let state = &application["status"]["operationState"];
    let is_own = |operation: &Value| {
        let mut entries = operation["info"].as_array().into_iter().flatten();
        entries.any(|entry| entry["name"] == info.0 && entry["value"] == info.1)
    };
    let has_operation = application["operation"].is_object();
    if is_own(&application["operation"]) {
        return Progress::Running;
    }
    if !is_own(&state["operation"]) {
        let is_unchanged = !has_operation && state["startedAt"].as_str() == start_before;
        return if is_unchanged {
            Progress::Unseen
        } else {
            Progress::Replaced
        };
    }
    // Argo CD removes the field in the write that sets the final phase; one that is there again is another operation.
    let text = |field: &str| state[field].as_str().unwrap_or_default();
    match text("phase") {
        phase @ ("Succeeded" | "Failed" | "Error") => Progress::Ended {
            phase,
            message: text("message"),
            revision: state["syncResult"]["revision"].as_str(),
            finished_at: text("finishedAt"),
        },
        _ => Progress::Running,
    }
}
