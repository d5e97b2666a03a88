//! Core modules to components.

use anyhow::{Result, bail};
use wasm_encoder::{CustomSection, Encode, Section};
use wasmparser::{Parser, Payload};
use wit_component::ComponentEncoder;

/// Makes a component of a core module that carries its world (wit-bindgen puts it there).
///
/// # Errors
/// When it is no module, or has no world.
pub fn encode(module: &[u8]) -> Result<Vec<u8>> {
    ComponentEncoder::default()
        .validate(true)
        .module(module)?
        .encode()
}

/// The names of what a component imports.
///
/// # Errors
/// When it is no component.
pub fn imports(component: &[u8]) -> Result<Vec<String>> {
    let mut imports = Vec::new();
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(component) {
        match payload? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            // The outermost ends last.
            Payload::End(_) if depth > 0 => depth -= 1,
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    imports.push(import?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(imports)
}

/// An error when it imports WASI: then its import list is not the list of what it can do.
///
/// # Errors
/// The import, or what is broken.
pub fn without_wasi(component: &[u8]) -> Result<()> {
    match imports(component)?.iter().find(|i| i.starts_with("wasi:")) {
        Some(wasi) => bail!("it imports {wasi}: plugins of this language use the host's capabilities only"),
        None => Ok(()),
    }
}

/// Adds a custom section at the component's top level.
pub fn append_section(component: &mut Vec<u8>, name: &str, data: &[u8]) {
    let section = CustomSection {
        name: name.into(),
        data: data.into(),
    };
    component.push(section.id());
    section.encode(component);
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

    #[test]
    fn what_is_no_module_makes_no_component() {
        assert!(encode(b"not wasm").is_err());
        assert!(encode(b"\0asm\x01\0\0\0truncated").is_err());
    }

    #[test]
    fn wasi_is_refused_by_name() {
        without_wasi(EMPTY).unwrap();
        // (component (type (instance)) (import "wasi:a/b" (instance (type 0))))
        let types = [7, 3, 1, 0x42, 0];
        let wasi = [EMPTY, &types, &[10, 13, 1, 0, 8], b"wasi:a/b", &[5, 0]].concat();
        let said = without_wasi(&wasi).unwrap_err().to_string();
        assert!(said.contains("it imports wasi:a/b"), "{said}");
    }

    #[test]
    fn a_section_is_found_again() {
        let mut component = EMPTY.to_vec();
        // Longer than one byte of length says.
        let data = vec![b'x'; 300];
        append_section(&mut component, "ostler:manifest", &data);
        wasmparser::Validator::new().validate_all(&component).unwrap();
        let found = Parser::new(0)
            .parse_all(&component)
            .find_map(|p| match p.unwrap() {
                Payload::CustomSection(section) => Some((section.name().to_owned(), section.data().to_vec())),
                _ => None,
            });
        assert_eq!(found, Some(("ostler:manifest".into(), data)));
    }
}
