//! Folders and pipelines in Jenkins.

use devops_api::{JenkinsPipelineState, JenkinsSetting, job_path};
use devops_jenkins_client::JenkinsServer;
use ostler_sdk::{Response, prelude::*, serde_json::Value};

use crate::{
    config::{self, DesiredPipeline, DesiredSettings},
    credentials, mark, pipeline_state, xml,
};

/// What is read of the project's folder and of what is in it.
const PROJECT_TREE: &str = "api/json?tree=_class,name,description,\
                            jobs[_class,name,description,jobs[_class,name,description]]";

/// Class of a folder.
const FOLDER_CLASS: &str = "com.cloudbees.hudson.plugins.folder.Folder";

/// A folder, or a pipeline, which has no children.
pub struct JenkinsItem {
    /// Its name.
    pub name: String,
    description: String,
    is_folder: bool,
    children: Vec<JenkinsItem>,
}

impl JenkinsItem {
    fn parse(value: &Value) -> Self {
        let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        Self {
            name: text("name"),
            description: text("description"),
            is_folder: text("_class") == FOLDER_CLASS,
            children: value["jobs"]
                .as_array()
                .into_iter()
                .flatten()
                .map(Self::parse)
                .collect(),
        }
    }

    fn is_ours(&self, setting: &JenkinsSetting) -> bool {
        mark::read_hash(setting, &self.description).is_some()
    }

    /// The item and everything in it is this setting's.
    fn is_wholly_ours(&self, setting: &JenkinsSetting) -> bool {
        self.is_ours(setting) && self.children.iter().all(|child| child.is_wholly_ours(setting))
    }

    fn child(&self, name: &str) -> Option<&Self> {
        // Jenkins may run on a file system that ignores case.
        self.children
            .iter()
            .find(|child| child.name.eq_ignore_ascii_case(name))
    }
}

/// Reads the project's folder; none if there is no such folder.
pub fn read_project(
    jenkins: &JenkinsServer,
    setting: &JenkinsSetting,
) -> Result<Option<JenkinsItem>, Failure> {
    let path = format!("{}/{PROJECT_TREE}", folder_path(setting, None));
    let response = jenkins.send(jenkins.get(path)).reason("JenkinsUnreachable")?;
    match response.status() {
        200 => Ok(Some(JenkinsItem::parse(&response.value()?))),
        404 => Ok(None),
        _ => Err(unexpected(&response, "read the project's folder")),
    }
}

/// Checks before the first write that nothing of another user is in the way.
pub fn check_ownership(
    setting: &JenkinsSetting,
    found: Option<&JenkinsItem>,
    desired: &DesiredSettings,
) -> Result<(), Failure> {
    let Some(project) = found else { return Ok(()) };
    let check = |item: &JenkinsItem, path: &str, is_folder: bool| {
        if item.is_ours(setting) && item.is_folder == is_folder {
            return Ok(());
        }
        let message = format!(
            "{path} exists in Jenkins and is not this object's: delete or rename it there, or choose another name."
        );
        Err(Failure::retry("ItemExists", message))
    };
    check(project, &setting.spec.project, true)?;
    for environment in &setting.spec.environments {
        let Some(folder) = project.child(environment) else {
            continue;
        };
        check(folder, &format!("{}/{environment}", setting.spec.project), true)?;
        for pipeline in desired.pipelines.iter().filter(|p| p.environment == *environment) {
            if let Some(item) = folder.child(&pipeline.name) {
                let path = format!("{}/{environment}/{}", setting.spec.project, pipeline.name);
                check(item, &path, false)?;
            }
        }
    }
    Ok(())
}

