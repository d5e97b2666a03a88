//! The host functions, declared once: a native build has a trait that the mock implements, a component calls the
//! imports directly, so that only the functions in use become imports.

use crate::bindings::ostler::plugin as host;
use crate::{
    ApplyOptions, ConditionStatus, Context, CreateOptions, DeleteOptions, Error, Gvk, Level, LogOptions,
    Message, ObjectRef, Preconditions, SecretKeyRef, UpstreamRef,
};
use host::{
    events::EventType,
    http,
    kubernetes::{GetOptions, ListOptions, Page},
};

macro_rules! capabilities {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $result:ty)? = $($path:ident)::+;)+) => {
        /// The functions that the host offers to a plugin (see the contract in `wit/`).
        #[cfg(not(target_arch = "wasm32"))]
        pub trait Capabilities {
            $($(#[$doc])* fn $name(&self, $($arg: $ty),*) $(-> $result)?;)+
        }

        impl Context<'_> {
            $(
                #[allow(dead_code)]
                pub(crate) fn $name(&self, $($arg: $ty),*) $(-> $result)? {
                    #[cfg(target_arch = "wasm32")]
                    return host::$($path)::+($($arg),*);
                    #[cfg(not(target_arch = "wasm32"))]
                    self.host.$name($($arg),*)
                }
            )+
        }
    };
}

capabilities! {
    /// `kubernetes.get`
    fn kubernetes_get(reference: &ObjectRef, options: &GetOptions) -> Result<Option<Vec<u8>>, Error> = kubernetes::get;
    /// `kubernetes.list`
    fn kubernetes_list(gvk: &Gvk, options: &ListOptions) -> Result<Page, Error> = kubernetes::list;
    /// `kubernetes.require-ready`
    fn kubernetes_require_ready(reference: &ObjectRef) -> Result<Vec<u8>, Error> = kubernetes::require_ready;
    /// `kubernetes.require-condition`
    fn kubernetes_require_condition(reference: &ObjectRef, kind: &str, status: ConditionStatus) -> Result<Vec<u8>, Error> = kubernetes::require_condition;
    /// `kubernetes.apply`
    fn kubernetes_apply(object: &[u8], options: &ApplyOptions) -> Result<Vec<u8>, Error> = kubernetes::apply;
    /// `kubernetes.create`
    fn kubernetes_create(object: &[u8], options: &CreateOptions) -> Result<Vec<u8>, Error> = kubernetes::create;
    /// `kubernetes.patch`
    fn kubernetes_patch(reference: &ObjectRef, patch: &[u8], preconditions: &Preconditions) -> Result<Vec<u8>, Error> = kubernetes::patch;
    /// `kubernetes.patch-subresource`
    fn kubernetes_patch_subresource(reference: &ObjectRef, subresource: &str, patch: &[u8], preconditions: &Preconditions) -> Result<Vec<u8>, Error> = kubernetes::patch_subresource;
    /// `kubernetes.delete`
    fn kubernetes_delete(reference: &ObjectRef, options: &DeleteOptions) -> Result<(), Error> = kubernetes::delete;
    /// `kubernetes.read-log`
    fn kubernetes_read_log(pod: &ObjectRef, options: &LogOptions) -> Result<String, Error> = kubernetes::read_log;
    /// `references.hold`
    fn references_hold(reference: &ObjectRef) -> Result<(), Error> = references::hold;
    /// `references.list-holders`
    fn references_list_holders(reference: &ObjectRef) -> Result<Vec<ObjectRef>, Error> = references::list_holders;
    /// `permits.acquire`
    fn permits_acquire(pool: &str, limit: u32, held: bool) -> Result<bool, Error> = permits::acquire;
    /// `permits.release`
    fn permits_release(pool: &str) = permits::release;
    /// `http.send`
    fn http_send(request: &http::Request) -> Result<http::Response, Error> = http::send;
    /// `http.send-all`
    fn http_send_all(requests: &[http::Request]) -> Vec<Result<http::Response, Error>> = http::send_all;
    /// `http.secret-digest`
    fn http_secret_digest(secret: &SecretKeyRef) -> Result<Option<String>, Error> = http::secret_digest;
    /// `http.subscribe`
    fn http_subscribe(subscription: &http::Subscription) -> Result<(), Error> = http::subscribe;
    /// `http.read-events`
    fn http_read_events(query: &http::EventQuery) -> Result<http::EventTail, Error> = http::read_events;
    /// `messaging.publish`
    fn messaging_publish(broker: &UpstreamRef, message: &Message) -> Result<(), Error> = messaging::publish;
    /// `status.checkpoint`
    fn status_checkpoint(fields: &[u8]) -> Result<(), Error> = status::checkpoint;
    /// `events.emit`
    fn events_emit(kind: EventType, reason: &str, note: &str) = events::emit;
    /// `log.write`
    fn log_write(level: Level, message: &str, fields: &[(String, String)]) = log::write;
    /// `metrics.counter`
    fn metrics_counter(name: &str, delta: u64) = metrics::counter;
    /// `metrics.gauge`
    fn metrics_gauge(name: &str, value: f64) = metrics::gauge;
    /// `clock.now`
    fn clock_now() -> u64 = clock::now;
    /// `clock.remaining`
    fn clock_remaining() -> u64 = clock::remaining;
    /// `config.get`
    fn config_get() -> Vec<u8> = config::get;
    /// `cache.get`
    fn cache_get_bytes(key: &str) -> Option<Vec<u8>> = cache::get;
    /// `cache.set`
    fn cache_set_bytes(key: &str, value: &[u8]) -> Result<(), Error> = cache::set;
    /// `cache.delete`
    fn cache_delete_key(key: &str) = cache::delete;
}
