//! A git client for components: the references of a repository, and one file of it, over smart HTTP with protocol
//! version 2.
//!
//! Nothing is cloned. [`list_references`] is one request, by which a poll finds that nothing has changed. [`read_file`]
//! requests one object at a time, the commit, the trees on the path and the blob, with the filter `tree:0`, so that each
//! pack has exactly one object and no deltas. Forges offer this (partial clones), and git with `uploadpack.allowFilter`.

pub mod pack;
pub mod packet;

use ostler_sdk::{Failure, Response, ResultExt, Upstream};
use pack::{ObjectKind, PackObject};
pub use packet::{GitReference, ServerCapabilities};

/// Path of the advertisement below the URL of a repository.
pub const ADVERTISEMENT_PATH: &str = "/info/refs?service=git-upload-pack";
/// Path of the commands below the URL of a repository.
pub const COMMAND_PATH: &str = "/git-upload-pack";
/// Content type of commands.
pub const COMMAND_TYPE: &str = "application/x-git-upload-pack-request";
/// Header that selects the version of the protocol.
pub const PROTOCOL_HEADER: (&str, &str) = ("Git-Protocol", "version=2");

/// Content type of an advertisement. A login page has another one.
const ADVERTISEMENT_TYPE: &str = "application/x-git-upload-pack-advertisement";
/// Content type of the response to a command.
const RESULT_TYPE: &str = "application/x-git-upload-pack-result";

/// Limit of the components of a path: each is one request.
const MAX_PATH_COMPONENTS: usize = 16;

/// Reads what the server can do.
///
/// # Errors
/// `AuthenticationFailed`, `RepositoryNotFound` or `NotAGitRepository`; the server is unreachable or too old.
pub fn read_capabilities(repository: &Upstream) -> Result<ServerCapabilities, Failure> {
    let request = repository.get(ADVERTISEMENT_PATH);
    let response = request
        .header(PROTOCOL_HEADER.0, PROTOCOL_HEADER.1)
        .send()
        .reason("GitFailed")?;
    check_response(&response, ADVERTISEMENT_TYPE)?;
    ServerCapabilities::parse(response.bytes()).map_err(unsupported)
}

/// Lists the references whose names begin with one of the prefixes, tags with the commits that they point to.
///
/// # Errors
/// As [`read_capabilities`].
pub fn list_references(repository: &Upstream, prefixes: &[&str]) -> Result<Vec<GitReference>, Failure> {
    let response = send_command(repository, packet::list_command(prefixes))?;
    packet::parse_references(&response).map_err(broken)
}

/// Finds the commit of a branch or a tag.
///
/// # Errors
/// As [`read_capabilities`]; `RevisionNotFound`.
pub fn resolve_revision(repository: &Upstream, revision: &str) -> Result<String, Failure> {
    let names = candidate_names(revision);
    let prefixes: Vec<&str> = names.iter().map(String::as_str).collect();
    let references = list_references(repository, &prefixes)?;
    let found = names
        .iter()
        .find_map(|name| references.iter().find(|reference| reference.name == *name));
    let found = found.ok_or_else(|| {
        let message = format!("The repository has neither a branch nor a tag {revision}.");
        Failure::retry("RevisionNotFound", message)
    })?;
    Ok(found.commit().to_owned())
}

/// The references that a revision may stand for, in git's order of preference for those that people name.
fn candidate_names(revision: &str) -> Vec<String> {
    if revision == "HEAD" || revision.starts_with("refs/") {
        return vec![revision.to_owned()];
    }
    ["refs/tags/", "refs/heads/"]
        .map(|kind| [kind, revision].concat())
        .into()
}

