//! `ostler plugin install` and `uninstall`: a plugin with its service account and roles.

mod cluster;
mod kinds;
mod upgrade;
mod wait;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use kube::Client;
use serde_json::{Map, Value, json};

use self::{
    cluster::{check_host, check_ownership, delete_plugin, discover_catalog, find_obsolete, read_plugin},
    kinds::{KindChange, PlannedKind, apply_kinds, plan_kinds},
    upgrade::{add_live_rights, check_finalizers, find_new_roles, read_signature_policy},
    wait::PluginWait,
};
use crate::{
    cli::{
        apply::{apply_objects, delete_objects, read_live},
        kubeconfig::KubeContext,
        parse_duration,
        registry::{RegistryCommand, read_text},
        table::{Shade, shade_text},
    },
    contract::limits::PluginLimits,
    plugin::{
        Plugin as Build,
        carried::read_kinds,
        config_of_spec,
        install::{InstallOptions, Installation, escape_controls, list_groups, render_yaml},
        load,
        spec::{ComponentSource, Oci, PluginObject, VerifySpec},
    },
    policy::{
        grants::{Grants, Permissions, ServiceAccount},
        origin::OriginPattern,
        rbac::{HOST_NAMESPACE, ResourceCatalog},
    },
    sandbox::engine::Engine,
    supply::{
        oci::{Digest, OciReference},
        signature::{PublicKey, SignaturePolicy},
    },
};

/// Arguments of `ostler plugin install`.
#[derive(Args)]
#[command(
    after_help = "Roles allow exactly what the manifest asks for: to the plugin's service account, and to the host. An \
                  installed plugin is upgraded; permissions that it did not have before are listed, and need --yes.\n\n\
                  Exit codes: 0 it serves, or is applied with --no-wait or printed with --dry-run; 1 otherwise."
)]
pub struct Install {
    /// Registry reference (REGISTRY/REPOSITORY:TAG or …@sha256:DIGEST), or component file of the host's plugin directory.
    #[arg(value_name = "REFERENCE|FILE")]
    subject: String,
    #[command(flatten)]
    installer: Installer,
}

impl Install {
    /// Plans the installation, and prints it, or applies it and waits until the build serves.
    pub async fn run(self) -> anyhow::Result<()> {
        self.installer.install(self.subject).await
    }
}

/// How a plugin is installed.
#[derive(Args)]
pub struct Installer {
    /// The component: a reference or a file.
    #[arg(skip)]
    subject: String,
    /// Namespace of the objects that the plugin reconciles. May be repeated. Defaults to all namespaces. The service account
    /// is always in the namespace of the host.
    #[arg(short, long = "namespace", value_name = "NAMESPACE")]
    namespaces: Vec<String>,
    /// Create the namespaces of the objects that do not exist.
    #[arg(long, requires = "namespaces")]
    create_namespace: bool,
    /// Server that Secrets may be sent to, where the manifest leaves it open, such as https://ci.example.com. May be
    /// repeated. An upgrade keeps those of the installed plugin.
    #[arg(long = "origin", value_name = "ORIGIN")]
    origins: Vec<OriginPattern>,
    /// Trusted public key (PEM, ECDSA P-256 or Ed25519) that the component must be signed with. May be repeated: one valid
    /// signature is enough. An upgrade without it verifies with the keys of the installed plugin.
    #[arg(long = "key", value_name = "COSIGN.PUB")]
    keys: Vec<PathBuf>,
    /// File with the configuration of the plugin (YAML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Leave the CustomResourceDefinitions that the component carries to others.
    #[arg(long)]
    no_crds: bool,
    /// Print the objects as YAML, and apply nothing.
    #[arg(long)]
    dry_run: bool,
    /// Grant permissions that the installed plugin does not have.
    #[arg(long)]
    yes: bool,
    /// Take over fields that others have changed.
    #[arg(long)]
    force_conflicts: bool,
    /// Time to wait until the build serves. The former build of an upgrade loses its rights only then.
    #[arg(long, default_value = "1m", value_parser = parse_duration)]
    timeout: Duration,
    /// End when the objects are applied. An upgrade that takes rights from the build that serves waits for the new one all the
    /// same.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    host: HostAccount,
    /// The registry of the component.
    #[command(flatten)]
    pub registry: RegistryCommand,
}

