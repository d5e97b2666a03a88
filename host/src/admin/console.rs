//! The console: a page that shows the host in a browser, from the other paths of the admin server.
//!
//! Its files are in the binary, and it loads nothing from elsewhere. They contain no data, so that they need no rights; what the page
//! asks for is authorized as the same request of a command is.

use axum::{
    Router,
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse, Redirect, Response},
    routing::get,
};

/// The page may run its own scripts and ask its own server, and nothing else: a name of an object that became markup would do nothing.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file: its name, type and content.
type File = (&'static str, &'static str, &'static str);

const FILES: [File; 7] = [
    ("", HTML, include_str!("console/page.html")),
    ("console.css", STYLE, include_str!("console/console.css")),
    ("console.js", SCRIPT, include_str!("console/console.js")),
    ("elements.js", SCRIPT, include_str!("console/elements.js")),
    ("graph.js", SCRIPT, include_str!("console/graph.js")),
    ("list.js", SCRIPT, include_str!("console/list.js")),
    ("views.js", SCRIPT, include_str!("console/views.js")),
];

/// The routes of the console, below `/console/`.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    // Relative: a proxy may serve the host below another path.
    let folder = Router::new().route("/console", get(async || Redirect::permanent("console/")));
    FILES.into_iter().fold(folder, |routes, file| {
        let path = format!("/console/{}", file.0);
        routes.route(&path, get(async move || serve_file(file)))
    })
}

fn serve_file((_, kind, content): File) -> Response {
    const HEADERS: [(HeaderName, HeaderValue); 4] = [
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(CONTENT_SECURITY_POLICY),
        ),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // Another version of the host may answer the next request.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    ([(header::CONTENT_TYPE, kind)], HEADERS, content).into_response()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/console");
        let names = std::fs::read_dir(folder).expect("the folder").map(|entry| {
            let name = entry.expect("an entry").file_name();
            name.into_string().expect("UTF-8")
        });
        let served = FILES.map(|(name, ..)| if name.is_empty() { "page.html" } else { name });
        assert_eq!(names.collect::<BTreeSet<_>>(), served.map(str::to_owned).into());
    }

    #[test]
    fn files_name_no_other_server() {
        for (name, _, content) in FILES {
            let urls = content.matches("://").count() - content.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(urls, 0, "{name}");
        }
    }
}
