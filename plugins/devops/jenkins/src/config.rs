//! The configurations of folders and pipelines (`config.xml`).

use std::fmt::Write;

use devops_api::JenkinsSetting;
use ostler_sdk::Failure;
use sha2::{Digest, Sha256};

use crate::{
    definition::{JenkinsPipeline, Parameter},
    groovy::{self, DEPLOYMENT_PARAMETER},
    mark,
    source::DefinitionSource,
    xml::escape,
};

/// Characters that Jenkins refuses in names, and those that end a segment of a path.
const FORBIDDEN_CHARACTERS: &str = "?*/\\%!@#$^&|<>[]:;";

/// Bytes of a configuration's hash in its description.
const HASH_BYTES: usize = 12;

/// What Jenkins should have.
pub struct DesiredSettings {
    /// The pipelines of all environments.
    pub pipelines: Vec<DesiredPipeline>,
}

/// A pipeline of an environment.
pub struct DesiredPipeline {
    /// The environment, which is its folder.
    pub environment: String,
    /// Its name.
    pub name: String,
    /// Its Groovy script.
    pub script: String,
    /// Hash of its configuration.
    pub hash: String,
    /// Its configuration.
    pub config: String,
}

/// Builds the pipelines of all environments.
pub fn build(setting: &JenkinsSetting, source: &DefinitionSource) -> Result<DesiredSettings, Failure> {
    let mut pipelines = Vec::new();
    for environment in &setting.spec.environments {
        for pipeline in &source.definition.pipelines {
            let script = groovy::build(setting, source, environment, pipeline);
            let hash = hash(&build_pipeline(pipeline, &script, ""));
            let description = mark::describe(setting, &pipeline.description, &hash);
            pipelines.push(DesiredPipeline {
                environment: environment.clone(),
                name: pipeline.name.clone(),
                config: build_pipeline(pipeline, &script, &description),
                script,
                hash,
            });
        }
    }
    Ok(DesiredSettings { pipelines })
}

/// Builds the configuration of a folder.
pub fn build_folder(setting: &JenkinsSetting, text: &str) -> String {
    let description = escape(&mark::describe(setting, text, ""));
    format!(
        "<?xml version='1.1' encoding='UTF-8'?>\n<com.cloudbees.hudson.plugins.folder.Folder>\
         <description>{description}</description><properties/>\
         </com.cloudbees.hudson.plugins.folder.Folder>"
    )
}

fn build_pipeline(pipeline: &JenkinsPipeline, script: &str, description: &str) -> String {
    let deployment = Parameter {
        name: DEPLOYMENT_PARAMETER.into(),
        default: String::new(),
        description: "The deployment that the build belongs to.".into(),
    };
    let mut parameters = String::new();
    for parameter in std::iter::once(&deployment).chain(&pipeline.parameters) {
        let _ = write!(
            parameters,
            "<hudson.model.StringParameterDefinition><name>{}</name><description>{}</description>\
             <defaultValue>{}</defaultValue><trim>false</trim></hudson.model.StringParameterDefinition>",
            escape(&parameter.name),
            escape(&parameter.description),
            escape(&parameter.default),
        );
    }
    let (description, script) = (escape(description), escape(script));
    // In the sandbox: a script without it waits for an administrator's approval.
    format!(
        "<?xml version='1.1' encoding='UTF-8'?>\n<flow-definition><description>{description}</description>\
         <keepDependencies>false</keepDependencies><properties><hudson.model.ParametersDefinitionProperty>\
         <parameterDefinitions>{parameters}</parameterDefinitions></hudson.model.ParametersDefinitionProperty>\
         </properties><definition class=\"org.jenkinsci.plugins.workflow.cps.CpsFlowDefinition\">\
         <script>{script}</script><sandbox>true</sandbox></definition><triggers/><disabled>false</disabled>\
         </flow-definition>"
    )
}

/// Jenkins accepts the name of an item as it is.
pub fn is_item_name(name: &str) -> bool {
    let is_allowed = |c: char| !c.is_control() && !FORBIDDEN_CHARACTERS.contains(c);
    !name.is_empty()
        && name.len() <= 128
        && name.chars().all(is_allowed)
        && name.trim() == name
        && !name.ends_with('.')
}

/// A hash that changes with a text.
pub fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest[..HASH_BYTES]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