/// Arguments of `ostler plugin uninstall`.
#[derive(Args)]
#[command(
    after_help = "Objects with the plugin's finalizer keep it, since nothing else could clean them up: the command says which, and \
                  what can be done. Objects without it stay.\n\nExit codes: 0 uninstalled; 1 otherwise."
)]
pub struct Uninstall {
    /// Name of the plugin.
    name: String,
    /// Time to wait until no object needs the plugin any more. After it the deletion goes on without the command.
    #[arg(long, default_value = "1m", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    context: KubeContext,
}

/// The cluster and the service account of its host.
#[derive(Args)]
struct HostAccount {
    /// Namespace of the host.
    #[arg(long, value_name = "NAMESPACE", default_value = HOST_NAMESPACE)]
    host_namespace: String,
    /// Service account of the host.
    #[arg(long, value_name = "NAME", default_value = "ostler")]
    host_service_account: String,
    #[command(flatten)]
    context: KubeContext,
}

impl HostAccount {
    fn account(&self) -> ServiceAccount {
        ServiceAccount {
            namespace: self.host_namespace.clone(),
            name: self.host_service_account.clone(),
        }
    }

    async fn connect(&self) -> anyhow::Result<Client> {
        self.context.connect().await
    }
}

/// An installation that is planned and not applied.
struct PreparedInstallation {
    client: Client,
    build: Build,
    /// The installed plugin of the name.
    installed: Option<PluginObject>,
    planned: Installation,
    kinds: Vec<PlannedKind>,
    /// Namespaces to create.
    created: Vec<Value>,
    /// Roles, bindings and the `Plugin`, in the order in which they are applied.
    objects: Vec<Value>,
}

impl PreparedInstallation {
    fn is_upgrade(&self) -> bool {
        self.installed.is_some()
    }

    /// A build serves.
    fn is_running(&self) -> bool {
        let status = self.installed.as_ref().and_then(|object| object.status.as_ref());
        status.is_some_and(|status| status.running.is_some())
    }

    /// All objects, CustomResourceDefinitions first.
    fn list_objects(&self) -> Vec<Value> {
        let definitions = self.kinds.iter().map(|planned| planned.kind.definition.clone());
        definitions
            .chain(self.created.iter().cloned())
            .chain(self.objects.iter().cloned())
            .collect()
    }
}

/// Discovers the kinds that a component asks for. A group that cannot be discovered is a warning.
async fn discover_kinds(
    client: &Client,
    asks: Option<&Permissions>,
    build: &Build,
) -> anyhow::Result<ResourceCatalog> {
    let groups = asks.and_then(|asks| list_groups(asks, build));
    let discovery = discover_catalog(client, groups.as_ref()).await?;
    for group in &discovery.unavailable {
        let group = escape_controls(group);
        eprintln!(
            "warning: {group} cannot be discovered: roles have no rules for its kinds until the command is repeated"
        );
    }
    Ok(discovery.catalog)
}

impl Installer {
    /// Installs a component, or prints the objects of its installation.
    ///
    /// # Errors
    /// It can't be read or planned, an object can't be applied, or the build does not serve in time.
    pub async fn install(mut self, subject: String) -> anyhow::Result<()> {
        self.subject = subject;
        let prepared = self.prepare().await?;
        self.report(&prepared);
        if self.dry_run {
            print!("{}", render_yaml(&prepared.list_objects()));
            return Ok(());
        }
        if prepared.is_upgrade() && !prepared.planned.new_permissions.is_empty() && !self.yes {
            bail!("nothing was changed, since the permissions above are new: grant them with --yes");
        }
        let generation = self.apply(&prepared).await?;
        if self.no_wait {
            return Ok(());
        }
        let build = &prepared.build;
        let wait = PluginWait::new(&prepared.client, build.name(), self.timeout);
        let version = wait.until_serving(generation, &build.digest).await.context(
            "the objects above are applied, and stay: mend the cause, or take them back with `ostler plugin uninstall`",
        )?;
        println!("Plugin {} serves {version}", build.name());
        Ok(())
    }

