//! Retention of finished Builds.

use concourse_api::{NamespacedName, is_finished, resolve_json};
use ostler_sdk::serde_json::Value;

/// Numbers of finished Builds to keep.
pub struct HistoryLimits {
    /// Builds that succeeded.
    pub succeeded: i32,
    /// Builds that failed, errored or were aborted.
    pub failed: i32,
}

/// The finished Builds of a job that exceed the limits. The newest ones are kept. Builds are read as JSON, of which
/// only the parts used here are fetched.
pub fn find_surplus<'a>(builds: &'a [Value], job: NamespacedName, limits: &HistoryLimits) -> Vec<&'a Value> {
    let mut finished: Vec<_> = builds
        .iter()
        .filter(|build| resolve_json(build, "jobRef") == job)
        .filter(|build| build["metadata"]["deletionTimestamp"].is_null())
        .filter_map(|build| Some((has_succeeded(build)?, build)))
        .collect();
    // Newest first: timestamps in the format of Kubernetes sort as texts.
    finished.sort_by(|a, b| age_key(b.1).cmp(&age_key(a.1)));
    let mut left = (limits.succeeded, limits.failed);
    finished.retain(|(succeeded, _)| {
        let left = if *succeeded { &mut left.0 } else { &mut left.1 };
        *left -= 1;
        *left < 0
    });
    finished.into_iter().map(|(_, build)| build).collect()
}

/// Returns whether a build succeeded; none while it has not finished.
fn has_succeeded(build: &Value) -> Option<bool> {
    let state = build["status"]["concourseStatus"].as_str();
    is_finished(state).then(|| state == Some("succeeded"))
}

/// Sort key of Builds by age. It includes the name, so that the order is stable.
fn age_key(build: &Value) -> (&str, i64, &str) {
    let metadata = &build["metadata"];
    let end_time = build["status"]["endTime"].as_str();
    let creation_time = metadata["creationTimestamp"].as_str();
    (
        end_time.or(creation_time).unwrap_or_default(),
        build["status"]["buildID"].as_i64().unwrap_or_default(),
        metadata["name"].as_str().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_sdk::serde_json::json;

    fn build(name: &str, job: &str, status: &str, end: u32) -> Value {
        json!({
            "metadata": { "name": name, "namespace": "apps", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "jobRef": { "name": job } },
            "status": { "concourseStatus": status, "endTime": format!("2026-01-01T00:{end:02}:00Z") },
        })
    }

    fn surplus_names(builds: &[Value], succeeded: i32, failed: i32) -> Vec<&str> {
        let job = NamespacedName {
            namespace: "apps",
            name: "unit",
        };
        find_surplus(builds, job, &HistoryLimits { succeeded, failed })
            .iter()
            .filter_map(|b| b["metadata"]["name"].as_str())
            .collect()
    }

    #[test]
    fn find_surplus_keeps_newest_of_each_result() {
        let builds = [
            build("s1", "unit", "succeeded", 1),
            build("s3", "unit", "succeeded", 3),
            build("s2", "unit", "succeeded", 2),
            build("f1", "unit", "failed", 4),
            build("f2", "unit", "errored", 5),
            build("f3", "unit", "aborted", 6),
        ];
        assert_eq!(surplus_names(&builds, 2, 1), ["f2", "f1", "s1"]);
        assert_eq!(surplus_names(&builds, 3, 3), [""; 0]);
        assert_eq!(surplus_names(&builds, 0, 0).len(), 6);
    }

    #[test]
    fn find_surplus_ignores_unfinished_deleted_and_foreign_builds() {
        let mut deleted = build("deleted", "unit", "succeeded", 1);
        deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        let mut elsewhere = build("elsewhere", "unit", "succeeded", 1);
        elsewhere["metadata"]["namespace"] = "other".into();
        let mut from_elsewhere = elsewhere.clone();
        from_elsewhere["metadata"]["name"] = "from-elsewhere".into();
        from_elsewhere["spec"]["jobRef"]["namespace"] = "apps".into();
        let builds = [
            build("running", "unit", "started", 1),
            build("waiting", "unit", "pending", 1),
            json!({ "metadata": { "name": "new", "namespace": "apps" }, "spec": { "jobRef": { "name": "unit" } } }),
            build("other", "build", "succeeded", 1),
            deleted,
            elsewhere,
            from_elsewhere,
        ];
        assert_eq!(surplus_names(&builds, 0, 0), ["from-elsewhere"]);
    }
}