/// Reads a file of a commit.
///
/// # Errors
/// As [`read_capabilities`]; `FileNotFound`, or `FilterNotSupported` if the server does not offer partial clones.
pub fn read_file(repository: &Upstream, commit: &str, path: &str) -> Result<Vec<u8>, Failure> {
    let capabilities = read_capabilities(repository)?;
    if !capabilities.can_filter {
        let message = "The git server does not offer filters, so that a single file cannot be fetched: set \
                       uploadpack.allowFilter on it.";
        return Err(Failure::retry("FilterNotSupported", message));
    }
    let components: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if components.is_empty() || components.len() > MAX_PATH_COMPONENTS || components.contains(&"..") {
        let message =
            format!("{path} is not the path of a file with at most {MAX_PATH_COMPONENTS} components.");
        return Err(Failure::terminal("InvalidSpec", message));
    }
    let tree = fetch(repository, commit, ObjectKind::Commit)?;
    let mut id = pack::tree_of_commit(&tree.data).map_err(broken)?;
    let (file, folders) = components.split_last().unwrap_or((&"", &[]));
    for folder in folders {
        id = find_entry(repository, &id, folder, ObjectKind::Tree, path)?;
    }
    let blob = find_entry(repository, &id, file, ObjectKind::Blob, path)?;
    Ok(fetch(repository, &blob, ObjectKind::Blob)?.data)
}

/// Fetches a tree and finds an entry of it.
fn find_entry(
    repository: &Upstream,
    tree: &str,
    name: &str,
    kind: ObjectKind,
    path: &str,
) -> Result<String, Failure> {
    let tree = fetch(repository, tree, ObjectKind::Tree)?;
    let entry = pack::find_entry(&tree.data, name.as_bytes()).map_err(broken)?;
    match entry {
        Some((id, found)) if found == kind => Ok(id),
        Some(_) => {
            let message = format!("{name} in {path} is a folder, a link or a submodule in the repository.");
            Err(Failure::retry("FileNotFound", message))
        }
        None => Err(Failure::retry(
            "FileNotFound",
            format!("The repository has no file {path}."),
        )),
    }
}

fn fetch(repository: &Upstream, id: &str, kind: ObjectKind) -> Result<PackObject, Failure> {
    let response = send_command(repository, packet::fetch_command(id, kind == ObjectKind::Commit))?;
    let pack = packet::parse_pack(&response).map_err(broken)?;
    let object = pack::parse_single(&pack).map_err(broken)?;
    if object.kind != kind {
        return Err(broken(format!("object {id} is not a {}", kind.name())));
    }
    Ok(object)
}

fn send_command(repository: &Upstream, command: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let request = repository.post(COMMAND_PATH).body(COMMAND_TYPE, command);
    let response = request
        .header(PROTOCOL_HEADER.0, PROTOCOL_HEADER.1)
        .header("Accept", RESULT_TYPE)
        .send()
        .reason("GitFailed")?;
    check_response(&response, RESULT_TYPE)?;
    Ok(response.bytes().to_vec())
}

/// Checks that a response is git's.
fn check_response(response: &Response, content_type: &str) -> Result<(), Failure> {
    let message = match response.status() {
        200 if response.header("content-type") == Some(content_type) => return Ok(()),
        200 => {
            let message =
                "The server responds with something else than git: check the URL of the repository.";
            return Err(Failure::retry("NotAGitRepository", message));
        }
        status @ (401 | 403) => {
            let message = format!("The git server does not accept the credentials (HTTP {status}).");
            return Err(Failure::retry("AuthenticationFailed", message));
        }
        404 => {
            let message = "The git server has no such repository, or hides it from this user (HTTP 404).";
            return Err(Failure::retry("RepositoryNotFound", message));
        }
        status @ 300..=399 => {
            format!("The git server redirects (HTTP {status}): set the URL it redirects to.")
        }
        status => format!("The git server responded with HTTP {status}."),
    };
    Err(Failure::retry("GitFailed", message))
}

fn broken(what: String) -> Failure {
    Failure::retry(
        "GitFailed",
        format!("The response of the git server is not understood: {what}."),
    )
}

fn unsupported(what: String) -> Failure {
    Failure::retry(
        "ProtocolNotSupported",
        format!("The git server cannot be used: {what}."),
    )
}
