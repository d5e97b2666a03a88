//! Go bindings of the contract: types, and the canonical ABI between them and linear memory.
//!
//! One file of types, one for the component (`wasip1`), and one for tests that run natively, where each import is a
//! variable that a test sets. What the contract does not use (resources, flags, variants as plain parameters) is
//! refused by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use anyhow::{Result, bail};
use wit_parser::{
    Docs, Function, InterfaceId, Resolve, SizeAlign, Type, TypeDefKind, TypeId, TypeOwner, WorldItem,
    abi::{AbiVariant, WasmType},
};

use crate::contract;

const HEADER: &str = "// Code generated from wit/ by ostler-builder. DO NOT EDIT.\n\n";
const PACKAGE: &str = "package wit\n\n";

/// The files, by name.
///
/// # Errors
/// What of the contract can't be expressed.
pub fn generate() -> Result<BTreeMap<&'static str, String>> {
    let (resolve, world) = contract::resolve(&[], contract::WORLD)?;
    let mut sizes = SizeAlign::default();
    sizes.fill(&resolve)?;
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
    let tag = |tag: &str| format!("{HEADER}//go:build {tag}\n\n{PACKAGE}");
    let abi_head = format!("{}import \"unsafe\"\n\n{MEMORY}", tag("wasip1"));
    Ok(BTreeMap::from([
        (
            "types.go",
            format!(
                "{HEADER}// Package wit is the contract between plugin and host.\n{PACKAGE}{RESULT}{types}"
            ),
        ),
        ("abi.go", abi_head + &abi),
        ("native.go", tag("!wasip1") + NATIVE + &native),
    ]))
}

const RESULT: &str = "// Result is Ok, unless there is an Err.
type Result[T, E any] struct {
	Ok  T
	Err *E
}

// Unit is nothing.
type Unit = struct{}

";

const NATIVE: &str = "// Outside of a host there are no capabilities: a test sets those it needs.
func missing(name string) string { return \"wit.\" + name + \" is not set: outside of a host a test sets it\" }

";

const MEMORY: &str = r"// What the host, or a call to it, still reads. An instance lives for one call, and this is let go at each of its own.
var kept [][]uint64

func allocate(size, align uint32) uint32 {
	if size == 0 {
		return align
	}
	memory := make([]uint64, (size+7)/8)
	kept = append(kept, memory)
	return uint32(uintptr(unsafe.Pointer(&memory[0])))
}

func release() { kept = nil }

//go:wasmexport cabi_realloc
func realloc(old, oldSize, align, size uint32) uint32 {
	address := allocate(size, align)
	if oldSize > 0 {
		copy(slice(address, size), slice(old, oldSize))
	}
	return address
}

func at(address uint32) unsafe.Pointer {
	wide := uintptr(address)
	return *(*unsafe.Pointer)(unsafe.Pointer(&wide))
}

func slice(address, size uint32) []byte {
	if size == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(at(address)), size)
}

func load[T any](address uint32) T     { return *(*T)(at(address)) }
func store[T any](address uint32, v T) { *(*T)(at(address)) = v }

func flag(v bool) uint32 {
	if v {
		return 1
	}
	return 0
}

func lowerString(v string) (uint32, uint32) {
	size := uint32(len(v))
	address := allocate(size, 1)
	copy(slice(address, size), v)
	return address, size
}

func storeString(p uint32, v string) {
	address, size := lowerString(v)
	store(p, address)
	store(p+4, size)
}

func loadString(p uint32) string { return string(slice(load[uint32](p), load[uint32](p+4))) }

func lowerBytes(v []byte) (uint32, uint32) {
	size := uint32(len(v))
	address := allocate(size, 1)
	copy(slice(address, size), v)
	return address, size
}

func storeBytes(p uint32, v []byte) {
	address, size := lowerBytes(v)
	store(p, address)
	store(p+4, size)
}

func loadBytes(p uint32) []byte { return append([]byte{}, slice(load[uint32](p), load[uint32](p+4))...) }

