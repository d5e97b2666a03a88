//! Writes the CRDs of the steps pack into a directory.

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    let directory = env::args_os().nth(1).map(PathBuf::from);
    let directory = directory.ok_or_else(|| io::Error::other("usage: crds DIRECTORY"))?;
    fs::create_dir_all(&directory)?;
    for (name, text) in steps_api::crds() {
        fs::write(directory.join(name), text)?;
    }
    Ok(())
}