    /// Reads the component, and plans its installation in a cluster. Nothing is changed.
    async fn prepare(&self) -> anyhow::Result<PreparedInstallation> {
        let subject = &self.subject;
        let verify = self.read_keys()?;
        let config = self.config.as_deref().map(read_config).transpose()?;
        let (wasm, source) = self.read_component(verify.as_ref()).await?;
        let build = self.load_build(&wasm, &source).await?;
        let client = &self.host.connect().await?;
        if !self.dry_run {
            check_host(client, &self.host.host_namespace).await?;
        }
        let installed = read_plugin(client, build.name()).await?;
        let before = installed.as_ref().map(|object| object.spec.clone());
        if let (None, Some(required)) = (&verify, before.as_ref().and_then(|spec| spec.verify.as_ref())) {
            self.verify_source(client, build.name(), &source, required)
                .await?;
        }
        let asks = build.manifest.as_ref().map(|manifest| &manifest.permissions);
        let mut catalog = discover_kinds(client, asks, &build).await?;
        let kinds = match asks {
            Some(asks) if !self.no_crds => read_kinds(&wasm, asks).with_context(|| subject.clone())?,
            _ => Vec::new(),
        };
        for kind in &kinds {
            if catalog.find(&kind.resource.group, &kind.resource.kind).is_none() {
                catalog.add(kind.resource.clone());
            }
        }
        let kinds = plan_kinds(client, kinds).await?;
        let options = InstallOptions {
            namespaces: self.namespaces.clone(),
            origins: self.origins.clone(),
            verify,
            config,
        };
        let host = self.host.account();
        let planned = Installation::plan(&build, source, &host, options, before.clone(), &catalog);
        let mut planned = planned.with_context(|| format!("{subject}: plugin {}", build.name()))?;
        check_spec(&build, &planned)?;
        if let Some(before) = &before {
            let roles = find_new_roles(client, build.name(), &planned.rights_objects).await?;
            planned.new_permissions.extend(roles);
            let grants = &planned.plugin.spec.grants;
            check_finalizers(client, &build.kinds, &catalog, &before.grants, grants).await?;
        }
        let created = match self.create_namespace {
            true => find_absent_namespaces(client, &self.namespaces).await?,
            false => Vec::new(),
        };
        // The roles come first, so that the plugin has its permissions when it starts.
        let mut objects = planned.rights_objects.clone();
        objects.push(serde_json::to_value(&planned.plugin)?);
        Ok(PreparedInstallation {
            client: client.clone(),
            build,
            installed,
            planned,
            kinds,
            created,
            objects,
        })
    }

    async fn load_build(&self, wasm: &[u8], source: &ComponentSource) -> anyhow::Result<Build> {
        let limits = PluginLimits::default();
        let engine = Engine::new(4, limits.memory, None, None);
        let engine = Arc::new(engine.map_err(|e| anyhow::anyhow!("{e:#}"))?);
        let build = load(&engine, wasm.to_vec(), None, &Grants::default(), &limits).await;
        let build = build.map_err(|e| anyhow::anyhow!("{}: {e}", self.subject))?;
        if let Some(file) = &source.file {
            build.check_file_name(file).map_err(|e| anyhow::anyhow!("{e}"))?;
        }
        Ok(build)
    }

