//! Validation of Services, Ingresses, NetworkPolicies and EndpointSlices.

use std::net::IpAddr;

use ostler_schema::FieldError;
use serde_json::Value;

use crate::checks::{check_port, check_port_number, check_supported, text};
use crate::metadata::{validate_label_selector, validate_labels};
use crate::names::{LABEL_RULE, SUBDOMAIN_RULE, is_dns_label, is_dns_subdomain};
use crate::service::validate_external;

/// Rule for an address.
const ADDRESS_RULE: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
/// Rule for a network.
const NETWORK_RULE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
/// Parts that a path of an Ingress must not contain.
const INVALID_PATH_PARTS: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
/// Ends that a path of an Ingress must not have.
const INVALID_PATH_ENDS: [&str; 2] = ["/..", "/."];

fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    value[field].as_array().into_iter().flatten().enumerate()
}

/// Validates a Service.
pub fn validate_service(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &object["spec"];
    // Addresses are allocated before anything else is looked at.
    let first = text(spec, "clusterIP");
    if spec["type"] != "ExternalName" && !matches!(first, "" | "None") && first.parse::<IpAddr>().is_err() {
        return vec![FieldError::invalid(
            "spec.clusterIPs[0]",
            &first.into(),
            ADDRESS_RULE,
        )];
    }
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_external = spec["type"] == "ExternalName";
    if ports.is_empty() && spec["clusterIP"] != "None" && !is_external {
        errors.push(FieldError::required("spec.ports", ""));
    }
    let mut names = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{index}]");
        let name = text(port, "name");
        if name.is_empty() && ports.len() > 1 {
            errors.push(FieldError::required(&format!("{field}.name"), ""));
        } else if !name.is_empty() && !is_dns_label(name) {
            errors.push(FieldError::invalid(
                &format!("{field}.name"),
                &name.into(),
                LABEL_RULE,
            ));
        }
        if !name.is_empty() && names.contains(&name) {
            errors.push(FieldError::duplicate(&format!("{field}.name"), &name.into()));
        }
        names.push(name);
        errors.extend(check_port_number(&port["port"], &format!("{field}.port")));
        errors.extend(check_supported(
            &port["protocol"],
            &format!("{field}.protocol"),
            ["SCTP", "TCP", "UDP"],
        ));
        errors.extend(check_port(&port["targetPort"], &format!("{field}.targetPort")));
    }
    validate_labels(&spec["selector"], "spec.selector", &mut errors);
    errors.extend(check_supported(
        &spec["type"],
        "spec.type",
        ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
    ));
    let numbers = |port: &Value| (port["port"].clone(), port["protocol"].clone());
    for (index, port) in ports.iter().enumerate() {
        if ports[..index].iter().any(|other| numbers(other) == numbers(port)) {
            errors.push(FieldError::duplicate(&format!("spec.ports[{index}]"), port));
        }
    }
    if is_external {
        errors.extend(validate_external(spec));
        let name = text(spec, "externalName");
        if name.is_empty() {
            errors.push(FieldError::required("spec.externalName", ""));
        } else if !is_dns_subdomain(name.strip_suffix('.').unwrap_or(name)) {
            errors.push(FieldError::invalid(
                "spec.externalName",
                &name.into(),
                SUBDOMAIN_RULE,
            ));
        }
    }
    errors
}

/// Checks an address of an endpoint, which is of the kind of its slice and reachable from other machines.
fn check_endpoint_address(kind: &str, address: &Value, field: &str, index: usize) -> Vec<FieldError> {
    let at = format!("{field}[{index}]");
    let text = address.as_str().unwrap_or_default();
    if !matches!(kind, "IPv4" | "IPv6") {
        return Vec::new();
    }
    let Ok(parsed) = text.parse::<IpAddr>() else {
        return vec![FieldError::invalid(&at, address, ADDRESS_RULE)];
    };
    let mut errors = Vec::new();
    if parsed.is_ipv4() != (kind == "IPv4") {
        let rule = format!("must be an {kind} address");
        errors.push(FieldError::invalid(field, address, rule));
    }
    let (is_link_local, is_local_multicast) = match parsed {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets().starts_with(&[224, 0, 0])),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02),
    };
    let rules = [
        (parsed.is_unspecified(), "may not be unspecified"),
        (
            parsed.is_loopback(),
            "may not be in the loopback range (127.0.0.0/8, ::1/128)",
        ),
        (
            is_link_local,
            "may not be in the link-local range (169.254.0.0/16, fe80::/10)",
        ),
        (
            is_local_multicast,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        ),
    ];
    let broken = rules.into_iter().filter(|(is_broken, _)| *is_broken);
    errors.extend(broken.map(|(_, rule)| FieldError::invalid(&at, address, rule)));
    errors
}

