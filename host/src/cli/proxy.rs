//! The proxy between the host and the API server.

use std::net::IpAddr;

use anyhow::Context;
use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::Kubeconfig;

use crate::kube::well_known::environment;

/// The `proxy-url` of the cluster of a context, the current one by default.
pub fn find_configured_proxy<'a>(config: &'a Kubeconfig, context: Option<&str>) -> Option<&'a str> {
    let context = context.or(config.current_context.as_deref())?;
    let context = config.contexts.iter().find(|c| c.name == context)?;
    let name = &context.context.as_ref()?.cluster;
    let cluster = config.clusters.iter().find(|c| c.name == *name)?;
    cluster
        .cluster
        .as_ref()?
        .proxy_url
        .as_deref()
        .filter(|url| !url.is_empty())
}

/// Chooses the proxy for a server: that of the kubeconfig, or else that of the environment, as kubectl does. A server on the
/// loopback interface, and one that `NO_PROXY` matches, is connected to directly. Not left to kube-client 5.0, which compares
/// `NO_PROXY` with the address of the proxy.
pub fn choose_proxy(
    configured: Option<&str>,
    server: &Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Option<Uri>> {
    if let Some(url) = configured {
        return parse_proxy(url).context("proxy-url of the kubeconfig").map(Some);
    }
    let read = |names: [&'static str; 2]| {
        let found = names.map(|name| {
            variable(name)
                .filter(|value| !value.is_empty())
                .map(|value| (name, value))
        });
        found.into_iter().flatten().next()
    };
    let Some((name, url)) = read([environment::HTTPS_PROXY, "https_proxy"]) else {
        return Ok(None);
    };
    let exempt = read([environment::NO_PROXY, "no_proxy"])
        .map(|(_, hosts)| hosts)
        .unwrap_or_default();
    // The matcher ignores proxies it can't parse, so it gets a valid one and only compares the exemptions.
    let matcher = Matcher::builder().https("http://proxy").no(exempt).build();
    if server.scheme_str() != Some("https") || is_loopback(server) || matcher.intercept(server).is_none() {
        return Ok(None);
    }
    parse_proxy(&url).with_context(|| format!("${name}")).map(Some)
}

/// Parses the URL of a proxy, which is an HTTP proxy if it has no scheme. The error does not quote it: it may have a password.
fn parse_proxy(url: &str) -> anyhow::Result<Uri> {
    let with_scheme = match url.contains("://") {
        true => url.to_owned(),
        false => format!("http://{url}"),
    };
    let uri: Uri = with_scheme.parse().context("it is no URL")?;
    anyhow::ensure!(
        matches!(uri.scheme_str(), Some("http" | "https" | "socks5")),
        "its scheme is none of http, https and socks5"
    );
    Ok(uri)
}

fn is_loopback(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(configured: Option<&str>, server: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        choose_proxy(configured, &server.parse().expect("a URL"), variable)
            .map(|proxy| proxy.map(|uri| uri.to_string()).unwrap_or_default())
            .map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn environment_proxy_is_used_unless_no_proxy_matches_the_server() {
        let (server, proxy) = (
            "https://api.cluster.example:6443",
            ("HTTPS_PROXY", "http://proxy.example:3128"),
        );
        assert_eq!(choose(None, server, &[]), Ok("".into()));
        for variables in [
            vec![proxy],
            vec![("https_proxy", proxy.1)],
            vec![("HTTPS_PROXY", "proxy.example:3128")],
            // The address of the proxy itself is not what NO_PROXY is about.
            vec![proxy, ("NO_PROXY", "proxy.example")],
            vec![proxy, ("NO_PROXY", "other.example,10.0.0.0/8")],
        ] {
            assert_eq!(
                choose(None, server, &variables),
                Ok("http://proxy.example:3128/".into()),
                "{variables:?}"
            );
        }
        for exempt in [
            "api.cluster.example",
            ".cluster.example",
            "cluster.example",
            "*",
            "x, api.cluster.example",
        ] {
            assert_eq!(
                choose(None, server, &[proxy, ("NO_PROXY", exempt)]),
                Ok("".into()),
                "{exempt}"
            );
        }
        assert_eq!(
            choose(None, "https://10.96.0.1", &[proxy, ("no_proxy", "10.96.0.0/12")]),
            Ok("".into())
        );
        for local in [
            "https://127.0.0.1:6443",
            "https://[::1]:6443",
            "https://localhost",
            "http://api.example",
        ] {
            assert_eq!(choose(None, local, &[proxy]), Ok("".into()), "{local}");
        }
    }

    #[test]
    fn proxy_of_kubeconfig_prevails_over_environment() {
        let variables = [("HTTPS_PROXY", "http://other.example"), ("NO_PROXY", "*")];
        assert_eq!(
            choose(
                Some("socks5://proxy.example:1080"),
                "https://127.0.0.1",
                &variables
            ),
            Ok("socks5://proxy.example:1080/".into())
        );
    }

    #[test]
    fn malformed_proxy_is_an_error_without_its_password() {
        for url in [
            "ftp://user:pass-word@proxy.example",
            "http://user:pass-word@exa mple",
        ] {
            let why = choose(None, "https://api.example", &[("HTTPS_PROXY", url)]).expect_err(url);
            assert!(
                why.contains("$HTTPS_PROXY") && !why.contains("pass-word"),
                "{why}"
            );
        }
    }
}
