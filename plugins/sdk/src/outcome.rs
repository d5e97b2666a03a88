//! Conditions, outcomes and failures.

use serde::Serialize;

use crate::{Condition, ConditionStatus, Context, Error, Failure, Level, Next, Outcome, Resolution};

impl Condition {
    /// Builds a condition with the status `True`.
    #[must_use]
    pub fn new_true(kind: &str, reason: &str, message: impl Into<String>) -> Self {
        Self::new(kind, ConditionStatus::True, reason, message)
    }

    /// Builds a condition with the status `False`.
    #[must_use]
    pub fn new_false(kind: &str, reason: &str, message: impl Into<String>) -> Self {
        Self::new(kind, ConditionStatus::False, reason, message)
    }

    /// Builds a condition with the status `Unknown`.
    #[must_use]
    pub fn new_unknown(kind: &str, reason: &str, message: impl Into<String>) -> Self {
        Self::new(kind, ConditionStatus::Unknown, reason, message)
    }

    /// Builds a condition of this type.
    #[must_use]
    pub fn new(kind: &str, status: ConditionStatus, reason: &str, message: impl Into<String>) -> Self {
        Self {
            type_: kind.into(),
            status,
            reason: reason.into(),
            message: message.into(),
        }
    }
}

impl Outcome {
    /// Succeeds; the object is reconciled again when it, or an object that was read, changes.
    #[must_use]
    pub fn await_change() -> Self {
        Self::with_next(Next::AwaitChange)
    }

    /// Succeeds; the object is reconciled again at this interval in milliseconds (none is the configured interval).
    #[must_use]
    pub fn poll(interval: impl Into<Option<u64>>) -> Self {
        Self::with_next(Next::Poll(interval.into()))
    }

    /// Succeeds; the object is reconciled again once, after this many milliseconds.
    #[must_use]
    pub fn after(milliseconds: u64) -> Self {
        Self::with_next(Next::After(milliseconds))
    }

    /// Succeeds; the object is reconciled again once, at this time in milliseconds since the Unix epoch.
    #[must_use]
    pub fn at(time: u64) -> Self {
        Self::with_next(Next::At(time))
    }

    fn with_next(next: Next) -> Self {
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
        self.status = Some(to_json_bytes(status));
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

    /// Fails; the reconcile is retried with exponential backoff.
    #[must_use]
    pub fn retry(reason: &str, message: impl Into<String>) -> Self {
        Self::new(Resolution::Retry, reason, message)
    }

    /// Waits for something else, which is not an error; the object is reconciled again when that changes.
    #[must_use]
    pub fn wait(reason: &str, message: impl Into<String>) -> Self {
        Self::new(Resolution::Wait, reason, message)
    }

    /// Fails permanently, until the spec, an object that was read, the configuration or the plugin changes.
    #[must_use]
    pub fn terminal(reason: &str, message: impl Into<String>) -> Self {
        Self::new(Resolution::Terminal, reason, message)
    }

    /// Fails; the reconcile is retried after this many milliseconds.
    #[must_use]
    pub fn throttled(milliseconds: u64, reason: &str, message: impl Into<String>) -> Self {
        Self::new(Resolution::Throttled(milliseconds), reason, message)
    }

    /// Replaces the reason.
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
        self.status = Some(to_json_bytes(status));
        self
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.text();
        match error {
            Error::Denied(grant) => Self::new(Resolution::Denied(grant), "PermissionDenied", message),
            Error::NotFound(_) => Self::wait("NotFound", message),
            Error::Conflict(_) => Self::retry("Conflict", message),
            Error::Invalid(_) => Self::terminal("Invalid", message),
            Error::Throttled(after) => Self::throttled(after, "Throttled", message),
            Error::Unavailable(_) => Self::retry("Unavailable", message),
            Error::NotReady(_) => Self::wait("DependencyNotReady", message),
            Error::LimitExceeded(_) => Self::retry("LimitExceeded", message),
            Error::Unsupported(_) => Self::terminal("Unsupported", message),
        }
    }
}

impl Error {
    /// Returns the error as one sentence.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Denied(text) => ["Not permitted: ", text].concat(),
            Self::NotFound(text) => ["Not found: ", text].concat(),
            Self::LimitExceeded(text) => ["A limit of this reconcile is used up: ", text].concat(),
            Self::Unsupported(text) => ["The host does not offer ", text].concat(),
            Self::Conflict(text) | Self::Invalid(text) | Self::Unavailable(text) => text.clone(),
            Self::Throttled(_) => "The other side asked for fewer requests.".into(),
            Self::NotReady(other) => {
                let name = [&other.ref_.gvk.kind, " ", &other.ref_.name].concat();
                if !other.exists {
                    return [&name, " does not exist."].concat();
                }
                let required = match other.status {
                    ConditionStatus::True => [" is not ", &other.condition].concat(),
                    ConditionStatus::False => [" is not ", &other.condition, "=False"].concat(),
                    ConditionStatus::Unknown => [" is not ", &other.condition, "=Unknown"].concat(),
                };
                match other.message.as_str() {
                    "" => [&name, &required, " yet."].concat(),
                    why => [&name, &required, ": ", why].concat(),
                }
            }
        }
    }
}

/// Replaces the reason or the message of a failed step.
pub trait ResultExt<T> {
    /// Fails with this reason instead of the default one.
    ///
    /// # Errors
    /// The failure with this reason.
    fn reason(self, reason: &str) -> Result<T, Failure>;

    /// Fails with a message for all who may read the object. The text of the error, which may describe the inside of another
    /// system (CWE-209), is written to the log only: at level info while something is waited for, otherwise at level warn.
    ///
    /// # Errors
    /// The failure with its resolution and reason, and with this message.
    fn public_message(self, ctx: &Context, message: &str) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> ResultExt<T> for Result<T, E> {
    fn reason(self, reason: &str) -> Result<T, Failure> {
        self.map_err(|error| error.into().reason(reason))
    }

    fn public_message(self, ctx: &Context, message: &str) -> Result<T, Failure> {
        self.map_err(|error| {
            let failure = error.into();
            let level = match failure.resolution {
                Resolution::Wait => Level::Info,
                _ => Level::Warn,
            };
            ctx.log(level, &failure.message, &[("public_message", message)]);
            Failure {
                message: message.into(),
                ..failure
            }
        })
    }
}

/// Serializes a value as JSON. The types of a plugin always serialize; if one did not, an empty object would be the
/// harmless result.
pub(crate) fn to_json_bytes(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|_| b"{}".to_vec())
}

/// Parses a duration in Go's syntax into milliseconds (`1h30m`, `250ms`, `1.5s`).
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
    fn duration_in_go_syntax_is_parsed() {
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
    fn returned_error_becomes_its_failure() {
        let failure = |error| Failure::from(error).resolution;
        assert_eq!(failure(Error::Denied("x".into())), Resolution::Denied("x".into()));
        assert_eq!(failure(Error::Throttled(7)), Resolution::Throttled(7));
        assert_eq!(failure(Error::Invalid("x".into())), Resolution::Terminal);
        assert_eq!(failure(Error::NotFound("x".into())), Resolution::Wait);
        assert_eq!(failure(Error::Unavailable("x".into())), Resolution::Retry);
        let renamed = Err::<(), _>(Error::Conflict("x".into())).reason("Busy");
        assert_eq!(renamed, Err(Failure::retry("Busy", "x")));
    }
}
