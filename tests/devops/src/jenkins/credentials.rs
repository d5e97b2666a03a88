//! Credentials of folders.

use serde_json::{Value, json};

use super::{JenkinsModel, items::JenkinsRefusal, xml};

/// Classes of credentials that are installed.
const CREDENTIAL_CLASSES: [&str; 3] = [
    "com.cloudbees.plugins.credentials.impl.UsernamePasswordCredentialsImpl",
    "org.jenkinsci.plugins.plaincredentials.impl.StringCredentialsImpl",
    "com.cloudbees.jenkins.plugins.sshcredentials.impl.BasicSSHUserPrivateKey",
];

impl JenkinsModel {
    /// Creates credentials.
    pub fn create_credential(&mut self, folder: &str, xml: &str) -> Result<(), JenkinsRefusal> {
        let id = check_credential(xml)?;
        let key = (folder.to_owned(), id);
        if self.credentials.contains_key(&key) {
            return Err((409, String::new()));
        }
        self.credentials.insert(key, xml.into());
        Ok(())
    }

    /// Replaces credentials.
    pub fn update_credential(&mut self, folder: &str, id: &str, xml: &str) -> Result<(), JenkinsRefusal> {
        let key = (folder.to_owned(), id.to_owned());
        if !self.credentials.contains_key(&key) {
            return Err((404, String::new()));
        }
        if check_credential(xml)? != id {
            return Err((500, "The id of credentials cannot be changed".into()));
        }
        self.credentials.insert(key, xml.into());
        Ok(())
    }

    /// Lists the credentials of a folder, without their secrets.
    pub fn list_credentials(&self, folder: &str) -> Value {
        let ours = self.credentials.iter().filter(|((store, _), _)| store == folder);
        let list: Vec<Value> = ours
            .map(|((_, id), xml)| {
                let description = xml::child_text(xml, "description").unwrap_or_default();
                json!({"id": id, "description": description, "displayName": id,
                    "typeName": xml::root_name(xml), "fullName": format!("{folder}/{id}")})
            })
            .collect();
        json!({"_class": "com.cloudbees.plugins.credentials.CredentialsStoreAction$DomainWrapper", "credentials": list})
    }
}

/// Checks that Jenkins has the class of credentials. Returns their id.
fn check_credential(xml: &str) -> Result<String, JenkinsRefusal> {
    match xml::root_name(xml) {
        Some(root) if CREDENTIAL_CLASSES.contains(&&*root) => {}
        Some(root) => return Err((500, format!("CannotResolveClassException: {root}"))),
        None => return Err((500, "Failed to parse the credentials".into())),
    }
    let id = xml::child_text(xml, "id").filter(|id| !id.is_empty());
    id.ok_or((500, "The credentials have no id".into()))
}
