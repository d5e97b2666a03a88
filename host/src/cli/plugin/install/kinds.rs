//! The CustomResourceDefinitions of a plugin in a cluster: which are new or change, and their application.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use serde_json::Value;

use crate::{
    cli::apply::{apply_objects, read_live},
    plugin::carried::CarriedKind,
};

/// Interval between reads of a definition that was applied.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time in which the API server serves a kind.
const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(30);

/// What an installation does to a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindChange {
    /// It does not exist yet.
    New,
    /// The component carries another one.
    Changed,
    /// It is as the component carries it.
    Same,
}

/// A kind of a plugin, and what is to be done.
pub struct PlannedKind {
    /// The kind.
    pub kind: CarriedKind,
    /// The change.
    pub change: KindChange,
}

/// Compares the definitions that a component carries with those of a cluster.
///
/// # Errors
/// A definition would lose a version in which objects are stored.
pub async fn plan_kinds(client: &Client, kinds: Vec<CarriedKind>) -> anyhow::Result<Vec<PlannedKind>> {
    let mut planned = Vec::new();
    for kind in kinds {
        let change = match read_live(client, &kind.definition).await? {
            None => KindChange::New,
            Some(live) => {
                let stored = live.data["status"]["storedVersions"]
                    .as_array()
                    .into_iter()
                    .flatten();
                let stored = stored.filter_map(Value::as_str);
                let mut dropped = stored.filter(|version| !kind.versions.iter().any(|kept| kept == version));
                if let Some(version) = dropped.next() {
                    bail!(
                        "nothing was changed: the component no longer has the version {version} of {}, in which objects may be stored. \
                         Migrate them, and remove it from status.storedVersions first",
                        kind.name
                    );
                }
                match contains(&live.data["spec"], &kind.definition["spec"]) {
                    true => KindChange::Same,
                    false => KindChange::Changed,
                }
            }
        };
        planned.push(PlannedKind { kind, change });
    }
    Ok(planned)
}

/// Applies the definitions that are new or changed, and waits until the API server serves their kinds.
///
/// # Errors
/// A definition can't be applied, or is not accepted within the time.
pub async fn apply_kinds(client: &Client, planned: &[PlannedKind], force: bool) -> anyhow::Result<()> {
    let changed = planned.iter().filter(|kind| kind.change != KindChange::Same);
    let changed: Vec<&CarriedKind> = changed.map(|planned| &planned.kind).collect();
    let objects: Vec<Value> = changed.iter().map(|kind| kind.definition.clone()).collect();
    apply_objects(client, &objects, force).await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let deadline = Instant::now() + ESTABLISH_TIMEOUT;
    for kind in changed {
        loop {
            let definition = definitions.get(&kind.name).await;
            let definition =
                definition.with_context(|| format!("reading CustomResourceDefinition {}", kind.name))?;
            let conditions = definition
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            if conditions
                .iter()
                .any(|condition| condition.type_ == "Established" && condition.status == "True")
            {
                break;
            }
            if Instant::now() > deadline {
                let refused = conditions.iter().find(|condition| condition.status == "False");
                let why = refused
                    .and_then(|condition| condition.message.clone())
                    .unwrap_or_default();
                bail!("the API server does not serve {}: {why}", kind.name);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

/// Returns true if a value has all that another one has: the API server adds defaults.
fn contains(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted
            .iter()
            .all(|(name, wanted)| live.get(name).is_some_and(|live| contains(live, wanted))),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live
                    .iter()
                    .zip(wanted)
                    .all(|(live, wanted)| contains(live, wanted))
        }
        (Value::Number(live), Value::Number(wanted)) => live.as_f64() == wanted.as_f64(),
        (live, wanted) => live == wanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn definition_with_the_defaults_of_the_api_server_is_the_same() {
        let wanted = json!({"group": "g", "versions": [{"name": "v1", "schema": {"minimum": 1}}]});
        let live = json!({"group": "g", "conversion": {"strategy": "None"},
            "versions": [{"name": "v1", "served": true, "schema": {"minimum": 1.0}}]});
        assert!(contains(&live, &wanted));
        let other = json!({"group": "g", "versions": [{"name": "v1", "schema": {"minimum": 2}}]});
        assert!(!contains(&live, &other));
        let fewer = json!({"group": "g", "versions": []});
        assert!(!contains(&live, &fewer), "a list is compared as a whole");
        assert!(!contains(&live, &json!({"group": "g", "scope": "Cluster"})));
    }
}
