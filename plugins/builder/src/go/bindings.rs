//! Generator of the Go bindings: the contract's types, and the canonical ABI between them and linear memory.
//!
//! It writes one file of types, one for the component (`wasip1`), and one for tests that run natively, where each
//! import is a variable that a test sets. `wit.go` and `memory.go` beside them do not depend on the contract. Features
//! the contract does not use (resources, flags, variants as parameters) are refused by name. The message handler
//! and the life-cycle hooks, which only some plugins export, have their entry points in packages of their own: importing one
//! exports them.
//!
//! It is hand-written although `wit-bindgen-go` (0.63) supports the standard compiler for worlds without async: that
//! generator puts the entry points into the plugin's own `main` package and a `go.mod` of its own, its code imports
//! `go.bytecodealliance.org/pkg` from the module proxy (a plugin here builds offline), and its imports are plain
//! `//go:wasmimport` functions, which no test can replace.

mod calls;
mod layout;
mod names;
mod types;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use wit_parser::{InterfaceId, Resolve, SizeAlign, Type, TypeDefKind, TypeId, TypeOwner, WorldItem};

use self::names::to_pascal_case;
use crate::contract;

const GENERATED_HEADER: &str = "// Code generated from wit/ by ostler-builder. DO NOT EDIT.\n\n";

/// Generates the files, by name.
///
/// # Errors
/// Names the feature of the contract that is not supported.
pub fn generate_bindings() -> Result<BTreeMap<String, String>> {
    let (resolve, world) = contract::resolve_world(&[], "full-plugin")?;
    let mut sizes = SizeAlign::default();
    sizes.fill(&resolve);
    let mut generator = Generator {
        resolve: &resolve,
        sizes,
        types: String::new(),
        abi: String::new(),
        native: String::new(),
        optional: BTreeMap::new(),
        done: BTreeSet::new(),
        declared: BTreeSet::new(),
        variables: 0,
    };
    let world = &resolve.worlds[world];
    for (key, item) in &world.imports {
        if let WorldItem::Interface { id, .. } = item {
            generator.declare_types(*id)?;
            for function in resolve.interfaces[*id].functions.values() {
                generator.write_import(&resolve.name_world_key(key), *id, function)?;
            }
        }
    }
    for (key, item) in &world.exports {
        if let WorldItem::Interface { id, .. } = item {
            generator.declare_types(*id)?;
            generator.write_exports(&resolve.name_world_key(key), *id)?;
        }
    }
    let Generator {
        types,
        abi,
        native,
        optional,
        ..
    } = generator;
    let file = |tag: &str, text: String| format!("{GENERATED_HEADER}{tag}package wit\n\n{text}");
    let mut files = BTreeMap::from([
        ("wit/types.go".to_owned(), file("", types)),
        ("wit/abi.go".to_owned(), file("//go:build wasip1\n\n", abi)),
        ("wit/native.go".to_owned(), file("//go:build !wasip1\n\n", native)),
    ]);
    for (package, entry_points) in optional {
        let import = "import \"ostler.dev/sdk/wit\"";
        let text =
            format!("{GENERATED_HEADER}//go:build wasip1\n\npackage {package}\n\n{import}\n\n{entry_points}");
        files.insert(format!("{package}/abi.go"), text);
    }
    Ok(files)
}

struct Generator<'a> {
    resolve: &'a Resolve,
    sizes: SizeAlign,
    types: String,
    abi: String,
    native: String,
    /// Entry points of the interfaces that only some plugins export, by the package that a plugin imports for them.
    optional: BTreeMap<&'static str, String>,
    /// Types whose functions `load` and `store` are already written.
    done: BTreeSet<String>,
    declared: BTreeSet<InterfaceId>,
    variables: usize,
}

