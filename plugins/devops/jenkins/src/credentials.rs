//! Credentials in the project's folder. The host puts the secrets into them.

use std::collections::BTreeMap;

use devops_api::{JenkinsCredentialKind, JenkinsSetting, SecretKey};
use devops_jenkins_client::JenkinsServer;
use ostler_sdk::{Encoding, SecretKeyRef, Substitution, prelude::*, serde_json::Value};

use crate::{
    config::hash,
    mark,
    remote::{folder_path, unexpected},
    source::git_login,
    xml::escape,
};

/// ID of the credentials with which pipelines read the repository.
pub const GIT_CREDENTIAL_ID: &str = "ostler-git";

/// What the host replaces by the secret.
const SECRET_PLACEHOLDER: &str = "ostler-jenkins-credential-secret";

/// User name that forges accept with a token.
const TOKEN_USERNAME: &str = "oauth2";

/// Credentials to write.
struct Wanted {
    id: String,
    kind: JenkinsCredentialKind,
    username: String,
    secret: SecretKey,
    /// Digest of all of it, which changes with the value of the Secret.
    digest: String,
}

/// Writes the credentials whose digest has changed, and deletes those that are no longer wanted. Returns the digests.
pub fn apply(
    ctx: &Context,
    jenkins: &JenkinsServer,
    setting: &JenkinsSetting,
) -> Result<BTreeMap<String, String>, Failure> {
    let wanted = build(ctx, setting)?;
    let found = list(jenkins, setting)?;
    for credential in &wanted {
        let description = found.get(&credential.id);
        let is_ours = description.map(|text| mark::read_hash(setting, text));
        match is_ours {
            Some(None) => {
                let message = format!(
                    "The credentials {} of the folder {} exist in Jenkins and are not this object's: delete them \
                     there, or choose another id.",
                    credential.id, setting.spec.project
                );
                return Err(Failure::retry("CredentialExists", message));
            }
            Some(Some(digest)) if digest == credential.digest => {}
            existing => write(jenkins, setting, credential, existing.is_some())?,
        }
    }
    for (id, description) in &found {
        let is_ours = mark::read_hash(setting, description).is_some();
        if is_ours && !wanted.iter().any(|credential| credential.id == *id) {
            delete(jenkins, setting, id)?;
        }
    }
    Ok(wanted
        .into_iter()
        .map(|credential| (credential.id, credential.digest))
        .collect())
}

fn build(ctx: &Context, setting: &JenkinsSetting) -> Result<Vec<Wanted>, Failure> {
    let mut wanted = Vec::new();
    if let Some((username, secret)) = git_login(ctx, setting)? {
        let username = username.unwrap_or_else(|| TOKEN_USERNAME.to_owned());
        wanted.push((
            GIT_CREDENTIAL_ID,
            JenkinsCredentialKind::UsernamePassword,
            username,
            secret,
        ));
    }
    for credential in &setting.spec.credentials {
        let username = credential.username.clone().unwrap_or_default();
        let needs_username = credential.kind == JenkinsCredentialKind::UsernamePassword;
        let problem = match credential.id.as_str() {
            GIT_CREDENTIAL_ID => "has an id that is reserved for the repository",
            _ if needs_username && username.is_empty() => "needs a username",
            _ => {
                wanted.push((
                    &credential.id,
                    credential.kind,
                    username,
                    credential.secret_ref.clone(),
                ));
                continue;
            }
        };
        let message = format!("spec.credentials: {} {problem}.", credential.id);
        return Err(Failure::terminal("InvalidSpec", message));
    }
    wanted
        .into_iter()
        .map(|(id, kind, username, secret)| {
            let value = ctx.secret_digest(&secret.name, &secret.key)?;
            let value = value.ok_or_else(|| {
                let message = format!("The Secret {} has no key {}.", secret.name, secret.key);
                Failure::wait("SecretNotFound", message)
            })?;
            let kind_name = root_element(kind);
            let digest = hash(&[kind_name, &username, &value].join("\n"));
            let id = id.to_owned();
            Ok(Wanted {
                id,
                kind,
                username,
                secret,
                digest,
            })
        })
        .collect()
}