";

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

    fn declare(&mut self, interface: InterfaceId) -> Result<()> {
        if !self.declared.insert(interface) {
            return Ok(());
        }
        for id in self.resolve.interfaces[interface].types.values() {
            self.declare_type(*id)?;
        }
        Ok(())
    }

    fn declare_type(&mut self, id: TypeId) -> Result<()> {
        let ty = &self.resolve.types[id];
        let name = self.name(id);
        let mut out = String::new();
        match &ty.kind {
            TypeDefKind::Record(record) => {
                comment(&mut out, "", &name, &ty.docs);
                writeln!(out, "type {name} struct {{")?;
                for field in &record.fields {
                    comment(&mut out, "\t", "", &field.docs);
                    writeln!(out, "\t{} {}", pascal(&field.name), self.go(&field.ty)?)?;
                }
                out.push_str("}\n\n");
            }
            TypeDefKind::Enum(e) => {
                comment(&mut out, "", &name, &ty.docs);
                writeln!(out, "type {name} uint8\n\n// The cases of [{name}].\nconst (")?;
                for (i, case) in e.cases.iter().enumerate() {
                    comment(&mut out, "\t", "", &case.docs);
                    writeln!(out, "\t{name}{} {name} = {i}", pascal(&case.name))?;
                }
                out.push_str(")\n\n");
            }
            TypeDefKind::Variant(variant) => {
                comment(&mut out, "", &name, &ty.docs);
                writeln!(out, "type {name} struct {{\n\tCase {name}Case")?;
                for case in &variant.cases {
                    if let Some(ty) = &case.ty {
                        writeln!(out, "\t{} {}", pascal(&case.name), self.go(ty)?)?;
                    }
                }
                writeln!(
                    out,
                    "}}\n\n// {name}Case says which of a {name} it is.\ntype {name}Case uint8\n\n\
                     // The cases of [{name}].\nconst ("
                )?;
                for (i, case) in variant.cases.iter().enumerate() {
                    comment(&mut out, "\t", "", &case.docs);
                    writeln!(out, "\t{name}{} {name}Case = {i}", pascal(&case.name))?;
                }
                out.push_str(")\n\n");
            }
            // Written as what they stand for.
            TypeDefKind::Type(_) | TypeDefKind::List(_) | TypeDefKind::Option(_) | TypeDefKind::Tuple(_) => {}
            other => bail!("{name}: {} is not supported", other.as_str()),
        }
        self.types.push_str(&out);
        Ok(())
    }

    fn size(&self, ty: &Type) -> (usize, usize) {
        (
            self.sizes.size(ty).size_wasm32(),
            self.sizes.align(ty).align_wasm32(),
        )
    }

    /// A statement that stores `value` at `address`.
    fn store(&mut self, ty: &Type, address: &str, value: &str) -> Result<String> {
        self.functions(ty)?;
        Ok(match self.shape(ty)? {
            Shape::Plain("bool") => format!("store(uint32({address}), uint8(flag({value})))"),
            Shape::Plain(_) => format!("store(uint32({address}), {value})"),
            _ => format!("store{}({address}, {value})", self.mangled(ty)?),
        })
    }

    /// An expression that loads the value at `address`.
    fn load(&mut self, ty: &Type, address: &str) -> Result<String> {
        self.functions(ty)?;
        Ok(match self.shape(ty)? {
            Shape::Plain("bool") => format!("load[uint8]({address}) != 0"),
            Shape::Plain(name) => format!("load[{name}]({address})"),
            _ => format!("load{}({address})", self.mangled(ty)?),
        })
    }

    /// The functions that load and store a type; those of lists lower, too.
    fn functions(&mut self, ty: &Type) -> Result<()> {
        let Shape::Kind(_, kind) = self.shape(ty)? else {
            return Ok(());
        };
        let name = self.mangled(ty)?;
        if !self.done.insert(name.clone()) {
            return Ok(());
        }
        let go = self.go(ty)?;
        let (mut load, mut store) = (String::new(), String::new());
        match kind {
            TypeDefKind::Record(record) => {
                let types: Vec<_> = record.fields.iter().map(|f| f.ty).collect();
                let names: Vec<_> = record.fields.iter().map(|f| pascal(&f.name)).collect();
                self.fields(&types, &names, &mut load, &mut store)?;
            }
            TypeDefKind::Tuple(tuple) => {
                let names: Vec<_> = (0..tuple.types.len()).map(|i| format!("F{i}")).collect();
                self.fields(&tuple.types, &names, &mut load, &mut store)?;
            }
            TypeDefKind::Enum(_) => {
                writeln!(load, "\tv = load[{go}](p)")?;
                writeln!(store, "\tstore(p, v)")?;
            }
            TypeDefKind::Option(some) => {
                let offset = self
                    .sizes
                    .payload_offset(wit_parser::Int::U8, [None, Some(some)])
                    .size_wasm32();
                let at = format!("p+{offset}");
                let (inner, set) = (self.load(some, &at)?, self.store(some, &at, "*v")?);
                writeln!(
                    load,
                    "\tif load[uint8](p) != 0 {{\n\t\tsome := {inner}\n\t\tv = &some\n\t}}"
                )?;
                writeln!(
                    store,
                    "\tstore(p, uint8(flag(v != nil)))\n\tif v != nil {{\n\t\t{set}\n\t}}"
                )?;
            }
            TypeDefKind::Result(result) => {
                let cases = [result.ok.as_ref(), result.err.as_ref()];
                let offset = self
                    .sizes
                    .payload_offset(wit_parser::Int::U8, cases)
                    .size_wasm32();
                let at = format!("p+{offset}");
                let (mut ok, mut set_ok) = (String::new(), String::new());
                if let Some(ty) = cases[0] {
                    ok = format!("v.Ok = {}", self.load(ty, &at)?);
                    set_ok = self.store(ty, &at, "v.Ok")?;
                }
                let err_go = self.go_of(cases[1])?;
                let (mut err, mut set_err) = (format!("failed := {err_go}{{}}"), String::new());
                if let Some(ty) = cases[1] {
                    err = format!("failed := {}", self.load(ty, &at)?);
                    set_err = self.store(ty, &at, "*v.Err")?;
                }
                writeln!(
                    load,
                    "\tif load[uint8](p) == 0 {{\n\t\t{ok}\n\t}} else {{\n\t\t{err}\n\t\tv.Err = &failed\n\t}}"
                )?;
                writeln!(
                    store,
                    "\tstore(p, uint8(flag(v.Err != nil)))\n\tif v.Err == nil {{\n\t\t{set_ok}\n\t}} else {{\n\t\t{set_err}\n\t}}"
                )?;
            }
            TypeDefKind::Variant(variant) => {
                let payloads: Vec<_> = variant.cases.iter().map(|c| c.ty.as_ref()).collect();
                let offset = self.sizes.payload_offset(variant.tag(), payloads).size_wasm32();
                let at = format!("p+{offset}");
                writeln!(load, "\tv.Case = load[{name}Case](p)\n\tswitch v.Case {{")?;
                writeln!(store, "\tstore(p, v.Case)\n\tswitch v.Case {{")?;
                for case in &variant.cases {
                    if let Some(ty) = &case.ty {
                        let field = pascal(&case.name);
                        let (inner, set) = (self.load(ty, &at)?, self.store(ty, &at, &format!("v.{field}"))?);
                        writeln!(load, "\tcase {name}{field}:\n\t\tv.{field} = {inner}")?;
                        writeln!(store, "\tcase {name}{field}:\n\t\t{set}")?;
                    }
                }
                load.push_str("\t}\n");
                store.push_str("\t}\n");
            }
            TypeDefKind::List(item) => {
                let (size, align) = self.size(item);
                let (inner, set) = (self.load(item, "item")?, self.store(item, "item", "v[i]")?);
                writeln!(
                    load,
                    "\titem, count := load[uint32](p), load[uint32](p+4)\n\tfor range count {{\n\
                     \t\tv = append(v, {inner})\n\t\titem += {size}\n\t}}"
                )?;
                writeln!(
                    store,
                    "\taddress, count := lower{name}(v)\n\tstore(p, address)\n\tstore(p+4, count)"
                )?;
                write!(
                    self.abi,
                    "func lower{name}(v {go}) (uint32, uint32) {{\n\taddress := allocate(uint32(len(v))*{size}, {align})\n\
                     \titem := address\n\tfor i := range v {{\n\t\t{set}\n\t\titem += {size}\n\t}}\n\
                     \treturn address, uint32(len(v))\n}}\n\n"
                )?;
            }
            other => bail!("{} is not supported", other.as_str()),
        }
        write!(
            self.abi,
            "func load{name}(p uint32) (v {go}) {{\n{load}\treturn v\n}}\n\nfunc store{name}(p uint32, v {go}) {{\n{store}}}\n\n"
        )?;
        Ok(())
    }

    fn fields(
        &mut self,
        types: &[Type],
        names: &[String],
        load: &mut String,
        store: &mut String,
    ) -> Result<()> {
        let offsets: Vec<_> = self
            .sizes
            .field_offsets(types)
            .iter()
            .map(|(at, _)| at.size_wasm32())
            .collect();
        for ((ty, name), offset) in types.iter().zip(names).zip(offsets) {
            let at = format!("p+{offset}");
            let value = format!("v.{name}");
            writeln!(load, "\t{value} = {}", self.load(ty, &at)?)?;
            writeln!(store, "\t{}", self.store(ty, &at, &value)?)?;
        }
        Ok(())
    }

    /// The core values of a parameter, after statements that make them.
    fn flatten(&mut self, ty: &Type, value: &str, before: &mut String, flat: &mut Vec<String>) -> Result<()> {
        match self.shape(ty)? {
            Shape::Plain("bool") => flat.push(format!("flag({value})")),
            Shape::Plain(name @ ("uint64" | "int64" | "float32" | "float64")) => {
                flat.push(match name {
                    "int64" => format!("uint64({value})"),
                    _ => value.into(),
                });
            }
            Shape::Plain(_) => flat.push(format!("uint32({value})")),
            Shape::Kind(_, TypeDefKind::Enum(_)) => flat.push(format!("uint32({value})")),
            Shape::Kind(_, TypeDefKind::Record(record)) => {
                for field in &record.fields {
                    self.flatten(
                        &field.ty,
                        &format!("{value}.{}", pascal(&field.name)),
                        before,
                        flat,
                    )?;
                }
            }
            Shape::Kind(_, TypeDefKind::Tuple(tuple)) => {
                for (i, ty) in tuple.types.iter().enumerate() {
                    self.flatten(ty, &format!("{value}.F{i}"), before, flat)?;
                }
            }
            Shape::Kind(_, TypeDefKind::Option(some)) => {
                let (mut inside, mut values) = (String::new(), Vec::new());
                self.flatten(some, &format!("(*{value})"), &mut inside, &mut values)?;
                let tag = self.fresh("some");
                writeln!(before, "\tvar {tag} uint32")?;
                flat.push(tag.clone());
                let mut sets = String::new();
                for (value, core) in values.iter().zip(self.core(some)?) {
                    let name = self.fresh("flat");
                    writeln!(before, "\tvar {name} {core}")?;
                    writeln!(sets, "\t{name} = {value}")?;
                    flat.push(name);
                }
                writeln!(before, "\tif {value} != nil {{\n\t{tag} = 1\n{inside}{sets}\t}}")?;
            }
            Shape::String | Shape::Bytes | Shape::Kind(_, TypeDefKind::List(_)) => {
                self.functions(ty)?;
                let (address, count) = (self.fresh("address"), self.fresh("count"));
                writeln!(
                    before,
                    "\t{address}, {count} := lower{}({value})",
                    self.mangled(ty)?
                )?;
                flat.extend([address, count]);
            }
            Shape::Kind(_, other) => bail!("{} as a parameter is not supported", other.as_str()),
        }
        Ok(())
    }

    /// The core types of a type.
    fn core(&self, ty: &Type) -> Result<Vec<&'static str>> {
        let mut function_types = [WasmType::I32; 64];
        let mut flat = wit_parser::abi::FlatTypes::new(&mut function_types);
        if !self.resolve.push_flat(ty, &mut flat) {
            bail!("too large for a parameter");
        }
        Ok(flat.to_vec().iter().map(|ty| core(*ty)).collect())
    }

    fn import(&mut self, interface_name: &str, interface: InterfaceId, function: &Function) -> Result<()> {
        let signature = self.resolve.wasm_signature(AbiVariant::GuestImport, function);
        let name = self.prefix(interface) + &pascal(&function.name);
        let raw = format!("host{name}");
        let mut parameters = Vec::new();
        for parameter in &function.params {
            parameters.push(format!("{} {}", camel(&parameter.name), self.go(&parameter.ty)?));
        }
        let parameters = parameters.join(", ");
        let (mut before, mut flat) = (String::new(), Vec::new());
        if signature.indirect_params {
            let types: Vec<_> = function.params.iter().map(|p| p.ty).collect();
            let record = self.sizes.record(&types);
            writeln!(
                before,
                "\tp := allocate({}, {})",
                record.size.size_wasm32(),
                record.align.align_wasm32()
            )?;
            let offsets: Vec<_> = self
                .sizes
                .field_offsets(&types)
                .iter()
                .map(|(at, _)| at.size_wasm32())
                .collect();
            for (parameter, offset) in function.params.iter().zip(offsets) {
                let store = self.store(&parameter.ty, &format!("p+{offset}"), &camel(&parameter.name))?;
                writeln!(before, "\t{store}")?;
            }
            flat.push("p".into());
        } else {
            for parameter in &function.params {
                self.flatten(&parameter.ty, &camel(&parameter.name), &mut before, &mut flat)?;
            }
        }
        // A result is what Go has for it: a value and an error.
        let (results, give) = match &function.result {
            None => (String::new(), String::new()),
            Some(ty) => match self.shape(ty)? {
                Shape::Kind(_, TypeDefKind::Result(r)) => {
                    let err = self.go_of(r.err.as_ref())?;
                    match &r.ok {
                        Some(ok) => (
                            format!("({}, *{err})", self.go(ok)?),
                            "\treturn r.Ok, r.Err\n".into(),
                        ),
                        None => (format!("*{err}"), "\treturn r.Err\n".into()),
                    }
                }
                _ => (self.go(ty)?, "\treturn r\n".to_owned()),
            },
        };
        let mut after = String::new();
        let mut call = format!("{raw}({})", flat.join(", "));
        if let Some(ty) = &function.result {
            if signature.retptr {
                let (size, align) = self.size(ty);
                writeln!(before, "\tanswer := allocate({size}, {align})")?;
                flat.push("answer".into());
                call = format!("{raw}({})", flat.join(", "));
                writeln!(after, "\tr := {}", self.load(ty, "answer")?)?;
            } else {
                let Shape::Plain(plain) = self.shape(ty)? else {
                    bail!("{name}: its result is not supported");
                };
                call = match plain {
                    "bool" => format!("r := {call} != 0"),
                    _ => format!("r := {plain}({call})"),
                };
            }
        }
        let core_parameters: Vec<_> = signature
            .params
            .iter()
            .enumerate()
            .map(|(i, ty)| format!("a{i} {}", core(*ty)))
            .collect();
        let core_result = signature.results.first().map_or("", |ty| core(*ty));
        let mut docs = String::new();
        comment(&mut docs, "", &name, &function.docs);
        write!(
            self.abi,
            "//go:wasmimport {interface_name} {}\nfunc {raw}({}) {core_result}\n\n{docs}func {name}({parameters}) {results} {{\n\
             \tdefer release()\n{before}\t{call}\n{after}{give}}}\n\n",
            function.name,
            core_parameters.join(", "),
        )?;
        let panics = format!("\n\tpanic(missing(\"{name}\"))\n");
        write!(
            self.native,
            "{docs}var {name} = func({parameters}) {results} {{{panics}}}\n\n"
        )?;
        Ok(())
    }

    /// What a plugin exports is an interface in Go, and whoever implements it.
    fn exports(&mut self, interface_name: &str, interface: InterfaceId) -> Result<()> {
        let name = self.prefix(interface);
        let mut methods = String::new();
        for function in self.resolve.interfaces[interface].functions.values() {
            let Some(result) = &function.result else {
                bail!("{}: an export without a result is not supported", function.name);
            };
            let signature = self.resolve.wasm_signature(AbiVariant::GuestExport, function);
            if !signature.retptr || (!function.params.is_empty() && !signature.indirect_params) {
                bail!("{}: an export of few values is not supported", function.name);
            }
            let (go_name, go_result) = (pascal(&function.name), self.go(result)?);
            let (mut parameters, mut loads, mut arguments) = (Vec::new(), String::new(), Vec::new());
            let types: Vec<_> = function.params.iter().map(|p| p.ty).collect();
            let offsets: Vec<_> = self
                .sizes
                .field_offsets(&types)
                .iter()
                .map(|(at, _)| at.size_wasm32())
                .collect();
            for (parameter, offset) in function.params.iter().zip(offsets) {
                let local = camel(&parameter.name);
                parameters.push(format!("{local} {}", self.go(&parameter.ty)?));
                writeln!(
                    loads,
                    "\t{local} := {}",
                    self.load(&parameter.ty, &format!("p+{offset}"))?
                )?;
                arguments.push(local);
            }
            comment(&mut methods, "\t", &go_name, &function.docs);
            writeln!(methods, "\t{go_name}({}) {go_result}", parameters.join(", "))?;
            let (size, align) = self.size(result);
            let store = self.store(result, "answer", "result")?;
            let p = if types.is_empty() { "" } else { "p uint32" };
            write!(
                self.abi,
                "//go:wasmexport {interface_name}#{0}\nfunc export{name}{go_name}({p}) uint32 {{\n{loads}\trelease()\n\
                 \tresult := {name}Exports.{go_name}({1})\n\tanswer := allocate({size}, {align})\n\t{store}\n\treturn answer\n}}\n\n\
                 //go:wasmexport cabi_post_{interface_name}#{0}\nfunc post{name}{go_name}(uint32) {{ release() }}\n\n",
                function.name,
                arguments.join(", "),
            )?;
        }
        write!(
            self.types,
            "// {name} is what a plugin exports.\ntype {name} interface {{\n{methods}}}\n\n\
             // {name}Exports is set before the host calls: by an init function.\nvar {name}Exports {name}\n\n"
        )?;
        Ok(())
    }
}

