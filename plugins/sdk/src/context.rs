//! The host functions, as a reconciler calls them.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::bindings::ostler::plugin::{
    events::EventType,
    kubernetes::{GetOptions, ListOptions},
};
use crate::outcome::to_json_bytes;
use crate::{
    ApplyOptions, ConditionStatus, CreateOptions, DeleteOptions, Error, Failure, Gvk, KindSpec, Level,
    LogOptions, Message, Object, ObjectRef, Preconditions, Projection, Propagation, Request, SecretKeyRef,
    Upstream, UpstreamRef,
};

/// A selection of objects to list. The default selects all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Selection<'a> {
    /// The cluster, as in a reference; none for the cluster of the reconciled object.
    pub cluster: Option<&'a str>,
    /// The namespace; none for every namespace that the plugin may see.
    pub namespace: Option<&'a str>,
    /// A label selector in Kubernetes' syntax.
    pub labels: Option<&'a str>,
    /// A field selector in Kubernetes' syntax, of any scalar field.
    pub fields: Option<&'a str>,
    /// True to ask the API server instead of the shared cache, which may be behind. It is a request for each list.
    pub live: bool,
}

/// The object that results from a write. It is parsed only when it is asked for, since most reconcilers ignore it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenObject(Vec<u8>);

impl WrittenObject {
    /// Parses the object.
    ///
    /// # Errors
    /// `Error::Invalid` if the host returned no JSON.
    pub fn json(&self) -> Result<Value, Error> {
        crate::slim::value(&self.0).map_err(|error| invalid_error("the object written", error))
    }
}

fn list_options(selection: &Selection, projection: Projection) -> ListOptions {
    ListOptions {
        cluster: selection.cluster.map(Into::into),
        namespace: selection.namespace.map(Into::into),
        label_selector: selection.labels.map(Into::into),
        field_selector: selection.fields.map(Into::into),
        projection,
        limit: None,
        continue_token: None,
        live: selection.live,
    }
}

impl Default for Preconditions {
    /// No preconditions.
    fn default() -> Self {
        Self {
            uid: None,
            resource_version: None,
        }
    }
}

impl Preconditions {
    /// Requires the object to have this uid, so that no other object of the same name is changed.
    #[must_use]
    pub fn uid(uid: &str) -> Self {
        Self {
            uid: Some(uid.into()),
            resource_version: None,
        }
    }

    /// Requires the object to have this resourceVersion, so that no change of another client is overwritten.
    #[must_use]
    pub fn resource_version(resource_version: &str) -> Self {
        Self {
            uid: None,
            resource_version: Some(resource_version.into()),
        }
    }
}

impl Default for LogOptions {
    /// The last 100 lines of the only container.
    fn default() -> Self {
        Self {
            container: None,
            tail_lines: 100,
            previous: false,
        }
    }
}

impl Default for DeleteOptions {
    /// Background deletion without preconditions.
    fn default() -> Self {
        Self {
            propagation: Propagation::Background,
            preconditions: Preconditions::default(),
        }
    }
}

impl Default for ApplyOptions {
    /// An apply in the cluster of the reconciled object that neither owns the object nor overrules other managers.
    fn default() -> Self {
        Self {
            cluster: None,
            owned: false,
            force: false,
            substitutions: Vec::new(),
        }
    }
}

impl Default for CreateOptions {
    /// A creation in the cluster of the reconciled object that does not own the object.
    fn default() -> Self {
        Self {
            cluster: None,
            owned: false,
            substitutions: Vec::new(),
        }
    }
}

/// The host, as one reconcile sees it.
pub struct Context<'a> {
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) host: &'a dyn crate::Capabilities,
    pub(crate) request: &'a Request,
}

