//! XML text.

/// Escapes text for an element. Characters that XML 1.0 cannot express are left out: the definition refuses them before.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            // As it is, a parser would make it a line feed.
            '\r' => escaped.push_str("&#13;"),
            character if is_xml(character) => escaped.push(character),
            _ => {}
        }
    }
    escaped
}

/// XML 1.0 has the character.
pub fn is_xml(character: char) -> bool {
    matches!(character, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..)
}

/// The text of the first element of a name, without the escapes. None if there is no such element.
pub fn element_text(document: &str, name: &str) -> Option<String> {
    let open = format!("<{name}>");
    let start = document.find(&open)? + open.len();
    let length = document[start..].find(&format!("</{name}>"))?;
    Some(unescape(&document[start..start + length]))
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        plain.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(';').map_or(rest.len(), |end| end + 1);
        let (entity, after) = rest.split_at(end);
        match entity
            .strip_prefix('&')
            .and_then(|entity| entity.strip_suffix(';'))
        {
            Some("amp") => plain.push('&'),
            Some("lt") => plain.push('<'),
            Some("gt") => plain.push('>'),
            Some("quot") => plain.push('"'),
            Some("apos") => plain.push('\''),
            Some(other) => match parse_reference(other) {
                Some(character) => plain.push(character),
                None => plain.push_str(entity),
            },
            None => plain.push_str(entity),
        }
        rest = after;
    }
    plain.push_str(rest);
    plain
}

/// Parses a character reference, such as `#13` or `#xd`.
fn parse_reference(entity: &str) -> Option<char> {
    let number = entity.strip_prefix('#')?;
    let code = match number.strip_prefix('x') {
        Some(hexadecimal) => u32::from_str_radix(hexadecimal, 16),
        None => number.parse(),
    };
    char::from_u32(code.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_is_read_back() {
        for text in [
            "",
            "a",
            "<a href=\"b\">&amp; it's</a>",
            "one\r\ntwo\tthree",
            "]]>",
            "ä€😀",
        ] {
            let document = format!("<r><t>{}</t></r>", escape(text));
            assert_eq!(element_text(&document, "t").as_deref(), Some(text));
        }
        assert_eq!(escape("</script><x/>"), "&lt;/script&gt;&lt;x/&gt;");
        assert_eq!(escape("a\u{0}\u{1b}\u{ffff}b"), "ab");
        assert_eq!(
            element_text("<t>a&#xd;&#10;&unknown;&</t>", "t").as_deref(),
            Some("a\r\n&unknown;&")
        );
        assert_eq!(element_text("<t>a", "t"), None);
    }
}
