//! One request for an artifact, from an offset on.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::serve::DIGEST_HEADER;

/// Time to connect. A pod that is gone does not answer at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time without any data after which the connection counts as broken.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Size of the longest head of a response, in bytes.
const MAX_HEAD_BYTES: usize = 4096;

/// Header fields of a response.
const MAX_HEADERS: usize = 16;

/// An open response.
pub struct OpenResponse {
    stream: TcpStream,
    /// Bytes of the body that were read together with the head.
    buffered: Vec<u8>,
    /// Bytes of the body that are still to come.
    remaining: u64,
}

/// The head of a response.
#[derive(Debug, Default, PartialEq, Eq)]
struct Head {
    status: u16,
    length: u64,
    digest: String,
    /// Start of the partial content.
    start: u64,
}

/// Requests an artifact from this offset. The error names the cause, and is worth another attempt.
pub fn request(
    address: &str,
    path: &str,
    authorization: &str,
    digest: &str,
    offset: u64,
) -> Result<OpenResponse, String> {
    let address: SocketAddr = address.parse().map_err(|_| format!("{address} is no address"))?;
    let failed = |error: io::Error| format!("{address}: {error}");
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map_err(failed)?;
    stream.set_read_timeout(Some(READ_TIMEOUT)).map_err(failed)?;
    stream.set_write_timeout(Some(READ_TIMEOUT)).map_err(failed)?;
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: {authorization}\r\nRange: bytes={offset}-\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).map_err(failed)?;
    let (head, buffered) = read_head(&mut stream).map_err(failed)?;
    match head.status {
        200 | 206 => {}
        401 => {
            return Err(format!(
                "{address} refuses the signature: it is of another Step or namespace (HTTP 401)"
            ));
        }
        503 => return Err(format!("{address} has not packed the artifact yet (HTTP 503)")),
        other => return Err(format!("{address} answers with HTTP {other}")),
    }
    // Before any byte of it is used: an address may belong to another pod by now.
    if head.digest != digest {
        return Err(format!(
            "{address} has another artifact: {} instead of {digest}",
            head.digest
        ));
    }
    if head.start != offset {
        return Err(format!(
            "{address} answers from byte {} instead of {offset}",
            head.start
        ));
    }
    Ok(OpenResponse {
        stream,
        buffered,
        remaining: head.length,
    })
}

fn read_head(stream: &mut TcpStream) -> io::Result<(Head, Vec<u8>)> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&buffer[..read]);
        if let Some((head, size)) = parse_head(&bytes)? {
            return Ok((head, bytes.split_off(size)));
        }
        if bytes.len() > MAX_HEAD_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the head of the response is too long",
            ));
        }
    }
}

fn parse_head(bytes: &[u8]) -> io::Result<Option<(Head, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut fields);
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, format!("no HTTP response: {error}"));
    let httparse::Status::Complete(size) = response.parse(bytes).map_err(invalid)? else {
        return Ok(None);
    };
    let mut head = Head {
        status: response.code.unwrap_or(0),
        ..Head::default()
    };
    for field in response.headers.iter() {
        let value = String::from_utf8_lossy(field.value);
        if field.name.eq_ignore_ascii_case("Content-Length") {
            head.length = value.parse().unwrap_or(0);
        } else if field.name.eq_ignore_ascii_case(DIGEST_HEADER) {
            head.digest = value.into_owned();
        } else if field.name.eq_ignore_ascii_case("Content-Range") {
            let start = value
                .strip_prefix("bytes ")
                .and_then(|range| range.split('-').next()?.parse().ok());
            head.start = start.unwrap_or(0);
        }
    }
    Ok(Some((head, size)))
}

impl Read for OpenResponse {
    /// Reads the body. A connection that ends early is an error.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.remaining == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let max = usize::try_from(self.remaining)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = if self.buffered.is_empty() {
            self.stream.read(&mut buffer[..max])?
        } else {
            let read = self.buffered.as_slice().read(&mut buffer[..max])?;
            self.buffered.drain(..read);
            read
        };
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.remaining -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_of_a_response_is_parsed() {
        let text = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Range: bytes 7-11/12\r\n\
                     ostler-digest: sha256:a\r\n\r\nhello";
        let (head, size) = parse_head(text).expect("HTTP").expect("is complete");
        assert_eq!(
            head,
            Head {
                status: 206,
                length: 5,
                digest: "sha256:a".into(),
                start: 7
            }
        );
        assert_eq!(&text[size..], b"hello");
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n").expect("HTTP").is_none());
        assert!(parse_head(b"SSH-2.0-OpenSSH\r\n\r\n").is_err());
    }
}