/// Validates an EndpointSlice.
pub fn validate_endpoints(slice: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let kind = text(slice, "addressType");
    if kind.is_empty() {
        errors.push(FieldError::required("addressType", ""));
    } else {
        errors.extend(check_supported(
            &slice["addressType"],
            "addressType",
            ["FQDN", "IPv4", "IPv6"],
        ));
    }
    for (index, endpoint) in items(slice, "endpoints") {
        let field = format!("endpoints[{index}].addresses");
        if endpoint["addresses"].as_array().is_none_or(Vec::is_empty) {
            errors.push(FieldError::required(&field, "must contain at least 1 address"));
        }
        for (index, address) in items(endpoint, "addresses") {
            errors.extend(check_endpoint_address(kind, address, &field, index));
        }
    }
    let mut names = Vec::new();
    for (index, port) in items(slice, "ports") {
        let field = format!("ports[{index}].name");
        let name = text(port, "name");
        if !name.is_empty() && !is_dns_label(name) {
            errors.push(FieldError::invalid(&field, &name.into(), LABEL_RULE));
        }
        if names.contains(&name) {
            errors.push(FieldError::duplicate(&field, &name.into()));
        }
        names.push(name);
    }
    errors
}

/// Validates a NetworkPolicy.
pub fn validate_network_policy(policy: &Value) -> Vec<FieldError> {
    let spec = &policy["spec"];
    let mut errors = validate_label_selector(&spec["podSelector"], "spec.podSelector");
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in items(spec, direction) {
            let at = format!("spec.{direction}[{index}]");
            for (index, port) in items(rule, "ports") {
                let at = format!("{at}.ports[{index}]");
                errors.extend(check_supported(
                    &port["protocol"],
                    &format!("{at}.protocol"),
                    ["TCP", "UDP", "SCTP"],
                ));
                if !port["port"].is_null() {
                    errors.extend(check_port(&port["port"], &format!("{at}.port")));
                }
            }
            for (index, peer) in items(rule, peers) {
                check_peer(peer, &format!("{at}.{peers}[{index}]"), &mut errors);
            }
        }
    }
    if items(spec, "policyTypes").count() > 2 {
        let rule = "may not specify more than two policyTypes";
        errors.push(FieldError::invalid(
            "spec.policyTypes",
            &spec["policyTypes"],
            rule,
        ));
        return errors;
    }
    for (index, kind) in items(spec, "policyTypes") {
        errors.extend(check_supported(
            kind,
            &format!("spec.policyTypes[{index}]"),
            ["Egress", "Ingress"],
        ));
    }
    errors
}

fn check_peer(peer: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let mut selectors = 0;
    for selector in ["podSelector", "namespaceSelector"] {
        if peer[selector].is_object() {
            selectors += 1;
            errors.extend(validate_label_selector(
                &peer[selector],
                &format!("{at}.{selector}"),
            ));
        }
    }
    let block = &peer["ipBlock"];
    if block.is_object() {
        check_address_block(block, &format!("{at}.ipBlock"), errors);
    }
    if selectors == 0 && !block.is_object() {
        errors.push(FieldError::required(at, "must specify a peer"));
    } else if selectors > 0 && block.is_object() {
        errors.push(FieldError::forbidden(
            at,
            "may not specify both ipBlock and another peer",
        ));
    }
}

fn check_address_block(block: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let network = text(block, "cidr");
    if network.is_empty() {
        return errors.push(FieldError::required(&format!("{at}.cidr"), ""));
    }
    let Some(outer) = Network::parse(network) else {
        return errors.push(FieldError::invalid(
            &format!("{at}.cidr"),
            &network.into(),
            NETWORK_RULE,
        ));
    };
    for (index, except) in items(block, "except") {
        let rule = match except.as_str().and_then(Network::parse) {
            None => NETWORK_RULE,
            Some(inner) if !outer.contains_strictly(&inner) => "must be a strict subset of `cidr`",
            Some(_) => continue,
        };
        errors.push(FieldError::invalid(
            &format!("{at}.except[{index}]"),
            except,
            rule,
        ));
    }
}

