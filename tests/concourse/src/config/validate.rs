//! Validation of a parsed config: errors and warnings of Concourse.

use std::collections::HashMap;

use serde_json::Value;

use super::steps::{core_kind, step_resource, unknown_fields, visit_steps};
use super::{Warning, check_identifier};

#[derive(Default)]
struct Findings {
    warnings: Vec<Warning>,
    errors: Vec<String>,
}

impl Findings {
    fn check_name(&mut self, name: &str, context: &str) {
        match check_identifier(name, context) {
            Ok(warning) => self.warnings.extend(warning),
            Err(error) => self.errors.push(error),
        }
    }
}

/// Validates a config. Returns warnings, or one error text per part of the config.
pub fn validate_config(config: &Value) -> Result<Vec<Warning>, Vec<String>> {
    let parts: [(&str, fn(&Value, &mut Findings)); 4] = [
        ("groups", check_groups),
        ("resources", check_resources),
        ("resource types", check_resource_types),
        ("jobs", check_jobs),
    ];
    let (mut warnings, mut errors) = (Vec::new(), Vec::new());
    for (part, check) in parts {
        let mut findings = Findings::default();
        check(config, &mut findings);
        warnings.extend(findings.warnings);
        if !findings.errors.is_empty() {
            errors.push(format!(
                "invalid {part}:\n\t{}\n",
                findings.errors.join("\n").replace('\n', "\n\t")
            ));
        }
    }
    if errors.is_empty() {
        Ok(warnings)
    } else {
        Err(errors)
    }
}

fn list_field<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of[key].as_array().map_or(&[], Vec::as_slice)
}

fn text_field<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_default()
}

fn text_list<'a>(of: &'a Value, key: &str) -> impl Iterator<Item = &'a str> {
    list_field(of, key).iter().filter_map(Value::as_str)
}

fn find_named<'a>(config: &'a Value, key: &str, name: &str) -> Option<&'a Value> {
    list_field(config, key)
        .iter()
        .find(|item| text_field(item, "name") == name)
}

/// Checks the names of a list (valid, unique, present) and calls `each` with every item and its name in messages.
fn check_names<'a>(
    config: &'a Value,
    key: &str,
    found: &mut Findings,
    mut each: impl FnMut(&'a Value, &str, &mut Findings),
) {
    let mut seen = HashMap::new();
    for (i, item) in list_field(config, key).iter().enumerate() {
        let name = text_field(item, "name");
        let called = if name.is_empty() {
            format!("{key}[{i}]")
        } else {
            format!("{key}.{name}")
        };
        found.check_name(name, &called);
        if name.is_empty() {
            found.errors.push(format!("{called} has no name"));
        } else if let Some(other) = seen.get(name) {
            found.errors.push(format!(
                "{key}[{other}] and {key}[{i}] have the same name ('{name}')"
            ));
        } else {
            seen.insert(name, i);
        }
        each(item, &called, found);
    }
}

fn check_groups(config: &Value, found: &mut Findings) {
    let mut count: Vec<(&str, usize)> = Vec::new();
    for (i, group) in list_field(config, "groups").iter().enumerate() {
        let name = text_field(group, "name");
        found.check_name(
            name,
            &if name.is_empty() {
                format!("groups[{i}]")
            } else {
                format!("groups.{name}")
            },
        );
        match count.iter_mut().find(|c| c.0 == name) {
            Some(known) => known.1 += 1,
            None => count.push((name, 1)),
        }
        for (key, what) in [("jobs", "job"), ("resources", "resource")] {
            for member in text_list(group, key) {
                // A group may refer to jobs by a pattern.
                if !list_field(config, key)
                    .iter()
                    .any(|item| matches_glob(member, text_field(item, "name")))
                {
                    found
                        .errors
                        .push(format!("group '{name}' has unknown {what} '{member}'"));
                }
            }
        }
    }
    for (name, times) in count.into_iter().filter(|c| c.1 > 1) {
        found.errors.push(format!(
            "group '{name}' appears {times} times. Duplicate names are not allowed."
        ));
    }
    if !list_field(config, "groups").is_empty() {
        for job in list_field(config, "jobs")
            .iter()
            .map(|job| text_field(job, "name"))
        {
            if !list_field(config, "groups")
                .iter()
                .any(|g| text_list(g, "jobs").any(|pattern| matches_glob(pattern, job)))
            {
                found.errors.push(format!("job '{job}' belongs to no group"));
            }
        }
    }
}

