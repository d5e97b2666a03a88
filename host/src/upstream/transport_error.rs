//! Errors of the transport: a cause that people can act on, and its class, on which retries and the status depend.

use std::{
    error::Error,
    io,
    time::{Duration, SystemTime},
};

use rustls::{CertificateError, InvalidMessage};

use super::SendError;
use crate::{kube::time::format_rfc3339, policy::network::AddressNotAllowed};

/// The class of a transport error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportErrorKind {
    /// The connection failed: nothing was sent.
    Connect,
    /// The TLS handshake failed: nothing was sent.
    Tls,
    /// The peer answered the TLS handshake with something else, as a server of plain HTTP does: nothing was sent.
    NoTls,
    /// The network policy does not allow the address.
    Address,
    /// The connection broke, or nothing was received in time.
    Broken,
}

/// An error of the transport. Its text never contains the URL, whose query may be anything.
#[derive(Clone, Debug)]
pub struct TransportError {
    /// The class.
    pub kind: TransportErrorKind,
    /// The innermost cause.
    pub text: String,
}

impl TransportError {
    /// The error of a request.
    pub fn from_request(error: &reqwest::Error) -> Self {
        let mut transport_error = Self::from_chain(error, error.is_connect());
        if error.is_timeout() {
            transport_error.text = "no answer in time".into();
            if error.is_connect() {
                transport_error.text = "can't connect: no answer in time".into();
            }
        } else if error.source().is_none() {
            transport_error.text = "the connection failed".into();
        }
        transport_error
    }

    /// The error of a connection attempt.
    pub fn from_connect(error: &(dyn Error + 'static)) -> Self {
        Self::from_chain(error, true)
    }

    fn from_chain(error: &(dyn Error + 'static), connecting: bool) -> Self {
        let mut kind = if connecting {
            TransportErrorKind::Connect
        } else {
            TransportErrorKind::Broken
        };
        let mut cause = error;
        let mut described = None;
        loop {
            let io = cause.downcast_ref::<io::Error>();
            if cause.is::<AddressNotAllowed>() {
                kind = TransportErrorKind::Address;
            } else if let Some(error) = cause.downcast_ref() {
                kind = match error {
                    rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
                        TransportErrorKind::NoTls
                    }
                    _ => TransportErrorKind::Tls,
                };
                described = describe_certificate_error(error);
            } else if io.is_some_and(|io| io.kind() == io::ErrorKind::UnexpectedEof) {
                described = Some("the server closed the connection".to_owned());
            }
            // `io::Error::source` skips the error that it wraps.
            let wrapped = io.and_then(io::Error::get_ref);
            let next = match wrapped {
                Some(inner) => Some(inner as &(dyn Error + 'static)),
                None => cause.source(),
            };
            let Some(next) = next else { break };
            cause = next;
        }
        let cause = described.unwrap_or_else(|| cause.to_string());
        let text = match kind {
            TransportErrorKind::Connect => format!("can't connect: {cause}"),
            TransportErrorKind::Tls => format!("TLS: {cause}"),
            TransportErrorKind::NoTls => "TLS: the server answers without TLS".to_owned(),
            TransportErrorKind::Address | TransportErrorKind::Broken => cause,
        };
        Self { kind, text }
    }

    /// No part of the request was sent.
    pub fn is_unsent(&self) -> bool {
        matches!(
            self.kind,
            TransportErrorKind::Connect | TransportErrorKind::Tls | TransportErrorKind::NoTls
        )
    }

    /// Converts to the error of a request, with a prefix that names the operation.
    pub fn into_send_error(self, doing: &str) -> SendError {
        let text = format!("{doing}{}", self.text);
        match self.kind {
            TransportErrorKind::Address => SendError::NotAllowed(text),
            _ => SendError::Unavailable(text),
        }
    }
}

/// Describes a certificate at the wrong time. The error's own text has the time of the check, and a condition with it would be another
/// one with each request.
fn describe_certificate_error(error: &rustls::Error) -> Option<String> {
    let rustls::Error::InvalidCertificate(error) = error else {
        return None;
    };
    let (what, time) = match error {
        CertificateError::ExpiredContext { not_after, .. } => ("has expired: it was valid until", not_after),
        CertificateError::NotValidYetContext { not_before, .. } => ("is not valid before", not_before),
        _ => return None,
    };
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(time.as_secs()))?;
    Some(format!(
        "the server's certificate {what} {}",
        format_rfc3339(time)
    ))
}
