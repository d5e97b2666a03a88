//! Conditions, outcomes and failures.

use serde::Serialize;

use crate::{Condition, Error, Failure, Next, Outcome, Resolution, TriState};

impl Condition {
    /// A condition that is True.
    #[must_use]
    pub fn yes(kind: &str, reason: &str, message: impl Into<String>) -> Self {
        Self::new(kind, TriState::Yes, reason, message)
    }

    /// A condition that is False.
    #[must_use]
    pub fn no(kind: &str, reason: &str, message: impl Into<String>) -> Self {
        Self::new(kind, TriState::No, reason, message)
    }

    /// A condition nothing is known about.
    #[must_use]
    pub fn unknown(kind: &str, reason: &str, message: impl Into<String>) -> Self {
        Self::new(kind, TriState::Unknown, reason, message)
    }

    fn new(kind: &str, status: TriState, reason: &str, message: impl Into<String>) -> Self {
        Self {
            type_: kind.into(),
            status,
            reason: reason.into(),
            message: message.into(),
        }
    }
}

impl Outcome {
    /// Done until something it read, or the object, changes.
    #[must_use]
    pub fn settled() -> Self {
        Self::next(Next::Settled)
    }

    /// Done; look again every so many milliseconds (none: the configured interval).
    #[must_use]
    pub fn poll(interval: impl Into<Option<u64>>) -> Self {
        Self::next(Next::Poll(interval.into()))
    }

    /// Done; come back once, after so many milliseconds.
    #[must_use]
    pub fn after(milliseconds: u64) -> Self {
        Self::next(Next::After(milliseconds))
    }

    /// Done; come back once, at this time (milliseconds since the Unix epoch).
    #[must_use]
    pub fn at(time: u64) -> Self {
        Self::next(Next::At(time))
    }

    fn next(next: Next) -> Self {
        Self {
            conditions: Vec::new(),
            status: None,
            next,
        }
    }

    /// Adds a condition.
    #[must_use]
    pub fn with(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    /// Sets the status fields.
    #[must_use]
    pub fn status(mut self, status: &impl Serialize) -> Self {
        self.status = Some(json(status));
        self
    }
}

impl Failure {
    fn new(resolution: Resolution, reason: &str, message: impl Into<String>) -> Self {
        Self {
            resolution,
            reason: reason.into(),
            message: message.into(),
            conditions: Vec::new(),
            status: None,
        }
    }

    /// Tried again with growing distance.
    #[must_use]
    pub fn retry(reason: &str, message: impl Into<String>) -> Self {
        Self::new(Resolution::Retry, reason, message)
    }

    /// Waits for something else; woken when that changes.
    #[must_use]
    pub fn yield_(reason: &str, message: impl Into<String>) -> Self {
        Self::new(Resolution::Yield, reason, message)
    }

    /// Will not get better until the spec, a dependency or the plugin changes.
    #[must_use]
    pub fn parked(reason: &str, message: impl Into<String>) -> Self {
        Self::new(Resolution::Parked, reason, message)
    }

    /// Comes back after so many milliseconds.
    #[must_use]
    pub fn throttled(milliseconds: u64, reason: &str, message: impl Into<String>) -> Self {
        Self::new(Resolution::Throttled(milliseconds), reason, message)
    }

    /// Gives another reason.
    #[must_use]
    pub fn reason(mut self, reason: &str) -> Self {
        self.reason = reason.into();
        self
    }

