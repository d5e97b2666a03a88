//! Go bindings of the contract: types, and the canonical ABI between them and linear memory.
//!
//! One file of types, one for the component (`wasip1`), and one for tests that run natively, where each import is a
//! variable that a test sets. Beside them, in `wit.go` and `memory.go`, is what depends on no contract. What this
//! contract does not use (resources, flags, variants as plain parameters) is refused by name.

mod calls;
mod layout;
mod names;
mod types;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use wit_parser::{InterfaceId, Resolve, SizeAlign, Type, TypeDefKind, TypeId, TypeOwner, WorldItem};

use self::names::pascal;
use crate::contract;

const HEADER: &str = "// Code generated from wit/ by ostler-builder. DO NOT EDIT.\n\n";

/// The files, by name.
///
/// # Errors
/// What of the contract can't be expressed.
pub fn generate() -> Result<BTreeMap<&'static str, String>> {
    let (resolve, world) = contract::resolve(&[], contract::WORLD)?;
    let mut sizes = SizeAlign::default();
    sizes.fill(&resolve);
    let mut generator = Generator {
        resolve: &resolve,
        sizes,
        types: String::new(),
        abi: String::new(),
        native: String::new(),
        done: BTreeSet::new(),
        declared: BTreeSet::new(),
        variables: 0,
    };
    let world = &resolve.worlds[world];
    for (key, item) in &world.imports {
        if let WorldItem::Interface { id, .. } = item {
            generator.declare(*id)?;
            for function in resolve.interfaces[*id].functions.values() {
                generator.import(&resolve.name_world_key(key), *id, function)?;
            }
        }
    }
    for (key, item) in &world.exports {
        if let WorldItem::Interface { id, .. } = item {
            generator.declare(*id)?;
            generator.exports(&resolve.name_world_key(key), *id)?;
        }
    }
    let Generator {
        types, abi, native, ..
    } = generator;
    let file = |tag: &str, text: String| format!("{HEADER}{tag}package wit\n\n{text}");
    Ok(BTreeMap::from([
        ("types.go", file("", types)),
        ("abi.go", file("//go:build wasip1\n\n", abi)),
        ("native.go", file("//go:build !wasip1\n\n", native)),
    ]))
}

struct Generator<'a> {
    resolve: &'a Resolve,
    sizes: SizeAlign,
    types: String,
    abi: String,
    native: String,
    /// Types whose `load` and `store` are written.
    done: BTreeSet<String>,
    declared: BTreeSet<InterfaceId>,
    variables: usize,
}

/// What a type is, aliases resolved.
enum Shape<'a> {
    Plain(&'static str),
    String,
    Bytes,
    Kind(TypeId, &'a TypeDefKind),
}

impl<'a> Generator<'a> {
    fn shape(&self, ty: &Type) -> Result<Shape<'a>> {
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
                TypeDefKind::Type(ty) => self.shape(ty)?,
                TypeDefKind::List(Type::U8) => Shape::Bytes,
                kind => Shape::Kind(*id, kind),
            },
        })
    }

    /// The name of a type in Go.
    fn go(&self, ty: &Type) -> Result<String> {
        Ok(match self.shape(ty)? {
            Shape::Plain(name) => name.into(),
            Shape::String => "string".into(),
            Shape::Bytes => "[]byte".into(),
            Shape::Kind(id, kind) => match kind {
                TypeDefKind::List(item) => format!("[]{}", self.go(item)?),
                TypeDefKind::Option(some) => format!("*{}", self.go(some)?),
                TypeDefKind::Result(r) => {
                    format!(
                        "Result[{}, {}]",
                        self.go_of(r.ok.as_ref())?,
                        self.go_of(r.err.as_ref())?
                    )
                }
                TypeDefKind::Tuple(tuple) => {
                    let mut fields = Vec::new();
                    for (i, ty) in tuple.types.iter().enumerate() {
                        fields.push(format!("F{i} {}", self.go(ty)?));
                    }
                    format!("struct{{ {} }}", fields.join("; "))
                }
                TypeDefKind::Record(_) | TypeDefKind::Enum(_) | TypeDefKind::Variant(_) => self.name(id),
                other => bail!("{} is not supported", other.as_str()),
            },
        })
    }

    fn go_of(&self, ty: Option<&Type>) -> Result<String> {
        ty.map_or(Ok("Unit".into()), |ty| self.go(ty))
    }

    /// The name of a type's functions.
    fn mangled(&self, ty: &Type) -> Result<String> {
        let of = |ty: Option<&Type>| ty.map_or(Ok("Unit".into()), |ty| self.mangled(ty));
        Ok(match self.shape(ty)? {
            Shape::Plain(name) => pascal(name),
            Shape::String => "String".into(),
            Shape::Bytes => "Bytes".into(),
            Shape::Kind(id, kind) => match kind {
                TypeDefKind::List(item) => format!("List{}", self.mangled(item)?),
                TypeDefKind::Option(some) => format!("Option{}", self.mangled(some)?),
                TypeDefKind::Result(r) => format!("Result{}Or{}", of(r.ok.as_ref())?, of(r.err.as_ref())?),
                TypeDefKind::Tuple(tuple) => {
                    let parts: Result<Vec<_>> = tuple.types.iter().map(|ty| self.mangled(ty)).collect();
                    format!("Tuple{}", parts?.concat())
                }
                _ => self.name(id),
            },
        })
    }

    fn name(&self, id: TypeId) -> String {
        let ty = &self.resolve.types[id];
        let name = pascal(ty.name.as_deref().unwrap_or("anonymous"));
        match ty.owner {
            TypeOwner::Interface(interface) => self.prefix(interface) + &name,
            _ => name,
        }
    }

    /// Types that all share have short names.
    fn prefix(&self, interface: InterfaceId) -> String {
        match self.resolve.interfaces[interface].name.as_deref() {
            None | Some("types") => String::new(),
            Some(name) => pascal(name),
        }
    }

    fn fresh(&mut self, what: &str) -> String {
        self.variables += 1;
        format!("{what}{}", self.variables)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// `UPDATE_BINDINGS=1 cargo test -p ostler-builder` writes them.
    #[test]
    fn the_bindings_are_current() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk-go/wit");
        for (name, text) in generate().unwrap() {
            let path = folder.join(name);
            let text = super::super::formatted(&text).unwrap();
            if std::env::var_os("UPDATE_BINDINGS").is_some() {
                crate::replace(&path, text.as_bytes()).unwrap();
            }
            let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(checked_in == text, "{name}: run it again with UPDATE_BINDINGS=1");
        }
    }
}
