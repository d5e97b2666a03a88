//! A TCP proxy that can be cut or fall silent: what lies between a host and an API server that can't be told to fail.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};

/// Passes connections on to one address.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
    task: AbortHandle,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// Counts cuts: connections end when it moves.
    cuts: u64,
    /// New connections are closed at once.
    down: bool,
    /// Nothing passes, and nobody is told.
    silent: bool,
    latency: Duration,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

impl Proxy {
    /// Listens on a port of the kernel's choice.
    pub async fn start(target: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(watch::Sender::new(State::default()));
        let watched = state.clone();
        let serve = async move {
            while let Ok((client, _)) = listener.accept().await {
                let now = *watched.borrow();
                if !now.down {
                    tokio::spawn(pass(client, target, watched.subscribe(), now));
                }
            }
        };
        let task = tokio::spawn(serve).abort_handle();
        Ok(Self { address, state, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.state.send_modify(|s| s.cuts += 1);
    }

    /// Ends all connections and lets none in, or lets them in again.
    pub fn down(&self, down: bool) {
        self.state.send_modify(|s| {
            s.cuts += 1;
            s.down = down;
        });
    }

    /// Lets nothing pass any more, old connections and new ones open as they are; or ends them, what they held lost,
    /// and lets new ones pass again.
    pub fn silent(&self, silent: bool) {
        self.state.send_modify(|s| {
            s.cuts += u64::from(!silent);
            s.silent = silent;
        });
    }

    /// New connections wait this long before anything passes.
    pub fn latency(&self, latency: Duration) {
        self.state.send_modify(|s| s.latency = latency);
    }
}

async fn pass(mut client: TcpStream, target: SocketAddr, mut state: watch::Receiver<State>, then: State) {
    tokio::time::sleep(then.latency).await;
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    // Whichever ends first; a broken connection is what this is for.
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => return,
        _ = state.wait_for(|s| s.cuts != then.cuts || s.silent) => {}
    }
    // Both ends stay open.
    let _ = state.wait_for(|s| s.cuts != then.cuts).await;
}
