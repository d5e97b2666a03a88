//! Copies the shim into the shared volume: the image of the process does not have it.

use std::{env, fs, io, os::unix::fs::PermissionsExt, path::Path};

/// Copies the running executable to `bin/shim` and makes the directory of the artifacts.
pub fn install(root: &str) -> io::Result<()> {
    let folder = Path::new(root).join("bin");
    fs::create_dir_all(&folder)?;
    // The process's container may have another user than this one, and it writes the artifacts.
    for shared in ["artifacts", "fetched"] {
        let shared = Path::new(root).join(shared);
        fs::create_dir_all(&shared)?;
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777))?;
    }
    // By another name first: a container that is started again must not see half of it, nor overwrite what may run.
    let partial = folder.join("shim.partial");
    fs::copy(env::current_exe()?, &partial)?;
    fs::set_permissions(&partial, fs::Permissions::from_mode(0o755))?;
    fs::rename(&partial, folder.join("shim"))
}
