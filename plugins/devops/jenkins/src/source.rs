//! The definition in the git repository, of which nothing is fetched while the commit stays the same.

use devops_api::{GitCredentials, GitCredentialsSpec, JenkinsSetting, SecretKey, git_upstream};
use devops_git_client::{read_file, resolve_revision};
use ostler_sdk::prelude::*;

use crate::definition::{MAX_DEFINITION_BYTES, PipelineDefinition};

/// Key under which the file is cached, behind a line that says which it is.
const CACHE_KEY: &str = "definition";

/// The definition, and the repository that it is from.
pub struct DefinitionSource {
    /// The commit.
    pub commit: String,
    /// URL of the repository.
    pub url: String,
    /// The repository is read with a password.
    pub has_password: bool,
    /// The definition.
    pub definition: PipelineDefinition,
}

/// Reads the definition at the revision.
pub fn read(ctx: &Context, setting: &JenkinsSetting) -> Result<DefinitionSource, Failure> {
    let git = &setting.spec.git;
    let name = &git.credentials_ref.name;
    let credentials: GitCredentials = ctx
        .require_ready::<GitCredentialsSpec>(setting.namespace(), name)
        .reason("GitCredentialsNotReady")?;
    let upstream = git_upstream(name);
    let repository = ctx.upstream(&upstream);
    let commit = resolve_revision(&repository, &git.revision).map_err(unknown_definition)?;
    let url = credentials.spec.url.trim_end_matches('/').to_owned();
    let key = format!("{commit} {url} {}\n", git.path);
    let cached = ctx.cache_get(CACHE_KEY);
    let cached = cached
        .as_deref()
        .and_then(|cached| cached.strip_prefix(key.as_bytes()));
    let text = match cached {
        Some(text) => text.to_vec(),
        None => {
            let text = read_file(&repository, &commit, &git.path).map_err(unknown_definition)?;
            if text.len() > MAX_DEFINITION_BYTES {
                let message = format!("{} has more than {MAX_DEFINITION_BYTES} bytes.", git.path);
                return Err(invalid_definition(&message));
            }
            // Without a place in the cache it is fetched again at the next poll.
            let _ = ctx.cache_set(CACHE_KEY, &[key.as_bytes(), &text].concat());
            text
        }
    };
    let problem = |what: &str| invalid_definition(&format!("{} at commit {commit}: {what}.", git.path));
    let text = String::from_utf8(text).map_err(|_| problem("it is not UTF-8"))?;
    let definition = PipelineDefinition::parse(&text).map_err(|what| problem(what.trim_end_matches('.')))?;
    Ok(DefinitionSource {
        commit,
        url,
        has_password: credentials.spec.password_ref.is_some(),
        definition,
    })
}

/// The Secret key with the password of the repository, and its user name.
pub fn git_login(
    ctx: &Context,
    setting: &JenkinsSetting,
) -> Result<Option<(Option<String>, SecretKey)>, Failure> {
    let name = &setting.spec.git.credentials_ref.name;
    let credentials = ctx.get::<GitCredentialsSpec>(setting.namespace(), name)?;
    let spec = credentials.map(|credentials| credentials.spec);
    Ok(spec.and_then(|spec| Some((spec.username, spec.password_ref?))))
}

/// Nothing is known of the definition; what is in Jenkins stays as it is.
fn unknown_definition(failure: Failure) -> Failure {
    let condition = Condition::new_unknown("DefinitionValid", &failure.reason, failure.message.clone());
    failure.with(condition)
}

/// A commit mends it, which the poll finds.
fn invalid_definition(message: &str) -> Failure {
    let condition = Condition::new_false("DefinitionValid", "DefinitionInvalid", message);
    Failure::retry("DefinitionInvalid", message).with(condition)
}
