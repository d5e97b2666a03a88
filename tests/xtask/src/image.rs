//! Images of the host and of the shim of Steps, from files of this machine, without a base image.

mod archive;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use ostler_builder::toolchain::run_logged;
use tempfile::{NamedTempFile, TempDir};

use self::archive::NON_ROOT_USER;
pub use self::archive::{Image, machine_architecture};
use crate::{
    cargo::{self, IMAGE_TARGET, ImageBinary},
    components, paths, pgo,
    progress::BuildStep,
};

/// Name of the image of the host: `ostler:latest`, as containerd completes it.
pub const HOST_IMAGE: &str = "docker.io/library/ostler:latest";
/// Name of the image of the shim. A tag other than `latest` is not pulled where the image is there.
pub const SHIM_IMAGE: &str = "docker.io/library/steps-shim:1";
/// Maximum compressed size of the image of the host, optimized and without components.
const MAX_HOST_BYTES: usize = 25_000_000;
/// Maximum compressed size of the image of the shim, which every node that runs a Step fetches.
const MAX_SHIM_BYTES: usize = 2_000_000;
/// Certificates of public authorities, as packages of Debian and Fedora install them.
const CERTIFICATE_FILES: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];

/// Compilation of the host for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Optimized, without the development commands.
    Release,
    /// As for the tests, with debug information removed.
    Debug,
}

/// Options of `cargo xtask image`.
#[derive(clap::Args)]
pub struct ImageOptions {
    /// Packs whose components are in the plugin directory of the image, /plugins. Components of a registry need none.
    packs: Vec<String>,
    /// The image of the shim in the pods of Steps, in place of that of the host.
    #[arg(long, conflicts_with_all = ["packs", "profile"])]
    shim: bool,
    /// Compilation of the host.
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
    /// Name of the image [default: that of deploy/].
    #[arg(long)]
    name: Option<String>,
    /// Build the image again from a copy of the sources in another folder, and fail unless it is the same.
    #[arg(long, conflicts_with = "packs")]
    reproduce: bool,
    /// File of the OCI archive [default: target/ostler-image.tar or target/steps-shim-image.tar].
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// Builds an image, and prints its digest and size.
pub fn build_image(options: &ImageOptions) -> Result<()> {
    let (default_name, default_file) = if options.shim {
        (SHIM_IMAGE, "steps-shim-image.tar")
    } else {
        (HOST_IMAGE, "ostler-image.tar")
    };
    let image = build_image_of(paths::workspace_root(), options)?;
    let output = match &options.output {
        Some(file) => file.clone(),
        None => paths::create_target_subdir("")?.join(default_file),
    };
    let name = options.name.as_deref().unwrap_or(default_name);
    let step = BuildStep::new("Building the image");
    let archive = image.write_archive(name, &output)?;
    step.finish("");
    if options.reproduce {
        let copy = copy_sources()?;
        let image = build_image_of(&copy.path().join(COPY_NAME), options)?;
        let again = image.write_archive(name, &copy.path().join("image.tar"))?;
        let (first, second) = (&archive.digest, &again.digest);
        ensure!(
            first == second,
            "from a copy of the sources in another folder, the digest of the image is {second} instead of {first}"
        );
        println!("the same from a copy of the sources in another folder");
    }
    println!("{}", output.display());
    println!("{name}@{}", archive.digest);
    println!("{:.1} MB compressed", archive.compressed_bytes as f64 / 1e6);
    Ok(())
}

/// Name of the folder with a copy of the sources, whose path has another length than that of most checkouts.
const COPY_NAME: &str = "a-copy-of-the-sources-of-the-image";

/// Copies the sources of this checkout, as they are, to a folder that is removed with the result.
fn copy_sources() -> Result<TempDir> {
    let root = paths::workspace_root();
    let folder = tempfile::tempdir()?;
    let mut list = Command::new("git");
    list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root);
    let listed = list.output().context("running git")?;
    ensure!(listed.status.success(), "git ls-files: {}", listed.status);
    for name in listed
        .stdout
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let name = Path::new(OsStr::from_bytes(name));
        let (source, target) = (root.join(name), folder.path().join(COPY_NAME).join(name));
        // Files that are deleted and not committed are listed, too.
        if source.is_file() {
            fs::create_dir_all(target.parent().context("a file in the copy")?)?;
            fs::copy(&source, &target).with_context(|| format!("copying {}", source.display()))?;
        }
    }
    Ok(folder)
}

/// Builds the image of a checkout.
fn build_image_of(checkout: &Path, options: &ImageOptions) -> Result<Image> {
    if options.shim {
        let binary = ImageBinary {
            package: "steps-shim",
            profile: "shim",
            is_static: true,
            pgo: None,
        };
        return shim_image(&binary.build(checkout)?);
    }
    build_host_image(checkout, options)
}

/// The optimized binary of the host.
pub const HOST_BINARY: ImageBinary<'static> = ImageBinary {
    package: "ostler",
    profile: "release",
    is_static: false,
    pgo: None,
};

