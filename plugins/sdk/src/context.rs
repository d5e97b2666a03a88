//! What a reconcile can do.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::bindings::ostler::plugin::{
    events::EventType,
    kubernetes::{GetOptions, ListOptions, WriteOptions},
    messaging::Message,
};
use crate::outcome::json;
use crate::{DeleteOptions, Error, Failure, Gvk, Level, Object, ObjectRef, Request, Resource, Upstream};

/// Which objects a list gives; all of them by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Selection<'a> {
    /// In one namespace; none for every one the plugin may see.
    pub namespace: Option<&'a str>,
    /// Kubernetes label selector syntax.
    pub labels: Option<&'a str>,
    /// Kubernetes field selector syntax, of any scalar field.
    pub fields: Option<&'a str>,
}

/// An object as it is after it was written. Read only when it is looked at: most reconcilers don't.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written(Vec<u8>);

impl Written {
    /// The object.
    ///
    /// # Errors
    /// `Error::Invalid` when the host gave what is no JSON.
    pub fn json(&self) -> Result<Value, Error> {
        crate::slim::value(&self.0).map_err(|error| invalid("the object written", error))
    }
}

/// The host, as one reconcile sees it.
pub struct Context<'a> {
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) host: &'a dyn crate::Capabilities,
    pub(crate) request: &'a Request,
}

