//! `Plugin` objects of the cluster: their informer, and the components they name in OCI registries.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::{
    cache::{informer::SYNC_TIMEOUT, store::ListQuery},
    client::api::{ApiError, parse_response},
    kube::{
        backoff::Backoff,
        key::ObjectRef,
        object::KubeObject,
        scope::{Projection, Scope},
        selector::LabelSelector,
        well_known::plugin_reason,
    },
    plugin::{
        self, LoadError, PluginRegistry,
        spec::{Data, KeyName, Oci, PluginSpec, VerifySpec},
    },
    policy::components::ComponentPolicy,
    sandbox::services::Services,
    schedule::{dispatcher::Cause, host_lane::HostLane, queue::Priority},
    supply::{
        oci::{self, OciReference, RegistryAuth},
        signature::{PublicKey, SignaturePolicy},
    },
};

/// Backoff between discovery requests while the API server does not serve the kind.
pub(super) const DISCOVERY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(200), Duration::from_secs(30)).with_jitter(50);

/// The `Plugin` objects that this host follows.
pub struct PluginObjects {
    services: Arc<Services>,
    selector: Option<LabelSelector>,
    registries: oci::ComponentStore,
    registry: Arc<PluginRegistry>,
    /// True once the objects are listed, or it is known that they can't be.
    is_listing_done: watch::Sender<bool>,
    has_list: AtomicBool,
    /// Versions of the ConfigMaps and Secrets with keys, as they were last read; 0 for one that could not be read.
    key_versions: Mutex<HashMap<ObjectRef, u64>>,
}

/// The judgement of builds that were accepted before, by the keys of now.
#[derive(Default)]
pub struct JudgedBuilds {
    /// Violations of the policy by the source of the build.
    pub violations: HashMap<String, LoadError>,
    /// Error that kept a build from being judged.
    pub unverified: Option<LoadError>,
}

/// A `Plugin` object, parsed.
pub struct DesiredPlugin {
    /// Name of the object and of the plugin.
    pub name: String,
    /// `metadata.generation`, which changes with the spec.
    pub generation: i64,
    /// Its spec.
    pub spec: PluginSpec,
}

impl DesiredPlugin {
    /// Parses a stored object. The error names the field.
    pub fn parse(key: &ObjectRef, object: &KubeObject) -> Result<Self, LoadError> {
        Ok(Self {
            name: key.name.to_string(),
            generation: object.generation,
            spec: PluginSpec::parse(object)?,
        })
    }
}

impl PluginObjects {
    /// Creates the set of the objects that a selector matches, or of all. Components are pulled through `registries`.
    pub fn new(
        services: Arc<Services>,
        selector: Option<LabelSelector>,
        registries: oci::ComponentStore,
        registry: Arc<PluginRegistry>,
    ) -> Self {
        Self {
            services,
            selector,
            registries,
            registry,
            is_listing_done: watch::Sender::new(false),
            has_list: AtomicBool::new(false),
            key_versions: Mutex::default(),
        }
    }

    /// The watch of the objects. The kind is cluster-scoped, so that a host confined to namespaces has the same one.
    fn scope(&self) -> Scope {
        Scope {
            gvk: plugin::kind(),
            cluster: "".into(),
            namespace: "".into(),
            selector: self.selector.clone(),
            projection: Projection::Full,
        }
    }