    /// Applies an installation. Returns the generation of the `Plugin` object.
    async fn apply(&self, prepared: &PreparedInstallation) -> anyhow::Result<i64> {
        let PreparedInstallation {
            client,
            build,
            planned,
            objects,
            ..
        } = prepared;
        check_ownership(client, build.name(), objects).await?;
        apply_kinds(client, &prepared.kinds, self.force_conflicts).await?;
        apply_objects(client, &prepared.created, self.force_conflicts).await?;
        let obsolete = find_obsolete(client, build.name(), objects).await?;
        if prepared.is_running() {
            let first = add_live_rights(client, &planned.rights_objects).await?;
            let loses_rights =
                first != planned.rights_objects || planned.transition.is_some() || !obsolete.is_empty();
            if loses_rights {
                self.begin_transition(client, build, planned, &first).await?;
            }
        }
        let generation = apply_objects(client, objects, self.force_conflicts).await?;
        delete_objects(client, &obsolete).await?;
        Ok(generation)
    }

    /// Applies the rights and grants of the former build and of the new one together, and waits until that serves: the former one
    /// needs its rights until then.
    async fn begin_transition(
        &self,
        client: &Client,
        build: &Build,
        planned: &Installation,
        rights: &[Value],
    ) -> anyhow::Result<()> {
        apply_objects(client, rights, self.force_conflicts).await?;
        let plugin = planned.transition.as_ref().unwrap_or(&planned.plugin);
        let plugin = serde_json::to_value(plugin)?;
        let generation = apply_objects(client, &[plugin], self.force_conflicts).await?;
        let wait = PluginWait::new(client, build.name(), self.timeout);
        wait.until_serving(generation, &build.digest).await.context(
            "the rights of the former build are kept until the new one serves: repeat the command when it does",
        )?;
        Ok(())
    }

    /// Verifies the component as the installed plugin requires. Its name is known only after the component was read.
    async fn verify_source(
        &self,
        client: &Client,
        plugin: &str,
        source: &ComponentSource,
        verify: &VerifySpec,
    ) -> anyhow::Result<()> {
        let subject = &self.subject;
        let Some(oci) = &source.oci else {
            bail!(
                "{subject}: the installed plugin {plugin} has spec.verify, and a file has no signatures: push it to a registry"
            );
        };
        let policy = read_signature_policy(client, verify).await;
        let policy = policy.with_context(|| format!("the installed plugin {plugin}"))?;
        let reference: OciReference = oci.reference.parse()?;
        let (store, auth) = self.registry.open_store(&reference)?;
        let verified = store.verify_artifact(&reference, &auth, &policy).await;
        verified.map(drop).with_context(|| {
            format!(
                "{subject}: spec.verify of the installed plugin {plugin} is not met; --key replaces its keys"
            )
        })
    }

    fn read_keys(&self) -> anyhow::Result<Option<VerifySpec>> {
        let read = |path: &PathBuf| {
            let text = read_text(path)?;
            PublicKey::from_pem(&text).with_context(|| format!("the key {}", path.display()))?;
            Ok(text)
        };
        let keys = self.keys.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
        Ok((!keys.is_empty()).then(|| VerifySpec {
            keys,
            keys_from: Vec::new(),
            require_all: false,
            required: true,
        }))
    }

    /// Reads the component, and returns it with the source of the `Plugin` object. A reference is pinned by its digest.
    async fn read_component(
        &self,
        verify: Option<&VerifySpec>,
    ) -> anyhow::Result<(Vec<u8>, ComponentSource)> {
        let path = Path::new(&self.subject);
        if path.is_file() {
            if verify.is_some() {
                bail!(
                    "{}: a file has no signatures: push it to a registry",
                    self.subject
                );
            }
            let wasm = std::fs::read(path).with_context(|| format!("reading {}", self.subject))?;
            let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
            return Ok((wasm, ComponentSource { oci: None, file }));
        }
        let reference: OciReference = self
            .subject
            .parse()
            .with_context(|| format!("there is no file {}", self.subject))?;
        let keys = verify.iter().flat_map(|verify| &verify.keys);
        let keys: Vec<_> = keys.filter_map(|key| PublicKey::from_pem(key).ok()).collect();
        let policy = if keys.is_empty() {
            SignaturePolicy::none()
        } else {
            SignaturePolicy::any_of(keys)
        };
        let (store, auth) = self.registry.open_store(&reference)?;
        let pulled = store.pull_component(&reference, &auth, &policy).await?;
        let digest = Digest::parse(&pulled.digest).context("the registry's digest")?;
        let oci = Oci {
            reference: reference.with_digest(digest).to_string(),
            pull_secret_ref: None,
        };
        Ok((
            pulled.wasm,
            ComponentSource {
                oci: Some(oci),
                file: None,
            },
        ))
    }

