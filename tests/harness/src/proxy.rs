//! A TCP proxy that injects network faults between a host and an API server that has no faults of its own.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};

/// A proxy that forwards connections to one address.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
    accepted: Arc<AtomicUsize>,
    task: AbortHandle,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// Number of cuts so far. A connection ends when it grows.
    cuts: u64,
    /// New connections are closed as soon as they are accepted.
    down: bool,
    /// No bytes are forwarded, and connections stay open.
    silent: bool,
    /// Number of times that the connections of the moment were silenced.
    silenced: u64,
    latency: Duration,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut_connections();
    }
}

impl Proxy {
    /// Listens on a free port of the loopback interface.
    pub async fn start(target: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(watch::Sender::new(State::default()));
        let watched = state.clone();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let serve = async move {
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let now = *watched.borrow();
                if !now.down {
                    tokio::spawn(forward(client, target, watched.subscribe(), now));
                }
            }
        };
        let task = tokio::spawn(serve).abort_handle();
        Ok(Self {
            address,
            state,
            accepted,
            task,
        })
    }

    /// Returns the address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of connections that it has accepted so far.
    pub fn count_accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Closes all connections.
    pub fn cut_connections(&self) {
        self.state.send_modify(|s| s.cuts += 1);
    }

    /// Closes all connections, and refuses new ones while `down`.
    pub fn set_down(&self, down: bool) {
        self.state.send_modify(|s| {
            s.cuts += 1;
            s.down = down;
        });
    }

    /// Stops forwarding while leaving all connections open, as a network partition does. With `false`, closes the
    /// connections that were silent, losing the bytes they held, and forwards new ones.
    pub fn set_silent(&self, silent: bool) {
        self.state.send_modify(|s| {
            s.cuts += u64::from(!silent);
            s.silent = silent;
        });
    }

    /// Stops forwarding on the connections that are open now, and forwards new ones, as a load balancer does that has
    /// forgotten its connections.
    pub fn silence_established(&self) {
        self.state.send_modify(|s| s.silenced += 1);
    }

    /// Sets the delay of new connections before the first byte is forwarded.
    pub fn set_latency(&self, latency: Duration) {
        self.state.send_modify(|s| s.latency = latency);
    }
}

async fn forward(mut client: TcpStream, target: SocketAddr, mut state: watch::Receiver<State>, then: State) {
    tokio::time::sleep(then.latency).await;
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    // Errors of a connection are ignored: breaking connections is the purpose of this proxy.
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => return,
        _ = state.wait_for(|s| s.cuts != then.cuts || s.silent || s.silenced != then.silenced) => {}
    }
    // Silent: both sockets stay open until the next cut.
    let _ = state.wait_for(|s| s.cuts != then.cuts).await;
}
