//! The host's functions, declared once: natively a trait that a mock
//! implements, in a component direct calls, so that only those that are used
//! become imports.

use crate::bindings::ostler::plugin as host;
use crate::{Context, DeleteOptions, Error, Gvk, Level, ObjectRef};
use host::{
    events::EventType,
    http,
    kubernetes::{GetOptions, ListOptions, Page, WriteOptions},
    messaging::Message,
};

macro_rules! capabilities {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $result:ty)? = $($path:ident)::+;)+) => {
        /// What the host offers to a plugin (see the contract in `wit/`).
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
    /// `kubernetes.apply`
    fn kubernetes_apply(object: &[u8], options: WriteOptions) -> Result<Vec<u8>, Error> = kubernetes::apply;
    /// `kubernetes.create`
    fn kubernetes_create(object: &[u8], options: WriteOptions) -> Result<Vec<u8>, Error> = kubernetes::create;
    /// `kubernetes.delete`
    fn kubernetes_delete(reference: &ObjectRef, options: &DeleteOptions) -> Result<(), Error> = kubernetes::delete;
    /// `references.hold`
    fn references_hold(reference: &ObjectRef) -> Result<(), Error> = references::hold;
    /// `http.send`
    fn http_send(request: &http::Request) -> Result<http::Response, Error> = http::send;
    /// `http.send-all`
    fn http_send_all(requests: &[http::Request]) -> Vec<Result<http::Response, Error>> = http::send_all;
    /// `http.secret-digest`
    fn http_secret_digest(namespace: Option<&str>, secret: &str, key: &str) -> Result<Option<String>, Error> = http::secret_digest;
    /// `http.subscribe`
    fn http_subscribe(subscription: &http::Subscription) -> Result<(), Error> = http::subscribe;
    /// `http.read-events`
    fn http_read_events(query: &http::EventQuery) -> Result<http::EventTail, Error> = http::read_events;
    /// `messaging.publish`
    fn messaging_publish(broker: &str, message: &Message) -> Result<(), Error> = messaging::publish;
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
    /// `memo.get`
    fn memo_get_bytes(key: &str) -> Option<Vec<u8>> = memo::get;
    /// `memo.put`
    fn memo_put_bytes(key: &str, value: &[u8]) -> Result<(), Error> = memo::put;
    /// `memo.remove`
    fn memo_remove_key(key: &str) = memo::remove;
}
