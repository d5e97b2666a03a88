//! The health of an upstream, recorded by its requests, and the status conditions made of it. Pure.

use std::time::{Duration, Instant};

use super::{SendError, transport_error};
use crate::{
    contract::bindings::{
        reconciler::{Failure, Next, Outcome, Resolution},
        types::{Condition, ConditionStatus},
    },
    kube::well_known::{condition_type, upstream_reason},
};

/// Time for which a rejected request stands against the credentials; later a success on another path clears it.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(600);

/// The content of a status condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthFact {
    /// The condition is true.
    pub holds: bool,
    /// The reason, in CamelCase.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
}

impl HealthFact {
    /// Creates a fact.
    pub fn new(good: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            holds: good,
            reason,
            message: message.into(),
        }
    }
}

/// The known health of an upstream. Each `record_…` returns true if the status has to change.
#[derive(Clone, Debug, Default)]
pub struct UpstreamHealth {
    connected: Option<HealthFact>,
    authenticated: Option<HealthFact>,
    /// The path that rejected the credentials, and when: a success on another path proves nothing at first.
    rejected: Option<(String, Instant)>,
    /// The time of the last sign of life.
    last_contact: Option<Instant>,
}

impl UpstreamHealth {
    /// The connection was never tried.
    pub fn is_unknown(&self) -> bool {
        self.connected.is_none()
    }

    /// The upstream is reachable and accepts the credentials, as far as is known.
    pub fn is_healthy(&self) -> bool {
        let bad = |fact: &Option<HealthFact>| fact.as_ref().is_some_and(|f| !f.holds);
        self.connected.is_some() && !bad(&self.connected) && !bad(&self.authenticated)
    }

    /// Time since the last sign of life.
    pub fn idle_time(&self, now: Instant) -> Duration {
        self.last_contact
            .map_or(Duration::MAX, |heard| now.saturating_duration_since(heard))
    }

    /// The upstream can be reached.
    pub fn record_reachable(&mut self, now: Instant) -> bool {
        self.last_contact = Some(now);
        match &self.connected {
            Some(fact) if fact.holds => false,
            _ => set_if_changed(
                &mut self.connected,
                HealthFact::new(true, upstream_reason::CONNECTED, ""),
            ),
        }
    }

    /// The upstream has responded to a request with credentials.
    pub fn record_response(&mut self, status: u16, path: &str, now: Instant) -> bool {
        let mut changed = self.record_reachable(now);
        if status == 401 {
            self.rejected = Some((path.to_owned(), now));
            let message = "The server does not accept the credentials (HTTP 401)";
            changed |= set_if_changed(
                &mut self.authenticated,
                HealthFact::new(false, upstream_reason::AUTHENTICATION_FAILED, message),
            );
        } else if status < 400 {
            let stands = |(at, since): &(String, Instant)| {
                at != path && now.saturating_duration_since(*since) < REJECTION_TIMEOUT
            };
            if !self.rejected.as_ref().is_some_and(stands) {
                self.rejected = None;
                changed |= self.record_authenticated(upstream_reason::ACCEPTED);
            }
        }
        changed
    }

    fn record_authenticated(&mut self, reason: &'static str) -> bool {
        match &self.authenticated {
            Some(fact) if fact.holds => false,
            _ => set_if_changed(&mut self.authenticated, HealthFact::new(true, reason, "")),
        }
    }

    /// A login has succeeded or failed.
    pub fn record_login(&mut self, result: Result<(), &SendError>, now: Instant) -> bool {
        match result {
            // A token that requests are rejected with proves nothing.
            Ok(()) if self.rejected.is_some() => self.record_reachable(now),
            Ok(()) => self.record_reachable(now) | self.record_authenticated(upstream_reason::LOGGED_IN),
            Err(SendError::LoginFailed(why)) => {
                let fact = HealthFact::new(
                    false,
                    upstream_reason::AUTHENTICATION_FAILED,
                    format!("Login refused: {why}"),
                );
                self.record_reachable(now) | set_if_changed(&mut self.authenticated, fact)
            }
            // A failed login says nothing about the credentials; but there is no token.
            Err(SendError::Unavailable(why)) if self.authenticated.as_ref().is_none_or(|f| f.holds) => {
                let fact = HealthFact::new(false, upstream_reason::LOGIN_FAILED, why.clone());
                self.record_reachable(now) | set_if_changed(&mut self.authenticated, fact)
            }
            Err(_) => false,
        }
    }

