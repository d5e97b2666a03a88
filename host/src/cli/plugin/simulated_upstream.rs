//! Simulated upstreams: HTTP servers with the responses that a project's folder `upstreams/` lists, for samples that need one.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use axum::{
    Router,
    extract::{Request, State},
    response::IntoResponse,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header::CONTENT_TYPE};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use super::files::{list_files, read_file};

/// Folder of a project with a file per upstream.
pub const UPSTREAMS_DIR: &str = "upstreams";

/// A file of the folder: the responses of the upstream that is named like the file.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamFile {
    /// Its path, for messages.
    pub path: PathBuf,
    /// Name of the Upstream.
    pub name: String,
    responses: Vec<SimulatedResponse>,
}

/// The response to a request.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct SimulatedResponse {
    /// Method of the request.
    #[serde(default = "default_method")]
    method: String,
    /// Path and query of the request.
    path: String,
    /// HTTP status.
    #[serde(default = "default_status")]
    status: u16,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// A text, or a value that is sent as JSON.
    #[serde(default)]
    body: Value,
}

fn default_method() -> String {
    "GET".to_owned()
}

fn default_status() -> u16 {
    200
}

impl UpstreamFile {
    /// Reads the files of a project. Errors name the file, and what is wrong with a response.
    pub fn read_all(project: &Path) -> anyhow::Result<Vec<Self>> {
        let paths = list_files(&project.join(UPSTREAMS_DIR), &["yaml", "yml"])?;
        paths.into_iter().map(Self::read).collect()
    }

    fn read(path: PathBuf) -> anyhow::Result<Self> {
        let text = read_file(&path)?;
        let parse = || -> anyhow::Result<Vec<SimulatedResponse>> {
            let responses: Vec<SimulatedResponse> = serde_saphyr::from_str(&text)?;
            responses.iter().try_for_each(SimulatedResponse::check)?;
            Ok(responses)
        };
        let responses = parse().with_context(|| path.display().to_string())?;
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Ok(Self {
            path,
            name,
            responses,
        })
    }
}

impl SimulatedResponse {
    fn check(&self) -> anyhow::Result<()> {
        let Self {
            method,
            path,
            status,
            headers,
            ..
        } = self;
        if Method::from_bytes(method.as_bytes()).is_err() || method.chars().any(|c| c.is_ascii_lowercase()) {
            bail!("method: {method:?} is no HTTP method such as GET");
        }
        if !path.starts_with('/') {
            bail!("path: {path:?} does not begin with /");
        }
        if StatusCode::from_u16(*status).is_err() {
            bail!("status: {status} is no HTTP status");
        }
        for (name, value) in headers {
            if HeaderName::try_from(name).is_err() || HeaderValue::try_from(value).is_err() {
                bail!("headers: {name}: {value:?} is no HTTP header");
            }
        }
        Ok(())
    }

    fn build(&self) -> (StatusCode, HeaderMap, Vec<u8>) {
        let mut headers = HeaderMap::new();
        let body = match &self.body {
            Value::Null => Vec::new(),
            Value::String(text) => text.clone().into_bytes(),
            value => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                value.to_string().into_bytes()
            }
        };
        for (name, value) in &self.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
        (
            StatusCode::from_u16(self.status).unwrap_or_default(),
            headers,
            body,
        )
    }
}

/// The responses that a server has left: several for one request are returned in turn, and the last one stays.
struct Responses {
    /// Path of the file, for messages.
    file: PathBuf,
    list: Vec<SimulatedResponse>,
}

impl Responses {
    fn answer(&mut self, method: &Method, path: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
        let is_for =
            |response: &SimulatedResponse| response.method == method.as_str() && response.path == path;
        let mut found = self
            .list
            .iter()
            .enumerate()
            .filter(|(_, response)| is_for(response));
        let Some((first, response)) = found.next() else {
            let text = format!("{} has no response to {method} {path}\n", self.file.display());
            return (StatusCode::NOT_FOUND, HeaderMap::new(), text.into_bytes());
        };
        let answer = response.build();
        if found.next().is_some() {
            self.list.remove(first);
        }
        answer
    }
}

