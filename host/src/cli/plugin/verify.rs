//! `ostler plugin verify`: digest, signatures and compatibility of a component.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use serde::Serialize;

use super::super::{
    ask::OutputFormat,
    registry::{RegistryCommand, read_public_key},
    table::{Shade, cell, table},
};
use crate::{
    contract::inspection::{self, Inspection},
    supply::{
        oci::{Digest, OciReference},
        signature::{Fingerprint, SignaturePolicy},
    },
};

/// Arguments of `ostler plugin verify`.
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 when all that was asked holds; 1 otherwise. Without --key no signature is \
                        asked for."
)]
pub struct PluginVerifyCommand {
    /// Registry reference (REGISTRY/REPOSITORY@sha256:DIGEST or REGISTRY/REPOSITORY:TAG) or file.
    #[arg(value_name = "REFERENCE|FILE")]
    subject: String,
    /// Trusted public key (PEM, ECDSA P-256 or Ed25519). May be repeated: one valid signature is enough.
    #[arg(long = "key", value_name = "COSIGN.PUB")]
    keys: Vec<PathBuf>,
    /// Require a valid signature by every key.
    #[arg(long, requires = "keys")]
    require_all: bool,
    /// Signature of the file in base64, as written by `cosign sign-blob`.
    #[arg(long, value_name = "FILE", requires = "keys")]
    signature: Option<PathBuf>,
    #[command(flatten)]
    registry: RegistryCommand,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

/// The result of a verification.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VerifyResult {
    verified: bool,
    subject: String,
    /// Digest of the artifact, which pins the reference; `None` for a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Digest of the component.
    component_digest: String,
    size: usize,
    /// `None` if no key was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    signed_by: Option<Vec<Fingerprint>>,
    fits: bool,
    imports: Vec<String>,
    exports: Vec<String>,
    problems: Vec<String>,
}

/// A component with its verified signatures.
struct Subject {
    name: String,
    wasm: Vec<u8>,
    digest: Option<String>,
    signers: Vec<Fingerprint>,
    problem: Option<String>,
}

impl PluginVerifyCommand {
    /// Verifies the component and prints the result; a failed check is an error.
    pub async fn run(self) -> anyhow::Result<()> {
        let keys = self.keys.iter().map(|path| read_public_key(path));
        let keys = keys.collect::<anyhow::Result<Vec<_>>>()?;
        let asked = !keys.is_empty();
        let policy = match (asked, self.require_all) {
            (false, _) => SignaturePolicy::none(),
            (true, false) => SignaturePolicy::any_of(keys),
            (true, true) => SignaturePolicy::all_of(keys),
        };
        let path = Path::new(&self.subject);
        let subject = if path.is_file() {
            self.verify_file(path, &policy)?
        } else {
            self.verify_reference(policy).await?
        };
        let contract = inspection::inspect(&subject.wasm);
        let mut problems: Vec<_> = subject.problem.into_iter().collect();
        problems.extend(contract.as_ref().err().map(ToString::to_string));
        let (imports, exports) = match contract {
            Ok(Inspection { imports, exports, .. }) => (imports, exports),
            Err(_) => Default::default(),
        };
        let result = VerifyResult {
            verified: problems.is_empty(),
            subject: subject.name,
            digest: subject.digest,
            component_digest: Digest::of_bytes(&subject.wasm).to_string(),
            size: subject.wasm.len(),
            signed_by: asked.then_some(subject.signers),
            // It exports something, or it would not.
            fits: !exports.is_empty(),
            imports,
            exports,
            problems,
        };
        match self.output {
            OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&result)?),
            OutputFormat::Table => print!("{}", format_result(&result)),
        }
        if result.verified {
            Ok(())
        } else {
            bail!(
                "{} is not verified: {}",
                result.subject,
                result.problems.join("; ")
            )
        }
    }

    fn verify_file(&self, path: &Path, policy: &SignaturePolicy) -> anyhow::Result<Subject> {
        let name = path.display().to_string();
        let wasm = std::fs::read(path).with_context(|| format!("reading the component {name}"))?;
        let (mut signers, mut problem) = (Vec::new(), None);
        if policy.needs_signatures() {
            let Some(file) = &self.signature else {
                bail!(
                    "a file has no signature with it: give --signature (what `cosign sign-blob` wrote), or verify \
                     the reference it was pushed to"
                );
            };
            let signature = std::fs::read_to_string(file)
                .with_context(|| format!("reading the signature {}", file.display()))?;
            let signature = BASE64_STANDARD
                .decode(signature.trim())
                .with_context(|| format!("the signature {} is not base64", file.display()))?;
            let signed = policy
                .keys
                .iter()
                .filter(|key| key.verify_message(&wasm, &signature));
            signers.extend(signed.map(|key| key.fingerprint().clone()));
            // A file has one signature, so at most one of several keys has made it.
            if signers.is_empty() || (self.require_all && signers.len() < policy.keys.len()) {
                problem = Some(format!(
                    "{} is not its signature by the keys given",
                    file.display()
                ));
            }
        }
        Ok(Subject {
            name,
            wasm,
            digest: None,
            signers,
            problem,
        })
    }

    async fn verify_reference(&self, policy: SignaturePolicy) -> anyhow::Result<Subject> {
        let reference: OciReference = self
            .subject
            .parse()
            .with_context(|| format!("there is no file {}", self.subject))?;
        let (store, auth) = self.registry.open_store(&reference)?;
        // Not an error yet, so that the other results are printed, too.
        let pulled = store
            .pull_component(&reference, &auth, &policy.permissive())
            .await?;
        let pinned = Digest::parse(&pulled.digest).map(|digest| reference.with_digest(digest));
        Ok(Subject {
            name: pinned.unwrap_or(reference).to_string(),
            wasm: pulled.wasm,
            digest: Some(pulled.digest),
            signers: pulled.signers,
            problem: pulled.unsigned.map(|problem| problem.to_string()),
        })
    }
}

/// The result as text.
fn format_result(result: &VerifyResult) -> String {
    let list = |items: &[String]| match items {
        [] => "nothing".to_owned(),
        items => items.join("\n"),
    };
    let mut rows = vec![
        ("Component", result.subject.clone(), Shade::Plain),
        ("Digest", result.component_digest.clone(), Shade::Plain),
        (
            "Size",
            format!("{:.1} KB", result.size as f64 / 1000.0),
            Shade::Plain,
        ),
    ];
    rows.push(match &result.signed_by {
        None => ("Signed by", "not asked (--key)".into(), Shade::Waiting),
        Some(keys) if keys.is_empty() => ("Signed by", "none of the keys".into(), Shade::Bad),
        Some(keys) => {
            let keys: Vec<_> = keys.iter().map(ToString::to_string).collect();
            ("Signed by", keys.join("\n"), Shade::Good)
        }
    });
    if result.fits {
        rows.push(("Fits this host", "yes".into(), Shade::Good));
        rows.push(("Imports", list(&result.imports), Shade::Plain));
        rows.push(("Exports", list(&result.exports), Shade::Plain));
    } else {
        rows.push(("Fits this host", "no".into(), Shade::Bad))
    }
    rows.extend(
        result
            .problems
            .iter()
            .map(|problem| ("Problem", problem.clone(), Shade::Bad)),
    );
    let rows = rows
        .into_iter()
        .map(|(name, value, shade)| vec![cell(name, Shade::Faint), cell(value, shade)]);
    table(&[], rows)
}
