//! The commands against a real git server.

use devops_git_client::{
    ADVERTISEMENT_PATH, COMMAND_PATH, COMMAND_TYPE, PROTOCOL_HEADER, ServerCapabilities, pack,
    pack::ObjectKind, packet,
};
use devops_simulators::git::GitServer;

struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    fn new(server: &GitServer, repository: &str) -> Self {
        // Fails when another test was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            http: reqwest::Client::builder().no_proxy().build().expect("a client"),
            url: server.repository_url(repository),
        }
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Vec<u8> {
        let request = request.header(PROTOCOL_HEADER.0, PROTOCOL_HEADER.1);
        let response = request.send().await.expect("a response");
        assert_eq!(response.status(), 200);
        response.bytes().await.expect("a body").to_vec()
    }

    async fn command(&self, command: Vec<u8>) -> Vec<u8> {
        let request = self.http.post(format!("{}{COMMAND_PATH}", self.url));
        self.send(request.header("content-type", COMMAND_TYPE).body(command))
            .await
    }

    async fn capabilities(&self) -> ServerCapabilities {
        let request = self.http.get(format!("{}{ADVERTISEMENT_PATH}", self.url));
        ServerCapabilities::parse(&self.send(request).await).expect("capabilities")
    }

    async fn object(&self, id: &str, is_commit: bool) -> pack::PackObject {
        let body = self.command(packet::fetch_command(id, is_commit)).await;
        let pack = packet::parse_pack(&body).expect("a pack");
        pack::parse_single(&pack).expect("one object")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_file_is_read_object_by_object() {
    let server = GitServer::start_public().await;
    server.create_repository("app");
    let large = "large\n".repeat(100_000);
    server.commit(
        "app",
        "main",
        &[("ci/jobs/devops.yaml", "old"), ("large.txt", &large)],
    );
    let commit = server.commit("app", "main", &[("ci/jobs/devops.yaml", "pipelines: []\n")]);
    server.tag("app", "v1", &commit);
    let client = Client::new(&server, "app");
    assert!(client.capabilities().await.can_filter);

    let references = client
        .command(packet::list_command(&["refs/tags/v1", "HEAD"]))
        .await;
    let references = packet::parse_references(&references).expect("references");
    assert_eq!(references[0].target.as_deref(), Some("refs/heads/main"));
    assert!(
        references.iter().all(|reference| reference.commit() == commit),
        "{references:?}"
    );

    let mut id = pack::tree_of_commit(&client.object(&commit, true).await.data).expect("a tree");
    for (name, kind) in [
        ("ci", ObjectKind::Tree),
        ("jobs", ObjectKind::Tree),
        ("devops.yaml", ObjectKind::Blob),
    ] {
        let tree = client.object(&id, false).await;
        assert_eq!(tree.kind, ObjectKind::Tree);
        let entry = pack::find_entry(&tree.data, name.as_bytes()).expect("a tree");
        let (found, is) = entry.expect("an entry");
        assert_eq!(is, kind);
        id = found;
    }
    assert_eq!(client.object(&id, false).await.data, b"pipelines: []\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_filters_is_recognized() {
    let server = GitServer::start_public().await;
    server.create_repository("app");
    server.set_config("app", "uploadpack.allowFilter", "false");
    server.commit("app", "main", &[("a", "b")]);
    assert!(!Client::new(&server, "app").capabilities().await.can_filter);
}