    /// Adds a condition.
    #[must_use]
    pub fn with(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    /// Sets the status fields.
    #[must_use]
    pub fn status(mut self, status: &impl Serialize) -> Self {
        self.status = Some(json(status));
        self
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.text();
        match error {
            Error::Denied(grant) => Self::new(Resolution::Denied(grant), "PermissionDenied", message),
            Error::NotFound(_) => Self::yield_("NotFound", message),
            Error::Conflict(_) => Self::retry("Conflict", message),
            Error::Invalid(_) => Self::parked("Invalid", message),
            Error::Throttled(after) => Self::throttled(after, "Throttled", message),
            Error::Unavailable(_) => Self::retry("Unavailable", message),
            Error::NotReady(_) => Self::yield_("DependencyNotReady", message),
            Error::Budget(_) => Self::retry("BudgetExceeded", message),
            Error::Unsupported(_) => Self::parked("Unsupported", message),
        }
    }
}

impl Error {
    /// One sentence for people.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Denied(text) => ["Not permitted: ", text].concat(),
            Self::NotFound(text) => ["Not found: ", text].concat(),
            Self::Budget(text) => ["A limit of this reconcile is used up: ", text].concat(),
            Self::Unsupported(text) => ["The host does not offer ", text].concat(),
            Self::Conflict(text) | Self::Invalid(text) | Self::Unavailable(text) => text.clone(),
            Self::Throttled(_) => "Asked to come back later.".into(),
            Self::NotReady(other) => {
                let name = [&other.ref_.gvk.kind, " ", &other.ref_.name].concat();
                match (other.exists, other.message.as_str()) {
                    (false, _) => [&name, " does not exist."].concat(),
                    (true, "") => [&name, " is not Ready yet."].concat(),
                    (true, why) => [&name, " is not Ready: ", why].concat(),
                }
            }
        }
    }
}

/// Gives the failure of a step its own reason.
pub trait ResultExt<T> {
    /// Fails with this reason instead of the usual one.
    ///
    /// # Errors
    /// The failure, with the reason given.
    fn reason(self, reason: &str) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> ResultExt<T> for Result<T, E> {
    fn reason(self, reason: &str) -> Result<T, Failure> {
        self.map_err(|error| error.into().reason(reason))
    }
}

/// JSON bytes. Our own types always serialize; should one not, an empty object
/// is the harmless answer.
pub(crate) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|_| b"{}".to_vec())
}

/// Milliseconds of a duration as Go writes it (`1h30m`, `250ms`, `1.5s`).
#[must_use]
pub fn duration(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0_u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let nanoseconds = match &tail[..unit] {
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" | "µs" => 1000,
            "ns" => 1,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if [whole, fraction].concat().is_empty() || fraction.contains('.') {
            return None;
        }
        let mut part = nanoseconds;
        for digit in fraction.bytes() {
            part /= 10;
            total = total.checked_add(u64::from(digit - b'0') * part)?;
        }
        for (place, digit) in whole.bytes().rev().enumerate() {
            let place = 10_u64.checked_pow(u32::try_from(place).ok()?)?;
            let digit = u64::from(digit - b'0').checked_mul(place)?;
            total = total.checked_add(digit.checked_mul(nanoseconds)?)?;
        }
        rest = &tail[unit..];
    }
    (!text.is_empty()).then_some(total / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        assert_eq!(duration("5m"), Some(300_000));
        assert_eq!(duration("1h30m"), Some(5_400_000));
        assert_eq!(duration("1.5s"), Some(1500));
        assert_eq!(duration("250ms"), Some(250));
        assert_eq!(duration("0.25h0.5m999999ns"), Some(930_000));
        assert_eq!(duration("2562047h"), Some(9_223_369_200_000));
        for wrong in ["", "5", "m", "5x", "-5m", "1..2s", ".s", "99999999999h"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn errors_become_the_fitting_failure() {
        let failure = |error| Failure::from(error).resolution;
        assert_eq!(failure(Error::Denied("x".into())), Resolution::Denied("x".into()));
        assert_eq!(failure(Error::Throttled(7)), Resolution::Throttled(7));
        assert_eq!(failure(Error::Invalid("x".into())), Resolution::Parked);
        assert_eq!(failure(Error::NotFound("x".into())), Resolution::Yield);
        assert_eq!(failure(Error::Unavailable("x".into())), Resolution::Retry);
        let renamed = Err::<(), _>(Error::Conflict("x".into())).reason("Busy");
        assert_eq!(renamed, Err(Failure::retry("Busy", "x")));
    }
}
