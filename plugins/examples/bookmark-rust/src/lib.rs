//! The example of four languages: what an upstream says at a path is kept in a `ConfigMap`.

use ostler_sdk::prelude::*;

/// A page of an upstream, kept.
#[ostler_sdk::resource(
    group = "examples.ostler.dev",
    version = "v1alpha1",
    kind = "Bookmark",
    namespaced,
    category = "examples",
    status = BookmarkStatus,
    doc = "A page of an upstream, kept in a ConfigMap of the same name.",
    printcolumn(name = "Title", type = "string", json_path = ".spec.title")
)]
pub struct BookmarkSpec {
    /// What it is called.
    #[schemars(length(min = 1))]
    pub title: String,
    /// Name of the Upstream, in the same namespace.
    pub upstream: String,
    /// Where the page is; starts with `/`.
    pub path: String,
    /// How often to look, in seconds; as configured when there is none.
    #[schemars(range(min = 1))]
    pub every: Option<u32>,
}

/// What was seen.
#[ostler_sdk::api]
#[derive(Default)]
pub struct BookmarkStatus {
    /// The HTTP status.
    pub http_status: Option<u16>,
    /// Size of the page.
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
        let answer = ctx.upstream(&spec.upstream).get(&spec.path).send()?;
        let said = format!("GET {} was answered with {}", spec.path, answer.status());
        if !answer.is_success() {
            let failure = Failure::retry("UnexpectedAnswer", said.clone());
            return Err(failure.with(Condition::new_false("Reachable", "UnexpectedAnswer", said)));
        }
        ctx.apply_owned(&json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": bookmark.name(), "namespace": bookmark.namespace() },
            "data": { "title": spec.title, "page": answer.text() },
        }))?;
        Ok(Outcome::poll(spec.every.map(|seconds| u64::from(seconds) * 1000))
            .with(Condition::new_true(
                "Ready",
                "Kept",
                format!("{} is kept", spec.title),
            ))
            .with(Condition::new_true("Reachable", "Answered", said))
            .status(&json!({ "httpStatus": answer.status(), "bytes": answer.bytes().len() })))
    }

    fn cleanup(&self, ctx: &Context, bookmark: &Bookmark) -> Result<Outcome, Failure> {
        let path = &bookmark.spec.path;
        if path.starts_with('/') {
            let answer = ctx.upstream(&bookmark.spec.upstream).delete(path).send()?;
            if !answer.is_success() && answer.status() != 404 {
                let said = format!("DELETE {path} was answered with {}", answer.status());
                return Err(Failure::retry("UnexpectedAnswer", said));
            }
        }
        ctx.event("Forgotten", &format!("{} is forgotten", bookmark.spec.title));
        Ok(Outcome::await_change())
    }
}

ostler_sdk::plugin!(Bookmarks);
