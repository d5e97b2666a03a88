//! Scripts of declarative pipelines.

use std::fmt::Write;

use devops_api::JenkinsSetting;

use crate::{credentials::GIT_CREDENTIAL_ID, definition::JenkinsPipeline, source::DefinitionSource};

/// Parameter by which a deployment finds its build.
pub const DEPLOYMENT_PARAMETER: &str = "DEPLOYMENT_ID";

/// Builds the script of a pipeline for an environment.
pub fn build(
    setting: &JenkinsSetting,
    source: &DefinitionSource,
    environment: &str,
    pipeline: &JenkinsPipeline,
) -> String {
    let mut script = Script::default();
    script.open("pipeline");
    match &pipeline.agent {
        Some(label) => script.line(&format!("agent {{ label {} }}", quote(label))),
        None => script.line("agent any"),
    }
    script.open("options");
    script.line(&format!(
        "timeout(time: {}, unit: 'MINUTES')",
        pipeline.timeout_minutes
    ));
    script.line("skipDefaultCheckout()");
    script.close();
    script.open("environment");
    script.line(&format!("ENVIRONMENT = {}", quote(environment)));
    for (name, value) in &pipeline.environment {
        script.line(&format!("{name} = {}", quote(value)));
    }
    for binding in &pipeline.credentials {
        script.line(&format!(
            "{} = credentials({})",
            binding.variable,
            quote(&binding.id)
        ));
    }
    script.close();
    script.open("stages");
    script.open("stage('Checkout')");
    script.open("steps");
    script.line(&checkout(setting, source));
    script.close();
    script.close();
    for stage in &pipeline.stages {
        script.open(&format!("stage({})", quote(&stage.name)));
        script.open("steps");
        for step in &stage.steps {
            script.line(&format!("sh {}", quote(step)));
        }
        script.close();
        script.close();
    }
    script.close();
    script.close();
    script.text
}

/// The step that checks the revision out. The URL and the revision are those of the spec; `checkout` takes branches and
/// tags alike.
fn checkout(setting: &JenkinsSetting, source: &DefinitionSource) -> String {
    let credentials = match source.has_password {
        true => format!(", credentialsId: {}", quote(GIT_CREDENTIAL_ID)),
        false => String::new(),
    };
    format!(
        "checkout([$class: 'GitSCM', branches: [[name: {}]], userRemoteConfigs: [[url: {}{credentials}]]])",
        quote(&setting.spec.git.revision),
        quote(&source.url),
    )
}

/// Quotes a text as a Groovy string in single quotes, which has no interpolation.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from("'");
    for character in text.chars() {
        match character {
            '\\' => quoted.push_str("\\\\"),
            '\'' => quoted.push_str("\\'"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            character if character.is_control() || !character.is_ascii() => {
                // In UTF-16, as Java has it.
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(quoted, "\\u{unit:04x}");
                }
            }
            character => quoted.push(character),
        }
    }
    quoted.push('\'');
    quoted
}

/// A script, indented by its blocks.
#[derive(Default)]
struct Script {
    text: String,
    depth: usize,
}

impl Script {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{:indent$}{line}", "", indent = self.depth * 2);
    }

    fn open(&mut self, block: &str) {
        self.line(&format!("{block} {{"));
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_cannot_end_the_string_or_be_interpolated() {
        assert_eq!(quote("a'b"), r"'a\'b'");
        assert_eq!(quote(r"a\'b"), r"'a\\\'b'");
        assert_eq!(quote("${evil} $x"), "'${evil} $x'");
        assert_eq!(quote("a\nb\r\u{0}"), r"'a\nb\r\u0000'");
        assert_eq!(quote("ä😀"), r"'\u00e4\ud83d\ude00'");
        // Groovy would decode this before it parses, unless the backslash is escaped.
        assert_eq!(quote(r"\u0027"), r"'\\u0027'");
    }
}
