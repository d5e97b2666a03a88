//! A git server on loopback: repositories behind git's own `http-backend`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use concourse_simulator::FaultHandle;
use http::{Request, Response, StatusCode, header};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

use crate::{
    Exchange,
    http_text::parse_response,
    parse_basic,
    server::{ServerBehavior, TestServer, lock},
};

/// User of a private server.
pub const GIT_USER: &str = "fetcher";
/// Password of that user.
pub const GIT_PASSWORD: &str = "git-pass-0007-secret";

/// A git server, stopped and its repositories removed when dropped.
pub struct GitServer {
    server: TestServer,
    backend: Arc<Backend>,
}

struct Backend {
    root: TempDir,
    /// User name and password; none if everybody may read.
    credentials: Mutex<Option<(String, String)>>,
}

impl GitServer {
    /// Starts a server that everybody may read.
    pub async fn start_public() -> Self {
        Self::start(None).await
    }

    /// Starts a server that only [`GIT_USER`] can read.
    pub async fn start_private() -> Self {
        Self::start(Some((GIT_USER.into(), GIT_PASSWORD.into()))).await
    }

    async fn start(credentials: Option<(String, String)>) -> Self {
        let backend = Arc::new(Backend {
            root: tempfile::tempdir().expect("a temporary directory"),
            credentials: Mutex::new(credentials),
        });
        Self {
            server: TestServer::start(backend.clone()).await,
            backend,
        }
    }

    /// Returns the URL of the server, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Returns the URL of a repository.
    pub fn repository_url(&self, name: &str) -> String {
        format!("{}/{name}.git", self.server.url)
    }

    /// Returns the handle for fault injection.
    pub fn faults(&self) -> &FaultHandle {
        &self.server.faults
    }

    /// Returns the requests since the start or the last [`GitServer::forget`].
    pub fn requests(&self) -> Vec<Exchange> {
        self.server.requests()
    }

    /// Clears the recorded requests.
    pub fn forget(&self) {
        self.server.forget();
    }

    /// Changes the password of [`GIT_USER`].
    pub fn set_password(&self, password: &str) {
        *lock(&self.backend.credentials) = Some((GIT_USER.into(), password.into()));
    }

    /// Creates an empty repository that serves partial fetches, as the forges do.
    pub fn create_repository(&self, name: &str) {
        let path = self.path(name);
        run_git(
            self.backend.root.path(),
            &["init", "--quiet", "--bare", "--initial-branch=main", text(&path)],
            None,
        );
        self.set_config(name, "uploadpack.allowFilter", "true");
    }

    /// Sets a configuration variable of a repository.
    pub fn set_config(&self, name: &str, variable: &str, value: &str) {
        run_git(&self.path(name), &["config", variable, value], None);
    }

    /// Commits files onto a branch, which keeps its other files. Returns the id of the commit.
    pub fn commit(&self, name: &str, branch: &str, files: &[(&str, &str)]) -> String {
        let path = self.path(name);
        let reference = format!("refs/heads/{branch}");
        let parent = try_git(&path, &["rev-parse", "--verify", "--quiet", &reference]);
        let index = path.join("test-index");
        let _ = std::fs::remove_file(&index);
        let git = |arguments: &[&str], input: Option<&str>| run_with_index(&path, &index, arguments, input);
        if let Some(parent) = &parent {
            git(&["read-tree", parent], None);
        }
        for (file, content) in files {
            let blob = git(&["hash-object", "-w", "--stdin"], Some(content));
            let entry = format!("100644,{blob},{file}");
            git(&["update-index", "--add", "--cacheinfo", &entry], None);
        }
        let tree = git(&["write-tree"], None);
        let mut arguments = vec!["commit-tree", "-m", "A change", &tree];
        arguments.extend(parent.iter().flat_map(|parent| ["-p", parent]));
        let commit = git(&arguments, None);
        git(&["update-ref", &reference, &commit], None);
        commit
    }

    /// Creates an annotated tag.
    pub fn tag(&self, name: &str, tag: &str, commit: &str) {
        run_git(&self.path(name), &["tag", "-a", "-m", "A tag", tag, commit], None);
    }

    /// Deletes a branch.
    pub fn delete_branch(&self, name: &str, branch: &str) {
        let reference = format!("refs/heads/{branch}");
        run_git(&self.path(name), &["update-ref", "-d", &reference], None);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.backend.root.path().join(format!("{name}.git"))
    }
}

impl ServerBehavior for Backend {
    async fn answer(&self, request: Request<Bytes>) -> Response<Bytes> {
        let required = lock(&self.credentials).clone();
        if required.is_some() && parse_basic(request.headers()) != required {
            let mut response = Response::new(Bytes::from_static(b"Unauthorized"));
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            let challenge = http::HeaderValue::from_static("Basic realm=\"git\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
            return response;
        }
        self.run_backend(request).await
    }
}

impl Backend {
    /// Runs `git http-backend` as a CGI program (RFC 3875).
    async fn run_backend(&self, request: Request<Bytes>) -> Response<Bytes> {
        let header = |name: &str| request.headers().get(name).and_then(|v| v.to_str().ok());
        let mut command = tokio::process::Command::new("git");
        command
            .arg("http-backend")
            .envs(HERMETIC_ENVIRONMENT)
            .env("GIT_PROJECT_ROOT", self.root.path())
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("REQUEST_METHOD", request.method().as_str())
            .env("PATH_INFO", request.uri().path())
            .env("QUERY_STRING", request.uri().query().unwrap_or_default())
            .env("CONTENT_TYPE", header("content-type").unwrap_or_default())
            .env("CONTENT_LENGTH", request.body().len().to_string())
            .env("GIT_PROTOCOL", header("git-protocol").unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("git is not installed");
        let mut input = child.stdin.take().expect("piped");
        let body = request.into_body();
        let write = async move {
            // The backend may end before it has read everything.
            let _ = input.write_all(&body).await;
        };
        let ((), output) = tokio::join!(write, child.wait_with_output());
        parse_response(&output.expect("git ended").stdout)
    }
}

/// The environment of every git command: no configuration of the machine, and commits with the same ids everywhere.
const HERMETIC_ENVIRONMENT: [(&str, &str); 9] = [
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_CONFIG_SYSTEM", "/dev/null"),
    ("GIT_AUTHOR_NAME", "Test"),
    ("GIT_AUTHOR_EMAIL", "test@example.com"),
    ("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"),
    ("GIT_COMMITTER_NAME", "Test"),
    ("GIT_COMMITTER_EMAIL", "test@example.com"),
    ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z"),
];

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn git_command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.current_dir(directory).args(arguments);
    command.envs(HERMETIC_ENVIRONMENT);
    command
}

fn try_git(directory: &Path, arguments: &[&str]) -> Option<String> {
    let output = git_command(directory, arguments)
        .output()
        .expect("git is not installed");
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn run_git(directory: &Path, arguments: &[&str], input: Option<&str>) -> String {
    finish(git_command(directory, arguments), input)
}

fn run_with_index(directory: &Path, index: &Path, arguments: &[&str], input: Option<&str>) -> String {
    let mut command = git_command(directory, arguments);
    command.env("GIT_INDEX_FILE", index);
    finish(command, input)
}

fn finish(mut command: Command, input: Option<&str>) -> String {
    use std::io::Write;
    command.stdin(if input.is_some() {
        Stdio::piped()
    } else {
        Stdio::null()
    });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("git is not installed");
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        stdin.write_all(input.as_bytes()).expect("written");
    }
    let output = child.wait_with_output().expect("git ended");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
