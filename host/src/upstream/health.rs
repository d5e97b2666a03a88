//! The health of an upstream, recorded by its requests, and the status conditions made of it. Pure.

use std::time::{Duration, Instant};

use super::{SendError, transport_error};
use crate::contract::bindings::{
    reconciler::{Failure, Next, Outcome, Resolution},
    types::{Condition, TriState},
};

/// Time for which a rejected request stands against the credentials; later a success on another path clears it.
const REFUSAL: Duration = Duration::from_secs(600);

/// The content of a status condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The condition is true.
    pub good: bool,
    /// The reason, in CamelCase.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
}

impl Fact {
    fn new(good: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            good,
            reason,
            message: message.into(),
        }
    }
}

/// The known health of an upstream. Each `record_…` returns true if the status has to change.
#[derive(Clone, Debug, Default)]
pub struct Health {
    connected: Option<Fact>,
    authenticated: Option<Fact>,
    /// The path that rejected the credentials, and when: a success on another path proves nothing at first.
    refused: Option<(String, Instant)>,
    /// The time of the last sign of life.
    heard: Option<Instant>,
}

impl Health {
    /// The connection was never tried.
    pub fn unknown(&self) -> bool {
        self.connected.is_none()
    }

    /// The upstream is reachable and accepts the credentials, as far as is known.
    pub fn good(&self) -> bool {
        let bad = |fact: &Option<Fact>| fact.as_ref().is_some_and(|f| !f.good);
        self.connected.is_some() && !bad(&self.connected) && !bad(&self.authenticated)
    }

    /// Time since the last sign of life.
    pub fn silent(&self, now: Instant) -> Duration {
        self.heard
            .map_or(Duration::MAX, |heard| now.saturating_duration_since(heard))
    }

    /// The upstream can be reached.
    pub fn reached(&mut self, now: Instant) -> bool {
        self.heard = Some(now);
        match &self.connected {
            Some(fact) if fact.good => false,
            _ => set(&mut self.connected, Fact::new(true, "Connected", "")),
        }
    }

    /// The upstream has responded to a request with credentials.
    pub fn answered(&mut self, status: u16, path: &str, now: Instant) -> bool {
        let mut news = self.reached(now);
        if status == 401 {
            self.refused = Some((path.to_owned(), now));
            let message = "The server does not accept the credentials (HTTP 401)";
            news |= set(&mut self.authenticated, Fact::new(false, "AuthFailed", message));
        } else if status < 400 {
            let stands = |(at, since): &(String, Instant)| {
                at != path && now.saturating_duration_since(*since) < REFUSAL
            };
            if !self.refused.as_ref().is_some_and(stands) {
                self.refused = None;
                news |= self.accepted("Accepted");
            }
        }
        news
    }

    fn accepted(&mut self, reason: &'static str) -> bool {
        match &self.authenticated {
            Some(fact) if fact.good => false,
            _ => set(&mut self.authenticated, Fact::new(true, reason, "")),
        }
    }

    /// A login has succeeded or failed.
    pub fn logged_in(&mut self, result: Result<(), &SendError>, now: Instant) -> bool {
        match result {
            // A token that requests are rejected with proves nothing.
            Ok(()) if self.refused.is_some() => self.reached(now),
            Ok(()) => self.reached(now) | self.accepted("LoggedIn"),
            Err(SendError::LoginFailed(why)) => {
                let fact = Fact::new(false, "AuthFailed", format!("Log-in refused: {why}"));
                self.reached(now) | set(&mut self.authenticated, fact)
            }
            // A failed login says nothing about the credentials; but there is no token.
            Err(SendError::Unavailable(why)) if self.authenticated.as_ref().is_none_or(|f| f.good) => {
                let fact = Fact::new(false, "LoginFailed", why.clone());
                self.reached(now) | set(&mut self.authenticated, fact)
            }
            Err(_) => false,
        }
    }

    /// The upstream cannot be reached.
    pub fn unreachable(&mut self, kind: transport_error::Kind, why: &str) -> bool {
        let reason = match kind {
            transport_error::Kind::Tls => "TLSFailed",
            transport_error::Kind::Address => "AddressNotAllowed",
            transport_error::Kind::Connect | transport_error::Kind::Broken => "ConnectionFailed",
        };
        set(&mut self.connected, Fact::new(false, reason, why))
    }

    /// The report for the status. `open` is the failure that keeps the circuit breaker open; `is_anonymous` is set if
    /// the Upstream needs no credentials.
    pub fn report(&self, open: Option<&str>, none: bool) -> Report {
        let connected = match (&self.connected, open) {
            (Some(fact), _) if !fact.good => Some(fact.clone()),
            (_, Some(why)) => Some(Fact::new(
                false,
                "CircuitOpen",
                format!("Not asked for a moment: {why}"),
            )),
            (fact, None) => fact.clone(),
        };
        let authenticated = match none {
            true => Some(Fact::new(true, "NoCredentials", "")),
            false => self.authenticated.clone(),
        };
        Report {
            connected,
            authenticated,
            stalled: false,
        }
    }
}