fn core(ty: WasmType) -> &'static str {
    match ty {
        WasmType::I64 | WasmType::PointerOrI64 => "uint64",
        WasmType::F32 => "float32",
        WasmType::F64 => "float64",
        WasmType::I32 | WasmType::Pointer | WasmType::Length => "uint32",
    }
}

fn comment(out: &mut String, indent: &str, name: &str, docs: &Docs) {
    let Some(text) = docs.contents.as_deref().map(str::trim) else {
        if !name.is_empty() {
            out.push_str(&format!("{indent}// {name} is of the contract.\n"));
        }
        return;
    };
    if !name.is_empty() {
        out.push_str(&format!("{indent}// {name}:\n"));
    }
    for line in text.lines() {
        out.push_str(format!("{indent}// {}", line.trim()).trim_end());
        out.push('\n');
    }
}

fn pascal(name: &str) -> String {
    let parts = name.split('-').map(|part| {
        let mut letters = part.chars();
        letters.next().map_or(String::new(), |first| {
            first.to_uppercase().chain(letters).collect()
        })
    });
    parts.collect()
}

/// With an underscore, where Go has a word of its own.
fn camel(name: &str) -> String {
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

    #[test]
    fn names_are_those_of_go() {
        assert_eq!(pascal("object-ref"), "ObjectRef");
        assert_eq!(camel("path-and-query"), "pathAndQuery");
        assert_eq!(camel("type"), "type_");
    }
}
