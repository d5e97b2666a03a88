//! The XML of items and credentials.

use roxmltree::{Document, ParsingOptions};

/// Prolog that Jenkins writes.
const JENKINS_PROLOG: &str = "<?xml version='1.1' encoding='UTF-8'?>\n";

/// Elements whose text is a secret.
const SECRET_ELEMENTS: [&str; 4] = ["password", "secret", "passphrase", "privateKey"];

/// Parses a document and returns the name of its root. Jenkins accepts XML 1.1, which the parser does not know.
pub fn root_name(xml: &str) -> Option<String> {
    read(xml, |document| {
        document.root_element().tag_name().name().to_owned()
    })
}

/// Returns the text of a child of the root.
pub fn child_text(xml: &str, name: &str) -> Option<String> {
    read(xml, |document| {
        let child = document
            .root_element()
            .children()
            .find(|node| node.has_tag_name(name))?;
        Some(child.text().unwrap_or_default().trim().to_owned())
    })
    .flatten()
}

/// Returns names and default values of the parameters that a pipeline defines; none if it has no such property.
pub fn parameters(xml: &str) -> Option<Vec<(String, String)>> {
    read(xml, |document| {
        let property = "hudson.model.ParametersDefinitionProperty";
        let property = document.descendants().find(|node| node.has_tag_name(property))?;
        let text = |node: roxmltree::Node, name: &str| {
            let child = node.children().find(|child| child.has_tag_name(name));
            child
                .and_then(|child| child.text())
                .unwrap_or_default()
                .to_owned()
        };
        let definitions = property.descendants().filter(|node| {
            let name = node.tag_name().name();
            name.starts_with("hudson.model.") && name.ends_with("ParameterDefinition")
        });
        Some(
            definitions
                .map(|node| (text(node, "name"), text(node, "defaultValue")))
                .collect(),
        )
    })
    .flatten()
}

/// Returns the Groovy script of a pipeline.
pub fn script(xml: &str) -> Option<String> {
    read(xml, |document| {
        let script = document.descendants().find(|node| node.has_tag_name("script"))?;
        script.text().map(str::to_owned)
    })
    .flatten()
}

/// Serializes a configuration as Jenkins does: with its prolog, and the plugin that owns the class as an attribute of
/// the root. It never equals what was sent.
pub fn reserialize(xml: &str) -> String {
    let body = without_prolog(xml).trim_start();
    let plugin = match root_name(xml).as_deref() {
        Some("flow-definition") => "workflow-job@1540.v295eccc9778f",
        Some("com.cloudbees.hudson.plugins.folder.Folder") => "cloudbees-folder@6.1012.v79a_86a_1ea_c1f",
        _ => "credentials@1408.va_622a_b_f5b_1b_1",
    };
    let end = body.find(['>', ' ', '/']).unwrap_or(body.len());
    let (name, rest) = body.split_at(end);
    format!("{JENKINS_PROLOG}{name} plugin=\"{plugin}\"{rest}")
}

/// Replaces the secrets by `<secret-redacted/>`.
pub fn redact(xml: &str) -> String {
    let mut redacted = xml.to_owned();
    for name in SECRET_ELEMENTS {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        if let Some(start) = redacted.find(&open).map(|at| at + open.len())
            && let Some(length) = redacted[start..].find(&close)
        {
            redacted.replace_range(start..start + length, "<secret-redacted/>");
        }
    }
    redacted
}

fn read<T>(xml: &str, read: impl FnOnce(&Document) -> T) -> Option<T> {
    let options = ParsingOptions::default();
    let document = Document::parse_with_options(without_prolog(xml), options).ok()?;
    Some(read(&document))
}

fn without_prolog(xml: &str) -> &str {
    let trimmed = xml.trim_start();
    match (trimmed.starts_with("<?xml"), trimmed.find("?>")) {
        (true, Some(end)) => &trimmed[end + 2..],
        _ => xml,
    }
}
