//! Which Builds are kept.

use concourse_api::{finished, target};
use ostler_sdk::serde_json::Value;

/// The finished Builds of a job that are more than are to be kept, oldest last among those that stay. Of the ones
/// that succeeded and of all others so many stay.
pub fn surplus<'a>(builds: &'a [Value], job: (&str, &str), succeeded: i32, failed: i32) -> Vec<&'a Value> {
    let mut finished: Vec<_> = builds
        .iter()
        .filter(|build| target(build, "jobRef") == job)
        .filter(|build| build["metadata"]["deletionTimestamp"].is_null())
        .filter_map(|build| Some((ended(build)?, build)))
        .collect();
    // Newest first; times as Kubernetes writes them are ordered as texts are.
    finished.sort_by(|a, b| age(b.1).cmp(&age(a.1)));
    let mut left = [failed, succeeded];
    finished.retain(|(succeeded, _)| {
        let left = &mut left[usize::from(*succeeded)];
        *left -= 1;
        *left < 0
    });
    finished.into_iter().map(|(_, build)| build).collect()
}

/// Whether it succeeded; none while it has not finished.
fn ended(build: &Value) -> Option<bool> {
    let status = build["status"]["concourseStatus"].as_str();
    finished(status).then(|| status == Some("succeeded"))
}

/// What Builds are ordered by; the name makes it the same order each time.
fn age(build: &Value) -> (&str, i64, &str) {
    let metadata = &build["metadata"];
    let end = build["status"]["endTime"].as_str();
    (
        end.or(metadata["creationTimestamp"].as_str()).unwrap_or_default(),
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

    fn names(builds: &[Value], succeeded: i32, failed: i32) -> Vec<&str> {
        let surplus = surplus(builds, ("apps", "unit"), succeeded, failed);
        surplus
            .iter()
            .filter_map(|b| b["metadata"]["name"].as_str())
            .collect()
    }

    #[test]
    fn the_newest_of_each_sort_stay() {
        let builds = [
            build("s1", "unit", "succeeded", 1),
            build("s3", "unit", "succeeded", 3),
            build("s2", "unit", "succeeded", 2),
            build("f1", "unit", "failed", 4),
            build("f2", "unit", "errored", 5),
            build("f3", "unit", "aborted", 6),
        ];
        assert_eq!(names(&builds, 2, 1), ["f2", "f1", "s1"]);
        assert_eq!(names(&builds, 3, 3), [""; 0]);
        assert_eq!(names(&builds, 0, 0).len(), 6);
    }

    #[test]
    fn what_runs_goes_or_is_of_another_job_is_left_alone() {
        let mut going = build("going", "unit", "succeeded", 1);
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
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
            going,
            elsewhere,
            from_elsewhere,
        ];
        assert_eq!(names(&builds, 0, 0), ["from-elsewhere"]);
    }
}
