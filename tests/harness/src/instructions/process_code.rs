//! What the code of this process belongs to: files of the host, crates, components or libraries of the system.

use std::{
    collections::HashMap,
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
    rc::Rc,
};

use object::{Object, ObjectSymbol, ReadCache, SymbolKind};

use crate::{
    counts::host_sources,
    memory_map::{MemoryMapping, list_mappings},
};

/// What the code at an address belongs to.
#[derive(Clone, Debug)]
pub(super) enum CodeOwner {
    /// A file of the host, which is the place of what it calls, too.
    HostFile(Rc<str>),
    /// A crate, whose place this is where no file of the host has called it.
    Crate(Rc<str>),
    Components,
    /// A library of the system, which does not count.
    Library,
}

/// The code of this process.
pub(super) struct ProcessCode<'a> {
    memory: &'a ProcessMemory,
    /// Address at which the executable is mapped.
    base: usize,
    /// Functions of the executable, in the order of their addresses.
    functions: Vec<ExecutableFunction>,
    sources: PathBuf,
    /// Owners of the addresses that were looked up.
    owners: HashMap<usize, CodeOwner>,
}

/// A function of the executable.
struct ExecutableFunction {
    range: Range<usize>,
    /// Its mangled name.
    name: String,
}

impl<'a> ProcessCode<'a> {
    /// Reads the functions of the executable in this memory.
    pub fn read(memory: &'a ProcessMemory) -> Self {
        let is_executable = |mapping: &&SourceMapping| mapping.source == MappingSource::Executable;
        let first = memory.0.iter().find(is_executable);
        Self {
            memory,
            base: first.expect("the executable is mapped").range.start,
            functions: read_functions(),
            sources: host_sources(),
            owners: HashMap::new(),
        }
    }

    /// Finds what the code at an address belongs to.
    pub fn find_owner(&mut self, address: usize) -> CodeOwner {
        if let Some(owner) = self.owners.get(&address) {
            return owner.clone();
        }
        let owner = match self.memory.find(address).map(|mapping| mapping.source) {
            Some(MappingSource::Library) => CodeOwner::Library,
            Some(MappingSource::Executable) => self.find_function_owner(address - self.base),
            Some(MappingSource::Other) | None => CodeOwner::Components,
        };
        self.owners.insert(address, owner.clone());
        owner
    }

    fn find_function_owner(&self, address: usize) -> CodeOwner {
        let after = self.functions.partition_point(|f| f.range.end <= address);
        let function = self.functions.get(after);
        let name = function.filter(|f| f.range.contains(&address));
        let name = name.map(|f| rustc_demangle::demangle(&f.name).to_string());
        let name = name.unwrap_or_default();
        match find_host_file(&name, &self.sources) {
            Some(file) => CodeOwner::HostFile(file.into()),
            None => CodeOwner::Crate(find_crate(&name).into()),
        }
    }
}

/// Reads the functions of the executable from its table of symbols.
fn read_functions() -> Vec<ExecutableFunction> {
    let file = File::open("/proc/self/exe").expect("the executable");
    let cache = ReadCache::new(file);
    let executable = object::File::parse(&cache).expect("the executable is in ELF");
    let texts = executable
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text);
    let functions = texts.filter_map(|symbol| {
        let start = usize::try_from(symbol.address()).ok()?;
        let range = start..start + usize::try_from(symbol.size()).ok()?;
        let name = symbol.name().ok()?.to_owned();
        Some(ExecutableFunction { range, name })
    });
    let mut functions: Vec<ExecutableFunction> = functions.collect();
    functions.sort_unstable_by_key(|function| (function.range.end, function.range.start));
    functions
}

/// Returns the file of the host, relative to its sources, in which a function is: that of the innermost module in its path.
fn find_host_file(function: &str, sources: &Path) -> Option<String> {
    let path = function.trim_start_matches(['<', '&']).strip_prefix("ostler::")?;
    let end = path.find(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
    let modules: Vec<&str> = path[..end.unwrap_or(path.len())].split("::").collect();
    let files = (1..=modules.len()).rev().map(|n| modules[..n].join("/") + ".rs");
    files.into_iter().find(|file| sources.join(file).is_file())
}

/// The mappings of this process, in the order of their addresses.
pub(super) struct ProcessMemory(Vec<SourceMapping>);

/// A range of addresses, and what is there.
#[derive(Debug, PartialEq)]
struct SourceMapping {
    range: Range<usize>,
    source: MappingSource,
}

/// What is mapped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MappingSource {
    /// The executable.
    Executable,
    /// The C library and others of the system.
    Library,
    /// Compiled components, stacks and other memory.
    Other,
}

