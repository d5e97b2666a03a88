//! `ostler install`: the host in a cluster, from the chart in this binary.

mod chart;
mod check;
mod rollout;
mod uninstall;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use self::{
    chart::{Release, check_values, default_values, merge_values, render_objects},
    rollout::wait_rollout,
};
use super::{
    apply::{apply_objects, read_live},
    kubeconfig::KubeContext,
    parse_duration,
    registry::{RegistryCommand, read_public_key},
};
use crate::{
    plugin::install::render_yaml,
    policy::rbac::HOST_NAMESPACE,
    supply::{
        oci::{Digest, OciReference},
        signature::SignaturePolicy,
    },
};

pub use self::{check::Check, uninstall::HostUninstall};

/// Name of the Deployment of the host, and value of the label of its pods.
const HOST_NAME: &str = "ostler";
/// Value of the label `app.kubernetes.io/managed-by` of what this command applies.
const MANAGER: &str = "ostler";
/// The label.
const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";

/// Arguments of `ostler install`.
#[derive(Args)]
#[command(
    after_help = "The same command with other values or another version of it upgrades the host. Its objects are those of the Helm chart in \
                  deploy/chart.\n\nExit codes: 0 the host runs, or its objects are applied with --no-wait or printed with --dry-run; 1 otherwise."
)]
pub struct HostInstall {
    /// Namespace of the host. It is created with restricted pod security if it does not exist.
    #[arg(short, long, value_name = "NAMESPACE", default_value = HOST_NAMESPACE)]
    namespace: String,
    /// File with values of the chart (YAML). May be repeated: later ones take precedence, and the options below over all.
    #[arg(short = 'f', long = "values", value_name = "FILE")]
    values: Vec<PathBuf>,
    /// Image of the host (REPOSITORY:TAG or REPOSITORY@sha256:DIGEST).
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Trusted public key (PEM, ECDSA P-256 or Ed25519) that the image must be signed with, as `cosign sign --key` does. The image is
    /// pinned by its digest. May be repeated: one valid signature is enough.
    #[arg(long = "key", value_name = "COSIGN.PUB")]
    keys: Vec<PathBuf>,
    #[command(flatten)]
    registry: RegistryCommand,
    /// Namespace that the host watches. May be repeated. Defaults to all namespaces.
    #[arg(long = "watch-namespace", value_name = "NAMESPACE")]
    watch_namespaces: Vec<String>,
    /// File with grants: what plugins may do that `ostler plugin install` does not grant, and the networks of upstreams.
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
    /// Print the objects as YAML, and apply nothing. No cluster is needed; a registry is with --key.
    #[arg(long)]
    dry_run: bool,
    /// Take over fields that others have changed.
    #[arg(long)]
    force_conflicts: bool,
    /// Time to wait until all replicas are ready.
    #[arg(long, default_value = "2m", value_parser = parse_duration)]
    timeout: Duration,
    /// End when the objects are applied.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    context: KubeContext,
}

