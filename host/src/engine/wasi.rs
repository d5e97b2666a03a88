//! What components that import WASI find: nothing. What they can do they ask of the host's own interfaces.

use wasmtime_wasi::{WasiCtx, WasiCtxBuilder};

/// No files, no environment, no arguments, no input, no network. Output, clocks and randomness are to be added.
pub fn nothing() -> WasiCtxBuilder {
    let mut wasi = WasiCtx::builder();
    wasi.allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false);
    wasi
}

#[cfg(test)]
mod tests {
    use wasmtime_wasi::{
        ResourceTable, WasiCtxView, WasiView,
        cli::WasiCliView,
        filesystem::WasiFilesystemView,
        p2::bindings::{
            cli::environment,
            filesystem::preopens,
            sockets::{
                instance_network,
                network::{IpAddressFamily, IpSocketAddress, Ipv4SocketAddress},
                tcp, tcp_create_socket,
            },
        },
        sockets::WasiSocketsView,
    };

    use super::*;

    struct State {
        wasi: WasiCtx,
        table: ResourceTable,
    }

    impl WasiView for State {
        fn ctx(&mut self) -> WasiCtxView<'_> {
            WasiCtxView {
                ctx: &mut self.wasi,
                table: &mut self.table,
            }
        }
    }

    #[tokio::test]
    async fn there_is_nothing() {
        let mut state = State {
            wasi: nothing().build(),
            table: ResourceTable::new(),
        };
        // This process has both.
        assert!(std::env::vars().count() > 0 && std::env::args().count() > 0);
        let environment = environment::Host::get_environment(&mut state.cli()).expect("an answer");
        assert!(environment.is_empty(), "{environment:?}");
        let arguments = environment::Host::get_arguments(&mut state.cli()).expect("an answer");
        assert!(arguments.is_empty(), "{arguments:?}");
        let folders = preopens::Host::get_directories(&mut state.filesystem()).expect("an answer");
        assert!(folders.is_empty());
        // Somebody listens, so that a connection would come about.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let address = IpSocketAddress::Ipv4(Ipv4SocketAddress {
            port,
            address: (127, 0, 0, 1),
        });
        let network = instance_network::Host::instance_network(&mut state.sockets()).expect("an answer");
        let socket = tcp_create_socket::Host::create_tcp_socket(&mut state.sockets(), IpAddressFamily::Ipv4);
        if let Ok(socket) = socket {
            let refused =
                tcp::HostTcpSocket::start_connect(&mut state.sockets(), socket, network, address).await;
            assert!(refused.is_err(), "it may connect");
        }
    }
}