    /// The upstream cannot be reached.
    pub fn record_unreachable(&mut self, kind: transport_error::TransportErrorKind, why: &str) -> bool {
        let reason = match kind {
            transport_error::TransportErrorKind::Tls | transport_error::TransportErrorKind::NoTls => {
                upstream_reason::TLS_HANDSHAKE_FAILED
            }
            transport_error::TransportErrorKind::Address => upstream_reason::ADDRESS_NOT_ALLOWED,
            transport_error::TransportErrorKind::Connect | transport_error::TransportErrorKind::Broken => {
                upstream_reason::CONNECTION_FAILED
            }
        };
        set_if_changed(&mut self.connected, HealthFact::new(false, reason, why))
    }

    /// The report for the status. `open` is the failure that keeps the circuit breaker open; `is_anonymous` is set if
    /// the Upstream needs no credentials.
    pub fn to_report(&self, open: Option<&str>, is_anonymous: bool) -> HealthReport {
        let connected = match (&self.connected, open) {
            (Some(fact), _) if !fact.holds => Some(fact.clone()),
            (_, Some(why)) => Some(HealthFact::new(
                false,
                upstream_reason::CIRCUIT_OPEN,
                format!("Not asked for a moment: the last requests failed ({why})"),
            )),
            (fact, None) => fact.clone(),
        };
        let authenticated = if is_anonymous {
            Some(HealthFact::new(true, upstream_reason::NO_CREDENTIALS, ""))
        } else {
            self.authenticated.clone()
        };
        HealthReport {
            connected,
            authenticated,
            is_stalled: false,
        }
    }
}

/// Replaces a fact if status or reason differ; messages of the same error differ each time and are no change.
fn set_if_changed(fact: &mut Option<HealthFact>, new: HealthFact) -> bool {
    let changed = fact
        .as_ref()
        .is_none_or(|f| (f.holds, f.reason) != (new.holds, new.reason));
    if changed {
        *fact = Some(new);
    }
    changed
}

/// The conditions of an Upstream. `None` for a condition that was not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthReport {
    /// The condition `Connected`.
    pub connected: Option<HealthFact>,
    /// The condition `Authenticated`.
    pub authenticated: Option<HealthFact>,
    /// Only a change of the object or its Secrets helps.
    pub is_stalled: bool,
}

impl HealthReport {
    /// The report for an Upstream that cannot be tried because of its spec or its Secrets.
    pub fn from_error(error: &SendError) -> Self {
        let (reason, is_stalled) = match error {
            SendError::NotFound(_) => (upstream_reason::SECRET_NOT_FOUND, false),
            SendError::OriginNotAllowed(_) => (upstream_reason::ORIGIN_NOT_ALLOWED, true),
            SendError::NotAllowed(_) => (upstream_reason::ADDRESS_NOT_ALLOWED, true),
            _ => (upstream_reason::INVALID_SPEC, true),
        };
        let fact = Some(HealthFact::new(false, reason, error.to_string()));
        match error {
            SendError::NotFound(_) | SendError::OriginNotAllowed(_) => Self {
                authenticated: fact,
                is_stalled,
                ..Self::default()
            },
            _ => Self {
                connected: fact,
                is_stalled,
                ..Self::default()
            },
        }
    }

