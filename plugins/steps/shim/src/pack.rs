//! Packs an output: a directory becomes a compressed tar file. It is packed once, so that its digest is that of what every
//! consumer gets, and an interrupted transfer can go on where it ended.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
};

use lz4_flex::frame::{BlockSize, FrameEncoder, FrameInfo};
use sha2::{Digest, Sha256};
use steps_protocol::{Artifact, Directory};

use crate::files::{artifact_path, digest_path};

/// A writer that computes digest and size of what passes.
struct Counted<W> {
    inner: W,
    digest: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(data)?;
        self.digest.update(&data[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Packs an output into the shared volume.
pub fn pack(root: &str, output: &Directory) -> io::Result<Artifact> {
    let path = artifact_path(root, &output.name);
    let partial = path.with_extension("partial");
    let file = BufWriter::new(File::create(&partial)?);
    let counted = Counted {
        inner: file,
        digest: Sha256::new(),
        bytes: 0,
    };
    let info = FrameInfo::new().block_size(BlockSize::Max256KB);
    let mut tar = tar::Builder::new(FrameEncoder::with_frame_info(info, counted));
    // A link is packed as a link: its target may be outside of the output.
    tar.follow_symlinks(false);
    tar.append_dir_all(".", Path::new(&output.path))?;
    let mut counted = tar.into_inner()?.finish().map_err(io::Error::other)?;
    counted.flush()?;
    let artifact = Artifact {
        name: output.name.clone(),
        digest: format_digest(counted.digest),
        bytes: counted.bytes,
    };
    fs::write(digest_path(root, &output.name), &artifact.digest)?;
    fs::rename(partial, path)?;
    Ok(artifact)
}

/// A digest as container images have it.
pub fn format_digest(digest: Sha256) -> String {
    let mut text = String::from("sha256:");
    for byte in digest.finalize() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
