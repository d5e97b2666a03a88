//! Errors of the transport: a cause that people can act on, and its class, on which retries and the status depend.

use std::error::Error;

use rustls::InvalidMessage;

use super::SendError;
use crate::policy::network::AddressNotAllowed;

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
        loop {
            if cause.is::<AddressNotAllowed>() {
                kind = TransportErrorKind::Address;
            } else if let Some(error) = cause.downcast_ref() {
                kind = match error {
                    rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
                        TransportErrorKind::NoTls
                    }
                    _ => TransportErrorKind::Tls,
                };
            }
            // `std::io::Error::source` skips the error that it wraps.
            let wrapped = cause.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref());
            let next = match wrapped {
                Some(inner) => Some(inner as &(dyn Error + 'static)),
                None => cause.source(),
            };
            let Some(next) = next else { break };
            cause = next;
        }
        let text = match kind {
            TransportErrorKind::Connect => format!("can't connect: {cause}"),
            TransportErrorKind::Tls => format!("TLS: {cause}"),
            TransportErrorKind::NoTls => "TLS: the server answers without TLS".to_owned(),
            TransportErrorKind::Address | TransportErrorKind::Broken => cause.to_string(),
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
