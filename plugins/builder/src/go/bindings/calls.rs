//! Functions for both directions of calls: imports (the plugin calls the host) and exports (the host calls the plugin).

use std::fmt::Write;

use anyhow::{Result, bail};
use wit_parser::{
    Function, InterfaceId, Type, TypeDefKind,
    abi::{AbiVariant, WasmType},
};

use super::{
    Generator, Shape,
    names::{to_camel_case, to_pascal_case},
    types::write_comment,
};

/// Interfaces that only some plugins export, and the packages of their entry points.
const OPTIONAL_EXPORTS: [(&str, &str); 2] = [("Messages", "messages"), ("Lifecycle", "lifecycle")];

impl Generator<'_> {
    /// Appends the core values of a parameter to `flat`, and the statements that compute them to `before`.
    fn flatten_parameter(
        &mut self,
        ty: &Type,
        value: &str,
        before: &mut String,
        flat: &mut Vec<String>,
    ) -> Result<()> {
        match self.resolve_shape(ty)? {
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
                    self.flatten_parameter(
                        &field.ty,
                        &format!("{value}.{}", to_pascal_case(&field.name)),
                        before,
                        flat,
                    )?;
                }
            }
            Shape::Kind(_, TypeDefKind::Tuple(tuple)) => {
                for (i, ty) in tuple.types.iter().enumerate() {
                    self.flatten_parameter(ty, &format!("{value}.F{i}"), before, flat)?;
                }
            }
            Shape::Kind(_, TypeDefKind::Option(some)) => {
                let (mut inside, mut values) = (String::new(), Vec::new());
                self.flatten_parameter(some, &format!("(*{value})"), &mut inside, &mut values)?;
                let tag = self.fresh_variable("some");
                writeln!(before, "\tvar {tag} uint32")?;
                flat.push(tag.clone());
                let mut sets = String::new();
                for (value, core) in values.iter().zip(self.core_types(some)?) {
                    let name = self.fresh_variable("flat");
                    writeln!(before, "\tvar {name} {core}")?;
                    writeln!(sets, "\t{name} = {value}")?;
                    flat.push(name);
                }
                writeln!(before, "\tif {value} != nil {{\n\t{tag} = 1\n{inside}{sets}\t}}")?;
            }
            Shape::String | Shape::Bytes | Shape::Kind(_, TypeDefKind::List(_)) => {
                self.write_functions(ty)?;
                let (address, count) = (self.fresh_variable("address"), self.fresh_variable("count"));
                writeln!(
                    before,
                    "\t{address}, {count} := lower{}({value})",
                    self.mangle_name(ty)?
                )?;
                flat.extend([address, count]);
            }
            Shape::Kind(_, other) => bail!("{} as a parameter is not supported", other.as_str()),
        }
        Ok(())
    }

    /// Returns the core types a type is flattened to.
    fn core_types(&self, ty: &Type) -> Result<Vec<&'static str>> {
        let mut function_types = [WasmType::I32; 64];
        let mut flat = wit_parser::abi::FlatTypes::new(&mut function_types);
        if !self.resolve.push_flat(ty, &mut flat) {
            bail!("too large for a parameter");
        }
        Ok(flat.to_vec().iter().map(|ty| core_type_name(*ty)).collect())
    }

    pub(super) fn write_import(
        &mut self,
        interface_name: &str,
        interface: InterfaceId,
        function: &Function,
    ) -> Result<()> {
        let signature = self.resolve.wasm_signature(AbiVariant::GuestImport, function);
        let name = self.interface_prefix(interface) + &to_pascal_case(&function.name);
        let raw = format!("host{name}");
        let mut parameters = Vec::new();
        for parameter in &function.params {
            parameters.push(format!(
                "{} {}",
                to_camel_case(&parameter.name),
                self.go_type(&parameter.ty)?
            ));
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
            let offsets = self.field_offsets(&types);
            for (parameter, offset) in function.params.iter().zip(offsets) {
                let store = self.store_statement(
                    &parameter.ty,
                    &format!("p+{offset}"),
                    &to_camel_case(&parameter.name),
                )?;
                writeln!(before, "\t{store}")?;
            }
            flat.push("p".into());
        } else {
            for parameter in &function.params {
                self.flatten_parameter(
                    &parameter.ty,
                    &to_camel_case(&parameter.name),
                    &mut before,
                    &mut flat,
                )?;
            }
        }
        // A `result` becomes Go's pair of a value and an error.
        let (results, give) = match &function.result {
            None => (String::new(), String::new()),
            Some(ty) => match self.resolve_shape(ty)? {
                Shape::Kind(_, TypeDefKind::Result(r)) => {
                    let err = self.go_type_or_unit(r.err.as_ref())?;
                    match &r.ok {
                        Some(ok) => (
                            format!("({}, *{err})", self.go_type(ok)?),
                            "\treturn r.Ok, r.Err\n".into(),
                        ),
                        None => (format!("*{err}"), "\treturn r.Err\n".into()),
                    }
                }
                _ => (self.go_type(ty)?, "\treturn r\n".to_owned()),
            },
        };
        let mut after = String::new();
        let mut call = format!("{raw}({})", flat.join(", "));
        if let Some(ty) = &function.result {
            if signature.retptr {
                let (size, align) = self.size_and_align(ty);
                writeln!(before, "\tanswer := allocate({size}, {align})")?;
                flat.push("answer".into());
                call = format!("{raw}({})", flat.join(", "));
                writeln!(after, "\tr := {}", self.load_expression(ty, "answer")?)?;
            } else {
                let Shape::Plain(plain) = self.resolve_shape(ty)? else {
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
            .map(|(i, ty)| format!("a{i} {}", core_type_name(*ty)))
            .collect();
        let core_result = signature.results.first().map_or("", |ty| core_type_name(*ty));
        let mut docs = String::new();
        write_comment(&mut docs, "", &name, &function.docs);
        write!(
            self.abi,
            "//go:wasmimport {interface_name} {}\nfunc {raw}({}) {core_result}\n\n{docs}func {name}({parameters}) {results} {{\n\
             \tdefer release()\n{before}\t{call}\n{after}{give}}}\n\n",
            function.name,
            core_parameters.join(", "),
        )?;
        let panics = format!("\n\tpanic(\"wit.{name} is not set: outside of a host a test sets it\")\n");
        write!(
            self.native,
            "{docs}var {name} = func({parameters}) {results} {{{panics}}}\n\n"
        )?;
        Ok(())
    }

    /// Writes an exported interface as a Go interface, and a variable for its implementation.
    pub(super) fn write_exports(&mut self, interface_name: &str, interface: InterfaceId) -> Result<()> {
        let name = self.interface_prefix(interface);
        let mut methods = String::new();
        for function in self.resolve.interfaces[interface].functions.values() {
            let Some(result) = &function.result else {
                bail!("{}: an export without a result is not supported", function.name);
            };
            let signature = self.resolve.wasm_signature(AbiVariant::GuestExport, function);
            if !signature.retptr {
                bail!(
                    "{}: an export with a small result is not supported",
                    function.name
                );
            }
            let (go_name, go_result) = (to_pascal_case(&function.name), self.go_type(result)?);
            let (mut parameters, mut loads, mut arguments) = (Vec::new(), String::new(), Vec::new());
            let types: Vec<_> = function.params.iter().map(|p| p.ty).collect();
            let offsets = self.field_offsets(&types);
            // Few values are passed themselves, and not by their address. A list is its address and its length, in memory, too.
            let mut core_parameters = Vec::new();
            if types.is_empty() {
            } else if signature.indirect_params {
                core_parameters.push("p".to_owned());
            } else {
                let record = self.sizes.record(&types);
                writeln!(
                    loads,
                    "\tp := allocate({}, {})",
                    record.size.size_wasm32(),
                    record.align.align_wasm32()
                )?;
                for (ty, offset) in types.iter().zip(&offsets) {
                    if !matches!(self.resolve_shape(ty)?, Shape::String | Shape::Bytes) {
                        bail!("{}: an export of few values is not supported", function.name);
                    }
                    for part in 0..2 {
                        let value = format!("a{}", core_parameters.len());
                        writeln!(loads, "\tstore(p+{}, {value})", offset + 4 * part)?;
                        core_parameters.push(value);
                    }
                }
            }
            for (parameter, offset) in function.params.iter().zip(offsets) {
                let local = to_camel_case(&parameter.name);
                parameters.push(format!("{local} {}", self.go_type(&parameter.ty)?));
                writeln!(
                    loads,
                    "\t{local} := {}",
                    self.load_expression(&parameter.ty, &format!("p+{offset}"))?
                )?;
                arguments.push(local);
            }
            write_comment(&mut methods, "\t", &go_name, &function.docs);
            writeln!(methods, "\t{go_name}({}) {go_result}", parameters.join(", "))?;
            let (size, align) = self.size_and_align(result);
            let store = self.store_statement(result, "answer", "result")?;
            let argument = core_parameters.join(", ");
            let p = match &*argument {
                "" => String::new(),
                _ => format!("{argument} uint32"),
            };
            let body = format!(
                "({p}) uint32 {{\n{loads}\trelease()\n\tresult := {name}Exports.{go_name}({})\n\
                 \tanswer := allocate({size}, {align})\n\t{store}\n\treturn answer\n}}\n\n",
                arguments.join(", ")
            );
            let entry =
                |prefix: &str| format!("//go:wasmexport {prefix}{interface_name}#{}\n", function.name);
            let (call, post) = (entry(""), entry("cabi_post_"));
            let optional = OPTIONAL_EXPORTS.iter().find(|(interface, _)| *interface == name);
            if let Some((_, package)) = optional {
                write!(
                    self.abi,
                    "// Call{name}{go_name} is the body of an entry point.\nfunc Call{name}{go_name}{body}\
                     // Post{name}{go_name} is called when the host has read the result.\nfunc Post{name}{go_name}() {{ release() }}\n\n",
                )?;
                write!(
                    self.optional.entry(package).or_default(),
                    "{call}func export{go_name}({p}) uint32 {{ return wit.Call{name}{go_name}({argument}) }}\n\n\
                     {post}func post{go_name}(uint32) {{ wit.Post{name}{go_name}() }}\n\n",
                )?;
            } else {
                write!(
                    self.abi,
                    "{call}func export{name}{go_name}{body}{post}func post{name}{go_name}(uint32) {{ release() }}\n\n",
                )?;
            }
        }
        write!(
            self.types,
            "// {name} is what a plugin exports.\ntype {name} interface {{\n{methods}}}\n\n\
             // {name}Exports is set before the host calls: by an init function.\nvar {name}Exports {name}\n\n"
        )?;
        Ok(())
    }
}

fn core_type_name(ty: WasmType) -> &'static str {
    match ty {
        WasmType::I64 | WasmType::PointerOrI64 => "uint64",
        WasmType::F32 => "float32",
        WasmType::F64 => "float64",
        WasmType::I32 | WasmType::Pointer | WasmType::Length => "uint32",
    }
}
