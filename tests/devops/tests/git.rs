//! The git server is a real one.

use std::process::Command;

use devops_simulators::git::{GIT_PASSWORD, GIT_USER, GitServer};

fn ls_remote(url: &str) -> (bool, String) {
    let output = Command::new("git")
        .args(["-c", "credential.helper=", "ls-remote", url])
        .env("GIT_TERMINAL_PROMPT", "0")
        .output()
        .expect("git");
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn git_client_reads_commits_with_the_password_only() {
    let server = GitServer::start_private().await;
    server.create_repository("app");
    let first = server.commit("app", "main", &[("a/b.txt", "one"), ("c.txt", "two")]);
    let second = server.commit("app", "main", &[("a/b.txt", "three")]);
    server.tag("app", "v1", &first);
    let url = server.repository_url("app");
    assert!(!ls_remote(&url).0, "anonymous");
    let login = url.replace("http://", &format!("http://{GIT_USER}:{GIT_PASSWORD}@"));
    let (ok, refs) = ls_remote(&login);
    assert!(
        ok && refs.contains(&format!("{second}\trefs/heads/main")),
        "{refs}"
    );
    assert!(refs.contains(&format!("{first}\trefs/tags/v1^{{}}")), "{refs}");
    assert!(
        !ls_remote(&login.replace("app.git", "other.git")).0,
        "no such repository"
    );
}