/// A type with its aliases resolved.
enum Shape<'a> {
    Plain(&'static str),
    String,
    Bytes,
    Kind(TypeId, &'a TypeDefKind),
}

impl<'a> Generator<'a> {
    fn resolve_shape(&self, ty: &Type) -> Result<Shape<'a>> {
        Ok(match ty {
            Type::Bool => Shape::Plain("bool"),
            Type::U8 => Shape::Plain("uint8"),
            Type::U16 => Shape::Plain("uint16"),
            Type::U32 => Shape::Plain("uint32"),
            Type::U64 => Shape::Plain("uint64"),
            Type::S8 => Shape::Plain("int8"),
            Type::S16 => Shape::Plain("int16"),
            Type::S32 => Shape::Plain("int32"),
            Type::S64 => Shape::Plain("int64"),
            Type::F32 => Shape::Plain("float32"),
            Type::F64 => Shape::Plain("float64"),
            Type::Char => Shape::Plain("rune"),
            Type::String => Shape::String,
            Type::ErrorContext => bail!("error-context is not supported"),
            Type::Id(id) => match &self.resolve.types[*id].kind {
                TypeDefKind::Type(ty) => self.resolve_shape(ty)?,
                TypeDefKind::List(Type::U8) => Shape::Bytes,
                kind => Shape::Kind(*id, kind),
            },
        })
    }

    /// Returns the Go type of a WIT type.
    fn go_type(&self, ty: &Type) -> Result<String> {
        Ok(match self.resolve_shape(ty)? {
            Shape::Plain(name) => name.into(),
            Shape::String => "string".into(),
            Shape::Bytes => "[]byte".into(),
            Shape::Kind(id, kind) => match kind {
                TypeDefKind::List(item) => format!("[]{}", self.go_type(item)?),
                TypeDefKind::Option(some) => format!("*{}", self.go_type(some)?),
                TypeDefKind::Result(r) => {
                    format!(
                        "Result[{}, {}]",
                        self.go_type_or_unit(r.ok.as_ref())?,
                        self.go_type_or_unit(r.err.as_ref())?
                    )
                }
                TypeDefKind::Tuple(tuple) => {
                    let mut fields = Vec::new();
                    for (i, ty) in tuple.types.iter().enumerate() {
                        fields.push(format!("F{i} {}", self.go_type(ty)?));
                    }
                    format!("struct{{ {} }}", fields.join("; "))
                }
                TypeDefKind::Record(_) | TypeDefKind::Enum(_) | TypeDefKind::Variant(_) => self.type_name(id),
                other => bail!("{} is not supported", other.as_str()),
            },
        })
    }

    fn go_type_or_unit(&self, ty: Option<&Type>) -> Result<String> {
        ty.map_or(Ok("Unit".into()), |ty| self.go_type(ty))
    }

    /// Returns the suffix of the functions that load and store a type.
    fn mangle_name(&self, ty: &Type) -> Result<String> {
        let of = |ty: Option<&Type>| ty.map_or(Ok("Unit".into()), |ty| self.mangle_name(ty));
        Ok(match self.resolve_shape(ty)? {
            Shape::Plain(name) => to_pascal_case(name),
            Shape::String => "String".into(),
            Shape::Bytes => "Bytes".into(),
            Shape::Kind(id, kind) => match kind {
                TypeDefKind::List(item) => format!("List{}", self.mangle_name(item)?),
                TypeDefKind::Option(some) => format!("Option{}", self.mangle_name(some)?),
                TypeDefKind::Result(r) => format!("Result{}Or{}", of(r.ok.as_ref())?, of(r.err.as_ref())?),
                TypeDefKind::Tuple(tuple) => {
                    let parts: Result<Vec<_>> = tuple.types.iter().map(|ty| self.mangle_name(ty)).collect();
                    format!("Tuple{}", parts?.concat())
                }
                _ => self.type_name(id),
            },
        })
    }

    fn type_name(&self, id: TypeId) -> String {
        let ty = &self.resolve.types[id];
        let name = to_pascal_case(ty.name.as_deref().unwrap_or("anonymous"));
        match ty.owner {
            TypeOwner::Interface(interface) => self.interface_prefix(interface) + &name,
            _ => name,
        }
    }

    /// Returns the prefix of an interface's names. The interface `types`, used by all others, has none.
    fn interface_prefix(&self, interface: InterfaceId) -> String {
        match self.resolve.interfaces[interface].name.as_deref() {
            None | Some("types") => String::new(),
            Some(name) => to_pascal_case(name),
        }
    }

    fn fresh_variable(&mut self, what: &str) -> String {
        self.variables += 1;
        format!("{what}{}", self.variables)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Compares the checked-in files; `UPDATE_BINDINGS=1 cargo test -p ostler-builder` writes them.
    #[test]
    fn checked_in_bindings_are_current() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk-go");
        for (name, text) in generate_bindings().unwrap() {
            let path = folder.join(&name);
            let text = super::super::format_source(&text).unwrap();
            if std::env::var_os("UPDATE_BINDINGS").is_some() {
                crate::replace_file(&path, text.as_bytes()).unwrap();
            }
            let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(checked_in == text, "{name}: run it again with UPDATE_BINDINGS=1");
        }
    }
}
