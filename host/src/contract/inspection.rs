//! Inspection of a component: its imports and exports, and the first place where its contract differs from the host's.
//!
//! The component model compares types by their structure, and wasmtime only reports that an instance does not match. For an
//! error that names the place, the WIT of the component is decoded and compared with the host's.

use std::sync::OnceLock;

use wasmparser::Parser;
use wit_parser::{
    Function, Handle, Interface, InterfaceId, Resolve, SourceMap, Type, TypeDefKind, WorldId, WorldItem,
    WorldKey,
    decoding::{DecodedWasm, decode},
};

/// The imports and exports of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The imported interfaces.
    pub imports: Vec<String>,
    /// The exported interfaces.
    pub exports: Vec<String>,
    /// The component imports WASI.
    pub wasi: bool,
    /// The component exports the message handler.
    pub messages: bool,
    /// The component exports the life-cycle hooks.
    pub lifecycle: bool,
}

/// The reason why a file is not a plugin for this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContractError {
    /// Not WebAssembly.
    #[error("not WebAssembly: it does not begin with \\0asm (is it the build's output?)")]
    NotWasm,
    /// A core module.
    #[error(
        "a core module, not a component: turn it into one (`cargo xtask components`, or `wasm-tools component new`)"
    )]
    CoreModule,
    /// Truncated or malformed.
    #[error("broken or cut off: {0}")]
    Broken(String),
    /// An import or export that this host does not have, or has with another type.
    #[error("made for another contract: {0}")]
    Differs(String),
}

/// The prefix of the interfaces of the contract.
const PACKAGE_PREFIX: &str = "ostler:plugin/";

/// Parses the contract of this host, once.
pub(crate) fn host_contract() -> &'static (Resolve, WorldId) {
    static HOST: OnceLock<(Resolve, WorldId)> = OnceLock::new();
    HOST.get_or_init(|| {
        let mut map = SourceMap::new();
        map.push_str("types.wit", include_str!("../../../wit/types.wit"));
        map.push_str("reconciler.wit", include_str!("../../../wit/reconciler.wit"));
        map.push_str("capabilities.wit", include_str!("../../../wit/capabilities.wit"));
        map.push_str("world.wit", include_str!("../../../wit/world.wit"));
        let group = map.parse().map_err(|(_, e)| e).expect("the contract parses");
        let mut resolve = Resolve::default();
        let package = resolve.push_group(group).expect("the contract resolves");
        let world = resolve.packages[package].worlds["plugin"];
        (resolve, world)
    })
}

/// Lists the functions that a component can import, as `interface.function`.
#[cfg(test)]
pub(crate) fn list_imports() -> impl Iterator<Item = String> {
    let (resolve, world) = host_contract();
    resolve.worlds[*world].imports.values().flat_map(|item| {
        let WorldItem::Interface { id, .. } = item else {
            panic!("the host offers interfaces only: {item:?}");
        };
        let interface = &resolve.interfaces[*id];
        let name = interface.name.clone().unwrap_or_default();
        interface.functions.keys().map(move |f| format!("{name}.{f}"))
    })
}

/// Inspects the bytes of a plugin without compiling or running them.
pub fn inspect(wasm: &[u8]) -> Result<Inspection, ContractError> {
    if !wasm.starts_with(b"\0asm") {
        return Err(ContractError::NotWasm);
    }
    if Parser::is_core_wasm(wasm) {
        return Err(ContractError::CoreModule);
    }
    let broken = |e: &dyn std::fmt::Display| ContractError::Broken(e.to_string());
    wasmparser::Validator::new()
        .validate_all(wasm)
        .map_err(|e| broken(&e))?;
    let (resolve, world) = match decode(wasm).map_err(|e| broken(&e))? {
        DecodedWasm::Component(resolve, world) => (resolve, world),
        DecodedWasm::WitPackage(..) => {
            return Err(ContractError::Broken("a WIT package, not a component".into()));
        }
    };
    compare_world(&resolve, world)
}

