//! The certificate of the secure address: from files, such as those of cert-manager, or one that the host makes for itself.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::CertifiedKey,
};
use sha2::{Digest, Sha256};
use tracing::{info, warn};

/// Lifetime of a certificate that the host has made.
const OWN_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);
/// Age at which it is replaced: clients that keep it have time to notice.
const OWN_MAX_AGE: Duration = Duration::from_secs(60 * 24 * 3600);
/// Time by which a clock may be behind the host's.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
/// Interval of looking for a new certificate.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Files of a certificate and its key in PEM format.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate, followed by those of its issuers.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// The certificate that connections get, which is replaced while the server runs.
#[derive(Debug)]
pub struct ServerCertificate {
    source: Source,
    current: ArcSwap<CertifiedKey>,
}

#[derive(Debug)]
enum Source {
    Files {
        files: CertificateFiles,
        /// What was read last: the files of a Secret are replaced one after the other.
        last: parking_lot::Mutex<Vec<u8>>,
    },
    Own {
        names: Vec<String>,
        made_at: parking_lot::Mutex<SystemTime>,
    },
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl ServerCertificate {
    /// Reads the certificate of files.
    ///
    /// # Errors
    /// A file can't be read, or the two don't belong together.
    pub fn read(files: CertificateFiles) -> anyhow::Result<Self> {
        let (bytes, key) = read_files(&files)?;
        Ok(Self {
            current: ArcSwap::from_pointee(key),
            source: Source::Files {
                files,
                last: bytes.into(),
            },
        })
    }

    /// Makes a certificate for the names of this machine. No authority has signed it: clients know it by its digest, or don't
    /// verify it.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn make(address: SocketAddr) -> anyhow::Result<Self> {
        let mut names = vec!["localhost".to_owned(), "ostler".to_owned()];
        if !address.ip().is_unspecified() {
            names.push(address.ip().to_string());
        }
        let now = SystemTime::now();
        Ok(Self {
            current: ArcSwap::from_pointee(make_certificate(&names, now)?),
            source: Source::Own {
                names,
                made_at: now.into(),
            },
        })
    }

    /// Replaces the certificate if its files have changed, or if it is the host's own and old.
    pub fn renew(&self, now: SystemTime) {
        let renewed = match &self.source {
            Source::Files { files, last } => renew_from_files(files, &mut last.lock()),
            Source::Own { names, made_at } => {
                let mut made_at = made_at.lock();
                if now.duration_since(*made_at).unwrap_or_default() < OWN_MAX_AGE {
                    return;
                }
                let made = make_certificate(names, now);
                if made.is_ok() {
                    *made_at = now;
                }
                made.map(Some)
            }
        };
        match renewed {
            Ok(Some(key)) => {
                self.current.store(Arc::new(key));
                info!("the certificate of the secure address was replaced");
            }
            Ok(None) => {}
            Err(e) => {
                warn!(error = %format!("{e:#}"), "the certificate of the secure address can't be replaced, the former one is still used");
            }
        }
    }

    /// SHA-256 of the current certificate in DER, in hexadecimal digits.
    pub fn digest(&self) -> String {
        let current = self.current.load();
        let leaf = current.cert.first().map_or(&[][..], |leaf| leaf);
        format!("{:x}", Sha256::digest(leaf))
    }