impl Context<'_> {
    /// Failures in a row before this call.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.request.attempt
    }

    /// One object of a typed kind.
    ///
    /// # Errors
    /// As `kubernetes.get`; `invalid` when it is not of the type.
    pub fn get<S: Resource>(&self, namespace: &str, name: &str) -> Result<Option<Object<S>>, Error> {
        let bytes = self.read(&S::reference(namespace, name))?;
        bytes.map(|bytes| object(&bytes)).transpose()
    }

    /// One object of any kind, as JSON.
    ///
    /// # Errors
    /// As `kubernetes.get`.
    pub fn get_json(&self, reference: &ObjectRef) -> Result<Option<Value>, Error> {
        let bytes = self.read(reference)?;
        bytes.map(|bytes| value(&bytes, &reference.gvk)).transpose()
    }

    /// The metadata of one object of any kind: all that is kept of it, where nobody reads more.
    ///
    /// # Errors
    /// As `kubernetes.get`.
    pub fn get_metadata(&self, reference: &ObjectRef) -> Result<Option<Value>, Error> {
        let options = GetOptions {
            live: false,
            fields: vec!["metadata".into()],
        };
        let bytes = self.kubernetes_get(reference, &options)?;
        bytes.map(|bytes| value(&bytes, &reference.gvk)).transpose()
    }

    fn read(&self, reference: &ObjectRef) -> Result<Option<Vec<u8>>, Error> {
        let options = GetOptions {
            live: false,
            fields: Vec::new(),
        };
        self.kubernetes_get(reference, &options)
    }

    /// The objects of a typed kind that are selected.
    ///
    /// # Errors
    /// As `kubernetes.list`; `invalid` when one is not of the type.
    pub fn list<S: Resource>(&self, selection: &Selection) -> Result<Vec<Object<S>>, Error> {
        let items = self.items(&S::gvk(), selection, &[])?;
        items.iter().map(|bytes| object(bytes)).collect()
    }

    /// The objects of any kind that are selected, as JSON. `only` names the parts to read (`metadata`,
    /// `spec.x`); empty for the whole objects.
    ///
    /// # Errors
    /// As `kubernetes.list`.
    pub fn list_json(&self, gvk: &Gvk, selection: &Selection, only: &[&str]) -> Result<Vec<Value>, Error> {
        let items = self.items(gvk, selection, only)?;
        items.iter().map(|bytes| value(bytes, gvk)).collect()
    }

    fn items(&self, gvk: &Gvk, selection: &Selection, only: &[&str]) -> Result<Vec<Vec<u8>>, Error> {
        let mut options = ListOptions {
            cluster: None,
            namespace: selection.namespace.map(Into::into),
            label_selector: selection.labels.map(Into::into),
            field_selector: selection.fields.map(Into::into),
            fields: only.iter().map(|field| (*field).to_owned()).collect(),
            limit: 0,
            continue_token: None,
            live: false,
        };
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

    /// An object that is Ready for its current generation.
    ///
    /// # Errors
    /// `not-ready` until then; its change wakes this object.
    pub fn require_ready<S: Resource>(&self, namespace: &str, name: &str) -> Result<Object<S>, Error> {
        object(&self.kubernetes_require_ready(&S::reference(namespace, name))?)
    }

    /// As [`Context::require_ready`], as JSON: smaller where few fields matter.
    ///
    /// # Errors
    /// As [`Context::require_ready`].
    pub fn require_ready_json(&self, reference: &ObjectRef) -> Result<Value, Error> {
        value(&self.kubernetes_require_ready(reference)?, &reference.gvk)
    }

    /// Applies the fields given, to an object that belongs to the reconciled
    /// one and goes with it. Whoever else has set them is overruled: drift is
    /// put right.
    ///
    /// # Errors
    /// As `kubernetes.apply`.
    pub fn apply_owned(&self, object: &impl Serialize) -> Result<Written, Error> {
        self.write(object, true, true)
    }

    /// Applies the fields given. `force` overrules whoever else has set them,
    /// which is a `conflict` otherwise.
    ///
    /// # Errors
    /// As `kubernetes.apply`.
    pub fn apply(&self, object: &impl Serialize, force: bool) -> Result<Written, Error> {
        self.write(object, false, force)
    }

    fn write(&self, object: &impl Serialize, owned: bool, force: bool) -> Result<Written, Error> {
        let options = WriteOptions { owned, force };
        self.kubernetes_apply(&json(object), options).map(Written)
    }

    /// Creates an object; `owned` makes it go with the reconciled one.
    ///
    /// # Errors
    /// As `kubernetes.create`.
    pub fn create(&self, object: &impl Serialize, owned: bool) -> Result<Written, Error> {
        let options = WriteOptions { owned, force: false };
        self.kubernetes_create(&json(object), options).map(Written)
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// As `kubernetes.delete`.
    pub fn delete(&self, reference: &ObjectRef) -> Result<(), Error> {
        self.delete_with(
            reference,
            &DeleteOptions {
                propagation: None,
                uid: None,
            },
        )
    }

    /// Deletes an object, with options.
    ///
    /// # Errors
    /// As `kubernetes.delete`.
    pub fn delete_with(&self, reference: &ObjectRef, options: &DeleteOptions) -> Result<(), Error> {
        self.kubernetes_delete(reference, options)
    }

    /// Keeps an object from going while the reconciled one uses it.
    ///
    /// # Errors
    /// As `references.hold`.
    pub fn hold(&self, reference: &ObjectRef) -> Result<(), Error> {
        self.references_hold(reference)
    }

    /// An `Upstream` in the reconciled object's namespace.
    #[must_use]
    pub fn upstream(&self, name: &str) -> Upstream<'_> {
        Upstream::new(self, None, name)
    }

    /// An `Upstream` in another namespace.
    #[must_use]
    pub fn upstream_in(&self, namespace: &str, name: &str) -> Upstream<'_> {
        Upstream::new(self, Some(namespace), name)
    }

    /// A digest that changes when a Secret's value does; none when there is no
    /// such key. The namespace is the reconciled object's.
    ///
    /// # Errors
    /// As `http.secret-digest`.
    pub fn secret_digest(&self, secret: &str, key: &str) -> Result<Option<String>, Error> {
        self.http_secret_digest(None, secret, key)
    }

    /// Publishes a message and waits for the broker's confirmation.
    ///
    /// # Errors
    /// As `messaging.publish`.
    pub fn publish(&self, broker: &str, message: &Message) -> Result<(), Error> {
        self.messaging_publish(broker, message)
    }

    /// Persists status fields before an effect that must happen once.
    ///
    /// # Errors
    /// As `status.checkpoint`; do not go on then.
    pub fn checkpoint(&self, fields: &impl Serialize) -> Result<(), Error> {
        self.status_checkpoint(&json(fields))
    }

    /// A normal Event about the object.
    pub fn event(&self, reason: &str, note: &str) {
        self.events_emit(EventType::Normal, reason, note);
    }

    /// A warning Event about the object.
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

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.clock_now()
    }

    /// Milliseconds left for this call.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.clock_remaining()
    }

    /// The plugin's configuration.
    ///
    /// # Errors
    /// Parks the object when the configuration is not of the type.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        crate::slim::from_slice(&self.config_get())
            .map_err(|error| Failure::parked("InvalidConfig", error.to_string()))
    }

    /// What was put under this key, if it is still there.
    #[must_use]
    pub fn memo(&self, key: &str) -> Option<Vec<u8>> {
        self.memo_get_bytes(key)
    }

    /// Keeps something for the next reconcile of this object; a cache only.
    ///
    /// # Errors
    /// `budget` when it is too large.
    pub fn memo_put(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.memo_put_bytes(key, value)
    }

    /// Forgets a key.
    pub fn memo_remove(&self, key: &str) {
        self.memo_remove_key(key);
    }
}

fn value(bytes: &[u8], gvk: &Gvk) -> Result<Value, Error> {
    crate::slim::value(bytes).map_err(|error| invalid(&gvk.kind, error))
}

fn object<S: Resource>(bytes: &[u8]) -> Result<Object<S>, Error> {
    Object::read(bytes).map_err(|error| invalid(S::KIND, error))
}

fn invalid(kind: &str, error: crate::slim::Error) -> Error {
    Error::Invalid(error.within(kind).to_string())
}
