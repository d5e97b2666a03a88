//! Go names of WIT identifiers.

pub(super) fn to_pascal_case(name: &str) -> String {
    let parts = name.split('-').map(|part| {
        let mut letters = part.chars();
        letters.next().map_or(String::new(), |first| {
            first.to_uppercase().chain(letters).collect()
        })
    });
    parts.collect()
}

/// Converts a name to camelCase. A keyword of Go, or a variable of the generated code, gets an underscore.
pub(super) fn to_camel_case(name: &str) -> String {
    let name = to_pascal_case(name);
    let mut letters = name.chars();
    let first = letters.next().map(|c| c.to_ascii_lowercase());
    let name: String = first.into_iter().chain(letters).collect();
    match name.as_str() {
        "type" | "range" | "select" | "func" | "map" | "p" | "r" | "answer" => name + "_",
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kebab_case_becomes_go_names() {
        assert_eq!(to_pascal_case("object-ref"), "ObjectRef");
        assert_eq!(to_camel_case("path-and-query"), "pathAndQuery");
        assert_eq!(to_camel_case("type"), "type_");
    }
}
