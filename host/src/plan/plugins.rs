//! The plugins of a plan: those that a host would serve from its directory and from `Plugin` objects, and builds that
//! replace them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use super::Planner;
use crate::{
    kube::{hash::encode_hex, well_known::plugin_reason},
    plugin::{
        self, LoadError, Plugin, SlotId,
        canary_selector::CanarySelector,
        config_of_spec, load, load_for_object,
        spec::{ComponentSource, PluginSpec},
    },
    policy::grants::Grants,
    rollout::PluginObjects,
    settings::HostSettings,
};

/// Number of `Plugin` objects per list response.
const PAGE_SIZE: usize = 100;

/// Policy of a plugin, which also applies to a build that replaces it.
struct ServedPolicy {
    id: SlotId,
    grants: Grants,
    config: String,
    suspended: bool,
}

impl ServedPolicy {
    fn from_object(name: &str, spec: &PluginSpec) -> Self {
        Self {
            id: SlotId::object(name),
            grants: Grants::from_object(name, spec.grant()),
            config: config_of_spec(spec),
            suspended: spec.suspend,
        }
    }
}

impl Planner {
    /// Loads the plugins that a host would serve; `builds` replace those of the same name. A `Plugin` object that a host
    /// would refuse is noted, and the others are planned.
    pub(super) async fn load_plugins(
        &self,
        builds: &[PathBuf],
        notes: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let objects = self.list_plugin_objects(notes).await?;
        let others = !builds.is_empty() || !objects.is_empty();
        let (mut serving, mut policies) = self.load_directory(&objects, others, notes).await?;
        let of_objects = objects.iter();
        policies.extend(of_objects.map(|(name, spec)| (name.clone(), ServedPolicy::from_object(name, spec))));
        let mut replaced = BTreeSet::new();
        for path in builds {
            let (id, build) = self.load_build(path, &policies).await?;
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
                Err(why) => notes.push(format!("{from} is left out of the plan: {}: {why}", why.reason)),
            }
        }
        let pulling = PluginObjects::new(
            self.services.clone(),
            self.settings.plugin_selector.clone(),
            self.settings.component_store(),
            self.controller.registry.clone(),
        );
        for (name, spec) in objects.iter().filter(|(name, _)| !replaced.contains(*name)) {
            if let Err(why) = self.serve_object(&pulling, name, spec, notes).await {
                notes.push(refusal_note(name, &why));
            }
        }
        if self.controller.registry.serving().is_empty() {
            if !notes.is_empty() {
                bail!("no plugin could be loaded: {}", notes.join("; "));
            }
            let directory = self.settings.plugins.display();
            bail!("no component (*.wasm) in {directory}: set --plugin-dir to the folder with the components");
        }
        Ok(())
    }

    /// Lists the specs of the `Plugin` objects that a host would follow, planned ones included, by name. Their names are
    /// reserved in the registry, so that files cannot serve them.
    async fn list_plugin_objects(
        &self,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<BTreeMap<String, PluginSpec>> {
        let mut objects = BTreeMap::new();
        let (effects, selector) = (&self.services.api.writer, self.settings.plugin_selector.as_ref());
        let (kind, mut token) = (plugin::kind(), String::new());
        loop {
            let page = effects.list_page(None, &kind, "", selector, PAGE_SIZE, &token);
            let (found, next) = match page.await {
                Ok(page) => page,
                // The CRD of Plugin is not installed.
                Err(e) if e.code() == 404 => break,
                Err(e) if e.code() == 403 => {
                    notes.push(format!(
                        "Plugin objects are left out of the plan, listing them is forbidden: {e}"
                    ));
                    break;
                }
                Err(e) => return Err(e).context("listing Plugin objects failed"),
            };
            for (key, object) in found {
                self.controller.registry.reserve_name(&key.name);
                match PluginSpec::parse(&object) {
                    Ok(spec) => drop(objects.insert(key.name.to_string(), spec)),
                    Err(why) => notes.push(refusal_note(&key.name, &why)),
                }
            }
            if next.is_empty() {
                break;
            }
            token = next;
        }
        Ok(objects)
    }

    /// Loads the plugins of the directory except those that a `Plugin` object configures. Returns them by file, and their
    /// policies by name.
    async fn load_directory(
        &self,
        objects: &BTreeMap<String, PluginSpec>,
        others: bool,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<(Vec<(SlotId, Plugin)>, BTreeMap<String, ServedPolicy>)> {
        let claimed: BTreeSet<&str> = objects.values().flat_map(PluginSpec::files).collect();
        let is_claimed = |path: &Path| {
            let name = path.file_name().and_then(OsStr::to_str);
            name.is_some_and(|name| claimed.contains(name))
        };
        let (mut plugins, mut policies) = (Vec::new(), BTreeMap::new());
        for path in self
            .list_components(others)?
            .into_iter()
            .filter(|path| !is_claimed(path))
        {
            let id = SlotId::file(path.display().to_string());
            let loaded = async {
                let config = read_config(&path)?.unwrap_or_else(|| "{}".into());
                let plugin = self.load_component(&path, Some(&config)).await?;
                let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
                let components = &self.settings.grants.components;
                let allowed = components.check_component(&plugin.digest, file);
                allowed.map_err(|violation| anyhow::anyhow!("{file}: {}", violation.message))?;
                anyhow::Ok((config, plugin))
            };
            let (config, plugin) = match loaded.await {
                Ok(loaded) => loaded,
                // The other plugins are served, as by a host.
                Err(why) => {
                    notes.push(format!("a plugin is left out of the plan: {why:#}"));
                    continue;
                }
            };
            let name = plugin.name().to_string();
            if self.controller.registry.is_reserved(&name) {
                notes.push(format!(
                    "{id} is left out of the plan: the Plugin object {name} configures its plugin with another source"
                ));
                continue;
            }
            let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if let Err(why) = plugin.check_file_name(file) {
                notes.push(format!("a plugin is left out of the plan: {why}"));
                continue;
            }
            let grants = self.settings.grants.clone();
            let of_file = ServedPolicy {
                id: id.clone(),
                grants,
                config,
                suspended: false,
            };
            policies.insert(name, of_file);
            plugins.push((id, plugin));
        }
        Ok((plugins, policies))
    }

    /// Lists the components of the directory, which may be missing if there are `others`.
    fn list_components(&self, others: bool) -> anyhow::Result<Vec<PathBuf>> {
        let directory = &self.settings.plugins;
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound && others => return Ok(Vec::new()),
            Err(e) => bail!(
                "the plugin directory {} can't be read: {e}; set --plugin-dir to the folder with the components",
                directory.display()
            ),
        };
        let paths = entries.map(|entry| entry.map(|e| e.path()));
        let mut paths: Vec<_> = paths.collect::<Result<_, _>>()?;
        paths.retain(|p| is_component(p));
        paths.sort();
        Ok(paths)
    }

    async fn load_component(&self, path: &Path, config: Option<&str>) -> anyhow::Result<Plugin> {
        let wasm = std::fs::read(path).with_context(|| format!("the component {}", path.display()))?;
        let HostSettings { grants, limits, .. } = &*self.settings;
        let plugin = load(&self.controller.engine, wasm, config, grants, limits).await;
        let plugin = plugin.map_err(|why| anyhow::anyhow!("{}: {why}", path.display()))?;
        Ok(Plugin {
            source: path.display().to_string(),
            ..plugin
        })
    }

    /// Loads a build with the policy of the plugin it replaces, and returns that plugin's slot. A configuration file
    /// beside the build takes precedence over that plugin's.
    async fn load_build(
        &self,
        path: &Path,
        policies: &BTreeMap<String, ServedPolicy>,
    ) -> anyhow::Result<(SlotId, Plugin)> {
        let own = read_config(path)?;
        // The name of the plugin it replaces is in its descriptor, so it is loaded before its configuration is known.
        let build = self.load_component(path, None).await?;
        let refused = |why: LoadError| anyhow::anyhow!("{}: {why}", path.display());
        let HostSettings { grants, limits, .. } = &*self.settings;
        let Some(before) = policies.get(&**build.name()) else {
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

    /// Serves the component of a `Plugin` object, and its canary.
    async fn serve_object(
        &self,
        pulling: &PluginObjects,
        name: &str,
        spec: &PluginSpec,
        notes: &mut Vec<String>,
    ) -> Result<(), LoadError> {
        let id = SlotId::object(name);
        let plugin = self.load_source(pulling, name, spec, &spec.source).await?;
        self.controller
            .registry
            .serve(&id, &plugin.digest.clone(), plugin, None)?;
        let Some(canary) = &spec.canary else {
            return Ok(());
        };
        let served = async {
            let selector = CanarySelector::new(&canary.objects)
                .map_err(|e| LoadError::new(plugin_reason::INVALID_SPEC, e))?;
            let plugin = self.load_source(pulling, name, spec, &canary.source).await?;
            self.controller
                .registry
                .serve_canary(&id, &plugin.digest.clone(), plugin, selector)
        };
        if let Err(why) = served.await {
            notes.push(format!(
                "the canary of the Plugin {name} is left out of the plan: {}: {why}",
                why.reason
            ));
        }
        Ok(())
    }

    async fn load_source(
        &self,
        pulling: &PluginObjects,
        name: &str,
        spec: &PluginSpec,
        source: &ComponentSource,
    ) -> Result<Plugin, LoadError> {
        let host_policy = &self.settings.grants.components;
        let wasm = match (&source.oci, &source.file) {
            (Some(oci), _) => pulling.pull(oci, spec.verify.as_ref(), host_policy).await?.0,
            (None, Some(file)) if !file.contains('/') => {
                let directory = &self.settings.plugins;
                std::fs::read(directory.join(file)).map_err(|e| {
                    let place = directory.display();
                    let why = format!(
                        "{file} can't be read in {place}: {e}; set --plugin-dir to the host's components"
                    );
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
        host_policy.check_component(&encode_hex(&Sha256::digest(&wasm)), &source.to_string())?;
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

fn refusal_note(name: &str, why: &LoadError) -> String {
    format!("the Plugin {name} is left out of the plan: {}: {why}", why.reason)
}

/// Reads the configuration file beside a component.
fn read_config(path: &Path) -> anyhow::Result<Option<String>> {
    let path = path.with_extension("yaml");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("the configuration {}", path.display())),
    }
}

/// Returns `true` if a file is a component. Names with a leading dot are temporary files of an unfinished save.
fn is_component(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".wasm") && !name.starts_with('.')
}
