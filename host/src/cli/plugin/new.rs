//! `ostler plugin new`: project templates.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use ostler_builder::crds::plural_of;

use crate::kube::{key::is_dns_label, well_known::environment};

/// Arguments of `ostler plugin new`.
#[derive(Args)]
#[command(after_help = "Exit codes:\n  0  created\n  1  error\n  2  invalid arguments")]
pub struct PluginNewCommand {
    /// Name of the plugin: letters a-z, digits and dashes.
    #[arg(value_parser = parse_name)]
    name: String,
    /// Kind that the plugin reconciles, such as Greeting.v1alpha1.example.dev.
    #[arg(long, value_name = "KIND.VERSION.GROUP")]
    kind: Kind,
    /// Programming language.
    #[arg(long, value_enum, default_value = "rust")]
    language: Language,
    /// Also handle messages, for example of RabbitMQ.
    #[arg(long)]
    messages: bool,
    /// With a finalizer and a cleanup, for what Kubernetes does not delete with the object.
    #[arg(long)]
    finalizer: bool,
    /// Directory to create. Defaults to the name of the plugin.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Directory of the Rust SDK or of an Ostler checkout, for a project that uses its SDK. Defaults to the checkout that
    /// contains the project, or else to the SDK in the `ostler` program.
    #[arg(long, env = environment::OSTLER_SDK, value_name = "DIR")]
    sdk: Option<PathBuf>,
}

/// Languages with templates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    /// A crate.
    Rust,
    /// An npm package.
    #[value(alias = "javascript")]
    Js,
    /// A Python project.
    Python,
    /// A Go module.
    Go,
}

impl Language {
    /// Files of the language's template, the source first.
    fn template_files(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Rust => &[
                ("src/lib.rs", include_str!("templates/rust/lib.rs")),
                ("Cargo.toml", include_str!("templates/rust/Cargo.toml.in")),
                ("tests/reconcile.rs", include_str!("templates/rust/test.rs")),
            ],
            Self::Js => &[
                ("index.js", include_str!("templates/js/index.js")),
                ("package.json", include_str!("templates/js/package.json")),
                (
                    "test/reconcile.test.js",
                    include_str!("templates/js/reconcile.test.js"),
                ),
            ],
            Self::Python => &[
                ("main.py", include_str!("templates/python/main.py")),
                ("pyproject.toml", include_str!("templates/python/pyproject.toml")),
                (
                    "tests/test_reconcile.py",
                    include_str!("templates/python/test_reconcile.py"),
                ),
            ],
            Self::Go => &[
                ("main.go", include_str!("templates/go/main.go.in")),
                ("go.mod", include_str!("templates/go/go.mod.in")),
                ("main_test.go", include_str!("templates/go/main_test.go.in")),
            ],
        }
    }
}

impl From<Language> for ostler_builder::Language {
    fn from(language: Language) -> Self {
        match language {
            Language::Rust => Self::Rust,
            Language::Js => Self::JavaScript,
            Language::Python => Self::Python,
            Language::Go => Self::Go,
        }
    }
}

/// A kind in kubectl's notation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    kind: String,
    version: String,
    group: String,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let example = "it is like Greeting.v1alpha1.example.dev";
        let mut parts = text.splitn(3, '.');
        let (Some(kind), Some(version), Some(group)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(format!("Kind.version.group is needed: {example}"));
        };
        let camel = kind.starts_with(|c: char| c.is_ascii_uppercase())
            && kind.chars().all(|c| c.is_ascii_alphanumeric())
            && kind.len() <= 63;
        if !camel {
            return Err(format!("the kind {kind:?} is not in CamelCase: {example}"));
        }
        if !is_version(version) {
            return Err(format!(
                "the version {version:?} is not like v1, v1beta2 or v1alpha1: {example}"
            ));
        }
        let labels = || group.split('.');
        if group.len() > 253 || labels().count() < 2 || !labels().all(is_dns_label) {
            return Err(format!("the group {group:?} is no domain: {example}"));
        }
        let known = ["k8s.io", "kubernetes.io"];
        if known
            .iter()
            .any(|k| group == *k || group.ends_with(&format!(".{k}")))
        {
            return Err(format!(
                "the group {group:?} is reserved for Kubernetes: use a domain of yours"
            ));
        }
        if group == &*crate::plugin::kind().group {
            return Err(format!(
                "the group {group:?} is that of the host's own kinds: use a domain of yours"
            ));
        }
        Ok(Self {
            kind: kind.into(),
            version: version.into(),
            group: group.into(),
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.kind, self.version, self.group)
    }
}