impl HostInstall {
    /// Renders the objects, and prints them, or applies them and waits until the host runs.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut values = self.read_values()?;
        check_values(&values)?;
        let release = Release {
            namespace: &self.namespace,
            service: MANAGER,
        };
        let mut objects = render_objects(&values, release)?;
        if !self.keys.is_empty() {
            let digest = self.verify_image(find_image(&objects)?).await?;
            values["image"]["digest"] = json!(digest.as_str());
            objects = render_objects(&values, release)?;
        }
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": {
            MANAGED_BY_LABEL: MANAGER, "pod-security.kubernetes.io/enforce": "restricted"}}});
        if self.dry_run {
            objects.insert(0, namespace);
            print!("{}", render_yaml(&objects));
            return Ok(());
        }
        let client = self.context.connect().await?;
        for object in &objects {
            check_manager(&client, object).await?;
        }
        // Others may have pods in a namespace that exists, which restricted pod security would refuse.
        if read_live(&client, &namespace).await?.is_none() {
            objects.insert(0, namespace);
        }
        let generation = apply_objects(&client, &objects, self.force_conflicts).await?;
        if self.no_wait {
            return Ok(());
        }
        wait_rollout(&client, &self.namespace, generation, self.timeout).await?;
        println!("Ostler {} runs in {}", env!("CARGO_PKG_VERSION"), self.namespace);
        Ok(())
    }

    /// Verifies the signature of an image. Returns the digest that it is valid for.
    async fn verify_image(&self, image: &str) -> anyhow::Result<Digest> {
        let keys = self.keys.iter().map(|path| read_public_key(path));
        let policy = SignaturePolicy::any_of(keys.collect::<anyhow::Result<_>>()?);
        let reference: OciReference = image.parse().with_context(|| format!("the image {image}"))?;
        let (store, auth) = self.registry.open_store(&reference)?;
        let digest = store.verify_artifact(&reference, &auth, &policy).await;
        let digest = digest
            .with_context(|| format!("nothing was changed, since the image is not verified: {image}"))?;
        eprintln!("image {image} has a valid signature: {digest}");
        Ok(digest)
    }

    /// The values: those of the chart, of the files, and of the options.
    fn read_values(&self) -> anyhow::Result<Value> {
        let mut values = default_values()?;
        for path in &self.values {
            merge_values(&mut values, read_mapping(path, "values")?);
        }
        if let Some(image) = &self.image {
            merge_values(&mut values, json!({ "image": parse_image(image) }));
        }
        if !self.watch_namespaces.is_empty() {
            values["watchNamespaces"] = json!(self.watch_namespaces);
        }
        if let Some(path) = &self.grants {
            values["grants"] = read_mapping(path, "grants")?;
        }
        Ok(values)
    }
}

fn read_mapping(path: &Path, title: &str) -> anyhow::Result<Value> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("reading the {title} {name}"))?;
    let value: Value =
        serde_saphyr::from_str(&text).map_err(|e| anyhow::anyhow!("the {title} {name}: {e}"))?;
    if !value.is_object() {
        bail!("the {title} {name}: a mapping is needed");
    }
    Ok(value)
}

/// The image of the host, as the chart composes its reference of the values.
fn find_image(objects: &[Value]) -> anyhow::Result<&str> {
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment");
    let image =
        deployment.and_then(|object| object["spec"]["template"]["spec"]["containers"][0]["image"].as_str());
    image.context("the chart has no Deployment with an image")
}

/// The values of an image reference.
fn parse_image(image: &str) -> Value {
    if let Some((repository, digest)) = image.split_once('@') {
        return json!({"repository": repository, "digest": digest});
    }
    let name = image.rfind('/').map_or(0, |slash| slash + 1);
    match image[name..].rfind(':') {
        Some(colon) => {
            json!({"repository": image[..name + colon], "tag": image[name + colon + 1..], "digest": ""})
        }
        None => json!({"repository": image, "tag": "", "digest": ""}),
    }
}

/// Refuses to change an object of Helm or of another manager.
async fn check_manager(client: &Client, object: &Value) -> anyhow::Result<()> {
    let Some(live) = read_live(client, object).await? else {
        return Ok(());
    };
    let manager = live.labels().get(MANAGED_BY_LABEL).map(String::as_str);
    match manager {
        None | Some(MANAGER) => Ok(()),
        Some(other) => bail!(
            "nothing was changed, since {} {} is managed by {other}: upgrade it with that",
            object["kind"].as_str().unwrap_or_default(),
            live.name_any()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_is_split_into_repository_and_tag_or_digest() {
        for (image, repository, tag, digest) in [
            ("ostler", "ostler", "", ""),
            ("ostler:1", "ostler", "1", ""),
            ("registry:5000/ostler", "registry:5000/ostler", "", ""),
            ("registry:5000/a/ostler:1.2", "registry:5000/a/ostler", "1.2", ""),
        ] {
            assert_eq!(
                parse_image(image),
                json!({"repository": repository, "tag": tag, "digest": digest}),
                "{image}"
            );
        }
        assert_eq!(
            parse_image("registry:5000/ostler@sha256:00"),
            json!({"repository": "registry:5000/ostler", "digest": "sha256:00"})
        );
    }
}
