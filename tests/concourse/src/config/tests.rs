use serde_json::json;

use super::*;

fn errors(text: &str) -> Vec<String> {
    match parse_config(text) {
        Ok(config) => validate_config(&config).expect_err("it should not be valid"),
        Err(error) => vec![error],
    }
}

#[test]
fn config_is_normalised_as_by_concourse() {
    let config = parse_config(
        "x-anchor: &a {ignored: true}\nresources:\n- {name: r, type: git, source: {}, check_every: 1m, tags: [], public: false}\n\
         jobs:\n- name: 5\n  serial: true\n  plan:\n  - in_parallel:\n    - get: r\n      trigger: false\n  \
         - task: t\n    attempts: 2\n    config: {platform: linux, params: {A: 1, B: true}, run: {path: x}, nonsense: 1}\n",
    );
    assert_eq!(
        config.expect("it parses"),
        json!({
            "resources": [{"name": "r", "type": "git", "source": {}, "check_every": "1m"}],
            "jobs": [{"name": "5", "serial": true, "plan": [
                {"in_parallel": {"steps": [{"get": "r"}]}},
                {"task": "t", "attempts": 2, "config": {"platform": "linux", "params": {"A": "1", "B": "true"}, "run": {"path": "x"}}},
            ]}],
        })
    );
}

#[test]
fn json_config_is_accepted() {
    let text = r#"{"jobs": [{"name": "j", "plan": [{"task": "t", "file": "f"}]}]}"#;
    let config = parse_config(text).expect("it parses");
    assert_eq!(config, serde_json::from_str::<Value>(text).expect("JSON"));
    assert_eq!(validate_config(&config), Ok(vec![]));
}

#[test]
fn wrong_type_is_named_with_its_path() {
    let said = "malformed config: error unmarshaling JSON: while decoding JSON: ";
    for (text, error) in [
        (
            "resources: 5",
            "json: cannot unmarshal number into Go struct field Config.resources of type atc.ResourceConfigs",
        ),
        (
            "jobs: [{name: [x]}]",
            "json: cannot unmarshal array into Go struct field JobConfig.jobs.name of type string",
        ),
        (
            "jobs: [{name: x, serial: 7}]",
            "json: cannot unmarshal number into Go struct field JobConfig.jobs.serial of type bool",
        ),
        (
            "groups: [{name: x, colour: red}]",
            "json: unknown field \"colour\"",
        ),
        (
            "jobs: [{name: x, plan: [{timeout: 1h}]}]",
            "no core step type declared (e.g. get, put, task, etc.)",
        ),
        ("jobs: [{name: x, plan: [{nothing: 1h}]}]", "no step configured"),
        (
            "5",
            "json: cannot unmarshal number into Go value of type atc.Config",
        ),
    ] {
        assert_eq!(errors(text), [format!("{said}{error}")], "{text}");
    }
}

#[test]
fn yaml_syntax_error_has_its_position() {
    assert_eq!(
        errors("jobs:\n- {name: x\n"),
        ["malformed config: error converting YAML to JSON: yaml: line 2: did not find expected node content"]
    );
}

#[test]
fn invalid_config_lists_all_errors() {
    assert_eq!(
        errors(
            "groups: [{name: g, jobs: [nope]}, {name: g}]\nresources: [{name: unused, type: t}, {name: r}]\njobs:\n\
             - {name: j, plan: [{get: r, passed: [nay, k]}, {get: r}, {put: gone, timeout: soon}, {task: t, bogus: 1}]}\n\
             - {name: k, plan: [{task: t, config: {}, attempts: 0, on_failure: {get: lost}}]}\n\
             - {name: k, plan: [{try: {load_var: v}}]}\n"
        ),
        [
            "invalid groups:\n\tgroup 'g' has unknown job 'nope'\n\tgroup 'g' appears 2 times. Duplicate names are not allowed.\n\
             \tjob 'j' belongs to no group\n\tjob 'k' belongs to no group\n\tjob 'k' belongs to no group\n",
            "invalid resources:\n\tresources.r has no type\n\tresource 'unused' is not used\n",
            "invalid jobs:\n\
             \tjobs.j.plan.do[0].get(r).passed: unknown job 'nay'\n\
             \tjobs.j.plan.do[0].get(r).passed: job 'k' does not interact with resource 'r'\n\
             \tjobs.j.plan.do[0].get(r).passed: job 'k' does not interact with resource 'r'\n\
             \tjobs.j.plan.do[1].get(r): repeated name\n\
             \tjobs.j.plan.do[2].put(gone): unknown resource 'gone'\n\
             \tjobs.j.plan.do[2].timeout: invalid duration 'soon'\n\
             \tjobs.j.plan.do[3]: unknown fields [\"bogus\"]\n\
             \tjobs.j.plan.do[3].task(t): must specify either `file:` or `config:`\n\
             \tjobs.k.plan.do[0].task(t).config: missing 'platform'\n\
             \tjobs.k.plan.do[0].task(t).config: missing path to executable to run\n\
             \tjobs.k.plan.do[0].attempts: must be greater than 0\n\
             \tjobs.k.plan.do[0].on_failure.get(lost): unknown resource 'lost'\n\
             \tjobs[1] and jobs[2] have the same name ('k')\n\
             \tjobs.k.plan.do[0].try.load_var(v): no file specified\n",
        ]
    );
}

#[test]
fn unusual_names_only_warn() {
    let message = |name| {
        check_identifier(name, "team")
            .expect("not empty")
            .map(|w| w.message)
    };
    assert_eq!(message("a-1_b.c"), None);
    assert_eq!(message("1a"), None);
    assert_eq!(
        message("A").as_deref(),
        Some("team: 'A' is not a valid identifier: must start with a lowercase letter or a number")
    );
    assert_eq!(
        message("a b").as_deref(),
        Some("team: 'a b' is not a valid identifier: illegal character ' '")
    );
    assert!(check_identifier("", "team").is_err());
}
