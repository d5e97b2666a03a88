//! Kubeconfigs of other clusters. Their author need not be the host's administrator, so they may name neither programs nor
//! files of the host, and no way around its network policy.

use kube::config::{AuthInfo, Kubeconfig, KubeconfigError};

/// The error of a server that no client could connect to.
const INVALID_SERVER: &str = "clusters[].cluster.server is no URL with the scheme https or http";

/// Parses a kubeconfig into the configuration of its current context. The error has neither the text nor a value of it,
/// which may be a credential.
pub fn parse_kubeconfig(text: &[u8]) -> Result<kube::Config, String> {
    let text = std::str::from_utf8(text).map_err(|_| "is no text".to_owned())?;
    let kubeconfig = Kubeconfig::from_yaml(text).map_err(|_| "is no kubeconfig".to_owned())?;
    check_sources(&kubeconfig)?;
    let mut config = kube::Config::try_from(kubeconfig).map_err(|e| match e {
        KubeconfigError::ParseClusterUrl(_) => INVALID_SERVER.to_owned(),
        e => e.to_string(),
    })?;
    // Otherwise the host's own environment names one.
    config.proxy_url = None;
    match config.cluster_url.scheme_str() {
        Some("https" | "http") if config.cluster_url.host().is_some() => Ok(config),
        _ => Err(INVALID_SERVER.into()),
    }
}

/// Checks that everything is in the kubeconfig itself, in contexts that are not used as well.
fn check_sources(kubeconfig: &Kubeconfig) -> Result<(), String> {
    let clusters = kubeconfig.clusters.iter().filter_map(|c| c.cluster.as_ref());
    for cluster in clusters {
        let forbidden = [
            (
                "certificate-authority",
                "use certificate-authority-data",
                cluster.certificate_authority.is_some(),
            ),
            ("proxy-url", "connections are direct", cluster.proxy_url.is_some()),
        ];
        check_fields("clusters[].cluster", &forbidden)?;
    }
    let users = kubeconfig.auth_infos.iter().filter_map(|u| u.auth_info.as_ref());
    for user in users {
        check_fields("users[].user", &forbidden_user_fields(user))?;
    }
    Ok(())
}

/// The fields of a user that are refused, with the remedy, and whether they are set.
fn forbidden_user_fields(user: &AuthInfo) -> [(&'static str, &'static str, bool); 9] {
    let program = "use a token or a client certificate: the host runs no programs";
    let impersonation = "use spec.impersonation of the Cluster";
    [
        ("exec", program, user.exec.is_some()),
        ("auth-provider", program, user.auth_provider.is_some()),
        ("tokenFile", "use token", user.token_file.is_some()),
        (
            "client-certificate",
            "use client-certificate-data",
            user.client_certificate.is_some(),
        ),
        ("client-key", "use client-key-data", user.client_key.is_some()),
        ("as", impersonation, user.impersonate.is_some()),
        ("as-uid", impersonation, user.impersonate_uid.is_some()),
        ("as-groups", impersonation, user.impersonate_groups.is_some()),
        (
            "as-user-extra",
            impersonation,
            user.impersonate_user_extra.is_some(),
        ),
    ]
}

fn check_fields(place: &str, forbidden: &[(&str, &str, bool)]) -> Result<(), String> {
    match forbidden.iter().find(|(_, _, is_set)| *is_set) {
        Some((field, remedy, _)) => Err(format!("{place}.{field} is not allowed: {remedy}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    #[test]
    fn kubeconfig_with_embedded_credentials_is_parsed() {
        let text = kubeconfig("server: 'https://east.example.com:6443'", "token: hunter2");
        let config = parse_kubeconfig(text.as_bytes()).expect("valid");
        assert_eq!(config.cluster_url.host(), Some("east.example.com"));
        assert!(config.auth_info.token.is_some() && config.proxy_url.is_none());
    }

    #[test]
    fn kubeconfig_that_reaches_for_the_host_is_refused() {
        let server = "server: 'https://a'";
        for (cluster, user, field) in [
            (server, "exec: {command: sh, apiVersion: v1}", "users[].user.exec"),
            (server, "auth-provider: {name: gcp}", "users[].user.auth-provider"),
            (server, "tokenFile: /var/run/token", "users[].user.tokenFile"),
            (
                server,
                "client-certificate: /c.pem",
                "users[].user.client-certificate",
            ),
            (server, "client-key: /k.pem", "users[].user.client-key"),
            (server, "token: t, as: admin", "users[].user.as"),
            (
                server,
                "token: t, as-groups: ['system:masters']",
                "users[].user.as-groups",
            ),
            (
                "server: 'https://a', certificate-authority: /ca.pem",
                "token: t",
                "clusters[].cluster.certificate-authority",
            ),
            (
                "server: 'https://a', proxy-url: 'http://p'",
                "token: t",
                "clusters[].cluster.proxy-url",
            ),
            (
                "server: 'unix:///run/api'",
                "token: t",
                "clusters[].cluster.server",
            ),
        ] {
            let text = kubeconfig(cluster, user);
            let why = parse_kubeconfig(text.as_bytes()).expect_err(field);
            assert!(why.starts_with(field), "{why}");
        }
        // A context that is not current is as forbidden: it could become so.
        let unused = kubeconfig(server, "token: t").replace(
            "users: [",
            "users: [{name: other, user: {exec: {command: sh, apiVersion: v1}}}, ",
        );
        assert!(parse_kubeconfig(unused.as_bytes()).is_err());
    }

    #[test]
    fn error_does_not_quote_the_kubeconfig() {
        for text in [
            "token: [hunter2",
            "hunter2",
            "users: hunter2",
            "current-context: c\nusers: [{name: u, user: {token: [hunter2]}}]",
        ] {
            let why = parse_kubeconfig(text.as_bytes()).expect_err("invalid");
            assert!(!why.contains("hunter2"), "{why}");
        }
    }
}