/// Compares the imports and exports of a component with the contract.
fn compare_world(resolve: &Resolve, world: WorldId) -> Result<Inspection, ContractError> {
    let (host, _) = host_contract();
    let world = &resolve.worlds[world];
    let mut found = Inspection {
        imports: Vec::new(),
        exports: Vec::new(),
        wasi: false,
        messages: false,
        lifecycle: false,
    };
    for (key, item) in &world.imports {
        let name = interface_name(resolve, key);
        match item {
            WorldItem::Interface { id, .. } if name.starts_with(PACKAGE_PREFIX) => {
                let _host = compare_interface(&name, resolve, *id, host)?;
            }
            WorldItem::Interface { .. } if name.starts_with("wasi:") => found.wasi = true,
            WorldItem::Type { .. } => {}
            _ => return differs(format!("it imports {name}, which this host does not offer")),
        }
        found.imports.push(name);
    }
    for (key, item) in &world.exports {
        let name = interface_name(resolve, key);
        if let WorldItem::Interface { id, .. } = item
            && name.starts_with(PACKAGE_PREFIX)
        {
            let ours = compare_interface(&name, resolve, *id, host)?;
            let theirs = &resolve.interfaces[*id].functions;
            if let Some(missing) = ours.functions.keys().find(|f| !theirs.contains_key(*f)) {
                return differs(format!("it exports {name} without the function `{missing}`"));
            }
            found.messages |= name.starts_with("ostler:plugin/messages@");
            found.lifecycle |= name.starts_with("ostler:plugin/lifecycle@");
        }
        found.exports.push(name);
    }
    if !found
        .exports
        .iter()
        .any(|e| e.starts_with("ostler:plugin/reconciler@"))
    {
        let has = if found.exports.is_empty() {
            "nothing".to_owned()
        } else {
            found.exports.join(", ")
        };
        return differs(format!(
            "it exports {has}; a plugin exports ostler:plugin/reconciler@0.1.0"
        ));
    }
    Ok(found)
}

/// Returns the error of a difference.
fn differs<T>(what: String) -> Result<T, ContractError> {
    Err(ContractError::Differs(what))
}

/// The name of an import or export.
fn interface_name(resolve: &Resolve, key: &WorldKey) -> String {
    match key {
        WorldKey::Name(name) => name.clone(),
        WorldKey::Interface(id) => resolve.id_of(*id).unwrap_or_default(),
    }
}

/// Compares the functions and types that the component has of an interface with the host's, which may have more
/// functions. Returns the interface of the host.
fn compare_interface<'h>(
    name: &str,
    theirs: &Resolve,
    id: InterfaceId,
    host: &'h Resolve,
) -> Result<&'h Interface, ContractError> {
    let same = host
        .interfaces
        .iter()
        .find(|(id, _)| host.id_of(*id).as_deref() == Some(name));
    let Some((_, ours)) = same else {
        let bare = name.split('@').next().unwrap_or(name);
        let versions = host
            .interfaces
            .iter()
            .filter_map(|(id, _)| host.id_of(id))
            .filter(|n| n.starts_with(&format!("{bare}@")));
        return differs(match versions.collect::<Vec<_>>().as_slice() {
            [] => format!("this host has no interface {name}"),
            some => format!("it uses {name}, this host has {}", some.join(", ")),
        });
    };
    let short = name
        .trim_start_matches("ostler:plugin/")
        .split('@')
        .next()
        .unwrap_or(name);
    for (function, theirs_f) in &theirs.interfaces[id].functions {
        let Some(ours_f) = ours.functions.get(function) else {
            return differs(format!("this host's {short} has no function `{function}`"));
        };
        compare_function(&format!("{short}.{function}"), (theirs, theirs_f), (host, ours_f))?;
    }
    for (type_name, theirs_t) in &theirs.interfaces[id].types {
        let Some(ours_t) = ours.types.get(type_name) else {
            return differs(format!("this host's {short} has no type `{type_name}`"));
        };
        compare_type(
            &format!("{short}.{type_name}"),
            (theirs, &Type::Id(*theirs_t)),
            (host, &Type::Id(*ours_t)),
        )?;
    }
    Ok(ours)
}

/// Compares the parameters and the result of a function.
fn compare_function(
    path: &str,
    (a, theirs): (&Resolve, &Function),
    (b, ours): (&Resolve, &Function),
) -> Result<(), ContractError> {
    let (has, needs) = (theirs.params.len(), ours.params.len());
    if has != needs {
        return differs(format!(
            "{path} takes {needs} parameters here, {has} in the component"
        ));
    }
    for (theirs, ours) in theirs.params.iter().zip(&ours.params) {
        compare_type(&format!("{path}({})", ours.name), (a, &theirs.ty), (b, &ours.ty))?;
    }
    compare_optional(
        &format!("{path} -> result"),
        (a, theirs.result.as_ref()),
        (b, ours.result.as_ref()),
    )
}