/// A network in the notation of CIDR.
struct Network {
    /// The address, with that of IPv4 in the lowest bits.
    address: u128,
    /// Bits of an address of its family.
    width: u32,
    /// Bits of the address that belong to the network.
    prefix: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let (address, width) = match address.parse().ok()? {
            IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
            IpAddr::V6(address) => (u128::from(address), 128),
        };
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= width)?;
        Some(Self {
            address,
            width,
            prefix,
        })
    }

    fn contains_strictly(&self, other: &Self) -> bool {
        let shift = self.width - self.prefix;
        let network = |address: u128| address.checked_shr(shift).unwrap_or(0);
        self.width == other.width
            && self.prefix < other.prefix
            && network(self.address) == network(other.address)
    }
}

/// Validates an Ingress.
pub fn validate_ingress(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &object["spec"];
    let default = &spec["defaultBackend"];
    if items(spec, "rules").next().is_none() && !default.is_object() {
        let rule = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid("spec", &spec["rules"], rule));
    }
    if default.is_object() {
        check_backend(default, "spec.defaultBackend", &mut errors);
    }
    for (index, rule) in items(spec, "rules") {
        let at = format!("spec.rules[{index}]");
        check_host(text(rule, "host"), &format!("{at}.host"), &mut errors);
        let http = &rule["http"];
        if http.is_object() && items(http, "paths").next().is_none() {
            errors.push(FieldError::required(&format!("{at}.http.paths"), ""));
        }
        for (index, path) in items(http, "paths") {
            check_path(path, &format!("{at}.http.paths[{index}]"), &mut errors);
        }
    }
    for (index, tls) in items(spec, "tls") {
        let at = format!("spec.tls[{index}]");
        for (index, host) in items(tls, "hosts") {
            check_name(
                host.as_str().unwrap_or_default(),
                &format!("{at}.hosts[{index}]"),
                &mut errors,
            );
        }
        let name = text(tls, "secretName");
        if !name.is_empty() && !is_dns_subdomain(name) {
            errors.push(FieldError::invalid(
                &format!("{at}.secretName"),
                &name.into(),
                SUBDOMAIN_RULE,
            ));
        }
    }
    if let Some(class) = spec["ingressClassName"]
        .as_str()
        .filter(|class| !is_dns_subdomain(class))
    {
        errors.push(FieldError::invalid(
            "spec.ingressClassName",
            &class.into(),
            SUBDOMAIN_RULE,
        ));
    }
    errors
}

fn check_host(host: &str, field: &str, errors: &mut Vec<FieldError>) {
    if host.is_empty() {
        return;
    }
    if host.parse::<IpAddr>().is_ok() {
        let rule = "must be a DNS name, not an IP address";
        errors.push(FieldError::invalid(field, &host.into(), rule));
    }
    check_name(host, field, errors);
}

