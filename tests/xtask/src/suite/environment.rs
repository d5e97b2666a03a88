//! What scenarios need outside of their executables, and find by environment variables.

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;

use super::selection::{TestSelection, Tier};
use crate::{
    cargo::{self, Lints, TestExecutable},
    component_cache, components, paths, powerdns, prometheus, rabbitmq, registry,
};

/// Environment variable of the real control plane's kubeconfig.
pub const KUBECONFIG_VARIABLE: &str = "OSTLER_TEST_KUBECONFIG";
/// Environment variable of the kubeconfig of its second API server, which is another cluster.
pub const SECOND_KUBECONFIG_VARIABLE: &str = "OSTLER_TEST_SECOND_KUBECONFIG";
/// Environment variable of the folders with definitions that others publish.
pub const DEFINITIONS_VARIABLE: &str = "OSTLER_TEST_DEFINITIONS";
/// Environment variable of the kubeconfig of a cluster with a node.
pub const NODE_KUBECONFIG_VARIABLE: &str = "OSTLER_TEST_NODE_KUBECONFIG";
/// Environment variable of the address of that node's registry.
pub const NODE_REGISTRY_VARIABLE: &str = "OSTLER_TEST_NODE_REGISTRY";
/// Environment variable of the binary of Helm.
pub const HELM_VARIABLE: &str = "OSTLER_TEST_HELM";
/// Environment variable of the folder of a browser and its driver.
pub const BROWSER_VARIABLE: &str = "OSTLER_TEST_BROWSER";
/// Environment variable of the binary of kubectl.
pub const KUBECTL_VARIABLE: &str = "OSTLER_TEST_KUBECTL";
/// Environment variable of the binary of kustomize.
pub const KUSTOMIZE_VARIABLE: &str = "OSTLER_TEST_KUSTOMIZE";
/// Environment variable of the folder with the real Argo CD.
pub const ARGO_CD_VARIABLE: &str = "OSTLER_TEST_ARGOCD";

/// Environment variable of the folder of built components.
pub const COMPONENTS_VARIABLE: &str = "OSTLER_COMPONENTS";
/// Environment variable of the binary of the host.
pub const HOST_VARIABLE: &str = "OSTLER_BIN";
const REGISTRY_VARIABLE: &str = "OSTLER_TEST_REGISTRY";
/// Environment variable of the folder of Prometheus and its rule tester.
const PROMETHEUS_VARIABLE: &str = "OSTLER_TEST_PROMETHEUS";
const RABBITMQ_VARIABLE: &str = "OSTLER_TEST_RABBITMQ";
const POWERDNS_VARIABLE: &str = "OSTLER_TEST_POWERDNS";

/// Integration tests with scenarios, and one of the host, with which cargo builds its binary.
const SCENARIO_TARGETS: [&str; 3] = ["scenarios", "conformance", "layout"];

/// Age at which a component, or its compiled code, is removed from the cache. Their names are digests, and most components change.
const MAX_CACHED_AGE: Duration = Duration::from_hours(7 * 24);

/// Values of environment variables.
pub type Variables = BTreeMap<&'static str, PathBuf>;

/// Builds components, binaries and tests, and fetches the programs they run. Returns the environment variables by which the tests
/// find them, and the executables of the tests.
pub fn prepare(selection: &TestSelection, lints: Lints) -> Result<(Variables, Vec<TestExecutable>)> {
    let mut variables = Variables::new();
    if selection.has_scenarios() {
        // First, because they fail within seconds where a package can't be fetched.
        variables.insert(REGISTRY_VARIABLE, registry::find_or_fetch()?);
        variables.insert(PROMETHEUS_VARIABLE, prometheus::find_or_fetch()?);
        variables.insert(RABBITMQ_VARIABLE, rabbitmq::find_or_fetch()?);
        variables.insert(POWERDNS_VARIABLE, powerdns::find_or_fetch()?);
        let cache = ostler_builder::cache_dir(&paths::target_dir());
        for folder in ["compiled", component_cache::FOLDER] {
            prune_cache(&cache.join(folder), MAX_CACHED_AGE)?;
        }
        // The bench builds its own, with another profile and so with all dependencies again.
        components::build_components(|guest| guest.pack != components::BENCH_PACK)?;
        variables.insert(COMPONENTS_VARIABLE, paths::create_target_subdir("components")?);
    }
    let targets = if selection.includes(Tier::Pure) {
        &[][..]
    } else {
        &SCENARIO_TARGETS
    };
    let (mut binaries, executables) = cargo::build_tests(targets, lints)?;
    if let Some(binary) = binaries.remove("ostler") {
        variables.insert(HOST_VARIABLE, binary);
    }
    Ok((variables, executables))
}

/// Removes old files from a folder and those below it, which all checkouts of a user share.
fn prune_cache(folder: &Path, max_age: Duration) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries {
        let (path, metadata) = match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
            Ok(found) => found,
            // Another process has removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        if metadata.is_dir() {
            prune_cache(&path, max_age)?;
        } else if metadata.modified()?.elapsed().is_ok_and(|age| age > max_age) {
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The variables of a real Concourse are set by the person who runs the tests.
    #[test]
    fn every_variable_of_the_harness_is_set() {
        let mut folders = vec![paths::workspace_root().join("tests/harness/src")];
        let mut read = BTreeSet::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(path).unwrap();
                let names = text.split("\"OSTLER_").skip(1);
                let names = names.filter_map(|rest| Some(format!("OSTLER_{}", rest.split_once('"')?.0)));
                read.extend(names.filter(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_')));
            }
        }
        read.retain(|name| !name.starts_with("OSTLER_CONCOURSE_"));
        let set = [
            KUBECONFIG_VARIABLE,
            SECOND_KUBECONFIG_VARIABLE,
            NODE_KUBECONFIG_VARIABLE,
            BROWSER_VARIABLE,
            ARGO_CD_VARIABLE,
            COMPONENTS_VARIABLE,
            HOST_VARIABLE,
            REGISTRY_VARIABLE,
            PROMETHEUS_VARIABLE,
            RABBITMQ_VARIABLE,
            POWERDNS_VARIABLE,
        ];
        assert_eq!(read, set.map(str::to_owned).into());
    }

    #[test]
    fn cached_component_is_removed_when_it_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("code-0");
        fs::create_dir(&below).unwrap();
        let (old, new) = (below.join("old.cwasm"), below.join("new.cwasm"));
        for path in [&old, &new] {
            fs::write(path, "").unwrap();
        }
        let hour_ago = std::time::SystemTime::now() - Duration::from_hours(1);
        fs::File::options()
            .write(true)
            .open(&old)
            .unwrap()
            .set_modified(hour_ago)
            .unwrap();
        prune_cache(folder.path(), Duration::from_mins(30)).unwrap();
        assert!(!old.exists() && new.exists());
        prune_cache(&folder.path().join("absent"), Duration::ZERO).unwrap();
    }

    #[test]
    fn every_target_with_scenarios_is_an_integration_test() {
        let root = paths::workspace_root();
        for (target, path) in SCENARIO_TARGETS.into_iter().zip([
            "tests/scenarios/tests/main.rs",
            "host/apiserver/tests/conformance/main.rs",
            "host/tests/layout.rs",
        ]) {
            assert!(root.join(path).is_file(), "{target}");
        }
    }
}