/// A running server of a simulated upstream, until it is dropped.
pub struct SimulatedUpstream {
    file: UpstreamFile,
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl SimulatedUpstream {
    /// Starts the server of a file, on a free port of the loopback interface.
    pub async fn start(file: &UpstreamFile) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.with_context(|| format!("serving {}", file.path.display()))?;
        let address = listener.local_addr()?;
        let responses = Responses {
            file: file.path.clone(),
            list: file.responses.clone(),
        };
        let state = Arc::new(Mutex::new(responses));
        let router = Router::new().fallback(answer_request).with_state(state);
        let server = tokio::spawn(async move {
            if let Err(e) = axum::serve(listener, router).await {
                eprintln!("a simulated upstream has ended: {e}");
            }
        });
        Ok(Self {
            file: file.clone(),
            address,
            server,
        })
    }

    /// The file that it was started from.
    pub fn file(&self) -> &UpstreamFile {
        &self.file
    }

    /// The Upstream object of the server.
    pub fn build_object(&self) -> Value {
        json!({
            "apiVersion": "ostler.dev/v1alpha1",
            "kind": "Upstream",
            "metadata": {"name": self.file.name},
            "spec": {"url": format!("http://{}", self.address)},
        })
    }
}

impl Drop for SimulatedUpstream {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer_request(
    State(responses): State<Arc<Mutex<Responses>>>,
    request: Request,
) -> impl IntoResponse {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str())
        .to_owned();
    responses.lock().answer(request.method(), &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Vec<UpstreamFile>> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(UPSTREAMS_DIR)).unwrap();
        std::fs::write(folder.path().join("upstreams/pages.yaml"), text).unwrap();
        UpstreamFile::read_all(folder.path())
    }

    #[test]
    fn responses_are_returned_in_turn_and_the_last_one_stays() {
        let text = "- {path: /a, status: 503}\n- {path: /a, body: Hello}\n- {method: PUT, path: '/a?b=c', status: 204}\n\
                    - {path: /json, body: {x: 1}, headers: {ETag: '\"1\"'}}\n";
        let [file] = &read(text).unwrap()[..] else {
            panic!("one file")
        };
        assert_eq!(file.name, "pages");
        let mut responses = Responses {
            file: file.path.clone(),
            list: file.responses.clone(),
        };
        let mut answer = |method, path| {
            let (status, headers, body) = responses.answer(&method, path);
            (status.as_u16(), headers, String::from_utf8(body).unwrap())
        };
        assert_eq!(answer(Method::GET, "/a").0, 503);
        for _ in 0..2 {
            assert_eq!(answer(Method::GET, "/a"), (200, HeaderMap::new(), "Hello".into()));
        }
        assert_eq!(answer(Method::PUT, "/a?b=c").0, 204);
        let (status, headers, body) = answer(Method::GET, "/json");
        assert_eq!((status, &*body), (200, "{\"x\":1}"));
        assert_eq!(
            (&headers[CONTENT_TYPE], &headers["etag"]),
            (&"application/json".parse().unwrap(), &"\"1\"".parse().unwrap())
        );
        let (status, _, body) = answer(Method::DELETE, "/a");
        assert!(
            status == 404 && body.ends_with("upstreams/pages.yaml has no response to DELETE /a\n"),
            "{body}"
        );
    }

    #[test]
    fn invalid_response_is_reported_with_file_and_field() {
        for (text, words) in [
            ("- {path: a}", "path: \"a\" does not begin with /"),
            ("- {path: /a, method: get}", "method: \"get\" is no HTTP method"),
            ("- {path: /a, status: 99}", "status: 99 is no HTTP status"),
            ("- {path: /a, headers: {'a b': c}}", "headers: a b"),
            ("- {path: /a, reply: x}", "reply"),
            ("path: /a", "sequence"),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(
                error.contains("upstreams/pages.yaml") && error.contains(words),
                "{text}: {error}"
            );
        }
    }
}