/// Creates what is missing, and corrects what differs.
pub fn apply_items(
    ctx: &Context,
    jenkins: &JenkinsServer,
    setting: &JenkinsSetting,
    found: Option<&JenkinsItem>,
    desired: &DesiredSettings,
) -> Result<Vec<JenkinsPipelineState>, Failure> {
    let project = &setting.spec.project;
    if found.is_none() {
        let config = config::build_folder(setting, "");
        create(jenkins, "", project, config)?;
    }
    let mut states = Vec::new();
    for environment in &setting.spec.environments {
        let folder = found.and_then(|project| project.child(environment));
        if folder.is_none() {
            let config = config::build_folder(setting, "");
            create(jenkins, &folder_path(setting, None), environment, config)?;
        }
        for pipeline in desired.pipelines.iter().filter(|p| p.environment == *environment) {
            let item = folder.and_then(|folder| folder.child(&pipeline.name));
            apply_pipeline(ctx, jenkins, setting, item, pipeline)?;
            states.push(pipeline_state(environment, &pipeline.name, &pipeline.hash));
        }
    }
    Ok(states)
}

fn apply_pipeline(
    ctx: &Context,
    jenkins: &JenkinsServer,
    setting: &JenkinsSetting,
    found: Option<&JenkinsItem>,
    pipeline: &DesiredPipeline,
) -> Result<(), Failure> {
    let Some(item) = found else {
        let parent = folder_path(setting, Some(&pipeline.environment));
        return create(jenkins, &parent, &pipeline.name, pipeline.config.clone());
    };
    let path = format!(
        "{}/config.xml",
        job_path(&setting.spec.project, &pipeline.environment, &pipeline.name)
    );
    let mut is_current = mark::read_hash(setting, &item.description) == Some(pipeline.hash.as_str());
    if is_current {
        let response = jenkins
            .send(jenkins.get(path.clone()))
            .reason("JenkinsUnreachable")?;
        if response.status() != 200 {
            return Err(unexpected(&response, "read the configuration of a pipeline"));
        }
        is_current = is_as_written(&response.text(), pipeline);
        if !is_current {
            let name = format!("{}/{}", pipeline.environment, pipeline.name);
            ctx.event(
                "DriftCorrected",
                &format!("The pipeline {name} was changed in Jenkins."),
            );
        }
    }
    if is_current {
        return Ok(());
    }
    let request = jenkins
        .post(path)
        .body("application/xml", pipeline.config.clone().into_bytes());
    let response = jenkins.send(request).reason("JenkinsUnreachable")?;
    match response.status() {
        200 => Ok(()),
        _ => Err(unexpected(&response, "update a pipeline")),
    }
}

/// Jenkins never returns a configuration as it was sent, so that only its parts can be compared.
fn is_as_written(config: &str, pipeline: &DesiredPipeline) -> bool {
    xml::element_text(config, "script").as_ref() == Some(&pipeline.script)
        && xml::element_text(config, "sandbox").as_deref() == Some("true")
        && xml::element_text(config, "disabled").as_deref() != Some("true")
}

/// Creates an item. One that appeared since the last read is found at the retry, with its owner.
fn create(jenkins: &JenkinsServer, parent: &str, name: &str, config: String) -> Result<(), Failure> {
    let path = format!("{parent}/createItem?name={}", encode_query(name));
    let request = jenkins.post(path).body("application/xml", config.into_bytes());
    let response = jenkins.send(request).reason("JenkinsUnreachable")?;
    match response.status() {
        200 => Ok(()),
        _ => Err(unexpected(&response, &format!("create {name}"))),
    }
}

