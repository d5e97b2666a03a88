//! The host functions of the contract, declared once.
//!
//! One line of [`host_calls!`] yields the dispatch (`sandbox::capabilities::dispatch`), the metric label, the recording
//! of arguments and result, and the effect class by which a replay decides whether a call may differ. A test compares
//! the table with `wit/`.

/// The effect of a host function, for a replay: it decides which calls may differ from the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectClass {
    /// The result depends on the arguments, so a call with other arguments cannot be answered.
    Read,
    /// The result says little about the arguments, so a call with other arguments is answered as recorded.
    Write,
    /// An HTTP request: a write or a read by its method.
    Request,
    /// The result is true at any time, so any number of calls can be answered: the clock and the configuration.
    Ambient,
    /// There is no result, and others see the effect: any number of calls can be answered, and each one counts.
    Notify,
    /// There is no result, and only people who observe the plugin see the effect.
    Observe,
}

/// Passes the table of all host functions to a macro. A line is: the variant of [`HostCall`], the Rust name, the WIT
/// name, the signature and the [`EffectClass`].
macro_rules! host_calls {
    ($callback:ident) => {
        $callback! {
            kubernetes {
                KubernetesGet get "get" (ref_: ObjectRef, options: GetOptions) -> Result<Option<Vec<u8>>, Error>, Read;
                KubernetesList list "list" (gvk: Gvk, options: ListOptions) -> Result<Page, Error>, Read;
                KubernetesRequireReady require_ready "require-ready" (ref_: ObjectRef) -> Result<Vec<u8>, Error>, Read;
                KubernetesRequireCondition require_condition "require-condition"
                    (ref_: ObjectRef, type_: String, status: ConditionStatus) -> Result<Vec<u8>, Error>, Read;
                KubernetesApply apply "apply" (object: Vec<u8>, options: ApplyOptions) -> Result<Vec<u8>, Error>, Write;
                KubernetesCreate create "create"
                    (object: Vec<u8>, options: CreateOptions) -> Result<Vec<u8>, Error>, Write;
                KubernetesPatch patch "patch"
                    (ref_: ObjectRef, patch: Vec<u8>, preconditions: Preconditions) -> Result<Vec<u8>, Error>, Write;
                KubernetesPatchSubresource patch_subresource "patch-subresource"
                    (ref_: ObjectRef, subresource: String, patch: Vec<u8>, preconditions: Preconditions)
                        -> Result<Vec<u8>, Error>, Write;
                KubernetesDelete delete "delete" (ref_: ObjectRef, options: DeleteOptions) -> Result<(), Error>, Write;
                KubernetesReadLog read_log "read-log"
                    (pod: ObjectRef, options: LogOptions) -> Result<String, Error>, Read;
            }
            references {
                ReferencesHold hold "hold" (ref_: ObjectRef) -> Result<(), Error>, Write;
                ReferencesListHolders list_holders "list-holders"
                    (ref_: ObjectRef) -> Result<Vec<ObjectRef>, Error>, Read;
            }
            permits {
                PermitsAcquire acquire "acquire" (pool: String, limit: u32, held: bool) -> Result<bool, Error>, Read;
                PermitsRelease release "release" (pool: String) -> (), Notify;
            }
            http {
                HttpSend send "send" (request: Request) -> Result<Response, Error>, Request;
                HttpSendAll send_all "send-all" (requests: Vec<Request>) -> Vec<Result<Response, Error>>, Request;
                HttpSecretDigest secret_digest "secret-digest"
                    (secret: SecretKeyRef) -> Result<Option<String>, Error>, Read;
                HttpSubscribe subscribe "subscribe" (subscription: Subscription) -> Result<(), Error>, Read;
                HttpReadEvents read_events "read-events" (query: EventQuery) -> Result<EventTail, Error>, Read;
            }
            messaging {
                MessagingPublish publish "publish" (broker: UpstreamRef, message: Message) -> Result<(), Error>, Write;
            }
            status {
                StatusCheckpoint checkpoint "checkpoint" (fields: Vec<u8>) -> Result<(), Error>, Write;
            }
            events {
                EventsEmit emit "emit" (type_: EventType, reason: String, note: String) -> (), Notify;
            }
            log {
                LogWrite write "write" (level: Level, message: String, fields: Vec<(String, String)>) -> (), Observe;
            }
            metrics {
                MetricsCounter counter "counter" (name: String, delta: u64) -> (), Observe;
                MetricsGauge gauge "gauge" (name: String, value: f64) -> (), Observe;
            }
            clock {
                ClockNow now "now" () -> u64, Ambient;
                ClockRemaining remaining "remaining" () -> u64, Ambient;
            }
            config {
                ConfigGet get "get" () -> Vec<u8>, Ambient;
            }
            cache {
                CacheGet get "get" (key: String) -> Option<Vec<u8>>, Read;
                CacheSet set "set" (key: String, value: Vec<u8>) -> Result<(), Error>, Write;
                CacheDelete delete "delete" (key: String) -> (), Notify;
            }
        }
    };
}

pub(crate) use host_calls;

macro_rules! declare_enum {
    ($($interface:ident { $(
        $variant:ident $function:ident $name:literal ($($argument:ident: $type:ty),*) -> $result:ty, $effect:ident;
    )* })*) => {
        /// A host function.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum HostCall { $($(
            #[doc = concat!("`", stringify!($interface), ".", $name, "`")]
            $variant,
        )*)* }

        impl HostCall {
            /// All host functions, in the order of their discriminants.
            pub const ALL: &[Self] = &[$($(Self::$variant,)*)*];

            /// Returns the name, `interface.function` as in WIT.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$variant => concat!(stringify!($interface), ".", $name),)*)* }
            }

            /// Returns the effect class.
            pub const fn effect(self) -> EffectClass {
                match self { $($(Self::$variant => EffectClass::$effect,)*)* }
            }
        }
    };
}

host_calls!(declare_enum);

impl HostCall {
    /// Returns the host function of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|call| call.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn host_calls_table_matches_imports_of_wit() {
        let table: BTreeSet<_> = HostCall::ALL.iter().map(|call| call.name().to_owned()).collect();
        let wit: BTreeSet<_> = crate::contract::inspection::list_imports().collect();
        assert_eq!(table, wit);
        assert_eq!(table.len(), HostCall::ALL.len(), "a duplicate name");
    }
}
