//! The file that defines the pipelines of a project.

use std::collections::{BTreeMap, BTreeSet};

use ostler_sdk::{api, from_value};

use crate::{config::is_item_name, groovy::DEPLOYMENT_PARAMETER, xml::is_xml};

/// Limit of the file.
pub const MAX_DEFINITION_BYTES: usize = 256 << 10;
/// Limit of the pipelines in it, each of which is read at every poll.
const MAX_PIPELINES: usize = 50;
/// Limit of the minutes that a pipeline may run.
const MAX_TIMEOUT_MINUTES: u32 = 10_080;

/// The definition.
#[api]
pub struct PipelineDefinition {
    /// Pipelines, which every environment has.
    pub pipelines: Vec<JenkinsPipeline>,
}

/// A pipeline.
#[api]
pub struct JenkinsPipeline {
    /// Its name.
    pub name: String,
    /// Its description.
    #[serde(default)]
    pub description: String,
    /// Label of the agents that may run it; any agent without one.
    pub agent: Option<String>,
    /// Minutes after which it is aborted.
    #[serde(default = "default_timeout")]
    pub timeout_minutes: u32,
    /// Parameters, besides the DEPLOYMENT_ID that every pipeline has.
    pub parameters: Vec<Parameter>,
    /// Environment variables.
    pub environment: BTreeMap<String, String>,
    /// Credentials in environment variables.
    pub credentials: Vec<Binding>,
    /// Stages, after that which checks the repository out.
    pub stages: Vec<JenkinsStage>,
}

fn default_timeout() -> u32 {
    60
}

/// A parameter.
#[api]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its default.
    #[serde(default)]
    pub default: String,
    /// Its description.
    #[serde(default)]
    pub description: String,
}

/// Credentials in an environment variable.
#[api]
pub struct Binding {
    /// ID of the credentials.
    pub id: String,
    /// The variable.
    pub variable: String,
}

/// A stage.
#[api]
pub struct JenkinsStage {
    /// Its name.
    pub name: String,
    /// Shell commands.
    pub steps: Vec<String>,
}

impl PipelineDefinition {
    /// Parses and checks a definition.
    ///
    /// # Errors
    /// What is wrong with it, by its field.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(character) = text.chars().find(|character| !is_xml(*character)) {
            let code = u32::from(character);
            return Err(format!("it has the control character U+{code:04X}"));
        }
        let value = ostler_yaml::parse(text)?;
        let definition: Self = from_value(&value).map_err(|error| error.text())?;
        definition.check()?;
        Ok(definition)
    }

    fn check(&self) -> Result<(), String> {
        if self.pipelines.len() > MAX_PIPELINES {
            return Err(format!("it has more than {MAX_PIPELINES} pipelines"));
        }
        // Jenkins may run on a file system that ignores case.
        let mut names = BTreeSet::new();
        for pipeline in &self.pipelines {
            let name = &pipeline.name;
            if !is_item_name(name) {
                return Err(format!("\"{name}\" cannot be the name of a pipeline"));
            }
            if !names.insert(name.to_lowercase()) {
                return Err(format!("it has the pipeline {name} twice"));
            }
            pipeline
                .check()
                .map_err(|problem| format!("pipeline {name}: {problem}"))?;
        }
        Ok(())
    }
}

impl JenkinsPipeline {
    fn check(&self) -> Result<(), String> {
        if !(1..=MAX_TIMEOUT_MINUTES).contains(&self.timeout_minutes) {
            return Err(format!(
                "timeoutMinutes is not between 1 and {MAX_TIMEOUT_MINUTES}"
            ));
        }
        let parameters = self.parameters.iter().map(|parameter| &parameter.name);
        check_names("parameter", parameters, DEPLOYMENT_PARAMETER)?;
        let bindings = self.credentials.iter().map(|binding| &binding.variable);
        check_names("variable", self.environment.keys().chain(bindings), "ENVIRONMENT")?;
        if self.stages.is_empty() {
            return Err("it has no stages".into());
        }
        let mut names = BTreeSet::from(["Checkout"]);
        for stage in &self.stages {
            if stage.name.trim().is_empty() || !names.insert(&stage.name) {
                return Err(format!("the stage \"{}\" has no name of its own", stage.name));
            }
            if stage.steps.is_empty() {
                return Err(format!("the stage {} has no steps", stage.name));
            }
        }
        Ok(())
    }
}

/// Checks that names are those of shell variables, and different.
fn check_names<'a>(
    what: &str,
    names: impl Iterator<Item = &'a String>,
    reserved: &'a str,
) -> Result<(), String> {
    let mut seen = BTreeSet::from([reserved]);
    for name in names {
        let mut bytes = name.bytes();
        let is_start = bytes
            .next()
            .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        if !is_start || !bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(format!("\"{name}\" cannot be the name of a {what}"));
        }
        if !seen.insert(name) {
            return Err(format!("the {what} {name} is there twice, or set by Ostler"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_has_defaults() {
        let text = "pipelines:\n- name: build\n  stages:\n  - name: Test\n    steps: [make test]\n";
        let definition = PipelineDefinition::parse(text).expect("valid");
        let pipeline = &definition.pipelines[0];
        assert_eq!((pipeline.timeout_minutes, pipeline.agent.as_deref()), (60, None));
        assert!(
            PipelineDefinition::parse("pipelines: []")
                .expect("valid")
                .pipelines
                .is_empty()
        );
    }

    #[test]
    fn invalid_definitions_are_refused_with_the_cause() {
        let pipeline = |rest: &str| format!("pipelines:\n- name: build\n{rest}");
        let stages = "  stages: [{name: Test, steps: [make]}]\n";
        for (text, cause) in [
            ("pipelines: {".to_owned(), ""),
            ("pipelines: 5".to_owned(), "pipelines"),
            ("- a".to_owned(), ""),
            ("pipelines: [{name: a/b, stages: []}]".to_owned(), "a/b"),
            (
                "pipelines: [{name: ..., stages: []}]".to_owned(),
                "name of a pipeline",
            ),
            (pipeline(""), "stages"),
            (pipeline("  stages: []\n"), "no stages"),
            (pipeline("  stages: [{name: Checkout, steps: [a]}]\n"), "Checkout"),
            (pipeline("  stages: [{name: A, steps: []}]\n"), "no steps"),
            (
                pipeline(&format!("  timeoutMinutes: 0\n{stages}")),
                "timeoutMinutes",
            ),
            (
                pipeline(&format!("  parameters: [{{name: DEPLOYMENT_ID}}]\n{stages}")),
                "DEPLOYMENT_ID",
            ),
            (pipeline(&format!("  environment: {{'a b': x}}\n{stages}")), "a b"),
            (
                pipeline(&format!("  environment: {{ENVIRONMENT: x}}\n{stages}")),
                "ENVIRONMENT",
            ),
            (
                pipeline(&format!(
                    "  environment: {{A: x}}\n  credentials: [{{id: a, variable: A}}]\n{stages}"
                )),
                "A is there twice",
            ),
            (pipeline(&format!("{stages}- name: BUILD\n{stages}")), "twice"),
            (
                pipeline(&format!("  description: a\u{1b}b\n{stages}")),
                "control character",
            ),
        ] {
            let error = PipelineDefinition::parse(&text).expect_err(&text);
            assert!(error.contains(cause), "{text}: {error}");
        }
    }
}
