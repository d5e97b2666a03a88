//! What of the SDKs in other languages is tested in these languages, without a host.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use ostler_builder::{
    go,
    tools::{Workplace, require, run},
};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn go(arguments: &[&str], folder: &Path, workspace: &Path) {
    let mut command = Command::new("go");
    command
        .args(arguments)
        .current_dir(folder)
        .env("GOWORK", workspace);
    run(command).unwrap();
}

#[test]
fn go_sdk_and_example() {
    require(&["go", "version"], &["golang"], true).unwrap();
    let sdk = folder("sdk-go");
    go(&["vet", "."], &sdk, Path::new("off"));
    go(&["test", "./..."], &sdk, Path::new("off"));
    let example = folder("examples/bookmark-go");
    let place = Workplace::of(&example, "bookmark-go-test").unwrap();
    go(&["test", "./..."], &example, &go::workspace(&place).unwrap());
}

#[test]
fn javascript_sdk() {
    require(&["node", "--version"], &["nodejs"], true).unwrap();
    let mut test = Command::new("node");
    test.args(["--test", "runtime.test.mjs"])
        .current_dir(folder("sdk-js"));
    run(test).unwrap();
}
