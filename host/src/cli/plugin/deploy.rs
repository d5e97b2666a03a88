//! `ostler plugin deploy`: a project on a cluster, by one command.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use ostler_builder::BuildOptions;

use super::{
    build::build_with_crds,
    install::Installer,
    push::{LocalComponent, read_signing_key},
};
use crate::supply::oci::OciReference;

/// Arguments of `ostler plugin deploy`.
#[derive(Args)]
#[command(
    after_help = "Does what `ostler plugin build`, `push` and `install` do one after another. The same command after a change upgrades the \
                  plugin.\n\nExit codes: 0 it serves, or is applied with --no-wait or printed with --dry-run; 1 otherwise."
)]
pub struct Deploy {
    /// Directory of the plugin project.
    folder: PathBuf,
    /// Repository that the component is pushed to (REGISTRY/REPOSITORY:TAG). The tag defaults to the version of the plugin.
    #[arg(value_name = "REFERENCE")]
    reference: OciReference,
    /// Private key to sign the component with (PEM, PKCS#8, ECDSA P-256 or Ed25519). The host verifies the signature if --key names the
    /// public one.
    #[arg(long, value_name = "KEY")]
    sign: Option<PathBuf>,
    #[command(flatten)]
    installer: Installer,
}

impl Deploy {
    /// Builds the component, pushes it and installs it.
    pub async fn run(self) -> anyhow::Result<()> {
        let key = self.sign.as_deref().map(read_signing_key).transpose()?;
        if self.reference.digest().is_some() {
            bail!(
                "{} has a digest, which pushing finds: leave out @sha256:…",
                self.reference
            );
        }
        let built = build_with_crds(&self.folder, BuildOptions::default()).await?;
        for warning in &built.warnings {
            eprintln!("{warning}");
        }
        let component = LocalComponent::read(&built.path).await?;
        let mut reference = self.reference;
        if reference.tag().is_none() {
            let version = component.version();
            let tagged = format!("{reference}:{version}").parse();
            reference =
                tagged.with_context(|| format!("the version {version} of the plugin is no tag: name one"))?;
        }
        let pushed = component
            .push(&reference, key.as_ref(), &self.installer.registry)
            .await?;
        eprintln!("{}", pushed.describe());
        println!("{}", pushed.reference);
        self.installer.install(pushed.reference).await
    }
}