/// Checks a DNS name that may begin with a wildcard.
fn check_name(host: &str, field: &str, errors: &mut Vec<FieldError>) {
    let mut refuse = |rule: &str| errors.push(FieldError::invalid(field, &host.into(), rule));
    if host.contains('*') {
        if !host.strip_prefix("*.").is_some_and(is_dns_subdomain) {
            refuse(
                "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            );
        }
    } else if !is_dns_subdomain(host) {
        refuse(SUBDOMAIN_RULE);
    }
}

fn check_path(path: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let (given, kind) = (text(path, "path"), text(path, "pathType"));
    let field = format!("{at}.path");
    let mut refuse = |rule: &str| errors.push(FieldError::invalid(&field, &given.into(), rule));
    match kind {
        "" => {
            let why = "pathType must be specified";
            return errors.push(FieldError::required(&format!("{at}.pathType"), why));
        }
        "Exact" | "Prefix" => {
            if !given.starts_with('/') {
                refuse("must be an absolute path");
            }
            for part in INVALID_PATH_PARTS.into_iter().filter(|part| given.contains(part)) {
                refuse(&format!("must not contain '{part}'"));
            }
            for end in INVALID_PATH_ENDS.into_iter().filter(|end| given.ends_with(end)) {
                refuse(&format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" => {
            if !given.is_empty() && !given.starts_with('/') {
                refuse("must be an absolute path");
            }
        }
        _ => {
            let supported = ["Exact", "ImplementationSpecific", "Prefix"];
            errors.extend(check_supported(
                &path["pathType"],
                &format!("{at}.pathType"),
                supported,
            ));
        }
    }
    check_backend(&path["backend"], &format!("{at}.backend"), errors);
}

fn check_backend(backend: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let (service, resource) = (&backend["service"], &backend["resource"]);
    let mut refuse = |rule: &str| errors.push(FieldError::invalid(at, &"".into(), rule));
    match (service.is_object(), resource.is_object()) {
        (true, true) => return refuse("cannot set both resource and service backends"),
        (false, false) => return refuse("resource or service backend is required"),
        (false, true) => {
            for field in ["kind", "name"] {
                if text(resource, field).is_empty() {
                    errors.push(FieldError::required(&format!("{at}.resource.{field}"), ""));
                }
            }
            return;
        }
        (true, false) => {}
    }
    let name = text(service, "name");
    if name.is_empty() {
        errors.push(FieldError::required(&format!("{at}.service.name"), ""));
    } else if !is_dns_label(name) {
        errors.push(FieldError::invalid(
            &format!("{at}.service.name"),
            &name.into(),
            LABEL_RULE,
        ));
    }
    let (port_name, port_number) = (&service["port"]["name"], &service["port"]["number"]);
    let has_name = port_name.as_str().is_some_and(|name| !name.is_empty());
    let has_number = port_number.as_i64().is_some_and(|number| number != 0);
    match (has_name, has_number) {
        (true, true) => errors.push(FieldError::invalid(
            at,
            &"".into(),
            "cannot set both port name & port number",
        )),
        (true, false) => errors.extend(check_port(port_name, &format!("{at}.service.port.name"))),
        (false, true) => errors.extend(check_port_number(
            port_number,
            &format!("{at}.service.port.number"),
        )),
        (false, false) => errors.push(FieldError::required(at, "port name or number is required")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(errors: Vec<FieldError>) -> Vec<String> {
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn ingress_without_a_usable_backend_is_refused() {
        let backend = json!({"service": {"name": "a", "port": {"number": 80}}});
        let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
        for (spec, wrong) in [
            (
                json!({"rules": [{"host": "a.example", "http": {"paths": [path]}}]}),
                &[][..],
            ),
            (json!({"defaultBackend": backend}), &[]),
            (json!({}), &["spec"]),
            (json!({"defaultBackend": {}}), &["spec.defaultBackend"]),
            (
                json!({"defaultBackend": {"service": {"name": "a"}}}),
                &["spec.defaultBackend"],
            ),
            (
                json!({"rules": [{"host": "10.0.0.1"}, {"host": "*.example"}]}),
                &["spec.rules[0].host"],
            ),
            (
                json!({"rules": [{"http": {"paths": []}}]}),
                &["spec.rules[0].http.paths"],
            ),
            (
                json!({"rules": [{"http": {"paths": [{"path": "a", "pathType": "Exact", "backend": backend}]}}]}),
                &["spec.rules[0].http.paths[0].path"],
            ),
        ] {
            let text = spec.to_string();
            assert_eq!(fields(validate_ingress(&json!({"spec": spec}))), wrong, "{text}");
        }
    }

    #[test]
    fn network_policy_excepts_parts_of_its_network_only() {
        for (block, wrong) in [
            (json!({"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}), &[][..]),
            (
                json!({"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16", "10.0.0.0/8", "a"]}),
                &[
                    "spec.egress[0].to[0].ipBlock.except[0]",
                    "spec.egress[0].to[0].ipBlock.except[1]",
                    "spec.egress[0].to[0].ipBlock.except[2]",
                ],
            ),
            (json!({"cidr": "2001:db8::/33", "except": ["2001:db8::/64"]}), &[]),
            (json!({}), &["spec.egress[0].to[0].ipBlock.cidr"]),
        ] {
            let text = block.to_string();
            let policy = json!({"spec": {"egress": [{"to": [{"ipBlock": block}]}]}});
            assert_eq!(fields(validate_network_policy(&policy)), wrong, "{text}");
        }
    }
}
