//! Domain names in canonical form: lower case, without a dot at the end.

const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// A zone in canonical form.
#[must_use]
pub fn canonical_zone(zone: &str) -> String {
    zone.trim_end_matches('.').to_ascii_lowercase()
}

/// A name as DNS has it: labels of other scripts in their encoded form (RFC 3492), all in lower case. Providers show names as people
/// write them, though they are asked for the encoded ones.
#[must_use]
pub fn encode_name(name: &str) -> String {
    let encode_label = |label: &str| {
        let label = label.to_lowercase();
        match punycode::encode(&label) {
            Ok(encoded) if !label.is_ascii() => ["xn--", &encoded].concat(),
            _ => label,
        }
    };
    name.split('.').map(encode_label).collect::<Vec<_>>().join(".")
}

/// The full name of a record: `name` is relative to the zone, `@`, or already in full.
///
/// # Errors
/// The text of the problem with the name or the zone.
pub fn resolve_name(name: &str, zone: &str) -> Result<String, String> {
    let zone = canonical_zone(zone);
    check_name(&zone).map_err(|problem| format!("spec.zone {problem}"))?;
    let is_absolute = name.ends_with('.');
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let full = if name == "@" {
        zone.clone()
    } else if relative_name(&name, &zone).is_some() {
        name
    } else if is_absolute {
        return Err(format!("spec.name {name}. is not in the zone {zone}"));
    } else {
        format!("{name}.{zone}")
    };
    let labels = full.strip_prefix("*.").unwrap_or(&full);
    check_name(labels).map_err(|problem| format!("spec.name {problem}"))?;
    if full.len() > MAX_NAME_BYTES {
        return Err(format!(
            "spec.name {full} has more than {MAX_NAME_BYTES} characters"
        ));
    }
    Ok(full)
}

/// The part of a full name before the zone; empty for the zone itself, none outside of it.
#[must_use]
pub fn relative_name<'a>(full: &'a str, zone: &str) -> Option<&'a str> {
    if full == zone {
        return Some("");
    }
    full.strip_suffix(zone)?.strip_suffix('.')
}

/// Checks the labels of a name in canonical form.
///
/// # Errors
/// The text of the problem.
pub fn check_name(name: &str) -> Result<(), String> {
    if !name.is_ascii() {
        return Err(format!(
            "{name} is not ASCII: write internationalised labels in their encoded form (xn--…)"
        ));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(format!("{name} has more than {MAX_NAME_BYTES} characters"));
    }
    for label in name.split('.') {
        let is_known = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
        if label.is_empty() || label.len() > MAX_LABEL_BYTES {
            return Err(format!(
                "{name} has a label of {} characters, not 1 to {MAX_LABEL_BYTES}",
                label.len()
            ));
        }
        if !label.bytes().all(is_known) {
            return Err(format!(
                "{name} has other characters than letters, digits, - and _ in a label"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_resolved_in_their_zone() {
        for (name, full) in [
            ("@", "example.com"),
            ("example.com.", "example.com"),
            ("WWW", "www.example.com"),
            ("a.b", "a.b.example.com"),
            ("www.Example.com", "www.example.com"),
            ("www.example.com.", "www.example.com"),
            ("*", "*.example.com"),
            ("*.a", "*.a.example.com"),
            ("_sip._tcp", "_sip._tcp.example.com"),
            ("xn--bcher-kva", "xn--bcher-kva.example.com"),
        ] {
            assert_eq!(resolve_name(name, "Example.COM."), Ok(full.into()), "{name}");
        }
    }

    #[test]
    fn names_of_other_scripts_are_encoded_by_label() {
        for (name, encoded) in [
            ("Bücher.Example", "xn--bcher-kva.example"),
            ("münchen.de", "xn--mnchen-3ya.de"),
            ("www.例え.jp", "www.xn--r8jz45g.jp"),
            ("WWW.example.com.", "www.example.com."),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("*.example.com", "*.example.com"),
        ] {
            assert_eq!(encode_name(name), encoded);
        }
    }

    #[test]
    fn invalid_names_are_refused_with_their_problem() {
        let long = "a".repeat(64);
        let deep = vec!["a".repeat(60); 5].join(".");
        for (name, problem) in [
            ("www.example.org.", "not in the zone"),
            ("notexample.com.", "not in the zone"),
            ("bücher", "xn--"),
            ("a..b", "0 characters"),
            (&*long, "64 characters"),
            (&*deep, "more than 253"),
            ("a.*", "other characters"),
            ("a b", "other characters"),
            ("**", "other characters"),
        ] {
            let error = resolve_name(name, "example.com").expect_err(name);
            assert!(error.contains(problem), "{name}: {error}");
        }
        assert!(resolve_name("a", "").is_err());
    }
}
