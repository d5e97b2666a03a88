//! `cargo xtask docs`: builds the documentation as a site.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{paths, progress::print_result, tool};

/// The release of mdBook that builds the site.
const MDBOOK_VERSION: &str = "0.5.4";

/// Builds `docs/` into `target/book`; installs mdBook where it is missing.
pub fn build_book() -> Result<()> {
    // Search, file watching and the server are left out: they are most of its dependencies.
    let program = tool::find_or_install("mdbook", MDBOOK_VERSION, &["--no-default-features"])?;
    let built = Command::new(program)
        .arg("build")
        .arg(paths::workspace_root().join("docs"))
        .status()?;
    ensure!(built.success(), "`mdbook build docs` failed: {built}");
    print_result("target/book/index.html");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::PathBuf};

    use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

    use crate::paths;

    /// A page: the anchors of its headings, and its links.
    #[derive(Default)]
    struct Page {
        anchors: BTreeSet<String>,
        links: Vec<String>,
    }

    fn parse_page(text: &str) -> Page {
        let mut page = Page::default();
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors.extend(heading.take().map(|text| to_anchor(&text)));
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                _ => {}
            }
        }
        page
    }

    /// The anchor that mdBook and code hosts give a heading.
    fn to_anchor(heading: &str) -> String {
        heading
            .to_lowercase()
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
                _ => None,
            })
            .collect()
    }

    /// All pages: those below `docs/`, at the root and in `deploy/`.
    fn list_pages() -> Vec<PathBuf> {
        let root = paths::workspace_root();
        ["docs", "docs/devops", "", "deploy"]
            .map(|folder| root.join(folder))
            .iter()
            .flat_map(|folder| fs::read_dir(folder).expect("a folder"))
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|e| e == "md"))
            .collect()
    }

    #[test]
    fn documentation_links_resolve() {
        let mut broken = Vec::new();
        for path in list_pages() {
            let page = parse_page(&fs::read_to_string(&path).expect("a page"));
            let folder = path.parent().expect("a folder");
            for link in page.links.iter().filter(|link| !link.contains("://")) {
                let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
                let target = if file.is_empty() {
                    path.clone()
                } else {
                    folder.join(file)
                };
                let wrong = if !target.exists() {
                    true
                } else if anchor.is_empty() || target.extension().is_none_or(|e| e != "md") {
                    false
                } else {
                    let other = parse_page(&fs::read_to_string(&target).expect("a page"));
                    !other.anchors.contains(anchor)
                };
                if wrong {
                    broken.push(format!("{}: {link}", path.display()));
                }
            }
        }
        assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
    }

    #[test]
    fn summary_lists_every_page() {
        let docs = paths::workspace_root().join("docs");
        let summary = parse_page(&fs::read_to_string(docs.join("SUMMARY.md")).expect("docs/SUMMARY.md"));
        let listed: BTreeSet<&str> = summary.links.iter().map(String::as_str).collect();
        let pages: Vec<String> = list_pages()
            .iter()
            .filter_map(|path| Some(path.strip_prefix(&docs).ok()?.to_string_lossy().into_owned()))
            .filter(|name| name != "SUMMARY.md")
            .collect();
        let missing: Vec<_> = pages
            .iter()
            .filter(|page| !listed.contains(page.as_str()))
            .collect();
        assert!(missing.is_empty(), "docs/SUMMARY.md does not list {missing:?}");
        assert_eq!(
            listed.len(),
            pages.len(),
            "docs/SUMMARY.md lists a page that does not exist"
        );
    }

    #[test]
    fn heading_with_code_and_marks_becomes_an_anchor() {
        assert_eq!(to_anchor("Job (`ccj`)"), "job-ccj");
    }
}
