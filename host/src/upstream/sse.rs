//! Server-sent events, parsed as the HTML standard specifies. Pure: bytes in, events out.
//!
//! Our own parser, because each event is bounded while it is read and the rest of it skipped: `eventsource-stream`
//! buffers an event of any size.

/// A server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSentEvent {
    /// The last event ID, after which the stream can be resumed; `None` if the server has given none so far.
    pub id: Option<String>,
    /// The event type; `message` if the server gives none.
    pub name: String,
    /// Its data.
    pub data: String,
    /// The event was larger than the limit and is cut.
    pub is_truncated: bool,
}

/// A parser of a stream in chunks of any size.
pub struct EventParser {
    limit: usize,
    line: Vec<u8>,
    /// A part of the event exceeded the limit.
    cut: bool,
    /// The current line exceeded the limit.
    line_cut: bool,
    /// The data of the event was cut: what follows is dropped, so that the cut is at the end of the data.
    data_cut: bool,
    /// The last chunk ended in a carriage return: a line feed that follows belongs to the same line end.
    carriage_return: bool,
    has_started: bool,
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    id: Option<String>,
    retry: Option<u64>,
}

impl EventParser {
    /// A parser that keeps at most `limit` bytes of each event. `id` is the last event ID of the previous connection.
    pub fn new(limit: usize, id: Option<String>) -> Self {
        Self {
            limit,
            line: Vec::new(),
            cut: false,
            line_cut: false,
            data_cut: false,
            carriage_return: false,
            has_started: false,
            name: Vec::new(),
            data: Vec::new(),
            has_data: false,
            id,
            retry: None,
        }
    }

    /// The reconnection time that the server has asked for, in milliseconds.
    pub fn retry_millis(&self) -> Option<u64> {
        self.retry
    }

    /// Bytes of the event that is not complete yet.
    pub fn buffered_bytes(&self) -> usize {
        self.line.len() + self.name.len() + self.data.len()
    }