    /// Prints what the plugin may do, or what it may do in addition, to standard error.
    fn report(&self, prepared: &PreparedInstallation) {
        let PreparedInstallation {
            build,
            planned,
            kinds,
            ..
        } = prepared;
        let is_upgrade = prepared.is_upgrade();
        let place = match self.namespaces.as_slice() {
            [] => "in all namespaces".to_owned(),
            names => format!("in {}", names.join(", ")),
        };
        let title = escape_controls(&format!("{} {} {place}", build.name(), build.version));
        match (is_upgrade, planned.new_permissions.as_slice()) {
            (true, []) => eprintln!("{title}: no new permissions"),
            (true, _) => eprintln!("{title}, new permissions:"),
            (false, _) => eprintln!("{title}, permissions:"),
        }
        for line in &planned.new_permissions {
            eprintln!(
                "  {}",
                shade_text(line, if is_upgrade { Shade::Waiting } else { Shade::Plain })
            );
        }
        for planned in kinds {
            let word = match planned.change {
                KindChange::New => "new",
                KindChange::Changed => "changed",
                KindChange::Same => continue,
            };
            eprintln!(
                "  {word} CustomResourceDefinition {}",
                escape_controls(&planned.kind.name)
            );
        }
        for kind in &planned.rights.unserved {
            let kind = escape_controls(kind);
            eprintln!("warning: the API server does not serve {kind}; the name of its resource is a guess");
        }
    }
}

/// Returns those of some namespaces that do not exist, as objects to apply.
async fn find_absent_namespaces(client: &Client, names: &[String]) -> anyhow::Result<Vec<Value>> {
    let mut absent = Vec::new();
    for name in names {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        if read_live(client, &namespace).await?.is_none() {
            absent.push(namespace);
        }
    }
    Ok(absent)
}

impl Uninstall {
    /// Deletes the `Plugin` object, and when it is gone the service account and the roles.
    pub async fn run(self) -> anyhow::Result<()> {
        let client = self.context.connect().await?;
        uninstall_plugin(&client, &self.name, self.timeout).await
    }
}

/// Deletes a `Plugin` object, and when it is gone the service account and the roles.
///
/// # Errors
/// Objects need the plugin for their cleanup for longer than the timeout.
pub async fn uninstall_plugin(client: &Client, name: &str, timeout: Duration) -> anyhow::Result<()> {
    let shown = format!("Plugin {}", escape_controls(name));
    if delete_plugin(client, name).await? {
        PluginWait::new(client, name, timeout).until_gone().await?;
        println!("{shown} deleted");
    } else {
        println!("{shown} does not exist");
    }
    let obsolete = find_obsolete(client, name, &[]).await?;
    delete_objects(client, &obsolete).await
}

/// Checks configuration and grants as the host does when it loads the plugin.
fn check_spec(build: &Build, planned: &Installation) -> anyhow::Result<()> {
    let spec = &planned.plugin.spec;
    let grants = Grants::from_object(build.name(), spec.grant());
    spec.grant()
        .check_fields()
        .map_err(|e| anyhow::anyhow!("plugin {}: spec.grants: {e}", build.name()))?;
    build
        .reconfigure(Some(&config_of_spec(spec)), &grants, &PluginLimits::default())
        .map_err(|e| anyhow::anyhow!("plugin {}: {e}", build.name()))?;
    Ok(())
}

fn read_config(path: &Path) -> anyhow::Result<Map<String, Value>> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("reading the configuration {name}"))?;
    serde_saphyr::from_str(&text).with_context(|| format!("the configuration {name}: a mapping is needed"))
}