/// Returns true for an API version such as `v1` or `v2beta3`.
fn is_version(text: &str) -> bool {
    let number =
        |text: &str| !text.is_empty() && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
    let Some(rest) = text.strip_prefix('v') else {
        return false;
    };
    let stage = ["alpha", "beta"].into_iter().find_map(|s| rest.split_once(s));
    match stage {
        Some((major, minor)) => number(major) && number(minor),
        None => number(rest),
    }
}

/// Returns true for a DNS label that is also a valid package name.
fn parse_name(text: &str) -> Result<String, String> {
    if is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Ok(text.into());
    }
    Err(
        "a name has letters a-z, digits and dashes, begins with a letter and has 63 at most: my-plugin"
            .into(),
    )
}

/// Files of projects in all languages.
const SHARED_FILES: &[(&str, &str)] = &[
    ("plugin.yaml", include_str!("templates/shared/plugin.yaml")),
    (
        "crds/<<group>>_<<plural>>.yaml",
        include_str!("templates/shared/crd.yaml"),
    ),
    (
        "samples/<<singular>>.yaml",
        include_str!("templates/shared/sample.yaml"),
    ),
    ("README.md", include_str!("templates/shared/README.md")),
    (".gitignore", include_str!("templates/shared/gitignore")),
];

impl PluginNewCommand {
    /// Writes the project.
    pub fn run(self) -> anyhow::Result<()> {
        let folder = self.directory.clone().unwrap_or_else(|| self.name.clone().into());
        if fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some()) || folder.is_file() {
            bail!(
                "{}: it exists already: choose another name, or set --directory",
                folder.display()
            );
        }
        // The other SDKs are in `ostler`.
        let sdk = match self.language {
            Language::Rust => Some(RustSdk::locate(self.sdk.as_deref(), &folder)?),
            _ => None,
        };
        let dependency = sdk.as_ref().map(|sdk| sdk.dependency(&folder)).transpose()?;
        let files = self.render_files(&dependency.unwrap_or_default());
        for (path, text) in &files {
            let path = folder.join(path);
            let parent = path.parent().context("a file in a folder")?;
            fs::create_dir_all(parent)
                .and_then(|()| fs::write(&path, text))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        if let Some(sdk) = sdk {
            sdk.write_lock_file(&folder)?;
        }
        ostler_builder::sdk::write_sdk(&folder)?;
        let shown = folder.display();
        println!("{shown}: a plugin that reconciles {}", self.kind);
        for (path, _) in &files {
            println!("  {path}");
        }
        println!("\nNext:\n  ostler plugin test {shown}\n  ostler plugin dev {shown}");
        Ok(())
    }

    /// The paths and contents of all files.
    fn render_files(&self, sdk: &str) -> Vec<(String, String)> {
        let Kind { kind, version, group } = &self.kind;
        let (singular, plural) = (kind.to_lowercase(), plural_of(kind));
        let own = self.language.template_files();
        let source = own[0].0;
        // Comments of Go begin with the name.
        let (about_spec, about_status) = match self.language {
            Language::Go => (
                format!("{kind}Spec is a message"),
                format!("{kind}Status is the observed"),
            ),
            _ => ("A message".to_owned(), "Observed".to_owned()),
        };
        let fill = |text: &str| {
            select_lines(
                text,
                &[("messages", self.messages), ("finalizer", self.finalizer)],
            )
            .replace(
                "<<about spec>>",
                &format!("{about_spec}, kept in a ConfigMap of the same name."),
            )
            .replace("<<about status>>", &format!("{about_status} state of a {kind}."))
            .replace(
                "<<language>>",
                &ostler_builder::Language::from(self.language).to_string(),
            )
            .replace("<<kind>>", kind)
            .replace("<<name>>", &self.name)
            .replace("<<crate>>", &self.name.replace('-', "_"))
            .replace("<<version>>", version)
            .replace("<<group>>", group)
            .replace("<<plural>>", &plural)
            .replace("<<singular>>", &singular)
            .replace("<<source>>", source)
            .replace("<<sdk>>", sdk)
        };
        let files = own.iter().chain(SHARED_FILES);
        files.map(|(path, text)| (fill(path), fill(text))).collect()
    }
}

/// Selects the lines of a template for the chosen features. Those between `<<with FEATURE>>` or `<<without FEATURE>>` and
/// the next mark of the feature, or `<<end>>`, are for one choice; the others for both. Marks of other features nest.
fn select_lines(text: &str, features: &[(&str, bool)]) -> String {
    let mut open: Vec<(&str, bool)> = Vec::new();
    let mut lines = String::new();
    for line in text.split_inclusive('\n') {
        let mark = line
            .trim_end()
            .strip_prefix("<<")
            .and_then(|m| m.strip_suffix(">>"));
        let chosen = mark.and_then(|mark| {
            let (word, feature) = mark.split_once(' ')?;
            let (feature, on) = features.iter().find(|(name, _)| *name == feature)?;
            Some((*feature, *on == (word == "with")))
        });
        match (mark, chosen) {
            (Some("end"), _) => {
                open.pop();
            }
            (_, Some(block)) => {
                if open.last().is_some_and(|(feature, _)| *feature == block.0) {
                    open.pop();
                }
                open.push(block);
            }
            _ if open.iter().all(|(_, selected)| *selected) => lines.push_str(line),
            _ => {}
        }
    }
    lines
}

