use serde_json::{Value, json};

use super::builds::Status;
use super::*;
use crate::config;

fn server(text: &str) -> (ConcourseModel, u64) {
    let mut model = ConcourseModel::new(
        Duration::from_secs(1000),
        vec![("a".into(), "p".into(), true)],
        vec![],
    );
    let config = config::parse_config(text).expect("a config");
    config::validate_config(&config).expect("a valid one");
    assert_eq!(model.save_config(1, "p", None, config, 0), SaveOutcome::Created);
    model.set_paused(1, None);
    (model, 1)
}

fn run(model: &mut ConcourseModel, job: &str) -> SimulatedBuild {
    let job = model.job(1, job).expect("the job").id;
    let id = model
        .trigger_build(Trigger::Job(job), Some("a"))
        .expect("a build");
    for _ in 0..20 {
        model.advance();
    }
    model.builds[&id].clone()
}

fn task(script: &str) -> String {
    format!("{{task: t, config: {{platform: linux, run: {{path: sh, args: [-c, '{script}']}}}}}}")
}

#[test]
fn first_failure_ends_a_build() {
    let (mut model, _) = server(&format!(
        "jobs: [{{name: j, plan: [{}, {}, {}], ensure: {}}}]",
        task("echo one"),
        task("exit 3"),
        task("echo never"),
        task("echo always")
    ));
    let build = run(&mut model, "j");
    assert_eq!(build.status, Status::Failed);
    let logs: Vec<&Value> = build
        .events
        .iter()
        .filter(|e| e["event"] == "log")
        .map(|e| &e["data"]["payload"])
        .collect();
    assert_eq!(logs, ["one\r\n", "always\r\n"]);
    let exits: Vec<i64> = build
        .events
        .iter()
        .filter_map(|e| e["data"]["exit_status"].as_i64())
        .collect();
    assert_eq!(exits, [0, 3, 0]);
}

#[test]
fn step_modifiers_change_the_build_result() {
    for (step, status) in [
        (format!("{{try: {}}}", task("exit 1")), Status::Succeeded),
        (
            format!("{{in_parallel: [{}, {}]}}", task("false"), task("true")),
            Status::Failed,
        ),
        (
            format!("{{do: [{}], on_failure: {}}}", task("false"), task("true")),
            Status::Failed,
        ),
        (
            format!("{{do: [{}], on_success: {}}}", task("true"), task("false")),
            Status::Failed,
        ),
    ] {
        let (mut model, _) = server(&format!("jobs: [{{name: j, plan: [{step}]}}]"));
        assert_eq!(run(&mut model, "j").status, status, "{step}");
    }
}

#[test]
fn clock_advances_one_step_at_a_time() {
    let (mut model, _) = server(&format!("jobs: [{{name: j, plan: [{}]}}]", task("sleep 2")));
    let id = model.trigger_build(Trigger::Job(1), None).expect("a build");
    let mut seen = Vec::new();
    for _ in 0..6 {
        seen.push(model.builds[&id].status);
        model.advance();
    }
    use Status::{Pending, Started, Succeeded};
    assert_eq!(seen, [Pending, Started, Started, Started, Started, Succeeded]);
}

#[test]
fn versions_trigger_jobs_and_jobs_trigger_jobs() {
    let (mut model, _) = server(
        "resources: [{name: r, type: git, source: {}}]\njobs:\n- {name: a, plan: [{get: r, trigger: true}]}\n\
         - {name: b, plan: [{get: r, trigger: true, passed: [a]}]}\n- {name: c, plan: [{get: r}]}\n",
    );
    let waiting = run(&mut model, "c");
    assert_eq!(waiting.status, Status::Pending, "there is no version");
    let version = json!({"ref": "1"}).as_object().expect("a map").clone();
    assert!(model.add_version(1, "r", version.clone()));
    assert!(!model.add_version(1, "nope", version.clone()));
    for _ in 0..9 {
        model.advance();
    }
    let ran: Vec<_> = model
        .builds
        .values()
        .map(|b| (b.job_id, b.status, b.inputs.clone()))
        .collect();
    let input = vec![("r".to_owned(), version)];
    assert_eq!(
        ran,
        [Some(3), Some(1), Some(2)].map(|job| (job, Status::Succeeded, input.clone()))
    );
}

#[test]
fn pauses_hold_builds() {
    let (mut model, pipeline) = server(&format!("jobs: [{{name: j, plan: [{}]}}]", task("true")));
    model.set_paused(pipeline, Some("a"));
    assert_eq!(run(&mut model, "j").status, Status::Pending);
    model.set_paused(pipeline, None);
    model.job_mut(1).expect("the job").paused = Some(("a".into(), 0));
    assert_eq!(run(&mut model, "j").status, Status::Pending);
    model.job_mut(1).expect("the job").paused = None;
    assert_eq!(run(&mut model, "j").name, "3");
    assert!(model.builds.values().all(|b| b.status == Status::Succeeded));
}

#[test]
fn saved_config_keeps_state_of_its_jobs() {
    let (mut model, pipeline) = server(&format!(
        "jobs: [{{name: j, plan: [{0}]}}, {{name: k, plan: [{0}]}}]",
        task("true")
    ));
    run(&mut model, "j");
    let renamed = config::parse_config(&format!(
        "jobs: [{{name: new, old_name: j, plan: [{}]}}]",
        task("true")
    ))
    .expect("a config");
    assert_eq!(
        model.save_config(1, "p", None, renamed.clone(), 7),
        SaveOutcome::Stale
    );
    assert_eq!(model.save_config(1, "p", None, renamed, 1), SaveOutcome::Updated);
    assert_eq!(
        model.job(pipeline, "new").map(|j| (j.id, j.triggered)),
        Some((1, 1))
    );
    assert!(model.job(pipeline, "k").is_none());
}

#[test]
fn tokens_and_passwords() {
    let (mut model, _) = server(&format!("jobs: [{{name: j, plan: [{}]}}]", task("true")));
    let user = SimulatedUser {
        name: "a".into(),
        has_identity: true,
    };
    model.store_token("t".into(), user.clone(), Duration::from_secs(5));
    model.set_password("a", "new");
    assert!(
        model.check_password("a", "new")
            && !model.check_password("a", "p")
            && !model.check_password("b", "new")
    );
    assert_eq!(
        model.token_user("t"),
        Some(user),
        "changing a password revokes no token"
    );
    model.now += Duration::from_secs(5);
    assert_eq!(model.token_user("t"), None);
}
