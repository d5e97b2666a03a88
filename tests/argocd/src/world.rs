//! Surroundings of an Application: what it deploys, and what of it is in the cluster.

use std::collections::BTreeMap;

/// Commit of a revision that is not listed.
const DEFAULT_COMMIT: &str = "841f4bb43c2bace72692a7f83b0e5d814383ca35";
/// Length of a commit in hex digits.
const COMMIT_LENGTH: usize = 40;

/// Surroundings of an Application: what it deploys, and its project.
#[derive(Clone, Debug)]
pub struct ApplicationWorld {
    /// Content of the directory of the repository.
    pub source: RepositorySource,
    /// Commits of branches and tags; none for a revision that is missing. All others are the same commit.
    pub commits: BTreeMap<String, Option<String>>,
    /// True if its AppProject exists.
    pub has_project: bool,
    /// True if the namespace that it deploys to exists.
    pub has_namespace: bool,
    /// The hook that runs before the sync; none if there is none.
    pub hook: Option<Hook>,
    /// Health of what was deployed.
    pub health: String,
    /// True if a sync ends only when what it has deployed is healthy, because another wave waits for it.
    pub waits_for_health: bool,
    /// Number of changes that others have made to what was deployed.
    pub drift: u32,
    /// True if the API server stores the manifests in another form, so that they never are the same.
    pub is_normalized: bool,
    /// True if a finalizer keeps what was deployed.
    pub is_held: bool,
    /// True if the controller runs and looks at the namespace of the Application.
    pub is_watched: bool,
}

/// Content of the directory of a repository.
#[derive(Clone, Debug)]
pub enum RepositorySource {
    /// Manifests that are applied.
    Manifests,
    /// No manifests.
    Empty,
    /// Manifests of which the API server refuses one, with its message. The others are applied.
    Refused(String),
    /// Nothing that can be compared: type and message of the condition (`ComparisonError`, `InvalidSpecError`).
    Error {
        /// Type of the condition.
        condition: String,
        /// Message of the condition.
        message: String,
    },
}

/// State of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Its Job runs.
    Running,
    /// Its Job has ended well.
    Succeeded,
    /// Its Job has failed.
    Failed,
}

impl Default for ApplicationWorld {
    /// Manifests that are healthy once they are applied.
    fn default() -> Self {
        Self {
            source: RepositorySource::Manifests,
            commits: BTreeMap::new(),
            has_project: true,
            has_namespace: true,
            hook: None,
            health: "Healthy".into(),
            waits_for_health: false,
            drift: 0,
            is_normalized: false,
            is_held: false,
            is_watched: true,
        }
    }
}

impl ApplicationWorld {
    /// The commit of a revision; none if it is missing. A commit is not looked up.
    pub(crate) fn find_commit(&self, revision: &str) -> Option<String> {
        let is_commit = revision.len() == COMMIT_LENGTH && revision.bytes().all(|b| b.is_ascii_hexdigit());
        match self.commits.get(revision) {
            Some(commit) => commit.clone(),
            None if is_commit => Some(revision.to_owned()),
            None => Some(DEFAULT_COMMIT.to_owned()),
        }
    }

    /// Type and message of the error that prevents a comparison with a revision.
    pub(crate) fn find_error(&self, revision: &str) -> Option<(&str, String)> {
        match &self.source {
            _ if !self.has_project => Some(("InvalidSpecError", "the project does not exist".into())),
            RepositorySource::Error { condition, message } => Some((condition, message.clone())),
            _ if self.find_commit(revision).is_none() => {
                let message = format!("unable to resolve '{revision}' to a commit SHA");
                Some(("ComparisonError", message))
            }
            _ => None,
        }
    }
}