/// Source of the Rust SDK, which is not on crates.io yet.
enum RustSdk {
    /// The one in this program, which each command writes into the project.
    Embedded,
    /// The folder of its package in a checkout.
    Checkout(PathBuf),
}

impl RustSdk {
    fn locate(given: Option<&Path>, folder: &Path) -> anyhow::Result<Self> {
        if let Some(given) = given {
            let found = Self::find_in(given).with_context(|| {
                format!(
                    "--sdk {}: neither ostler-sdk nor a checkout of Ostler is there",
                    given.display()
                )
            });
            return found.map(Self::Checkout);
        }
        let here = std::path::absolute(folder)?;
        let found = here.ancestors().find_map(Self::find_in);
        Ok(found.map_or(Self::Embedded, Self::Checkout))
    }

    /// The SDK in a folder, or in the checkout that has this root.
    fn find_in(folder: &Path) -> Option<PathBuf> {
        let candidates = [folder.to_owned(), folder.join("plugins/sdk")];
        let is_sdk = |folder: &PathBuf| {
            let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
            manifest.contains("name = \"ostler-sdk\"\n")
        };
        candidates.into_iter().find(is_sdk)?.canonicalize().ok()
    }

    /// The dependency in Cargo.toml: a relative path if the project is in the same checkout.
    fn dependency(&self, folder: &Path) -> anyhow::Result<String> {
        let path = match self {
            Self::Embedded => {
                return Ok(format!(
                    "# From `ostler`, which writes it here, until it is on crates.io: ostler-sdk = \"{}\"\n\
                     ostler-sdk = {{ path = {:?} }}",
                    env!("CARGO_PKG_VERSION"),
                    ostler_builder::sdk::RUST_SDK_DIR
                ));
            }
            Self::Checkout(sdk) => match checkout_root(sdk) {
                Some(root) => relative_path(root, folder, sdk)?.unwrap_or_else(|| sdk.clone()),
                None => sdk.clone(),
            },
        };
        Ok(format!(
            "ostler-sdk = {{ path = {:?} }}",
            path.display().to_string()
        ))
    }

    /// Writes the lock file of the SDK's workspace: its versions are tested, and in a checkout already downloaded.
    fn write_lock_file(&self, folder: &Path) -> anyhow::Result<()> {
        let file = folder.join("Cargo.lock");
        let written = match self {
            Self::Embedded => fs::write(&file, ostler_builder::sdk::RUST_LOCK_FILE),
            Self::Checkout(sdk) => match checkout_root(sdk) {
                Some(root) => fs::copy(root.join("Cargo.lock"), &file).map(drop),
                None => Ok(()),
            },
        };
        written.with_context(|| format!("writing {}", file.display()))
    }
}

/// The root of the checkout that has an SDK.
fn checkout_root(sdk: &Path) -> Option<&Path> {
    let root = sdk.ancestors().nth(2)?;
    root.join("Cargo.lock").is_file().then_some(root)
}

