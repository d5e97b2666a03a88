//! `Plugin` objects: which there are, and the components they name.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::{
    cache::store::Query,
    client::api::{ApiError, parse_response},
    kube::{
        key::{Gvk, ObjectRef},
        object::Object,
        scope::{Projection, Scope},
        selector::Selector,
    },
    plugin::{
        self, Refusal, Registry,
        spec::{Data, KeyName, Oci, PluginSpec, Verify},
    },
    reconcile,
    sandbox::capabilities::Services,
    schedule::{dispatcher::Cause, queue::Priority},
    supply::{
        oci::{self, Auth, Reference},
        signature::{Policy, PublicKey},
    },
};

/// How long a first list may take before the host goes on without.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked whether the kind is served, at first and at last.
const ASKED: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// The `Plugin` objects that this host follows.
pub struct Objects {
    services: Arc<Services>,
    selector: Option<Selector>,
    registries: oci::Store,
    registry: Arc<Registry>,
    /// Whether it is known which there are.
    known: watch::Sender<bool>,
    listed: AtomicBool,
}

/// A `Plugin` object, read.
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Changes with its spec.
    pub generation: i64,
    /// What it says.
    pub spec: PluginSpec,
}

impl Wanted {
    /// Reads a stored object; the error names the field.
    pub fn parse(key: &ObjectRef, object: &Object) -> Result<Self, Refusal> {
        Ok(Self {
            name: key.name.to_string(),
            generation: object.generation,
            spec: PluginSpec::read(object)?,
        })
    }
}

impl Objects {
    /// Those with these labels, all without. Container registries are asked through this store.
    pub fn new(
        services: Arc<Services>,
        selector: Option<Selector>,
        registries: oci::Store,
        registry: Arc<Registry>,
    ) -> Self {
        Self {
            services,
            selector,
            registries,
            registry,
            known: watch::Sender::new(false),
            listed: AtomicBool::new(false),
        }
    }

    /// All of them: the kind is cluster-scoped, and watched whole by a host that is confined, too.
    fn scope(&self) -> Scope {
        Scope {
            gvk: plugin::kind(),
            cluster: "".into(),
            namespace: "".into(),
            selector: self.selector.clone(),
            projection: Projection::Full,
        }
    }

