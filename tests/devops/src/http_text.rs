//! Responses of CGI programs (RFC 3875) and of HTTP/1.0 servers.

use bytes::Bytes;
use http::Response;

/// Parses a whole response. Its status is in a status line, or in the field `Status` of a CGI program, or 200.
pub(crate) fn parse_response(output: &[u8]) -> Response<Bytes> {
    let end = output.windows(4).position(|window| window == b"\r\n\r\n");
    let (head, body) = end.map_or((output, &b""[..]), |end| (&output[..end], &output[end + 4..]));
    let mut response = Response::builder();
    for line in String::from_utf8_lossy(head).lines() {
        let status = line
            .strip_prefix("Status: ")
            .or_else(|| line.strip_prefix("HTTP/1.0 "));
        response = match (status, line.split_once(": ")) {
            (Some(status), _) => response.status(status.split(' ').next().unwrap_or("500")),
            // The server that forwards it frames the body itself.
            (None, Some((name, _))) if name.eq_ignore_ascii_case("content-length") => response,
            (None, Some((name, value))) => response.header(name, value),
            (None, None) => response,
        };
    }
    response.body(Bytes::copy_from_slice(body)).expect("headers")
}
