//! The input fetcher: unpacks the artifacts of producers, streamed, with their digests checked.

use std::{
    fs, io,
    io::Read,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use lz4_flex::frame::FrameDecoder;
use sha2::{Digest, Sha256};
use steps_protocol::{Directory, ErrorReason, FetchConfig, InputSource};

use crate::{
    client::{self, OpenResponse},
    files::fetched_path,
    pack::format_digest,
    serve::ARTIFACTS_PATH,
    signature::{Token, now, read_key},
};

/// Delay before the first retry; it doubles with each.
const MIN_BACKOFF: Duration = Duration::from_millis(100);

/// Longest delay between two attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Artifacts with a wrong digest that are fetched again before the input counts as corrupted.
const MAX_CORRUPTIONS: u32 = 3;

/// Fetches all inputs, one after the other: they share one network and one disk.
pub fn fetch(config: &FetchConfig) -> Result<(), (ErrorReason, String)> {
    let key = read_key(&config.key_path).map_err(|error| (ErrorReason::ConfigInvalid, error.to_string()))?;
    let deadline = Instant::now() + Duration::from_secs(config.timeout_seconds);
    for input in &config.inputs {
        let mark = fetched_path(&config.root, &input.name);
        // A restart of this container goes on where the last one ended.
        if !mark.exists() {
            let fetcher = Fetcher {
                config,
                key: &key,
                input,
                deadline,
            };
            fetcher.fetch_input()?;
            fs::write(&mark, "").map_err(|error| (ErrorReason::InputNotUnpacked, error.to_string()))?;
        }
        println!("Fetched input {}.", input.name);
    }
    Ok(())
}

/// The fetch of one input.
struct Fetcher<'a> {
    config: &'a FetchConfig,
    key: &'a [u8],
    input: &'a Directory,
    deadline: Instant,
}

/// The end of one attempt to unpack an artifact.
enum Attempt {
    Done,
    /// The annotation names another artifact by now.
    Replaced,
    Corrupted(String),
}

impl Fetcher<'_> {
    fn fetch_input(&self) -> Result<(), (ErrorReason, String)> {
        let mut corruptions = 0;
        loop {
            let source = self.await_source()?;
            match self.unpack(source)? {
                Attempt::Done => return Ok(()),
                Attempt::Replaced => {}
                Attempt::Corrupted(cause) => {
                    corruptions += 1;
                    eprintln!("shim fetch: input {}: {cause}", self.input.name);
                    if corruptions >= MAX_CORRUPTIONS {
                        let message = format!(
                            "Input {} was corrupted {corruptions} times: {cause}. Run the producer again.",
                            self.input.name
                        );
                        return Err((ErrorReason::InputCorrupted, message));
                    }
                }
            }
            self.clear()?;
        }
    }

    /// Waits for the annotation to name the source of the input.
    fn await_source(&self) -> Result<InputSource, (ErrorReason, String)> {
        let mut backoff = MIN_BACKOFF;
        loop {
            if let Some(source) = self.read_source() {
                return Ok(source);
            }
            self.pause(&mut backoff, "its producer has no pod")?;
        }
    }

    fn read_source(&self) -> Option<InputSource> {
        let text = fs::read_to_string(&self.config.sources_path).ok()?;
        let sources: Vec<InputSource> = serde_json::from_str(&text).ok()?;
        sources.into_iter().find(|source| source.name == self.input.name)
    }

    /// Unpacks the artifact of this source.
    fn unpack(&self, source: InputSource) -> Result<Attempt, (ErrorReason, String)> {
        let mut artifact = ArtifactReader::new(self, source);
        let result = unpack_stream(&mut artifact, Path::new(&self.input.path));
        if let Some(failure) = artifact.failure {
            return Err(failure);
        }
        if artifact.is_replaced {
            return Ok(Attempt::Replaced);
        }
        let expected = artifact.source.digest.clone();
        let found = format_digest(artifact.digest);
        match result {
            // A disk that is full, or a path that cannot be written, is not mended by another attempt.
            Err(error) if artifact.offset == artifact.source.bytes && found == expected => {
                Err((ErrorReason::InputNotUnpacked, self.describe_unpack_error(&error)))
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::StorageFull | io::ErrorKind::PermissionDenied
                ) =>
            {
                Err((ErrorReason::InputNotUnpacked, self.describe_unpack_error(&error)))
            }
            Err(error) => Ok(Attempt::Corrupted(error.to_string())),
            Ok(()) if found == expected => Ok(Attempt::Done),
            Ok(()) => Ok(Attempt::Corrupted(format!(
                "its digest is {found} instead of {expected}"
            ))),
        }
    }

    fn describe_unpack_error(&self, error: &io::Error) -> String {
        format!(
            "Input {} cannot be unpacked to {}: {error}.",
            self.input.name, self.input.path
        )
    }

    /// Removes what an attempt has unpacked. The directory itself is a mount.
    fn clear(&self) -> Result<(), (ErrorReason, String)> {
        let clear = || {
            for entry in fs::read_dir(&self.input.path)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    fs::remove_dir_all(entry.path())?;
                } else {
                    fs::remove_file(entry.path())?;
                }
            }
            Ok(())
        };
        clear()
            .map_err(|error: io::Error| (ErrorReason::InputNotUnpacked, self.describe_unpack_error(&error)))
    }

    /// Waits before the next attempt, unless the time is over.
    fn pause(&self, backoff: &mut Duration, cause: &str) -> Result<(), (ErrorReason, String)> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            let message = format!(
                "Input {} could not be fetched within {} s: {cause}.",
                self.input.name, self.config.timeout_seconds
            );
            return Err((ErrorReason::InputMissing, message));
        }
        thread::sleep((*backoff).min(remaining));
        *backoff = (*backoff * 2).min(MAX_BACKOFF);
        Ok(())
    }
}

