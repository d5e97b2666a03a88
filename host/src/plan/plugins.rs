//! The plugins that a plan is made with: those that a host would serve, by its directory and by `Plugin` objects, and
//! builds in place of these.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};

use super::World;
use crate::{
    kube::well_known::plugin_reason,
    plugin::{
        self, LoadError, Plugin, SlotId,
        canary_selector::CanarySelector,
        config_of_spec, load, load_for_object,
        spec::{PluginSpec, Source},
    },
    policy::grants::Grants,
    rollout::PluginObjects,
    settings::Settings,
};

/// `Plugin` objects in one answer of the API server.
const PAGE: usize = 100;

/// How a plugin is agreed: what a build in place of its own has, too.
struct Agreed {
    id: SlotId,
    grants: Grants,
    config: String,
    suspended: bool,
}

impl Agreed {
    fn object(name: &str, spec: &PluginSpec) -> Self {
        Self {
            id: SlotId::object(name),
            grants: Grants::from_object(name, spec.grant()),
            config: config_of_spec(spec),
            suspended: spec.suspend,
        }
    }
}

impl World {
    /// Loads what a host would, and these builds in place of those of the same name. What a host would refuse of a
    /// `Plugin` object is noted: its others are planned all the same.
    pub(super) async fn load(&self, builds: &[PathBuf], notes: &mut Vec<String>) -> anyhow::Result<()> {
        let objects = self.plugin_objects(notes).await?;
        let others = !builds.is_empty() || !objects.is_empty();
        let (mut serving, mut agreed) = self.directory(&objects, others, notes).await?;
        let of_objects = objects.iter();
        agreed.extend(of_objects.map(|(name, spec)| (name.clone(), Agreed::object(name, spec))));
        let mut replaced = BTreeSet::new();
        for path in builds {
            let (id, build) = self.build(path, &agreed).await?;
            serving.retain(|(_, other)| other.name() != build.name());
            replaced.insert(build.name().to_string());
            serving.push((id, build));
        }
        for (id, plugin) in serving {
            let (from, digest) = (plugin.source.clone(), plugin.digest.clone());
            let asked_for = replaced.contains(&**plugin.name());
            match self.controller.registry.serve(&id, &digest, plugin, None) {
                Ok(_) => {}
                Err(why) if asked_for => bail!("{from}: {why}"),
                Err(why) => notes.push(format!("{from} is not planned with: {}: {why}", why.reason)),
            }
        }
        let pulling = PluginObjects::new(
            self.services.clone(),
            self.settings.plugin_selector.clone(),
            self.settings.component_store(),
            self.controller.registry.clone(),
        );
        for (name, spec) in objects.iter().filter(|(name, _)| !replaced.contains(*name)) {
            if let Err(why) = self.govern(&pulling, name, spec, notes).await {
                notes.push(refused(name, &why));
            }
        }
        if self.controller.registry.serving().is_empty() {
            if !notes.is_empty() {
                bail!("there is no plugin to plan with: {}", notes.join("; "));
            }
            let directory = self.settings.plugins.display();
            bail!("there is no component (*.wasm) in {directory}: say where they are with --plugin-dir");
        }
        Ok(())
    }

    /// The `Plugin` objects that a host would follow, those included that are only planned: by name, what each says.
    /// From now on they govern.
    async fn plugin_objects(&self, notes: &mut Vec<String>) -> anyhow::Result<BTreeMap<String, PluginSpec>> {
        let mut objects = BTreeMap::new();
        let (effects, selector) = (&self.services.writer, self.settings.plugin_selector.as_ref());
        let (kind, mut token) = (plugin::kind(), String::new());
        loop {
            let page = effects.list_page(None, &kind, "", selector, PAGE, &token);
            let (found, next) = match page.await {
                Ok(page) => page,
                // Not installed.
                Err(e) if e.code() == 404 => break,
                Err(e) if e.code() == 403 => {
                    notes.push(format!(
                        "planned without Plugin objects, which can't be listed: {e}"
                    ));
                    break;
                }
                Err(e) => return Err(e).context("the Plugin objects can't be listed"),
            };
            for (key, object) in found {
                self.controller.registry.reserve_name(&key.name);
                match PluginSpec::parse(&object) {
                    Ok(spec) => drop(objects.insert(key.name.to_string(), spec)),
                    Err(why) => notes.push(refused(&key.name, &why)),
                }
            }
            if next.is_empty() {
                break;
            }
            token = next;
        }
        Ok(objects)
    }

    /// The plugins of the directory but those that objects govern, by their files; and how they are agreed, by name.
    async fn directory(
        &self,
        objects: &BTreeMap<String, PluginSpec>,
        others: bool,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<(Vec<(SlotId, Plugin)>, BTreeMap<String, Agreed>)> {
        let claimed: BTreeSet<&str> = objects.values().flat_map(PluginSpec::files).collect();
        let is_claimed = |path: &Path| {
            let name = path.file_name().and_then(OsStr::to_str);
            name.is_some_and(|name| claimed.contains(name))
        };
        let (mut plugins, mut agreed) = (Vec::new(), BTreeMap::new());
        for path in self.files(others)?.into_iter().filter(|path| !is_claimed(path)) {
            let id = SlotId::file(path.display().to_string());
            let loaded = async {
                let config = configured(&path)?.unwrap_or_else(|| "{}".into());
                let plugin = self.component(&path, Some(&config)).await?;
                anyhow::Ok((config, plugin))
            };
            let (config, plugin) = match loaded.await {
                Ok(loaded) => loaded,
                // As a host does: the others serve.
                Err(why) => {
                    notes.push(format!("not planned with: {why:#}"));
                    continue;
                }
            };
            let name = plugin.name().to_string();
            if self.controller.registry.is_reserved(&name) {
                notes.push(format!(
                    "{id} is not planned with: the Plugin {name} governs its plugin, and names another source"
                ));
                continue;
            }
            let grants = self.settings.grants.clone();
            let of_file = Agreed {
                id: id.clone(),
                grants,
                config,
                suspended: false,
            };
            agreed.insert(name, of_file);
            plugins.push((id, plugin));
        }
        Ok((plugins, agreed))
    }

    /// The components of the directory, which may be missing where there are others.
    fn files(&self, others: bool) -> anyhow::Result<Vec<PathBuf>> {
        let directory = &self.settings.plugins;
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound && others => return Ok(Vec::new()),
            Err(e) => bail!(
                "the plugin directory {} can't be read: {e}; say where it is with --plugin-dir",
                directory.display()
            ),
        };
        let paths = entries.map(|entry| entry.map(|e| e.path()));
        let mut paths: Vec<_> = paths.collect::<Result<_, _>>()?;
        paths.retain(|p| component(p));
        paths.sort();
        Ok(paths)
    }