/// The relative path from a folder to be created to another one, if both are below a root.
fn relative_path(root: &Path, folder: &Path, other: &Path) -> anyhow::Result<Option<PathBuf>> {
    let absolute = std::path::absolute(folder)?;
    // The folder does not exist yet, so its parent is canonicalized.
    let there = absolute.ancestors().find(|a| a.exists()).context("no root")?;
    let from = there
        .canonicalize()?
        .join(absolute.strip_prefix(there).context("an ancestor")?);
    let (Ok(down), Ok(up)) = (other.strip_prefix(root), from.strip_prefix(root)) else {
        return Ok(None);
    };
    let steps: PathBuf = up.components().map(|_| "..").collect();
    Ok(Some(steps.join(down)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_parsed_or_refused_with_its_error() {
        let kind: Kind = "Greeting.v1alpha1.examples.ostler.dev".parse().unwrap();
        assert_eq!(
            (&*kind.kind, &*kind.version, &*kind.group),
            ("Greeting", "v1alpha1", "examples.ostler.dev")
        );
        for (wrong, words) in [
            ("Greeting", "Kind.version.group is needed"),
            ("greeting.v1.a.dev", "not in CamelCase"),
            ("Gree-ting.v1.a.dev", "not in CamelCase"),
            ("Greeting.1.a.dev", "the version \"1\""),
            ("Greeting.v1gamma1.a.dev", "the version"),
            ("Greeting.v0.a.dev", "the version"),
            ("Greeting.v1.dev", "is no domain"),
            ("Greeting.v1.A.dev", "is no domain"),
            ("Greeting.v1.apps.k8s.io", "reserved for Kubernetes"),
            ("Plugin.v1.ostler.dev", "the host's own kinds"),
        ] {
            let error = wrong.parse::<Kind>().unwrap_err();
            assert!(error.contains(words), "{wrong}: {error}");
        }
    }

    #[test]
    fn plugin_name_must_be_a_package_name() {
        assert_eq!(parse_name("my-plugin2"), Ok("my-plugin2".into()));
        for wrong in ["", "2nd", "My", "a_b", "a-", "-a", "a.b", &"a".repeat(64)] {
            assert!(parse_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn new_project_has_no_open_placeholders() {
        let languages = Language::value_variants().iter();
        let choices = [(false, false), (true, false), (false, true), (true, true)];
        let variants = languages.flat_map(|language| choices.map(|(m, f)| (language, m, f)));
        for (language, messages, finalizer) in variants {
            let new = PluginNewCommand {
                name: "my-plugin".into(),
                kind: "Greeting.v1.example.dev".parse().unwrap(),
                language: *language,
                messages,
                finalizer,
                directory: None,
                sdk: None,
            };
            let files = new.render_files("ostler-sdk = \"1\"");
            for (path, text) in &files {
                assert!(!path.contains("<<") && !text.contains("<<"), "{path}:\n{text}");
            }
            assert!(
                files
                    .iter()
                    .any(|(path, _)| path == "crds/example.dev_greetings.yaml")
            );
            let (source, text) = &files[0];
            let lines = text.lines().count();
            let limit = 60 + if messages { 22 } else { 0 } + if finalizer { 22 } else { 0 };
            assert!(lines <= limit, "{source} has {lines} lines");
            assert_eq!(text.contains("delivery"), messages, "{source}:\n{text}");
            assert_eq!(text.contains("cleanup"), finalizer, "{source}:\n{text}");
            let (_, manifest) = files.iter().find(|(path, _)| path == "plugin.yaml").unwrap();
            assert_eq!(manifest.contains("delete"), finalizer, "{manifest}");
        }
    }

    #[test]
    fn marks_of_features_nest() {
        let text = "a\n<<without x>>\nb\n<<with y>>\nc\n<<end>>\n<<with x>>\nd\n<<without y>>\ne\n<<with y>>\nf\n<<end>>\ng\n\
                    <<end>>\nh\n";
        let select = |x, y| select_lines(text, &[("x", x), ("y", y)]).replace('\n', "");
        assert_eq!(select(false, false), "abh");
        assert_eq!(select(false, true), "abch");
        assert_eq!(select(true, false), "adegh");
        assert_eq!(select(true, true), "adfgh");
    }

    #[test]
    fn existing_folder_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("mine"), "").unwrap();
        let new = PluginNewCommand {
            name: "x".into(),
            kind: "Greeting.v1.example.dev".parse().unwrap(),
            language: Language::Rust,
            messages: false,
            finalizer: false,
            directory: Some(folder.path().into()),
            sdk: None,
        };
        let error = new.run().unwrap_err().to_string();
        assert!(error.contains("it exists already"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn rust_sdk_is_that_of_the_checkout_or_of_the_program() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let inside = root.join("plugins/new/one");
        let sdk = RustSdk::locate(None, &inside).unwrap();
        assert_eq!(
            sdk.dependency(&inside).unwrap(),
            "ostler-sdk = { path = \"../../../plugins/sdk\" }"
        );
        let elsewhere = tempfile::tempdir().unwrap();
        let outside = elsewhere.path().join("one");
        let given = RustSdk::locate(Some(root), &outside).unwrap();
        let absolute = given.dependency(&outside).unwrap();
        assert!(
            absolute.contains(&*root.canonicalize().unwrap().to_string_lossy()),
            "{absolute}"
        );
        let embedded = RustSdk::locate(None, &outside)
            .unwrap()
            .dependency(&outside)
            .unwrap();
        assert!(
            embedded.ends_with("ostler-sdk = { path = \".ostler/sdk/plugins/sdk\" }"),
            "{embedded}"
        );
        let error = RustSdk::locate(Some(elsewhere.path()), elsewhere.path())
            .err()
            .unwrap();
        assert!(
            error.to_string().contains("neither ostler-sdk nor a checkout"),
            "{error}"
        );
    }
}
