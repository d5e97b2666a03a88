//! Names as Go has them.

pub(super) fn pascal(name: &str) -> String {
    let parts = name.split('-').map(|part| {
        let mut letters = part.chars();
        letters.next().map_or(String::new(), |first| {
            first.to_uppercase().chain(letters).collect()
        })
    });
    parts.collect()
}

/// In camelCase; with an underscore, where Go has a word of its own.
pub(super) fn camel(name: &str) -> String {
    let name = pascal(name);
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
    fn names_are_those_of_go() {
        assert_eq!(pascal("object-ref"), "ObjectRef");
        assert_eq!(camel("path-and-query"), "pathAndQuery");
        assert_eq!(camel("type"), "type_");
    }
}