/// Compares types that may be absent.
fn compare_optional(
    path: &str,
    (a, theirs): (&Resolve, Option<&Type>),
    (b, ours): (&Resolve, Option<&Type>),
) -> Result<(), ContractError> {
    match (theirs, ours) {
        (None, None) => Ok(()),
        (Some(theirs), Some(ours)) => compare_type(path, (a, theirs), (b, ours)),
        (Some(_), None) => differs(format!("{path}: nothing here, a value in the component")),
        (None, Some(_)) => differs(format!("{path}: a value here, nothing in the component")),
    }
}

/// Resolves aliases to the definition of a type, or to a primitive type.
fn resolve_alias<'a>(resolve: &'a Resolve, ty: &Type) -> Result<&'a TypeDefKind, Type> {
    let mut ty = *ty;
    loop {
        match ty {
            Type::Id(id) => match &resolve.types[id].kind {
                TypeDefKind::Type(alias) => ty = *alias,
                kind => return Ok(kind),
            },
            primitive => return Err(primitive),
        }
    }
}

/// The word for a type in an error.
fn describe_type(kind: Result<&TypeDefKind, Type>) -> String {
    match kind {
        Ok(kind) => kind.as_str().to_owned(),
        Err(primitive) => format!("{primitive:?}").to_lowercase(),
    }
}

/// Compares types by their structure.
fn compare_type(
    path: &str,
    (a, theirs): (&Resolve, &Type),
    (b, ours): (&Resolve, &Type),
) -> Result<(), ContractError> {
    let (t, o) = (resolve_alias(a, theirs), resolve_alias(b, ours));
    let other = || {
        differs(format!(
            "{path} is {} here, {} in the component",
            describe_type(o),
            describe_type(t)
        ))
    };
    let (t, o) = match (t, o) {
        (Err(t), Err(o)) if t == o => return Ok(()),
        (Ok(t), Ok(o)) => (t, o),
        _ => return other(),
    };
    match (t, o) {
        (TypeDefKind::Record(t), TypeDefKind::Record(o)) => {
            let names = |r: &wit_parser::Record| r.fields.iter().map(|f| f.name.clone()).collect::<Vec<_>>();
            compare_names(path, "field", &names(t), &names(o))?;
            t.fields
                .iter()
                .zip(&o.fields)
                .try_for_each(|(t, o)| compare_type(&format!("{path}.{}", o.name), (a, &t.ty), (b, &o.ty)))
        }
        (TypeDefKind::Variant(t), TypeDefKind::Variant(o)) => {
            let names = |v: &wit_parser::Variant| v.cases.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
            compare_names(path, "case", &names(t), &names(o))?;
            let mut cases = t.cases.iter().zip(&o.cases);
            cases.try_for_each(|(t, o)| {
                compare_optional(
                    &format!("{path}.{}", o.name),
                    (a, t.ty.as_ref()),
                    (b, o.ty.as_ref()),
                )
            })
        }
        (TypeDefKind::Enum(t), TypeDefKind::Enum(o)) => {
            let names = |e: &wit_parser::Enum| e.cases.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
            compare_names(path, "case", &names(t), &names(o))
        }
        (TypeDefKind::Flags(t), TypeDefKind::Flags(o)) => {
            let names = |f: &wit_parser::Flags| f.flags.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
            compare_names(path, "flag", &names(t), &names(o))
        }
        (TypeDefKind::Tuple(t), TypeDefKind::Tuple(o)) if t.types.len() == o.types.len() => {
            let mut types = t.types.iter().zip(&o.types).enumerate();
            types.try_for_each(|(i, (t, o))| compare_type(&format!("{path}.{i}"), (a, t), (b, o)))
        }
        (TypeDefKind::Option(t), TypeDefKind::Option(o)) | (TypeDefKind::List(t), TypeDefKind::List(o)) => {
            compare_type(path, (a, t), (b, o))
        }
        (TypeDefKind::Result(t), TypeDefKind::Result(o)) => {
            compare_optional(&format!("{path} (ok)"), (a, t.ok.as_ref()), (b, o.ok.as_ref()))?;
            compare_optional(
                &format!("{path} (error)"),
                (a, t.err.as_ref()),
                (b, o.err.as_ref()),
            )
        }
        (TypeDefKind::Resource, TypeDefKind::Resource) => Ok(()),
        (TypeDefKind::Handle(Handle::Own(_)), TypeDefKind::Handle(Handle::Own(_)))
        | (TypeDefKind::Handle(Handle::Borrow(_)), TypeDefKind::Handle(Handle::Borrow(_))) => Ok(()),
        _ => other(),
    }
}

