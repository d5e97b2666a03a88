//! Component encoding, imports and custom sections.

use anyhow::{Result, bail};
use wasm_encoder::{CustomSection, Encode, Section};
use wasmparser::{Parser, Payload};
use wit_component::ComponentEncoder;

/// Encodes a core module as a component. The module must have the custom section with its world that wit-bindgen adds.
///
/// # Errors
/// When the input is not a module, or has no world.
pub fn encode_component(module: &[u8]) -> Result<Vec<u8>> {
    ComponentEncoder::default()
        .validate(true)
        .module(module)?
        .encode()
}

/// Lists the names a component imports.
///
/// # Errors
/// When the input is not a component.
pub fn list_imports(component: &[u8]) -> Result<Vec<String>> {
    let mut imports = Vec::new();
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(component) {
        match payload? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            // The outermost component ends last.
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

/// Refuses a component that imports WASI, since its import list must be the list of its capabilities.
///
/// # Errors
/// Names the import; or the input is not a component.
pub fn reject_wasi(component: &[u8]) -> Result<()> {
    match list_imports(component)?.iter().find(|i| i.starts_with("wasi:")) {
        Some(wasi) => bail!("it imports {wasi}: plugins of this language use the host's capabilities only"),
        None => Ok(()),
    }
}

/// Appends a custom section at the top level of a component.
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
    fn invalid_module_is_refused() {
        assert!(encode_component(b"not wasm").is_err());
        assert!(encode_component(b"\0asm\x01\0\0\0truncated").is_err());
    }

    #[test]
    fn wasi_import_is_refused_by_name() {
        reject_wasi(EMPTY).unwrap();
        // (component (type (instance)) (import "wasi:a/b" (instance (type 0))))
        let types = [7, 3, 1, 0x42, 0];
        let wasi = [EMPTY, &types, &[10, 13, 1, 0, 8], b"wasi:a/b", &[5, 0]].concat();
        let error = reject_wasi(&wasi).unwrap_err().to_string();
        assert!(error.contains("it imports wasi:a/b"), "{error}");
    }

    #[test]
    fn appended_section_is_valid_and_can_be_read() {
        let mut component = EMPTY.to_vec();
        // Longer than a length of one byte can express.
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