/// Replaces a fact if status or reason differ; messages of the same error differ each time and are no change.
fn set(fact: &mut Option<Fact>, new: Fact) -> bool {
    let news = fact
        .as_ref()
        .is_none_or(|f| (f.good, f.reason) != (new.good, new.reason));
    if news {
        *fact = Some(new);
    }
    news
}

/// The conditions of an Upstream. `None` for a condition that was not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The condition `Connected`.
    pub connected: Option<Fact>,
    /// The condition `Authenticated`.
    pub authenticated: Option<Fact>,
    /// Only a change of the object or its Secrets helps.
    pub stalled: bool,
}

impl Report {
    /// The report for an Upstream that cannot be tried because of its spec or its Secrets.
    pub fn wrong(error: &SendError) -> Self {
        let (reason, stalled) = match error {
            SendError::NotFound(_) => ("SecretMissing", false),
            SendError::NotAllowed(_) => ("AddressNotAllowed", true),
            _ => ("InvalidSpec", true),
        };
        let fact = Some(Fact::new(false, reason, error.to_string()));
        match error {
            SendError::NotFound(_) => Self {
                authenticated: fact,
                ..Self::default()
            },
            _ => Self {
                connected: fact,
                stalled,
                ..Self::default()
            },
        }
    }

    /// The report as conditions of an outcome or a failure.
    pub fn answer(&self) -> Result<Outcome, Failure> {
        let condition = |kind: &str, fact: &Option<Fact>| {
            let (status, reason, message) = match fact {
                Some(fact) if fact.good => (TriState::Yes, fact.reason, &*fact.message),
                Some(fact) => (TriState::No, fact.reason, &*fact.message),
                None => (TriState::Unknown, "NotChecked", ""),
            };
            Condition {
                type_: kind.into(),
                status,
                reason: reason.into(),
                message: message.into(),
            }
        };
        let mut conditions = vec![
            condition("Connected", &self.connected),
            condition("Authenticated", &self.authenticated),
        ];
        let bad = [&self.connected, &self.authenticated];
        if let Some(bad) = bad.into_iter().flatten().find(|fact| !fact.good) {
            return Err(Failure {
                resolution: match self.stalled {
                    true => Resolution::Parked,
                    false => Resolution::Yield,
                },
                reason: bad.reason.into(),
                message: bad.message.clone(),
                conditions,
                status: None,
            });
        }
        if self.connected.is_none() {
            conditions.push(condition("Ready", &None));
        }
        Ok(Outcome {
            conditions,
            status: None,
            next: Next::Settled,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_returns_true_on_change_only() {
        let (mut health, t) = (Health::default(), Instant::now());
        assert!(health.unknown() && health.silent(t) == Duration::MAX);
        assert!(health.answered(200, "/a", t) && !health.answered(404, "/b", t) && health.good());
        assert!(health.unreachable(transport_error::Kind::Connect, "refused"));
        assert!(!health.unreachable(transport_error::Kind::Broken, "reset") && !health.good());
        assert!(health.unreachable(transport_error::Kind::Tls, "expired"));
        assert!(health.reached(t) && !health.reached(t) && health.good());
    }

    #[test]
    fn rejected_credentials_survive_success_on_other_path() {
        let (mut health, t) = (Health::default(), Instant::now());
        assert!(health.answered(401, "/user", t));
        assert!(!health.answered(200, "/info", t) && !health.logged_in(Ok(()), t) && !health.good());
        assert!(health.answered(200, "/user", t) && health.good());
        assert!(health.answered(401, "/user", t));
        assert!(health.answered(200, "/info", t + REFUSAL), "long ago");
        let refused = SendError::LoginFailed("HTTP 401: no".into());
        assert!(health.logged_in(Err(&refused), t) && health.logged_in(Ok(()), t));
        let ill = SendError::Unavailable("log-in: HTTP 500".into());
        assert!(
            health.logged_in(Err(&ill), t) && !health.good() && health.logged_in(Ok(()), t) && health.good()
        );
    }

    #[test]
    fn report_yields_ready_reason() {
        let ready = |report: &Report| match report.answer() {
            Ok(outcome) => outcome
                .conditions
                .iter()
                .find(|c| c.type_ == "Ready")
                .map_or("True", |_| "Unknown")
                .to_owned(),
            Err(failure) => failure.reason,
        };
        let (mut health, t) = (Health::default(), Instant::now());
        assert_eq!(ready(&health.report(None, false)), "Unknown");
        health.reached(t);
        assert_eq!(ready(&health.report(None, false)), "True");
        assert_eq!(ready(&health.report(Some("5 failures"), false)), "CircuitOpen");
        health.answered(401, "/", t);
        assert_eq!(ready(&health.report(None, false)), "AuthFailed");
        assert_eq!(ready(&health.report(None, true)), "True");
        health.unreachable(transport_error::Kind::Connect, "refused");
        assert_eq!(
            ready(&health.report(Some("5 failures"), false)),
            "ConnectionFailed"
        );
        let missing = Report::wrong(&SendError::NotFound("Secret a/b".into()));
        assert_eq!(
            (ready(&missing), missing.stalled),
            ("SecretMissing".into(), false)
        );
        assert!(Report::wrong(&SendError::Invalid("x".into())).stalled);
    }
}
