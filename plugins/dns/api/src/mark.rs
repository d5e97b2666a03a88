//! Marks: TXT records that name the owner of other records, in the format of external-dns's registry.
//!
//! The mark of `app.example.com` A is `_ostler-a.app.example.com`. It is below the name and not beside it, so that it is in
//! the zone also for the zone's own name, may stand below a CNAME (which allows no other records at its own name), and
//! leaves the label its 63 characters.

use ostler_sdk::api;

use crate::RecordType;

/// First label of a mark's name, before the type.
const MARK_PREFIX: &str = "_ostler-";
/// Label in place of `*`, which has its meaning as first label only.
const WILDCARD_LABEL: &str = "_wildcard";
const MAX_NAME_BYTES: usize = 253;

/// A TXT record that names the owner of records.
#[api]
#[derive(Default, Eq)]
pub struct Mark {
    /// Name of the TXT record.
    pub fqdn: String,
    /// Its text.
    pub text: String,
}

impl Mark {
    /// The mark of the records of a name and type, which belong to a DnsRecord of an owner.
    ///
    /// # Errors
    /// The text of the problem with the name.
    pub fn new(
        fqdn: &str,
        kind: RecordType,
        owner: &str,
        (namespace, name): (&str, &str),
    ) -> Result<Self, String> {
        if fqdn.starts_with(MARK_PREFIX) {
            return Err(format!("{fqdn} is reserved for marks"));
        }
        let parent = match fqdn.strip_prefix("*.") {
            Some(rest) => format!("{WILDCARD_LABEL}.{rest}"),
            None => fqdn.to_owned(),
        };
        let fqdn = format!("{MARK_PREFIX}{}.{parent}", kind.as_str().to_ascii_lowercase());
        if fqdn.len() > MAX_NAME_BYTES {
            return Err(format!(
                "the name of its mark, {fqdn}, has more than {MAX_NAME_BYTES} characters"
            ));
        }
        Ok(Self {
            fqdn,
            text: format!(
                "heritage=ostler,ostler/owner={owner},ostler/resource=dnsrecord/{namespace}/{name}"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_stand_below_their_names() {
        let mark = |fqdn, kind| Mark::new(fqdn, kind, "prod", ("apps", "web")).expect("a mark");
        let web = mark("app.example.com", RecordType::AAAA);
        assert_eq!(web.fqdn, "_ostler-aaaa.app.example.com");
        assert_eq!(
            web.text,
            "heritage=ostler,ostler/owner=prod,ostler/resource=dnsrecord/apps/web"
        );
        assert_eq!(mark("example.com", RecordType::A).fqdn, "_ostler-a.example.com");
        assert_eq!(
            mark("*.example.com", RecordType::TXT).fqdn,
            "_ostler-txt._wildcard.example.com"
        );
    }

    #[test]
    fn names_without_room_for_a_mark_are_refused() {
        let long = format!("{}.example.com", vec!["a".repeat(59); 4].join("."));
        for fqdn in [&*long, "_ostler-a.example.com"] {
            assert!(Mark::new(fqdn, RecordType::A, "o", ("n", "r")).is_err(), "{fqdn}");
        }
    }
}
