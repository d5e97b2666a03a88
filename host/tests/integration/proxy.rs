//! The proxy between the command line and the API server.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::Command,
    sync::{Arc, Mutex},
};

/// An HTTP proxy that answers each tunnelled request itself. It records the request lines.
fn start_proxy() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let recorded = lines.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut writer = stream.try_clone().expect("a socket");
            let recorded = recorded.clone();
            std::thread::spawn(move || {
                let mut first = true;
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if std::mem::take(&mut first) {
                        recorded.lock().expect("lock").push(line.clone());
                    }
                    if !line.is_empty() {
                        continue;
                    }
                    first = true;
                    let established = recorded.lock().expect("lock").len() == 1;
                    let response = match established {
                        true => "HTTP/1.1 200 Connection established\r\n\r\n",
                        false => "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
                    };
                    if writer.write_all(response.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, lines)
}

/// Runs a command that reads from an API server which only the proxy could reach. Returns the request lines at the proxy.
fn plan_through(server: &str, proxy_url: bool, no_proxy: &str) -> Vec<String> {
    let (proxy, lines) = start_proxy();
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let of_cluster = if proxy_url {
        format!(", proxy-url: \"http://{proxy}\"")
    } else {
        String::new()
    };
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: \"{server}\"{of_cluster}}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ostler"));
    command
        .args(["plan", "--kubeconfig"])
        .arg(&kubeconfig)
        .arg("--plugin-dir")
        .arg(directory.path())
        .env_remove("https_proxy")
        .env_remove("HTTPS_PROXY")
        .env_remove("no_proxy")
        .env("NO_PROXY", no_proxy);
    if !proxy_url {
        command.env("HTTPS_PROXY", format!("http://{proxy}"));
    }
    let output = command.output().expect("it runs");
    assert_eq!(
        output.status.code(),
        Some(2),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let lines = lines.lock().expect("lock");
    lines.clone()
}

#[test]
fn api_server_is_reached_through_proxy_of_environment() {
    let lines = plan_through("https://cluster.invalid:6443", false, "127.0.0.1");
    assert_eq!(
        lines.first().map(String::as_str),
        Some("CONNECT cluster.invalid:6443 HTTP/1.1"),
        "{lines:?}"
    );
}

#[test]
fn no_proxy_exempts_the_api_server() {
    assert_eq!(
        plan_through("https://cluster.invalid:6443", false, ".invalid"),
        [""; 0]
    );
}

#[test]
fn proxy_url_of_kubeconfig_carries_requests() {
    let lines = plan_through("http://cluster.invalid:8080", true, "*");
    assert_eq!(
        lines.first().map(String::as_str),
        Some("CONNECT cluster.invalid:8080 HTTP/1.1"),
        "{lines:?}"
    );
    assert!(
        lines.get(1).is_some_and(|line| line.starts_with("GET /api")),
        "{lines:?}"
    );
}
