//! The logs of the pods that an object owns. They are found by the label of owned objects, and read with the rights of the user.

use anyhow::Context;
use futures::{AsyncBufReadExt, Stream, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{ListParams, LogParams},
};
use serde::Serialize;

use super::{
    ask::OutputFormat,
    connection::ClusterConnection,
    object_api::find_api,
    table::{Shade, shade_text},
};
use crate::{admin::explain::ObjectExplanation, kube::well_known::bookkeeping::OWNER_UID};

/// A line of the log of a container.
#[derive(Serialize)]
struct ContainerLine {
    pod: String,
    container: String,
    message: String,
}

/// The lines to print.
pub struct LineSelection {
    /// Number of lines from the end of each log; none for all.
    pub tail: Option<usize>,
    /// Further lines are printed as they are written.
    pub follow: bool,
    /// The format.
    pub output: OutputFormat,
}

/// Prints the logs of the pods that an object owns, one container after the other, or all at once if they are followed.
///
/// # Errors
/// The cluster cannot be reached, the object does not exist, or the user may not list pods. A log that cannot be read, as that of a
/// container that waits, is reported on standard error.
pub async fn print_pod_logs(
    cluster: &ClusterConnection,
    owner: &ObjectExplanation,
    selection: &LineSelection,
) -> anyhow::Result<()> {
    let client = kube::Client::try_from(cluster.context.load().await?)?;
    let uid = read_uid(&client, owner).await?;
    let api: Api<Pod> = match &*owner.namespace {
        "" => Api::all(client.clone()),
        namespace => Api::namespaced(client.clone(), namespace),
    };
    let owned = ListParams::default().labels(&format!("{OWNER_UID}={uid}"));
    let pods = api.list(&owned).await.context("listing its pods")?;
    if pods.items.is_empty() {
        eprintln!("{}/{} owns no pods", owner.kind, owner.name);
    }
    let mut logs = Vec::new();
    for pod in &pods.items {
        let Some(spec) = &pod.spec else { continue };
        let init = spec.init_containers.iter().flatten();
        for container in init.chain(&spec.containers) {
            let opened = open_log(&client, pod, &container.name, selection).await;
            match opened {
                Ok(lines) => logs.push(lines.boxed()),
                Err(error) => eprintln!("{}/{}: {error}", pod.name_any(), container.name),
            }
        }
    }
    let mut lines = match selection.follow {
        true => stream::select_all(logs).boxed(),
        false => stream::iter(logs).flatten().boxed(),
    };
    while let Some(line) = lines.try_next().await? {
        match selection.output {
            OutputFormat::Json => println!("{}", serde_json::to_string(&line)?),
            OutputFormat::Table => {
                let place = format!("{}/{}", line.pod, line.container);
                println!("{} {}", shade_text(&place, Shade::Faint), line.message);
            }
        }
    }
    Ok(())
}

/// The UID of an object.
async fn read_uid(client: &kube::Client, owner: &ObjectExplanation) -> anyhow::Result<String> {
    let api = find_api(client, &owner.kind, &owner.namespace).await?;
    let object = api.get(&owner.name).await?;
    object.uid().context("the object has no UID")
}

/// Opens the log of a container. It ends where it ends now, unless it is followed.
async fn open_log(
    client: &kube::Client,
    pod: &Pod,
    container: &str,
    selection: &LineSelection,
) -> Result<impl Stream<Item = anyhow::Result<ContainerLine>> + use<>, kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let parameters = LogParams {
        container: Some(container.to_owned()),
        follow: selection.follow,
        tail_lines: selection.tail.and_then(|lines| i64::try_from(lines).ok()),
        ..LogParams::default()
    };
    let (pod, container) = (pod.name_any(), container.to_owned());
    let lines = api.log_stream(&pod, &parameters).await?.lines();
    Ok(lines.map(move |line| {
        Ok(ContainerLine {
            pod: pod.clone(),
            container: container.clone(),
            message: line?,
        })
    }))
}
