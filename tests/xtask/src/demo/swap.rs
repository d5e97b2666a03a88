//! Swaps of plugins: one artificial build for `--once`, and a rebuild whenever a source file is saved.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use ostler_builder::component::append_section;
use sha2::{Digest, Sha256};

use super::{
    Pack,
    stage::{DemoStage, install_components},
};
use crate::{
    components::{self, Guest},
    paths, process, progress,
};

/// Delay between the last event of a file and the build. A save consists of several events.
const DEBOUNCE_DELAY: Duration = Duration::from_millis(50);

/// Replaces a plugin by a build with other bytes and waits until that is active. Returns the milliseconds from the
/// change of the file until then, as measured by the host.
pub fn swap_once(stage: &mut DemoStage, component: &str, limit: Duration) -> Result<f64> {
    let path = stage.plugin_folder().join(format!("{component}.wasm"));
    let mut new = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let stamp = SystemTime::now()
        .duration_since(UNIX_EPOCH)?
        .as_nanos()
        .to_string();
    // A custom section changes the digest and nothing else.
    append_section(&mut new, "demo-stamp", stamp.as_bytes());
    let digest = format!("{:x}", Sha256::digest(&new));
    paths::replace_file(&path, &new)?;
    let began = Instant::now();
    loop {
        let plugins = stage.plugins()?;
        if let Some(plugin) = plugins.iter().find(|plugin| plugin.digest == digest) {
            return plugin
                .swapped_ms
                .context("the host does not report the duration of the swap");
        }
        stage.check_processes()?;
        if began.elapsed() > limit {
            let reason = plugins
                .iter()
                .find(|plugin| plugin.name == component)
                .map_or("not loaded", |p| &p.message);
            bail!(
                "the new build of {component} is not active after {} s: {reason}",
                limit.as_secs()
            );
        }
        if process::wait_for_interrupt(Duration::from_millis(20)) {
            bail!("interrupted");
        }
    }
}

/// Rebuilds plugins when their sources are saved, until it is dropped.
pub struct Rebuilder {
    _watcher: RecommendedWatcher,
}

impl Rebuilder {
    /// Watches the sources of a pack and installs new builds into the plugin directory.
    pub fn start(pack: Pack, plugins: PathBuf) -> Result<Self> {
        let (sender, events) = channel();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Fails only after the receiver has ended.
            let _ = sender.send(event);
        })?;
        watcher.watch(&paths::workspace_root().join("plugins"), RecursiveMode::Recursive)?;
        let guests: Vec<_> = components::list_guests()?
            .into_iter()
            .filter(|guest| pack.has_guest(guest))
            .collect();
        // The thread ends when the watcher is dropped, which closes the channel.
        std::thread::spawn(move || rebuild_on_save(&events, &guests, &plugins));
        Ok(Self { _watcher: watcher })
    }
}

fn rebuild_on_save(events: &Receiver<notify::Result<Event>>, guests: &[Guest], plugins: &Path) {
    while let Ok(first) = events.recv() {
        let mut saved: BTreeSet<_> = source_paths(first).into_iter().collect();
        while let Ok(event) = events.recv_timeout(DEBOUNCE_DELAY) {
            saved.extend(source_paths(event));
        }
        let touched = affected_guests(guests, &saved);
        if touched.is_empty() {
            continue;
        }
        progress::print_status(&format!(
            "Sources saved: rebuilding {}",
            touched.iter().copied().collect::<Vec<_>>().join(", ")
        ));
        let built = components::build_components(|guest| touched.contains(guest.name.as_str()));
        match built.and_then(|built| install_components(plugins, &built)) {
            Ok(()) => {}
            Err(e) if process::check_interrupt().is_ok() => {
                progress::print_status(&format!("{e:#}\nThe previous build stays active."));
            }
            Err(_) => return,
        }
    }
}

/// Returns the source files that an event changed. Read access is ignored.
fn source_paths(event: notify::Result<Event>) -> Vec<PathBuf> {
    let Ok(event) = event else { return Vec::new() };
    if matches!(event.kind, EventKind::Access(_)) {
        return Vec::new();
    }
    let is_source = |path: &PathBuf| path.extension().is_some_and(|e| e == "rs" || e == "toml");
    event.paths.into_iter().filter(is_source).collect()
}

/// Returns the guests to rebuild: the one that owns a saved file, or all for a shared file.
fn affected_guests<'a>(guests: &'a [Guest], saved: &BTreeSet<PathBuf>) -> BTreeSet<&'a str> {
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
    fn saved_file_rebuilds_its_guest_and_a_shared_file_rebuilds_all() {
        let guest = |name: &str| Guest {
            name: name.into(),
            pack: "p".into(),
            folder: format!("/p/{name}").into(),
            language: ostler_builder::Language::Rust,
            optimize: Default::default(),
        };
        let guests = [guest("a"), guest("b")];
        let saved = |path: &str| BTreeSet::from([PathBuf::from(path)]);
        assert_eq!(
            affected_guests(&guests, &saved("/p/a/src/lib.rs")),
            BTreeSet::from(["a"])
        );
        assert_eq!(
            affected_guests(&guests, &saved("/p/sdk/src/lib.rs")),
            BTreeSet::from(["a", "b"])
        );
        assert_eq!(affected_guests(&guests, &BTreeSet::new()), BTreeSet::new());
    }

    #[test]
    fn only_writes_to_source_files_trigger_a_build() {
        use notify::event::{AccessKind, ModifyKind};
        let event = |kind, path: &str| Ok(Event::new(kind).add_path(path.into()));
        assert_eq!(
            source_paths(event(EventKind::Modify(ModifyKind::Any), "/x/lib.rs")),
            [PathBuf::from("/x/lib.rs")]
        );
        assert!(source_paths(event(EventKind::Modify(ModifyKind::Any), "/x/.lib.rs.swp")).is_empty());
        assert!(source_paths(event(EventKind::Access(AccessKind::Any), "/x/lib.rs")).is_empty());
    }
}
