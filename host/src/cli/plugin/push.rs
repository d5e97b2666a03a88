//! `ostler plugin push`: upload of a component to an OCI registry.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::super::{
    ask::OutputFormat,
    registry::{RegistryCommand, read_text},
};
use crate::{
    contract::{inspection, limits::PluginLimits},
    plugin,
    policy::grants::{Grants, Permissions},
    sandbox::engine::Engine,
    supply::{
        oci::{ComponentInterfaces, OciReference},
        signature::{Fingerprint, SigningKey},
    },
};

/// Arguments of `ostler plugin push`.
#[derive(Args)]
#[command(
    after_help = "Prints the reference with the digest that pins it. Exit codes: 0 pushed, and signed where asked for; \
                  1 otherwise."
)]
pub struct Push {
    /// Component file.
    file: PathBuf,
    /// Destination in the form REGISTRY/REPOSITORY:TAG.
    reference: OciReference,
    /// Private key to sign the component with (PEM, PKCS#8, ECDSA P-256 or Ed25519), as `cosign sign --key` does.
    #[arg(long, value_name = "KEY")]
    sign: Option<PathBuf>,
    #[command(flatten)]
    registry: RegistryCommand,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

/// The pushed artifact.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PushResult {
    /// The reference with the digest, which pins it.
    pub reference: String,
    digest: String,
    name: String,
    version: String,
    size: u64,
    /// True if the registry already had the artifact.
    existed: bool,
    signed_by: Option<Fingerprint>,
}

impl Push {
    /// Pushes the component and prints its reference.
    pub async fn run(self) -> anyhow::Result<()> {
        if self.reference.digest().is_some() {
            bail!(
                "{} has a digest, which pushing finds: leave out @sha256:…",
                self.reference
            );
        }
        // Local checks come before the first request.
        let key = self.sign.as_deref().map(read_signing_key).transpose()?;
        let component = LocalComponent::read(&self.file).await?;
        let result = component
            .push(&self.reference, key.as_ref(), &self.registry)
            .await?;
        match self.output {
            OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&result)?),
            OutputFormat::Table => {
                // Standard output has only the reference, for scripts.
                eprintln!("{}", result.describe());
                println!("{}", result.reference);
            }
        }
        Ok(())
    }
}

impl PushResult {
    /// Name, version and size, and who has signed it.
    pub fn describe(&self) -> String {
        format!(
            "{} {}, {:.1} KB{}{}",
            self.name,
            self.version,
            self.size as f64 / 1000.0,
            if self.existed { ", was there already" } else { "" },
            self.signed_by
                .as_ref()
                .map(|key| format!(", signed by {key}"))
                .unwrap_or_default()
        )
    }
}

/// Reads a private key (PEM, PKCS#8).
///
/// # Errors
/// There is no such file, or another one.
pub fn read_signing_key(path: &Path) -> anyhow::Result<SigningKey> {
    SigningKey::from_pem(&read_text(path)?).with_context(|| format!("the key {}", path.display()))
}

/// A component of this machine that this host can run.
pub struct LocalComponent {
    wasm: Vec<u8>,
    shape: ComponentInterfaces,
    plugin: plugin::Plugin,
}

impl LocalComponent {
    /// Reads the component of a file, and loads it as a host would.
    ///
    /// # Errors
    /// It is no component that this host can run.
    pub async fn read(file: &Path) -> anyhow::Result<Self> {
        let name = file.display();
        let wasm = std::fs::read(file).with_context(|| format!("reading the component {name}"))?;
        let shape = inspection::inspect(&wasm).with_context(|| name.to_string())?;
        let limits = PluginLimits::default();
        let engine =
            Arc::new(Engine::new(1, limits.memory, None, None).map_err(|e| anyhow::anyhow!("{e:#}"))?);
        let plugin = plugin::load(&engine, wasm.clone(), None, &Grants::default(), &limits)
            .await
            .map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
        Ok(Self {
            wasm,
            shape: ComponentInterfaces {
                imports: shape.imports,
                exports: shape.exports,
            },
            plugin,
        })
    }

    /// The name that it declares.
    pub fn name(&self) -> &str {
        self.plugin.name()
    }

    /// The permissions that its manifest asks for; `None` without a manifest.
    pub fn permissions(&self) -> Option<&Permissions> {
        self.plugin
            .manifest
            .as_ref()
            .map(|manifest| &manifest.permissions)
    }

    /// The version that it declares.
    #[cfg(feature = "dev")]
    pub fn version(&self) -> &str {
        &self.plugin.version
    }

    /// Pushes it, and signs it if there is a key.
    ///
    /// # Errors
    /// The registry does not accept it.
    pub async fn push(
        self,
        reference: &OciReference,
        key: Option<&SigningKey>,
        registry: &RegistryCommand,
    ) -> anyhow::Result<PushResult> {
        let Self { wasm, shape, plugin } = self;
        let annotations = [
            ("org.opencontainers.image.title", plugin.name().to_string()),
            ("org.opencontainers.image.version", plugin.version.clone()),
        ];
        let annotations: BTreeMap<_, _> = annotations.map(|(name, value)| (name.to_owned(), value)).into();
        let (store, auth) = registry.open_store(reference)?;
        let bar = progress_bar(wasm.len() as u64);
        let telling = bar.clone();
        let pushed = store
            .push_component(
                reference,
                &auth,
                wasm.into(),
                &shape,
                annotations,
                Arc::new(move |bytes| telling.set_position(bytes)),
            )
            .await;
        bar.finish_and_clear();
        let pushed = pushed?;
        if let Some(key) = key {
            store
                .sign_digest(reference, &pushed.digest, &auth, key)
                .await
                .with_context(|| format!("{} is pushed and not signed", pushed.reference))?;
        }
        Ok(PushResult {
            reference: pushed.reference.to_string(),
            digest: pushed.digest.to_string(),
            name: plugin.name().to_string(),
            version: plugin.version.clone(),
            size: pushed.size,
            existed: pushed.already_present,
            signed_by: key.map(|key| key.public_key().fingerprint().clone()),
        })
    }
}

/// A progress bar, hidden unless standard error is a terminal.
fn progress_bar(bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("Pushing {bar:30} {bytes}/{total_bytes}");
    let bar = ProgressBar::new(bytes);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
