//! Simulators of Cloudflare's and GoDaddy's DNS APIs, with fault injection and a log of requests.
//!
//! They have what the drivers of the DNS pack use, and refuse what the providers refuse. Records are those of one zone.

mod cloudflare;
mod godaddy;
mod server;

pub use cloudflare::Cloudflare;
pub use godaddy::GoDaddy;
pub use server::{DnsFault, DnsSimulator};

/// Returns whether a value is valid for a type, as far as the providers check it.
fn is_valid(kind: &str, value: &str) -> bool {
    match kind {
        "A" => value.parse::<std::net::Ipv4Addr>().is_ok(),
        "AAAA" => value.parse::<std::net::Ipv6Addr>().is_ok(),
        "CNAME" | "MX" | "SRV" => !value.is_empty() && !value.contains(' '),
        "TXT" => true,
        _ => false,
    }
}
