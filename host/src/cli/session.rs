//! The running `ostler plugin dev` of a project, for commands in the project's folder.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

/// File in a project's folder with the session that runs for it.
const SESSION_FILE: &str = ".ostler/dev.json";

/// A running `ostler plugin dev`.
#[derive(Debug, Deserialize, Serialize)]
pub struct DevSession {
    /// URL of its admin server.
    pub admin: String,
    /// Kubeconfig of its API server.
    pub kubeconfig: PathBuf,
    /// Directory with the component that serves, and its configuration.
    pub plugins: PathBuf,
    /// File with the permissions of the plugin.
    pub grants: PathBuf,
    /// Its process.
    pub pid: i32,
}

impl DevSession {
    /// The session of the project that contains the working directory; `None` if there is no such project, or nothing runs.
    pub fn find() -> Option<Self> {
        let here = std::env::current_dir().ok()?;
        here.ancestors().find_map(Self::read)
    }

    /// The session of a project's folder.
    fn read(folder: &Path) -> Option<Self> {
        let text = std::fs::read(folder.join(SESSION_FILE)).ok()?;
        let session: Self = serde_json::from_slice(&text).ok()?;
        // The file of a process that was killed stays.
        let process = Pid::from_raw(session.pid)?;
        test_kill_process(process).is_ok().then_some(session)
    }

    /// The file of a project's folder.
    #[cfg(feature = "dev")]
    pub fn file(folder: &Path) -> PathBuf {
        folder.join(SESSION_FILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_found_while_its_process_runs() {
        let folder = tempfile::tempdir().unwrap();
        assert!(DevSession::read(folder.path()).is_none());
        let file = folder.path().join(SESSION_FILE);
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        let mut session = DevSession {
            admin: "http://127.0.0.1:1".into(),
            kubeconfig: "k".into(),
            plugins: "p".into(),
            grants: "g".into(),
            pid: i32::try_from(std::process::id()).unwrap(),
        };
        let mut write = |pid| {
            session.pid = pid;
            std::fs::write(&file, serde_json::to_vec(&session).unwrap()).unwrap();
        };
        write(i32::try_from(std::process::id()).unwrap());
        let found = DevSession::read(folder.path()).unwrap();
        assert_eq!(
            (&*found.admin, found.kubeconfig),
            ("http://127.0.0.1:1", "k".into())
        );
        // Above the largest process id of Linux.
        write(1 << 30);
        assert!(DevSession::read(folder.path()).is_none());
        std::fs::write(&file, "{}").unwrap();
        assert!(DevSession::read(folder.path()).is_none());
    }
}
