use ostler_sdk::crd::file;

use crate::StepSpec;

/// File name and text of every CRD of the pack.
#[must_use]
pub fn crds() -> Vec<(String, String)> {
    vec![file::<StepSpec>()]
}