    /// The report as conditions of an outcome or a failure.
    pub fn to_outcome(&self) -> Result<Outcome, Failure> {
        let condition = |kind: &str, fact: &Option<HealthFact>| {
            let (status, reason, message) = match fact {
                Some(fact) if fact.holds => (ConditionStatus::True, fact.reason, &*fact.message),
                Some(fact) => (ConditionStatus::False, fact.reason, &*fact.message),
                None => (ConditionStatus::Unknown, upstream_reason::NOT_CHECKED, ""),
            };
            Condition {
                type_: kind.into(),
                status,
                reason: reason.into(),
                message: message.into(),
            }
        };
        let mut conditions = vec![
            condition(condition_type::CONNECTED, &self.connected),
            condition(condition_type::AUTHENTICATED, &self.authenticated),
        ];
        let bad = [&self.connected, &self.authenticated];
        if let Some(bad) = bad.into_iter().flatten().find(|fact| !fact.holds) {
            return Err(Failure {
                resolution: if self.is_stalled {
                    Resolution::Terminal
                } else {
                    Resolution::Wait
                },
                reason: bad.reason.into(),
                message: bad.message.clone(),
                conditions,
                status: None,
            });
        }
        if self.connected.is_none() {
            conditions.push(condition(condition_type::READY, &None));
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
    fn record_returns_true_on_change_only() {
        let (mut health, t) = (UpstreamHealth::default(), Instant::now());
        assert!(health.is_unknown() && health.idle_time(t) == Duration::MAX);
        assert!(
            health.record_response(200, "/a", t)
                && !health.record_response(404, "/b", t)
                && health.is_healthy()
        );
        assert!(health.record_unreachable(transport_error::TransportErrorKind::Connect, "refused"));
        assert!(
            !health.record_unreachable(transport_error::TransportErrorKind::Broken, "reset")
                && !health.is_healthy()
        );
        assert!(health.record_unreachable(transport_error::TransportErrorKind::Tls, "expired"));
        assert!(health.record_reachable(t) && !health.record_reachable(t) && health.is_healthy());
    }

    #[test]
    fn rejected_credentials_survive_success_on_other_path() {
        let (mut health, t) = (UpstreamHealth::default(), Instant::now());
        assert!(health.record_response(401, "/user", t));
        assert!(
            !health.record_response(200, "/info", t)
                && !health.record_login(Ok(()), t)
                && !health.is_healthy()
        );
        assert!(health.record_response(200, "/user", t) && health.is_healthy());
        assert!(health.record_response(401, "/user", t));
        assert!(
            health.record_response(200, "/info", t + REJECTION_TIMEOUT),
            "long ago"
        );
        let refused = SendError::LoginFailed("HTTP 401: no".into());
        assert!(health.record_login(Err(&refused), t) && health.record_login(Ok(()), t));
        let ill = SendError::Unavailable("login: HTTP 500".into());
        assert!(
            health.record_login(Err(&ill), t)
                && !health.is_healthy()
                && health.record_login(Ok(()), t)
                && health.is_healthy()
        );
    }

    #[test]
    fn report_yields_ready_reason() {
        let ready = |report: &HealthReport| match report.to_outcome() {
            Ok(outcome) => outcome
                .conditions
                .iter()
                .find(|c| c.type_ == "Ready")
                .map_or("True", |_| "Unknown")
                .to_owned(),
            Err(failure) => failure.reason,
        };
        let (mut health, t) = (UpstreamHealth::default(), Instant::now());
        assert_eq!(ready(&health.to_report(None, false)), "Unknown");
        health.record_reachable(t);
        assert_eq!(ready(&health.to_report(None, false)), "True");
        assert_eq!(ready(&health.to_report(Some("5 failures"), false)), "CircuitOpen");
        health.record_response(401, "/", t);
        assert_eq!(ready(&health.to_report(None, false)), "AuthenticationFailed");
        assert_eq!(ready(&health.to_report(None, true)), "True");
        health.record_unreachable(transport_error::TransportErrorKind::Connect, "refused");
        assert_eq!(
            ready(&health.to_report(Some("5 failures"), false)),
            "ConnectionFailed"
        );
        let missing = HealthReport::from_error(&SendError::NotFound("Secret a/b".into()));
        assert_eq!(
            (ready(&missing), missing.is_stalled),
            ("SecretNotFound".into(), false)
        );
        assert!(HealthReport::from_error(&SendError::Invalid("x".into())).is_stalled);
    }
}
