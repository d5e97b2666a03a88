//! The folder of compiled code. It is machine code that the host runs, so only files that no other user could have
//! written are read from it.

use std::{
    fs::{DirBuilder, File},
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

/// Write permission of the group and of others.
const FOREIGN_WRITE: u32 = 0o022;

/// The folder `code-UID` of this user in a cache directory, which may be shared with other users. All access is relative to
/// the open folder, so that another user who renames it changes nothing.
pub struct CodeFolder(OwnedFd);

impl CodeFolder {
    /// Opens the folder, and creates it if it does not exist. Fails if another user may write to it.
    pub fn open(cache: &Path) -> io::Result<Self> {
        let path = cache.join(format!("code-{}", rustix::process::geteuid().as_raw()));
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&path, flags, Mode::empty())?;
        check_owner(&folder, FileType::Directory)?;
        Ok(Self(folder))
    }

    /// Opens a file to read; `None` if it does not exist. Fails if it is a symbolic link, or another user may write to it.
    pub fn open_file(&self, name: &str) -> io::Result<Option<File>> {
        // Without NONBLOCK, opening a pipe would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.0, name, flags, Mode::empty()) {
            Ok(file) => {
                check_owner(&file, FileType::RegularFile)?;
                Ok(Some(file.into()))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP) => Err(io::Error::other("it is a symbolic link")),
            Err(e) => Err(e.into()),
        }
    }

    /// Writes a file under a temporary name and renames it, so that a reader never sees a part of it.
    pub fn store(&self, name: &str, content: &[u8]) -> io::Result<()> {
        // Process ids are the same in containers that share the folder.
        let partial = format!("{name}.{:016x}.partial", fastrand::u64(..));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, &*partial, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(content)?;
        Ok(rustix::fs::renameat(&self.0, &*partial, &self.0, name)?)
    }

    /// Removes a file if it exists.
    pub fn remove_file(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.0, name, AtFlags::empty());
    }
}

/// Checks that a file is of this type and that only this user may write to it.
fn check_owner(file: &impl AsFd, expected: FileType) -> io::Result<()> {
    let found = rustix::fs::fstat(file)?;
    let user = rustix::process::geteuid().as_raw();
    let mode = found.st_mode;
    if FileType::from_raw_mode(found.st_mode) != expected {
        return Err(io::Error::other(format!("it is no {expected:?}")));
    }
    if found.st_uid != user {
        return Err(io::Error::other(format!(
            "it belongs to user {}, and this is user {user}",
            found.st_uid
        )));
    }
    if mode & FOREIGN_WRITE != 0 {
        return Err(io::Error::other(format!(
            "its mode {:o} lets other users write to it",
            mode & 0o7777
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt, chown, symlink},
    };

    use super::*;

    struct Lab {
        cache: tempfile::TempDir,
        folder: CodeFolder,
    }

    impl Lab {
        fn new() -> Self {
            let cache = tempfile::tempdir().expect("a directory");
            let folder = CodeFolder::open(cache.path()).expect("a folder");
            Self { cache, folder }
        }

        fn path(&self) -> std::path::PathBuf {
            let folder = format!("code-{}", rustix::process::geteuid().as_raw());
            self.cache.path().join(folder)
        }

        /// The reason why a stored file is not opened after a change to it.
        fn refusal_after(change: impl FnOnce(&Path)) -> String {
            let lab = Self::new();
            lab.folder.store("a", b"code").expect("stored");
            assert!(lab.folder.open_file("a").expect("trusted").is_some());
            change(&lab.path().join("a"));
            lab.folder.open_file("a").expect_err("not trusted").to_string()
        }
    }

    #[test]
    fn stored_file_is_opened_and_missing_one_is_none() {
        let lab = Lab::new();
        assert!(lab.folder.open_file("a").expect("readable").is_none());
        lab.folder.store("a", b"old").expect("stored");
        lab.folder.store("a", b"new").expect("replaced");
        let file = lab.folder.open_file("a").expect("trusted").expect("it exists");
        assert_eq!(io::read_to_string(file).expect("text"), "new");
        assert_eq!(
            fs::read_dir(lab.path()).expect("a folder").count(),
            1,
            "no partial file"
        );
    }

    #[test]
    fn file_that_others_may_write_is_refused() {
        for mode in [0o666, 0o620, 0o602] {
            let why = Lab::refusal_after(|file| {
                fs::set_permissions(file, Permissions::from_mode(mode)).expect("set")
            });
            assert!(why.contains(&format!("mode {mode:o}")), "{why}");
        }
    }

    #[test]
    fn symbolic_link_is_refused() {
        let why = Lab::refusal_after(|file| {
            let target = file.with_extension("target");
            fs::rename(file, &target).expect("renamed");
            symlink(target, file).expect("linked");
        });
        assert!(why.contains("symbolic link"), "{why}");
    }

    #[test]
    fn directory_in_place_of_file_is_refused() {
        let why = Lab::refusal_after(|file| {
            fs::remove_file(file).expect("removed");
            fs::create_dir(file).expect("created");
        });
        assert!(why.contains("RegularFile"), "{why}");
    }

    #[test]
    fn file_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can give a file away");
            return;
        }
        let why = Lab::refusal_after(|file| chown(file, Some(1), None).expect("given away"));
        assert!(why.contains("user 1"), "{why}");
        let lab = Lab::new();
        chown(lab.path(), Some(1), None).expect("given away");
        assert!(CodeFolder::open(lab.cache.path()).is_err());
    }

    #[test]
    fn folder_that_others_may_write_is_refused_but_not_its_parent() {
        let lab = Lab::new();
        fs::set_permissions(lab.cache.path(), Permissions::from_mode(0o777)).expect("set");
        CodeFolder::open(lab.cache.path()).expect("its own folder is private");
        fs::set_permissions(lab.path(), Permissions::from_mode(0o770)).expect("set");
        assert!(CodeFolder::open(lab.cache.path()).is_err());
        fs::remove_dir(lab.path()).expect("removed");
        symlink("/", lab.path()).expect("linked");
        assert!(CodeFolder::open(lab.cache.path()).is_err());
    }
}
