//! A real DNS server on loopback: Debian's pdns-server, with its HTTP API.

use std::{
    net::{SocketAddr, TcpListener, UdpSocket},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{rabbitmq::process::BoundProcess, wait_for, workspace_root};

/// Key of the API. Tests scan objects, logs and recordings for it.
pub const POWERDNS_KEY: &str = "powerdns-key-0001";
/// Attempts to start with ports that another process has taken meanwhile.
const MAX_STARTS: usize = 5;
/// Timeout of one DNS query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// A DNS server with its own data and ports. It ends with the test process.
pub struct PowerDns {
    api: SocketAddr,
    dns: SocketAddr,
    http: Client,
    _process: BoundProcess,
    _directory: TempDir,
}

/// The response to a DNS query.
#[derive(Debug)]
pub struct DnsResponse {
    /// The message as it was received.
    pub message: Vec<u8>,
}

impl DnsResponse {
    /// Response code; 0 is no error, 3 no such name.
    pub fn code(&self) -> u8 {
        self.message[3] & 15
    }

    /// Number of records in the answer.
    pub fn answers(&self) -> u16 {
        u16::from_be_bytes([self.message[6], self.message[7]])
    }

    /// True if the message has these bytes, for example an address or a part of a text.
    pub fn has(&self, data: &[u8]) -> bool {
        self.message.windows(data.len()).any(|window| window == data)
    }
}

impl PowerDns {
    /// Starts a server without zones.
    pub async fn start() -> Self {
        for _ in 0..MAX_STARTS {
            if let Some(started) = Self::try_start().await {
                return started;
            }
        }
        panic!("PowerDNS does not start: run the test by `cargo xtask test`, which fetches it");
    }

    /// Starts a server; none if it ends, because one of its ports is taken.
    async fn try_start() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (api, dns) = (free_address(), free_address());
        let root = installation();
        let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        let path = directory.path().display();
        let config = format!(
            "launch=lmdb\nlmdb-filename={path}/zones.lmdb\nlmdb-shards=1\nmodule-dir={modules}\n\
             local-address=127.0.0.1\nlocal-port={dns_port}\nsocket-dir={path}\ndaemon=no\nguardian=no\n\
             write-pid=no\ndisable-syslog=yes\napi=yes\napi-key={POWERDNS_KEY}\nwebserver=yes\n\
             webserver-address=127.0.0.1\nwebserver-port={api_port}\nwebserver-allow-from=127.0.0.1\n\
             query-cache-ttl=0\nnegquery-cache-ttl=0\ncache-ttl=0\nzone-cache-refresh-interval=0\n\
             security-poll-suffix=\n",
            modules = libraries.join("pdns").display(),
            dns_port = dns.port(),
            api_port = api.port(),
        );
        std::fs::write(directory.path().join("pdns.conf"), config).expect("configuration written");
        let mut command = Command::new(root.join("usr/sbin/pdns_server"));
        command
            .arg(format!("--config-dir={path}"))
            .env("LD_LIBRARY_PATH", &libraries);
        let mut process = BoundProcess::spawn(command, &directory.path().join("log"));
        let http = Client::new();
        let read_log = || std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
        let look = || {
            let ended = !process.is_running();
            let request = http.get(format!("http://{api}/api/v1/servers/localhost"));
            let answering = request.header("X-API-Key", POWERDNS_KEY).send();
            async move {
                let is_ready = answering
                    .await
                    .is_ok_and(|response| response.status() == StatusCode::OK);
                (is_ready || ended).then_some(is_ready)
            }
        };
        if !wait_for(look, || format!("PowerDNS to start:\n{}", read_log())).await {
            println!("PowerDNS did not start:\n{}", read_log());
            return None;
        }
        Some(Self {
            api,
            dns,
            http,
            _process: process,
            _directory: directory,
        })
    }

    /// Returns the address it answers DNS queries at.
    pub fn dns_address(&self) -> SocketAddr {
        self.dns
    }

    /// Returns the base URL of its API.
    pub fn url(&self) -> String {
        format!("http://{}", self.api)
    }

    async fn request(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let url = format!("{}/api/v1/servers/localhost{path}", self.url());
        let request = self.http.request(method, url).header("X-API-Key", POWERDNS_KEY);
        let response = request
            .body(body.to_string())
            .send()
            .await
            .expect("PowerDNS responds");
        let status = response.status();
        let bytes = response.bytes().await.expect("a body");
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// Creates a zone, named without a dot at its end.
    pub async fn create_zone(&self, zone: &str) {
        let body =
            json!({"name": format!("{zone}."), "kind": "Native", "nameservers": [format!("ns1.{zone}.")]});
        let (status, answer) = self.request(Method::POST, "/zones", body).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }

    /// Returns the record sets of a zone besides SOA and NS, each as `NAME TYPE TTL CONTENT, …`, sorted.
    pub async fn record_sets(&self, zone: &str) -> Vec<String> {
        let (status, answer) = self
            .request(Method::GET, &format!("/zones/{zone}."), Value::Null)
            .await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let sets = answer["rrsets"].as_array().expect("record sets");
        let sets = sets
            .iter()
            .filter(|set| set["type"] != "SOA" && set["type"] != "NS");
        let mut lines: Vec<String> = sets
            .map(|set| {
                let records = set["records"].as_array().expect("records").iter();
                let mut contents: Vec<&str> = records.filter_map(|r| r["content"].as_str()).collect();
                contents.sort_unstable();
                let text = |field: &str| set[field].as_str().unwrap_or_default();
                format!(
                    "{} {} {} {}",
                    text("name"),
                    text("type"),
                    set["ttl"],
                    contents.join(", ")
                )
            })
            .collect();
        lines.sort_unstable();
        lines
    }

    /// Replaces a record set past Ostler; without contents it is deleted.
    pub async fn replace(&self, zone: &str, name: &str, kind: &str, contents: &[&str]) {
        let records: Vec<Value> = contents
            .iter()
            .map(|content| json!({"content": content, "disabled": false}))
            .collect();
        let change = if contents.is_empty() { "DELETE" } else { "REPLACE" };
        let body = json!({"rrsets": [{"name": format!("{name}."), "type": kind, "ttl": 60, "changetype": change,
            "records": records}]});
        let (status, answer) = self
            .request(Method::PATCH, &format!("/zones/{zone}."), body)
            .await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{answer}");
    }

    /// Asks the server by DNS for a name and a type code (1 A, 5 CNAME, 15 MX, 16 TXT, 28 AAAA, 33 SRV).
    pub async fn resolve(&self, name: &str, kind: u16) -> DnsResponse {
        let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            query.push(u8::try_from(label.len()).expect("a short label"));
            query.extend_from_slice(label.as_bytes());
        }
        query.push(0);
        query.extend_from_slice(&kind.to_be_bytes());
        query.extend_from_slice(&[0, 1]);
        self.forward(&query).await
    }

    /// Sends a DNS message, as a resolver does.
    pub async fn forward(&self, query: &[u8]) -> DnsResponse {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0")
            .await
            .expect("a socket");
        socket.send_to(query, self.dns).await.expect("sent");
        let mut message = vec![0; 4096];
        let received = tokio::time::timeout(QUERY_TIMEOUT, socket.recv(&mut message)).await;
        let length = received.expect("PowerDNS responds").expect("a message");
        message.truncate(length);
        assert_eq!(message[..2], query[..2], "the response to this query");
        DnsResponse { message }
    }
}

/// An address of loopback whose port is free for TCP and UDP.
fn free_address() -> SocketAddr {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        if UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
}

/// The root of the extracted packages: `OSTLER_TEST_POWERDNS`, which `cargo xtask test` sets, or where it puts them.
fn installation() -> PathBuf {
    std::env::var_os("OSTLER_TEST_POWERDNS")
        .map_or_else(|| workspace_root().join("target/pdns-server"), PathBuf::from)
}
