//! Sequences of requests, and the steps they are made of.
//!
//! Paths and bodies have placeholders, so that a sequence can run several times: `§id` is unique in each run,
//! `§namespace` and `§group` are those of its block, and `§uid(PATH)` and `§revision(PATH)` are those of the object that
//! was answered last at a path.

use std::fmt;

use fastrand::Rng;
use reqwest::Method;
use serde_json::Value;

use super::choice::Choose as _;
use super::{builtin, definition, lifecycle, lists, objects, rights};

/// Media type of JSON bodies.
pub const JSON: &str = "application/json";
/// Media type of JSON patches.
pub const JSON_PATCH: &str = "application/json-patch+json";
/// Media type of merge patches.
pub const MERGE_PATCH: &str = "application/merge-patch+json";
/// Media type of strategic merge patches.
pub const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
/// Media type of server-side apply.
pub const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// The subject of a sequence's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceFamily {
    /// CustomResourceDefinitions, valid and invalid.
    Definitions,
    /// Objects of a generated kind.
    Custom,
    /// Objects of built-in kinds.
    Builtin,
    /// Lists, pages, selectors, tables and watches.
    Lists,
    /// Finalizers, owners and namespaces.
    Lifecycle,
    /// Roles, bindings and access reviews.
    Rights,
}

/// All families, with the number of their sequences in a hundred.
pub const FAMILIES: [(SequenceFamily, u32); 6] = [
    (SequenceFamily::Definitions, 20),
    (SequenceFamily::Custom, 35),
    (SequenceFamily::Builtin, 20),
    (SequenceFamily::Lists, 12),
    (SequenceFamily::Lifecycle, 8),
    (SequenceFamily::Rights, 5),
];

impl SequenceFamily {
    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Definitions => "definitions",
            Self::Custom => "custom",
            Self::Builtin => "builtin",
            Self::Lists => "lists",
            Self::Lifecycle => "lifecycle",
            Self::Rights => "rights",
        }
    }
}

/// A step of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// A request, whose answers are compared.
    Request(RequestStep),
    /// Waits until both servers answer a GET alike: what they do on their own takes them different times.
    Settle(RequestStep),
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestStep {
    /// Method.
    pub method: Method,
    /// Path with query.
    pub path: String,
    /// Media type of the body.
    pub media: &'static str,
    /// `Accept`.
    pub accept: &'static str,
    /// User that is impersonated.
    pub user: Option<&'static str>,
    /// Body; null for none.
    pub body: Value,
}

impl RequestStep {
    /// A request with a body.
    pub fn new(method: Method, path: impl Into<String>, media: &'static str, body: Value) -> Self {
        Self {
            method,
            path: path.into(),
            media,
            accept: JSON,
            user: None,
            body,
        }
    }

    /// A GET request.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path, JSON, Value::Null)
    }

    /// A GET request that is repeated until both servers answer it alike.
    pub fn settle(path: impl Into<String>) -> Step {
        Step::Settle(Self::get(path))
    }

    /// A POST request.
    pub fn post(path: impl Into<String>, body: Value) -> Self {
        Self::new(Method::POST, path, JSON, body)
    }

    /// A PUT request.
    pub fn put(path: impl Into<String>, body: Value) -> Self {
        Self::new(Method::PUT, path, JSON, body)
    }

    /// A DELETE request; its options may be null.
    pub fn delete(path: impl Into<String>, options: Value) -> Self {
        Self::new(Method::DELETE, path, JSON, options)
    }

    /// A PATCH request.
    pub fn patch(path: impl Into<String>, media: &'static str, body: Value) -> Self {
        Self::new(Method::PATCH, path, media, body)
    }
}

impl From<RequestStep> for Step {
    fn from(request: RequestStep) -> Self {
        Self::Request(request)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settle(request) => write!(f, "until both are alike: {request}"),
            Self::Request(request) => write!(f, "{request}"),
        }
    }
}

impl fmt::Display for RequestStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = self.user {
            write!(f, "as {user}: ")?;
        }
        write!(f, "{} {}", self.method, self.path)?;
        if self.media != JSON {
            write!(f, " ({})", self.media)?;
        }
        if self.accept != JSON {
            write!(f, " accepting {}", self.accept)?;
        }
        if !self.body.is_null() {
            write!(f, "\n      {}", self.body)?;
        }
        Ok(())
    }
}

/// A generated sequence.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// Seed it was generated from.
    pub seed: u64,
    /// Its family.
    pub family: SequenceFamily,
    /// Its steps.
    pub steps: Vec<Step>,
}

impl Sequence {
    /// Generates the sequence of a seed. `schema` is that of the custom kind of its block.
    pub fn generate(seed: u64, families: &[(SequenceFamily, u32)], schema: &Value) -> Self {
        let mut rng = Rng::with_seed(seed);
        let total: u32 = families.iter().map(|(_, share)| share).sum();
        let mut at = rng.u32(..total);
        let mut family = families[0].0;
        for (one, share) in families {
            family = *one;
            if at < *share {
                break;
            }
            at -= share;
        }
        let steps = match family {
            SequenceFamily::Definitions => definition::generate_steps(&mut rng),
            SequenceFamily::Custom => objects::generate_custom_steps(&mut rng, schema),
            SequenceFamily::Builtin => builtin::generate_steps(&mut rng),
            SequenceFamily::Lists => lists::generate_steps(&mut rng),
            SequenceFamily::Lifecycle => lifecycle::generate_steps(&mut rng),
            SequenceFamily::Rights => rights::generate_steps(&mut rng),
        };
        Self { seed, family, steps }
    }
}

/// Returns a random query of a write: dry run, field validation, and the manager if it is one of an apply.
pub fn generate_write_query(rng: &mut Rng, is_apply: bool) -> String {
    let mut parts = Vec::new();
    if is_apply {
        parts.push(rng.choose(&[
            "fieldManager=m1",
            "fieldManager=m1",
            "fieldManager=m2",
            "fieldManager=m2&force=true",
        ]));
    } else if rng.percent(20) {
        parts.push("fieldManager=m1");
    }
    if rng.percent(10) {
        parts.push("dryRun=All");
    }
    match rng.u32(0..10) {
        0 | 1 => parts.push("fieldValidation=Strict"),
        2 => parts.push("fieldValidation=Ignore"),
        3 => parts.push("fieldValidation=Warn"),
        _ => {}
    }
    if parts.is_empty() {
        String::new()
    } else {
        format!("?{}", parts.join("&"))
    }
}