    /// Watches the objects from when the API server serves their kind. While it does not, or forbids to list them, the
    /// host continues without any.
    pub async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let services = &self.services;
        let mut failures = 0;
        while let Err(e) = services.api.writer.discover_resource(&plugin::kind()).await {
            debug!(error = %e, "kind Plugin is not served yet");
            let has_none = matches!(e, ApiError::UnknownKind(..)) || e.code() == 403;
            self.is_listing_done
                .send_if_modified(|done| has_none && !std::mem::replace(done, true));
            failures += 1;
            tokio::time::sleep(DISCOVERY_BACKOFF.delay(failures)).await;
        }
        self.assign_lane(vec![self.scope()]);
        while let Err(why) = services
            .cache
            .informers
            .wait_synced(&self.scope(), SYNC_TIMEOUT)
            .await
        {
            // HTTP 403 and 404 mean that there will be no list. Any other error is taken for a slow server, and no
            // plugin is loaded meanwhile: an object may suspend it or narrow its grants.
            let page = services
                .api
                .writer
                .list_page(None, &plugin::kind(), "", None, 1, "")
                .await;
            if page.is_err_and(|e| matches!(e.code(), 403 | 404)) {
                warn!(error = %why, "listing Plugin objects denied, using the plugin directory only");
                self.is_listing_done.send_replace(true);
            } else {
                warn!(error = %why, "waiting for the list of Plugin objects");
            }
        }
        self.has_list.store(true, Ordering::Release);
        self.is_listing_done.send_replace(true);
        for (key, _) in self.list().unwrap_or_default() {
            self.services
                .dispatcher
                .enqueue(&key, Priority::Low, Cause::Start);
        }
        self.registry.request_rescan();
        std::future::pending().await
    }

    /// Waits until the objects are listed, or it is known that they can't be.
    pub async fn wait_listed(&self) {
        // It can't fail: the sender lives as long as `self`.
        let _ = self.is_listing_done.subscribe().wait_for(|done| *done).await;
    }

    /// The objects, by name; none until they have been listed.
    pub fn list(&self) -> Option<Vec<(ObjectRef, Arc<KubeObject>)>> {
        if !self.has_list.load(Ordering::Acquire) {
            return None;
        }
        let (serving, _) = self.services.cache.informers.ensure_informer(&self.scope());
        // A wider watch has the Plugins of other hosts, too.
        let query = ListQuery {
            labels: self.selector.as_ref(),
            ..ListQuery::default()
        };
        let mut objects = self.services.cache.store.list(&serving, &query);
        objects.sort_by(|a, b| a.0.cmp(&b.0));
        Some(objects)
    }

    /// Queues an object, to have its status written.
    pub fn requeue_status(&self, name: &str) {
        let key = ObjectRef::new(plugin::kind(), "", name);
        self.services
            .dispatcher
            .enqueue(&key, Priority::Normal, Cause::StatusStale);
    }

    /// Pulls a component. The second value is a remark about its signatures.
    pub async fn pull(
        &self,
        oci: &Oci,
        verify: Option<&VerifySpec>,
        host_policy: &ComponentPolicy,
    ) -> Result<(Vec<u8>, Option<String>), LoadError> {
        let reference = parse_reference(&oci.reference)?;
        let auth = self.load_credentials(oci).await?;
        let policy = self.load_policy(verify, host_policy).await?;
        let pulled = self.registries.pull_component(&reference, &auth, &policy).await;
        let pulled = pulled.map_err(|e| LoadError {
            reason: e.reason(),
            message: format!("{}: {e}", oci.reference),
            // An artifact or signature may be pushed later, and access may be granted.
            passing: e.is_transient()
                || matches!(
                    e.reason(),
                    plugin_reason::NOT_FOUND
                        | plugin_reason::UNAUTHORIZED
                        | plugin_reason::SIGNATURE_MISSING
                        | plugin_reason::INVALID_SIGNATURE
                ),
        })?;
        let signed = || {
            let signers: Vec<String> = pulled.signers.iter().map(ToString::to_string).collect();
            (!signers.is_empty()).then(|| format!("signed by {}", signers.join(", ")))
        };
        let note = match &pulled.unsigned {
            Some(problem) => Some(format!("not signed as spec.verify requires: {problem}")),
            None => signed(),
        };
        Ok((pulled.wasm, note))
    }

    /// Watches the ConfigMaps and Secrets with keys: a key that is removed there must stop what runs.
    pub fn follow_keys(&self, key_objects: BTreeSet<ObjectRef>) {
        let namespaces = &self.services.cache.namespaces;
        let scopes = key_objects
            .iter()
            .map(|key| namespaces.object_scope(key, Projection::Metadata));
        let scopes: HashSet<Scope> = scopes.chain([self.scope()]).collect();
        if !self.registry.follow_objects(key_objects) {
            return;
        }
        self.assign_lane(scopes.iter().cloned().collect());
        for scope in &scopes {
            self.services.cache.informers.ensure_informer(scope);
        }
    }

    /// Makes the lane of `Plugin` objects reconcile them, and need these watches.
    fn assign_lane(&self, scopes: Vec<Scope>) {
        let lane = HostLane::Plugins;
        let dispatcher = &self.services.dispatcher;
        dispatcher.assign_kinds(
            &lane.name().into(),
            &[plugin::kind()],
            scopes,
            lane.max_concurrent(),
        );
    }

    /// Returns true if a ConfigMap or Secret with keys of a spec is newer than when it was read, and counts it as read.
    pub fn observe_changed_keys(&self, spec: &PluginSpec) -> bool {
        let mut versions = self.key_versions.lock();
        let mut changed = false;
        for key in spec.key_objects() {
            let stored = self.services.cache.store.get(&key, Projection::Metadata);
            if let (Some(stored), Some(read)) = (stored, versions.get_mut(&key))
                && stored.resource_version > *read
            {
                *read = stored.resource_version;
                changed = true;
            }
        }
        changed
    }

    /// Judges builds that were accepted before, by the keys of now. A build violates the policy only if that was found: one
    /// whose keys or signatures can't be looked up now does not.
    pub async fn judge_builds(
        &self,
        spec: &PluginSpec,
        host_policy: &ComponentPolicy,
        sources: Vec<String>,
    ) -> JudgedBuilds {
        let mut judged = JudgedBuilds::default();
        let is_required =
            spec.verify.as_ref().is_some_and(|v| v.required) || !host_policy.trusted_keys.is_empty();
        let sources = sources.into_iter().filter_map(|source| {
            let reference = parse_reference(&source).ok()?;
            Some((source, reference))
        });
        let sources: Vec<_> = sources.filter(|_| is_required).collect();
        if sources.is_empty() {
            return judged;
        }
        let lookup = async {
            let policy = self.load_policy(spec.verify.as_ref(), host_policy).await?;
            let auth = match &spec.source.oci {
                Some(oci) => self.load_credentials(oci).await?,
                None => RegistryAuth::anonymous(),
            };
            Ok((policy, auth))
        };
        let (policy, auth) = match lookup.await {
            Ok(found) => found,
            Err(error) => {
                judged.unverified = Some(error);
                return judged;
            }
        };
        for (source, reference) in sources {
            let verified = self.registries.verify_artifact(&reference, &auth, &policy).await;
            let Err(e) = verified else { continue };
            let error = LoadError::new(e.reason(), format!("{source}: {e}"));
            if e.is_violation() {
                judged.violations.insert(source, error);
            } else {
                judged.unverified = Some(error);
            }
        }
        judged
    }

    /// The credentials of a source, from its pull Secret.
    async fn load_credentials(&self, oci: &Oci) -> Result<RegistryAuth, LoadError> {
        let Some(secret) = &oci.pull_secret_ref else {
            return Ok(RegistryAuth::anonymous());
        };
        let at = format!("Secret {}/{}", secret.namespace, secret.name);
        let name = KeyName {
            namespace: secret.namespace.clone(),
            name: secret.name.clone(),
            key: ".dockerconfigjson".into(),
        };
        let json = self
            .read_secret(plugin_reason::INVALID_PULL_SECRET, &name)
            .await?;
        RegistryAuth::from_docker_config(&json)
            .map_err(|e| LoadError::new(plugin_reason::INVALID_PULL_SECRET, format!("{at}: {e}")))
    }

    /// The signature policy of a spec and of the host: both must be met.
    async fn load_policy(
        &self,
        verify: Option<&VerifySpec>,
        host_policy: &ComponentPolicy,
    ) -> Result<SignaturePolicy, LoadError> {
        let own = match verify {
            None => SignaturePolicy::none(),
            Some(verify) => self.load_own_policy(verify).await?,
        };
        let mut trusted = Vec::new();
        for (i, pem) in host_policy.trusted_keys.iter().enumerate() {
            trusted.push(PublicKey::from_pem(pem).map_err(|e| {
                let why = format!("components.trustedKeys[{i}] of the host's grants file: {e}");
                LoadError::new(plugin_reason::INVALID_KEY, why)
            })?);
        }
        Ok(match trusted.is_empty() {
            true => own,
            false => own.with_base(SignaturePolicy::any_of(trusted)),
        })
    }

    /// The signature policy of a spec, with its keys read from ConfigMaps and Secrets.
    async fn load_own_policy(&self, verify: &VerifySpec) -> Result<SignaturePolicy, LoadError> {
        let invalid = |at: &str, e: &dyn std::fmt::Display| {
            LoadError::new(plugin_reason::INVALID_KEY, format!("{at}: {e}"))
        };
        let mut keys = Vec::new();
        for (i, pem) in verify.keys.iter().enumerate() {
            let at = format!("spec.verify.keys[{i}]");
            keys.push(PublicKey::from_pem(pem).map_err(|e| invalid(&at, &e))?);
        }
        for (i, source) in verify.keys_from.iter().enumerate() {
            let at = format!("spec.verify.keysFrom[{i}]");
            let pem = match (&source.config_map_key_ref, &source.secret_key_ref) {
                (Some(name), None) => self
                    .read_data("ConfigMap", plugin_reason::INVALID_KEY, name)
                    .await?
                    .into_bytes(),
                (None, Some(name)) => self.read_secret(plugin_reason::INVALID_KEY, name).await?,
                _ => {
                    return Err(invalid(
                        &at,
                        &"exactly one of configMapKeyRef and secretKeyRef is needed",
                    ));
                }
            };
            let passing = |refusal: LoadError| LoadError {
                passing: true,
                ..refusal
            };
            let pem = String::from_utf8(pem).map_err(|_| passing(invalid(&at, &"not PEM")))?;
            keys.push(PublicKey::from_pem(&pem).map_err(|e| passing(invalid(&at, &e)))?);
        }
        if keys.is_empty() {
            return Err(invalid("spec.verify", &"keys or keysFrom is needed"));
        }
        Ok(verify.build_policy(keys))
    }

    async fn read_secret(&self, reason: &'static str, name: &KeyName) -> Result<Vec<u8>, LoadError> {
        let text = self.read_data("Secret", reason, name).await?;
        BASE64_STANDARD.decode(text).map_err(|_| LoadError {
            reason,
            message: format!("Secret {}/{} is not base64", name.namespace, name.name),
            passing: true,
        })
    }

    /// An entry of a ConfigMap or Secret, from the API server: the watch of those with keys has only metadata.
    async fn read_data(&self, kind: &str, reason: &'static str, name: &KeyName) -> Result<String, LoadError> {
        let at = format!("{kind} {}/{}", name.namespace, name.name);
        let passing = |message: String| LoadError {
            reason,
            message,
            passing: true,
        };
        let key = name.object(kind);
        let bytes = self.services.api.writer.get_bytes(&key).await;
        let read = bytes.as_ref().map(|bytes| parse_response::<Data>(bytes));
        let version = match &read {
            Ok(Ok(data)) => data.metadata.resource_version.parse().unwrap_or(0),
            _ => 0,
        };
        {
            // A failed read leaves the version as it was: it would otherwise seem to have changed since, and be read again.
            let mut versions = self.key_versions.lock();
            let known = versions.entry(key).or_default();
            *known = version.max(*known);
        }
        // The parser's message is left out: it may quote the Secret.
        let read = read.map_err(|e| passing(format!("{at}: {e}")))?;
        let read = read.map_err(|_| passing(format!("{at} can't be read")))?;
        let value = read.data.get(&name.key).cloned();
        value.ok_or_else(|| passing(format!("{at} has no key `{}`", name.key)))
    }
}

fn parse_reference(text: &str) -> Result<OciReference, LoadError> {
    text.parse()
        .map_err(|e| LoadError::new(plugin_reason::INVALID_SPEC, format!("the reference {text}: {e}")))
}
