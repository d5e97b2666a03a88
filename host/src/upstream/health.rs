//! How it is with an upstream, as its requests tell: pure, and the conditions made of it.

use std::time::{Duration, Instant};

use super::{SendError, transport_error};
use crate::contract::bindings::{
    reconciler::{Failure, Next, Outcome, Resolution},
    types::{Condition, ConditionStatus},
};

/// A refused request stands against the credentials for this long; then success elsewhere is enough.
const REFUSAL: Duration = Duration::from_secs(600);

/// Something that is so or not, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Whether it is so.
    pub good: bool,
    /// Why, in a word.
    pub reason: &'static str,
    /// Why, for people.
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

/// What is known of an upstream. Every change of it gives whether people should be told.
#[derive(Clone, Debug, Default)]
pub struct Health {
    connected: Option<Fact>,
    authenticated: Option<Fact>,
    /// The path at which the credentials were refused: success elsewhere proves nothing at first.
    refused: Option<(String, Instant)>,
    /// When something was last heard from it.
    heard: Option<Instant>,
}

impl Health {
    /// Whether nothing is known of the connection yet.
    pub fn unknown(&self) -> bool {
        self.connected.is_none()
    }

    /// Whether it is as it should be, as far as is known.
    pub fn good(&self) -> bool {
        let bad = |fact: &Option<Fact>| fact.as_ref().is_some_and(|f| !f.good);
        self.connected.is_some() && !bad(&self.connected) && !bad(&self.authenticated)
    }

    /// How long nothing was heard.
    pub fn silent(&self, now: Instant) -> Duration {
        self.heard
            .map_or(Duration::MAX, |heard| now.saturating_duration_since(heard))
    }

    /// It can be reached.
    pub fn reached(&mut self, now: Instant) -> bool {
        self.heard = Some(now);
        match &self.connected {
            Some(fact) if fact.good => false,
            _ => set(&mut self.connected, Fact::new(true, "Connected", "")),
        }
    }

    /// It has answered a request with credentials.
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

    /// It has given a token, or not.
    pub fn logged_in(&mut self, result: Result<(), &SendError>, now: Instant) -> bool {
        match result {
            // A token that is not accepted is worth nothing.
            Ok(()) if self.refused.is_some() => self.reached(now),
            Ok(()) => self.reached(now) | self.accepted("LoggedIn"),
            Err(SendError::LoginFailed(why)) => {
                let fact = Fact::new(false, "AuthFailed", format!("Log-in refused: {why}"));
                self.reached(now) | set(&mut self.authenticated, fact)
            }
            // Why no token was given says nothing of the credentials; but there is none.
            Err(SendError::Unavailable(why)) if self.authenticated.as_ref().is_none_or(|f| f.good) => {
                let fact = Fact::new(false, "LoginFailed", why.clone());
                self.reached(now) | set(&mut self.authenticated, fact)
            }
            Err(_) => false,
        }
    }

    /// There is no connection.
    pub fn unreachable(&mut self, kind: transport_error::Kind, why: &str) -> bool {
        let reason = match kind {
            transport_error::Kind::Tls => "TLSFailed",
            transport_error::Kind::Address => "AddressNotAllowed",
            transport_error::Kind::Connect | transport_error::Kind::Broken => "ConnectionFailed",
        };
        set(&mut self.connected, Fact::new(false, reason, why))
    }

    /// What people are told. `open` is why it is not asked at the moment, if it isn't; `none` says that there are no
    /// credentials.
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

/// Only another word is news: the messages of a fault differ each time.
fn set(fact: &mut Option<Fact>, new: Fact) -> bool {
    let news = fact
        .as_ref()
        .is_none_or(|f| (f.good, f.reason) != (new.good, new.reason));
    if news {
        *fact = Some(new);
    }
    news
}

/// What the conditions of an Upstream are made of. None for what was not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether there is a connection.
    pub connected: Option<Fact>,
    /// Whether the credentials are accepted.
    pub authenticated: Option<Fact>,
    /// Whether only a change of the object or its Secrets helps.
    pub stalled: bool,
}

impl Report {
    /// It can't even be tried, for one of the reasons that lie in the object and its Secrets.
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

    /// As conditions, and as an outcome or a failure.
    pub fn answer(&self) -> Result<Outcome, Failure> {
        let condition = |kind: &str, fact: &Option<Fact>| {
            let (status, reason, message) = match fact {
                Some(fact) if fact.good => (ConditionStatus::True, fact.reason, &*fact.message),
                Some(fact) => (ConditionStatus::False, fact.reason, &*fact.message),
                None => (ConditionStatus::Unknown, "NotChecked", ""),
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
                    true => Resolution::Terminal,
                    false => Resolution::Wait,
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
            next: Next::AwaitChange,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_is_told() {
        let (mut health, t) = (Health::default(), Instant::now());
        assert!(health.unknown() && health.silent(t) == Duration::MAX);
        assert!(health.answered(200, "/a", t) && !health.answered(404, "/b", t) && health.good());
        assert!(health.unreachable(transport_error::Kind::Connect, "refused"));
        assert!(!health.unreachable(transport_error::Kind::Broken, "reset") && !health.good());
        assert!(health.unreachable(transport_error::Kind::Tls, "expired"));
        assert!(health.reached(t) && !health.reached(t) && health.good());
    }

    #[test]
    fn who_was_refused_is_not_cleared_by_an_open_door() {
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
    fn conditions() {
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
