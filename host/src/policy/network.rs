//! The network policy: upstreams have public addresses, and those that the administrator allows.
//!
//! The address is checked when connecting, and the checked address is connected to. A name that resolves to a public
//! address first and to another one later (DNS rebinding) is caught.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use parking_lot::RwLock;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error};
use tokio::net::TcpStream;

/// Addresses of cloud metadata services, which give out the machine's credentials: a grant of a network that contains
/// them does not allow them.
const METADATA_ADDRESSES: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Allowed addresses besides public ones: the part `network` of a grants file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkGrant {
    /// Networks (`10.96.0.0/12`) and addresses (`127.0.0.1`) that upstreams may be in. Addresses of cloud metadata services
    /// are never allowed.
    #[serde(default, deserialize_with = "deserialize_networks")]
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<IpNet>,
}

/// Parses a network in CIDR notation, or one address.
pub fn parse_network(text: &str) -> Result<IpNet, String> {
    let parsed = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    parsed.map_err(|_| format!("`{text}` is no network: it is like 10.96.0.0/12, fd00::/8 or 127.0.0.1"))
}

fn deserialize_networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts
        .iter()
        .map(|t| parse_network(t).map_err(D::Error::custom))
        .collect()
}

/// The error of an address that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressNotAllowed {
    host: String,
    address: IpAddr,
}

impl fmt::Display for AddressNotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, address } = self;
        if *host != address.to_string() {
            write!(f, "{host} resolves to {address}: ")?;
        }
        write!(
            f,
            "{address} is not a public address: an administrator can allow it with `network.allow` in the grants"
        )
    }
}

impl std::error::Error for AddressNotAllowed {}

impl NetworkGrant {
    /// The address may be connected to.
    pub fn permits(&self, address: IpAddr) -> bool {
        let address = unwrap_embedded_ipv4(address);
        if METADATA_ADDRESSES.contains(&address) {
            return self.allow.contains(&IpNet::from(address));
        }
        is_public(address) || self.allow.iter().any(|net| net.contains(&address))
    }
}

/// The effective address: IPv4 embedded in IPv6 is IPv4.
fn unwrap_embedded_ipv4(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let [a, b, c, ..] = v6.segments();
    let o = v6.octets();
    match (a, b) {
        // NAT64 (RFC 6052) and 6to4.
        (0x64, 0xff9b) if c == 0 => Ipv4Addr::new(o[12], o[13], o[14], o[15]).into(),
        (0x2002, _) => Ipv4Addr::new(o[2], o[3], o[4], o[5]).into(),
        _ => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
    }
}

/// The address is globally reachable.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            !(a == 0
                || v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || (a == 100 && b & 0xc0 == 64)
                || (a == 192 && b == 0 && c == 0)
                || (a == 198 && b & 0xfe == 18)
                || v4.is_documentation()
                // Multicast, reserved, broadcast.
                || a >= 224)
        }
        // Only the allocated range, without documentation and locally used translation prefixes in it.
        IpAddr::V6(v6) => {
            let [a, b, ..] = v6.segments();
            a & 0xe000 == 0x2000 && !(a == 0x2001 && (b == 0xdb8 || b < 0x200))
        }
    }
}

/// The network policy of a host. Cheap to clone; all clones change together.
#[derive(Clone, Debug, Default)]
pub struct NetworkPolicy {
    state: Arc<RwLock<(u64, NetworkGrant)>>,
}

impl NetworkPolicy {
    /// Replaces the allowed networks; returns true if they changed.
    pub fn replace_grant(&self, grant: NetworkGrant) -> bool {
        let mut now = self.state.write();
        let other = now.1 != grant;
        if other {
            *now = (now.0 + 1, grant);
        }
        other
    }

    /// A version that changes with the allowed networks.
    pub fn version(&self) -> u64 {
        self.state.read().0
    }

    /// Checks the host of a URL if it is an address. A name is checked when it is resolved.
    pub fn check_url(&self, url: &reqwest::Url) -> Result<(), AddressNotAllowed> {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let Ok(address) = host.parse::<IpAddr>() else {
            return Ok(());
        };
        self.filter_addresses(host, [address].into_iter()).map(drop)
    }

    fn filter_addresses(
        &self,
        host: &str,
        addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<Vec<IpAddr>, AddressNotAllowed> {
        let now = self.state.read();
        let (good, bad): (Vec<_>, Vec<_>) = addresses.partition(|a| now.1.permits(*a));
        match (bad.first(), good.is_empty()) {
            (Some(address), true) => Err(AddressNotAllowed {
                host: host.to_owned(),
                address: *address,
            }),
            _ => Ok(good),
        }
    }

    /// Resolves a host to its allowed addresses.
    async fn resolve_host(
        &self,
        host: &str,
    ) -> Result<Vec<IpAddr>, Box<dyn std::error::Error + Send + Sync>> {
        let found: Vec<_> = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => tokio::net::lookup_host((host, 0))
                .await?
                .map(|a| a.ip())
                .collect(),
        };
        Ok(self.filter_addresses(host, found.into_iter())?)
    }

