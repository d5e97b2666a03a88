//! What Concourse refuses in a config that it could read, and what it only warns of.

use std::collections::HashMap;

use serde_json::Value;

use super::steps::{core, each_step, resource_of, unknown};
use super::{Warning, identifier};

#[derive(Default)]
struct Findings {
    warnings: Vec<Warning>,
    errors: Vec<String>,
}

impl Findings {
    fn name(&mut self, name: &str, context: &str) {
        match identifier(name, context) {
            Ok(warning) => self.warnings.extend(warning),
            Err(error) => self.errors.push(error),
        }
    }
}

/// Gives warnings, or one error text per part of the config.
pub fn validate(config: &Value) -> Result<Vec<Warning>, Vec<String>> {
    let parts: [(&str, fn(&Value, &mut Findings)); 4] = [
        ("groups", groups),
        ("resources", resources),
        ("resource types", resource_types),
        ("jobs", jobs),
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

fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of[key].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_default()
}

fn texts<'a>(of: &'a Value, key: &str) -> impl Iterator<Item = &'a str> {
    list(of, key).iter().filter_map(Value::as_str)
}

fn named<'a>(config: &'a Value, key: &str, name: &str) -> Option<&'a Value> {
    list(config, key).iter().find(|item| text(item, "name") == name)
}

