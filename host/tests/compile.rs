//! Compilation of components in a separate process.

use std::path::{Path, PathBuf};

use ostler::testing::engine::{CompileCache, Engine};

/// The smallest valid component.
const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

fn engine(directory: &Path, compiler: &str) -> Engine {
    let cache = CompileCache {
        directory: directory.to_owned(),
        compiler: Some(PathBuf::from(compiler)),
    };
    Engine::new(2, 1 << 20, Some(cache), None).expect("an engine")
}

fn kept(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

#[test]
fn compiler_process_fills_the_cache() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("called");
    // A fake compiler that records its calls.
    let script = directory.path().join("compiler");
    let text = format!(
        "#!/bin/sh\necho called >> {}\nexec {} \"$@\"\n",
        log.display(),
        env!("CARGO_BIN_EXE_ostler")
    );
    std::fs::write(&script, text).expect("a script");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o700)).expect("executable");

    let cache = directory.path().join("cache");
    let engine = engine(&cache, script.to_str().expect("a path"));
    engine.precompile(EMPTY).expect("compiles");
    engine.precompile(EMPTY).expect("is kept");
    assert_eq!(kept(&cache), 1);
    let called = std::fs::read_to_string(&log).expect("called");
    assert_eq!(called.lines().count(), 1, "compiled once");
}

#[test]
fn compile_error_is_returned_from_the_compiler_process() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = engine(directory.path(), env!("CARGO_BIN_EXE_ostler"));
    let error = engine.precompile(b"\0asm\x0d\0\x01\0\xff").expect_err("garbage");
    let text = format!("{error:#}");
    assert!(text.contains("offset") && !text.contains("ostler:"), "{text}");
    assert_eq!(kept(directory.path()), 0);
}

#[test]
fn component_compiles_in_process_without_a_compiler() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = engine(directory.path(), "/nowhere/ostler");
    engine.precompile(EMPTY).expect("compiles");
    assert_eq!(kept(directory.path()), 1);
}
