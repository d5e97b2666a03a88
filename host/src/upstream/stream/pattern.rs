//! Filters of events. Pure.

use serde_json::Value;

use crate::{contract::bindings::http, upstream::sse::ServerSentEvent};

/// A pattern of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventPattern {
    /// The event type; `None` for any.
    pub name: Option<String>,
    /// A JSON pointer into the data, and the value there: a string, or the JSON text of any other value.
    pub data: Option<(String, String)>,
}

impl From<http::EventMatch> for EventPattern {
    fn from(m: http::EventMatch) -> Self {
        Self {
            name: m.name,
            data: m.data.map(|data| (data.pointer, data.value)),
        }
    }
}

/// An event whose data is parsed as JSON once, when first needed.
pub struct ParsedEvent<'a> {
    event: &'a ServerSentEvent,
    json: Option<Value>,
}

impl<'a> ParsedEvent<'a> {
    /// Wraps an event without parsing its data.
    pub fn new(event: &'a ServerSentEvent) -> Self {
        Self { event, json: None }
    }

    /// Parses the data now.
    pub fn parse_data(&mut self) {
        self.json_data();
    }

    fn json_data(&mut self) -> &Value {
        let data = &self.event.data;
        self.json
            .get_or_insert_with(|| serde_json::from_str(data).unwrap_or_default())
    }
}

impl EventPattern {
    /// The event matches. An event too large to be parsed matches.
    pub fn matches(&self, body: &mut ParsedEvent<'_>) -> bool {
        if self.name.as_ref().is_some_and(|name| *name != body.event.name) {
            return false;
        }
        let Some((pointer, wanted)) = self.data.as_ref().filter(|_| !body.event.is_truncated) else {
            return true;
        };
        match body.json_data().pointer(pointer) {
            Some(Value::String(text)) => text == wanted,
            Some(other) => {
                let text = other.to_string();
                text == *wanted
            }
            None => false,
        }
    }
}

/// The effect of an event on a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventEffect {
    /// The event is not selected.
    Ignore,
    /// The object is woken.
    Wake,
    /// The object is woken, and its subscription ends.
    WakeAndEnd,
}

/// The events of a stream that an object subscribes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamSubscription {
    /// Events that wake the object; all events if empty.
    pub wake: Vec<EventPattern>,
    /// Events that end the subscription.
    pub until: Vec<EventPattern>,
}

impl StreamSubscription {
    /// Events are compared with patterns.
    pub fn has_patterns(&self) -> bool {
        !self.wake.is_empty() || !self.until.is_empty()
    }

    /// The event's data must be parsed to classify it.
    pub fn needs_data(&self, event: &ServerSentEvent) -> bool {
        let named = |p: &EventPattern| p.name.as_ref().is_none_or(|name| *name == event.name);
        let mut patterns = self.until.iter().chain(&self.wake);
        !event.is_truncated && patterns.any(|p| p.data.is_some() && named(p))
    }

    /// The effect of an event.
    pub fn classify_event(&self, body: &mut ParsedEvent<'_>) -> EventEffect {
        if self.until.iter().any(|p| p.matches(body)) {
            EventEffect::WakeAndEnd
        } else if self.wake.is_empty() || self.wake.iter().any(|p| p.matches(body)) {
            EventEffect::Wake
        } else {
            EventEffect::Ignore
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_event_type_and_data() {
        let event = |name: &str, data: &str, cut| ServerSentEvent {
            id: None,
            name: name.into(),
            data: data.into(),
            is_truncated: cut,
        };
        let pattern = |name: Option<&str>, data: Option<(&str, &str)>| EventPattern {
            name: name.map(Into::into),
            data: data.map(|(p, v)| (p.into(), v.into())),
        };
        let status = event("event", r#"{"event":"status","data":{"n":1}}"#, false);
        let matches = |event: &ServerSentEvent, p: EventPattern| p.matches(&mut ParsedEvent::new(event));
        assert!(matches(&status, pattern(None, None)));
        assert!(matches(
            &status,
            pattern(Some("event"), Some(("/event", "status")))
        ));
        assert!(matches(&status, pattern(None, Some(("/data/n", "1")))));
        assert!(!matches(&status, pattern(Some("end"), None)));
        assert!(!matches(&status, pattern(Some("event"), Some(("/event", "log")))));
        assert!(!matches(&status, pattern(None, Some(("/nothing", "1")))));
        let garbage = event("event", "{", false);
        assert!(!matches(&garbage, pattern(None, Some(("/event", "status")))));
        let large = event("event", "{", true);
        assert!(matches(&large, pattern(None, Some(("/event", "status")))));
        let interest = StreamSubscription {
            wake: vec![pattern(None, Some(("/event", "status")))],
            until: vec![pattern(Some("end"), None)],
        };
        let verdict = |event: &ServerSentEvent| interest.classify_event(&mut ParsedEvent::new(event));
        assert_eq!(verdict(&status), EventEffect::Wake);
        assert!(
            interest.needs_data(&status)
                && !interest.needs_data(&large)
                && !StreamSubscription::default().needs_data(&status)
        );
        assert_eq!(verdict(&garbage), EventEffect::Ignore);
        assert_eq!(verdict(&event("end", "", false)), EventEffect::WakeAndEnd);
        assert_eq!(
            StreamSubscription::default().classify_event(&mut ParsedEvent::new(&garbage)),
            EventEffect::Wake
        );
    }
}
