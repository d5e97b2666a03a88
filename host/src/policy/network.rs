//! Which addresses upstreams may have: public ones, and what the administrator allows besides.
//!
//! It is the address that is looked at, at the moment of connecting, and the one that was looked at is connected
//! to: a name that first resolves to a public address and then to another is caught.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, RwLock},
    time::Duration,
};

use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use serde::{Deserialize, Deserializer, de::Error};
use tokio::net::TcpStream;

/// Addresses that give out the credentials of the machine: an entry for a whole network does not open them.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// What is allowed besides public addresses: the part `network` of a grants file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkGrant {
    /// Networks (`10.96.0.0/12`) and addresses (`127.0.0.1`).
    #[serde(default, deserialize_with = "networks")]
    pub allow: Vec<IpNet>,
}

/// A network in CIDR notation, or one address.
pub fn network(text: &str) -> Result<IpNet, String> {
    let parsed = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    parsed.map_err(|_| format!("`{text}` is no network: it is like 10.96.0.0/12, fd00::/8 or 127.0.0.1"))
}

fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts
        .iter()
        .map(|t| network(t).map_err(D::Error::custom))
        .collect()
}

/// An address that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAllowed {
    host: String,
    address: IpAddr,
}

impl fmt::Display for NotAllowed {
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

impl std::error::Error for NotAllowed {}

impl NetworkGrant {
    /// Whether this address may be connected to.
    pub fn permits(&self, address: IpAddr) -> bool {
        let address = plain(address);
        if METADATA.contains(&address) {
            return self.allow.contains(&IpNet::from(address));
        }
        public(address) || self.allow.iter().any(|net| net.contains(&address))
    }
}

/// The address that is meant: IPv4 within IPv6 is IPv4.
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let [a, b, c, ..] = v6.segments();
    let o = v6.octets();
    match (a, b) {
        // Translated (RFC 6052) and 6to4.
        (0x64, 0xff9b) if c == 0 => Ipv4Addr::new(o[12], o[13], o[14], o[15]).into(),
        (0x2002, _) => Ipv4Addr::new(o[2], o[3], o[4], o[5]).into(),
        _ => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
    }
}

/// Whether an address is meant to be reached from anywhere.
fn public(address: IpAddr) -> bool {
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
        // Only what is allotted; documentation and local use of translation are within.
        IpAddr::V6(v6) => {
            let [a, b, ..] = v6.segments();
            a & 0xe000 == 0x2000 && !(a == 0x2001 && (b == 0xdb8 || b < 0x200))
        }
    }
}

/// What a host allows now. Cheap to clone; all clones change together.
#[derive(Clone, Debug, Default)]
pub struct Network {
    now: Arc<RwLock<(u64, NetworkGrant)>>,
}

impl Network {
    /// From now on this is allowed. Gives whether that is something else.
    pub fn allow(&self, grant: NetworkGrant) -> bool {
        let mut now = self.now.write().expect("lock");
        let other = now.1 != grant;
        if other {
            *now = (now.0 + 1, grant);
        }
        other
    }

    /// Changes with what is allowed.
    pub fn version(&self) -> u64 {
        self.now.read().expect("lock").0
    }

    /// Checks the host of a URL where it is an address: nothing is resolved then.
    pub fn check(&self, url: &reqwest::Url) -> Result<(), NotAllowed> {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let Ok(address) = host.parse::<IpAddr>() else {
            return Ok(());
        };
        self.allowed(host, [address].into_iter()).map(drop)
    }

    fn allowed(
        &self,
        host: &str,
        addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<Vec<IpAddr>, NotAllowed> {
        let now = self.now.read().expect("lock");
        let (good, bad): (Vec<_>, Vec<_>) = addresses.partition(|a| now.1.permits(*a));
        match (bad.first(), good.is_empty()) {
            (Some(address), true) => Err(NotAllowed {
                host: host.to_owned(),
                address: *address,
            }),
            _ => Ok(good),
        }
    }

    /// The allowed addresses of a host.
    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, Box<dyn std::error::Error + Send + Sync>> {
        let found: Vec<_> = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => tokio::net::lookup_host((host, 0))
                .await?
                .map(|a| a.ip())
                .collect(),
        };
        Ok(self.allowed(host, found.into_iter())?)
    }

    /// Connects to a host as requests do.
    pub async fn connect(
        &self,
        host: &str,
        port: u16,
        patience: Duration,
    ) -> Result<TcpStream, Box<dyn std::error::Error + Send + Sync>> {
        let connecting = async {
            let addresses = self.resolve(host).await?;
            let addresses: Vec<_> = addresses.into_iter().map(|a| SocketAddr::new(a, port)).collect();
            Ok(TcpStream::connect(&*addresses).await?)
        };
        match tokio::time::timeout(patience, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(format!("no connection within {patience:?}").into()),
        }
    }
}

impl Resolve for Network {
    fn resolve(&self, name: Name) -> Resolving {
        let network = self.clone();
        Box::pin(async move {
            let addresses = Network::resolve(&network, name.as_str()).await?;
            // Port 0: the URL's, or its scheme's.
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
            allow: allow.iter().map(|a| network(a).expect("a network")).collect(),
        }
    }

    #[test]
    fn what_is_not_public_is_refused() {
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
    fn what_is_allowed_is_not_but_metadata_only_by_name() {
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
                &[wide, &plain(address.parse().expect("one")).to_string()],
                address
            ));
        }
        assert!(network("10.0.0.0/33").is_err() && network("localhost").is_err());
    }

    #[test]
    fn an_address_however_it_is_written() {
        let network = Network::default();
        for url in [
            "http://127.1/",
            "http://0x7f000001/",
            "http://2130706433/",
            "http://[::ffff:a00:1]/",
            "http://0/",
        ] {
            let error = network
                .check(&url.parse().expect("a URL"))
                .expect_err(url)
                .to_string();
            assert!(error.contains("network.allow"), "{error}");
        }
        assert!(network.allow(grant(&["127.0.0.0/8"])) && !network.allow(grant(&["127.0.0.0/8"])));
        assert_eq!(network.check(&"http://127.1/".parse().expect("a URL")), Ok(()));
    }

    #[tokio::test]
    async fn a_name_is_as_its_addresses_are() {
        let network = Network::default();
        let refused = network
            .connect("localhost", 1, Duration::from_secs(5))
            .await
            .expect_err("refused");
        assert!(refused.downcast_ref::<NotAllowed>().is_some(), "{refused}");
    }

    proptest! {
        /// However it is wrapped, IPv4 is judged as IPv4.
        #[test]
        fn wrapped_is_plain(bits: u32) {
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