    /// The TLS configuration of a server with this certificate. The verifier is that of client certificates.
    ///
    /// # Errors
    /// No protocol version is supported.
    pub fn server_config(
        self: &Arc<Self>,
        clients: Option<Arc<dyn ClientCertVerifier>>,
    ) -> anyhow::Result<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = clients.unwrap_or_else(WebPkiClientVerifier::no_client_auth);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn renew_from_files(files: &CertificateFiles, last: &mut Vec<u8>) -> anyhow::Result<Option<CertifiedKey>> {
    let bytes = read_bytes(files)?.concat();
    if bytes == *last {
        return Ok(None);
    }
    // Reported once, also if it is of no use.
    *last = bytes;
    read_files(files).map(|(_, key)| Some(key))
}

fn read_bytes(files: &CertificateFiles) -> anyhow::Result<[Vec<u8>; 2]> {
    let read = |path: &Path| -> anyhow::Result<Vec<u8>> {
        fs::read(path).with_context(|| format!("reading {}", path.display()))
    };
    Ok([read(&files.certificate)?, read(&files.key)?])
}

fn read_files(files: &CertificateFiles) -> anyhow::Result<(Vec<u8>, CertifiedKey)> {
    let [certificate, key] = read_bytes(files)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
    let chain = chain.with_context(|| format!("{} is not in PEM format", files.certificate.display()))?;
    if chain.is_empty() {
        bail!("{} has no certificate in PEM format", files.certificate.display());
    }
    // The error of the parser does not quote the key.
    let private = PrivateKeyDer::from_pem_slice(&key)
        .with_context(|| format!("{} has no private key in PEM format", files.key.display()))?;
    let pair = certified_key(chain, &private).with_context(|| {
        format!(
            "{} and {} are not usable together",
            files.certificate.display(),
            files.key.display()
        )
    })?;
    Ok(([certificate, key].concat(), pair))
}

fn certified_key(
    chain: Vec<CertificateDer<'static>>,
    key: &PrivateKeyDer<'static>,
) -> anyhow::Result<CertifiedKey> {
    let key = rustls::crypto::ring::sign::any_supported_type(key)?;
    let pair = CertifiedKey::new(chain, key);
    pair.keys_match()?;
    Ok(pair)
}

fn make_certificate(names: &[String], now: SystemTime) -> anyhow::Result<CertifiedKey> {
    let mut params = CertificateParams::new(names.to_vec())?;
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + OWN_LIFETIME).into();
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    certified_key(vec![certificate.der().clone()], &der)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current(certificate: &ServerCertificate) -> Vec<u8> {
        certificate.current.load().cert[0].to_vec()
    }

    fn write_pair(folder: &Path) -> CertificateFiles {
        let pair = rcgen::generate_simple_self_signed(vec!["ostler.example".into()]).expect("a pair");
        let files = CertificateFiles {
            certificate: folder.join("tls.crt"),
            key: folder.join("tls.key"),
        };
        fs::write(&files.certificate, pair.cert.pem()).expect("written");
        fs::write(&files.key, pair.signing_key.serialize_pem()).expect("written");
        files
    }

    #[test]
    fn own_certificate_is_replaced_before_it_expires() {
        let certificate = ServerCertificate::make("0.0.0.0:0".parse().expect("an address")).expect("made");
        let (first, now) = (current(&certificate), SystemTime::now());
        certificate.renew(now + OWN_MAX_AGE - Duration::from_secs(60));
        assert_eq!(current(&certificate), first);
        let later = now + OWN_MAX_AGE + Duration::from_secs(60);
        certificate.renew(later);
        let second = current(&certificate);
        assert_ne!(second, first);
        certificate.renew(later + CHECK_INTERVAL);
        assert_eq!(current(&certificate), second);
    }

    #[test]
    fn certificate_of_files_follows_them_and_survives_unusable_ones() {
        let folder = tempfile::tempdir().expect("a directory");
        let files = write_pair(folder.path());
        let certificate = ServerCertificate::read(files.clone()).expect("a certificate");
        let first = current(&certificate);
        certificate.renew(SystemTime::now());
        assert_eq!(current(&certificate), first);
        fs::write(&files.key, "not a key").expect("written");
        certificate.renew(SystemTime::now());
        assert_eq!(current(&certificate), first, "half a change is not used");
        write_pair(folder.path());
        certificate.renew(SystemTime::now());
        assert_ne!(current(&certificate), first);
    }

    #[test]
    fn unusable_files_are_errors_with_their_names_and_without_the_key() {
        let folder = tempfile::tempdir().expect("a directory");
        let (own, other) = (folder.path().join("own"), folder.path().join("other"));
        fs::create_dir_all(&own).expect("created");
        fs::create_dir_all(&other).expect("created");
        let (files, foreign) = (write_pair(&own), write_pair(&other));
        let read = |certificate: &Path, key: &Path| {
            let files = CertificateFiles {
                certificate: certificate.into(),
                key: key.into(),
            };
            format!("{:#}", ServerCertificate::read(files).expect_err("refused"))
        };
        let missing = folder.path().join("missing");
        assert!(read(&missing, &files.key).contains("missing"));
        assert!(read(&files.key, &files.key).contains("has no certificate"));
        assert!(read(&files.certificate, &files.certificate).contains("has no private key"));
        let mismatch = read(&files.certificate, &foreign.key);
        assert!(mismatch.contains("not usable together"), "{mismatch}");
        let key = fs::read_to_string(&foreign.key).expect("read");
        assert!(!mismatch.contains(key.lines().nth(1).expect("a line")));
    }
}