/// Names of a list: what each is called in messages, duplicates, missing ones.
fn names<'a>(
    config: &'a Value,
    key: &str,
    found: &mut Findings,
    mut each: impl FnMut(&'a Value, &str, &mut Findings),
) {
    let mut seen = HashMap::new();
    for (i, item) in list(config, key).iter().enumerate() {
        let name = text(item, "name");
        let called = if name.is_empty() {
            format!("{key}[{i}]")
        } else {
            format!("{key}.{name}")
        };
        found.name(name, &called);
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

fn groups(config: &Value, found: &mut Findings) {
    let mut count: Vec<(&str, usize)> = Vec::new();
    for (i, group) in list(config, "groups").iter().enumerate() {
        let name = text(group, "name");
        found.name(
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
            for member in texts(group, key) {
                // A group may name jobs by a pattern.
                if !list(config, key)
                    .iter()
                    .any(|item| glob(member, text(item, "name")))
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
    if !list(config, "groups").is_empty() {
        for job in list(config, "jobs").iter().map(|job| text(job, "name")) {
            if !list(config, "groups")
                .iter()
                .any(|g| texts(g, "jobs").any(|pattern| glob(pattern, job)))
            {
                found.errors.push(format!("job '{job}' belongs to no group"));
            }
        }
    }
}

/// `*` and `?`, as group members and `passed` may use them.
fn glob(pattern: &str, name: &str) -> bool {
    match pattern.chars().next() {
        None => name.is_empty(),
        Some('*') => name
            .char_indices()
            .map(|(i, _)| i)
            .chain([name.len()])
            .any(|i| glob(&pattern[1..], &name[i..])),
        Some(c) => match name.chars().next() {
            Some(n) if c == '?' || c == n => glob(&pattern[c.len_utf8()..], &name[n.len_utf8()..]),
            _ => false,
        },
    }
}

fn resources(config: &Value, found: &mut Findings) {
    names(config, "resources", found, |resource, called, found| {
        if text(resource, "type").is_empty() {
            found.errors.push(format!("{called} has no type"));
        }
    });
    for resource in list(config, "resources") {
        let name = text(resource, "name");
        if !list(config, "jobs").iter().any(|job| uses(job, name)) {
            found.errors.push(format!("resource '{name}' is not used"));
        }
    }
}

fn resource_types(config: &Value, found: &mut Findings) {
    names(config, "resource_types", found, |kind, called, found| {
        if text(kind, "type").is_empty() {
            found.errors.push(format!("{called} has no type"));
        }
    });
}

fn uses(job: &Value, resource: &str) -> bool {
    let mut found = false;
    each_step(job, &mut |step| found |= resource_of(step) == Some(resource));
    found
}

fn jobs(config: &Value, found: &mut Findings) {
    if list(config, "jobs").is_empty() {
        found
            .errors
            .push("jobs: pipeline must contain at least one job".into());
    }
    names(config, "jobs", found, |job, called, found| {
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
        let mut steps = Steps {
            config,
            found,
            gets: Vec::new(),
        };
        steps.sequence(list(job, "plan"), &format!("{called}.plan.do"), "");
        steps.hooks(job, &format!("{called}.plan"));
    });
}

struct Steps<'a, 'f> {
    config: &'a Value,
    found: &'f mut Findings,
    gets: Vec<&'a str>,
}

impl<'a> Steps<'a, '_> {
    fn sequence(&mut self, steps: &'a [Value], context: &str, each: &str) {
        for (i, step) in steps.iter().enumerate() {
            self.step(step, &format!("{context}{each}[{i}]"));
        }
    }

    fn error(&mut self, context: &str, message: impl std::fmt::Display) {
        self.found.errors.push(format!("{context}: {message}"));
    }

    fn step(&mut self, step: &'a Value, context: &str) {
        let Some(map) = step.as_object() else { return };
        let unknown = unknown(map);
        if !unknown.is_empty() {
            self.error(
                context,
                format!("unknown fields {unknown:?}").replace("\", \"", "\" \""),
            );
        }
        let core = core(map).unwrap_or_default();
        let name = text(step, core);
        let here = match core {
            "do" | "in_parallel" | "try" => format!("{context}.{core}"),
            _ => format!("{context}.{core}({name})"),
        };
        match core {
            "do" => self.sequence(list(step, "do"), &here, ""),
            "in_parallel" => self.sequence(list(&step["in_parallel"], "steps"), &here, ".steps"),
            "try" => self.step(&step["try"], &here),
            _ => self.found.name(name, &here),
        }
        match core {
            "get" | "put" => self.resource(step, core, name, &here),
            "task" => self.task(step, &here),
            "set_pipeline" | "load_var" if text(step, "file").is_empty() => {
                self.error(&here, "no file specified")
            }
            "run" if named(self.config, "prototypes", text(step, "type")).is_none() => {
                self.error(&here, format!("unknown prototype '{}'", text(step, "type")));
            }
            _ => {}
        }
        if step["attempts"].as_i64().is_some_and(|n| n <= 0) {
            self.error(&format!("{context}.attempts"), "must be greater than 0");
        }
        if let Some(timeout) = step["timeout"].as_str().filter(|t| !duration(t)) {
            self.error(
                &format!("{context}.timeout"),
                format!("invalid duration '{timeout}'"),
            );
        }
        self.hooks(step, context);
    }

    fn hooks(&mut self, of: &'a Value, context: &str) {
        for hook in ["on_success", "on_failure", "on_abort", "on_error", "ensure"] {
            if let Some(step) = of.get(hook) {
                self.step(step, &format!("{context}.{hook}"));
            }
        }
    }

    fn resource(&mut self, step: &'a Value, core: &str, name: &'a str, here: &str) {
        if core == "get" {
            if self.gets.contains(&name) {
                self.error(here, "repeated name");
            }
            self.gets.push(name);
        }
        let resource = resource_of(step).unwrap_or_default();
        if named(self.config, "resources", resource).is_none() {
            self.error(here, format!("unknown resource '{resource}'"));
        }
        for pattern in texts(step, "passed") {
            let passed = format!("{here}.passed");
            let mut jobs = list(self.config, "jobs")
                .iter()
                .filter(|job| glob(pattern, text(job, "name")))
                .peekable();
            if jobs.peek().is_none() {
                self.error(&passed, format!("unknown job '{pattern}'"));
            }
            for job in jobs.filter(|job| !uses(job, resource)) {
                self.error(
                    &passed,
                    format!(
                        "job '{}' does not interact with resource '{resource}'",
                        text(job, "name")
                    ),
                );
            }
        }
    }

    fn task(&mut self, step: &Value, here: &str) {
        match (step.get("config"), step.get("file")) {
            (None, None) => self.error(here, "must specify either `file:` or `config:`"),
            (Some(_), Some(_)) => self.error(here, "must specify one of `file:` or `config:`, not both"),
            _ => {}
        }
        let Some(config) = step.get("config") else { return };
        let inside = format!("{here}.config");
        if text(config, "platform").is_empty() {
            self.error(&inside, "missing 'platform'");
        }
        if text(&config["run"], "path").is_empty() {
            self.error(&inside, "missing path to executable to run");
        }
    }
}

/// Whether Go's `time.ParseDuration` takes it: numbers with units, or a bare zero.
fn duration(text: &str) -> bool {
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
