//! Dispatch of host calls: every call of every component is executed, executed and recorded, or answered from a recording.
//! The implementation of each interface is in a file of its own.

use std::pin::pin;

use super::PluginCall;
use crate::{
    contract::{
        bindings::{
            cache, clock, config,
            events::{self, EventType},
            http::{self, EventQuery, EventTail, Request, Response, Subscription},
            kubernetes::{
                self, ApplyOptions, CreateOptions, DeleteOptions, GetOptions, ListOptions, LogOptions, Page,
                Preconditions,
            },
            log::{self, Level},
            messaging::{self, Message},
            metrics, permits, references, status,
            types::{self, ConditionStatus, Error, Gvk, ObjectRef, SecretKeyRef, UpstreamRef},
        },
        host_calls::{HostCall, host_calls},
    },
    recording::{CallMode, codec::Recordable},
};

/// The host functions of one call into a component.
pub struct HostCalls(pub Box<PluginCall>);

/// Executes a host call. One that waits for another cluster ends when too many calls of its plugin do.
macro_rules! execute {
    (kubernetes, $call:expr, $function:ident ($($argument:ident),*)) => {{
        let wait = $call.cluster_wait.clone();
        // Pinned here: as an argument it would be held twice, before it is pinned and after.
        let result = {
            let call = pin!(<PluginCall as kubernetes::Host>::$function($call, $($argument),*));
            wait.run(call).await
        };
        match result.unwrap_or_else(|e| Err(Error::Unavailable(e.to_string()))) {
            Err(Error::Denied(why)) => Err(Box::pin($call.explain_denial(why)).await),
            result => result,
        }
    }};
    ($interface:ident, $call:expr, $function:ident ($($argument:ident),*)) => {
        <PluginCall as $interface::Host>::$function($call, $($argument),*).await
    };
}

macro_rules! dispatch {
    ($($interface:ident { $(
        $variant:ident $function:ident $name:literal ($($argument:ident: $type:ty),*) -> $result:ty, $effect:ident;
    )* })*) => { $(
        impl $interface::Host for HostCalls {
            $(async fn $function(&mut self, $($argument: $type),*) -> $result {
                const CALL: HostCall = HostCall::$variant;
                match &mut self.0.mode {
                    CallMode::Live => execute!($interface, &mut *self.0, $function ($($argument),*)),
                    CallMode::Record(recorder) => {
                        recorder.begin_host_call(CALL.name(), || {
                            vec![$((stringify!($argument), Box::new($argument.clone()) as Box<dyn Recordable>)),*]
                        });
                        let result = execute!($interface, &mut *self.0, $function ($($argument),*));
                        if let CallMode::Record(recorder) = &mut self.0.mode {
                            recorder.end_host_call(&result);
                        }
                        result
                    }
                    CallMode::Replay(replayer) => {
                        let replayer = replayer.clone();
                        let arguments =
                            vec![$((stringify!($argument), Box::new($argument) as Box<dyn Recordable>)),*];
                        self.0.observe_replayed_call(CALL, &arguments);
                        replayer.answer_call(CALL.name(), arguments).await
                    }
                }
            })*
        }
    )* };
}

host_calls!(dispatch);

impl types::Host for HostCalls {}
