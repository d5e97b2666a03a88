//! The one door: every host call of every component passes here, where it is recorded, followed, or
//! answered from a recording. Behind it each capability is in its own file.

use super::Call;
use crate::{
    contract::bindings::{
        clock, config,
        events::{self, EventType},
        http::{self, EventQuery, EventTail, Request, Response, Subscription},
        kubernetes::{self, DeleteOptions, GetOptions, ListOptions, Page, WriteOptions},
        log::{self, Level},
        memo,
        messaging::{self, Message},
        metrics, references, status,
        types::{self, Error, Gvk, ObjectRef},
    },
    recording::{Tape, codec::Taped},
};

/// A call, seen from the component.
pub struct Door(pub Call);

macro_rules! door {
    ($($interface:ident { $($function:ident $name:literal ($($argument:ident: $type:ty),*) -> $result:ty;)* })*) => { $(
        impl $interface::Host for Door {
            $(async fn $function(&mut self, $($argument: $type),*) -> $result {
                const FUNCTION: &str = concat!(stringify!($interface), ".", $name);
                match &mut self.0.tape {
                    Tape::Off => <Call as $interface::Host>::$function(&mut self.0, $($argument),*).await,
                    Tape::Rolling(tape) => {
                        tape.enter(FUNCTION, || {
                            vec![$((stringify!($argument), Box::new($argument.clone()) as Box<dyn Taped>)),*]
                        });
                        let result = <Call as $interface::Host>::$function(&mut self.0, $($argument),*).await;
                        if let Tape::Rolling(tape) = &mut self.0.tape {
                            tape.leave(&result);
                        }
                        result
                    }
                    Tape::Playing(player) => {
                        let player = player.clone();
                        player
                            .ask(FUNCTION, vec![$((stringify!($argument), Box::new($argument) as Box<dyn Taped>)),*])
                            .await
                    }
                }
            })*
        }
    )* };
}

door! {
    kubernetes {
        get "get" (ref_: ObjectRef, options: GetOptions) -> Result<Option<Vec<u8>>, Error>;
        list "list" (gvk: Gvk, options: ListOptions) -> Result<Page, Error>;
        require_ready "require-ready" (ref_: ObjectRef) -> Result<Vec<u8>, Error>;
        apply "apply" (object: Vec<u8>, options: WriteOptions) -> Result<Vec<u8>, Error>;
        create "create" (object: Vec<u8>, options: WriteOptions) -> Result<Vec<u8>, Error>;
        delete "delete" (ref_: ObjectRef, options: DeleteOptions) -> Result<(), Error>;
    }
    references {
        hold "hold" (ref_: ObjectRef) -> Result<(), Error>;
    }
    http {
        send "send" (request: Request) -> Result<Response, Error>;
        send_all "send-all" (requests: Vec<Request>) -> Vec<Result<Response, Error>>;
        secret_digest "secret-digest" (namespace: Option<String>, secret: String, key: String) -> Result<Option<String>, Error>;
        subscribe "subscribe" (subscription: Subscription) -> Result<(), Error>;
        read_events "read-events" (query: EventQuery) -> Result<EventTail, Error>;
    }
    messaging {
        publish "publish" (broker: String, message: Message) -> Result<(), Error>;
    }
    status {
        checkpoint "checkpoint" (fields: Vec<u8>) -> Result<(), Error>;
    }
    events {
        emit "emit" (type_: EventType, reason: String, note: String) -> ();
    }
    log {
        write "write" (level: Level, message: String, fields: Vec<(String, String)>) -> ();
    }
    metrics {
        counter "counter" (name: String, delta: u64) -> ();
        gauge "gauge" (name: String, value: f64) -> ();
    }
    clock {
        now "now" () -> u64;
        remaining "remaining" () -> u64;
    }
    config {
        get "get" () -> Vec<u8>;
    }
    memo {
        get "get" (key: String) -> Option<Vec<u8>>;
        put "put" (key: String, value: Vec<u8>) -> Result<(), Error>;
        remove "remove" (key: String) -> ();
    }
}

impl types::Host for Door {}
