//! A gate in front of everything that a host changes: the API server, Jenkins and the broker. It counts effects, and stops the
//! host after one of them.

use std::{net::SocketAddr, sync::Arc};

use axum::http::{Method, Request, Response};
use devops_simulators::{Exchange, RequestObserver};
use kube::{Client, client::Body};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// Effect of a host that acknowledges an event.
pub const EVENT_ACKNOWLEDGEMENT: &str = "acknowledge the event";
/// Length of a UID.
const UID_LENGTH: usize = 36;
/// Class and method of `basic.ack` in AMQP: the confirmation of a message by the broker, or that of a delivery by the host.
const BASIC_ACK: [u8; 4] = [0, 60, 0, 80];
/// Bytes before the payload of an AMQP frame: type, channel, size.
const FRAME_HEADER: usize = 7;
/// Bytes that a client sends before its first frame.
const PROTOCOL_HEADER: usize = 8;

/// One of the effects of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectStep {
    /// Name of the effect.
    pub effect: String,
    /// Number of effects of this name before it.
    pub repetition: usize,
}

impl EffectStep {
    /// The steps that have these effects.
    pub fn list(effects: &[String]) -> Vec<Self> {
        let is_same = |effect: &String, i: usize| effects[..i].iter().filter(|e| *e == effect).count();
        let step = |(i, effect): (usize, &String)| Self {
            effect: effect.clone(),
            repetition: is_same(effect, i),
        };
        effects.iter().enumerate().map(step).collect()
    }

    /// Returns whether it is among these effects.
    pub fn is_in(&self, effects: &[String]) -> bool {
        let same = effects.iter().filter(|effect| **effect == self.effect);
        same.count() > self.repetition
    }
}

/// Removes the steps that are among these effects, and returns them. Each of them is due once, however often its effect comes
/// again after a restart.
pub fn take_due(steps: &mut Vec<EffectStep>, effects: &[String]) -> Vec<EffectStep> {
    steps.extract_if(.., |step| step.is_in(effects)).collect()
}

/// Replaces the UIDs in a name, which differ from one object to the other.
pub fn replace_uids(name: &str) -> String {
    let is_uid = |bytes: &[u8]| {
        bytes.iter().enumerate().all(|(i, byte)| match i {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
    };
    let mut replaced = name.to_owned();
    while let Some(at) = replaced.as_bytes().windows(UID_LENGTH).position(is_uid) {
        replaced.replace_range(at..at + UID_LENGTH, "UID");
    }
    replaced
}

/// The gate of one host after the other.
#[derive(Default)]
pub struct Gate(watch::Sender<State>);

#[derive(Default)]
struct State {
    /// Number of hosts before this one. Nothing of an earlier host gets through.
    term: u64,
    /// Effects after which the gate closes, each once.
    stops: Vec<EffectStep>,
    is_closed: bool,
    effects: Vec<String>,
}

impl State {
    fn admits(&self, term: u64) -> bool {
        self.term == term && !self.is_closed
    }
}

impl Gate {
    /// Counts from zero, and closes after each of these effects.
    pub fn arm(&self, stops: Vec<EffectStep>) {
        self.0.send_modify(|state| {
            state.stops = stops;
            state.effects.clear();
        });
    }

    /// Opens for another host.
    pub fn open(&self) {
        self.0.send_modify(|state| {
            state.term += 1;
            state.is_closed = false;
        });
    }

    /// Returns whether the host has been stopped.
    pub fn is_closed(&self) -> bool {
        self.0.borrow().is_closed
    }

    /// The effects since the gate was armed.
    pub fn effects(&self) -> Vec<String> {
        self.0.borrow().effects.clone()
    }

    fn term(&self) -> u64 {
        self.0.borrow().term
    }

    /// Counts an effect. Returns whether the host is to see its result.
    fn count(&self, term: u64, effect: &str) -> bool {
        let mut is_seen = false;
        self.0.send_modify(|state| {
            state.effects.push(replace_uids(effect));
            let due = take_due(&mut state.stops, &state.effects);
            state.is_closed |= !due.is_empty();
            is_seen = state.admits(term);
        });
        is_seen
    }

    /// A client of the API server for the next host.
    pub fn client(self: &Arc<Self>, client: Client) -> Client {
        let (gate, term) = (self.clone(), self.term());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (gate, client) = (gate.clone(), client.clone());
            async move {
                // In a task of its own: what the API server carries out is counted, although the host is dropped meanwhile.
                let sent = tokio::spawn(async move { gate.send(term, &client, request).await });
                match sent.await.expect("it does not panic") {
                    Some(response) => response,
                    None => std::future::pending().await,
                }
            }
        });
        Client::new(service, "default")
    }

    /// Sends a request to the API server. None for a host that is stopped.
    async fn send(
        &self,
        term: u64,
        client: &Client,
        request: Request<Body>,
    ) -> Option<Result<Response<Body>, kube::Error>> {
        if !self.0.borrow().admits(term) {
            return None;
        }
        let effect = describe_write(&request);
        let response = match client.send(request).await {
            Ok(response) => response,
            Err(e) => return Some(Err(e)),
        };
        let is_seen = match effect {
            Some(effect) if response.status().is_success() => self.count(term, &effect),
            _ => self.0.borrow().admits(term),
        };
        is_seen.then_some(Ok(response))
    }

    /// Starts a proxy of the broker, and returns its address.
    pub async fn front_broker(self: &Arc<Self>, broker: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let gate = self.clone();
        tokio::spawn(async move {
            while let Ok((host, _)) = listener.accept().await {
                tokio::spawn(gate.clone().forward(host, broker));
            }
        });
        address
    }

    async fn forward(self: Arc<Self>, host: TcpStream, broker: SocketAddr) {
        let term = self.term();
        let Ok(broker) = TcpStream::connect(broker).await else {
            return;
        };
        let ((from_host, to_host), (from_broker, to_broker)) = (host.into_split(), broker.into_split());
        let mut state = self.0.subscribe();
        // Errors are those of connections that end.
        tokio::select! {
            _ = self.relay_host(term, from_host, to_broker) => {}
            _ = self.relay_broker(term, from_broker, to_host) => {}
            _ = state.wait_for(|state| !state.admits(term)) => {}
        }
    }

    /// Relays the frames of the host. The acknowledgement of a delivery has its effect when the broker has it.
    async fn relay_host(
        &self,
        term: u64,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
    ) -> std::io::Result<()> {
        let mut header = [0; PROTOCOL_HEADER];
        from.read_exact(&mut header).await?;
        to.write_all(&header).await?;
        loop {
            let frame = read_frame(&mut from).await?;
            to.write_all(&frame).await?;
            if is_ack(&frame) && !self.count(term, EVENT_ACKNOWLEDGEMENT) {
                return Ok(());
            }
        }
    }

    /// Relays the frames of the broker. A message has been published when the broker confirms it.
    async fn relay_broker(
        &self,
        term: u64,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
    ) -> std::io::Result<()> {
        loop {
            let frame = read_frame(&mut from).await?;
            if is_ack(&frame) && !self.count(term, "publish a heartbeat") {
                return Ok(());
            }
            to.write_all(&frame).await?;
        }
    }
}

