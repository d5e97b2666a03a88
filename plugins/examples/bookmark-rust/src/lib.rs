//! The example that exists in four languages: copies a page of an upstream to a `ConfigMap`.

use ostler_sdk::prelude::*;

/// A copy of a page of an upstream.
#[ostler_sdk::resource(
    group = "examples.ostler.dev",
    version = "v1alpha1",
    kind = "Bookmark",
    namespaced,
    category = "examples",
    status = BookmarkStatus,
    doc = "A page of an upstream, copied to a ConfigMap of the same name.",
    printcolumn(name = "Title", type = "string", json_path = ".spec.title")
)]
pub struct BookmarkSpec {
    /// Title of the page.
    #[schemars(length(min = 1))]
    pub title: String,
    /// Name of the Upstream, in the same namespace.
    pub upstream: String,
    /// Path of the page, which starts with `/`.
    pub path: String,
    /// Seconds between two requests; defaults to the configured interval.
    #[schemars(range(min = 1))]
    pub every: Option<u32>,
}

/// Observed state of the page.
#[ostler_sdk::api]
#[derive(Default)]
pub struct BookmarkStatus {
    /// HTTP status of the last response.
    pub http_status: Option<u16>,
    /// Size of the page in bytes.
    pub bytes: Option<u64>,
}

/// Reconciles bookmarks.
pub struct Bookmarks;

impl Reconciler for Bookmarks {
    type Spec = BookmarkSpec;
    const FINALIZER: Option<&'static str> = Some("examples.ostler.dev/bookmark");

    fn reconcile(&self, ctx: &Context, bookmark: &Bookmark) -> Result<Outcome, Failure> {
        let spec = &bookmark.spec;
        if !spec.path.starts_with('/') {
            let message = format!("spec.path: {} does not start with /", spec.path);
            return Err(Failure::terminal("InvalidPath", message));
        }
        let response = ctx.upstream(&spec.upstream).get(&spec.path).send()?;
        let summary = format!("GET {} was answered with {}", spec.path, response.status());
        if !response.is_success() {
            let failure = Failure::retry("UnexpectedAnswer", summary.clone());
            return Err(failure.with(Condition::new_false("Reachable", "UnexpectedAnswer", summary)));
        }
        ctx.apply_owned(&json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": bookmark.name(), "namespace": bookmark.namespace() },
            "data": { "title": spec.title, "page": response.text() },
        }))?;
        Ok(Outcome::poll(spec.every.map(|seconds| u64::from(seconds) * 1000))
            .with(Condition::new_true(
                "Ready",
                "Kept",
                format!("{} is kept", spec.title),
            ))
            .with(Condition::new_true("Reachable", "Answered", summary))
            .status(&json!({ "httpStatus": response.status(), "bytes": response.bytes().len() })))
    }

    fn cleanup(&self, ctx: &Context, bookmark: &Bookmark) -> Result<Outcome, Failure> {
        let path = &bookmark.spec.path;
        if path.starts_with('/') {
            let response = ctx.upstream(&bookmark.spec.upstream).delete(path).send()?;
            if !response.is_success() && response.status() != 404 {
                let summary = format!("DELETE {path} was answered with {}", response.status());
                return Err(Failure::retry("UnexpectedAnswer", summary));
            }
        }
        ctx.event("Forgotten", &format!("{} is forgotten", bookmark.spec.title));
        Ok(Outcome::await_change())
    }
}

ostler_sdk::plugin!(Bookmarks);