impl Context<'_> {
    /// Returns the number of consecutive failures before this call.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.request.attempt
    }

    /// Gets an object of a typed kind.
    ///
    /// # Errors
    /// As `kubernetes.get`; `invalid` if the object is not of the type.
    pub fn get<S: KindSpec>(&self, namespace: &str, name: &str) -> Result<Option<Object<S>>, Error> {
        let bytes = self.read_bytes(&S::reference(namespace, name))?;
        bytes.map(|bytes| parse_object(&bytes)).transpose()
    }

    /// Gets the object that a reference names, such as one on another cluster.
    ///
    /// # Errors
    /// As `kubernetes.get`.
    pub fn get_named<S: KindSpec>(&self, reference: &ObjectRef) -> Result<Option<Object<S>>, Error> {
        let bytes = self.read_bytes(reference)?;
        bytes.map(|bytes| parse_object(&bytes)).transpose()
    }

    /// Gets an object of any kind as JSON.
    ///
    /// # Errors
    /// As `kubernetes.get`.
    pub fn get_json(&self, reference: &ObjectRef) -> Result<Option<Value>, Error> {
        let bytes = self.read_bytes(reference)?;
        bytes.map(|bytes| parse_value(&bytes, &reference.gvk)).transpose()
    }

    /// Gets the metadata of an object of any kind: `apiVersion`, `kind` and `metadata`. The host caches no more of the
    /// object if nothing else reads more.
    ///
    /// # Errors
    /// As `kubernetes.get`.
    pub fn get_metadata(&self, reference: &ObjectRef) -> Result<Option<Value>, Error> {
        let bytes = self.kubernetes_get(reference, &cached_options(Projection::Metadata))?;
        bytes.map(|bytes| parse_value(&bytes, &reference.gvk)).transpose()
    }

    fn read_bytes(&self, reference: &ObjectRef) -> Result<Option<Vec<u8>>, Error> {
        self.kubernetes_get(reference, &cached_options(Projection::Full))
    }

    /// Lists the selected objects of a typed kind.
    ///
    /// # Errors
    /// As `kubernetes.list`; `invalid` if an object is not of the type.
    pub fn list<S: KindSpec>(&self, selection: &Selection) -> Result<Vec<Object<S>>, Error> {
        let items = self.list_pages(&S::gvk(), selection, Projection::Full)?;
        items.iter().map(|bytes| parse_object(bytes)).collect()
    }

    /// Lists the selected objects of any kind as JSON. `fields` names the parts to read (`metadata`, `spec.x`); if it is
    /// empty, whole objects are read.
    ///
    /// # Errors
    /// As `kubernetes.list`.
    pub fn list_json(&self, gvk: &Gvk, selection: &Selection, fields: &[&str]) -> Result<Vec<Value>, Error> {
        let projection = if fields.is_empty() {
            Projection::Full
        } else {
            Projection::Fields(fields.iter().map(|field| (*field).to_owned()).collect())
        };
        let items = self.list_pages(gvk, selection, projection)?;
        items.iter().map(|bytes| parse_value(bytes, gvk)).collect()
    }

    /// Lists the metadata of the selected objects of any kind. The host caches no more of the objects if nothing else
    /// reads more.
    ///
    /// # Errors
    /// As `kubernetes.list`.
    pub fn list_metadata(&self, gvk: &Gvk, selection: &Selection) -> Result<Vec<Value>, Error> {
        let items = self.list_pages(gvk, selection, Projection::Metadata)?;
        items.iter().map(|bytes| parse_value(bytes, gvk)).collect()
    }

    /// Returns whether an object is selected. The host stops at the first one, so that it costs the same for any number.
    ///
    /// # Errors
    /// As `kubernetes.list`.
    pub fn exists(&self, gvk: &Gvk, selection: &Selection) -> Result<bool, Error> {
        let options = ListOptions {
            limit: Some(1),
            ..list_options(selection, Projection::Metadata)
        };
        Ok(!self.kubernetes_list(gvk, &options)?.items.is_empty())
    }

    fn list_pages(
        &self,
        gvk: &Gvk,
        selection: &Selection,
        projection: Projection,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut options = list_options(selection, projection);
        let mut items = Vec::new();
        loop {
            let page = self.kubernetes_list(gvk, &options)?;
            items.extend(page.items);
            options.continue_token = page.continue_token;
            if options.continue_token.is_none() {
                return Ok(items);
            }
        }
    }

    /// Gets an object of a typed kind that is Ready for its current generation.
    ///
    /// # Errors
    /// `not-ready` until then; the change of the object causes a reconcile.
    pub fn require_ready<S: KindSpec>(&self, namespace: &str, name: &str) -> Result<Object<S>, Error> {
        parse_object(&self.kubernetes_require_ready(&S::reference(namespace, name))?)
    }

    /// Gets an object of any kind that is ready for its current generation, as JSON: a custom resource by its condition
    /// `Ready`, a built-in kind by the rule that kstatus has for it (a Deployment has all pods updated and available).
    ///
    /// # Errors
    /// As [`Context::require_ready`].
    pub fn require_ready_json(&self, reference: &ObjectRef) -> Result<Value, Error> {
        parse_value(&self.kubernetes_require_ready(reference)?, &reference.gvk)
    }

    /// Gets an object of any kind whose condition of this type has this status for its current generation, as JSON.
    ///
    /// ```
    /// # use ostler_sdk::{ConditionStatus, prelude::*};
    /// fn check(ctx: &Context) -> Result<(), Failure> {
    ///     let deployment = gvk("apps", "v1", "Deployment").named("shop", "web");
    ///     ctx.require_condition(&deployment, "Available", ConditionStatus::True)?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// `not-ready` until then; the change of the object causes a reconcile.
    pub fn require_condition(
        &self,
        reference: &ObjectRef,
        kind: &str,
        status: ConditionStatus,
    ) -> Result<Value, Error> {
        let bytes = self.kubernetes_require_condition(reference, kind, status)?;
        parse_value(&bytes, &reference.gvk)
    }

    /// Applies the given fields to an object that the reconciled object owns, so that both are deleted together. Other
    /// managers of these fields are overruled, which corrects drift.
    ///
    /// # Errors
    /// As `kubernetes.apply`.
    pub fn apply_owned(&self, object: &impl Serialize) -> Result<WrittenObject, Error> {
        let options = ApplyOptions {
            owned: true,
            force: true,
            ..ApplyOptions::default()
        };
        self.apply_with(object, &options)
    }

    /// Applies the given fields. With `force` other managers of these fields are overruled, which is a `conflict`
    /// otherwise.
    ///
    /// # Errors
    /// As `kubernetes.apply`.
    pub fn apply(&self, object: &impl Serialize, force: bool) -> Result<WrittenObject, Error> {
        let options = ApplyOptions {
            force,
            ..ApplyOptions::default()
        };
        self.apply_with(object, &options)
    }

    /// Applies the given fields, with all options.
    ///
    /// # Errors
    /// As `kubernetes.apply`.
    pub fn apply_with(
        &self,
        object: &impl Serialize,
        options: &ApplyOptions,
    ) -> Result<WrittenObject, Error> {
        self.kubernetes_apply(&to_json_bytes(object), options)
            .map(WrittenObject)
    }

    /// Creates an object. With `owned` the reconciled object owns it, so that both are deleted together.
    ///
    /// # Errors
    /// As `kubernetes.create`.
    pub fn create(&self, object: &impl Serialize, owned: bool) -> Result<WrittenObject, Error> {
        let options = CreateOptions {
            owned,
            ..CreateOptions::default()
        };
        self.create_with(object, &options)
    }

    /// Creates an object, with all options.
    ///
    /// # Errors
    /// As `kubernetes.create`.
    pub fn create_with(
        &self,
        object: &impl Serialize,
        options: &CreateOptions,
    ) -> Result<WrittenObject, Error> {
        self.kubernetes_create(&to_json_bytes(object), options)
            .map(WrittenObject)
    }

    /// Applies a JSON merge patch (RFC 7386) to an object.
    ///
    /// # Errors
    /// As `kubernetes.patch`.
    pub fn patch(
        &self,
        reference: &ObjectRef,
        patch: &impl Serialize,
        preconditions: &Preconditions,
    ) -> Result<WrittenObject, Error> {
        self.kubernetes_patch(reference, &to_json_bytes(patch), preconditions)
            .map(WrittenObject)
    }

    /// Applies a JSON merge patch (RFC 7386) to a subresource that has the form of the object, such as `resize` of a Pod.
    ///
    /// # Errors
    /// As `kubernetes.patch-subresource`: `Unsupported` without the subresource.
    pub fn patch_subresource(
        &self,
        reference: &ObjectRef,
        subresource: &str,
        patch: &impl Serialize,
        preconditions: &Preconditions,
    ) -> Result<WrittenObject, Error> {
        self.kubernetes_patch_subresource(reference, subresource, &to_json_bytes(patch), preconditions)
            .map(WrittenObject)
    }

    /// Reads the newest lines of the log of a container. It is a request each time, and wakes nobody when the log grows.
    ///
    /// # Errors
    /// As `kubernetes.read-log`: `Invalid` if the container does not exist or has not started.
    pub fn read_log(&self, pod: &ObjectRef, options: &LogOptions) -> Result<String, Error> {
        self.kubernetes_read_log(pod, options)
    }

    /// Deletes an object in the background.
    ///
    /// # Errors
    /// As `kubernetes.delete`.
    pub fn delete(&self, reference: &ObjectRef) -> Result<(), Error> {
        self.delete_with(reference, &DeleteOptions::default())
    }

    /// Deletes an object, with all options.
    ///
    /// # Errors
    /// As `kubernetes.delete`.
    pub fn delete_with(&self, reference: &ObjectRef, options: &DeleteOptions) -> Result<(), Error> {
        self.kubernetes_delete(reference, options)
    }

    /// Holds an object: it is not deleted while the reconciled object uses it.
    ///
    /// # Errors
    /// As `references.hold`.
    pub fn hold(&self, reference: &ObjectRef) -> Result<(), Error> {
        self.references_hold(reference)
    }

    /// Lists the objects that hold an object.
    ///
    /// # Errors
    /// As `references.list-holders`.
    pub fn list_holders(&self, reference: &ObjectRef) -> Result<Vec<ObjectRef>, Error> {
        self.references_list_holders(reference)
    }

    /// Returns an `Upstream` in the namespace of the reconciled object.
    #[must_use]
    pub fn upstream(&self, name: &str) -> Upstream<'_> {
        Upstream::new(self, UpstreamRef::new(name))
    }

    /// Returns an `Upstream` in another namespace.
    #[must_use]
    pub fn upstream_in(&self, namespace: &str, name: &str) -> Upstream<'_> {
        Upstream::new(self, UpstreamRef::new(name).in_namespace(namespace))
    }

    /// Returns a digest of a Secret's value that changes when the value does, or none if there is no such key. The
    /// Secret is in the namespace of the reconciled object.
    ///
    /// # Errors
    /// As `http.secret-digest`.
    pub fn secret_digest(&self, secret: &str, key: &str) -> Result<Option<String>, Error> {
        self.secret_digest_of(&SecretKeyRef::new(secret, key))
    }

    /// Returns the digest of a Secret's value as [`Context::secret_digest`], of a Secret in any namespace.
    ///
    /// # Errors
    /// As `http.secret-digest`.
    pub fn secret_digest_of(&self, secret: &SecretKeyRef) -> Result<Option<String>, Error> {
        self.http_secret_digest(secret)
    }

    /// Publishes a message and waits for the confirmation of the broker.
    ///
    /// # Errors
    /// As `messaging.publish`.
    pub fn publish(&self, broker: &UpstreamRef, message: &Message) -> Result<(), Error> {
        self.messaging_publish(broker, message)
    }

    /// Persists status fields before an effect that must happen exactly once.
    ///
    /// # Errors
    /// As `status.checkpoint`; the effect must not happen then.
    pub fn checkpoint(&self, fields: &impl Serialize) -> Result<(), Error> {
        self.status_checkpoint(&to_json_bytes(fields))
    }

    /// Emits a normal Event about the object.
    pub fn event(&self, reason: &str, note: &str) {
        self.events_emit(EventType::Normal, reason, note);
    }

    /// Emits a warning Event about the object.
    pub fn warn(&self, reason: &str, note: &str) {
        self.events_emit(EventType::Warning, reason, note);
    }

    /// Writes a log line.
    pub fn log(&self, level: Level, message: &str, fields: &[(&str, &str)]) {
        let fields: Vec<_> = fields
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        self.log_write(level, message, &fields);
    }

    /// Writes a log line at level info.
    pub fn info(&self, message: &str) {
        self.log_write(Level::Info, message, &[]);
    }

    /// Adds to a counter.
    pub fn counter(&self, name: &str, delta: u64) {
        self.metrics_counter(name, delta);
    }

    /// Sets a gauge.
    pub fn gauge(&self, name: &str, value: f64) {
        self.metrics_gauge(name, value);
    }

    /// Returns the current time in milliseconds since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.clock_now()
    }

    /// Returns the milliseconds that are left for this call.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.clock_remaining()
    }

    /// Parses the configuration of the plugin.
    ///
    /// # Errors
    /// A terminal failure if the configuration is not of the type.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        crate::slim::from_slice(&self.config_get())
            .map_err(|error| Failure::terminal("InvalidConfig", error.to_string()))
    }

    /// Requests a permit of a pool of the plugin, which has `limit` of them. Returns false if the object waits for one: it is
    /// reconciled again when it gets it. With `held` it has begun already what the permit is for, and gets it in any case.
    ///
    /// A permit that a successful reconcile does not request again is released.
    ///
    /// # Errors
    /// `invalid` if the name is not a DNS label, `limit-exceeded` if the plugin has too many pools.
    pub fn acquire_permit(&self, pool: &str, limit: u32, held: bool) -> Result<bool, Error> {
        self.permits_acquire(pool, limit, held)
    }

    /// Releases the permit of the object at once, or ends its wait for one.
    pub fn release_permit(&self, pool: &str) {
        self.permits_release(pool);
    }

    /// Returns the cached value of a key, if it is still cached.
    #[must_use]
    pub fn cache_get(&self, key: &str) -> Option<Vec<u8>> {
        self.cache_get_bytes(key)
    }

    /// Caches a value for the next reconciles of this object. The cache does not survive a restart of the host.
    ///
    /// # Errors
    /// `limit-exceeded` if the object caches too many bytes.
    pub fn cache_set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.cache_set_bytes(key, value)
    }

    /// Removes a key from the cache.
    pub fn cache_delete(&self, key: &str) {
        self.cache_delete_key(key);
    }
}

/// The options of a read from the shared cache.
fn cached_options(projection: Projection) -> GetOptions {
    GetOptions {
        live: false,
        projection,
    }
}

fn parse_value(bytes: &[u8], gvk: &Gvk) -> Result<Value, Error> {
    crate::slim::value(bytes).map_err(|error| invalid_error(&gvk.kind, error))
}

fn parse_object<S: KindSpec>(bytes: &[u8]) -> Result<Object<S>, Error> {
    Object::read(bytes).map_err(|error| invalid_error(S::KIND, error))
}

fn invalid_error(kind: &str, error: crate::slim::Error) -> Error {
    Error::Invalid(error.within(kind).to_string())
}
