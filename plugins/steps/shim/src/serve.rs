//! The output streamer: serves the packed outputs to the fetchers of consumers.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use signal_hook::{consts, iterator::Signals};
use steps_protocol::{ErrorReason, ServeConfig};

use crate::{
    files::{artifact_path, digest_path},
    signature::{Token, now, read_key},
};

/// Path under which the outputs are.
pub const ARTIFACTS_PATH: &str = "/v1/artifacts/";

/// Header with the digest of the artifact.
pub const DIGEST_HEADER: &str = "Ostler-Digest";

/// Connections that are served at a time: each costs a thread and a buffer.
const MAX_CONNECTIONS: usize = 32;

/// Size of the longest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 4096;

/// Header fields of a request.
const MAX_HEADERS: usize = 16;

/// Time that a client may take for one write, which only a client with a token causes.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Time in which the whole head of a request must have arrived: until then a client has shown no token, and clients that send
/// nothing must not keep the others out.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Size of the buffer between file and connection.
const COPY_BYTES: usize = 64 * 1024;

/// Serves until SIGTERM.
pub fn serve(config: &ServeConfig) -> Result<(), (ErrorReason, String)> {
    let failed = |error: io::Error| (ErrorReason::StreamerFailed, error.to_string());
    let key = read_key(&config.key_path).map_err(failed)?;
    let listener = listen(&config.listen).map_err(|error| {
        (
            ErrorReason::StreamerFailed,
            format!("Cannot listen at {}: {error}.", config.listen),
        )
    })?;
    let mut signals = Signals::new([consts::SIGTERM, consts::SIGINT]).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    println!("Serving {} outputs at {address}.", config.outputs.len());
    let server = Arc::new(Server {
        token: Token::derive(&key, &config.step),
        outputs: config.outputs.clone(),
        root: config.root.clone(),
    });
    thread::spawn(move || accept(&listener, &server));
    signals.forever().next();
    Ok(())
}

/// Listens; at all IPv4 addresses where the node has no IPv6.
fn listen(address: &str) -> io::Result<TcpListener> {
    TcpListener::bind(address).or_else(|error| match address.strip_prefix("[::]:") {
        Some(port) => TcpListener::bind(format!("0.0.0.0:{port}")),
        None => Err(error),
    })
}

fn accept(listener: &TcpListener, server: &Arc<Server>) {
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors, which pass.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        if connections.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            connections.fetch_sub(1, Ordering::Relaxed);
            let _ = respond(&stream, "503 Service Unavailable", &["Retry-After: 1".into()]);
            continue;
        }
        let slot = ConnectionSlot(Arc::clone(&connections));
        let server = Arc::clone(server);
        // Without a thread the connection breaks, and the client retries.
        let _ = thread::Builder::new().spawn(move || {
            let _slot = slot;
            // The client sees a broken connection, and retries.
            let _ = server.handle(&stream);
        });
    }
}

/// One of the connections that are served at a time. It is free again however its thread ends.
struct ConnectionSlot(Arc<AtomicUsize>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The outputs that are served, and their token.
struct Server {
    token: Token,
    outputs: Vec<String>,
    root: String,
}

/// The parts of a request that count.
struct Head {
    path: String,
    authorization: String,
    range: Option<String>,
}

impl Server {
    fn handle(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let Some(head) = read_head(stream)? else {
            return respond(stream, "400 Bad Request", &[]);
        };
        if !self.token.verify(&head.path, &head.authorization, now()) {
            return respond(stream, "401 Unauthorized", &[]);
        }
        let name = head
            .path
            .strip_prefix(ARTIFACTS_PATH)
            .filter(|name| self.outputs.iter().any(|o| o == name));
        let Some(name) = name else {
            return respond(stream, "404 Not Found", &[]);
        };
        let Ok(file) = File::open(artifact_path(&self.root, name)) else {
            // The process is still running.
            return respond(stream, "503 Service Unavailable", &["Retry-After: 1".into()]);
        };
        let digest = fs::read_to_string(digest_path(&self.root, name))?;
        send_file(stream, file, &digest, head.range.as_deref())
    }
}

fn send_file(stream: &TcpStream, mut file: File, digest: &str, range: Option<&str>) -> io::Result<()> {
    let length = file.metadata()?.len();
    let start = range.and_then(parse_range).unwrap_or(0);
    let mut headers = vec![format!("{DIGEST_HEADER}: {digest}")];
    if start > length {
        headers.push(format!("Content-Range: bytes */{length}"));
        return respond(stream, "416 Range Not Satisfiable", &headers);
    }
    let rest = length - start;
    let status = if start > 0 && rest > 0 {
        headers.push(format!("Content-Range: bytes {start}-{}/{length}", length - 1));
        "206 Partial Content"
    } else {
        "200 OK"
    };
    headers.push(format!("Content-Length: {rest}"));
    file.seek(SeekFrom::Start(start))?;
    write_head(stream, status, &headers)?;
    let (mut to, mut buffer) = (stream, vec![0; COPY_BYTES]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read])?;
    }
}

/// The start of `bytes=N-`, the only form that fetchers send.
fn parse_range(range: &str) -> Option<u64> {
    range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
}

fn read_head(mut stream: &TcpStream) -> io::Result<Option<Head>> {
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    let deadline = Instant::now() + HEAD_TIMEOUT;
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        let read = stream.read(&mut buffer)?;
        if read == 0 || head.len() + read > MAX_HEAD_BYTES {
            return Ok(None);
        }
        head.extend_from_slice(&buffer[..read]);
    }
    Ok(parse_head(&head))
}

fn parse_head(head: &[u8]) -> Option<Head> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut fields);
    let is_complete = request.parse(head).ok()?.is_complete();
    if !is_complete || request.method != Some("GET") {
        return None;
    }
    let path = request.path?.to_owned();
    let find = |name: &str| {
        let field = request
            .headers
            .iter()
            .find(|field| field.name.eq_ignore_ascii_case(name))?;
        String::from_utf8(field.value.to_vec()).ok()
    };
    Some(Head {
        path,
        authorization: find("Authorization").unwrap_or_default(),
        range: find("Range"),
    })
}

fn respond(stream: &TcpStream, status: &str, headers: &[String]) -> io::Result<()> {
    let mut headers = headers.to_vec();
    headers.push("Content-Length: 0".into());
    write_head(stream, status, &headers)
}

fn write_head(mut stream: &TcpStream, status: &str, headers: &[String]) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_parsed_and_malformed_ones_are_refused() {
        let head =
            parse_head(b"GET /a HTTP/1.1\r\nauthorization: x\r\nRange: bytes=5-\r\n\r\n").expect("a head");
        assert_eq!((&*head.path, &*head.authorization), ("/a", "x"));
        assert_eq!(head.range.as_deref().and_then(parse_range), Some(5));
        for wrong in [
            "POST /a HTTP/1.1\r\n\r\n",
            "GET\r\n\r\n",
            "\u{1}\u{2}",
            "GET /a HTTP/1.1\r\n",
        ] {
            assert!(parse_head(wrong.as_bytes()).is_none(), "{wrong}");
        }
        for wrong in [
            "bytes=-5",
            "bytes=1-2",
            "bytes=",
            "lines=1-",
            "bytes=99999999999999999999-",
        ] {
            assert_eq!(parse_range(wrong), None, "{wrong}");
        }
    }
}
