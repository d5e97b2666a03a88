//! Rules for names: of objects, labels, finalizers and parts of kinds.

pub use ostler_schema::{is_dns_label, is_dns_subdomain};

/// Rule for a DNS subdomain (RFC 1123).
pub const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
/// Rule for a DNS label (RFC 1123).
pub const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
/// Rule for a DNS label that starts with a letter (RFC 1035).
pub const DNS_1035_RULE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
/// Rule for the value of a label.
pub const LABEL_VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
/// Rule for the key of a label or an annotation, and for a finalizer.
pub const QUALIFIED_NAME_RULE: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// The rule of names that are a segment of a path.
pub const PATH_SEGMENT_RULE: &str = "may not contain '/' or '%', and may not be '.' or '..'";

/// Returns true if a text can be a segment of a path.
pub fn is_path_segment(text: &str) -> bool {
    !text.contains(['/', '%']) && !matches!(text, "." | "..")
}

/// Returns true for a DNS label that starts with a letter (RFC 1035).
pub fn is_dns_1035_label(text: &str) -> bool {
    is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Returns true for the value of a label that is not empty.
pub fn is_label_value(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

/// Returns true for the key of a label or an annotation: a name, perhaps with a domain before it.
pub fn is_qualified_name(text: &str) -> bool {
    let (prefix, name) = text
        .split_once('/')
        .map_or((None, text), |(prefix, name)| (Some(prefix), name));
    name.len() <= 63 && is_label_value(name) && prefix.is_none_or(is_dns_subdomain)
}