/// Deletes pipelines and environments that are no longer desired. What another user has put beside them stays, and the
/// folder with it.
pub fn delete_obsolete(
    ctx: &Context,
    jenkins: &JenkinsServer,
    setting: &JenkinsSetting,
    found: Option<&JenkinsItem>,
    desired: &DesiredSettings,
) -> Result<(), Failure> {
    for folder in found.into_iter().flat_map(|project| &project.children) {
        let is_desired = setting
            .spec
            .environments
            .iter()
            .any(|name| name.eq_ignore_ascii_case(&folder.name));
        let path = folder_path(setting, Some(&folder.name));
        if !is_desired {
            delete_tree(ctx, jenkins, setting, folder, &path)?;
            continue;
        }
        let obsolete = folder.children.iter().filter(|item| {
            let is_same = |pipeline: &&DesiredPipeline| {
                pipeline.environment.eq_ignore_ascii_case(&folder.name)
                    && pipeline.name.eq_ignore_ascii_case(&item.name)
            };
            !desired.pipelines.iter().any(|pipeline| is_same(&pipeline))
        });
        for item in obsolete {
            let path = job_path(&setting.spec.project, &folder.name, &item.name);
            delete_tree(ctx, jenkins, setting, item, &path)?;
        }
    }
    Ok(())
}

/// Deletes everything of this setting in Jenkins.
pub fn delete_project(
    ctx: &Context,
    jenkins: &JenkinsServer,
    setting: &JenkinsSetting,
) -> Result<(), Failure> {
    let Some(project) = read_project(jenkins, setting)? else {
        return Ok(());
    };
    if !project.is_ours(setting) {
        return Ok(());
    }
    let path = folder_path(setting, None);
    let foreign = credentials::has_foreign(jenkins, setting)?;
    if project.is_wholly_ours(setting) && !foreign {
        return delete(jenkins, &path);
    }
    credentials::delete_all(jenkins, setting)?;
    for child in &project.children {
        let path = folder_path(setting, Some(&child.name));
        delete_tree(ctx, jenkins, setting, child, &path)?;
    }
    warn_kept(ctx, &setting.spec.project);
    Ok(())
}

/// Deletes an item with all that is in it, except what is another user's.
fn delete_tree(
    ctx: &Context,
    jenkins: &JenkinsServer,
    setting: &JenkinsSetting,
    item: &JenkinsItem,
    path: &str,
) -> Result<(), Failure> {
    if !item.is_ours(setting) {
        return Ok(());
    }
    if item.is_wholly_ours(setting) {
        return delete(jenkins, path);
    }
    for child in item.children.iter().filter(|child| child.is_wholly_ours(setting)) {
        let path = job_path(&setting.spec.project, &item.name, &child.name);
        delete(jenkins, &path)?;
    }
    warn_kept(ctx, &item.name);
    Ok(())
}

fn warn_kept(ctx: &Context, folder: &str) {
    let note = format!("The folder {folder} stays in Jenkins: it has items or credentials of other users.");
    ctx.warn("FolderKept", &note);
}

fn delete(jenkins: &JenkinsServer, path: &str) -> Result<(), Failure> {
    let response = jenkins
        .send(jenkins.delete(format!("{path}/")))
        .reason("JenkinsUnreachable")?;
    match response.status() {
        200 | 204 | 302 | 404 => Ok(()),
        _ => Err(unexpected(&response, "delete an item")),
    }
}

/// The path of the project's folder, or of an environment in it.
pub fn folder_path(setting: &JenkinsSetting, environment: Option<&str>) -> String {
    let whole = job_path(&setting.spec.project, environment.unwrap_or_default(), "");
    let unused = if environment.is_some() {
        "/job/"
    } else {
        "/job//job/"
    };
    whole.strip_suffix(unused).unwrap_or(&whole).to_owned()
}

/// Encodes the value of a query parameter.
fn encode_query(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The failure of a response that a request does not expect.
pub fn unexpected(response: &Response, action: &str) -> Failure {
    let status = response.status();
    let cause = response.header("x-error").unwrap_or_default();
    match status {
        401 => {
            let message = "Jenkins does not accept the API token (HTTP 401).";
            Failure::retry("AuthenticationFailed", message)
        }
        403 => {
            let message =
                format!("Jenkins does not permit the user of the API token to {action} (HTTP 403).");
            Failure::retry("JenkinsDenied", message)
        }
        _ => {
            let message = format!("Jenkins could not {action} (HTTP {status}). {cause}");
            Failure::retry("JenkinsFailed", message.trim_end())
        }
    }
}
