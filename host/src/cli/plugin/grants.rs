//! `ostler plugin grants`: the entry of a grants file that a component asks for.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;

use super::push::LocalComponent;
use crate::policy::{
    grants::{Grants, Permissions},
    origin::OriginPattern,
};

/// Arguments of `ostler plugin grants`.
#[derive(Args)]
#[command(
    after_help = "For a host whose plugins are files: the output is a grants file, or an entry of one. `ostler plugin install` writes \
                  grants into the Plugin object.\n\nExit codes:\n  0  printed\n  1  error\n  2  invalid arguments"
)]
pub struct PluginGrantsCommand {
    /// Component file, or the directory of a project, whose component is built.
    #[arg(value_name = "FILE|DIR")]
    subject: PathBuf,
    /// Server that Secrets may be sent to, where the manifest leaves it open, such as https://ci.example.com. May be repeated.
    #[arg(long = "origin", value_name = "ORIGIN")]
    origins: Vec<OriginPattern>,
}

impl PluginGrantsCommand {
    /// Prints the grants.
    pub async fn run(self) -> anyhow::Result<()> {
        let shown = self.subject.display().to_string();
        let file = match self.subject.is_dir() {
            true => self.build().await?,
            false => self.subject,
        };
        let component = LocalComponent::read(&file).await?;
        let Some(permissions) = component.permissions() else {
            bail!("{shown}: the component has no manifest, so nobody knows what it asks for");
        };
        print!("{}", render_grants(component.name(), permissions, &self.origins)?);
        Ok(())
    }

    #[cfg(feature = "dev")]
    async fn build(&self) -> anyhow::Result<PathBuf> {
        Ok(
            super::build::build(&self.subject, ostler_builder::BuildOptions::default())
                .await?
                .path,
        )
    }

    #[cfg(not(feature = "dev"))]
    async fn build(&self) -> anyhow::Result<PathBuf> {
        bail!(
            "{}: a directory: name a component file, since this build of ostler has no builder",
            self.subject.display()
        )
    }
}

/// Renders a grants file with all that a plugin asks for.
///
/// # Errors
/// The manifest leaves open where a Secret may be sent, and no origin is given.
fn render_grants(plugin: &str, asked: &Permissions, origins: &[OriginPattern]) -> anyhow::Result<String> {
    let mut granted = asked.clone();
    for secret in granted
        .secrets
        .iter_mut()
        .filter(|secret| secret.allows_any_origin())
    {
        if origins.is_empty() {
            bail!(
                "plugin {plugin} asks for Secrets, and its manifest leaves open where they may be sent: name it with --origin"
            );
        }
        secret.origins = Some(origins.to_vec());
    }
    let grants = json!({ "plugins": { plugin: granted } });
    Grants::parse(&grants.to_string(), "the manifest").map_err(|e| anyhow::anyhow!("{e}"))?;
    serde_saphyr::to_string(&grants).context("grants as YAML")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::grants::Access;

    #[test]
    fn printed_grants_are_what_the_manifest_asks_for() {
        let asked: Permissions =
            serde_saphyr::from_str("{kubernetes: [{kinds: [ConfigMap], verbs: [apply]}], events: true}")
                .unwrap();
        let text = render_grants("mine", &asked, &[]).unwrap();
        let grants = Grants::parse(&text, "grants.yaml").unwrap();
        assert!(
            grants
                .grants_for("mine")
                .check_access(&Access::Events, "")
                .is_ok()
        );
        assert!(
            grants
                .grants_for("other")
                .check_access(&Access::Events, "")
                .is_err()
        );
        assert!(!text.contains("upstreams"), "{text}");
    }

    #[test]
    fn secrets_without_origins_need_an_origin() {
        let asked: Permissions = serde_saphyr::from_str("secrets: [{names: [token]}]").unwrap();
        let error = render_grants("mine", &asked, &[]).unwrap_err().to_string();
        assert!(error.contains("--origin"), "{error}");
        let text = render_grants("mine", &asked, &["https://ci.example.com".parse().unwrap()]).unwrap();
        assert!(text.contains("https://ci.example.com"), "{text}");
    }
}
