//! Why there was no answer: what a person can act on, and what to do about it.

use std::error::Error;

use super::SendError;
use crate::policy::network::NotAllowed;

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No connection: nothing was sent.
    Connect,
    /// No agreement on TLS: nothing was sent.
    Tls,
    /// The address may not be connected to.
    Address,
    /// The connection broke, or nothing came in time.
    Broken,
}

/// A fault on the way to an answer, in words that never have the URL in them (its query may be anything).
#[derive(Clone, Debug)]
pub struct Fault {
    /// What went wrong.
    pub kind: Kind,
    /// The innermost cause.
    pub text: String,
}

impl Fault {
    /// Of a request.
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

    /// Of an attempt to connect.
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
            // An I/O error gives the source of what it wraps, not what it wraps.
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

    /// Whether nothing of the request has left.
    pub fn unsent(&self) -> bool {
        matches!(self.kind, Kind::Connect | Kind::Tls)
    }

    /// As an error; `doing` says in the midst of what.
    pub fn error(self, doing: &str) -> SendError {
        let text = format!("{doing}{}", self.text);
        match self.kind {
            Kind::Address => SendError::NotAllowed(text),
            _ => SendError::Unavailable(text),
        }
    }
}
