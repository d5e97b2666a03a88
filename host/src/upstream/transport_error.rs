//! Errors of the transport: a cause that people can act on, and its class, on which retries and the status depend.

use std::error::Error;

use super::SendError;
use crate::policy::network::NotAllowed;

/// The class of a transport error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The connection failed: nothing was sent.
    Connect,
    /// The TLS handshake failed: nothing was sent.
    Tls,
    /// The network policy does not allow the address.
    Address,
    /// The connection broke, or nothing was received in time.
    Broken,
}

/// An error of the transport. Its text never contains the URL, whose query may be anything.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The class.
    pub kind: Kind,
    /// The innermost cause.
    pub text: String,
}

impl Fault {
    /// The error of a request.
    pub fn of(error: &reqwest::Error) -> Self {
        let mut fault = Self::within(error, error.is_connect());
        if error.is_timeout() {
            fault.text = "no answer in time".into();
            if error.is_connect() {
                fault.text = "can't connect: no answer in time".into();
            }
        } else if error.source().is_none() {
            fault.text = "the connection failed".into();
        }
        fault
    }

    /// The error of a connection attempt.
    pub fn connecting(error: &(dyn Error + 'static)) -> Self {
        Self::within(error, true)
    }

    fn within(error: &(dyn Error + 'static), connecting: bool) -> Self {
        let mut kind = if connecting { Kind::Connect } else { Kind::Broken };
        let mut cause = error;
        loop {
            if cause.is::<NotAllowed>() {
                kind = Kind::Address;
            } else if cause.is::<rustls::Error>() {
                kind = Kind::Tls;
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
        let what = match kind {
            Kind::Connect => "can't connect: ",
            Kind::Tls => "TLS: ",
            Kind::Address | Kind::Broken => "",
        };
        Self {
            kind,
            text: format!("{what}{cause}"),
        }
    }

    /// No part of the request was sent.
    pub fn unsent(&self) -> bool {
        matches!(self.kind, Kind::Connect | Kind::Tls)
    }

    /// Converts to the error of a request, with a prefix that names the operation.
    pub fn error(self, doing: &str) -> SendError {
        let text = format!("{doing}{}", self.text);
        match self.kind {
            Kind::Address => SendError::NotAllowed(text),
            _ => SendError::Unavailable(text),
        }
    }
}
