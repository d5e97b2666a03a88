//! Patterns of routing keys, as topic exchanges of AMQP have them. Pure.
//!
//! A key is a list of words between dots. `*` matches one word, `#` any number of words, also none.

/// The pattern matches a routing key.
pub fn matches_topic(pattern: &str, key: &str) -> bool {
    match_words(&split_words(pattern), &split_words(key), false)
}

/// Every key that the other pattern matches is matched by this one.
pub fn covers_topic(pattern: &str, other: &str) -> bool {
    match_words(&split_words(pattern), &split_words(other), true)
}

/// The words of a key or a pattern. An empty key has none, as in RabbitMQ.
fn split_words(text: &str) -> Vec<&str> {
    match text {
        "" => Vec::new(),
        text => text.split('.').collect(),
    }
}

/// Matches by dynamic programming over the words: time is their product, whatever number of `#` there is. With
/// `is_pattern`, `#` in `words` stands for any number of words, so only `#` matches it.
fn match_words(pattern: &[&str], words: &[&str], is_pattern: bool) -> bool {
    // reached[i]: the pattern so far matches the first i words.
    let mut reached = vec![false; words.len() + 1];
    reached[0] = true;
    for part in pattern {
        let mut next = vec![false; words.len() + 1];
        if *part == "#" {
            let mut any = false;
            for (i, before) in reached.iter().enumerate() {
                any |= before;
                next[i] = any;
            }
        } else {
            for (i, word) in words.iter().enumerate() {
                let is_wild = is_pattern && *word == "#";
                next[i + 1] = reached[i] && (*part == "*" || part == word) && !is_wild;
            }
        }
        reached = next;
    }
    reached[words.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pattern_matches_as_topic_exchange_does() {
        for (pattern, key, expected) in [
            ("#", "", true),
            ("#", "a.b.c", true),
            ("*", "", false),
            ("*", "a", true),
            ("*", "a.b", false),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.#", "a", true),
            ("a.#", "a.b.c", true),
            ("a.#", "ab.c", false),
            ("*.orange.*", "quick.orange.rabbit", true),
            ("*.orange.*", "quick.orange.male.rabbit", false),
            ("#.b.#", "a.b.c.d", true),
            ("a.#.d", "a.d", true),
            ("order.created", "order.created", true),
            ("order.created", "order.deleted", false),
            ("", "", true),
            ("", "a", false),
            ("a*", "ab", false),
        ] {
            assert_eq!(matches_topic(pattern, key), expected, "{pattern:?} {key:?}");
        }
    }

    fn topic(wild: bool) -> impl Strategy<Value = String> {
        let word = if wild { "a|b|\\*|#" } else { "a|b" };
        prop::collection::vec(word, 0..5).prop_map(|words| words.join("."))
    }

    proptest! {
        /// A pattern that covers another one matches every key that the other one matches.
        #[test]
        fn covering_pattern_matches_all_keys_of_the_covered(pattern in topic(true), other in topic(true), key in topic(false)) {
            prop_assert!(covers_topic(&pattern, &pattern));
            prop_assert!(covers_topic("#", &other));
            if covers_topic(&pattern, &other) && matches_topic(&other, &key) {
                prop_assert!(matches_topic(&pattern, &key), "{pattern} {other} {key}");
            }
        }
    }
}
