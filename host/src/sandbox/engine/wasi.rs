//! WASI for components that import it: an empty environment. Their powers are the host's own interfaces.

use wasmtime_wasi::{WasiCtx, WasiCtxBuilder};

/// Builds a context without files, environment, arguments, input and network. The caller adds output, clocks and
/// randomness.
pub fn build_empty_context() -> WasiCtxBuilder {
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
    async fn empty_context_has_no_environment_files_or_sockets() {
        let mut state = State {
            wasi: build_empty_context().build(),
            table: ResourceTable::new(),
        };
        // This process has both, so that their absence is not a coincidence.
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
