//! Compilation of components in a separate process.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

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

/// The files of compiled code, which are in a folder of this user's.
fn kept_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let folders = entries.filter(|e| e.file_name().to_string_lossy().starts_with("code-"));
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.path()).expect("a folder"));
    files.map(|file| file.expect("an entry").path()).collect()
}

fn kept(directory: &Path) -> usize {
    kept_files(directory).len()
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

/// A file that another user could have written is machine code of that user's: it is compiled again, and replaced.
#[test]
fn code_that_others_may_write_is_compiled_again() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let directory = tempfile::tempdir().expect("a directory");
    let engine = engine(directory.path(), env!("CARGO_BIN_EXE_ostler"));
    engine.precompile(EMPTY).expect("compiles");
    let [file] = &kept_files(directory.path())[..] else {
        panic!("one file");
    };
    let before = std::fs::metadata(file).expect("a file").ino();
    engine.precompile(EMPTY).expect("is kept");
    assert_eq!(
        std::fs::metadata(file).expect("a file").ino(),
        before,
        "loaded, not written"
    );
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o666)).expect("set");
    engine.precompile(EMPTY).expect("compiles");
    let after = std::fs::metadata(file).expect("a file");
    assert_ne!(after.ino(), before, "another file");
    assert_eq!(after.mode() & 0o777, 0o600);
}

/// Each compiler takes memory beside the host's, so few of them run at the same time, however many components there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn components_are_compiled_by_a_bounded_number_of_compilers() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    // A compiler that records its beginning and its end, and takes a while.
    let script = directory.path().join("compiler");
    let text = format!(
        "#!/bin/sh\nPATH=/bin:/usr/bin\necho begin >> {log}\ncat > /dev/null\nsleep 0.2\necho end >> {log}\nexit 1\n",
        log = log.display()
    );
    std::fs::write(&script, text).expect("a script");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o700)).expect("executable");
    let engine = engine(&directory.path().join("cache"), script.to_str().expect("a path"));
    let engine = Arc::new(engine);
    let loads = (0..8u8).map(|i| {
        // A custom section makes each component another one.
        let wasm = [EMPTY, &[0, 2, 1, b'a' + i]].concat();
        let engine = engine.clone();
        tokio::spawn(async move { engine.compile_in_turn(wasm, false).await.is_err() })
    });
    let loads: Vec<_> = loads.collect();
    for load in loads {
        assert!(load.await.expect("no panic"), "this compiler compiles nothing");
    }
    let log = std::fs::read_to_string(&log).expect("a log");
    let (mut running, mut most, mut began) = (0usize, 0, 0);
    for line in log.lines() {
        if line == "begin" {
            running += 1;
            began += 1;
        } else {
            running -= 1;
        }
        most = most.max(running);
    }
    assert_eq!((began, running), (8, 0));
    let cores = std::thread::available_parallelism().expect("a number").get();
    assert!(
        most <= (cores / 2).clamp(1, 2),
        "{most} compilers at the same time"
    );
}