    /// Connects to a host as requests do.
    pub async fn open_connection(
        &self,
        host: &str,
        port: u16,
        timeout: Duration,
    ) -> Result<TcpStream, Box<dyn std::error::Error + Send + Sync>> {
        let connecting = async {
            let addresses = self.resolve_host(host).await?;
            let addresses: Vec<_> = addresses.into_iter().map(|a| SocketAddr::new(a, port)).collect();
            Ok(TcpStream::connect(&*addresses).await?)
        };
        match tokio::time::timeout(timeout, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(format!("no connection within {timeout:?}").into()),
        }
    }
}

impl Resolve for NetworkPolicy {
    fn resolve(&self, name: Name) -> Resolving {
        let network = self.clone();
        Box::pin(async move {
            let addresses = NetworkPolicy::resolve_host(&network, name.as_str()).await?;
            // Port 0: the client replaces it by the port of the URL or its scheme.
            let addresses = addresses.into_iter().map(|a| SocketAddr::new(a, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grant(allow: &[&str]) -> NetworkGrant {
        NetworkGrant {
            allow: allow
                .iter()
                .map(|a| parse_network(a).expect("a network"))
                .collect(),
        }
    }

    #[test]
    fn private_addresses_are_refused() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.1.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::a00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
        ] {
            assert!(
                !grant(&[]).permits(address.parse().expect("an address")),
                "{address}"
            );
        }
        for address in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "64:ff9b::101:101",
            "::ffff:1.1.1.1",
        ] {
            assert!(
                grant(&[]).permits(address.parse().expect("an address")),
                "{address}"
            );
        }
    }

    #[test]
    fn grant_allows_networks_but_metadata_by_address_only() {
        let allows =
            |allow: &[&str], address: &str| grant(allow).permits(address.parse().expect("an address"));
        assert!(allows(&["10.96.0.0/12"], "10.96.0.1") && !allows(&["10.96.0.0/12"], "10.0.0.1"));
        assert!(allows(&["127.0.0.1"], "::ffff:127.0.0.1") && allows(&["::1"], "::1"));
        for (wide, address) in [
            ("0.0.0.0/0", "169.254.169.254"),
            ("169.254.0.0/16", "::ffff:169.254.169.254"),
            ("fd00::/8", "fd00:ec2::254"),
        ] {
            assert!(!allows(&[wide], address), "{address}");
            assert!(allows(
                &[
                    wide,
                    &unwrap_embedded_ipv4(address.parse().expect("one")).to_string()
                ],
                address
            ));
        }
        assert!(parse_network("10.0.0.0/33").is_err() && parse_network("localhost").is_err());
    }

    #[test]
    fn address_in_any_notation_is_refused() {
        let network = NetworkPolicy::default();
        for url in [
            "http://127.1/",
            "http://0x7f000001/",
            "http://2130706433/",
            "http://[::ffff:a00:1]/",
            "http://0/",
        ] {
            let error = network
                .check_url(&url.parse().expect("a URL"))
                .expect_err(url)
                .to_string();
            assert!(error.contains("network.allow"), "{error}");
        }
        assert!(
            network.replace_grant(grant(&["127.0.0.0/8"])) && !network.replace_grant(grant(&["127.0.0.0/8"]))
        );
        assert_eq!(
            network.check_url(&"http://127.1/".parse().expect("a URL")),
            Ok(())
        );
    }

    #[tokio::test]
    async fn name_of_private_address_is_refused() {
        let network = NetworkPolicy::default();
        let refused = network
            .open_connection("localhost", 1, Duration::from_secs(5))
            .await
            .expect_err("refused");
        assert!(refused.downcast_ref::<AddressNotAllowed>().is_some(), "{refused}");
    }

    proptest! {
        /// IPv4 is judged the same in every embedding.
        #[test]
        fn embedded_ipv4_is_judged_as_ipv4(bits: u32) {
            let v4 = Ipv4Addr::from(bits);
            let expected = grant(&[]).permits(v4.into());
            let [a, b, c, d] = v4.octets();
            let (hi, lo) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            for v6 in [v4.to_ipv6_mapped(), Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, hi, lo), Ipv6Addr::new(0x2002, hi, lo, 0, 0, 0, 0, 1)] {
                prop_assert_eq!(grant(&[]).permits(v6.into()), expected, "{}", v6);
            }
        }
    }
}