/// Builds the binary of the host, which has all commands of administrators and users.
pub fn build_host_binary(checkout: &Path, profile: Profile) -> Result<PathBuf> {
    match profile {
        Profile::Release => {
            let pgo = pgo::unpack_profile(checkout, &checkout.join(IMAGE_TARGET))?;
            let binary = ImageBinary { pgo, ..HOST_BINARY };
            binary.build(checkout)
        }
        Profile::Debug => {
            let mut built = cargo::build_debug_binaries(&["ostler"])?;
            built.remove("ostler").context("cargo reported no binary")
        }
    }
}

/// Copies a binary without its debug information.
pub fn strip_binary(binary: &Path) -> Result<NamedTempFile> {
    let stripped = NamedTempFile::new()?;
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(stripped.path()).arg(binary);
    run_logged("strip", strip).context("the image needs binutils")?;
    Ok(stripped)
}

fn build_host_image(checkout: &Path, options: &ImageOptions) -> Result<Image> {
    let mut plugins = Vec::new();
    if !options.packs.is_empty() {
        let built = components::build_components(|guest| options.packs.contains(&guest.pack))?;
        plugins.extend(built.into_iter().map(|component| component.path));
    }
    let binary = build_host_binary(checkout, options.profile)?;
    let mut image = host_image(&binary, &plugins)?;
    if options.profile == Profile::Release {
        image.compression = 9;
        image.max_bytes = options.packs.is_empty().then_some(MAX_HOST_BYTES);
    }
    Ok(image)
}

/// Builds the shim for tests, with the dependencies of other builds. Returns its image.
pub fn build_shim_image() -> Result<Image> {
    shim_image(&cargo::build_static_binary("steps-shim", "shim")?)
}

/// Returns the image of a binary of the shim, which is all that is in it.
fn shim_image(binary: &Path) -> Result<Image> {
    let mut image = Image::new(["/shim"]);
    image.user = NON_ROOT_USER;
    image.compression = 9;
    image.max_bytes = Some(MAX_SHIM_BYTES);
    image.add_file("shim", binary, 0o755)?;
    Ok(image)
}

/// Returns the image of a host's binary: with its libraries, the certificates of public authorities and the components, without a
/// shell. The user is not root, and nothing has to be written to.
pub fn host_image(binary: &Path, components: &[PathBuf]) -> Result<Image> {
    let mut image = Image::new(["/usr/local/bin/ostler"]);
    image.user = NON_ROOT_USER;
    let stripped = strip_binary(binary)?;
    image.add_file("usr/local/bin/ostler", stripped.path(), 0o755)?;
    for library in list_libraries(binary)? {
        let path = library.strip_prefix("/").context("an absolute path")?;
        image.add_file(&path.display().to_string(), &library, 0o755)?;
    }
    let certificates = CERTIFICATE_FILES.iter().find(|file| Path::new(file).is_file());
    let certificates = certificates.context(
        "the image has the certificates of public authorities: install the package ca-certificates",
    )?;
    // The first of the paths at which they are looked for.
    image.add_file(&CERTIFICATE_FILES[0][1..], Path::new(certificates), 0o644)?;
    image.add_directory("plugins", 0o755);
    for component in components {
        let name = component.file_name().context("a component is a file")?;
        image.add_file(&format!("plugins/{}", name.display()), component, 0o644)?;
    }
    image.add_directory("tmp", 0o1777);
    Ok(image)
}

/// Lists the libraries of a program, and its loader, as the loader finds them.
fn list_libraries(binary: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd").arg(binary).output().context("running ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Of a static program it fails.
    if !output.status.success() && !text.is_empty() {
        bail!("ldd {}: {text}", binary.display());
    }
    parse_libraries(&text)
}

/// Parses lines such as `libm.so.6 => /lib/libm.so.6 (0x…)` and `/lib64/ld-linux.so.2 (0x…)`.
fn parse_libraries(text: &str) -> Result<BTreeSet<PathBuf>> {
    let mut libraries = BTreeSet::new();
    for line in text.lines() {
        let path = line.split_once("=>").map_or(line, |(_, path)| path).trim();
        if path.starts_with("not found") {
            bail!("a library of the host is missing: {}", line.trim());
        }
        if let Some((path, _)) = path.split_once(" (").filter(|(path, _)| path.starts_with('/')) {
            libraries.insert(path.into());
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_parsed_from_ldd() {
        let text =
            "\tlinux-vdso.so.1 (0x0)\n\tlibm.so.6 => /lib/libm.so.6 (0x0)\n\t/lib64/ld-linux.so.2 (0x0)\n";
        let libraries = parse_libraries(text).unwrap();
        assert_eq!(
            libraries,
            BTreeSet::from(["/lib/libm.so.6".into(), "/lib64/ld-linux.so.2".into()])
        );
        assert!(parse_libraries("\tlibx.so => not found\n").is_err());
        assert!(parse_libraries("\tstatically linked\n").unwrap().is_empty());
    }
}
