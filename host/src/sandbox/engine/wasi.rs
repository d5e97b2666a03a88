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
            sockets::{network::IpAddressFamily, tcp_create_socket, udp_create_socket},
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
        let tcp = tcp_create_socket::Host::create_tcp_socket(&mut state.sockets(), IpAddressFamily::Ipv4);
        assert!(tcp.is_err(), "a TCP socket");
        let udp =
            udp_create_socket::Host::create_udp_socket(&mut state.sockets(), IpAddressFamily::Ipv4).await;
        assert!(udp.is_err(), "a UDP socket");
    }
}