/// Descriptions of the credentials in the folder, by id.
fn list(jenkins: &JenkinsServer, setting: &JenkinsSetting) -> Result<BTreeMap<String, String>, Failure> {
    let path = format!(
        "{}/api/json?tree=credentials[id,description]",
        store_path(setting)
    );
    let response = jenkins.send(jenkins.get(path)).reason("JenkinsUnreachable")?;
    if response.status() != 200 {
        return Err(unexpected(
            &response,
            "list the credentials of the project's folder",
        ));
    }
    let body = response.value()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let credentials = body["credentials"].as_array().into_iter().flatten();
    Ok(credentials
        .map(|found| (text(&found["id"]), text(&found["description"])))
        .collect())
}

fn write(
    jenkins: &JenkinsServer,
    setting: &JenkinsSetting,
    credential: &Wanted,
    exists: bool,
) -> Result<(), Failure> {
    let path = match exists {
        true => credential_path(setting, &credential.id),
        false => format!("{}/createCredentials", store_path(setting)),
    };
    let secret = SecretKeyRef::new(&credential.secret.name, &credential.secret.key);
    let substitution = Substitution::key(SECRET_PLACEHOLDER, secret, Encoding::Xml);
    let request = jenkins
        .post(path)
        .body("application/xml", build_xml(setting, credential).into_bytes())
        .substitute(&[substitution]);
    let response = jenkins.send(request).reason("JenkinsUnreachable")?;
    match response.status() {
        200 => Ok(()),
        _ => Err(unexpected(
            &response,
            &format!("write the credentials {}", credential.id),
        )),
    }
}

fn build_xml(setting: &JenkinsSetting, credential: &Wanted) -> String {
    let root = root_element(credential.kind);
    let description = escape(&mark::describe(setting, "", &credential.digest));
    let id = escape(&credential.id);
    let secret = match credential.kind {
        JenkinsCredentialKind::UsernamePassword => {
            let username = escape(&credential.username);
            format!("<username>{username}</username><password>{SECRET_PLACEHOLDER}</password>")
        }
        JenkinsCredentialKind::SecretText => format!("<secret>{SECRET_PLACEHOLDER}</secret>"),
    };
    format!(
        "<{root}><scope>GLOBAL</scope><id>{id}</id><description>{description}</description>{secret}</{root}>"
    )
}

fn root_element(kind: JenkinsCredentialKind) -> &'static str {
    match kind {
        JenkinsCredentialKind::UsernamePassword => {
            "com.cloudbees.plugins.credentials.impl.UsernamePasswordCredentialsImpl"
        }
        JenkinsCredentialKind::SecretText => {
            "org.jenkinsci.plugins.plaincredentials.impl.StringCredentialsImpl"
        }
    }
}

/// The project's folder has credentials of other users.
pub fn has_foreign(jenkins: &JenkinsServer, setting: &JenkinsSetting) -> Result<bool, Failure> {
    let found = list(jenkins, setting)?;
    Ok(found
        .values()
        .any(|description| mark::read_hash(setting, description).is_none()))
}

/// Deletes all credentials of this setting.
pub fn delete_all(jenkins: &JenkinsServer, setting: &JenkinsSetting) -> Result<(), Failure> {
    for (id, description) in list(jenkins, setting)? {
        if mark::read_hash(setting, &description).is_some() {
            delete(jenkins, setting, &id)?;
        }
    }
    Ok(())
}

fn delete(jenkins: &JenkinsServer, setting: &JenkinsSetting, id: &str) -> Result<(), Failure> {
    let response = jenkins
        .send(jenkins.delete(credential_path(setting, id)))
        .reason("JenkinsUnreachable")?;
    match response.status() {
        200 | 204 | 302 | 404 => Ok(()),
        _ => Err(unexpected(&response, &format!("delete the credentials {id}"))),
    }
}

fn store_path(setting: &JenkinsSetting) -> String {
    format!("{}/credentials/store/folder/domain/_", folder_path(setting, None))
}

/// The path of credentials, whose id needs no encoding.
fn credential_path(setting: &JenkinsSetting, id: &str) -> String {
    format!("{}/credential/{id}/config.xml", store_path(setting))
}