/// Matches a name against a pattern with `*` and `?`, as in group members and `passed`.
fn matches_glob(pattern: &str, name: &str) -> bool {
    match pattern.chars().next() {
        None => name.is_empty(),
        Some('*') => name
            .char_indices()
            .map(|(i, _)| i)
            .chain([name.len()])
            .any(|i| matches_glob(&pattern[1..], &name[i..])),
        Some(c) => match name.chars().next() {
            Some(n) if c == '?' || c == n => matches_glob(&pattern[c.len_utf8()..], &name[n.len_utf8()..]),
            _ => false,
        },
    }
}

fn check_resources(config: &Value, found: &mut Findings) {
    check_names(config, "resources", found, |resource, called, found| {
        if text_field(resource, "type").is_empty() {
            found.errors.push(format!("{called} has no type"));
        }
    });
    for resource in list_field(config, "resources") {
        let name = text_field(resource, "name");
        if !list_field(config, "jobs")
            .iter()
            .any(|job| uses_resource(job, name))
        {
            found.errors.push(format!("resource '{name}' is not used"));
        }
    }
}

fn check_resource_types(config: &Value, found: &mut Findings) {
    check_names(config, "resource_types", found, |kind, called, found| {
        if text_field(kind, "type").is_empty() {
            found.errors.push(format!("{called} has no type"));
        }
    });
}

fn uses_resource(job: &Value, resource: &str) -> bool {
    let mut found = false;
    visit_steps(job, &mut |step| found |= step_resource(step) == Some(resource));
    found
}

fn check_jobs(config: &Value, found: &mut Findings) {
    if list_field(config, "jobs").is_empty() {
        found
            .errors
            .push("jobs: pipeline must contain at least one job".into());
    }
    check_names(config, "jobs", found, |job, called, found| {
        let retain = job["build_logs_to_retain"].as_i64().unwrap_or_default();
        if retain != 0 && !job["build_log_retention"].is_null() {
            found.errors.push(format!(
                "{called} can't use both build_log_retention and build_logs_to_retain"
            ));
        } else if retain < 0 {
            found
                .errors
                .push(format!("{called} has negative build_logs_to_retain: {retain}"));
        }
        let mut steps = StepChecker {
            config,
            found,
            gets: Vec::new(),
        };
        steps.check_sequence(list_field(job, "plan"), &format!("{called}.plan.do"), "");
        steps.check_hooks(job, &format!("{called}.plan"));
    });
}

struct StepChecker<'a, 'f> {
    config: &'a Value,
    found: &'f mut Findings,
    gets: Vec<&'a str>,
}

