//! Selection of the objects that a canary reconciles. Pure: every host selects the same ones.

use sha2::{Digest, Sha256};

use super::spec::CanaryObjects;
use crate::kube::{object::KubeObject, selector::LabelSelector};

/// The objects that a canary reconciles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CanarySelector {
    /// A percentage. The uid of an object decides alone, so that raising it only adds objects.
    Weight(u8),
    /// The objects with these labels.
    Selector(LabelSelector),
}

impl CanarySelector {
    /// Reads the spec of a `Plugin` object. The error names the field.
    pub fn new(objects: &CanaryObjects) -> Result<Self, String> {
        match (objects.weight, &objects.label_selector) {
            (Some(weight @ 0..=100), None) => Ok(Self::Weight(weight)),
            (Some(weight), None) => Err(format!("spec.canary.objects.weight is {weight}: 100 at most")),
            (None, Some(text)) => LabelSelector::parse(text)
                .map(Self::Selector)
                .map_err(|e| format!("spec.canary.objects.labelSelector: {e}")),
            _ => Err("spec.canary.objects: exactly one of weight and labelSelector is needed".into()),
        }
    }

    /// True when the canary reconciles this object.
    pub fn matches(&self, object: &KubeObject) -> bool {
        match self {
            Self::Weight(weight) => percentile_of(&object.uid.text()) < *weight,
            Self::Selector(selector) => selector.matches(&object.labels),
        }
    }
}

impl std::fmt::Display for CanarySelector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Weight(weight) => write!(f, "{weight} %"),
            Self::Selector(selector) => write!(f, "{selector}"),
        }
    }
}

/// A number below 100 that depends on the uid alone.
fn percentile_of(uid: &str) -> u8 {
    let digest = Sha256::digest(uid);
    let mut number = [0; 8];
    number.copy_from_slice(&digest[..8]);
    u8::try_from(u64::from_le_bytes(number) % 100).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kube::key::Gvk;

    fn object(uid: &str, label: &str) -> KubeObject {
        let json = format!(r#"{{"metadata":{{"name":"a","uid":"{uid}","labels":{{"tier":"{label}"}}}}}}"#);
        KubeObject::parse(&Gvk::new("g", "v1", "A"), json.as_bytes())
            .expect("an object")
            .1
    }

    #[test]
    fn selector_with_labels_matches_these_objects_only() {
        let objects = CanaryObjects {
            weight: None,
            label_selector: Some("tier=test".into()),
        };
        let selector = CanarySelector::new(&objects).expect("a selector");
        assert!(selector.matches(&object("a", "test")) && !selector.matches(&object("a", "prod")));
        for (objects, field) in [
            (CanaryObjects::default(), "exactly one"),
            (
                CanaryObjects {
                    weight: Some(101),
                    label_selector: None,
                },
                "weight is 101",
            ),
            (
                CanaryObjects {
                    weight: None,
                    label_selector: Some("a in b".into()),
                },
                "spec.canary.objects.labelSelector",
            ),
        ] {
            let error = CanarySelector::new(&objects).expect_err(field);
            assert!(error.contains(field), "{error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Of four thousand objects with random uids the share is right within four points (five standard deviations), and a
        /// greater share selects all that a smaller one selected.
        #[test]
        fn share_is_accurate_and_grows_by_adding_objects(seed in any::<u64>(), small in 0..=100u8, more in 0..=100u8) {
            let great = small.saturating_add(more).min(100);
            let mut taken = 0;
            for i in 0..4000u64 {
                let object = object(&format!("{seed:016x}-{i}"), "x");
                let by = |weight| CanarySelector::Weight(weight).matches(&object);
                taken += u32::from(by(small));
                prop_assert!(by(great) || !by(small));
                prop_assert!(by(100) && !by(0));
            }
            let wanted = u32::from(small) * 40;
            prop_assert!(taken.abs_diff(wanted) <= 160, "{} of 4000 for {} %", taken, small);
        }
    }
}
