//! The history of the values that were substituted for one upstream, which all its responses are searched for.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::{
    Redactor,
    text_finder::{SearchedText, TextFinder, list_texts},
};
use crate::upstream::{SendError, UpstreamSecretKey};

/// Bytes of a text that a history keeps. Where they are found, as many bytes are redacted as the whole text has.
const KEPT_BYTES: usize = 1 << 10;

/// Values kept per secret. More rotations than these within the life of a process put out the oldest value.
const MAX_VALUES_PER_SECRET: usize = 64;

/// Bytes that the history of an upstream may take.
const MAX_HISTORY_BYTES: usize = 32 << 20;

/// Estimated memory of a value besides its texts: states of an automaton.
const VALUE_OVERHEAD_BYTES: usize = 2 << 10;

/// Factor by which a finder has more texts than the next smaller one.
const FINDER_SIZE_RATIO: usize = 4;

/// Age of the last use after which a value makes room if the history is full.
const RETENTION_PERIOD: Duration = Duration::from_secs(30 * 24 * 3600);

/// The values that were substituted in requests to one upstream. A response may contain a value that was put into
/// another request, or that has been rotated since. Not `Debug`: it holds secrets.
///
/// A value is never dropped because others are new: a component could fill the history in order to read a secret in
/// clear. When it is full, values that no request has used for 30 days make room; without such values the substitution
/// is refused.
#[derive(Default)]
pub struct SecretHistory(Mutex<HistoryState>);

#[derive(Default)]
struct HistoryState {
    secrets: HashMap<UpstreamSecretKey, VecDeque<SecretTexts>>,
    size_bytes: usize,
    /// Texts that are new since the finders were built.
    unsearched: Vec<Arc<SearchedText>>,
    /// Find all other texts, the largest finder first. A new text is first in a small finder, which is then merged with
    /// larger ones: one finder of all texts would be built again for each of ten thousand secrets.
    finders: Vec<Arc<TextFinder>>,
}

/// A value with the texts in which it is searched.
struct SecretTexts {
    digest: [u8; 32],
    texts: Vec<Arc<SearchedText>>,
    last_used: Instant,
}

impl SecretTexts {
    fn size_bytes(&self) -> usize {
        self.texts.iter().map(|t| t.text.len()).sum::<usize>() + VALUE_OVERHEAD_BYTES
    }
}

impl SecretHistory {
    /// Adds the current value of a secret. Fails if the history is full.
    pub fn record_value(&self, secret: &UpstreamSecretKey, current: &[u8]) -> Result<(), SendError> {
        self.record_value_at(secret, current, Instant::now())
    }

    fn record_value_at(
        &self,
        secret: &UpstreamSecretKey,
        current: &[u8],
        now: Instant,
    ) -> Result<(), SendError> {
        let digest = Sha256::digest(current).into();
        let state = &mut *self.0.lock();
        let known = state.secrets.get_mut(secret);
        if let Some(value) = known.and_then(|values| values.iter_mut().find(|v| v.digest == digest)) {
            value.last_used = now;
            return Ok(());
        }
        let texts = list_texts(current).into_iter().map(|text| {
            Arc::new(SearchedText {
                length: text.len(),
                text: text[..text.len().min(KEPT_BYTES)].to_vec(),
                placeholder: None,
            })
        });
        let value = SecretTexts {
            digest,
            texts: texts.collect(),
            last_used: now,
        };
        if state.size_bytes + value.size_bytes() > MAX_HISTORY_BYTES {
            state.remove_unused(now);
        }
        if state.size_bytes + value.size_bytes() > MAX_HISTORY_BYTES {
            return Err(SendError::TooLarge(format!(
                "{secret} cannot be substituted: the secrets that were substituted for this upstream within \
                 {} days take {MAX_HISTORY_BYTES} bytes already, and each must be redacted in its responses",
                RETENTION_PERIOD.as_secs() / (24 * 3600)
            )));
        }
        state.size_bytes += value.size_bytes();
        state.unsearched.extend(value.texts.iter().cloned());
        let values = state.secrets.entry(secret.clone()).or_default();
        values.push_back(value);
        if values.len() > MAX_VALUES_PER_SECRET
            && let Some(oldest) = values.pop_front()
        {
            state.size_bytes -= oldest.size_bytes();
            state.reset_finders();
        }
        Ok(())
    }

    /// No value was substituted so far.
    pub fn is_empty(&self) -> bool {
        self.0.lock().secrets.is_empty()
    }

    /// A redactor of all values.
    pub fn to_redactor(&self) -> Redactor {
        let state = &mut *self.0.lock();
        state.build_finders();
        Redactor {
            history: state.finders.clone(),
            ..Redactor::default()
        }
    }
}

impl HistoryState {
    fn remove_unused(&mut self, now: Instant) {
        self.secrets.retain(|_, values| {
            values.retain(|v| now.saturating_duration_since(v.last_used) < RETENTION_PERIOD);
            !values.is_empty()
        });
        self.size_bytes = self.secrets.values().flatten().map(SecretTexts::size_bytes).sum();
        self.reset_finders();
    }