    /// Parses a chunk; returns the events completed by it.
    pub fn parse_chunk(&mut self, bytes: &[u8]) -> Vec<ServerSentEvent> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while let Some(&first) = rest.first() {
            if std::mem::take(&mut self.carriage_return) && first == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let end = rest.iter().position(|b| matches!(b, b'\r' | b'\n'));
            let part = &rest[..end.unwrap_or(rest.len())];
            let room = self.limit.saturating_sub(self.line.len());
            self.line_cut |= part.len() > room;
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            let Some(end) = end else { break };
            self.carriage_return = rest[end] == b'\r';
            rest = &rest[end + 1..];
            let line = std::mem::take(&mut self.line);
            events.extend(self.parse_line(&line));
        }
        events
    }

    /// Parses a line; an empty line completes an event.
    fn parse_line(&mut self, line: &[u8]) -> Option<ServerSentEvent> {
        let is_cut = std::mem::take(&mut self.line_cut);
        self.cut |= is_cut;
        let line = if std::mem::replace(&mut self.has_started, true) {
            line
        } else {
            line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
        };
        if line.is_empty() {
            return self.finish_event();
        }
        let (field, value) = match line.iter().position(|b| *b == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => self.name = value.to_vec(),
            b"data" if !self.data_cut => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                let room = self.limit.saturating_sub(self.data.len());
                self.data_cut = is_cut || value.len() > room;
                self.cut |= self.data_cut;
                self.data.extend_from_slice(&value[..value.len().min(room)]);
            }
            b"id" if !value.contains(&0) => {
                self.id = Some(String::from_utf8_lossy(value).into_owned()).filter(|id| !id.is_empty());
            }
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                self.retry = std::str::from_utf8(value).ok().and_then(|ms| ms.parse().ok());
            }
            // A comment, or a field of a later standard.
            _ => {}
        }
        None
    }

    fn finish_event(&mut self) -> Option<ServerSentEvent> {
        let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
        let cut = std::mem::take(&mut self.cut);
        self.data_cut = false;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        std::mem::take(&mut self.has_data).then(|| ServerSentEvent {
            id: self.id.clone(),
            name: if name.is_empty() {
                "message".into()
            } else {
                text(&name)
            },
            data: text(&data),
            is_truncated: cut,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Vec<ServerSentEvent> {
        EventParser::new(1000, None).parse_chunk(text.as_bytes())
    }

    fn event(id: &str, name: &str, data: &str) -> ServerSentEvent {
        ServerSentEvent {
            id: Some(id.to_owned()).filter(|id| !id.is_empty()),
            name: name.into(),
            data: data.into(),
            is_truncated: false,
        }
    }

    #[test]
    fn events_parse_as_in_html_standard() {
        // The examples of the standard.
        assert_eq!(
            read("data: YHOO\ndata: +2\ndata: 10\n\n"),
            [event("", "message", "YHOO\n+2\n10")]
        );
        assert_eq!(
            read(
                ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"
            ),
            [
                event("1", "message", "first event"),
                event("", "message", "second event"),
                event("", "message", " third event")
            ]
        );
        assert_eq!(
            read("data\n\ndata\ndata\n\ndata:"),
            [event("", "message", ""), event("", "message", "\n")],
            "what is not complete is none"
        );
        // A byte order mark, every line end, an ID that persists, an event type without data.
        assert_eq!(
            read("\u{feff}id: 7\revent: a\r\ndata: x\n\r\nevent: lost\n\ndata: y\r\r"),
            [event("7", "a", "x"), event("7", "message", "y")]
        );
        // The end of a stream of Concourse.
        assert_eq!(read("id: 1\nevent: end\ndata\n\n"), [event("1", "end", "")]);
    }

    #[test]
    fn retry_needs_digits_and_id_with_nul_is_ignored() {
        let mut parser = EventParser::new(100, Some("3".into()));
        parser.parse_chunk(b"retry: 1x\n");
        assert_eq!(parser.retry_millis(), None);
        let events = parser.parse_chunk(b"retry: 250\nid: a\0b\ndata: x\n\n");
        assert_eq!(
            (parser.retry_millis(), events),
            (Some(250), vec![event("3", "message", "x")])
        );
    }

    #[test]
    fn large_event_is_cut_and_next_is_whole() {
        let mut parser = EventParser::new(10, None);
        let large = format!(
            "data: {}\ndata: {}\n\ndata: ok\n\n",
            "x".repeat(5000),
            "y".repeat(50)
        );
        let events: Vec<ServerSentEvent> = large
            .as_bytes()
            .chunks(7)
            .flat_map(|c| parser.parse_chunk(c))
            .collect();
        assert!(events[0].is_truncated && events[0].data.len() <= 11, "{events:?}");
        assert_eq!(events[1], event("", "message", "ok"));
        assert!(parser.line.capacity() < 100 && parser.data.capacity() < 100);
    }

    proptest! {
        /// Chunks and line ends make no difference.
        #[test]
        fn chunks_and_line_ends_make_no_difference(
            lines in prop::collection::vec("(data|event|id|retry|:|x)?:? ?[a-z0-9é]{0,3}", 0..30),
            end in prop::sample::select(vec!["\n", "\r", "\r\n"]),
            cuts in prop::collection::vec(1..9usize, 1..40),
        ) {
            let plain = lines.join("\n") + "\n\n";
            let whole = read(&plain);
            let other = plain.replace('\n', end);
            let mut parser = EventParser::new(1000, None);
            let (mut rest, mut events, mut cuts) = (other.as_bytes(), Vec::new(), cuts.into_iter().cycle());
            while !rest.is_empty() {
                let (part, left) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                events.extend(parser.parse_chunk(part));
                rest = left;
            }
            prop_assert_eq!(events, whole);
        }

        /// Arbitrary bytes are harmless, and the buffers stay within the limit.
        #[test]
        fn arbitrary_bytes_stay_within_limit(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut parser = EventParser::new(20, None);
            for event in parser.parse_chunk(&bytes) {
                // An invalid byte becomes three bytes of UTF-8.
                prop_assert!(event.data.len() <= 3 * 21);
            }
            prop_assert!(parser.line.len() <= 20 && parser.data.len() <= 21);
        }
    }

    /// Arbitrary bytes: no event exceeds the limit, and a valid event after them is parsed.
    #[test]
    fn arbitrary_bytes_are_bounded_and_recovered() {
        let line = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            Just(b"data:".repeat(30)),
            Just(b"\n\n".to_vec()),
            Just(b"\xff\xfe\r".to_vec()),
            Just(b"retry: 99999999999999999999\n".to_vec()),
        ];
        crate::fuzz::fuzz("sse", 20_000, prop::collection::vec(line, 0..12), |pieces| {
            let mut parser = EventParser::new(64, None);
            for piece in &pieces {
                for event in parser.parse_chunk(piece) {
                    // An invalid byte becomes three bytes of UTF-8.
                    prop_assert!(event.data.len() <= 3 * 64 + 1, "{} bytes", event.data.len());
                }
            }
            parser.parse_chunk(b"\n\n");
            let events = parser.parse_chunk(b"data: x\n\n");
            prop_assert_eq!(events.last().map(|e| &*e.data), Some("x"));
            Ok(())
        });
    }
}