impl RequestObserver for Gate {
    fn admits(&self) -> bool {
        !self.is_closed()
    }

    fn is_answered(&self, exchange: &Exchange) -> bool {
        match exchange.method.as_str() {
            "GET" => !self.is_closed(),
            method => {
                let path = exchange.target.split('?').next().unwrap_or_default();
                self.count(self.term(), &format!("{method} {path}"))
            }
        }
    }
}

/// Names a request that writes an object. Events are no effects: they are sent whenever there is time.
fn describe_write(request: &Request<Body>) -> Option<String> {
    let path = request.uri().path();
    let is_write = *request.method() != Method::GET
        && !path.contains("/events")
        && !path.contains("/authorization.k8s.io/")
        && !path.contains("/authentication.k8s.io/");
    let (_, name) = path.split_once("/namespaces/")?;
    let (_, name) = name.split_once('/')?;
    is_write.then(|| format!("{} {name}", request.method()))
}

async fn read_frame(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let mut frame = vec![0; FRAME_HEADER];
    from.read_exact(&mut frame).await?;
    let size = u32::from_be_bytes([frame[3], frame[4], frame[5], frame[6]]) as usize;
    // And the octet that ends it.
    frame.resize(FRAME_HEADER + size + 1, 0);
    from.read_exact(&mut frame[FRAME_HEADER..]).await?;
    Ok(frame)
}

fn is_ack(frame: &[u8]) -> bool {
    const METHOD: u8 = 1;
    frame[0] == METHOD && frame[FRAME_HEADER..].starts_with(&BASIC_ACK)
}

#[test]
fn uids_are_replaced_and_other_names_are_not() {
    let name =
        "PATCH secrets/shop-0b2f4c1e-93ab-4d5e-8f00-1234567890ab of 0b2f4c1e-93ab-4d5e-8f00-1234567890AB";
    assert_eq!(replace_uids(name), "PATCH secrets/shop-UID of UID");
    let other = "PATCH secrets/shop-0b2f4c1e-93ab-4d5e-8f00-1234567890a\u{e4}";
    assert_eq!(replace_uids(other), other);
}