    /// Has all finders built again, without the texts of removed values.
    fn reset_finders(&mut self) {
        self.finders.clear();
        let texts = self.secrets.values().flatten().flat_map(|v| &v.texts);
        self.unsearched = texts.cloned().collect();
    }

    /// Puts new texts into a finder, with those of all finders that are not much larger.
    fn build_finders(&mut self) {
        if self.unsearched.is_empty() {
            return;
        }
        let mut texts = std::mem::take(&mut self.unsearched);
        let is_similar =
            |finder: &mut Arc<TextFinder>, texts: usize| finder.texts.len() < FINDER_SIZE_RATIO * texts;
        while let Some(smaller) = self.finders.pop_if(|finder| is_similar(finder, texts.len())) {
            texts.extend(smaller.texts.iter().cloned());
        }
        self.finders.push(Arc::new(TextFinder::new(texts)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret_key(name: &str) -> UpstreamSecretKey {
        UpstreamSecretKey {
            namespace: "n".into(),
            name: name.into(),
            key: "k".into(),
        }
    }

    #[test]
    fn long_secret_is_found_by_its_beginning_and_redacted_whole() {
        let history = SecretHistory::default();
        let long: String = (0..4000).map(|n| format!("{n:04}")).collect();
        history
            .record_value(&secret_key("s"), long.as_bytes())
            .expect("room");
        let redactor = history.to_redactor();
        assert_eq!(redactor.redact_text(&format!("x{long}y")), "x***y");
        assert_eq!(redactor.redact_text(&format!("x{}", &long[..5000])), "x***");
    }

    #[test]
    fn full_history_refuses_new_secrets_until_others_are_unused() {
        let history = SecretHistory::default();
        let now = Instant::now();
        let value = |n: usize| format!("{n:05} is the number of this value{}", "!".repeat(1000));
        let record = |n: usize, at: Instant| {
            history.record_value_at(&secret_key(&n.to_string()), value(n).as_bytes(), at)
        };
        let refused = (0..20_000).find_map(|n| Some((n, record(n, now).err()?)));
        let (n, error) = refused.expect("it is bounded");
        assert!(
            n > 2000 && error.to_string().contains("Secret n/"),
            "{n}: {error}"
        );
        assert!(!error.to_string().contains("the number"), "{error}");
        let is_kept = |n: usize| history.to_redactor().redact_text(&format!("x {} y", value(n))) == "x *** y";
        assert!(is_kept(0) && is_kept(n - 1) && !is_kept(n));
        // One is used, the others make room after their time.
        let later = now + RETENTION_PERIOD - Duration::from_secs(1);
        record(7, later).expect("known");
        assert!(record(n, later).is_err());
        let later = now + RETENTION_PERIOD;
        record(n, later).expect("room");
        assert!(is_kept(7) && is_kept(n) && !is_kept(8));
        let state = history.0.lock();
        let size_bytes: usize = state
            .secrets
            .values()
            .flatten()
            .map(SecretTexts::size_bytes)
            .sum();
        assert_eq!((state.size_bytes, state.secrets.len()), (size_bytes, 2));
    }

    #[test]
    fn rotation_keeps_last_values_of_secret() {
        let history = SecretHistory::default();
        for n in 0..=MAX_VALUES_PER_SECRET {
            history
                .record_value(&secret_key("s"), format!("value-number-{n:03}").as_bytes())
                .expect("room");
        }
        let redactor = history.to_redactor();
        assert_eq!(redactor.redact_text("value-number-001"), "***");
        assert_eq!(redactor.redact_text("value-number-064"), "***");
        assert_eq!(redactor.redact_text("value-number-000"), "value-number-000");
    }

    #[test]
    fn finders_are_shared_and_few_and_built_rarely() {
        let history = SecretHistory::default();
        let (mut last, mut built_texts) = (Vec::<Arc<TextFinder>>::new(), 0);
        for n in 0..500 {
            let value = format!("the value of secret {n}");
            history
                .record_value(&secret_key(&n.to_string()), value.as_bytes())
                .expect("room");
            let finders = history.to_redactor().history;
            let is_new = |finder: &&Arc<TextFinder>| !last.iter().any(|known| Arc::ptr_eq(known, finder));
            built_texts += finders
                .iter()
                .filter(is_new)
                .map(|finder| finder.texts.len())
                .sum::<usize>();
            assert!(finders.len() <= 8, "{}", finders.len());
            last = finders;
        }
        let texts: usize = last.iter().map(|finder| finder.texts.len()).sum();
        assert!(built_texts < 40 * texts, "{built_texts} for {texts}");
        history
            .record_value(&secret_key("7"), b"the value of secret 7")
            .expect("known");
        let again = history.to_redactor().history;
        assert!(
            again.iter().zip(&last).all(|(a, b)| Arc::ptr_eq(a, b)),
            "nothing is new"
        );
        let redactor = history.to_redactor();
        for n in [0, 99, 498, 499] {
            assert_eq!(
                redactor.redact_text(&format!("x the value of secret {n}.")),
                "x ***.",
                "{n}"
            );
        }
    }
}