impl ProcessMemory {
    /// Reads the mappings there are now.
    pub fn read() -> Self {
        let executable = std::env::current_exe().expect("the executable");
        let executable = executable.to_string_lossy();
        let mappings = list_mappings("self").into_iter();
        Self(
            mappings
                .map(|mapping| SourceMapping::new(mapping, &executable))
                .collect(),
        )
    }

    /// Returns the first address of the mapping that has an address; 0 if none has it.
    pub fn find_start(&self, address: usize) -> usize {
        self.find(address).map_or(0, |mapping| mapping.range.start)
    }

    fn find(&self, address: usize) -> Option<&SourceMapping> {
        let after = self.0.partition_point(|mapping| mapping.range.end <= address);
        self.0
            .get(after)
            .filter(|mapping| mapping.range.contains(&address))
    }
}

impl SourceMapping {
    fn new(mapping: MemoryMapping, executable: &str) -> Self {
        let source = match &*mapping.path {
            path if path == executable => MappingSource::Executable,
            path if path.starts_with('[') || path.contains(".so") => MappingSource::Library,
            _ => MappingSource::Other,
        };
        Self {
            range: mapping.range,
            source,
        }
    }
}

/// Returns the crate in the name of a function: the beginning of its first path. Functions of C have none.
fn find_crate(function: &str) -> &str {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let path = function.match_indices("::").find_map(|(end, _)| {
        let before = &function[..end];
        let name = &before[before.trim_end_matches(is_name).len()..];
        (!name.is_empty()).then_some(name)
    });
    path.unwrap_or("C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_of_the_executable_a_library_or_other_memory() {
        let lines = [
            "1000-2000 r-xp 00001000 fe:00 12 /target/test",
            "2000-4000 r-xp 00001000 fe:00 13 /usr/lib/libc.so.6",
            "5000-6000 rw-p 00000000 00:00 0",
        ];
        let parse = |line| SourceMapping::new(MemoryMapping::parse(line).unwrap(), "/target/test");
        let memory = ProcessMemory(lines.map(parse).into());
        let source = |address| memory.find(address).map(|mapping| mapping.source);
        assert_eq!(
            [0xfff, 0x1000, 0x2000, 0x3fff, 0x4000, 0x5000, 0x6000].map(source),
            [
                None,
                Some(MappingSource::Executable),
                Some(MappingSource::Library),
                Some(MappingSource::Library),
                None,
                Some(MappingSource::Other),
                None
            ]
        );
        assert_eq!((memory.find_start(0x3fff), memory.find_start(0)), (0x2000, 0));
    }

    #[test]
    fn function_is_in_the_file_of_its_innermost_module() {
        for (function, expected) in [
            ("ostler::sandbox::engine::Engine::call", Some("sandbox/engine.rs")),
            (
                "ostler::kube::hash::encode_hex::{{closure}}",
                Some("kube/hash.rs"),
            ),
            (
                "<ostler::kube::key::ObjectRef as core::clone::Clone>::clone",
                Some("kube/key.rs"),
            ),
            ("core::ptr::drop_in_place<ostler::kube::key::ObjectRef>", None),
        ] {
            let found = find_host_file(function, &host_sources());
            assert_eq!(found.as_deref(), expected, "{function}");
        }
    }

    #[test]
    fn crate_of_a_function_is_the_beginning_of_its_first_path() {
        for (function, expected) in [
            ("ostler::sandbox::engine::Engine::call", "ostler"),
            ("<&T as core::fmt::Display>::fmt", "core"),
            ("<alloc::vec::Vec<T,A> as core::ops::drop::Drop>::drop", "alloc"),
            ("ZSTD_decompress", "C"),
        ] {
            assert_eq!(find_crate(function), expected, "{function}");
        }
    }
}