    /// Follows them from when their kind is served on. Where it isn't, or may not be read, there are none.
    pub async fn follow(self: Arc<Self>) -> anyhow::Result<()> {
        let services = &self.services;
        let mut pause = ASKED.0;
        while let Err(e) = services.writer.discover_resource(&plugin::kind()).await {
            debug!("Plugins are not followed yet: {e}");
            let none = matches!(e, ApiError::UnknownKind(_)) || e.code() == 403;
            self.known
                .send_if_modified(|known| none && !std::mem::replace(known, true));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ASKED.1);
        }
        let (lane, limit) = (reconcile::plugin::LANE.into(), reconcile::plugin::CONCURRENCY);
        services
            .dispatcher
            .assign_kinds(&lane, &[plugin::kind()], vec![self.scope()], limit);
        while let Err(why) = services.informers.wait_synced(&self.scope(), PATIENCE).await {
            // May it not, or is it only that the server is slow? What a Plugin denies must not be done meanwhile.
            let page = services
                .writer
                .list_page(None, &plugin::kind(), "", None, 1, "")
                .await;
            if page.is_err_and(|e| matches!(e.code(), 403 | 404)) {
                warn!("Plugins can't be listed, and the plugin directory is followed without them: {why}");
                self.known.send_replace(true);
            } else {
                warn!("Plugins are not listed yet: {why}");
            }
        }
        self.listed.store(true, Ordering::Release);
        self.known.send_replace(true);
        for (key, _) in self.list().unwrap_or_default() {
            self.services
                .dispatcher
                .enqueue(&key, Priority::Low, Cause::Start);
        }
        self.registry.look_again();
        std::future::pending().await
    }

    /// Until it is known which there are.
    pub async fn known(&self) {
        // The sender is this object's own.
        let _ = self.known.subscribe().wait_for(|known| *known).await;
    }

    /// All of them, by name; none when they can't be told.
    pub fn list(&self) -> Option<Vec<(ObjectRef, Arc<Object>)>> {
        if !self.listed.load(Ordering::Acquire) {
            return None;
        }
        let (serving, _) = self.services.informers.ensure_informer(&self.scope());
        let mut objects = self.services.store.list(&serving, &Query::default());
        objects.sort_by(|a, b| a.0.cmp(&b.0));
        Some(objects)
    }

    /// There is something to say in the status of one.
    pub fn news(&self, name: &str) {
        let key = ObjectRef::new(plugin::kind(), "", name);
        self.services
            .dispatcher
            .enqueue(&key, Priority::Normal, Cause::UpstreamStatus);
    }

    /// Pulls a component; with it, what there is to say of its signatures.
    pub async fn pull(
        &self,
        oci: &Oci,
        verify: Option<&Verify>,
    ) -> Result<(Vec<u8>, Option<String>), Refusal> {
        let reference: Reference = oci
            .reference
            .parse()
            .map_err(|e| Refusal::new("SpecInvalid", format!("the reference {}: {e}", oci.reference)))?;
        let auth = match &oci.pull_secret {
            None => Auth::anonymous(),
            Some(secret) => {
                let at = format!("Secret {}/{}", secret.namespace, secret.name);
                let name = KeyName {
                    namespace: secret.namespace.clone(),
                    name: secret.name.clone(),
                    key: ".dockerconfigjson".into(),
                };
                let json = self.secret("PullSecretInvalid", &name).await?;
                Auth::from_docker_config(&json)
                    .map_err(|e| Refusal::new("PullSecretInvalid", format!("{at}: {e}")))?
            }
        };
        let policy = match verify {
            None => Policy::none(),
            Some(verify) => self.policy(verify).await?,
        };
        let pulled = self.registries.pull(&reference, &auth, &policy).await;
        let pulled = pulled.map_err(|e| Refusal {
            reason: e.reason(),
            message: format!("{}: {e}", oci.reference),
            // What is not there may come, and who may not read it may be let.
            passing: e.is_transient()
                || matches!(
                    e.reason(),
                    "NotFound" | "Unauthorized" | "SignatureMissing" | "SignatureInvalid"
                ),
        })?;
        let signed = || {
            let signers: Vec<String> = pulled.signers.iter().map(ToString::to_string).collect();
            (!signers.is_empty()).then(|| format!("signed by {}", signers.join(", ")))
        };
        let note = match &pulled.unsigned {
            Some(problem) => Some(format!("not signed as spec.verify says: {problem}")),
            None => signed(),
        };
        Ok((pulled.wasm, note))
    }

    async fn policy(&self, verify: &Verify) -> Result<Policy, Refusal> {
        let invalid = |at: &str, e: &dyn std::fmt::Display| Refusal::new("KeyInvalid", format!("{at}: {e}"));
        let mut keys = Vec::new();
        for (i, pem) in verify.keys.iter().enumerate() {
            let at = format!("spec.verify.keys[{i}]");
            keys.push(PublicKey::from_pem(pem).map_err(|e| invalid(&at, &e))?);
        }
        for (i, source) in verify.keys_from.iter().enumerate() {
            let at = format!("spec.verify.keysFrom[{i}]");
            let pem = match (&source.config_map, &source.secret) {
                (Some(name), None) => self.data("ConfigMap", "KeyInvalid", name).await?.into_bytes(),
                (None, Some(name)) => self.secret("KeyInvalid", name).await?,
                _ => return Err(invalid(&at, &"exactly one of configMap and secret is needed")),
            };
            // Nobody watches what it is in: looked at again.
            let passing = |refusal: Refusal| Refusal {
                passing: true,
                ..refusal
            };
            let pem = String::from_utf8(pem).map_err(|_| passing(invalid(&at, &"not PEM")))?;
            keys.push(PublicKey::from_pem(&pem).map_err(|e| passing(invalid(&at, &e)))?);
        }
        if keys.is_empty() {
            return Err(invalid("spec.verify", &"keys or keysFrom is needed"));
        }
        let policy = match verify.all {
            true => Policy::all_of(keys),
            false => Policy::any_of(keys),
        };
        Ok(match verify.required {
            true => policy,
            false => policy.optional(),
        })
    }

    async fn secret(&self, reason: &'static str, name: &KeyName) -> Result<Vec<u8>, Refusal> {
        let text = self.data("Secret", reason, name).await?;
        BASE64_STANDARD.decode(text).map_err(|_| Refusal {
            reason,
            message: format!("Secret {}/{} is not base64", name.namespace, name.name),
            passing: true,
        })
    }

    /// An entry of a ConfigMap or Secret, from the API server itself: what nobody else reads is not watched.
    async fn data(&self, kind: &str, reason: &'static str, name: &KeyName) -> Result<String, Refusal> {
        let at = format!("{kind} {}/{}", name.namespace, name.name);
        let passing = |message: String| Refusal {
            reason,
            message,
            passing: true,
        };
        let key = ObjectRef::new(Gvk::new("", "v1", kind), &name.namespace, &name.name);
        let bytes = self.services.writer.get_bytes(&key).await;
        let bytes = bytes.map_err(|e| passing(format!("{at}: {e}")))?;
        // What went wrong is not quoted: it may be a Secret's.
        let read: Data = parse_response(&bytes).map_err(|_| passing(format!("{at} can't be read")))?;
        let value = read.data.get(&name.key).cloned();
        value.ok_or_else(|| passing(format!("{at} has no key `{}`", name.key)))
    }
}