fn unpack_stream(artifact: &mut ArtifactReader, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let mut archive = tar::Archive::new(FrameDecoder::new(&mut *artifact));
    // Neither set-user-ID bits nor owners: the consumer may have another user.
    archive.set_preserve_permissions(false);
    let unpacked = archive.unpack(to);
    drop(archive);
    // Bytes after the end of the archive belong to the digest.
    io::copy(artifact, &mut io::sink())?;
    unpacked
}

/// Reads an artifact over as many connections as it takes.
struct ArtifactReader<'a> {
    fetcher: &'a Fetcher<'a>,
    source: InputSource,
    response: Option<OpenResponse>,
    digest: Sha256,
    offset: u64,
    backoff: Duration,
    is_replaced: bool,
    failure: Option<(ErrorReason, String)>,
}

impl<'a> ArtifactReader<'a> {
    fn new(fetcher: &'a Fetcher<'a>, source: InputSource) -> Self {
        Self {
            fetcher,
            source,
            response: None,
            digest: Sha256::new(),
            offset: 0,
            backoff: MIN_BACKOFF,
            is_replaced: false,
            failure: None,
        }
    }

    fn connect(&mut self) -> Result<OpenResponse, String> {
        let path = format!("{ARTIFACTS_PATH}{}", self.source.artifact);
        let authorization = Token::derive(self.fetcher.key, &self.source.step).authorize(&path, now());
        client::request(
            &self.source.address,
            &path,
            &authorization,
            &self.source.digest,
            self.offset,
        )
    }

    fn read_once(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        let mut response = match self.response.take() {
            Some(response) => response,
            None => self.connect()?,
        };
        let read = response
            .read(buffer)
            .map_err(|error| format!("{}: {error}", self.source.address))?;
        if read == 0 {
            return Err(format!("{} sends too little", self.source.address));
        }
        self.response = Some(response);
        Ok(read)
    }

    /// Waits, and takes the address that the producer has by then.
    fn retry(&mut self, cause: &str) -> io::Result<()> {
        if let Err(failure) = self.fetcher.pause(&mut self.backoff, cause) {
            self.failure = Some(failure);
            return Err(io::ErrorKind::TimedOut.into());
        }
        if let Some(source) = self.fetcher.read_source() {
            if source.digest != self.source.digest {
                self.is_replaced = true;
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.source = source;
        }
        Ok(())
    }
}

impl Read for ArtifactReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_replaced || self.failure.is_some() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let max = usize::try_from(self.source.bytes - self.offset)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        if max == 0 {
            return Ok(0);
        }
        loop {
            match self.read_once(&mut buffer[..max]) {
                Ok(read) => {
                    self.digest.update(&buffer[..read]);
                    self.offset += read as u64;
                    self.backoff = MIN_BACKOFF;
                    return Ok(read);
                }
                Err(cause) => self.retry(&cause)?,
            }
        }
    }
}