/// Compares names and their order, in which they are encoded.
fn compare_names(path: &str, what: &str, theirs: &[String], ours: &[String]) -> Result<(), ContractError> {
    if theirs == ours {
        return Ok(());
    }
    let missing = |of: &[String], other: &[String]| other.iter().find(|name| !of.contains(name)).cloned();
    differs(if let Some(name) = missing(theirs, ours) {
        format!("{path}: the {what} `{name}` is missing in the component")
    } else if let Some(name) = missing(ours, theirs) {
        format!("{path}: the component has a {what} `{name}` that this host does not know")
    } else {
        format!(
            "{path}: the {what}s are in another order: {} here, {} in the component",
            ours.join(", "),
            theirs.join(", ")
        )
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use wit_component::{ComponentEncoder, StringEncoding, dummy_module, embed_component_metadata};
    use wit_parser::ManglingAndAbi;

    use super::*;

    /// Builds a component that does nothing, for the contract of the host with one text replaced by another.
    pub(crate) fn build_component(from: &str, to: &str) -> Vec<u8> {
        let files = [
            include_str!("../../../wit/types.wit"),
            include_str!("../../../wit/reconciler.wit"),
            include_str!("../../../wit/capabilities.wit"),
            include_str!("../../../wit/world.wit"),
        ];
        assert!(files.iter().any(|f| f.contains(from)), "{from}");
        let mut map = SourceMap::new();
        for (i, text) in files.iter().enumerate() {
            map.push_str(&format!("{i}.wit"), text.replace(from, to));
        }
        let mut resolve = Resolve::default();
        let package = resolve
            .push_group(map.parse().map_err(|(_, e)| e).expect("parses"))
            .expect("resolves");
        let world = resolve.packages[package].worlds["plugin"];
        let mut module = dummy_module(&resolve, world, ManglingAndAbi::Standard32);
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("embedded");
        ComponentEncoder::default()
            .module(&module)
            .expect("a module")
            .encode()
            .expect("a component")
    }

    #[test]
    fn component_of_the_contract_is_accepted() {
        let inspection = inspect(&build_component("package", "package")).expect("fits");
        assert!(!inspection.wasi && !inspection.messages && !inspection.lifecycle);
        assert_eq!(inspection.exports, ["ostler:plugin/reconciler@0.1.0"]);
    }

    #[test]
    fn component_of_another_contract_is_an_error_with_the_place() {
        for (from, to, expected) in [
            (
                "    limit-exceeded(string),\n",
                "",
                "types.error: the case `limit-exceeded` is missing in the component",
            ),
            (
                "    unsupported(string),",
                "    unsupported(string),\n    late,",
                "a case `late` that this host does not know",
            ),
            (
                "enum condition-status { %true, %false, unknown }",
                "enum condition-status { %false, %true, unknown }",
                "types.condition-status: the cases are in another order",
            ),
            (
                "    attempt: u32,",
                "    attempt: u64,",
                "attempt is u32 here, u64 in the component",
            ),
            (
                "secret-digest: func",
                "secret-hash: func",
                "http has no function `secret-hash`",
            ),
            (
                "remaining: func() -> milliseconds",
                "remaining: func(x: u32) -> milliseconds",
                "clock.remaining takes 0 parameters here, 1 in the component",
            ),
            ("@0.1.0", "@0.2.0", "this host has ostler:plugin/"),
            (
                "  @since(version = 0.1.0)\n  cleanup: func(request: request) -> result<outcome, failure>;",
                "",
                "without the function `cleanup`",
            ),
            (
                "export reconciler",
                "export lifecycle",
                "a plugin exports ostler:plugin/reconciler@0.1.0",
            ),
        ] {
            let error = inspect(&build_component(from, to))
                .expect_err(expected)
                .to_string();
            assert!(error.contains(expected), "{error}\nexpected: {expected}");
        }
    }

    #[test]
    fn file_that_is_not_a_component_is_an_error() {
        assert_eq!(inspect(b"#!/bin/sh"), Err(ContractError::NotWasm));
        assert_eq!(inspect(b"\0asm\x01\0\0\0"), Err(ContractError::CoreModule));
        let whole = build_component("package", "package");
        assert!(matches!(
            inspect(&whole[..whole.len() / 2]),
            Err(ContractError::Broken(_))
        ));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Malformed bytes are an error and never a panic.
        #[test]
        fn inspection_of_any_bytes_never_panics(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20), cut in any::<prop::sample::Index>()) {
            static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
            let whole = WHOLE.get_or_init(|| build_component("package", "package"));
            let mut wasm = whole[..cut.index(whole.len())].to_vec();
            for (at, byte) in flips {
                if !wasm.is_empty() {
                    let at = at.index(wasm.len());
                    wasm[at] ^= byte;
                }
            }
            let _ = inspect(&wasm);
        }
    }
}
