//! The network policy: upstreams have public addresses, and those that the administrator allows.
//!
//! The address is checked when connecting, and the checked address is connected to. A name that resolves to a public
//! address first and to another one later (DNS rebinding) is caught.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, LazyLock},
    time::Duration,
};

use ipnet::IpNet;
use parking_lot::RwLock;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error};
use tokio::net::TcpStream;

/// Networks of cloud metadata and provider services, which give out the machine's credentials or settings. An entry of
/// `allow` that is wider than such a network does not allow its addresses.
static METADATA_NETWORKS: LazyLock<[IpNet; 11]> = LazyLock::new(|| {
    [
        "169.254.169.254/32", // AWS, Azure, Google, OpenStack and others
        "169.254.170.2/32",   // AWS ECS
        "169.254.170.23/32",  // AWS EKS
        "fd00:ec2::254/128",  // AWS
        "fd00:ec2::23/128",   // AWS EKS
        "168.63.129.16/32",   // Azure WireServer
        "100.100.100.200/32", // Alibaba
        "192.0.0.192/32",     // Oracle
        "fd20:ce::254/128",   // Google
        "161.26.0.0/16",      // IBM service network
        "166.8.0.0/14",       // IBM service network
    ]
    .map(|network| network.parse().expect("a network"))
});

/// Addresses that upstreams may have: the part `network` of a grants file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkGrant {
    /// Networks (`10.96.0.0/12`) and addresses (`127.0.0.1`) that upstreams may be in. Metadata and service addresses of
    /// clouds are allowed only by an entry that is not wider than their own network.
    #[serde(default, deserialize_with = "deserialize_networks")]
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<IpNet>,
    /// Networks and addresses that no upstream may be in, even if they are public or in `allow`.
    #[serde(default, deserialize_with = "deserialize_networks")]
    #[schemars(with = "Vec<String>")]
    pub deny: Vec<IpNet>,
    /// Allows public addresses. Defaults to true; if false, upstreams may be in the networks of `allow` only.
    #[serde(default = "default_public")]
    pub public: bool,
}

fn default_public() -> bool {
    true
}

impl Default for NetworkGrant {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
            public: default_public(),
        }
    }
}

/// The networks of the loopback interface, on which servers under development listen.
pub fn loopback_networks() -> [IpNet; 2] {
    [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].map(IpNet::from)
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

/// The rule of the network policy that refuses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressRule {
    /// An entry of `deny` contains it.
    Denied,
    /// It is in a metadata network, and no entry of `allow` is as narrow.
    Metadata,
    /// It is not public.
    NotPublic,
    /// It is public, and `public` is false.
    Public,
}

/// The error of an address that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressNotAllowed {
    host: String,
    address: IpAddr,
    rule: AddressRule,
}

impl fmt::Display for AddressNotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, address, rule } = self;
        if *host != address.to_string() {
            write!(f, "{host} resolves to {address}: ")?;
        }
        let why = match rule {
            AddressRule::Denied => "is in `network.deny` of the grants",
            AddressRule::Metadata => {
                "belongs to a cloud's metadata or service network: an administrator can allow it with an entry of its own \
                 in `network.allow` in the grants"
            }
            AddressRule::NotPublic => {
                "is not a public address: an administrator can allow it with `network.allow` in the grants"
            }
            AddressRule::Public => {
                "is not in `network.allow` of the grants, which have `network.public: false`"
            }
        };
        write!(f, "{address} {why}")
    }
}

impl std::error::Error for AddressNotAllowed {}

impl NetworkGrant {
    /// The address may be connected to.
    #[cfg(test)]
    pub fn permits(&self, address: IpAddr) -> bool {
        self.check_address(address).is_ok()
    }

    /// Checks that the address may be connected to.
    fn check_address(&self, address: IpAddr) -> Result<(), AddressRule> {
        let is_denied = |address: &IpAddr| self.deny.iter().any(|net| net.contains(address));
        let notation = address;
        let address = unwrap_embedded_ipv4(address);
        if is_denied(&notation) || is_denied(&address) {
            return Err(AddressRule::Denied);
        }
        let mut allowing = self.allow.iter().filter(|net| net.contains(&address));
        if let Some(metadata) = METADATA_NETWORKS.iter().find(|net| net.contains(&address)) {
            let is_narrow = |net: &IpNet| metadata.contains(net);
            return allowing.any(is_narrow).then_some(()).ok_or(AddressRule::Metadata);
        }
        match (allowing.next().is_some(), is_public(address)) {
            (true, _) => Ok(()),
            (false, true) if self.public => Ok(()),
            (false, true) => Err(AddressRule::Public),
            (false, false) => Err(AddressRule::NotPublic),
        }
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
        self.check_host(url.host_str().unwrap_or_default())
    }

