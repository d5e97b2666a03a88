//! Which events count. Pure.

use serde_json::Value;

use crate::{contract::bindings::http, upstream::sse::Event};

/// Which events are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    /// Name of the event; none for any.
    pub name: Option<String>,
    /// A JSON pointer into the data, and what must be there: a text, or the JSON of anything else.
    pub data: Option<(String, String)>,
}

impl From<http::EventMatch> for Pattern {
    fn from(m: http::EventMatch) -> Self {
        Self {
            name: m.name,
            data: m.data.map(|data| (data.pointer, data.value)),
        }
    }
}

/// An event whose data is read as JSON once, if anybody asks.
pub struct Body<'a> {
    event: &'a Event,
    json: Option<Value>,
}

impl<'a> Body<'a> {
    /// Not read yet.
    pub fn new(event: &'a Event) -> Self {
        Self { event, json: None }
    }

    /// Reads it now.
    pub fn read(&mut self) {
        self.json();
    }

    fn json(&mut self) -> &Value {
        let data = &self.event.data;
        self.json
            .get_or_insert_with(|| serde_json::from_str(data).unwrap_or_default())
    }
}

impl Pattern {
    /// Whether an event is meant. One that is too large to look into is.
    pub fn matches(&self, body: &mut Body<'_>) -> bool {
        if self.name.as_ref().is_some_and(|name| *name != body.event.name) {
            return false;
        }
        let Some((pointer, wanted)) = self.data.as_ref().filter(|_| !body.event.cut) else {
            return true;
        };
        match body.json().pointer(pointer) {
            Some(Value::String(text)) => text == wanted,
            Some(other) => {
                let text = other.to_string();
                text == *wanted
            }
            None => false,
        }
    }
}

/// What an event means to who follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Nothing,
    /// It is to look.
    Wake,
    /// It is to look, and nothing more is waited for.
    End,
}

/// What an object wants of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Events that wake it; all when there are none.
    pub wake: Vec<Pattern>,
    /// Events after which it waits for nothing more.
    pub until: Vec<Pattern>,
}

impl Interest {
    /// Whether the data of an event has to be read for it.
    pub fn reads(&self, event: &Event) -> bool {
        let named = |p: &Pattern| p.name.as_ref().is_none_or(|name| *name == event.name);
        let mut patterns = self.until.iter().chain(&self.wake);
        !event.cut && patterns.any(|p| p.data.is_some() && named(p))
    }

    /// What an event means.
    pub fn verdict(&self, body: &mut Body<'_>) -> Verdict {
        if self.until.iter().any(|p| p.matches(body)) {
            Verdict::End
        } else if self.wake.is_empty() || self.wake.iter().any(|p| p.matches(body)) {
            Verdict::Wake
        } else {
            Verdict::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name_and_by_what_is_in_the_data() {
        let event = |name: &str, data: &str, cut| Event {
            id: None,
            name: name.into(),
            data: data.into(),
            cut,
        };
        let pattern = |name: Option<&str>, data: Option<(&str, &str)>| Pattern {
            name: name.map(Into::into),
            data: data.map(|(p, v)| (p.into(), v.into())),
        };
        let status = event("event", r#"{"event":"status","data":{"n":1}}"#, false);
        let matches = |event: &Event, p: Pattern| p.matches(&mut Body::new(event));
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
        let interest = Interest {
            wake: vec![pattern(None, Some(("/event", "status")))],
            until: vec![pattern(Some("end"), None)],
        };
        let verdict = |event: &Event| interest.verdict(&mut Body::new(event));
        assert_eq!(verdict(&status), Verdict::Wake);
        assert!(interest.reads(&status) && !interest.reads(&large) && !Interest::default().reads(&status));
        assert_eq!(verdict(&garbage), Verdict::Nothing);
        assert_eq!(verdict(&event("end", "", false)), Verdict::End);
        assert_eq!(
            Interest::default().verdict(&mut Body::new(&garbage)),
            Verdict::Wake
        );
    }
}