impl<'a> StepChecker<'a, '_> {
    fn check_sequence(&mut self, steps: &'a [Value], context: &str, each: &str) {
        for (i, step) in steps.iter().enumerate() {
            self.check_step(step, &format!("{context}{each}[{i}]"));
        }
    }

    fn add_error(&mut self, context: &str, message: impl std::fmt::Display) {
        self.found.errors.push(format!("{context}: {message}"));
    }

    fn check_step(&mut self, step: &'a Value, context: &str) {
        let Some(map) = step.as_object() else { return };
        let unknown = unknown_fields(map);
        if !unknown.is_empty() {
            self.add_error(
                context,
                format!("unknown fields {unknown:?}").replace("\", \"", "\" \""),
            );
        }
        let core = core_kind(map).unwrap_or_default();
        let name = text_field(step, core);
        let here = match core {
            "do" | "in_parallel" | "try" => format!("{context}.{core}"),
            _ => format!("{context}.{core}({name})"),
        };
        match core {
            "do" => self.check_sequence(list_field(step, "do"), &here, ""),
            "in_parallel" => self.check_sequence(list_field(&step["in_parallel"], "steps"), &here, ".steps"),
            "try" => self.check_step(&step["try"], &here),
            _ => self.found.check_name(name, &here),
        }
        match core {
            "get" | "put" => self.check_resource(step, core, name, &here),
            "task" => self.check_task(step, &here),
            "set_pipeline" | "load_var" if text_field(step, "file").is_empty() => {
                self.add_error(&here, "no file specified")
            }
            "run" if find_named(self.config, "prototypes", text_field(step, "type")).is_none() => {
                self.add_error(&here, format!("unknown prototype '{}'", text_field(step, "type")));
            }
            _ => {}
        }
        if step["attempts"].as_i64().is_some_and(|n| n <= 0) {
            self.add_error(&format!("{context}.attempts"), "must be greater than 0");
        }
        if let Some(timeout) = step["timeout"].as_str().filter(|t| !is_go_duration(t)) {
            self.add_error(
                &format!("{context}.timeout"),
                format!("invalid duration '{timeout}'"),
            );
        }
        self.check_hooks(step, context);
    }

    fn check_hooks(&mut self, of: &'a Value, context: &str) {
        for hook in ["on_success", "on_failure", "on_abort", "on_error", "ensure"] {
            if let Some(step) = of.get(hook) {
                self.check_step(step, &format!("{context}.{hook}"));
            }
        }
    }

    fn check_resource(&mut self, step: &'a Value, core: &str, name: &'a str, here: &str) {
        if core == "get" {
            if self.gets.contains(&name) {
                self.add_error(here, "repeated name");
            }
            self.gets.push(name);
        }
        let resource = step_resource(step).unwrap_or_default();
        if find_named(self.config, "resources", resource).is_none() {
            self.add_error(here, format!("unknown resource '{resource}'"));
        }
        for pattern in text_list(step, "passed") {
            let passed = format!("{here}.passed");
            let mut jobs = list_field(self.config, "jobs")
                .iter()
                .filter(|job| matches_glob(pattern, text_field(job, "name")))
                .peekable();
            if jobs.peek().is_none() {
                self.add_error(&passed, format!("unknown job '{pattern}'"));
            }
            for job in jobs.filter(|job| !uses_resource(job, resource)) {
                self.add_error(
                    &passed,
                    format!(
                        "job '{}' does not interact with resource '{resource}'",
                        text_field(job, "name")
                    ),
                );
            }
        }
    }

    fn check_task(&mut self, step: &Value, here: &str) {
        match (step.get("config"), step.get("file")) {
            (None, None) => self.add_error(here, "must specify either `file:` or `config:`"),
            (Some(_), Some(_)) => self.add_error(here, "must specify one of `file:` or `config:`, not both"),
            _ => {}
        }
        let Some(config) = step.get("config") else { return };
        let inside = format!("{here}.config");
        if text_field(config, "platform").is_empty() {
            self.add_error(&inside, "missing 'platform'");
        }
        if text_field(&config["run"], "path").is_empty() {
            self.add_error(&inside, "missing path to executable to run");
        }
    }
}

/// Returns whether Go's `time.ParseDuration` accepts a text: numbers with units, or a bare zero.
fn is_go_duration(text: &str) -> bool {
    let mut rest = text.trim_start_matches(['+', '-']);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (digits, after) = rest.split_at(number);
        let Some(unit) = ["ns", "us", "µs", "ms", "s", "m", "h"].into_iter().find(|u| {
            after
                .strip_prefix(u)
                .is_some_and(|r| r.is_empty() || r.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
        }) else {
            return false;
        };
        if digits.parse::<f64>().is_err() {
            return false;
        }
        rest = &after[unit.len()..];
    }
    true
}