    async fn component(&self, path: &Path, config: Option<&str>) -> anyhow::Result<Plugin> {
        let wasm = std::fs::read(path).with_context(|| format!("the component {}", path.display()))?;
        let Settings { grants, limits, .. } = &*self.settings;
        let plugin = load(&self.controller.engine, wasm, config, grants, limits).await;
        let plugin = plugin.map_err(|why| anyhow::anyhow!("{}: {why}", path.display()))?;
        Ok(Plugin {
            source: path.display().to_string(),
            ..plugin
        })
    }

    /// A build as it is agreed with the plugin whose place it takes, and that one's id. The configuration beside it
    /// comes before that one's.
    async fn build(
        &self,
        path: &Path,
        agreed: &BTreeMap<String, Agreed>,
    ) -> anyhow::Result<(SlotId, Plugin)> {
        let own = configured(path)?;
        // Only looked at: whose place it takes, it says itself.
        let build = self.component(path, None).await?;
        let refused = |why: LoadError| anyhow::anyhow!("{}: {why}", path.display());
        let Settings { grants, limits, .. } = &*self.settings;
        let Some(before) = agreed.get(&**build.name()) else {
            let plugin = build.reconfigure(Some(own.as_deref().unwrap_or("{}")), grants, limits);
            return Ok((SlotId::file(path.display().to_string()), plugin.map_err(refused)?));
        };
        if before.id == SlotId::object(&**build.name()) {
            build.check_object_name(build.name()).map_err(refused)?;
        }
        let config = own.as_ref().unwrap_or(&before.config);
        let plugin = build.reconfigure(Some(config), &before.grants, limits);
        let plugin = Plugin {
            suspended: before.suspended,
            ..plugin.map_err(refused)?
        };
        Ok((before.id.clone(), plugin))
    }

    /// Serves what a `Plugin` object names, and the canary beside it.
    async fn govern(
        &self,
        pulling: &PluginObjects,
        name: &str,
        spec: &PluginSpec,
        notes: &mut Vec<String>,
    ) -> Result<(), LoadError> {
        let id = SlotId::object(name);
        let plugin = self.governed(pulling, name, spec, &spec.source).await?;
        self.controller
            .registry
            .serve(&id, &plugin.digest.clone(), plugin, None)?;
        let Some(canary) = &spec.canary else {
            return Ok(());
        };
        let served = async {
            let selector = CanarySelector::new(&canary.objects)
                .map_err(|e| LoadError::new(plugin_reason::INVALID_SPEC, e))?;
            let plugin = self.governed(pulling, name, spec, &canary.source).await?;
            self.controller
                .registry
                .serve_canary(&id, &plugin.digest.clone(), plugin, selector)
        };
        if let Err(why) = served.await {
            notes.push(format!(
                "the canary of the Plugin {name} is not planned with: {}: {why}",
                why.reason
            ));
        }
        Ok(())
    }

    async fn governed(
        &self,
        pulling: &PluginObjects,
        name: &str,
        spec: &PluginSpec,
        source: &Source,
    ) -> Result<Plugin, LoadError> {
        let wasm = match (&source.oci, &source.file) {
            (Some(oci), _) => pulling.pull(oci, spec.verify.as_ref()).await?.0,
            (None, Some(file)) if !file.contains('/') => {
                let directory = &self.settings.plugins;
                std::fs::read(directory.join(file)).map_err(|e| {
                    let place = directory.display();
                    let why = format!("{file} can't be read in {place}: {e}; say where the host's components are with --plugin-dir");
                    LoadError::new(plugin_reason::FILE_NOT_FOUND, why)
                })?
            }
            _ => {
                return Err(LoadError::new(
                    plugin_reason::INVALID_SPEC,
                    "spec.source names no component".into(),
                ));
            }
        };
        let plugin = load_for_object(
            &self.controller.engine,
            &self.controller.registry,
            name,
            spec,
            wasm,
            &self.settings.limits,
        )
        .await?;
        Ok(Plugin {
            source: source.to_string(),
            ..plugin
        })
    }
}

fn refused(name: &str, why: &LoadError) -> String {
    format!("the Plugin {name} is not planned with: {}: {why}", why.reason)
}

/// The configuration beside a component.
fn configured(path: &Path) -> anyhow::Result<Option<String>> {
    let path = path.with_extension("yaml");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("the configuration {}", path.display())),
    }
}

/// Whether a file is a component, and no save that is not done.
fn component(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".wasm") && !name.starts_with('.')
}
