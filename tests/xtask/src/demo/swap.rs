//! New builds of plugins: one made to order for `--once`, and one per save of a source file.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use sha2::{Digest, Sha256};

use super::stage::{Stage, install};
use crate::{
    components::{self, Guest},
    paths, process, progress,
};

/// A save is several events; this long after the last of them there is a build.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Puts a different build of a plugin in its place and waits until it serves; gives the
/// milliseconds the host took from the file's change to serving.
pub fn once(stage: &mut Stage, component: &str, limit: Duration) -> Result<f64> {
    let path = stage.plugin_folder().join(format!("{component}.wasm"));
    let old = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let stamp = SystemTime::now()
        .duration_since(UNIX_EPOCH)?
        .as_nanos()
        .to_string();
    let new = stamped(old, &stamp);
    let digest = format!("{:x}", Sha256::digest(&new));
    paths::replace(&path, &new)?;
    let began = Instant::now();
    loop {
        let plugins = stage.plugins()?;
        if let Some(plugin) = plugins.iter().find(|plugin| plugin.digest == digest) {
            return plugin
                .swapped_ms
                .context("the host does not say how long the swap took");
        }
        stage.check()?;
        if began.elapsed() > limit {
            let told = plugins
                .iter()
                .find(|plugin| plugin.name == component)
                .map_or("not loaded", |p| &p.message);
            bail!(
                "the new build of {component} does not serve after {} s: {told}",
                limit.as_secs()
            );
        }
        if process::interrupted_within(Duration::from_millis(20)) {
            bail!("interrupted");
        }
    }
}

/// The same component with a custom section more: another content, so another build.
fn stamped(mut component: Vec<u8>, stamp: &str) -> Vec<u8> {
    const NAME: &[u8] = b"demo-stamp";
    // Lengths below 128 are one LEB128 byte.
    let stamp = &stamp.as_bytes()[..stamp.len().min(100)];
    component.extend([0, (1 + NAME.len() + stamp.len()) as u8, NAME.len() as u8]);
    component.extend(NAME);
    component.extend(stamp);
    component
}

/// Rebuilds plugins when their sources are saved, as long as it is kept.
pub struct Rebuilder {
    _watcher: RecommendedWatcher,
}

impl Rebuilder {
    /// Watches the sources; puts new builds into the plugin directory.
    pub fn start(plugins: PathBuf) -> Result<Self> {
        let (sender, events) = channel();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Fails when the rebuilder has ended, and then nobody waits for it.
            let _ = sender.send(event);
        })?;
        watcher.watch(&paths::root().join("plugins"), RecursiveMode::Recursive)?;
        let guests: Vec<_> = components::guests()?
            .into_iter()
            .filter(|guest| guest.pack == super::PACK)
            .collect();
        // Ends with the watcher, whose end closes the channel.
        std::thread::spawn(move || follow(&events, &guests, &plugins));
        Ok(Self { _watcher: watcher })
    }
}

fn follow(events: &Receiver<notify::Result<Event>>, guests: &[Guest], plugins: &Path) {
    while let Ok(first) = events.recv() {
        let mut saved: BTreeSet<_> = sources(first).into_iter().collect();
        while let Ok(event) = events.recv_timeout(DEBOUNCE) {
            saved.extend(sources(event));
        }
        let touched = touched(guests, &saved);
        if touched.is_empty() {
            continue;
        }
        progress::say(&format!(
            "Saved: rebuilding {}",
            touched.iter().copied().collect::<Vec<_>>().join(", ")
        ));
        let built = components::build(|guest| touched.contains(guest.name.as_str()));
        match built.and_then(|built| install(plugins, &built)) {
            Ok(()) => {}
            Err(e) if process::check_interrupt().is_ok() => {
                progress::say(&format!("{e:#}\nThe build before keeps serving."));
            }
            Err(_) => return,
        }
    }
}

/// The source files an event is about; reading one is no event.
fn sources(event: notify::Result<Event>) -> Vec<PathBuf> {
    let Ok(event) = event else { return Vec::new() };
    if matches!(event.kind, EventKind::Access(_)) {
        return Vec::new();
    }
    let is_source = |path: &PathBuf| path.extension().is_some_and(|e| e == "rs" || e == "toml");
    event.paths.into_iter().filter(is_source).collect()
}

/// The guests to build anew: the one a file belongs to, or all when they share it.
fn touched<'a>(guests: &'a [Guest], saved: &BTreeSet<PathBuf>) -> BTreeSet<&'a str> {
    let mut touched = BTreeSet::new();
    for path in saved {
        match guests.iter().find(|guest| path.starts_with(&guest.folder)) {
            Some(guest) => drop(touched.insert(guest.name.as_str())),
            None => touched.extend(guests.iter().map(|guest| guest.name.as_str())),
        }
    }
    touched
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamped_component_is_valid_and_another() {
        let empty = b"\0asm\x0d\0\x01\0".to_vec();
        let stamped = stamped(empty.clone(), "123");
        assert_ne!(stamped, empty);
        wasmparser::Validator::new().validate_all(&stamped).unwrap();
    }

    #[test]
    fn a_file_of_a_guest_builds_that_guest_and_a_shared_one_all() {
        let guest = |name: &str| Guest {
            name: name.into(),
            pack: "p".into(),
            folder: format!("/p/{name}").into(),
            language: ostler_builder::Language::Rust,
            optimize: Default::default(),
        };
        let guests = [guest("a"), guest("b")];
        let saved = |path: &str| BTreeSet::from([PathBuf::from(path)]);
        assert_eq!(touched(&guests, &saved("/p/a/src/lib.rs")), BTreeSet::from(["a"]));
        assert_eq!(
            touched(&guests, &saved("/p/sdk/src/lib.rs")),
            BTreeSet::from(["a", "b"])
        );
        assert_eq!(touched(&guests, &BTreeSet::new()), BTreeSet::new());
    }

    #[test]
    fn only_written_sources_count() {
        use notify::event::{AccessKind, ModifyKind};
        let event = |kind, path: &str| Ok(Event::new(kind).add_path(path.into()));
        assert_eq!(
            sources(event(EventKind::Modify(ModifyKind::Any), "/x/lib.rs")),
            [PathBuf::from("/x/lib.rs")]
        );
        assert!(sources(event(EventKind::Modify(ModifyKind::Any), "/x/.lib.rs.swp")).is_empty());
        assert!(sources(event(EventKind::Access(AccessKind::Any), "/x/lib.rs")).is_empty());
    }
}