    /// Checks a host if it is an address.
    pub fn check_host(&self, host: &str) -> Result<(), AddressNotAllowed> {
        let host = host.trim_matches(['[', ']']);
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
        let (mut good, mut refused) = (Vec::new(), None);
        for address in addresses {
            match now.1.check_address(address) {
                Ok(()) => good.push(address),
                Err(rule) => {
                    refused.get_or_insert((address, rule));
                }
            }
        }
        match refused {
            Some((address, rule)) if good.is_empty() => Err(AddressNotAllowed {
                host: host.to_owned(),
                address,
                rule,
            }),
            _ => Ok(good),
        }
    }

    /// Resolves a host to its allowed addresses.
    pub async fn resolve_host(
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
    use std::net::Ipv6Addr;

    use proptest::prelude::*;

    use super::*;

    fn grant(allow: &[&str]) -> NetworkGrant {
        NetworkGrant {
            allow: allow
                .iter()
                .map(|a| parse_network(a).expect("a network"))
                .collect(),
            ..NetworkGrant::default()
        }
    }

    fn permits(grant: &NetworkGrant, address: &str) -> bool {
        grant.permits(address.parse().expect("an address"))
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
            // Public by their numbers, and service addresses of clouds.
            "168.63.129.16",
            "::ffff:168.63.129.16",
            "192.0.0.192",
            "fd20:ce::254",
            "161.26.0.10",
            "166.8.0.1",
            "166.11.255.255",
        ] {
            assert!(!permits(&grant(&[]), address), "{address}");
        }
        for address in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "168.63.129.17",
            "161.27.0.1",
            "166.12.0.1",
            "2606:4700::1111",
            "64:ff9b::101:101",
            "::ffff:1.1.1.1",
        ] {
            assert!(permits(&grant(&[]), address), "{address}");
        }
    }

    #[test]
    fn grant_allows_networks_but_metadata_by_address_only() {
        let allows = |allow: &[&str], address: &str| permits(&grant(allow), address);
        assert!(allows(&["10.96.0.0/12"], "10.96.0.1") && !allows(&["10.96.0.0/12"], "10.0.0.1"));
        assert!(allows(&["127.0.0.1"], "::ffff:127.0.0.1") && allows(&["::1"], "::1"));
        for (wide, address) in [
            ("0.0.0.0/0", "169.254.169.254"),
            ("169.254.0.0/16", "::ffff:169.254.169.254"),
            ("fd00::/8", "fd00:ec2::254"),
            ("168.63.0.0/16", "168.63.129.16"),
            ("192.0.0.0/24", "192.0.0.192"),
            ("fd00::/8", "fd20:ce::254"),
            ("161.0.0.0/8", "161.26.0.10"),
            ("166.0.0.0/8", "166.9.1.1"),
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
        assert!(allows(&["166.8.0.0/14"], "166.9.1.1") && allows(&["166.9.0.0/16"], "166.9.1.1"));
        assert!(parse_network("10.0.0.0/33").is_err() && parse_network("localhost").is_err());
    }

    #[test]
    fn deny_prevails_over_allow_and_public() {
        let grant: NetworkGrant = serde_json::from_str(
            r#"{"allow": ["10.0.0.0/8", "::1"], "deny": ["10.1.0.0/16", "1.1.1.1", "2606::/16", "64:ff9b::/96"]}"#,
        )
        .expect("a grant");
        for (address, permitted) in [
            ("10.2.0.1", true),
            ("10.1.0.1", false),
            ("::ffff:10.1.0.1", false),
            ("1.1.1.1", false),
            ("1.1.1.2", true),
            ("2606:4700::1111", false),
            ("::1", true),
            // NAT64 of 8.8.8.8, denied by its own notation.
            ("64:ff9b::808:808", false),
            ("8.8.8.8", true),
        ] {
            assert_eq!(permits(&grant, address), permitted, "{address}");
        }
    }

    #[test]
    fn without_public_only_allowed_networks_are_permitted() {
        let grant: NetworkGrant =
            serde_json::from_str(r#"{"allow": ["10.0.0.0/8", "1.1.1.1"], "public": false}"#)
                .expect("a grant");
        for (address, permitted) in [
            ("10.2.0.1", true),
            ("1.1.1.1", true),
            ("1.1.1.2", false),
            ("192.168.0.1", false),
        ] {
            assert_eq!(permits(&grant, address), permitted, "{address}");
        }
        let network = NetworkPolicy::default();
        network.replace_grant(grant);
        let refused = network
            .check_url(&"http://1.1.1.2/".parse().expect("a URL"))
            .expect_err("refused");
        assert!(refused.to_string().contains("network.public"), "{refused}");
        assert!(NetworkGrant::default().public, "the default stays");
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
            let expected = grant(&[]).check_address(v4.into());
            let [a, b, c, d] = v4.octets();
            let (hi, lo) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            for v6 in [v4.to_ipv6_mapped(), Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, hi, lo), Ipv6Addr::new(0x2002, hi, lo, 0, 0, 0, 0, 1)] {
                prop_assert_eq!(grant(&[]).check_address(v6.into()), expected, "{}", v6);
            }
        }
    }
}
