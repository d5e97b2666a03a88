//! Depth of nesting of a JSON text. It is measured without recursion, because the text may be nested thousands of levels
//! deep.

use memchr::memchr2_iter;

use super::Entries;

/// A field that is nested deeper than a limit.
pub(super) struct DeepField {
    /// Its path (`spec.instanceVars`).
    pub path: String,
    /// Number of its levels of objects and arrays.
    pub depth: usize,
}

/// Returns true if a valid JSON text is nested deeper than a limit.
pub(super) fn exceeds(json: &str, limit: usize) -> bool {
    // That many levels need that many brackets, which are counted in a fraction of the time. Every version of every object comes
    // through here.
    let has_brackets = memchr2_iter(b'{', b'[', json.as_bytes()).nth(limit).is_some();
    has_brackets && measure(json) > limit
}

/// Returns the number of levels of objects and arrays in a valid JSON text; 0 for a scalar.
fn measure(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
    }
    deepest
}

fn skip_string(bytes: &mut impl Iterator<Item = u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
    }
}

/// Returns the field below a top-level field that is nested deeper than a limit, or the top-level field itself if the
/// depth is not below one of its fields.
pub(super) fn find_deep_field(key: &str, json: &str, limit: usize) -> DeepField {
    let fields = serde_json::from_str::<Entries>(json).map_or_else(|_| Vec::new(), |entries| entries.0);
    let below = fields.iter().find_map(|(field, value)| {
        let depth = measure(value.get());
        (depth >= limit).then(|| DeepField {
            path: format!("{key}.{field}"),
            depth,
        })
    });
    below.unwrap_or_else(|| DeepField {
        path: key.to_owned(),
        depth: measure(json),
    })
}
