//! Runs the tests that the SDKs in other languages have in their own language, without a host.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use ostler_builder::{
    go,
    tools::{BuildDir, require_program, run_command},
};

fn sibling_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn run_go(arguments: &[&str], folder: &Path, workspace: &Path) {
    let mut command = Command::new("go");
    command
        .args(arguments)
        .current_dir(folder)
        .env("GOWORK", workspace);
    run_command(command).unwrap();
}

#[test]
fn go_sdk_and_example_pass_their_tests() {
    require_program(&["go", "version"], &["golang"], true).unwrap();
    let sdk = sibling_dir("sdk-go");
    run_go(&["vet", ".", "./crds", "./ostlertest"], &sdk, Path::new("off"));
    run_go(&["test", "./..."], &sdk, Path::new("off"));
    let example = sibling_dir("examples/bookmark-go");
    let dir = BuildDir::new(&example, "bookmark-go-test").unwrap();
    run_go(&["test", "./..."], &example, &go::write_workspace(&dir).unwrap());
}

#[test]
fn javascript_sdk_passes_its_tests() {
    require_program(&["node", "--version"], &["nodejs"], true).unwrap();
    let mut test = Command::new("node");
    test.args(["--import", "./testing/register.js", "--test", "testing.test.mjs"])
        .current_dir(sibling_dir("sdk-js"));
    run_command(test).unwrap();
    let mut test = Command::new("node");
    test.args([
        "--test",
        "runtime.test.mjs",
        "panics.test.mjs",
        "events.test.mjs",
        "provision.test.mjs",
        "provider.test.mjs",
        "sha256.test.mjs",
    ])
    .current_dir(sibling_dir("sdk-js"));
    run_command(test).unwrap();
}

#[test]
fn python_sdk_passes_its_tests() {
    require_program(&["python3", "--version"], &["python3"], true).unwrap();
    // One process each, since they replace the modules of the host.
    for file in [
        "panics_test.py",
        "events_test.py",
        "provision_test.py",
        "provider_test.py",
        "types_test.py",
        "testing_test.py",
    ] {
        let mut test = Command::new("python3");
        // Without a cache beside the SDK, whose files are embedded.
        test.args(["-B", "-m", "unittest", file])
            .current_dir(sibling_dir("sdk-python"));
        run_command(test).unwrap();
    }
}
